"""Signals ask a run to stop, once; the second ends it."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from ucn.train.signals import StoppedError, StopSignals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with StopSignals() as signals:
        assert not signals.is_received() and signals.received is None
        os.kill(os.getpid(), number)
        assert signals.is_received() and signals.received is number
    for each, handler in before.items():
        assert signal.getsignal(each) == handler


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """What Ctrl-C does in a terminal; shells start what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_the_second_interrupt_ends_at_once() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received is signal.SIGTERM


def test_launchers_may_repeat_a_signal() -> None:
    with StopSignals(is_repeated=True) as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received is signal.SIGINT


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_that_read_data_go_on() -> None:
    with StopSignals() as signals:
        child = os.fork()
        if child == 0:  # a reader inherits the handler
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(7 if signals.received is None else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not signals.is_received()


def test_the_error_names_the_folder_of_the_run() -> None:
    assert StoppedError(7).step == 7
    assert "step 7" in str(StoppedError(7))
