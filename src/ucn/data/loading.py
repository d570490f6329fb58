"""Pairs of a data set as batches: read by worker processes, brought to one size, changed at random, padded.

Batch k depends on the seed and k alone, whatever the number of workers, so that a run that goes on at batch k
needs nothing remembered.
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
from dataclasses import dataclass, replace
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
_BATCHES_AHEAD = 2  # of each worker
_LOOK_FOR_PARENT_S = 1.0
_REMEDY = "where shared memory is full, allow more (docker run --shm-size=8g) or take fewer workers, or none"


class ReaderEndedError(UcnError):
    """A process that reads data ended before it should."""


@dataclass(frozen=True)
class Fitting:
    """How pairs of any size become pairs of one size, and how they vary.

    Attributes:
        size_hw: (H, W) of both images.
        fit: crop windows that see the same things, or resize the images until they fit, and pad them.
        min_points: pairs with fewer correspondences left are replaced by others.
        mirror: share of pairs that are mirrored, both views alike.
        mirror_view: share of pairs of which one view is mirrored; only for points that are named parts.
        rotation: each view turns by up to so many degrees.
        scale: each view is enlarged or reduced by up to this factor.
    """

    size_hw: tuple[int, int]
    fit: Literal["crop", "resize"] = "crop"
    min_points: int = 1
    mirror: float = 0.0
    mirror_view: float = 0.0
    rotation: float = 0.0
    scale: float = 1.0

    def without_changes(self) -> Fitting:
        """The same size without random changes, for validation."""
        return replace(self, mirror=0.0, mirror_view=0.0, rotation=0.0, scale=1.0)


def fit_pair(sample: PairSample, fitting: Fitting, generator: torch.Generator) -> PairSample:
    """Brings a pair to one size, with the random changes asked for.

    Raises:
        DataError: one view is to be mirrored, but the points have no parts.
    """
    size_hw = fitting.size_hw
    log_scale = math.log(fitting.scale)
    scales = [math.exp(_draw(generator, -log_scale, log_scale)) for _ in range(2)]
    if fitting.fit == "crop":
        windows = [(max(1, round(size_hw[0] / s)), max(1, round(size_hw[1] / s))) for s in scales]
        sample = transforms.crop_pair(sample, windows[0], windows[1], fitting.min_points, generator)
        sample = transforms.resize(sample, size_hw, size_hw)
        scales = [1.0, 1.0]
    else:
        sample = transforms.pad(transforms.resize_to_fit(sample, size_hw), size_hw)
    if _draw(generator, 0, 1) < fitting.mirror:
        sample = transforms.mirror(sample)
    if _draw(generator, 0, 1) < fitting.mirror_view:
        if sample.parts is None or sample.mirror_parts is None:
            raise DataError(f"{sample.name} has no named parts: set mirror_view to 0 for this data set")
        sample = transforms.mirror_view(sample, 0 if _draw(generator, 0, 1) < 0.5 else 1)
    views: tuple[transforms.View, ...] = (0, 1)
    for view in views:
        degrees = _draw(generator, -fitting.rotation, fitting.rotation)
        if degrees != 0 or scales[view] != 1:
            sample = transforms.rotate_view(sample, view, degrees, scales[view])
    return sample


def collate(samples: Sequence[PairSample], points: int, generator: torch.Generator) -> PairBatch:
    """A batch of pairs of one size.

    Args:
        samples: at least one; all images of one size.
        points: rows of points per pair. Of more, so many are drawn; fewer are padded with rows that are not
            valid.
        generator: source of the draws.

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
    """Endless batches of a data set: all pairs in random order, then all again in another."""

    def __init__(
        self,
        data: PairData,
        fitting: Fitting,
        *,
        batch: int,
        points: int,
        seed: int,
        workers: int = 0,
        pin: bool = False,
        skipped: dict[str, str] | None = None,
    ) -> None:
        """Makes a loader; nothing is read yet.

        Args:
            data: the pairs.
            fitting: the size of the images, and how pairs vary.
            batch: pairs per batch.
            points: rows of points per pair.
            seed: of all draws.
            workers: processes that read; 0 reads in this one.
            pin: put batches in memory that CUDA copies from without waiting.
            skipped: where given, pairs that cannot be read are replaced by others, and noted here by name
                with what is wrong; otherwise they raise.

        Raises:
            DataError: the set has no pairs.
        """
        if len(data) == 0:
            raise DataError(f"{data.root} has no pairs to make batches of")
        self._batches = _RandomBatches(data, fitting, batch, points, seed, skipped is not None)
        self._workers, self._pin, self._skipped = workers, pin, skipped

    def batches(self, start: int = 0) -> Generator[PairBatch, None, None]:
        """The batches from number `start` on, without end; close the iterator to end its workers.

        Raises:
            DataError: pair after pair has no correspondence left when it is brought to size.
            ReaderEndedError: a worker was killed.
            UcnError: what reading a pair raised, in a worker too.
        """
        return _load(self._batches, count(start), self._workers, self._pin, self._skipped)


