"""Batches of a data set: worker processes read pairs, augment them to one size and pad their points.

Batch k depends only on the seed and k, whatever the number of workers: a run resumes at batch k without any
stored state.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import cv2
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ucn.data import transforms
from ucn.data.pairs import PairData
from ucn.errors import DataError, UcnError
from ucn.types import PairBatch, PairSample

_TRIES = 100
_TRIES_FOR_ENOUGH = 8
_MAX_PERMUTED = 1_000_000
_BATCHES_AHEAD = 2  # per worker
_PARENT_CHECK_S = 1.0
_REMEDY = "where shared memory is full, allow more (docker run --shm-size=8g), or use fewer workers or none"


class WorkerExitedError(UcnError):
    """A worker process that reads data was killed or crashed."""


@dataclass(frozen=True)
class PairAugmentation:
    """How pairs are brought to one size, and their random geometric augmentation.

    Attributes:
        size_hw: (H, W) of both images.
        fit: crop overlapping windows, or resize the images to fit and pad them.
        min_points: pairs with fewer correspondences left are replaced by others.
        mirror: probability of mirroring both views.
        mirror_view: probability of mirroring one view only; for points that mark named parts.
        rotation: largest rotation of each view, in degrees.
        scale: largest factor by which each view is enlarged or reduced.
    """

    size_hw: tuple[int, int]
    fit: Literal["crop", "resize"] = "crop"
    min_points: int = 1
    mirror: float = 0.0
    mirror_view: float = 0.0
    rotation: float = 0.0
    scale: float = 1.0

    def for_validation(self) -> PairAugmentation:
        """The same size without random augmentation."""
        return replace(self, mirror=0.0, mirror_view=0.0, rotation=0.0, scale=1.0)


def augment_pair(
    sample: PairSample, augmentation: PairAugmentation, generator: torch.Generator
) -> PairSample:
    """Brings a pair to one size, with random augmentation.

    Raises:
        DataError: one view is to be mirrored, but the points mark no parts.
    """
    size_hw = augmentation.size_hw
    log_scale = math.log(augmentation.scale)
    scales = [math.exp(_sample_uniform(generator, -log_scale, log_scale)) for _ in range(2)]
    if augmentation.fit == "crop":
        windows = [(max(1, round(size_hw[0] / s)), max(1, round(size_hw[1] / s))) for s in scales]
        sample = transforms.crop_pair(sample, windows[0], windows[1], augmentation.min_points, generator)
        sample = transforms.resize(sample, size_hw, size_hw)
        scales = [1.0, 1.0]
    else:
        sample = transforms.pad(transforms.resize_to_fit(sample, size_hw), size_hw)
    if _sample_uniform(generator, 0, 1) < augmentation.mirror:
        sample = transforms.mirror(sample)
    if _sample_uniform(generator, 0, 1) < augmentation.mirror_view:
        if sample.parts is None or sample.mirror_parts is None:
            raise DataError(f"{sample.name} has no named parts: set mirror_view to 0 for this data set")
        sample = transforms.mirror_view(sample, 0 if _sample_uniform(generator, 0, 1) < 0.5 else 1)
    views: tuple[transforms.View, ...] = (0, 1)
    for view in views:
        degrees = _sample_uniform(generator, -augmentation.rotation, augmentation.rotation)
        if degrees != 0 or scales[view] != 1:
            sample = transforms.rotate_view(sample, view, degrees, scales[view])
    return sample


def collate(samples: Sequence[PairSample], points: int, generator: torch.Generator) -> PairBatch:
    """Makes a batch of pairs of one size.

    Args:
        samples: at least one; all images of one size.
        points: rows of points per pair. Of more, this many are sampled; fewer are padded with invalid rows.
        generator: random generator of that sample.

    Raises:
        ValueError: no samples, or images of several sizes.
    """
    if not samples:
        raise ValueError("a batch needs at least one sample, got none")
    size_hw = samples[0].image0.shape[-2:]
    for sample in samples:
        for image in (sample.image0, sample.image1):
            if image.shape[-2:] != size_hw:
                raise ValueError(
                    f"images of a batch must all be {tuple(size_hw)}, got {tuple(image.shape[-2:])} in "
                    f"{sample.name}; crop or resize them first"
                )
    chosen = [sample.select(_choose_rows(len(sample), points, generator)) for sample in samples]
    lengths = [sample.pck_length for sample in samples]
    return PairBatch(
        image0=torch.stack([sample.image0 for sample in samples]),
        image1=torch.stack([sample.image1 for sample in samples]),
        points0=torch.stack([_pad_rows(sample.points0, points) for sample in chosen]),
        points1=torch.stack([_pad_rows(sample.points1, points) for sample in chosen]),
        is_valid=torch.stack([torch.arange(points) < len(sample) for sample in chosen]),
        names=tuple(sample.name for sample in samples),
        pck_length=None if None in lengths else torch.tensor(lengths, dtype=torch.float32),
    )


class PairLoader:
    """Batches of a data set: endless in random order, or given pairs once."""

    def __init__(
        self,
        data: PairData,
        augmentation: PairAugmentation,
        *,
        batch: int,
        points: int,
        seed: int,
        workers: int = 0,
        pin: bool = False,
        skipped: dict[str, str] | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            data: the pairs.
            augmentation: the size of the images, and the random augmentation.
            batch: pairs per batch.
            points: rows of points per pair.
            seed: random seed of order, crop windows, augmentation and the choice of points.
            workers: worker processes; 0 reads in this process.
            pin: put batches in pinned memory, for asynchronous copies to CUDA.
            skipped: where given, pairs that cannot be read are replaced by others (omitted by `in_order`) and
                added here, by name with the error; otherwise the error is raised.

        Raises:
            DataError: the set has no pairs.
        """
        if len(data) == 0:
            raise DataError(f"{data.root} has no pairs to make batches of; check the folder and the split")
        self._settings = (data, augmentation, batch, points, seed, skipped is not None)
        self._workers, self._pin, self._skipped = workers, pin, skipped

    def batches(self, start: int = 0) -> Generator[PairBatch, None, None]:
        """Yields the batches from number `start` on, endlessly; close the iterator to stop its workers.

        Each epoch has all pairs in another random order.

        Raises:
            DataError: no pair has correspondences left after augmentation.
            WorkerExitedError: a worker was killed.
            UcnError: a pair cannot be read; also raised from workers.
        """
        return self._load(_RandomBatches(*self._settings), count(start))

    def in_order(self, indices: Sequence[int]) -> Generator[PairBatch, None, None]:
        """Yields given pairs once in their order, the same each time; the last batch may be smaller.

        Pairs with few correspondences are not replaced.
        """
        batches = _OrderedBatches(*self._settings)
        batches.indices = list(indices)
        return self._load(batches, range(math.ceil(len(indices) / batches.batch)))

    def _load(self, batches: _Batches, numbers: Iterable[int]) -> Generator[PairBatch, None, None]:
        return _load(batches, numbers, self._workers, self._pin, self._skipped)


