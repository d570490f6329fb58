"""Work that several processes share, in pieces of a few neighbouring tasks."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ucn.errors import ConfigError, UcnError

Task = TypeVar("Task")
Result = TypeVar("Result")

_MAX_PIECE = 5  # tasks; pairs of one sequence share images, and a piece that is interrupted is lost

# What each process works with, set once when it begins.
_work: list[Callable[[Any], Any]] = []


def share_work(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Result]]:
    """Does tasks, and gives each with its result as soon as its piece is done; order is kept for one process.

    Args:
        work: does one task; with more than one process it is copied into each.
        tasks: what to do.
        jobs: how many processes; 1 works in this one.

    Raises:
        ConfigError: `work` cannot be copied into another process.
        UcnError: a process ended by itself, for lack of memory say.
    """
    if jobs <= 1 or len(tasks) < 2:
        for task in tasks:
            yield task, work(task)
        return
    try:
        copied = pickle.dumps(work)
    except Exception as error:  # pickle raises what the classes of its objects raise
        raise ConfigError(f"--jobs: a method cannot be copied into other processes ({error})") from error
    size = max(1, min(_MAX_PIECE, math.ceil(len(tasks) / (2 * jobs))))
    pieces = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # Forking a process whose libraries run threads can lock it up, so each begins afresh.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(copied, threads))
    try:
        waiting = {pool.submit(_do_piece, piece): piece for piece in pieces}
        for done in as_completed(waiting):
            yield from zip(waiting.pop(done), done.result(), strict=True)
    except BrokenProcessPool as error:
        raise UcnError(
            "a worker process ended by itself, often for lack of memory; what was done is kept: try again "
            "with fewer --jobs"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(copied: bytes, threads: int) -> None:
    import cv2
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's to answer
    torch.set_num_threads(threads)
    cv2.setNumThreads(threads)
    _work[:] = [pickle.loads(copied)]


def _do_piece(piece: Sequence[Any]) -> list[Any]:
    return [_work[0](task) for task in piece]
