"""How predictions are made: settings of a run, features computed once, and work shared by processes.

An evaluation has two stages. Here is what all evaluations share of the first: records that the caches lack
are predicted, pair by pair, in one or several processes. The second stage scores what the caches hold.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from ucn.errors import ConfigError, DataError, UcnError
from ucn.evaluate.core.cache import PredictionCache, Record
from ucn.features.method import LoadedMethods
from ucn.files.recent import RecentItems

if TYPE_CHECKING:
    from ucn.evaluate.core.update import Page

Work = TypeVar("Work")
Result = TypeVar("Result")
F = TypeVar("F")

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""

_MAX_PIECE = 5  # tasks; pairs of one sequence share images, and an interrupted piece is lost


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, beside benchmark and methods.

    Attributes:
        cache: folder of predictions.
        limit: maximum number of pairs, evenly spread; None takes all.
        seed: random seed of points, bootstrap and estimators.
        seeds: how many seeds, from that one on, are averaged by benchmarks that can.
        refinements: with and without sub-cell refinement of matches; both are evaluated by default.
        max_side: longest side of images in pixels, in place of the benchmark's own; None keeps that.
        device: where torch networks and matching run.
        jobs: processes that share the pairs; those of a GPU share it.
        command: that repeats the run, for the report.
        page: an earlier report to update: rows of methods that are not evaluated are taken from it.
    """

    cache: Path
    limit: int | None = None
    seed: int = 0
    seeds: int = 1
    refinements: Sequence[bool] = (True, False)
    max_side: int | None = None
    device: str = "cpu"
    jobs: int = 1
    command: str = ""
    page: Page | None = None


def require_methods(loaded: LoadedMethods[Any]) -> None:
    """Raises `DataError`, with the reasons, where no method can be evaluated."""
    if not loaded.methods:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in loaded.skipped.items())
        raise DataError(f"no method can be evaluated: {reasons or 'none was given'}")


def count_part(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """The progress of one of several parts of equal size."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, parts * total)


@dataclass(frozen=True)
class Task:
    """A pair, and the numbers of the caches that lack its record."""

    pair: int
    missing: tuple[int, ...]


def predict_missing(
    predict: Callable[[Task], Sequence[Record]],
    chosen: Sequence[int],
    caches: Sequence[PredictionCache],
    jobs: int = 1,
    progress: Progress | None = None,
) -> None:
    """Predicts the records that caches lack, and keeps them.

    Args:
        predict: from a task to its missing records, in order; with several processes it is copied into each.
        chosen: numbers of the pairs.
        caches: what is predicted of a pair, one record each.
        jobs: number of processes; 1 works in this one.
        progress: called after each pair.
    """
    tasks = []
    for pair in chosen:
        missing = tuple(number for number, cache in enumerate(caches) if pair not in cache)
        if missing:
            tasks.append(Task(pair, missing))
    done = len(chosen) - len(tasks)
    if progress is not None and done:
        progress(done, len(chosen))
    try:
        for task, records in share_work(predict, tasks, jobs):
            for number, record in zip(task.missing, records, strict=True):
                caches[number].put(task.pair, record)
            done += 1
            if progress is not None:
                progress(done, len(chosen))
    finally:
        for cache in caches:
            cache.flush()


class FeatureCache(Generic[F]):
    """Features of recent images, each extracted once while pairs share it, and the time that took."""

    def __init__(
        self,
        extract: Callable[[Any], F],
        max_images: int | None = None,
        max_bytes: int | None = None,
        count_bytes: Callable[[F], int] | None = None,
    ) -> None:
        """Starts empty.

        Args:
            extract: from an image to its features.
            max_images: the most images to keep; None sets no limit.
            max_bytes: the most bytes to keep, by `count_bytes`, but always two images; None sets no limit.
            count_bytes: the size of features.
        """
        self._extract = extract
        self._kept: RecentItems[Hashable, F] = RecentItems(max_images, max_bytes, count_bytes, min_items=2)
        self._seconds, self._count = 0.0, 0

    def extract(self, image: Any, key: Hashable) -> F:
        """The features of an image; equal keys mean equal images."""
        return self._kept.get_or_make(key, lambda: self._time(image))

    def _time(self, image: Any) -> F:
        begin = time.perf_counter()
        features = self._extract(image)
        self._seconds += time.perf_counter() - begin
        self._count += 1
        return features

    def take_cost(self) -> tuple[float, float]:
        """Seconds spent since the last call, and the number of images in that time."""
        cost = self._seconds, float(self._count)
        self._seconds, self._count = 0.0, 0
        return cost


def digest_image(image: Tensor) -> str:
    """A hash of an image's pixels."""
    pixels = np.ascontiguousarray(image.numpy())
    return hashlib.blake2b(pixels.data, digest_size=16, key=str(pixels.shape).encode()).hexdigest()


# What each worker process works with, set once when it starts.
_work: list[Callable[[Any], Any]] = []


def share_work(
    work: Callable[[Work], Result], tasks: Sequence[Work], jobs: int
) -> Iterator[tuple[Work, Result]]:
    """Yields each task with its result as soon as its piece is done; one process keeps the order.

    Args:
        work: does one task; with more than one process it is copied into each.
        tasks: what to do.
        jobs: number of processes; 1 works in this one.

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
        raise ConfigError(f"a method cannot be copied into other processes ({error}); use jobs=1") from error
    size = max(1, min(_MAX_PIECE, math.ceil(len(tasks) / (2 * jobs))))
    pieces = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # Forking a process whose libraries run threads can deadlock, so each starts afresh.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(copied, threads))
    try:
        waiting = {pool.submit(_do_piece, piece): piece for piece in pieces}
        for done in as_completed(waiting):
            yield from zip(waiting.pop(done), done.result(), strict=True)
    except BrokenProcessPool as error:
        raise UcnError(
            "a worker process ended by itself, often for lack of memory; what was done is kept: try again "
            "with fewer jobs"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(copied: bytes, threads: int) -> None:
    import cv2
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's to answer
    torch.set_num_threads(threads)
    cv2.setNumThreads(threads)
    _work[:] = [pickle.loads(copied)]


def _do_piece(piece: Sequence[Any]) -> list[Any]:
    return [_work[0](task) for task in piece]
