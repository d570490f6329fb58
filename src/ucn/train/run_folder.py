"""The folder of a run, beside its weights: checkpoints, log, and TensorBoard's events."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ucn.errors import OutputError
from ucn.train.checkpoint import BEST, LAST

_LOG = "log.jsonl"
_BOARD = "tensorboard"


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it needs to go on, and what it said; `path` is there after `prepare`."""

    path: Path

    @classmethod
    def beside(cls, output: Path) -> Self:
        """The folder ``my.train`` of the weights ``my.safetensors``."""
        return cls(output.with_suffix(".train"))

    @property
    def log(self) -> Path:
        """The log, of JSON Lines."""
        return self.path / _LOG

    @property
    def board(self) -> Path:
        """The folder of TensorBoard's events."""
        return self.path / _BOARD

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a run to go on with."""
        return (self.path / LAST).exists()

    def check(self, *, is_resumed: bool, overwrite: bool) -> None:
        """Checks before any work that a run can use the folder.

        Raises:
            OutputError: it is no folder or cannot be written, or a run that stopped would be lost.
        """
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"cannot write checkpoints to {self.path}: it is not a folder; move it away")
        if self.path.exists() and not os.access(self.path, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write checkpoints to {self.path}: its rights do not allow it")
        if self.has_checkpoint and not (is_resumed or overwrite):
            raise OutputError(
                f"{self.path} holds an earlier run, which was kept; go on with --resume, or begin anew with "
                "--overwrite"
            )

    def prepare(self, *, is_new: bool) -> None:
        """Makes the folder; takes what a killed process left half written and, of a new run, the old files.

        Raises:
            OutputError: the folder cannot be made or written.
        """
        try:
            self.path.mkdir(exist_ok=True)
            gone = list(self.path.glob(".ucn-*.part"))
            if is_new:
                gone += [self.path / LAST, self.path / BEST, self.log]
                gone += self.board.glob("events.out.tfevents.*")
            for path in gone:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error
