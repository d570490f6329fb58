"""Finds the files that a list of your own data names."""

from __future__ import annotations

from pathlib import Path

from ucn.data.sets.layout import resolve_inside
from ucn.errors import DataError
from ucn.files.reading import explain_failure
from ucn.files.suggestions import suggest


class FileFinder:
    """Finds the files of a list, and suggests names for those that are missing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listings: dict[Path, set[str]] = {}
        self._hints_left = 20  # the search for a similar name is slow in a large folder

    def find(self, name: str, what: str) -> Path:
        """The path of a file; raises `DataError` where it is missing."""
        path = resolve_inside(self._root, name)
        try:
            names = self._list(path.parent)
            if path.name in names and path.is_file():
                return path
            if path.is_symlink() and not path.exists():
                reason = "is a link to a missing file; copy it, or correct the link"
                raise DataError(f"{what}: {name[:80]!r} {reason}")
        except OSError as error:
            reason = f"{explain_failure(error)}; check the name"
            raise DataError(f"{what}: cannot read {name[:80]!r}: {reason}") from error
        hint = suggest(path.name, names) if self._hints_left > 0 else ""
        self._hints_left -= 1
        hint = hint or "; check name and folder"
        raise DataError(f"{what}: no file {name[:80]!r} in {self._root}{hint}")

    def _list(self, folder: Path) -> set[str]:
        if folder not in self._listings:
            self._listings[folder] = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return self._listings[folder]
