"""How right predicted points are: pure functions of arrays, without state.

PCK, the percentage of correct keypoints, is the share of points found within a limit of the truth, here in
[0, 1]. A limit is a number of pixels, or alpha times a length L of the pair. A point that was not found is
wrong at every limit. Shares can be averaged over points, over pairs or over classes, and papers differ in
which they print: all three are here, each under its name.

Where a method chooses its own points, its matches are judged by `mean_matching_accuracy`, `corner_error`,
`coverage` and `repeatability` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

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


def accuracy_curve(errors: ArrayLike, limits: ArrayLike) -> Shares:
    """Share of the errors (N,) within each of the limits (T,); NaN where there are no errors."""
    values = np.asarray(errors, np.float64)
    counts = count_within(values, limits)
    return counts / len(values) if len(values) else np.full(counts.shape, np.nan)


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


def end_point_error(errors: ArrayLike) -> float:
    """The mean of the errors (N,) of points that were found; NaN where none was."""
    values = np.asarray(errors, np.float64)
    found = values[np.isfinite(values)]
    return float(found.mean()) if len(found) else float("nan")


def share_found(errors: ArrayLike) -> float:
    """The share of points that have an answer at all, right or wrong; NaN where none was asked."""
    values = np.asarray(errors, np.float64)
    return float(np.isfinite(values).mean()) if len(values) else float("nan")


def mean_matching_accuracy(errors: Sequence[ArrayLike], limits: ArrayLike) -> Shares:
    """MMA: the share of a pair's matches that are right at each limit, mean over pairs.

    As Dusmanu et al. (D2-Net, 2019) count, a pair without matches has none right, so that a method cannot
    gain by staying silent.

    Args:
        errors: of the matches of each pair, (N,) each.
        limits: (T,) pixels.

    Returns:
        (T,) shares in [0, 1]; NaN where there are no pairs.
    """
    if not len(errors):
        return np.full(np.shape(limits), np.nan)
    shares = [np.nan_to_num(accuracy_curve(row, limits)) for row in errors]
    return np.asarray(np.mean(shares, axis=0), np.float64)


def corner_error(estimated_0to1: ArrayLike | None, true_0to1: ArrayLike, image0_hw: tuple[int, int]) -> float:
    """How far a homography moves the corners of image 0 from where they belong in image 1, mean of four.

    Args:
        estimated_0to1: (3, 3); None where none could be estimated.
        true_0to1: (3, 3).
        image0_hw: (H, W) of image 0.

    Returns:
        Pixels of image 1; infinite where there is no homography, or it sends a corner to infinity.
    """
    if estimated_0to1 is None:
        return float("inf")
    height, width = image0_hw
    corners = np.array([[0, 0, 1], [width - 1, 0, 1], [0, height - 1, 1], [width - 1, height - 1, 1]])
    places = []
    for matrix in (estimated_0to1, true_0to1):
        moved = corners @ np.asarray(matrix, np.float64).T
        if not np.isfinite(moved).all() or (np.abs(moved[:, 2]) < 1e-12).any():
            return float("inf")
        places.append(moved[:, :2] / moved[:, 2:])
    return float(np.linalg.norm(places[0] - places[1], axis=1).mean())


def area_under_error_curve(errors: ArrayLike, limits: ArrayLike) -> Shares:
    """AUC: the mean height of the curve "share of pairs within an error", from 0 to each limit.

    The curve joins the points (error of rank k, k / P) by straight lines and goes on level behind the last
    one, as Sarlin et al. (SuperGlue, 2020) and those who compare with them compute it.

    Args:
        errors: (P,) of each pair, infinite for failures.
        limits: (T,) above 0.

    Returns:
        (T,) in [0, 1]; NaN where there are no pairs.
    """
    ordered = np.sort(np.asarray(errors, np.float64))
    if not len(ordered):
        return np.full(np.shape(limits), np.nan)
    ranks = np.arange(len(ordered) + 1) / len(ordered)
    areas = []
    for limit in np.asarray(limits, np.float64).ravel():
        count = int(np.searchsorted(ordered, limit, side="right"))
        places = np.concatenate([[0.0], ordered[:count], [limit]])
        heights = np.concatenate([ranks[: count + 1], ranks[count : count + 1]])
        trapezia = (heights[1:] + heights[:-1]) / 2 * np.diff(places)
        areas.append(float(trapezia.sum()) / limit)
    return np.array(areas)


def coverage(points: ArrayLike, image_hw: tuple[int, int], radius: float) -> float:
    """Share of an image's pixels that have a point within a radius.

    Args:
        points: (N, 2) pixels.
        image_hw: (H, W).
        radius: pixels.
    """
    spots = np.asarray(points, np.float64).reshape(-1, 2)
    if not len(spots):
        return 0.0
    rows, columns = np.mgrid[: image_hw[0], : image_hw[1]]
    pixels = np.stack([columns.ravel(), rows.ravel()], axis=-1)
    # scipy leaves a point at exactly the bound out.
    bound = np.nextafter(radius, np.inf)
    distances, _ = cKDTree(spots).query(pixels, distance_upper_bound=bound)
    return float(np.isfinite(distances).mean())


def repeatability(
    keypoints0: ArrayLike, targets1: ArrayLike, keypoints1: ArrayLike, targets0: ArrayLike, limit: float
) -> float:
    """Share of the keypoints seen in both images that were found in both, counted from both sides.

    Args:
        keypoints0: (N, 2) keypoints of image 0.
        targets1: (N, 2) where they truly lie in image 1; NaN where they are not seen there.
        keypoints1: (M, 2) keypoints of image 1.
        targets0: (M, 2) where those truly lie in image 0; NaN where they are not seen there.
        limit: pixels within which a keypoint of the other image must lie.

    Returns:
        In [0, 1]; NaN where no keypoint is seen in both images.
    """
    distances = []
    for targets, others in ((targets1, keypoints1), (targets0, keypoints0)):
        wanted = np.asarray(targets, np.float64).reshape(-1, 2)
        wanted = wanted[np.isfinite(wanted).all(axis=1)]
        spots = np.asarray(others, np.float64).reshape(-1, 2)
        near = cKDTree(spots).query(wanted)[0] if len(spots) else np.full(len(wanted), np.inf)
        distances.append(near)
    return float(accuracy_curve(np.concatenate(distances), [limit])[0])


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
