"""The unfinished features of a folder: shards of a few images, each on disk whole or not at all.

Images are cut into shards by their sorted names, so that a shard holds the same images, described in the same
batches, whoever makes it and however often a run was stopped. What is left is what has no file yet.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucn.data.io import write_bytes_atomically
from ucn.errors import DataError, OutputError
from ucn.formats.hloc import merge_features, open_features

_KEY_FILE = "key.json"


@dataclass(frozen=True)
class Shard:
    """A part of the work.

    Attributes:
        path: of its file.
        names: of its images.
    """

    path: Path
    names: tuple[str, ...]


class ShardFolder:
    """The folder of the shards of an output, beside it."""

    def __init__(
        self, output: Path, names: Sequence[str], size: int, key: Mapping[str, Any], begin_again: bool
    ) -> None:
        """Opens the folder, or begins it.

        Args:
            output: the file that the shards will become.
            names: of all images, sorted.
            size: images of a shard.
            key: everything that the features depend on, as plain JSON values.
            begin_again: forget shards of another key.

        Raises:
            DataError: the shards that are there have another key.
            OutputError: the folder cannot be made.
        """
        self.output, self.folder = output, output.with_name(f"{output.name}.parts")
        wanted = json.dumps({**key, "shard": size}, sort_keys=True, indent=1).encode()
        note = self.folder / _KEY_FILE
        if self.folder.exists() and (not note.is_file() or note.read_bytes() != wanted):
            is_empty = note.is_file() and not self._list_files()
            if not (begin_again or is_empty):
                raise DataError(
                    f"{self.folder} is what an unfinished run with other images or settings has left; run it "
                    "as before to finish it, or use --overwrite to begin again"
                )
            shutil.rmtree(self.folder)
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make {self.folder}: {error.strerror or error}") from error
        write_bytes_atomically(note, wanted, overwrite=True)
        self.shards = tuple(
            Shard(self.folder / f"{start // size:08}.h5", tuple(names[start : start + size]))
            for start in range(0, len(names), size)
        )

    def list_open(self) -> list[Shard]:
        """Shards that are not there yet."""
        there = self._list_files()
        return [shard for shard in self.shards if shard.path.name not in there]

    def leave(self) -> None:
        """Removes the folder of a run that was stopped, unless a later one can go on from there."""
        if not self._list_files():
            shutil.rmtree(self.folder)

    def _list_files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.h5")}

    def finish(self, meta: Mapping[str, Any], overwrite: bool) -> tuple[int, dict[str, str]]:
        """Makes the shards one file and removes them; how many images it has, and why others are missing.

        Raises:
            DataError: no image could be read, and the shards are removed, or a shard is damaged, and is
                removed: the next run tries again.
            OutputError: the file cannot be written.
        """
        failures: dict[str, str] = {}
        for shard in self.shards:
            try:
                with open_features(shard.path) as file:
                    failures.update(file.meta.get("failures", {}))
            except DataError as error:  # a disk that lost it; the next run would meet it again
                shard.path.unlink(missing_ok=True)
                raise DataError(
                    f"the shard {shard.path.name} of an earlier run was damaged and is removed ({error}); "
                    "give the same command again"
                ) from error
        paths = [shard.path for shard in self.shards]
        if len(failures) == sum(len(shard.names) for shard in self.shards):
            shutil.rmtree(self.folder)
            raise DataError(f"no image could be read; the first: {next(iter(failures.values()))}")
        count = merge_features(self.output, paths, {**meta, "failures": failures}, overwrite)
        shutil.rmtree(self.folder)
        return count, failures
