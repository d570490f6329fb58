"""The unfinished features of a folder: shards of a few images, each on disk whole or not at all.

Images are split into shards by their sorted names. A shard thus holds the same images, encoded in the same
batches, whichever process writes it and however often a run was stopped. A shard without a file is still to
be done.

A shard ends in the SHA-256 of all before it, which HDF5 ignores: one that was damaged or cut is done again,
without being opened.

The shards of ``f.h5`` lie in ``f.h5.parts``. A user may have a folder of that name: only a folder with our
key file is used, only files of our own naming are removed, and links are never followed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ucn.errors import DataError, OutputError
from ucn.files import clean_up, explain_failure, is_scratch_name, scratch_folder, write_bytes_atomically
from ucn.formats.hloc import (
    ImageFeatures,
    PackedFeatures,
    fill_features,
    merge_features,
    open_features,
)

FORMAT = "ucn-shards-1"
"""Stands in the key file of every folder of shards."""

_KEY_FILE = "key.json"
_MAX_KEY_BYTES = 2**20
_SHARD_NAME = re.compile(r"\d{8,}\.h5", re.ASCII)
_DIGEST_BYTES = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """A unit of work.

    Attributes:
        path: its .h5 file.
        names: its images.
    """

    path: Path
    names: tuple[str, ...]


def write_shard(
    path: Path, features: Mapping[str, ImageFeatures | PackedFeatures], failures: Mapping[str, str]
) -> None:
    """Writes the features of a shard, and why some of its images have none; raises `OutputError`."""

    def fill(file: BinaryIO) -> None:
        fill_features(file, features, {"failures": dict(failures)})
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        file.seek(0, os.SEEK_END)
        file.write(digest)

    write_bytes_atomically(path, fill, overwrite=True)


class ShardFolder:
    """The folder of the shards of an output file, beside it."""

    def __init__(self, output: Path, names: Sequence[str], size: int, key: Mapping[str, Any]) -> None:
        """Touches nothing yet.

        Args:
            output: the file that the shards will be merged into.
            names: all images, sorted.
            size: images per shard.
            key: everything that the features depend on, as plain JSON values.
        """
        self.output, self.folder = output, output.with_name(f"{output.name}.parts")
        self._key = json.dumps({"format": FORMAT, **key, "shard": size}, sort_keys=True, indent=1).encode()
        self.shards = tuple(
            Shard(self.folder / f"{start // size:08}.h5", tuple(names[start : start + size]))
            for start in range(0, len(names), size)
        )

    def open(self, start_over: bool) -> None:
        """Opens the folder of an unfinished run, or creates it.

        Args:
            start_over: delete the shards of a run with another key.

        Raises:
            DataError: the shards of a run with another key are there, or a folder, file or link that ucn did
                not write.
            OutputError: the folder cannot be created.
        """
        clean_up(self.folder)
        self._check_ours()
        if os.path.lexists(self.folder) and (self.folder / _KEY_FILE).read_bytes() != self._key:
            if self._list_shards() and not start_over:
                raise DataError(
                    f"{self.folder} is from an unfinished run with other images or settings; repeat that run "
                    "to finish it, or pass overwrite=True to start over"
                )
            self._remove()
        if not os.path.lexists(self.folder):
            self._create()

    def list_open(self) -> list[Shard]:
        """Shards that have no file, or a damaged one."""
        return [shard for shard in self.shards if not _is_whole(shard.path)]

    def discard(self) -> None:
        """Removes what a run with this key left that was killed after it had written the output."""
        clean_up(self.folder)
        path = self.folder / _KEY_FILE
        if not self.folder.is_symlink() and _is_key(path) and path.read_bytes() == self._key:
            self._check_ours()
            self._remove()

    def remove_if_empty(self) -> None:
        """Removes the folder of a stopped run that has written no shard; foreign files in it stay."""
        if self._list_shards():
            return
        try:
            self._check_ours()
            self._remove()
        except (DataError, OutputError, OSError) as error:  # the run's own error matters more
            _log.warning("%s stays: %s", self.folder, error)

    def finish(self, meta: Mapping[str, Any], overwrite: bool) -> tuple[int, dict[str, str]]:
        """Merges the shards into the output file and removes them.

        Returns:
            The number of images in the file, and for each missing one the reason, by name.

        Raises:
            DataError: no image could be read (the shards are removed), or a shard is damaged (it alone is
                removed, and the next run writes it again).
            OutputError: the file cannot be written, or the folder holds files that ucn did not write.
        """
        failures: dict[str, str] = {}
        for shard in self.shards:
            try:
                with open_features(shard.path) as file:
                    failures.update(file.meta.get("failures", {}))
            except DataError as error:  # the next run would meet it again
                shard.path.unlink(missing_ok=True)
                raise DataError(
                    f"the shard {shard.path.name} of an earlier run was damaged and is removed ({error}); "
                    "repeat the run"
                ) from error
        if len(failures) == sum(len(shard.names) for shard in self.shards):
            self._remove()
            raise DataError(f"no image could be read; the first: {next(iter(failures.values()))}")
        paths = [shard.path for shard in self.shards]
        count = merge_features(self.output, paths, {**meta, "failures": failures}, overwrite)
        self._remove(f"{self.output} is complete, but ")
        return count, failures

    def _create(self) -> None:
        """Creates the folder with its key file in one step: a killed run leaves no folder without a key."""
        try:
            with scratch_folder(self.folder) as part:
                write_bytes_atomically(part / _KEY_FILE, self._key)
                part.rename(self.folder)
        except OSError as error:
            raise OutputError(f"cannot create {self.folder}: {explain_failure(error)}") from error

    def _check_ours(self) -> None:
        """Raises `DataError` where something is in the folder's place that ucn did not write, or in it."""
        if not os.path.lexists(self.folder):
            return
        remedy = "move it away or choose another output"
        if self.folder.is_symlink():
            raise DataError(f"{self.folder} is a link; expected no file of that name; {remedy}")
        if not self.folder.is_dir():
            raise DataError(f"{self.folder} is not a folder; expected no file of that name; {remedy}")
        if not _is_key(self.folder / _KEY_FILE):
            raise DataError(
                f"{self.folder} has no {_KEY_FILE} of format '{FORMAT}', so it was not made by ucn and is "
                f"left as it is; {remedy}"
            )
        foreign = self._list_foreign()
        if foreign:
            raise DataError(
                f"{self.folder} holds {', '.join(foreign[:3])}, which ucn did not write; move such files and "
                "links away, or choose another output"
            )

    def _remove(self, so_far: str = "") -> None:
        """Removes our files and then the folder, which stays where it holds anything else.

        `so_far` is what the error then begins with.
        """
        if self.folder.is_symlink():
            raise OutputError(f"{self.folder} became a link during the run; remove it by hand")
        for entry in self.folder.iterdir():
            if _is_own(entry) and entry.name != _KEY_FILE:
                entry.unlink()
        foreign = self._list_foreign()
        if foreign:
            (self.folder / _KEY_FILE).unlink()
            raise OutputError(
                f"{so_far}{self.folder} holds {', '.join(foreign[:3])}, which ucn did not write; move such "
                "files away and remove the folder"
            )
        with scratch_folder(self.folder) as work:  # in one step: without its key the folder is not ours
            self.folder.rename(work / "parts")

    def _list_shards(self) -> set[str]:
        if self.folder.is_symlink() or not self.folder.is_dir():
            return set()
        return {entry.name for entry in self.folder.iterdir() if _SHARD_NAME.fullmatch(entry.name)}

    def _list_foreign(self) -> list[str]:
        return sorted(entry.name for entry in self.folder.iterdir() if not _is_own(entry))


def _is_own(path: Path) -> bool:
    """Whether a file is a regular one with a name that ucn gives to files of this folder."""
    name = path.name
    is_named = name == _KEY_FILE or _SHARD_NAME.fullmatch(name) or is_scratch_name(name)
    return bool(is_named) and stat.S_ISREG(path.lstat().st_mode)


def _is_whole(path: Path) -> bool:
    """Whether a shard is there and ends in the hash of all before it."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
            while left > 0 and (block := file.read(min(left, 2**20))):
                digest.update(block)
                left -= len(block)
            return left == 0 and file.read() == digest.digest()
    except OSError:
        return False


def _is_key(path: Path) -> bool:
    """Whether a file is a key file of our format; a link is not."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_KEY_BYTES:
            return False
        key = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(key, dict) and key.get("format") == FORMAT
