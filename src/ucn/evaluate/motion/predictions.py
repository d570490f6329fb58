"""Relative pose, stage 1: the matches that each method finds in pairs of frames, kept on disk.

Every method orders its matches, best first, and at most the same number is used. Each method is evaluated
twice: with its matches as they are, and after the same photometric refinement for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from ucn.data.sets.posed.posed_pairs import PosedData
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import (
    BenchmarkPair,
    digest_pairs,
    find_gap,
    group_pairs,
)
from ucn.evaluate.core.cache import PredictionCache, Record, name_folder
from ucn.evaluate.core.predictions import FeatureCache, Progress, Task, predict_missing
from ucn.evaluate.driving.benchmarks import open_raw_drives
from ucn.features.method import Method
from ucn.matching.alignment import refine_photometric
from ucn.types import FloatArray

VERSION = 2
"""Part of every key: raise it where code changes what is predicted."""

_MAX_GAP = 5
_KEPT_IMAGES = 2 * (_MAX_GAP + 1)  # whose features are kept, since pairs share images

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MotionBenchmark:
    """A benchmark of relative pose and its protocol.

    Attributes:
        name: what the command line calls it.
        title: its data.
        ground_truth: where the true poses come from.
        open: from the user's folder to its pairs, all of a `PosedData`.
        max_matches: the best so many matches of a pair are used; SIFT nearly always has as many.
        threshold: of the estimators, in pixels; the best one for SIFT (``docs/evaluation.md``).
    """

    name: str
    title: str
    ground_truth: str
    open: Callable[[Path], list[BenchmarkPair]]
    max_matches: int = 500
    threshold: float = 0.5


@dataclass(frozen=True, eq=False)
class MotionVariant:
    """A method with or without photometric refinement of its matches."""

    method: Method
    is_aligned: bool

    @property
    def label(self) -> str:
        """Its row in tables."""
        return label_variant(self.method.name, self.is_aligned)


def label_variant(method: str, is_aligned: bool) -> str:
    """The row of a variant in tables."""
    return f"{method}, aligned" if is_aligned else method


@dataclass(frozen=True)
class MatchedFrames:
    """The matches of a variant in a pair.

    Attributes:
        points0: (N, 2) pixels of image 0, best match first.
        points1: (N, 2) pixels of image 1.
        found: number of matches before the best were taken.
        seconds: extracting features, the number of images of that, matching, refining.
    """

    points0: FloatArray
    points1: FloatArray
    found: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class MotionPair:
    """What is scored of a pair.

    Attributes:
        pair: which pair.
        K0: (3, 3) of camera 0.
        K1: (3, 3) of camera 1.
        R: (3, 3) true rotation.
        t: (3,) true translation in metres.
        matches: of each variant, in their order.
    """

    pair: BenchmarkPair
    K0: Array
    K1: Array
    R: Array
    t: Array
    matches: tuple[MatchedFrames, ...]


def predict_frames(
    benchmark: MotionBenchmark,
    pairs: Sequence[BenchmarkPair],
    chosen: Sequence[int],
    variants: Sequence[MotionVariant],
    cache: Path,
    progress: Progress | None = None,
    jobs: int = 1,
) -> list[MotionPair]:
    """Finds the matches that the cache lacks, and reads all of them from it.

    Args:
        benchmark: its protocol.
        pairs: all its pairs.
        chosen: rows of the pairs to evaluate.
        variants: what is evaluated.
        cache: folder of predictions.
        progress: called after each pair.
        jobs: processes that share the pairs; those of a GPU share it.

    Raises:
        UcnError: a file of the data is wrong, or the cache cannot be used.
    """
    key = {"version": VERSION, "benchmark": benchmark.name, "data": digest_pairs(pairs)}
    folder = cache / benchmark.name
    poses = PredictionCache(folder, "motions", key)
    caches = [
        PredictionCache(
            folder,
            f"{name_folder(variant.method.name)}-{'aligned' if variant.is_aligned else 'matches'}",
            {
                **key,
                "method": variant.method.key,
                "alignment": variant.is_aligned,
                "max_matches": benchmark.max_matches,
            },
        )
        for variant in variants
    ]
    predictor = _Predictor(pairs, variants, benchmark.max_matches)
    predict_missing(predictor, chosen, [poses, *caches], jobs, progress)
    return [_collect(pairs[row], poses.get(row), [own.get(row) for own in caches]) for row in chosen]


class _Predictor:
    """Reads two frames and matches them with each variant; cache 0 holds the true pose."""

    def __init__(
        self, pairs: Sequence[BenchmarkPair], variants: Sequence[MotionVariant], max_matches: int
    ) -> None:
        self._pairs, self._variants, self._max_matches = pairs, variants, max_matches
        self._features: dict[Method, FeatureCache[Any]] = {
            variant.method: FeatureCache(variant.method.extract, _KEPT_IMAGES) for variant in variants
        }

    @torch.no_grad()
    def __call__(self, task: Task) -> list[Record]:
        pair = self._pairs[task.pair]
        variants = [self._variants[number - 1] for number in task.missing if number > 0]
        records = [_read_pose(pair)] if 0 in task.missing else []
        return records + (self._match(pair, variants) if variants else [])

    def _match(self, pair: BenchmarkPair, variants: Sequence[MotionVariant]) -> list[Record]:
        """The matches of each variant; both variants of a method come from one search."""
        paths = pair.image_paths()
        images = [read_image(path) for path in paths]
        found: dict[Method, tuple[Any, tuple[float, ...]]] = {}
        records = []
        for variant in variants:
            method = variant.method
            if method not in found:
                cache = self._features[method]
                features = [cache.extract(image, path) for path, image in zip(paths, images, strict=True)]
                cost = cache.take_cost()
                begin = time.perf_counter()
                matches = method.match(*features)
                found[method] = matches, (*cost, time.perf_counter() - begin)
            matches, seconds = found[method]
            points1, begin = matches.points1, time.perf_counter()
            if variant.is_aligned:
                points1 = _refine(images, matches.points0, points1)
            refining = time.perf_counter() - begin if variant.is_aligned else 0.0
            records.append(self._record(matches.points0, points1, (*seconds, refining)))
        return records

    def _record(self, points0: Tensor, points1: Tensor, seconds: tuple[float, ...]) -> Record:
        return {
            "points0": points0[: self._max_matches].numpy().astype(np.float32),
            "points1": points1[: self._max_matches].numpy().astype(np.float32),
            "found": np.array(len(points0), np.int64),
            "seconds": np.array(seconds, np.float64),
        }


def _read_pose(pair: BenchmarkPair) -> Record:
    if not isinstance(pair.data, PosedData):
        raise TypeError(f"{pair.name} is of a data set without camera poses")
    K0, K1 = pair.data.intrinsics(pair.index)
    R, t = pair.data.relative_pose(pair.index)
    return {"K0": K0, "K1": K1, "R": R, "t": t}


def _refine(images: Sequence[Tensor], points0: Tensor, points1: Tensor) -> Tensor:
    grey0, grey1 = (image.mean(dim=0) for image in images)
    return refine_photometric(grey0, grey1, points0.float(), points1.float()).points1


def _collect(pair: BenchmarkPair, pose: Record, records: Sequence[Record]) -> MotionPair:
    matches = tuple(
        MatchedFrames(
            record["points0"],
            record["points1"],
            int(record["found"]),
            tuple(record["seconds"].tolist()),
        )
        for record in records
    )
    return MotionPair(pair, pose["K0"], pose["K1"], pose["R"], pose["t"], matches)


def _open_odometry(frames: str, folder: Path) -> list[BenchmarkPair]:
    """Frames of sequence 05 whose poses were measured."""
    options: dict[str, Option] = {"frames": frames, "max_gap": _MAX_GAP, "all_frames": True}
    data = open_data("kitti-odometry", folder, "train", options)
    rows = [row for row in range(len(data)) if data.pair_name(row).startswith("05/")]
    if not rows:
        raise DataError(f"{folder} has no pair of frames {frames} of sequence 05; unpack that sequence")
    return group_pairs(data, _name_gap, lambda _: "05", rows=rows, part=f"kitti-odometry {frames}")


def _open_raw(folder: Path) -> list[BenchmarkPair]:
    data, part = open_raw_drives(folder, _MAX_GAP)
    return group_pairs(data, _name_gap, lambda name: name.split("/")[0], part=part)


def _name_gap(name: str) -> str:
    return f"gap {find_gap(name)}"


_ODOMETRY_POSES = "published camera poses; frames whose poses were interpolated are skipped"

_LIST = (
    MotionBenchmark(
        name="kitti-odometry",
        title="KITTI odometry, sequence 05, frames 1500 to 1539, all pairs 1 to 5 frames apart",
        ground_truth=_ODOMETRY_POSES,
        open=partial(_open_odometry, "1500-1539"),
    ),
    MotionBenchmark(
        name="kitti-odometry-train",
        title="KITTI odometry, sequence 05, frames 600 to 639, all pairs 1 to 5 frames apart: to choose "
        "settings on",
        ground_truth=_ODOMETRY_POSES,
        open=partial(_open_odometry, "600-639"),
    ),
    MotionBenchmark(
        name="kitti-raw",
        title="KITTI raw, test drives where there are any, else all, all pairs 1 to 5 frames apart",
        ground_truth="poses of the GPS/IMU unit, or laser scans registered by ICP where a drive has none",
        open=_open_raw,
    ),
)

MOTION_BENCHMARKS: dict[str, MotionBenchmark] = {benchmark.name: benchmark for benchmark in _LIST}
"""Every benchmark of relative pose by name."""
