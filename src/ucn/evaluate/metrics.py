"""How right predicted points are: pure functions of arrays, without state.

PCK, the percentage of correct keypoints, is the share of points found within a limit of the truth, here in
[0, 1]. A limit is a number of pixels, or alpha times a length L of the pair. A point that was not found is
wrong at every limit. Shares can be averaged over points, over pairs or over classes, and papers differ in
which they print: all three are here, each under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]
Shares = NDArray[np.float64]

Average = Literal["point", "pair", "class"]
"""Over what a share is averaged: all points alike, all pairs alike, or all classes alike."""

LengthKind = Literal["side", "diagonal", "box"]
"""What L of PCK@alpha is: the longest side or the diagonal of the image, or the longest side of the box round
the points."""


def point_errors(predicted: ArrayLike, truth: ArrayLike) -> Shares:
    """Distances of predicted points from true ones.

    Args:
        predicted: (N, 2) pixels; NaN where nothing was found.
        truth: (N, 2) pixels of the same image, finite.

    Returns:
        (N,) pixels; infinite where nothing was found.

    Raises:
        ValueError: the shapes do not fit, or a true point is not finite.
    """
    found, wanted = np.asarray(predicted, np.float64), np.asarray(truth, np.float64)
    if found.ndim != 2 or found.shape[1] != 2 or found.shape != wanted.shape:
        raise ValueError(f"predicted, truth must both be (N, 2), got {found.shape} and {wanted.shape}")
    if not np.isfinite(wanted).all():
        raise ValueError("true points must be finite")
    errors: Shares = np.hypot(found[:, 0] - wanted[:, 0], found[:, 1] - wanted[:, 1])
    return np.where(np.isnan(errors), np.inf, errors)


def count_within(errors: ArrayLike, limits: ArrayLike) -> Counts:
    """How many of the errors (N,) are at most each of the limits (T,)."""
    ordered = np.sort(np.asarray(errors, np.float64))
    counts: Counts = np.searchsorted(ordered, np.asarray(limits, np.float64), side="right").astype(np.int64)
    return counts


def measure_length(kind: LengthKind, image_hw: tuple[int, int], points: ArrayLike = ()) -> float:
    """The length L of PCK@alpha, of image 1: the one in which points are searched.

    Args:
        kind: which length.
        image_hw: (H, W) of image 1.
        points: (N, 2) true points in image 1, for the box; without any its side is 0.

    Raises:
        ValueError: the kind is unknown.
    """
    height, width = image_hw
    if kind == "side":
        return float(max(height, width))
    if kind == "diagonal":
        return float(np.hypot(height, width))
    if kind == "box":
        spots = np.asarray(points, np.float64).reshape(-1, 2)
        return float(np.ptp(spots, axis=0).max()) if len(spots) else 0.0
    raise ValueError(f"length must be side, diagonal or box, got '{kind}'")


def average(
    correct: ArrayLike, totals: ArrayLike, classes: Sequence[str] = (), over: Average = "point"
) -> Shares:
    """The share of correct points at each limit.

    Args:
        correct: (P, T) correct points of each pair at each limit.
        totals: (P,) points of each pair; pairs without any do not count.
        classes: (P,) the class of each pair; needed for the mean over classes only.
        over: what the mean is taken over. A class's own share is that of all its points.

    Returns:
        (T,) shares in [0, 1]; NaN where there are no points at all.

    Raises:
        ValueError: the shapes do not fit.
    """
    right, totals = _check_counts(correct, totals)
    if over == "class":
        if len(classes) != len(totals):
            raise ValueError(f"classes must be {len(totals)}, one a pair, got {len(classes)}")
        names, rows = np.unique(np.asarray(classes, dtype=str), return_inverse=True)
        right = _sum_rows(right, rows, len(names))
        totals = _sum_rows(totals[:, None], rows, len(names))[:, 0]
    is_used = totals > 0
    if not is_used.any():
        return np.full(right.shape[1], np.nan)
    if over == "point":
        return np.asarray(right.sum(axis=0) / totals.sum(), np.float64)
    return np.asarray((right[is_used] / totals[is_used, None]).mean(axis=0), np.float64)


def bootstrap_interval(
    correct: ArrayLike,
    totals: ArrayLike,
    generator: torch.Generator,
    *,
    over: Literal["point", "pair"] = "point",
    level: float = 0.95,
    resamples: int = 1000,
) -> Shares:
    """Between which bounds a share would lie had other pairs of the same kind been drawn.

    Pairs, not points, are drawn again with replacement, since the points of a pair succeed or fail together.

    Args:
        correct: (P, T) as in `average`.
        totals: (P,) as in `average`.
        generator: source of the draws, on the CPU.
        over: what the mean is taken over.
        level: share of the resamples between the bounds, in (0, 1).
        resamples: how often all pairs are drawn again.

    Returns:
        (T, 2) lower and upper bounds; NaN where there are no points.
    """
    right, totals = _check_counts(correct, totals)
    is_used = totals > 0
    right, totals = right[is_used], totals[is_used]
    if not len(totals):
        return np.full((right.shape[1], 2), np.nan)
    weights = np.ones(len(totals)) if over == "pair" else totals.astype(np.float64)
    sums = right / totals[:, None] * weights[:, None]
    drawn = torch.randint(len(totals), (resamples, len(totals)), generator=generator).numpy()
    # How often each pair was drawn, so that one product gives all resampled sums.
    times = np.stack([np.bincount(row, minlength=len(totals)) for row in drawn])
    shares = (times @ sums) / (times @ weights)[:, None]
    tail = 50 * (1 - level)
    return np.asarray(np.percentile(shares, [tail, 100 - tail], axis=0).T, np.float64)


def median_error(errors: ArrayLike) -> float:
    """The median of errors (N,); NaN where there are none, infinite where most points were not found."""
    values = np.asarray(errors, np.float64)
    if not len(values):
        return float("nan")
    # numpy's own median would subtract infinities.
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    return float(low) if low == high else float((low + high) / 2)


def _check_counts(correct: ArrayLike, totals: ArrayLike) -> tuple[Counts, Counts]:
    right, all_points = np.asarray(correct, np.int64), np.asarray(totals, np.int64)
    if right.ndim != 2 or all_points.shape != right.shape[:1]:
        raise ValueError(f"correct must be (P, T) and totals (P,), got {right.shape} and {all_points.shape}")
    return right, all_points


def _sum_rows(values: NDArray[Any], rows: NDArray[Any], count: int) -> Counts:
    """Sums of the rows (P, T) that belong together, (count, T)."""
    sums = np.zeros((count, values.shape[1]), np.int64)
    np.add.at(sums, rows, values)
    return sums
