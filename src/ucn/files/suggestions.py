"""'Did you mean' for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, legal: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean 'x'?", or "" where no legal one is close."""
    close = difflib.get_close_matches(name, list(legal), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
