"""Work shared by threads that each compute alone.

torch's own threads share every single operation and wait for each other at its end. Where work falls into
parts that need nothing of each other, it is quicker to give each thread a part: its numbers stay in the
caches of one core, and threads wait once, which matters most on a busy machine.
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


def share(work: Callable[[_Part], None], parts: Iterable[_Part], most: int | None = None) -> None:
    """Calls `work` for every part, without gradients, in as many threads as torch uses for an operation.

    Args:
        work: is called once a part.
        parts: in any order.
        most: threads at a time, for work that needs memory; None sets no limit.
    """
    waiting = list(parts)

    def run(part: _Part) -> None:
        with torch.inference_mode():  # each thread has a mode of its own
            work(part)

    count = torch.get_num_threads()
    is_shared = min(count, len(waiting), count if most is None else most) > 1
    threads = _start_threads(os.getpid(), count) if is_shared else None
    if threads is None:
        with torch.autocast("cpu", enabled=False):  # as in threads, which do not know the caller's
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
    """So many threads, in each of which torch computes with that thread alone; elsewhere it stays as it is.

    Raises:
        RuntimeError: a thread cannot be started.
    """
    before = torch.get_num_threads()
    are_ready = threading.Barrier(count)

    def start() -> None:
        torch.get_num_threads()  # a thread that never asked would later forget what was set
        torch.set_num_threads(1)  # of this thread
        are_ready.wait()

    threads = ThreadPoolExecutor(count, thread_name_prefix="ucn")
    try:
        for started in [threads.submit(start) for _ in range(count)]:
            started.result()
    except BaseException:  # an interrupt too
        are_ready.abort()  # or those that were started would wait for it, and the process for them at its end
        threads.shutdown()
        raise
    finally:
        torch.set_num_threads(before)  # threads that others start later take the number that was set last
    return threads


@lru_cache(maxsize=1)
def _start_threads(_process: int, count: int) -> ThreadPoolExecutor | None:
    """So many threads, or None where there are none left to have; a forked process starts its own."""
    try:
        return start_threads(count)
    except RuntimeError:
        return None
