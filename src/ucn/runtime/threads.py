"""Independent parts of CPU work, each computed by one thread.

torch's own threads divide every single operation and wait for each other at its end. For independent parts it
is faster to give each thread a part of its own: the data stays in the cache of one core, and the threads wait
once, which matters most on a busy machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

_Part = TypeVar("_Part")


def count_cores() -> int:
    """CPU cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(work: Callable[[_Part], None], parts: Iterable[_Part], most: int | None = None) -> None:
    """Calls `work` for every part, without gradients, in as many threads as torch uses for an operation.

    Args:
        work: called once per part.
        parts: computed in any order.
        most: threads at a time, for work that needs much memory; None sets no limit.
    """
    waiting = list(parts)

    def run(part: _Part) -> None:
        with torch.inference_mode():  # a mode holds for one thread only
            work(part)

    count = torch.get_num_threads()
    is_shared = min(count, len(waiting), count if most is None else most) > 1
    threads = _start_threads(os.getpid(), count) if is_shared else None
    if threads is None:
        with torch.autocast("cpu", enabled=False):  # as in threads, where the caller's does not hold
            for part in waiting:
                run(part)
        return
    if most is None or most >= count:
        for _ in threads.map(run, waiting):
            pass
        return
    queue: SimpleQueue[_Part] = SimpleQueue()
    for part in waiting:
        queue.put(part)

    def run_some(_: int) -> None:
        with suppress(Empty):
            while True:
                run(queue.get_nowait())

    for _ in threads.map(run_some, range(most)):
        pass


def start_threads(count: int) -> ThreadPoolExecutor:
    """Starts threads in which torch computes single-threaded; elsewhere its number of threads is unchanged.

    Raises:
        RuntimeError: a thread cannot be started.
    """
    before = torch.get_num_threads()
    are_ready = threading.Barrier(count)

    def start() -> None:
        torch.get_num_threads()  # without this call a later one would reset what is set here
        torch.set_num_threads(1)  # for this thread only
        are_ready.wait()

    threads = ThreadPoolExecutor(count, thread_name_prefix="ucn")
    try:
        for started in [threads.submit(start) for _ in range(count)]:
            started.result()
    except BaseException:  # an interrupt too
        are_ready.abort()  # or the started threads would wait for ever, and the process for them
        threads.shutdown()
        raise
    finally:
        torch.set_num_threads(before)  # new threads elsewhere inherit the number that was set last
    return threads


@lru_cache(maxsize=1)
def _start_threads(_process: int, count: int) -> ThreadPoolExecutor | None:
    """The threads of a process, or None where none can be started; a forked process starts its own."""
    try:
        return start_threads(count)
    except RuntimeError:
        return None
