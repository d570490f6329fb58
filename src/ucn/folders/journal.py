"""What a run over many images has finished, so that the next run with the same settings resumes.

A journal is a file beside the outputs: a line with the settings, a line with the names of all outputs, then a
line per finished item, written after its files. Only a journal of ours is resumed, only outputs that it names
are replaced, and nothing is deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from ucn.errors import DataError, OutputError
from ucn.files.reading import explain_failure, read_lines
from ucn.files.writing import exists_error, write_bytes_atomically

Stamps = list[list[int]]
"""Size and modification time of each image of an item."""

_SHOWN_CHANGES = 3


class Journal:
    """The finished items of a run; new ones are added within its context.

    An item is a mapping of plain values; those under the names `fields` identify it.
    """

    fields: tuple[str, ...] = ("image",)
    format = "ucn-images-1"
    home = "folder"
    """What a run has for itself, in errors."""

    def __init__(
        self, path: Path, key: Mapping[str, Any], outputs: Collection[Path], start_over: bool = False
    ) -> None:
        """Opens the journal of a run, or creates it.

        Args:
            path: of the journal; its folder exists.
            key: everything that results depend on besides the images, as plain JSON values.
            outputs: the files that the run writes, in this folder or elsewhere.
            start_over: forget finished items, and replace existing outputs.

        Raises:
            DataError: the journal is of a run with other settings.
            OutputError: an output exists that no run of this journal wrote, or the journal is not ours.
        """
        self._path = path
        self._key = json.loads(json.dumps({"format": self.format, **key}))
        self._done: dict[tuple[str, ...], dict[str, Any]] = {}
        self._ours: set[str] = set()
        self._file: TextIO | None = None
        if os.path.lexists(self._path):
            self._resume(start_over)
        for output in outputs:
            if not start_over and self._name(output) not in self._ours and os.path.lexists(output):
                raise exists_error(output)
        self._ours |= set(map(self._name, outputs))
        lines = [self._key, {"outputs": sorted(self._ours)}, *self._done.values()]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_bytes_atomically(self._path, text.encode(), overwrite=True)

    def find_item(self, names: tuple[str, ...], paths: Sequence[Path]) -> dict[str, Any] | None:
        """A finished item; None where it is not finished, or an image has changed since."""
        found = self._done.get(names)
        return found if found is not None and found["images"] == stamp_files(paths) else None

    def add_item(self, item: Mapping[str, Any], stamps: Stamps) -> None:
        """Notes a finished item; raises `OutputError` where that fails."""
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json.dumps({**item, "images": stamps}) + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {explain_failure(error)}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _name(self, path: Path) -> str:
        """An output's name in the journal: within the folder, which may be moved, else its full path."""
        return path.name if path.parent == self._path.parent else str(path.parent.resolve() / path.name)

    def _resume(self, start_over: bool) -> None:
        """Reads the finished items of an earlier run, or forgets them."""
        lines = _read_lines(self._path)
        key = next(lines, None)
        if self._path.is_symlink() or not isinstance(key, dict) or key.get("format") != self.format:
            raise OutputError(
                f"{self._path} is no journal of ucn (its first line has no format '{self.format}') and was "
                "kept; give another folder"
            )
        outputs = next(lines, None)
        if isinstance(outputs, dict) and isinstance(outputs.get("outputs"), list):
            self._ours = {name for name in outputs["outputs"] if isinstance(name, str)}
        if start_over:
            return
        if key != self._key:
            raise DataError(
                f"{self._path} is of a run with other settings "
                f"({_describe_changes(key, self._key)}); repeat that run, give another "
                f"{self.home}, or start over (overwrite=True)"
            )
        for line in lines:
            try:
                names = tuple(str(line[field]) for field in self.fields)
                stamps = [[int(value) for value in stamp] for stamp in line["images"]]
                self.check_item(line)
            except (KeyError, TypeError, ValueError, OverflowError):
                continue  # a damaged line: the item is done again
            self._done[names] = {**line, "images": stamps}

    def check_item(self, item: Mapping[str, Any]) -> None:
        """Raises one of `KeyError`, `TypeError`, `ValueError`, `OverflowError` where an item is damaged."""


def stamp_files(paths: Sequence[Path]) -> Stamps | None:
    """Size and modification time of files; None where one is missing."""
    try:
        return [[status.st_size, status.st_mtime_ns] for status in (path.stat() for path in paths)]
    except (OSError, ValueError):
        return None


def _read_lines(path: Path) -> Iterator[Any]:
    """Yields the values of the journal's lines, None for a damaged one."""
    for _, line in read_lines(path, "the journal"):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield None


def _describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first settings that differ, with both values."""
    before, now = _list_leaves(old), _list_leaves(new)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = [
        f"other {name}"
        if _is_hash(before.get(name)) and _is_hash(now.get(name))
        else f"{name} {before.get(name)!r:.60}, now {now.get(name)!r:.60}"
        for name in names[:_SHOWN_CHANGES]
    ]
    return "; ".join(shown) + ("; …" if len(names) > _SHOWN_CHANGES else "")


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64


def _list_leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            leaves |= _list_leaves(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves
