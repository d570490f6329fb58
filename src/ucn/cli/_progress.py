"""A progress bar for counted work, on stderr; silent where stderr is not a terminal."""

from __future__ import annotations

import sys
from typing import Self


class CountBar:
    """Shows (done, all) with the time left: call it after each piece of work."""

    def __init__(self, title: str, is_quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=is_quiet or not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task(title, total=None)
        self._is_begun = False

    def __call__(self, done: int, total: int) -> None:
        """Shows how far the work is."""
        if self._is_begun:
            self._bar.update(self._task, completed=done, total=total)
        else:  # what an earlier run had done says nothing of the speed of this one
            self._bar.reset(self._task, completed=done, total=total)
            self._is_begun = True

    def show(self, title: str, done: int, total: int) -> None:
        """Shows how far a stage of the work is; a new one begins at the start of the bar."""
        task = self._bar.tasks[0]
        if task.description != title:
            self._bar.reset(self._task, description=title, completed=done, total=total)
        self(done, total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
