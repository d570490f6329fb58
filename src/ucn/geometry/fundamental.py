"""Robust estimation of the fundamental matrix between two images, for which no intrinsics are needed.

``x1ᵀ F x0 = 0`` for every match of a rigid scene: F maps a point of image 0 to its epipolar line in image 1.
Points are pixels whose centres are at integers. Where the intrinsics are known, `ucn.geometry.pose` needs
fewer matches and gives the relative pose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from ucn.geometry.robust import (
    CONFIDENCE,
    Array,
    BoolArray,
    RobustEstimate,
    check_matches,
    import_poselib,
    measure_width,
)

DEFAULT_THRESHOLD = 1.0
"""Largest Sampson error of an inlier, in pixels."""
MIN_INLIERS = 15
"""Fewer inliers are no evidence of one scene, as for a homography."""
MAX_ITERATIONS = 20_000
"""Of RANSAC; a sample of seven inliers is found where a third of the matches are inliers."""

_SAMPLE = 7  # matches that determine F up to three solutions


@dataclass(frozen=True)
class FundamentalEstimate(RobustEstimate):
    """The fundamental matrix of two images, or the reason why there is none.

    Attributes:
        F_0to1: (3, 3) of rank 2 and norm 1, whose largest entry is positive; None where it failed.
        is_inlier: (N,) bool; all False where the estimation failed.
        failure: the reason; empty on success.
    """

    F_0to1: Array | None
    is_inlier: BoolArray
    failure: str = ""


def estimate_fundamental(
    points0: ArrayLike,
    points1: ArrayLike,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    min_inliers: int = MIN_INLIERS,
    max_iterations: int = MAX_ITERATIONS,
    seed: int = 0,
) -> FundamentalEstimate:
    """Estimates a fundamental matrix by poselib's LO-RANSAC.

    Failure is a result, not an error. Reasons are too few matches, too few inliers, no more inliers than
    wrong matches have by chance, or inliers on one line. The matches of a plane, or of a camera that only
    rotates, are inliers of many fundamental matrices: one of them is returned, whose inliers are right but
    whose epipoles mean nothing; `estimate_homography` describes such images.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1, row by row; rows that are not finite are ignored.
        threshold: largest Sampson error of an inlier, in pixels.
        min_inliers: with fewer the estimation fails; at least 8, since seven are fitted exactly.
        max_iterations: of RANSAC, at least 1.
        seed: of RANSAC, at least 0.

    Raises:
        ValueError: a shape, the threshold, `min_inliers`, `max_iterations` or the seed is wrong.
        ImportError: poselib is not installed.
    """
    pixels0, pixels1, rows = check_matches(
        points0,
        points1,
        threshold,
        min_inliers=(min_inliers, _SAMPLE + 1),
        max_iterations=(max_iterations, 1),
        seed=(seed, 0),
    )
    if len(rows) < min_inliers:
        return _fail(len(pixels0), f"{len(rows)} matches; at least {min_inliers} are needed")
    F = _find_by_poselib(pixels0[rows], pixels1[rows], threshold, max_iterations, seed)
    if F is None:
        return _fail(len(pixels0), "no fundamental matrix fits the matches")
    is_inlier = np.zeros(len(pixels0), np.bool_)
    is_inlier[rows] = sampson_errors(F, pixels0[rows], pixels1[rows]) <= threshold
    reason = _find_obstacle(pixels0[rows], pixels1[rows], is_inlier[rows], threshold, min_inliers)
    return _fail(len(pixels0), reason) if reason else FundamentalEstimate(F, is_inlier)


def sampson_errors(F_0to1: Array, points0: Array, points1: Array) -> Array:
    """Sampson errors (N,): about how far, in pixels, a match is from one that fulfils ``x1ᵀ F x0 = 0``."""
    whole0, whole1 = (np.column_stack([points, np.ones(len(points))]) for points in (points0, points1))
    lines1, lines0 = whole0 @ F_0to1.T, whole1 @ F_0to1
    squares = (lines1[:, :2] ** 2).sum(axis=1) + (lines0[:, :2] ** 2).sum(axis=1)
    errors = np.abs((whole1 * lines1).sum(axis=1))
    # Both points may be epipoles, which fulfil the equation exactly.
    return np.asarray(np.divide(errors, np.sqrt(squares), out=np.zeros(len(errors)), where=squares > 0))


def _fail(count: int, reason: str) -> FundamentalEstimate:
    return FundamentalEstimate(None, np.zeros(count, np.bool_), reason)


def _find_by_poselib(
    points0: Array, points1: Array, threshold: float, max_iterations: int, seed: int
) -> Array | None:
    poselib = import_poselib("estimating a fundamental matrix")
    if min(np.ptp(points, axis=0).max() for points in (points0, points1)) == 0:
        return None  # one place, which poselib would normalise to NaN
    options = {
        "max_epipolar_error": threshold,
        "seed": seed,
        "max_iterations": max_iterations,
        "min_iterations": min(1000, max_iterations),
        "success_prob": CONFIDENCE,
    }
    found, _ = poselib.estimate_fundamental(
        np.ascontiguousarray(points0), np.ascontiguousarray(points1), options, {}
    )
    F = np.asarray(found, np.float64)
    norm = float(np.linalg.norm(F))
    if F.shape != (3, 3) or not np.isfinite(norm) or norm == 0:
        return None
    return np.asarray(F / (norm * np.sign(F.flat[np.abs(F).argmax()])), np.float64)


def _find_obstacle(
    points0: Array, points1: Array, is_inlier: BoolArray, threshold: float, min_inliers: int
) -> str:
    """Why the inliers are no evidence of one scene; empty where they are."""
    count = int(is_inlier.sum())
    if count < min_inliers:
        return f"{count} inliers; at least {min_inliers} are needed"
    if min(measure_width(points[is_inlier]) for points in (points0, points1)) < threshold:
        return "the inliers lie on a line, which does not determine a fundamental matrix"
    if not _is_meaningful(count, points1, threshold):
        return f"{count} inliers of {len(points1)} matches, which wrong matches may have by chance"
    return ""


def _is_meaningful(inlier_count: int, points1: Array, threshold: float) -> bool:
    """Whether random matches have so many inliers less than once, expected over all samples of seven.

    The criterion of Moisan and Stival (2004), 'A probabilistic criterion to detect rigid point matches
    between two images and estimate the fundamental matrix'. By chance a point lies within the threshold of
    its epipolar line as often as this band's share of the image's area. A Sampson error of 1 px is a distance
    of about √2 px from the line in one image. Of 100, 1,000 and 4,000 random matches in 640 × 480 pixels, up
    to 14, 30 and 68 are inliers at 1 px, which this refuses.
    """
    count = len(points1)
    width, height = np.maximum(np.ptp(points1, axis=0), 1.0)
    share = min(1.0, 2 * np.sqrt(2) * threshold * float(np.hypot(width, height)) / float(width * height))
    samples = np.log(3 * (count - _SAMPLE)) + _log_choose(count, inlier_count)
    samples += _log_choose(inlier_count, _SAMPLE)
    return bool(samples + (inlier_count - _SAMPLE) * np.log(share) < 0)


def _log_choose(count: int, chosen: int) -> float:
    """Logarithm of a binomial coefficient."""
    return float(gammaln(count + 1) - gammaln(chosen + 1) - gammaln(count - chosen + 1))
