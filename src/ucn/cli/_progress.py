"""Progress on stderr: stages with their times, counted work, and training; silent without a terminal."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import typer

from ucn.cli._report import format_share

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn
    from rich.status import Status

    from ucn.train.log import Progress

_TILE = re.compile(r"[ ,:(]*\btile \d+/\d+\)?$")  # all tiles of an image are one stage
_LINE_EVERY = 500
_SPEED_SECONDS = 600.0  # averaged for the time left; two reports of a training may be minutes apart


class Stages:
    """A status line and a clock: call it with a phrase when a stage begins."""

    def __init__(self, is_quiet: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._is_shown = not is_quiet and sys.stderr.isatty()
        self._status: Status | None = None
        self._stage = "starting"
        self._since = self._begin = time.perf_counter()

    def __call__(self, phrase: str) -> None:
        """Ends the current stage and begins another."""
        self._end_stage()
        self._stage = _TILE.sub("", phrase)
        if self._status is not None:
            self._status.update(phrase)

    def __enter__(self) -> Self:
        if self._is_shown:
            from rich.console import Console

            self._status = Console(stderr=True).status(self._stage)
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_stage()
        if self._status is not None:
            self._status.stop()

    def report(self) -> dict[str, float]:
        """Seconds of each stage in order, and their total, rounded."""
        rounded = {stage: round(seconds, 3) for stage, seconds in self.seconds.items()}
        return {**rounded, "total": round(self._since - self._begin, 3)}

    def _end_stage(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._since = now


class CountBar:
    """A progress bar with the time left: call it with (done, total) after each piece of work."""

    def __init__(self, title: str, is_quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = _make_bar(*columns, is_quiet=is_quiet, transient=True)
        self._task = self._bar.add_task(title, total=None)
        self._has_begun = False

    def __call__(self, done: int, total: int) -> None:
        """Updates the bar."""
        if self._has_begun:
            self._bar.update(self._task, completed=done, total=total)
        else:  # work that a resumed run finds done must not count for the speed
            self._bar.reset(self._task, completed=done, total=total)
            self._has_begun = True

    def show(self, title: str, done: int, total: int) -> None:
        """Updates the bar; a new title restarts it."""
        if self._bar.tasks[0].description != title:
            self._bar.reset(self._task, description=title, completed=done, total=total)
        self(done, total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class TrainingBar:
    """Shows loss, throughput, memory, time left and the last validation score of a training."""

    def __init__(self, start_step: int, steps: int, is_quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        self._is_quiet, self._is_terminal = is_quiet, sys.stderr.isatty()
        columns = (
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),  # last, since a narrow terminal cuts it off
        )
        self._bar = _make_bar(*columns, is_quiet=is_quiet, speed_estimate_period=_SPEED_SECONDS)
        self._task = self._bar.add_task("starting", total=steps, completed=start_step)
        self._score = ""

    def __call__(self, progress: Progress) -> None:
        """Shows a report; validations and, without a terminal, every 500th step also as a line."""
        text = _format_progress(progress)
        if progress.score is not None:
            self._score = f", PCK {format_share(progress.score)}"
        self._bar.update(self._task, completed=progress.step, description=text + self._score)
        if self._is_quiet or (progress.pck is None and (self._is_terminal or progress.step % _LINE_EVERY)):
            return
        scores = [f"{name} {format_share(value)}" for name, value in (progress.pck or {}).items()]
        line = f"step {progress.step}: {', '.join([text, *scores])}"
        if self._is_terminal:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            typer.echo(line, err=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _make_bar(*columns: ProgressColumn, is_quiet: bool, **options: Any) -> RichProgress:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    is_disabled = is_quiet or not sys.stderr.isatty()
    return RichProgress(*columns, console=Console(stderr=True), disable=is_disabled, **options)


def _format_speed(progress: Progress) -> list[str]:
    """Seconds of a step longer than one, pairs a second unless they are fewer than one, and points."""
    parts = []
    if progress.seconds_per_step > 1:
        parts.append(f"{progress.seconds_per_step:.1f} s/step")
    if progress.pairs_per_second >= 1:
        parts.append(f"{progress.pairs_per_second:.0f} pairs/s")
    return [*parts, f"{progress.correspondences_per_second:,.0f} points/s"]


def _format_progress(progress: Progress) -> str:
    parts = [f"loss {progress.loss:.3f}", *_format_speed(progress)]
    if progress.memory_bytes is not None:
        parts.append(f"{progress.memory_bytes / 1e9:.1f} GB")
    return ", ".join(parts)
