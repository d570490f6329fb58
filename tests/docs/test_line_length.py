"""Markdown is wrapped at 100 characters, and a row of a table fits on a screen."""

import re
from pathlib import Path

import pytest

from support.docs_cases import PAGES, name_of

MAX_LINE = 100
MAX_ROW = 150
# Written by `ucn evaluate`, with as many columns as there are benchmarks.
WIDE_TABLES = "docs/results/"


def find_long_lines(text: str, max_row: int = MAX_ROW) -> list[int]:
    """Numbers, from 1, of lines that are too long.

    Code blocks, HTML and link definitions may be longer, and so may a line that is a single word, such as a
    link: it cannot be wrapped.
    """
    found: list[int] = []
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        opening = re.match(r"```+", content)
        if fence:
            fence = "" if content == fence else fence
        elif opening:
            fence = opening[0]
        elif content.startswith("|"):
            found += [number] if len(line) > max_row else []
        elif len(line) > MAX_LINE and not re.match(r"<|\[[^\]]+\]: |(?:[-*] |\d+\. )?\S+$", content):
            found.append(number)
    return found


def test_long_lines_are_found() -> None:
    long = "word " * 21
    assert find_long_lines(f"{long}\n- {long}\n{'a' * 200}\n") == [1, 2]
    assert find_long_lines(f"```text\n{long}\n```\n{long}\n") == [4]
    assert find_long_lines(f"<img alt='{long}'>\n[name]: {long}\n") == []
    assert find_long_lines(f"| {long} |\n| {long * 2} |\n") == [2]
    assert find_long_lines("word " * 20) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=name_of)
def test_page_is_wrapped(page: Path) -> None:
    is_wide = name_of(page).startswith(WIDE_TABLES) and page.stem != "index"
    text = page.read_text(encoding="utf-8")
    long = find_long_lines(text, max_row=10_000 if is_wide else MAX_ROW)
    assert not long, f"{name_of(page)}: wrap lines {', '.join(map(str, long))}"
