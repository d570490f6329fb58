"""The folder of a run, beside its weights: checkpoints, log, and TensorBoard events."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ucn.errors import OutputError
from ucn.train.checkpoint import BEST, LAST

_LOG = "log.jsonl"
_TENSORBOARD = "tensorboard"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run's checkpoints and logs; `prepare` makes it."""

    path: Path

    @classmethod
    def beside(cls, output: Path) -> Self:
        """The folder ``my.train`` of the weights ``my.safetensors``."""
        return cls(output.with_suffix(".train"))

    @property
    def log(self) -> Path:
        """The log, in JSON Lines."""
        return self.path / _LOG

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard events."""
        return self.path / _TENSORBOARD

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a run to resume."""
        return (self.path / LAST).exists()

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Checks that a run can use the folder, before it starts.

        Raises:
            OutputError: it is not a folder or cannot be written, or an earlier run would be lost.
        """
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"cannot write checkpoints to {self.path}: it is not a folder; move it away")
        if self.path.exists() and not os.access(self.path, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write checkpoints to {self.path}: permission denied")
        if self.has_checkpoint and not (resume or overwrite):
            raise OutputError(
                f"{self.path} holds an earlier run, which was kept; resume it with resume=True, or start "
                "over with overwrite=True"
            )

    def prepare(self, *, is_new: bool) -> None:
        """Makes the folder, and removes incomplete files and, for a new run, those of an earlier one.

        Raises:
            OutputError: the folder cannot be made or written.
        """
        try:
            self.path.mkdir(exist_ok=True)
            gone = list(self.path.glob(".ucn-*.part"))
            if is_new:
                gone += [self.path / LAST, self.path / BEST, self.log]
                gone += self.tensorboard.glob("events.out.tfevents.*")
            for path in gone:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error
