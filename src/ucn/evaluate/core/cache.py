"""Predictions on disk, one record a pair, under a key of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ucn.errors import DataError, OutputError
from ucn.files.arrays import pack_npz, read_npz
from ucn.files.reading import MAX_TEXT_BYTES, explain_failure, read_binary
from ucn.files.scratch import is_scratch_name
from ucn.files.writing import write_bytes_atomically

Record = dict[str, NDArray[Any]]
"""Named arrays of a pair."""

_log = logging.getLogger(__name__)

_BLOCK = 64  # pairs of a file
_FLUSH_SECONDS = 20.0
_MAX_FILE_BYTES = 2**30
_KEY_FILE = "key.json"
_METHOD = "method"  # the part of a key that names weights and settings


def digest_key(key: Mapping[str, Any]) -> str:
    """A short hash of a key."""
    return hashlib.sha256(_write_key(key)).hexdigest()[:16]


def digest_data(pairs: Iterable[tuple[str, Sequence[Path]]]) -> str:
    """A hash of the names of pairs, and of the names and sizes of their files."""
    digest = hashlib.sha256()
    lists: dict[Path, str] = {}
    for name, paths in pairs:
        files = [(path.name, _identify_file(path, lists)) for path in paths]
        digest.update(json.dumps([name, files]).encode())
    return digest.hexdigest()


def _identify_file(path: Path, lists: dict[Path, str]) -> int | str:
    """The size of a file, or the hash of a list of points, which may be edited without a change of size."""
    # A pair of JSON Lines is named after its line, "pairs.jsonl:7".
    path = path if path.exists() else path.with_name(path.name.rpartition(":")[0])
    if path.suffix not in (".csv", ".jsonl"):
        return path.stat().st_size
    if path not in lists:
        lists[path] = hashlib.sha256(path.read_bytes()).hexdigest()
    return lists[path]


def name_folder(method: str) -> str:
    """The name of a method as the start of a folder's name."""
    return "".join(letter if letter.isalnum() else "_" for letter in method)


def _write_key(key: Mapping[str, Any]) -> bytes:
    return json.dumps(key, sort_keys=True, indent=1).encode()


class PredictionCache:
    """Records in a folder of its own, in files of 64 pairs that are each written whole or not at all."""

    def __init__(self, parent: Path, name: str, key: Mapping[str, Any]) -> None:
        """Opens the records of a key, or creates an empty cache.

        Args:
            parent: folder of all caches; made where missing.
            name: what the records are: a readable start of the folder's name.
            key: everything that the records depend on, as plain JSON values.

        Raises:
            DataError: the folder was made for another key.
            OutputError: it cannot be made.
        """
        self.folder = parent / f"{name}-{digest_key(key)}"
        self._blocks: dict[int, dict[int, Record]] = {}
        self._changed: set[int] = set()
        self._written = time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make {self.folder}: {explain_failure(error)}") from error
        self._check_key(key)

    def _check_key(self, key: Mapping[str, Any]) -> None:
        path, expected = self.folder / _KEY_FILE, _write_key(key)
        if not os.path.lexists(path):
            foreign = sorted(each.name for each in self.folder.iterdir() if not is_scratch_name(each.name))
            if foreign:
                raise DataError(
                    f"{self.folder} holds {foreign[0]} and no {_KEY_FILE}, so it was not made by ucn; move "
                    "it away or use another cache folder"
                )
            self._warn_of_others(json.loads(expected))
            write_bytes_atomically(path, expected, overwrite=True)
            return
        found = read_binary(path, "key of predictions", MAX_TEXT_BYTES)
        if found != expected:
            raise DataError(
                f"{self.folder} holds predictions of another key, {_shorten(found)}, "
                f"expected {_shorten(expected)}; delete the folder or use another cache folder"
            )

    def _warn_of_others(self, key: dict[str, Any]) -> None:
        """Warns of predictions for the same data and settings that are of other weights, so not used."""
        name = self.folder.name.rpartition("-")[0]
        for folder in sorted(self.folder.parent.iterdir()):
            if folder == self.folder or folder.name.rpartition("-")[0] != name:
                continue
            other = _read_key(folder / _KEY_FILE)
            if {field for field in other | key if other.get(field) != key.get(field)} == {_METHOD}:
                _log.warning(
                    "predictions in %s are not used: they are of %s, this run needs %s (key %s)",
                    folder,
                    _shorten(json.dumps(other.get(_METHOD)).encode()),
                    _shorten(json.dumps(key.get(_METHOD)).encode()),
                    self.folder.name.rpartition("-")[2],
                )

    def __contains__(self, index: int) -> bool:
        return index in self._block(index // _BLOCK)

    def get(self, index: int) -> Record:
        """The record of a pair; raises `DataError` where there is none."""
        record = self._block(index // _BLOCK).get(index)
        if record is None:
            raise DataError(f"{self.folder} has no prediction of pair {index}; run the evaluation again")
        return record

    def put(self, index: int, record: Record) -> None:
        """Keeps a record; it is on disk at the latest after `flush`."""
        self._block(index // _BLOCK)[index] = record
        self._changed.add(index // _BLOCK)
        if time.monotonic() - self._written > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what is not yet on disk."""
        for number in sorted(self._changed):
            arrays = {
                f"{index}/{field}": value
                for index, record in sorted(self._blocks[number].items())
                for field, value in record.items()
            }
            write_bytes_atomically(self._path(number), pack_npz(arrays), overwrite=True)
        self._changed.clear()
        self._written = time.monotonic()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:04}.npz"

    def _block(self, number: int) -> dict[int, Record]:
        if number not in self._blocks:
            path = self._path(number)
            self._blocks[number] = _read_block(path) if path.exists() else {}
        return self._blocks[number]


def _read_block(path: Path) -> dict[int, Record]:
    block: dict[int, Record] = {}
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"it has more than {_MAX_FILE_BYTES:,} bytes")
        for name, values in read_npz(path).items():
            index, _, field = name.partition("/")
            block.setdefault(int(index), {})[field] = values
    except (OSError, ValueError) as error:
        _log.warning("%s is damaged (%s): its pairs are predicted again", path, error)
        return {}
    return block


def _read_key(path: Path) -> dict[str, Any]:
    """A key; empty where there is none, or the file is not one."""
    try:
        found = json.loads(read_binary(path, "key of predictions", MAX_TEXT_BYTES))
    except (DataError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shorten(key: bytes) -> str:
    """A key in one line for an error."""
    return " ".join(key.decode(errors="replace").split())[:600]
