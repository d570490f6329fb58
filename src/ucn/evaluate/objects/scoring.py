"""Stage 2 of `objects`: how much of an object lands on the other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ucn.evaluate.core.cache import Record
from ucn.evaluate.core.metrics import bootstrap_mean
from ucn.evaluate.objects.pairs import ObjectPair

MEAN = "mean over classes"
"""The class of the row that averages all classes of a data set."""


@dataclass(frozen=True)
class ObjectScore:
    """Means of a method over the pairs of a class, or over the classes of a data set.

    Attributes:
        method: name.
        group: data set.
        category: class, or `MEAN`.
        pairs: how many.
        points: share of the points of object 0 whose matches lie on object 1.
        points_low: lower bound of its interval.
        points_high: upper bound.
        heads: pairs with points in a head box.
        head: share of these points whose matches lie in the other head box; NaN without any.
        head_low: lower bound of its interval.
        head_high: upper bound.
        iou: intersection over union of the mask that the flow carries over and the mask of image 1.
        iou_low: lower bound of its interval.
        iou_high: upper bound.
    """

    method: str
    group: str
    category: str
    pairs: int
    points: float
    points_low: float
    points_high: float
    heads: int
    head: float
    head_low: float
    head_high: float
    iou: float
    iou_low: float
    iou_high: float


def read_mask_at(mask: NDArray[np.bool_], points: ArrayLike) -> NDArray[np.bool_]:
    """Whether points (N, 2) lie on pixels of a mask (H, W); those outside the image or NaN do not."""
    columns, rows = np.floor(np.asarray(points, np.float64).reshape(-1, 2) + 0.5).T
    height, width = mask.shape
    is_inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    found = np.zeros(len(columns), np.bool_)
    found[is_inside] = mask[rows[is_inside].astype(np.int64), columns[is_inside].astype(np.int64)]
    return found


def is_in_box(points: ArrayLike, box: ArrayLike) -> NDArray[np.bool_]:
    """Whether points (N, 2) lie in a box x0, y0, x1, y1, its border included; NaN does not."""
    places, (x0, y0, x1, y1) = np.asarray(points, np.float64).reshape(-1, 2), np.asarray(box, np.float64)
    x, y = places.T
    return np.asarray((x >= x0) & (x <= x1) & (y >= y0) & (y <= y1))


def intersection_over_union(mask: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """IoU of two masks of one shape; 0 where both are empty."""
    return float((mask & other).sum() / max(1, (mask | other).sum()))


def score_pair(truth: Record, found: Record) -> tuple[float, float, float]:
    """The three measures of a pair, in [0, 1].

    Args:
        truth: masks, points and head boxes, as stage 1 keeps them.
        found: the matches and the carried mask of a method.

    Returns:
        Share of points on the object, share of points in the head box (NaN without any), IoU.
    """
    mask1, box1 = truth["mask1"], truth["head1"]
    is_found, is_head = read_mask_at(mask1, found["points1"]), is_in_box(found["head_points1"], box1)
    head = float(is_head.mean()) if len(is_head) else float("nan")
    return float(is_found.mean()), head, intersection_over_union(found["carried"], mask1)


def score_objects(
    method: str, pairs: Sequence[ObjectPair], measures: Sequence[tuple[float, float, float]], seed: int
) -> list[ObjectScore]:
    """Scores of each class of each data set, and the mean of its classes after them.

    Args:
        method: its name.
        pairs: what was evaluated.
        measures: of each pair, by `score_pair`.
        seed: of the bootstrap.
    """
    scores = []
    for group in dict.fromkeys(pair.group for pair in pairs):
        rows = [row for row, pair in enumerate(pairs) if pair.group == group]
        names = np.array([pairs[row].category for row in rows])
        values = np.array([measures[row] for row in rows], np.float64)
        for category in (*dict.fromkeys(names.tolist()), MEAN):
            own = np.ones(len(rows), np.bool_) if category == MEAN else names == category
            points, head, iou = (_average(column[own], names[own], seed) for column in values.T)
            heads = int(np.isfinite(values[own, 1]).sum())
            scores.append(ObjectScore(method, group, category, int(own.sum()), *points, heads, *head, *iou))
    return scores


def _average(values: NDArray[np.float64], names: NDArray[np.str_], seed: int) -> tuple[float, float, float]:
    """The mean over classes of the means over pairs, and its interval; pairs of NaN do not count."""
    is_used = ~np.isnan(values)
    values, names = values[is_used], names[is_used]
    means = [values[names == name].mean() for name in dict.fromkeys(names.tolist())]
    mean = float(np.mean(means)) if means else float("nan")
    return mean, *bootstrap_mean(values, torch.Generator().manual_seed(seed), names.tolist())