def load_in_order(
    data: PairData,
    indices: Sequence[int],
    fitting: Fitting,
    *,
    batch: int,
    points: int,
    seed: int,
    workers: int = 0,
    pin: bool = False,
    skipped: dict[str, str] | None = None,
) -> Generator[PairBatch, None, None]:
    """One pass over given pairs in their order, the same each time; the last batch may be smaller.

    Args:
        data: the pairs.
        indices: which of them.
        fitting: the size of the images; pairs with few correspondences are not replaced.
        batch: pairs per batch.
        points: rows of points per pair.
        seed: of windows and of the choice of points.
        workers: processes that read; 0 reads in this one.
        pin: put batches in memory that CUDA copies from without waiting.
        skipped: where given, pairs that cannot be read are left out, and noted here by name with what is
            wrong; otherwise they raise.
    """
    batches = _OrderedBatches(data, fitting, batch, points, seed, skipped is not None)
    batches.indices = list(indices)
    return _load(batches, range(math.ceil(len(indices) / batch)), workers, pin, skipped)


def mix_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) made of numbers and words; others, or another order, give another seed."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def make_generator(*parts: int | str) -> torch.Generator:
    """A generator seeded by `mix_seed`."""
    return torch.Generator().manual_seed(mix_seed(*parts))


@dataclass(frozen=True)
class _Made:
    """A batch in the form in which it travels between processes: all of it in shared memory.

    So little is written to the pipe between them that on Linux it is written whole or not at all (up to
    `select.PIPE_BUF`). Of longer writes a worker that is killed may leave a part, whose rest would be waited
    for without end.

    Attributes:
        tensors: of the batch, by name.
        rest: text, as the bytes of JSON: the names of its pairs, null where none of them can be read; and
            those of pairs that cannot be read, with what is wrong.
    """

    tensors: dict[str, Tensor]
    rest: Tensor

    @classmethod
    def pack(cls, batch: PairBatch | None, skipped: dict[str, str]) -> _Made:
        """Takes a batch apart."""
        fields = {} if batch is None else vars(batch)
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        text = json.dumps([None if batch is None else list(batch.names), skipped])
        return cls(tensors, torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))

    def unpack(self) -> tuple[PairBatch | None, dict[str, str]]:
        """The batch, and the pairs that cannot be read."""
        names, skipped = json.loads(self.rest.numpy().tobytes())
        return None if names is None else PairBatch(**self.tensors, names=tuple(names)), skipped

    def share(self) -> _Made | UcnError:
        """Moves it to shared memory; an error where that has no room.

        Torch would do it in a thread, where an error ends nothing, and the batch would be waited for.
        """
        parts = [*self.tensors.values(), self.rest]
        try:
            for part in parts:
                if part.numel():  # torch sends an empty one without memory
                    part.share_memory_()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError) as error:
            size = sum(part.nbytes for part in parts) / 2**20
            return UcnError(
                f"cannot put a batch of {size:.1f} MiB into shared memory ({_first_line(error)}); {_REMEDY}"
            )
        return self

    def pin_memory(self) -> _Made:
        """Called by torch where batches are wanted in pinned memory."""
        return replace(self, tensors={name: value.pin_memory() for name, value in self.tensors.items()})


