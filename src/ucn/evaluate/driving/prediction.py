"""How many points of driving scenes are found: densely, at keypoints, by camera baseline, by class of thing.

These are the paper's figures of KITTI raw; camera motion on the same data is in `camera_motion`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.catalogue import Option, open_data
from ucn.data.io import read_image
from ucn.data.sets.posed.views import PosedData
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import Entry, enter
from ucn.evaluate.core.cache import RecordStore, digest_data
from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.method_types import LoadedMethods
from ucn.evaluate.core.pair_lists import draw_rows
from ucn.evaluate.driving.at_keypoints import MAX_DISTANCE, KeypointQuestions, move_to_keypoints
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.predictions import PairPrediction, Predictions, Progress
from ucn.evaluate.points.report import PointsRun
from ucn.evaluate.points.run import RunSettings, run_benchmark
from ucn.evaluate.points.scoring import ALL, Scores, score_predictions

VERSION = 1
"""Goes into every key: raise it where code changes what is kept."""
LIMITS = (5.0, 10.0, 30.0)
"""Pixels; the last is the paper's."""
BASELINES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, float("inf"))
"""Metres between the cameras: bounds of the groups."""
CLASS_LIST = "classes.csv"
"""Lines NUMBER,NAME in the folder of masks; without it classes are called by their numbers."""

_MAX_GAP = 10
_MAX_PAIRS = 1000
_CURVE = tuple(float(limit) for limit in range(1, 31))

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class DrivingRun:
    """A run, before it becomes a report.

    Attributes:
        dense: all methods dense.
        keypoints: asked at SIFT's keypoints, hand-made features described there only.
        baselines: figures of `dense` by camera baseline.
        classes: figures of `dense` by class of thing; None without masks.
        unmasked: pairs that have no mask.
    """

    dense: PointsRun
    keypoints: PointsRun
    baselines: Scores
    classes: Scores | None
    unmasked: int


def run_driving(
    benchmark: Benchmark,
    folder: Path,
    loaded: LoadedMethods,
    settings: RunSettings,
    masks: Path | None = None,
    progress: Progress | None = None,
    earlier: Earlier | None = None,
) -> DrivingRun:
    """Predicts what is not yet cached, for both kinds of questions, and scores everything.

    Args:
        benchmark: of `DRIVING_BENCHMARKS`.
        folder: of its data.
        loaded: of `load_methods`.
        settings: the user's choices.
        masks: folder of classes, ``SEQUENCE/FRAME.png``: 8-bit grey images of numbers.
        progress: called after each pair, of both kinds together.
        earlier: a report to which this run is to be added (`driving_report.add_earlier`).

    Raises:
        DataError: the folder is not that data set, there is nothing to measure, or the earlier report is of
            another run.
    """
    if settings.max_side is not None:
        raise DataError("--max-side: keypoints and masks are those of images at their own size; leave it out")
    if earlier is not None:
        earlier.get("seconds_at_keypoints")  # which older reports lack: to be told before the work
        had_masks = any(row.get("table") == "class" for row in earlier.get("figures"))
        words = {True: "given", False: "not given"}
        earlier.compare("--class-masks", words[had_masks], words[masks is not None])

    def count(part: int) -> Progress | None:
        if progress is None:
            return None
        return lambda done, total: progress(part * total + done, 2 * total)

    dense = run_benchmark(benchmark, folder, loaded, settings, count(0), earlier)
    at_keypoints = replace(loaded, methods=move_to_keypoints(loaded.methods))
    keypoints = run_benchmark(_ask_keypoints(benchmark), folder, at_keypoints, settings, count(1))
    metres = measure_baselines(dense, settings.cache)
    by_baseline = score_predictions(benchmark, group_by_baseline(dense.predictions, metres), settings.seed)
    if masks is None:
        return DrivingRun(dense, keypoints, by_baseline, None, 0)
    found, unmasked = group_by_class(dense.predictions, masks)
    return DrivingRun(
        dense, keypoints, by_baseline, score_predictions(benchmark, found, settings.seed), unmasked
    )


def _ask_keypoints(benchmark: Benchmark) -> Benchmark:
    return replace(
        benchmark,
        name=f"{benchmark.name}-keypoints",
        truth=f"keypoints of OpenCV's SIFT in image 0 at most {MAX_DISTANCE:g} px from one of the points "
        "above, whose displacement they share",
        open=partial(_open_at_keypoints, benchmark.open),
    )


def _open_at_keypoints(opener: Callable[[Path], list[Entry]], folder: Path) -> list[Entry]:
    asked: dict[int, KeypointQuestions] = {}
    return [
        replace(entry, data=asked.setdefault(id(entry.data), KeypointQuestions(entry.data)))
        for entry in opener(folder)
    ]


def measure_baselines(run: PointsRun, cache: Path) -> list[float]:
    """Metres that the camera moved in each pair of a run; kept, since scans may have to be aligned for it."""
    entries = [pair.entry for pair in run.predictions.pairs]
    files = [(entry.name, entry.data.pair_files(entry.index)) for entry in entries]
    store = RecordStore(
        cache / run.benchmark.name, "baselines", {"version": VERSION, "data": digest_data(files)}
    )
    try:
        for number, entry in enumerate(entries):
            if number not in store:
                if not isinstance(entry.data, PosedData):
                    raise TypeError(f"{entry.name} is of a set without camera poses")
                _, t = entry.data.relative_pose(entry.index)
                store.put(number, {"metres": np.array(np.linalg.norm(t), np.float64)})
    finally:
        store.flush()
    return [float(store.get(number)["metres"]) for number in range(len(entries))]


