"""SIGINT and SIGTERM ask a run to stop after the step it is in; a second one ends it at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Self

from ucn.errors import UcnError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(UcnError):
    """A run was asked to stop, and did.

    Attributes:
        step: steps that its last checkpoint holds, from which it can go on; 0 where there is none.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"the run was asked to stop; its last checkpoint is of step {step}")
        self.step = step


class StopSignals:
    """Within a ``with`` block, remembers that a signal came instead of ending the process.

    Attributes:
        received: the first signal that came; None before.
    """

    def __init__(self, is_repeated: bool = False) -> None:
        """Prepares for signals.

        Args:
            is_repeated: the launcher of many processes sends a signal again that the terminal sent already,
                so a second one means nothing.
        """
        self.received: signal.Signals | None = None
        self._is_repeated = is_repeated
        self._owner = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def is_asked(self) -> bool:
        """Whether a signal came."""
        return self.received is not None

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that is not Python's, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _remember(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return  # a process that reads data inherited this; the run tells it when to end
        if self.received is None:
            self.received = signal.Signals(number)
        if not self._is_repeated:
            for each in _SIGNALS:
                signal.signal(each, self._before[each] or signal.SIG_DFL)