def derive_seed(*parts: int | str) -> int:
    """Hashes numbers and words, in order, to a seed in [0, 2^63)."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def make_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded with `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@dataclass(frozen=True)
class _PackedBatch:
    """A batch as it is sent between processes: all of it in shared memory.

    Only handles go through the pipe, in a write that Linux keeps atomic (up to `select.PIPE_BUF`). A killed
    worker could leave part of a longer write, and the reader would wait for the rest for ever.

    Attributes:
        tensors: the tensors of the batch, by name.
        text: (bytes,) uint8, JSON of the names of the pairs (null without a batch) and of the pairs that
            cannot be read, with the error.
    """

    tensors: dict[str, Tensor]
    text: Tensor

    @classmethod
    def pack(cls, batch: PairBatch | None, skipped: dict[str, str]) -> _PackedBatch:
        """Packs a batch."""
        fields = {} if batch is None else vars(batch)
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        text = json.dumps([None if batch is None else list(batch.names), skipped])
        return cls(tensors, torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))

    def unpack(self) -> tuple[PairBatch | None, dict[str, str]]:
        """Returns the batch, and the pairs that cannot be read with the error."""
        names, skipped = json.loads(self.text.numpy().tobytes())
        return None if names is None else PairBatch(**self.tensors, names=tuple(names)), skipped

    def share(self) -> _PackedBatch | UcnError:
        """Moves the tensors to shared memory; returns an error where it is full.

        torch would do this in a thread, where an error is lost and the reader waits for ever.
        """
        parts = [*self.tensors.values(), self.text]
        try:
            for part in parts:
                if part.numel():  # torch sends empty tensors without memory
                    part.share_memory_()
        except (RuntimeError, OSError) as error:
            size = sum(part.nbytes for part in parts) / 2**20
            return UcnError(
                f"cannot put a batch of {size:.1f} MiB into shared memory ({_first_line(error)}); {_REMEDY}"
            )
        return self

    def pin_memory(self) -> _PackedBatch:
        """Called by torch where `pin_memory` is set."""
        return replace(self, tensors={name: value.pin_memory() for name, value in self.tensors.items()})


@dataclass(eq=False)
class _Batches(Dataset[_PackedBatch | UcnError], ABC):
    """A data set of whole batches, by number; the fields are as given to `PairLoader`."""

    data: PairData
    augmentation: PairAugmentation
    batch: int
    points: int
    seed: int
    is_skipping: bool
    skipped: dict[str, str] = field(init=False, default_factory=dict)

    def __getitem__(self, number: int) -> _PackedBatch | UcnError:
        self.skipped = {}
        try:
            samples = self.choose(number)
        except UcnError as error:
            return error  # torch would wrap an error raised in a worker in a traceback
        batch = None
        if samples:
            batch = collate(samples, self.points, make_generator(self.seed, "points", number))
        made = _PackedBatch.pack(batch, self.skipped)
        return made if get_worker_info() is None else made.share()

    @abstractmethod
    def choose(self, number: int) -> list[PairSample]:
        """The pairs of a batch."""

    def read(self, index: int) -> PairSample | None:
        """Reads a pair; None where it cannot be read and such pairs are skipped."""
        try:
            return self.data.read(index)
        except UcnError as error:
            if not self.is_skipping:
                raise
            self.skipped[self.data.pair_name(index)] = str(error)
            return None


class _RandomBatches(_Batches):
    _epoch, _order = -1, torch.zeros(0, dtype=torch.int64)

    def choose(self, number: int) -> list[PairSample]:
        return [self._sample_pair(number * self.batch + place) for place in range(self.batch)]

    def _sample_pair(self, position: int) -> PairSample:
        """The pair at a position of the endless order, or a random one that has enough points."""
        generator = make_generator(self.seed, "pair", position)
        index = self._index_at(position, generator)
        best: PairSample | None = None
        names: list[str] = []
        for attempt in range(1, _TRIES + 1):
            whole = self.read(index)
            if whole is not None:
                sample = augment_pair(whole, self.augmentation, generator)
                if len(sample) >= self.augmentation.min_points:
                    return sample
                if len(sample) and (best is None or len(sample) > len(best)):
                    best = sample
                names.append(sample.name)
            if best is not None and attempt >= _TRIES_FOR_ENOUGH:
                return best
            index = _sample_integer(len(self.data), generator)
        if not names:
            raise DataError(
                f"none of {_TRIES} pairs sampled from {self.data.root} can be read: "
                f"{next(iter(self.skipped.values()))}; check the set"
            )
        height, width = self.augmentation.size_hw
        raise DataError(
            f"no correspondence is left in any of {_TRIES} pairs of {self.data.root} at {width} × {height} "
            f"pixels (width × height): {', '.join(dict.fromkeys(names[:5]))}, …; check the set, or use a "
            "larger size"
        )

    def _index_at(self, position: int, generator: torch.Generator) -> int:
        pairs = len(self.data)
        if pairs > _MAX_PERMUTED:  # their permutation would fill memory
            return _sample_integer(pairs, generator)
        epoch, place = divmod(position, pairs)
        if epoch != self._epoch:
            self._order = torch.randperm(pairs, generator=make_generator(self.seed, "order", epoch))
            self._epoch = epoch
        return int(self._order[place])


class _OrderedBatches(_Batches):
    indices: Sequence[int] = ()

    def choose(self, number: int) -> list[PairSample]:
        chosen = self.indices[number * self.batch : (number + 1) * self.batch]
        found = ((index, self.read(index)) for index in chosen)
        return [
            augment_pair(sample, self.augmentation, make_generator(self.seed, "pair", index))
            for index, sample in found
            if sample is not None
        ]


def _load(
    batches: _Batches, numbers: Iterable[int], workers: int, pin: bool, skipped: dict[str, str] | None
) -> Generator[PairBatch, None, None]:
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork beside threads. The workers only decode and take no lock of ours.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # more than cores
        loader = DataLoader(
            batches,
            batch_size=None,  # the data set yields whole batches
            collate_fn=_keep,
            sampler=numbers,
            num_workers=workers,
            pin_memory=pin,
            prefetch_factor=_BATCHES_AHEAD if workers else None,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # without one, torch uses its global generator
        )
        iterator = _start(loader, pin) if workers else iter(loader)
    try:
        while (found := _next(iterator, workers)) is not None:
            if isinstance(found, UcnError):
                raise found
            batch, found_skipped = found.unpack()
            if skipped is not None:
                skipped |= found_skipped
            if batch is not None:
                yield batch
    finally:
        del iterator  # stops the workers, even where the traceback of an error keeps this frame alive


def _start(loader: DataLoader[_PackedBatch | UcnError], pin: bool) -> Iterator[_PackedBatch | UcnError]:
    """Starts the workers from a thread, where torch does not install its SIGCHLD handler.

    The handler would raise wherever the main thread is, for example in the middle of a step. Without it,
    torch notices a dead worker after waiting five seconds for a batch, and `_next` handles that error.
    """
    started: Future[Iterator[_PackedBatch | UcnError]] = Future()
    device = torch.cuda.current_device() if pin and torch.cuda.is_available() else None
    thread = threading.Thread(target=_start_here, args=(loader, device, started))
    thread.start()
    thread.join()
    try:
        return started.result()
    except OSError as error:
        raise UcnError(f"cannot start worker processes ({_first_line(error)}); {_REMEDY}") from error
    finally:
        del started  # an error keeps this frame alive; holding the future would keep started workers


def _start_here(
    loader: DataLoader[_PackedBatch | UcnError],
    device: int | None,
    started: Future[Iterator[_PackedBatch | UcnError]],
) -> None:
    try:
        if device is not None:
            torch.cuda.set_device(device)  # the current device is per thread
        started.set_result(iter(loader))
    except BaseException as error:
        started.set_exception(error)
        del started


def _next(iterator: Iterator[_PackedBatch | UcnError], workers: int) -> _PackedBatch | UcnError | None:
    """The next batch or error; None at the end."""
    try:
        return next(iterator, None)
    except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
        if not workers or not _is_worker_exit(error):
            raise
        raise WorkerExitedError(
            f"a worker process that reads data exited ({_first_line(error)}), as it does where memory is "
            "full; use fewer workers or a smaller batch"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _is_worker_exit(error: Exception) -> bool:
    if isinstance(error, RuntimeError):
        return str(error).startswith(("DataLoader worker", "Pin memory thread"))
    # A tensor could not be fetched from its worker. Errors raised in a worker begin with "Caught".
    return not str(error).startswith("Caught")


def _keep(batch: Any) -> Any:
    """Replaces torch's default conversion, which would change tuples of names to lists."""
    return batch


def _start_worker(_: int) -> None:
    """Limits a worker to one thread: more would compete for cores, and OpenCV's do not survive a fork."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exits this process when the training process was killed.

    torch's own check waits until all batches are handed over, for ever where nobody takes them.
    """
    run, above = multiprocessing.parent_process(), os.getppid()
    if run is None:
        return
    # Workers that were forked later keep the sentinel of `is_alive` open. A changed parent id shows a death
    # sooner, except on Windows, which has neither.
    while run.is_alive() and os.getppid() == above:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


def _choose_rows(available: int, count: int, generator: torch.Generator) -> Tensor:
    if available <= count:
        return torch.arange(available)
    return torch.randperm(available, generator=generator)[:count]


def _pad_rows(points: Tensor, rows: int) -> Tensor:
    return torch.cat([points, points.new_zeros(rows - len(points), 2)])


def _sample_uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _sample_integer(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
