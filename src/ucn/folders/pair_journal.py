"""What a run over many pairs has finished, so that the next run with the same settings resumes.

The folder of outputs has a journal: a line with the settings, a line with the names of all outputs, then a
line per finished pair, written after its files. Only a folder with a journal of ours is resumed, only outputs
that it names are replaced, and nothing is deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from ucn.errors import DataError, OutputError
from ucn.files import exists_error, explain_failure, read_lines, write_bytes_atomically
from ucn.folders.image_pairs import ImagePair
from ucn.folders.pairing import Pair

JOURNAL = "progress.jsonl"
"""The journal's file name in the folder of outputs."""
FORMAT = "ucn-pairs-1"
"""Stands in the first line of every journal."""

_SHOWN_CHANGES = 3
Stamps = list[list[int]]
"""Size and modification time of both images."""


@dataclass(frozen=True)
class PairRecord:
    """The outcome of a pair.

    Attributes:
        image0: name of image 0.
        image1: name of image 1.
        file: name of the file of matches in the folder; empty where the pair failed.
        matches: number of matches; None where the pair failed.
        inliers: number of inliers; None without verification, or where the pair failed.
        pair_score: as `Matches.pair_score`; None where the pair failed.
        seconds: that the pair took, encoding of its images included where it was needed.
        error: why the pair failed; empty otherwise.
    """

    image0: str
    image1: str
    file: str = ""
    matches: int | None = None
    inliers: int | None = None
    pair_score: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def names(self) -> Pair:
        """Names of both images."""
        return self.image0, self.image1


class PairJournal:
    """The finished pairs of a folder; new ones are added within its context."""

    def __init__(
        self, folder: Path, key: Mapping[str, Any], outputs: Collection[Path], start_over: bool = False
    ) -> None:
        """Opens the folder of a run, or creates it.

        Args:
            folder: of the outputs; made if missing, but not its parent.
            key: everything that the matches depend on besides the images, as plain JSON values.
            outputs: the files that the run writes, in this folder or elsewhere.
            start_over: forget finished pairs, and replace existing outputs.

        Raises:
            DataError: the folder holds outputs of a run with other settings.
            OutputError: the folder cannot be created, an output exists that no run of this folder wrote, or
                its journal is not ours.
        """
        self._path = folder / JOURNAL
        self._key = json.loads(json.dumps({"format": FORMAT, **key}))
        self._done: dict[Pair, tuple[PairRecord, Stamps]] = {}
        self._ours: set[str] = set()
        self._file: TextIO | None = None
        make_folder(folder)
        if os.path.lexists(self._path):
            self._resume(start_over)
        for path in outputs:
            if not start_over and self._name(path) not in self._ours and os.path.lexists(path):
                raise exists_error(path)
        self._ours |= set(map(self._name, outputs))
        finished = (_to_line(*item) for item in self._done.values())
        lines = [self._key, {"outputs": sorted(self._ours)}, *finished]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_bytes_atomically(self._path, text.encode(), overwrite=True)

    def find(self, pair: ImagePair) -> PairRecord | None:
        """The record of a finished pair; None where it is not finished, or an image has changed since."""
        record, stamps = self._done.get(pair.names, (None, None))
        return record if stamps == stamp_images(pair) else None

    def add(self, record: PairRecord, stamps: Stamps) -> None:
        """Notes a finished pair; raises `OutputError` where that fails."""
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json.dumps(_to_line(record, stamps)) + "\n")
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
        """Reads the finished pairs of an earlier run, or forgets them."""
        lines = _read_lines(self._path)
        key = next(lines, None)
        if self._path.is_symlink() or not isinstance(key, dict) or key.get("format") != FORMAT:
            raise OutputError(
                f"{self._path} is no journal of ucn (its first line has no format '{FORMAT}') and was kept; "
                "give another folder"
            )
        outputs = next(lines, None)
        if isinstance(outputs, dict) and isinstance(outputs.get("outputs"), list):
            self._ours = {name for name in outputs["outputs"] if isinstance(name, str)}
        if start_over:
            return
        if key != self._key:
            raise DataError(
                f"{self._path.parent} holds matches of a run with other settings "
                f"({_describe_changes(key, self._key)}); repeat that run, give another folder, or start over "
                "(overwrite=True)"
            )
        for line in lines:
            found = _from_line(line)
            if found is not None:  # a damaged line: the pair is matched again
                self._done[found[0].names] = found


def stamp_images(pair: ImagePair) -> Stamps | None:
    """Size and modification time of both images; None where one is missing."""
    try:
        return [[status.st_size, status.st_mtime_ns] for status in (path.stat() for path in pair.paths)]
    except (OSError, ValueError):
        return None


def make_folder(folder: Path) -> None:
    """Creates a folder for outputs if it is missing, but not its parent; raises `OutputError`."""
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder") from error
    except OSError as error:
        raise OutputError(f"cannot create the folder {folder}: {explain_failure(error)}") from error


def _read_lines(path: Path) -> Iterator[Any]:
    """Yields the values of the journal's lines, None for a damaged one."""
    for _, line in read_lines(path, "the journal"):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield None


def _to_line(record: PairRecord, stamps: Stamps) -> dict[str, Any]:
    return {**asdict(record), "images": stamps}


def _from_line(line: Any) -> tuple[PairRecord, Stamps] | None:
    """A record and the stamps of its images, from a line of a file that anyone may have edited."""
    try:
        stamps = [[int(value) for value in stamp] for stamp in line["images"]]
        inliers = line["inliers"]
        record = PairRecord(
            image0=str(line["image0"]),
            image1=str(line["image1"]),
            file=str(line["file"]),
            matches=int(line["matches"]),
            inliers=None if inliers is None else int(inliers),
            pair_score=float(line["pair_score"]),
            seconds=float(line["seconds"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return record, stamps


def _describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first settings that differ, with both values."""
    before, now = _list_leaves(old), _list_leaves(new)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = [f"{name} {before.get(name)!r:.60}, now {now.get(name)!r:.60}" for name in names[:_SHOWN_CHANGES]]
    return "; ".join(shown) + ("; …" if len(names) > _SHOWN_CHANGES else "")


def _list_leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            leaves |= _list_leaves(value, f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves
