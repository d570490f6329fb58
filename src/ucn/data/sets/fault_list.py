"""Faults of large files, counted rather than kept."""

from __future__ import annotations

from pathlib import Path

from ucn.data.pairs import Fault

MAX_FAULTS = 50
"""So many are named."""


class FaultList:
    """Faults of which only the first are kept: a file of gigabytes may be wrong in each of its entries."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._kept: list[Fault] = []
        self._more: dict[Path, int] = {}

    def add(self, path: Path, message: str, line: int | None) -> None:
        """Notes that an entry of a file is wrong and left out."""
        if len(self._kept) < MAX_FAULTS:
            self._kept.append(Fault(path, message, line, is_left_out=True))
        else:
            self._more[path] = self._more.get(path, 0) + 1

    def finish(self) -> list[Fault]:
        """The first faults, and how many more each file has."""
        rest = f"more faults; the first are named above; {self._remedy}"
        return [
            *self._kept,
            *(Fault(path, f"{count:,} {rest}", is_left_out=True) for path, count in self._more.items()),
        ]
