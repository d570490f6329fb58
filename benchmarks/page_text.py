"""Shared by the scripts that write pages: Markdown wrapped at 100 characters, and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence


def wrap(text: str, indent: str = "") -> list[str]:
    """Lines of at most 100 characters; `indent` begins all but the first."""
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def wrap_items(items: Iterable[str]) -> list[str]:
    """A bulleted list."""
    return [line for item in items for line in wrap(f"- {item}", "  ")]


def join_cells(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def start_table(heads: Sequence[str], rule: str = "---") -> list[str]:
    """Header and rule of a table."""
    return [join_cells(heads), f"|{rule}" * len(heads) + "|"]
