"""The benchmarks of points in driving scenes: their pairs, and their variant at keypoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ucn.data.catalogue import Option, open_data
from ucn.data.pairs import PairData
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import ALL, BenchmarkPair, group_pairs, sample_rows
from ucn.evaluate.driving.sift_queries import MAX_DISTANCE, KeypointPairs
from ucn.evaluate.points.benchmarks import Benchmark

LIMITS = (5.0, 10.0, 30.0)
"""Pixels; the last is the paper's."""

_MAX_GAP = 10
_MAX_PAIRS = 1000


def open_raw_drives(folder: Path, max_gap: int) -> tuple[PairData, str]:
    """KITTI raw: drives of the split test where there are any, else all drives; and which part that is."""
    options: dict[str, Option] = {"max_gap": max_gap}
    try:
        return open_data("kitti-raw", folder, "test", options), "kitti-raw test"
    except DataError as error:
        if "is empty" not in str(error):
            raise
        return open_data("kitti-raw", folder, "all", options), "kitti-raw all"


def _open_raw(folder: Path) -> list[BenchmarkPair]:
    return _group(*open_raw_drives(folder, _MAX_GAP))


def _open_odometry(frames: str, folder: Path) -> list[BenchmarkPair]:
    """Frames of sequence 05 with a right image, from which depth follows."""
    options: dict[str, Option] = {"frames": frames, "max_gap": _MAX_GAP}
    return _group(open_data("kitti-odometry", folder, "train", options), f"kitti-odometry {frames}")


def _group(data: PairData, part: str) -> list[BenchmarkPair]:
    rows = sample_rows(len(data), _MAX_PAIRS) if len(data) > _MAX_PAIRS else None
    return group_pairs(data, lambda _: ALL, lambda name: name.split("/")[0], rows=rows, part=part)


def _make(
    name: str, title: str, ground_truth: str, opener: Callable[[Path], list[BenchmarkPair]]
) -> Benchmark:
    return Benchmark(
        name=name,
        title=f"{title}, pairs 1 to {_MAX_GAP} frames apart, {_MAX_PAIRS:,} sampled by seed 0 where there "
        "are more",
        ground_truth=ground_truth,
        open=opener,
        points=1000,
        limits=LIMITS,
    )


_LIST = (
    _make(
        "kitti-raw-points",
        "KITTI raw, test drives where there are any, else all",
        "laser points of image 0 that are visible in image 1, none on moving objects",
        _open_raw,
    ),
    _make(
        "kitti-odometry-points",
        "KITTI odometry, sequence 05, frames 1500 to 1539",
        "pixels of image 0 with a depth from stereo matching that are visible in image 1",
        partial(_open_odometry, "1500-1539"),
    ),
)

DRIVING_BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _LIST}
"""Every benchmark of points in driving scenes by name."""


def at_keypoints(benchmark: Benchmark) -> Benchmark:
    """The same benchmark with keypoints of image 0 as query points."""
    return replace(
        benchmark,
        name=f"{benchmark.name}-keypoints",
        ground_truth=f"keypoints of OpenCV's SIFT in image 0 at most {MAX_DISTANCE:g} px from one of the "
        "points above, whose displacement they share",
        open=partial(_open_at_keypoints, benchmark.open),
    )


def _open_at_keypoints(opener: Callable[[Path], list[BenchmarkPair]], folder: Path) -> list[BenchmarkPair]:
    wrapped: dict[int, KeypointPairs] = {}
    return [
        replace(pair, data=wrapped.setdefault(id(pair.data), KeypointPairs(pair.data)))
        for pair in opener(folder)
    ]
