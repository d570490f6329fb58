"""Predictions of driving scenes, grouped by camera baseline or by semantic class."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.io import read_image
from ucn.data.sets.posed.posed_pairs import PosedData
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import ALL, BenchmarkPair, digest_pairs
from ucn.evaluate.core.cache import PredictionCache, Record
from ucn.evaluate.core.predictions import Task, predict_missing
from ucn.evaluate.points.predictions import PairPrediction, Predictions
from ucn.files.reading import read_text

VERSION = 1
"""Part of every key: raise it where code changes what is kept."""
BASELINES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, float("inf"))
"""Metres between the cameras: bounds of the groups."""
CLASS_LIST = "classes.csv"
"""Lines NUMBER,NAME in the folder of masks; without it classes are named by their numbers."""

Labels = NDArray[np.int64]


def measure_baselines(pairs: Sequence[BenchmarkPair], folder: Path) -> list[float]:
    """Metres between the cameras of each pair; kept in a folder, since laser scans may have to be aligned."""
    cache = PredictionCache(folder, "baselines", {"version": VERSION, "data": digest_pairs(pairs)})
    rows = range(len(pairs))
    predict_missing(partial(_measure_baseline, pairs), rows, [cache])
    return [float(cache.get(row)["metres"]) for row in rows]


def _measure_baseline(pairs: Sequence[BenchmarkPair], task: Task) -> list[Record]:
    pair = pairs[task.pair]
    if not isinstance(pair.data, PosedData):
        raise TypeError(f"{pair.name} is of a data set without camera poses")
    _, t = pair.data.relative_pose(pair.index)
    return [{"metres": np.array(np.linalg.norm(t), np.float64)}]


def name_baseline(metres: float) -> str:
    """The group of a baseline."""
    place = int(np.searchsorted(BASELINES, metres, side="right"))
    low, high = BASELINES[place - 1], BASELINES[place]
    return f"{low:g} to {high:g} m" if np.isfinite(high) else f"over {low:g} m"


def group_by_baseline(predictions: Predictions, metres: Sequence[float]) -> Predictions:
    """The same predictions, grouped by camera baseline, shortest first."""
    order = np.argsort(metres, kind="stable")
    pairs = [_set_group(predictions.pairs[row], name_baseline(metres[row])) for row in order]
    return replace(predictions, pairs=tuple(pairs))


def _set_group(pair: PairPrediction, group: str) -> PairPrediction:
    return replace(pair, pair=replace(pair.pair, group=group))


def group_by_class(predictions: Predictions, masks: Path) -> tuple[Predictions, int]:
    """The points of each class as pairs of their own, by class number; and how many pairs lack a mask.

    Args:
        predictions: of images at their own size.
        masks: folder; a pair ``SEQUENCE/FIRST-SECOND`` has the mask ``SEQUENCE/FIRST.png``.

    Raises:
        DataError: no pair has a mask, or one is not an 8-bit grey image of its image's size.
    """
    if not masks.is_dir():
        raise DataError(f"no folder {masks}: class masks must be in a folder, as SEQUENCE/FRAME.png")
    names = _read_names(masks / CLASS_LIST)
    parts: dict[int, list[PairPrediction]] = {}
    unmasked = 0
    for pair in predictions.pairs:
        sequence, _, frames = pair.pair.name.rpartition("/")
        path = masks / sequence / f"{frames.partition('-')[0]}.png"
        if not path.is_file():
            unmasked += 1
            continue
        labels = read_labels(path, pair)
        for label in np.unique(labels).tolist():
            part = _select(pair, labels == label)
            parts.setdefault(label, []).append(_set_group(part, names.get(label, f"class {label}")))
    if not parts:
        example = predictions.pairs[0].pair.name.partition("-")[0]
        raise DataError(f"{masks} has no mask of any pair; expected files such as {masks / example}.png")
    pairs = [pair for label in sorted(parts) for pair in parts[label]]
    return replace(predictions, pairs=tuple(pairs)), unmasked


def read_labels(path: Path, pair: PairPrediction) -> Labels:
    """The classes (N,) of the points of a pair's image 0, by the nearest pixel of a mask."""
    mask = read_image(path)
    image = read_image(pair.pair.image_paths()[0])
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
        predicted=tuple(points[is_kept] for points in pair.predicted),
    )


def _read_names(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    names: dict[int, str] = {}
    try:
        with io.StringIO(read_text(path, "list")) as file:
            for line, row in enumerate(csv.reader(file), start=1):
                if len(row) != 2 or not row[0].strip().isdecimal() or row[1].strip() in ("", ALL):
                    raise DataError(f"{path}:{line}: expected NUMBER,NAME, got {','.join(row)[:80]!r}")
                names[int(row[0])] = row[1].strip()[:40]
    except csv.Error as error:
        raise DataError(f"{path} must be a list of NUMBER,NAME: {error}") from error
    return names
