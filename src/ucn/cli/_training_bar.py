"""How far a training run is: a line per validation and, on a terminal, a progress bar; both on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

import typer

from ucn.cli._report import say_share

if TYPE_CHECKING:
    from ucn.train.log import Progress

_LINE_EVERY = 500
_SECONDS_OF_SPEED = 600.0  # from which the time left is guessed; a report may be minutes after the last


class TrainingBar:
    """Shows each report: loss, speed, memory, time left, and the score of the last validation."""

    def __init__(self, begun_at: int, steps: int, is_quiet: bool) -> None:
        """Prepares the bar.

        Args:
            begun_at: steps that were made before.
            steps: of the whole run.
            is_quiet: show nothing.
        """
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._bar = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),  # last, since a narrow terminal cuts it off
            console=Console(stderr=True),
            disable=is_quiet or not self._is_terminal,
            speed_estimate_period=_SECONDS_OF_SPEED,
        )
        self._task = self._bar.add_task("starting", total=steps, completed=begun_at)
        self._score = ""

    def __call__(self, progress: Progress) -> None:
        """Shows how far the training is."""
        text = _describe(progress)
        if progress.score is not None:
            self._score = f", PCK {say_share(progress.score)}"
        self._bar.update(self._task, completed=progress.step, description=text + self._score)
        if self._is_quiet or (progress.pck is None and (self._is_terminal or progress.step % _LINE_EVERY)):
            return
        figures = [f"{name} {say_share(value)}" for name, value in (progress.pck or {}).items()]
        line = f"step {progress.step}: {', '.join([text, *figures])}"
        if self._is_terminal:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            typer.echo(line, err=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _describe(progress: Progress) -> str:
    parts = [
        f"loss {progress.loss:.3f}",
        f"{progress.pairs_per_second:.0f} pairs/s",
        f"{progress.correspondences_per_second:,.0f} points/s",
    ]
    if progress.memory_bytes is not None:
        parts.append(f"{progress.memory_bytes / 1e9:.1f} GB")
    return ", ".join(parts)
