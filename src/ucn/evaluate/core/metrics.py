"""Metrics of predicted points and matches: pure functions of arrays.

PCK, the percentage of correct keypoints, is the share of points found within a limit of the ground truth,
here in [0, 1]. A limit is a number of pixels, or alpha times a length L of the pair. A point that was not
found is wrong at every limit. Papers average over points, over pairs or over classes: all three are here.

Methods that choose their own matches are scored by `mean_matching_accuracy`, `corner_error`, `coverage` and
`repeatability` instead.
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

LEVEL, RESAMPLES = 0.95, 1000
"""Confidence level and number of resamplings of bootstrap intervals."""

Average = Literal["point", "pair", "class"]
"""What a share is averaged over."""


def point_errors(predicted: ArrayLike, truth: ArrayLike) -> Shares:
    """End-point errors: distances of predicted points from the ground truth.

    Args:
        predicted: (N, 2) pixels; NaN where nothing was found.
        truth: (N, 2) ground-truth pixels of the same image, finite.

    Returns:
        (N,) pixels; infinite where nothing was found.

    Raises:
        ValueError: the shapes differ, or a ground-truth point is not finite.
    """
    found, expected = np.asarray(predicted, np.float64), np.asarray(truth, np.float64)
    if found.ndim != 2 or found.shape[1] != 2 or found.shape != expected.shape:
        raise ValueError(f"predicted, truth must both be (N, 2), got {found.shape} and {expected.shape}")
    if not np.isfinite(expected).all():
        raise ValueError("ground-truth points must be finite")
    errors: Shares = np.hypot(found[:, 0] - expected[:, 0], found[:, 1] - expected[:, 1])
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
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Shares:
    """Bootstrap confidence interval of a mean over points.

    Pairs, not points, are resampled with replacement, since the errors of a pair are correlated.

    Args:
        correct: (P, T) as in `average`.
        totals: (P,) as in `average`.
        generator: of the resampling, on the CPU.
        level: confidence level, in (0, 1).
        resamples: number of resamplings.

    Returns:
        (T, 2) lower and upper bounds; NaN where there are no points.
    """
    right, totals = _check_counts(correct, totals)
    is_used = totals > 0
    hits, points = right[is_used].astype(np.float64), totals[is_used].astype(np.float64)
    if not len(points):
        return np.full((right.shape[1], 2), np.nan)
    sampled = torch.randint(len(points), (resamples, len(points)), generator=generator).numpy()
    # How often each pair was sampled, so that one product gives all resampled sums.
    times = np.stack([np.bincount(row, minlength=len(points)) for row in sampled])
    shares = (times @ hits) / (times @ points)[:, None]
    return _find_bounds(shares, level)


def bootstrap_mean(
    values: ArrayLike,
    generator: torch.Generator,
    groups: Sequence[str] = (),
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Bootstrap confidence interval of a mean over pairs, or over groups of the means over their pairs.

    Args:
        values: (P,) one a pair.
        generator: of the resampling, on the CPU.
        groups: (P,) the group of each pair; pairs are resampled within their group. Empty for one group.
        level: confidence level, in (0, 1).
        resamples: number of resamplings.

    Returns:
        Lower and upper bound; NaN where there are no pairs.
    """
    numbers = np.asarray(values, np.float64)
    if not len(numbers):
        return float("nan"), float("nan")
    names = np.asarray(groups or [""] * len(numbers))
    means = []
    for name in dict.fromkeys(names.tolist()):
        own = numbers[names == name]
        sampled = torch.randint(len(own), (resamples, len(own)), generator=generator).numpy()
        means.append(own[sampled].mean(axis=1))
    low, high = _find_bounds(np.mean(means, axis=0)[:, None], level)[0]
    return float(low), float(high)


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
    """The share of points with a prediction, right or wrong; NaN where there are no points."""
    values = np.asarray(errors, np.float64)
    return float(np.isfinite(values).mean()) if len(values) else float("nan")


def mean_matching_accuracy(errors: Sequence[ArrayLike], limits: ArrayLike) -> Shares:
    """MMA: the share of a pair's matches that are correct at each limit, mean over pairs.

    As in D2-Net (Dusmanu et al., 2019), a pair without matches counts 0, so that a method cannot gain by
    matching nothing.

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
    """Mean distance between the corners of image 0 warped by an estimated and by the true homography.

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

    The curve joins the points (error of rank k, k / P) by straight lines and is constant behind the last
    one, as in SuperGlue (Sarlin et al., 2020).

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


def bootstrap_auc_difference(
    errors: ArrayLike,
    others: ArrayLike,
    limits: ArrayLike,
    clusters: Sequence[object],
    generator: torch.Generator,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Shares:
    """Paired bootstrap interval of the difference of two methods' areas under the error curve.

    Clusters of pairs are resampled with replacement, the same ones for both methods, since the errors of
    pairs that share an image are correlated.

    Args:
        errors: (P,) as in `area_under_error_curve`, of the first method.
        others: (P,) of the second method, whose area is subtracted.
        limits: (T,) above 0.
        clusters: P names; pairs of one name are sampled together.
        generator: of the resampling, on the CPU.
        level: confidence level, in (0, 1).
        resamples: number of resamplings.

    Returns:
        (T, 2) lower and upper bounds; NaN where there are no pairs.

    Raises:
        ValueError: the numbers of pairs differ.
    """
    both = [np.asarray(values, np.float64) for values in (errors, others)]
    if not len(both[0]) == len(both[1]) == len(clusters):
        counts = f"{len(both[0])}, {len(both[1])} and {len(clusters)}"
        raise ValueError(f"errors, others and clusters must be of the same pairs, got {counts}")
    rows: dict[object, list[int]] = {}
    for row, name in enumerate(clusters):
        rows.setdefault(name, []).append(row)
    members = [np.array(own) for own in rows.values()]
    if not members:
        return np.full((np.size(limits), 2), np.nan)
    differences = []
    for sampled in torch.randint(len(members), (resamples, len(members)), generator=generator).tolist():
        chosen = np.concatenate([members[cluster] for cluster in sampled])
        first, second = (area_under_error_curve(values[chosen], limits) for values in both)
        differences.append(first - second)
    return _find_bounds(differences, level)


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
    """Share of the keypoints visible in both images that were detected in both, in both directions.

    Args:
        keypoints0: (N, 2) keypoints of image 0.
        targets1: (N, 2) their true positions in image 1; NaN where not visible there.
        keypoints1: (M, 2) keypoints of image 1.
        targets0: (M, 2) their true positions in image 0; NaN where not visible there.
        limit: pixels within which a keypoint of the other image must lie.

    Returns:
        In [0, 1]; NaN where no keypoint is visible in both images.
    """
    distances = []
    for targets, others in ((targets1, keypoints1), (targets0, keypoints0)):
        expected = np.asarray(targets, np.float64).reshape(-1, 2)
        expected = expected[np.isfinite(expected).all(axis=1)]
        found = np.asarray(others, np.float64).reshape(-1, 2)
        near = cKDTree(found).query(expected)[0] if len(found) else np.full(len(expected), np.inf)
        distances.append(near)
    return float(accuracy_curve(np.concatenate(distances), [limit])[0])


def _find_bounds(resampled: ArrayLike, level: float) -> Shares:
    """Percentiles (T, 2) that hold the central part of resampled values (R, T)."""
    tail = 50 * (1 - level)
    return np.asarray(np.percentile(np.asarray(resampled), [tail, 100 - tail], axis=0).T, np.float64)


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
