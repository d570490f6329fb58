"""What a verb is doing right now, on stderr, and how long each stage took."""

from __future__ import annotations

import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.status import Status

_PART = re.compile(r"[ ,:(]*\btile \d+/\d+\)?$")  # the tiles of an image are one stage


class Stages:
    """A status line with a clock: call it with a short phrase when a stage begins.

    It is silent when stderr is not a terminal or `is_quiet`; it measures all the same.
    """

    def __init__(self, is_quiet: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._is_shown = not is_quiet and sys.stderr.isatty()
        self._status: Status | None = None
        self._stage = "starting"
        self._since = self._begin = time.perf_counter()

    def __call__(self, phrase: str) -> None:
        """Ends the stage before and begins this one."""
        self._end_stage()
        self._stage = _PART.sub("", phrase)
        if self._status is not None:
            self._status.update(phrase)

    def __enter__(self) -> Self:
        if self._is_shown:
            from rich.console import Console

            self._status = Console(stderr=True).status(self._stage)
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_stage()
        if self._status is not None:
            self._status.stop()

    def report(self) -> dict[str, float]:
        """Seconds of each stage in order, rounded, and their total."""
        rounded = {stage: round(seconds, 3) for stage, seconds in self.seconds.items()}
        return {**rounded, "total": round(self._since - self._begin, 3)}

    def _end_stage(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._since = now
