"""Stopping on SIGINT and SIGTERM: the first stops a run after its present step, a second one at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Self

from ucn.errors import UcnError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(UcnError):
    """A run was stopped.

    Attributes:
        step: of its last checkpoint, from which it can resume; 0 where there is none.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"the run was stopped; its last checkpoint is of step {step}")
        self.step = step


class StopSignals:
    """Within a ``with`` block, records a signal instead of ending the process.

    Attributes:
        received: the first signal; None before.
    """

    def __init__(self, is_repeated: bool = False) -> None:
        """Prepares for signals.

        Args:
            is_repeated: whether a launcher of several processes repeats the terminal's signal, so that a
                second one has no meaning.
        """
        self.received: signal.Signals | None = None
        self._is_repeated = is_repeated
        self._owner = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def is_received(self) -> bool:
        """Whether a signal was received."""
        return self.received is not None

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that is not Python's, which cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _record(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return  # a worker process inherited this handler; the run ends its workers itself
        if self.received is None:
            self.received = signal.Signals(number)
        if not self._is_repeated:
            for each in _SIGNALS:
                signal.signal(each, self._before[each] or signal.SIG_DFL)
