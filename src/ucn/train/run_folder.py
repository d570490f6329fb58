"""The folder of a run, beside its weights: checkpoints, log, and TensorBoard events."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ucn.errors import OutputError
from ucn.files import is_scratch_name
from ucn.train.checkpoint import BEST, LAST, is_checkpoint
from ucn.train.log import is_log

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
        if self.path.is_symlink():
            raise OutputError(f"cannot write checkpoints to {self.path}: it is a link; move it away")
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"cannot write checkpoints to {self.path}: it is not a folder; move it away")
        if self.path.exists() and not os.access(self.path, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write checkpoints to {self.path}: permission denied")
        if self.has_checkpoint and not (resume or overwrite):
            raise OutputError(
                f"{self.path} holds an earlier run, which was kept; resume it with resume=True, or start "
                "over with overwrite=True"
            )
        foreign = self._list_foreign()
        if foreign:
            raise OutputError(
                f"{self.path} holds {', '.join(foreign[:3])}, which no run of ucn wrote and this one would "
                "replace; move such files away or choose another output"
            )

    def prepare(self, *, is_new: bool) -> None:
        """Makes the folder, and removes incomplete files and, for a new run, those of an earlier one.

        Raises:
            OutputError: the folder cannot be made or written.
        """
        try:
            self.path.mkdir(exist_ok=True)
            gone = [path for path in self.path.iterdir() if is_scratch_name(path.name) and path.is_file()]
            for path in [*gone, *(self._list_own() if is_new else ())]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def _list_own(self) -> list[Path]:
        """What a new run removes: the files that an earlier one wrote; the log, which tells, goes last."""
        is_linked = self.tensorboard.is_symlink()
        events = [] if is_linked else list(self.tensorboard.glob("events.out.tfevents.*"))
        found = [self.path / LAST, self.path / BEST, *events, self.log]
        return [path for path in found if os.path.lexists(path)]

    def _list_foreign(self) -> list[str]:
        """Which of these no run can have written: with a log of ours, they are ours, even where damaged."""
        if is_log(self.log):
            return []
        return [str(path.relative_to(self.path)) for path in self._list_own() if not is_checkpoint(path)]