class _Batches(Dataset[_Made | UcnError], ABC):
    """Batches by number."""

    def __init__(
        self, data: PairData, fitting: Fitting, batch: int, points: int, seed: int, is_skipping: bool
    ) -> None:
        self._data, self._fitting = data, fitting
        self._batch, self._points, self._seed = batch, points, seed
        self._is_skipping, self._skipped = is_skipping, dict[str, str]()

    def __getitem__(self, number: int) -> _Made | UcnError:
        self._skipped = {}
        try:
            samples = self.choose(number)
        except UcnError as error:
            return error  # raised in a worker, torch would wrap its message in a traceback
        batch = None
        if samples:
            batch = collate(samples, self._points, make_generator(self._seed, "points", number))
        made = _Made.pack(batch, self._skipped)
        return made if get_worker_info() is None else made.share()

    @abstractmethod
    def choose(self, number: int) -> list[PairSample]:
        """The pairs of the batch of a number."""

    def read(self, index: int) -> PairSample | None:
        """A pair; None where it cannot be read and such pairs are skipped."""
        try:
            return self._data.read(index)
        except UcnError as error:
            if not self._is_skipping:
                raise
            self._skipped[self._data.pair_name(index)] = str(error)
            return None


class _RandomBatches(_Batches):
    _epoch, _order = -1, torch.zeros(0, dtype=torch.int64)

    def choose(self, number: int) -> list[PairSample]:
        return [self._draw_sample(number * self._batch + place) for place in range(self._batch)]

    def _draw_sample(self, position: int) -> PairSample:
        """The pair at a position of the endless order, or one drawn for it that has enough points."""
        generator = make_generator(self._seed, "pair", position)
        index = self._index_at(position, generator)
        best: PairSample | None = None
        names: list[str] = []
        for attempt in range(1, _TRIES + 1):
            whole = self.read(index)
            if whole is not None:
                sample = fit_pair(whole, self._fitting, generator)
                if len(sample) >= self._fitting.min_points:
                    return sample
                if len(sample) and (best is None or len(sample) > len(best)):
                    best = sample
                names.append(sample.name)
            if best is not None and attempt >= _TRIES_FOR_ENOUGH:
                return best
            index = _draw_integer(len(self._data), generator)
        if not names:
            raise DataError(
                f"none of {_TRIES} pairs drawn from {self._data.root} can be read: "
                f"{next(iter(self._skipped.values()))}; check the set"
            )
        height, width = self._fitting.size_hw
        raise DataError(
            f"no correspondence is left in any of {_TRIES} pairs of {self._data.root} brought to {width} × "
            f"{height} pixels (width × height): {', '.join(dict.fromkeys(names[:5]))}, …; check the set, or "
            "take a larger size"
        )

    def _index_at(self, position: int, generator: torch.Generator) -> int:
        pairs = len(self._data)
        if pairs > _MAX_PERMUTED:  # so many are not all seen anyway, and their order would fill memory
            return _draw_integer(pairs, generator)
        epoch, place = divmod(position, pairs)
        if epoch != self._epoch:
            self._order = torch.randperm(pairs, generator=make_generator(self._seed, "order", epoch))
            self._epoch = epoch
        return int(self._order[place])


