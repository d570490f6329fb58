"""Camera motion, stage 1: the matches that each method finds in pairs of frames, kept on disk.

Every method gives its matches best first and keeps the same number at most. Each is measured twice: with its
matches as they are, and moved by parts of a pixel by the same alignment for all (`geometry.alignment`).
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.catalogue import Option, open_data
from ucn.data.io import read_image
from ucn.data.sets.posed.views import PosedData
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import Entry, enter
from ucn.evaluate.core.cache import Record, RecordStore, digest_data
from ucn.evaluate.core.processes import share_work
from ucn.evaluate.motion.methods import FrameMatcher, MotionMethod
from ucn.evaluate.points.predictions import Progress
from ucn.matching.alignment import align_matches
from ucn.types import FloatArray

VERSION = 1
"""Goes into every key: raise it where code changes what is predicted."""

_MAX_GAP = 5
_KEPT_IMAGES = 2 * (_MAX_GAP + 1)  # whose descriptions are kept, since pairs share images
_FRAMES = re.compile(r"([0-9]+)-([0-9]+)$")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MotionBenchmark:
    """A benchmark of camera motion and its protocol.

    Attributes:
        name: how the command line calls it.
        title: its data.
        truth: where the true motion comes from.
        open: from the user's folder to its pairs, all of a `PosedData`.
        max_matches: the best so many matches of a pair are used; SIFT's neighbours are nearly always as many.
        threshold: of the estimators, in pixels; the one that suits SIFT best (``docs/evaluation.md``).
    """

    name: str
    title: str
    truth: str
    open: Callable[[Path], list[Entry]]
    max_matches: int = 500
    threshold: float = 0.5


@dataclass(frozen=True, eq=False)
class MotionVariant:
    """A method whose matches are aligned by their pixels, or left as they are."""

    method: MotionMethod
    is_aligned: bool

    @property
    def label(self) -> str:
        """Its row in tables."""
        return f"{self.method.name}, aligned" if self.is_aligned else self.method.name


@dataclass(frozen=True)
class MatchedFrames:
    """What a variant found in a pair.

    Attributes:
        points0: (N, 2) pixels of image 0, best match first.
        points1: (N, 2) pixels of image 1.
        found: how many matches there were before the best were taken.
        seconds: describing images, how many images that were, matching, aligning.
    """

    points0: FloatArray
    points1: FloatArray
    found: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class MotionPair:
    """What is scored of a pair.

    Attributes:
        entry: which pair.
        K0: (3, 3) of camera 0.
        K1: (3, 3) of camera 1.
        R: (3, 3) true rotation.
        t: (3,) true translation in metres.
        matches: of each variant, in their order.
    """

    entry: Entry
    K0: Array
    K1: Array
    R: Array
    t: Array
    matches: tuple[MatchedFrames, ...]


def match_frames(
    benchmark: MotionBenchmark,
    entries: Sequence[Entry],
    chosen: Sequence[int],
    variants: Sequence[MotionVariant],
    cache: Path,
    progress: Progress | None = None,
    jobs: int = 1,
) -> list[MotionPair]:
    """Finds the matches that are not yet in the cache, and reads all of them from it.

    Args:
        benchmark: its protocol.
        entries: all its pairs.
        chosen: which of them are asked.
        variants: what is measured.
        cache: folder of predictions.
        progress: called after each pair.
        jobs: processes that share the pairs; methods of another device than the CPU need 1.

    Raises:
        UcnError: a file of the data is wrong, or the cache cannot be used.
    """
    files = [(entry.name, entry.data.pair_files(entry.index)) for entry in entries]
    key = {"version": VERSION, "benchmark": benchmark.name, "data": digest_data(files)}
    folder = cache / benchmark.name
    truths = RecordStore(folder, "motions", key)
    stores = {
        variant: RecordStore(folder, _name(variant), _key(key, benchmark, variant)) for variant in variants
    }
    ordered = list(stores.values())
    tasks = []
    for number in chosen:
        missing = tuple(row for row, store in enumerate(ordered) if number not in store)
        if missing or number not in truths:
            tasks.append(_Task(number, missing, number not in truths))
    done = len(chosen) - len(tasks)
    if progress is not None and done:
        progress(done, len(chosen))
    work = _FrameWork(_Worker(benchmark.max_matches), entries, variants)
    try:
        for task, (truth, found) in share_work(work, tasks, jobs):
            if truth is not None:
                truths.put(task.number, truth)
            for row, record in found.items():
                ordered[row].put(task.number, record)
            done += 1
            if progress is not None:
                progress(done, len(chosen))
    finally:
        for store in (truths, *ordered):
            store.flush()
    return [_collect(entries[number], number, truths, stores.values()) for number in chosen]


def _name(variant: MotionVariant) -> str:
    safe = "".join(letter if letter.isalnum() else "_" for letter in variant.method.name)
    return f"{safe}-{'aligned' if variant.is_aligned else 'matches'}"


def _key(key: Mapping[str, Any], benchmark: MotionBenchmark, variant: MotionVariant) -> dict[str, Any]:
    return {
        **key,
        "method": variant.method.key,
        "alignment": variant.is_aligned,
        "max_matches": benchmark.max_matches,
    }


def _read_truth(entry: Entry) -> Record:
    if not isinstance(entry.data, PosedData):
        raise TypeError(f"{entry.name} is of a set without camera poses")
    K0, K1 = entry.data.intrinsics(entry.index)
    R, t = entry.data.relative_pose(entry.index)
    return {"K0": K0, "K1": K1, "R": R, "t": t}


class _Worker:
    """Reads frames and asks methods for matches."""

    def __init__(self, max_matches: int) -> None:
        self._max_matches = max_matches
        self._describers: dict[FrameMatcher, _Describer] = {}

    @torch.no_grad()
    def match(self, entry: Entry, variants: Sequence[MotionVariant]) -> dict[MotionVariant, Record]:
        """The matches of each variant; both variants of a method come from one search."""
        paths = entry.data.image_paths(entry.index)
        images = [read_image(path) for path in paths] if variants else []
        records: dict[MotionVariant, Record] = {}
        for matcher in dict.fromkeys(variant.method.matcher for variant in variants):
            describer = self._describers.setdefault(matcher, _Describer(matcher))
            described = [describer.describe(*pair) for pair in zip(paths, images, strict=True)]
            cost = describer.take_cost()
            begin = time.perf_counter()
            found = matcher.match(*described)
            matching = time.perf_counter() - begin
            for variant in variants:
                if variant.method.matcher is matcher:
                    points1, aligning = found.points1, 0.0
                    if variant.is_aligned:
                        begin = time.perf_counter()
                        points1 = _align(images, found.points0, found.points1)
                        aligning = time.perf_counter() - begin
                    records[variant] = self._record(found.points0, points1, (*cost, matching, aligning))
        return records

    def _record(self, points0: Tensor, points1: Tensor, seconds: tuple[float, ...]) -> Record:
        return {
            "points0": points0[: self._max_matches].numpy().astype(np.float32),
            "points1": points1[: self._max_matches].numpy().astype(np.float32),
            "found": np.array(len(points0), np.int64),
            "seconds": np.array(seconds, np.float64),
        }


@dataclass(frozen=True)
class _Task:
    """What is missing of a pair: its number, those of variants, and whether its true motion is."""

    number: int
    missing: tuple[int, ...]
    needs_truth: bool


@dataclass(frozen=True, eq=False)
class _FrameWork:
    """Does a task wherever it is copied to."""

    worker: _Worker
    entries: Sequence[Entry]
    variants: Sequence[MotionVariant]

    def __call__(self, task: _Task) -> tuple[Record | None, dict[int, Record]]:
        entry = self.entries[task.number]
        found = self.worker.match(entry, [self.variants[row] for row in task.missing])
        truth = _read_truth(entry) if task.needs_truth else None
        return truth, {row: found[self.variants[row]] for row in task.missing}


class _Describer:
    """Descriptions of images, each made once while it is in use."""

    def __init__(self, matcher: FrameMatcher) -> None:
        self._matcher = matcher
        self._kept: OrderedDict[Path, Any] = OrderedDict()
        self._seconds, self._count = 0.0, 0

    def describe(self, path: Path, image: Tensor) -> Any:
        """What the method needs of an image."""
        if path not in self._kept:
            begin = time.perf_counter()
            self._kept[path] = self._matcher.describe(image)
            self._seconds += time.perf_counter() - begin
            self._count += 1
        self._kept.move_to_end(path)
        while len(self._kept) > _KEPT_IMAGES:
            self._kept.popitem(last=False)
        return self._kept[path]

    def take_cost(self) -> tuple[float, float]:
        """Seconds spent since the last call, and how many images they described."""
        cost = self._seconds, float(self._count)
        self._seconds, self._count = 0.0, 0
        return cost


def _align(images: Sequence[Tensor], points0: Tensor, points1: Tensor) -> Tensor:
    grey0, grey1 = (image.mean(dim=0) for image in images)
    return align_matches(grey0, grey1, points0.float(), points1.float()).points1


def _collect(entry: Entry, number: int, truths: RecordStore, stores: Iterable[RecordStore]) -> MotionPair:
    truth, records = truths.get(number), [store.get(number) for store in stores]
    matches = tuple(
        MatchedFrames(
            record["points0"],
            record["points1"],
            int(record["found"]),
            tuple(record["seconds"].tolist()),
        )
        for record in records
    )
    return MotionPair(entry, truth["K0"], truth["K1"], truth["R"], truth["t"], matches)


def _open_odometry(frames: str, folder: Path) -> list[Entry]:
    """Frames of sequence 05 whose poses were measured."""
    options: dict[str, Option] = {"frames": frames, "max_gap": _MAX_GAP, "all_frames": True}
    data = open_data("kitti-odometry", folder, "train", options)
    rows = [row for row in range(len(data)) if data.pair_name(row).startswith("05/")]
    if not rows:
        raise DataError(f"{folder} has no pair of frames {frames} of sequence 05; unpack that sequence")
    return enter(data, _name_gap, lambda _: "05", rows=rows)


def _open_raw(folder: Path) -> list[Entry]:
    """Drives of the split test where there are any, else all drives."""
    options = {"max_gap": _MAX_GAP}
    try:
        data = open_data("kitti-raw", folder, "test", options)
    except DataError as error:
        if "is empty" not in str(error):
            raise
        data = open_data("kitti-raw", folder, "all", options)
    return enter(data, _name_gap, lambda name: name.split("/")[0])


def _name_gap(name: str) -> str:
    match = _FRAMES.search(name)
    if match is None:
        raise ValueError(f"the name of a pair of frames must end in FIRST-SECOND, got '{name}'")
    return f"gap {int(match[2]) - int(match[1])}"


_ODOMETRY_TRUTH = "published camera poses; frames whose poses were interpolated are left out"

_LIST = (
    MotionBenchmark(
        name="kitti-odometry",
        title="KITTI odometry, sequence 05, frames 1500 to 1539, all pairs 1 to 5 frames apart",
        truth=_ODOMETRY_TRUTH,
        open=partial(_open_odometry, "1500-1539"),
    ),
    MotionBenchmark(
        name="kitti-odometry-train",
        title="KITTI odometry, sequence 05, frames 600 to 639, all pairs 1 to 5 frames apart: to choose "
        "settings on",
        truth=_ODOMETRY_TRUTH,
        open=partial(_open_odometry, "600-639"),
    ),
    MotionBenchmark(
        name="kitti-raw",
        title="KITTI raw, test drives where there are any, else all, all pairs 1 to 5 frames apart",
        truth="poses of the GPS/IMU unit, or laser scans aligned where a drive has none",
        open=_open_raw,
    ),
)

MOTION_BENCHMARKS: dict[str, MotionBenchmark] = {benchmark.name: benchmark for benchmark in _LIST}
"""Every benchmark of camera motion by name."""