def name_baseline(metres: float) -> str:
    """The group of a baseline."""
    place = int(np.searchsorted(BASELINES, metres, side="right"))
    low, high = BASELINES[place - 1], BASELINES[place]
    return f"{low:g} to {high:g} m" if np.isfinite(high) else f"over {low:g} m"


def group_by_baseline(predictions: Predictions, metres: Sequence[float]) -> Predictions:
    """The same predictions, grouped by how far the camera moved, shortest first."""
    order = np.argsort(metres, kind="stable")
    pairs = [_put(predictions.pairs[row], name_baseline(metres[row])) for row in order]
    return replace(predictions, pairs=tuple(pairs))


def _put(pair: PairPrediction, group: str) -> PairPrediction:
    return replace(pair, entry=replace(pair.entry, group=group))


def group_by_class(predictions: Predictions, masks: Path) -> tuple[Predictions, int]:
    """The points of each class as pairs of their own, by number of the class; and how many pairs lack a mask.

    Args:
        predictions: of images at their own size.
        masks: folder; a pair ``SEQUENCE/FIRST-SECOND`` has the mask ``SEQUENCE/FIRST.png``.

    Raises:
        DataError: no pair has a mask, or one is no 8-bit grey image of its image's size.
    """
    if not masks.is_dir():
        raise DataError(f"no folder {masks}: --class-masks expects one with SEQUENCE/FRAME.png")
    names = _read_names(masks / CLASS_LIST)
    parts: dict[int, list[PairPrediction]] = {}
    unmasked = 0
    for pair in predictions.pairs:
        sequence, _, frames = pair.entry.name.rpartition("/")
        path = masks / sequence / f"{frames.partition('-')[0]}.png"
        if not path.is_file():
            unmasked += 1
            continue
        labels = read_labels(path, pair)
        for label in np.unique(labels).tolist():
            part = _select(pair, labels == label)
            parts.setdefault(label, []).append(_put(part, names.get(label, f"class {label}")))
    if not parts:
        example = predictions.pairs[0].entry.name.partition("-")[0]
        raise DataError(f"{masks} has no mask of any pair; expected files such as {masks / example}.png")
    pairs = [pair for label in sorted(parts) for pair in parts[label]]
    return replace(predictions, pairs=tuple(pairs)), unmasked


def read_labels(path: Path, pair: PairPrediction) -> Labels:
    """The classes (N,) of the points of a pair's image 0, by the nearest pixel of a mask."""
    mask = read_image(path)
    image = read_image(pair.entry.data.image_paths(pair.entry.index)[0])
    if mask.shape != image.shape or not (mask[0] == mask[1]).all() or not (mask[0] == mask[2]).all():
        raise DataError(
            f"{path} must be an 8-bit grey image of {image.shape[-1]} × {image.shape[-2]} (width × height) "
            f"whose values are classes, got {mask.shape[-1]} × {mask.shape[-2]}"
        )
    numbers: Labels = (255 * mask[0]).round().numpy().astype(np.int64)
    columns, rows = np.round(pair.points0).astype(np.int64).T
    height, width = numbers.shape
    labels: Labels = numbers[rows.clip(0, height - 1), columns.clip(0, width - 1)]
    return labels


def _select(pair: PairPrediction, is_kept: NDArray[np.bool_]) -> PairPrediction:
    return replace(
        pair,
        points0=pair.points0[is_kept],
        points1=pair.points1[is_kept],
        found=tuple(found[is_kept] for found in pair.found),
    )


def _read_names(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    names: dict[int, str] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.reader(file), start=1):
                if len(row) != 2 or not row[0].strip().isdecimal() or row[1].strip() in ("", ALL):
                    raise DataError(f"{path}:{line}: expected NUMBER,NAME, got {','.join(row)[:80]!r}")
                names[int(row[0])] = row[1].strip()[:40]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no list of NUMBER,NAME: {error}") from error
    return names


def _open_raw(folder: Path) -> list[Entry]:
    """Drives of the split test where there are any, else all drives."""
    options: dict[str, Option] = {"max_gap": _MAX_GAP}
    try:
        data = open_data("kitti-raw", folder, "test", options)
    except DataError as error:
        if "is empty" not in str(error):
            raise
        data = open_data("kitti-raw", folder, "all", options)
    return _enter(data)


def _open_odometry(frames: str, folder: Path) -> list[Entry]:
    """Frames of sequence 05 that have a right image, from which depth follows."""
    options: dict[str, Option] = {"frames": frames, "max_gap": _MAX_GAP}
    return _enter(open_data("kitti-odometry", folder, "train", options))


def _enter(data: object) -> list[Entry]:
    if not isinstance(data, PosedData):
        raise TypeError("expected a set with camera poses")
    rows = draw_rows(len(data), _MAX_PAIRS) if len(data) > _MAX_PAIRS else None
    return enter(data, lambda _: ALL, lambda name: name.split("/")[0], rows=rows)


def _make(name: str, title: str, truth: str, opener: Callable[[Path], list[Entry]]) -> Benchmark:
    return Benchmark(
        name=name,
        title=f"{title}, pairs 1 to {_MAX_GAP} frames apart, {_MAX_PAIRS:,} drawn by seed 0 where there are "
        "more",
        truth=truth,
        open=opener,
        points=1000,
        limits=LIMITS,
        curve_limits=_CURVE,
    )


_LIST = (
    _make(
        "kitti-raw-points",
        "KITTI raw, test drives where there are any, else all",
        "laser points of image 0 that image 1 shows, none on moving things",
        _open_raw,
    ),
    _make(
        "kitti-odometry-points",
        "KITTI odometry, sequence 05, frames 1500 to 1539",
        "pixels of image 0 whose depth stereo matching tells and that image 1 shows",
        partial(_open_odometry, "1500-1539"),
    ),
)

DRIVING_BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _LIST}
"""Every benchmark of points in driving scenes by name."""
