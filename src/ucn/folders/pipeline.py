"""Shards read, described and written as one stream, each stage beside the others.

Threads read images and find keypoints, the caller's thread runs the network, and one more thread writes. A
GPU has its next batch before it ends the last one. Threads that read compute alone: torch would otherwise
share each of their operations among all cores, and its helpers, which wait for the next operation without
sleeping, would take the cores from everyone else.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ucn.errors import ImageReadError
from ucn.folders.image_features import ImageDescriber, Launched, Prepared
from ucn.folders.images import read_reduced
from ucn.folders.shards import Shard
from ucn.formats.hloc import Packed, pack_features, write_features
from ucn.runtime.threads import start_threads

MAX_THREADS = 16
"""That read; each holds an image of a file's size in memory."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass
class _Work:
    """A shard on its way: its images by name, as far as they are there, and why others are missing."""

    shard: Shard
    packed: dict[str, Future[Packed]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass
class _Batch:
    """Images of a shard that pass the network together, by name."""

    work: _Work
    images: dict[str, Prepared]
    is_last: bool


class ShardMaker:
    """Makes shards, with threads of its own while it does."""

    def __init__(self, folder: Path, describer: ImageDescriber, threads: int | None = None) -> None:
        """Starts nothing yet.

        Args:
            folder: of the images.
            describer: runs in the thread that asks for shards.
            threads: that read and find keypoints; None takes one for each core, up to `MAX_THREADS`.
        """
        self._folder, self._describer = folder, describer
        self._threads = threads or min(_count_cores(), MAX_THREADS)

    def make(self, shards: Sequence[Shard]) -> Generator[Shard, None, None]:
        """Yields shards in their order, each when its file is there."""
        readers, writer = start_threads(self._threads), ThreadPoolExecutor(1)
        try:
            writing: deque[Future[Shard]] = deque()
            for work in self._describe(shards, readers):
                writing.append(writer.submit(_write, work))
                if len(writing) > 1:  # so that what is done does not gather in memory
                    yield writing.popleft().result()
            for shard in writing:
                yield shard.result()
        finally:
            for pool in (readers, writer):
                pool.shutdown(cancel_futures=True)

    def _describe(self, shards: Sequence[Shard], readers: ThreadPoolExecutor) -> Iterator[_Work]:
        """Shards whose images are all described; the next batch is launched before one is waited for."""
        before: tuple[_Batch, Launched] | None = None
        for batch in self._cut(shards, readers):
            launched = self._describer.launch(list(batch.images.values()))
            if before is not None:
                yield from _settle(*before, readers)
            before = batch, launched
        if before is not None:
            yield from _settle(*before, readers)

    def _cut(self, shards: Sequence[Shard], readers: ThreadPoolExecutor) -> Iterator[_Batch]:
        """Batches: neighbours of one size in a shard, without what cannot be read."""
        limit = self._describer.settings.batch
        names = (name for shard in shards for name in shard.names)
        found = _run_ahead(readers, self._prepare, names, 2 * limit + self._threads)
        for shard in shards:
            work = _Work(shard)
            images: dict[str, Prepared] = {}
            for name in shard.names:
                item = next(found)
                if isinstance(item, str):
                    work.failures[name] = item
                    continue
                first = next(iter(images.values()), item)
                if len(images) == limit or first.image.hw != item.image.hw:
                    yield _Batch(work, images, is_last=False)
                    images = {}
                images[name] = item
            yield _Batch(work, images, is_last=True)

    def _prepare(self, name: str) -> Prepared | str:
        """An image, or why it cannot be read: a bad file does not stop a million good ones."""
        try:
            image = read_reduced(self._folder / name, self._describer.settings.max_side)
        except ImageReadError as error:
            # Under its name, not its path: a file must not depend on who read the folder, and from where.
            return str(error).replace(str(self._folder / name), name)
        return self._describer.prepare(image)


def _run_ahead(
    pool: ThreadPoolExecutor, work: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int
) -> Iterator[_Result]:
    """Results in the order of items, of which so many are worked on before they are asked for."""
    rest = iter(items)
    waiting = deque(pool.submit(work, item) for item in islice(rest, ahead))
    while waiting:
        first = waiting.popleft().result()
        waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
        yield first


def _settle(batch: _Batch, launched: Launched, readers: ThreadPoolExecutor) -> Iterator[_Work]:
    """Takes over what a batch gave; yields its shard where that was all of it."""
    for name, features in zip(batch.images, launched.finish(), strict=True):
        batch.work.packed[name] = readers.submit(pack_features, features)
    if batch.is_last:
        yield batch.work


def _write(work: _Work) -> Shard:
    packed = {name: item.result() for name, item in work.packed.items()}
    write_features(work.shard.path, packed, {"failures": work.failures}, overwrite=True)
    return work.shard


def _count_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