class _OrderedBatches(_Batches):
    indices: Sequence[int] = ()

    def choose(self, number: int) -> list[PairSample]:
        chosen = self.indices[number * self._batch : (number + 1) * self._batch]
        found = ((index, self.read(index)) for index in chosen)
        return [
            fit_pair(sample, self._fitting, make_generator(self._seed, "pair", index))
            for index, sample in found
            if sample is not None
        ]


def _load(
    batches: _Batches, numbers: Iterable[int], workers: int, pin: bool, skipped: dict[str, str] | None
) -> Generator[PairBatch, None, None]:
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork beside threads. The workers only decode, and take no lock of ours.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # more than cores
        loader = DataLoader(
            batches,
            batch_size=None,  # the data set makes whole batches
            collate_fn=_keep,
            sampler=numbers,
            num_workers=workers,
            pin_memory=pin,
            prefetch_factor=_BATCHES_AHEAD if workers else None,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # without one torch draws from its global generator
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
        del iterator  # ends the workers, though the traceback of an error may keep this frame


def _start(loader: DataLoader[_Made | UcnError], pin: bool) -> Iterator[_Made | UcnError]:
    """Starts the workers from a thread, where torch does not set its answer to the end of a child process.

    That would raise an error wherever the program then is, in the middle of a step for one. Without it torch
    notices when a read has waited five seconds, and `_next` expects it there.
    """
    started: Future[Iterator[_Made | UcnError]] = Future()
    device = torch.cuda.current_device() if pin and torch.cuda.is_available() else None
    thread = threading.Thread(target=_start_here, args=(loader, device, started))
    thread.start()
    thread.join()
    try:
        return started.result()
    except OSError as error:
        raise UcnError(f"cannot start processes that read data ({_first_line(error)}); {_REMEDY}") from error
    finally:
        del started  # an error refers to this frame; if that held it, workers that did start would stay


def _start_here(
    loader: DataLoader[_Made | UcnError], device: int | None, started: Future[Iterator[_Made | UcnError]]
) -> None:
    try:
        if device is not None:
            torch.cuda.set_device(device)  # each thread has its own
        started.set_result(iter(loader))
    except BaseException as error:
        started.set_exception(error)
        del started


def _next(iterator: Iterator[_Made | UcnError], workers: int) -> _Made | UcnError | None:
    """What comes next; None at the end."""
    try:
        return next(iterator, None)
    except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
        if not workers or not _is_end_of_worker(error):
            raise
        raise ReaderEndedError(
            f"a process that reads data ended ({_first_line(error)}), as it does where memory is full; take "
            "fewer workers or a smaller batch"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _is_end_of_worker(error: Exception) -> bool:
    if isinstance(error, RuntimeError):
        return str(error).startswith(("DataLoader worker", "Pin memory thread"))
    # A tensor could not be fetched from its worker. What was raised in a worker begins otherwise.
    return not str(error).startswith("Caught")


def _keep(batch: Any) -> Any:
    """Without this torch would convert what it knows, tuples of names to lists for one."""
    return batch


def _start_worker(_: int) -> None:
    """One thread per process: more of them would fight over the cores, and OpenCV's do not survive a fork."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when the run has been killed.

    Torch's own way waits until a batch is read and all are handed over, for ever where nobody takes them.
    """
    run, above = multiprocessing.parent_process(), os.getppid()
    if run is None:
        return
    # Processes that were forked later keep open what tells this one that the run is alive. That the system
    # gave it another parent shows sooner, though not on Windows, where there is neither.
    while run.is_alive() and os.getppid() == above:
        time.sleep(_LOOK_FOR_PARENT_S)
    os._exit(1)


def _choose_rows(available: int, wanted: int, generator: torch.Generator) -> Tensor:
    if available <= wanted:
        return torch.arange(available)
    return torch.randperm(available, generator=generator)[:wanted]


def _pad_rows(points: Tensor, rows: int) -> Tensor:
    return torch.cat([points, points.new_zeros(rows - len(points), 2)])


def _draw(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _draw_integer(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
