"""Stage 2 of `hpatches-matches`: correct matches, homographies, coverage and repeatability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ucn.evaluate.core.benchmark_pairs import ALL, list_groups
from ucn.evaluate.core.metrics import (
    Shares,
    area_under_error_curve,
    bootstrap_auc_difference,
    corner_error,
    coverage,
    mean_matching_accuracy,
    point_errors,
    repeatability,
)
from ucn.evaluate.core.score_metrics import measure_reliability
from ucn.evaluate.matches.predictions import MatchedPair
from ucn.geometry.homography import estimate_homography
from ucn.geometry.warp import warp_points
from ucn.types import FloatArray

LIMITS = (3.0, 5.0, 10.0)
"""Pixels of the canvas: of correct matches, and of corner errors."""
CURVE_LIMITS = tuple(float(limit) for limit in range(1, 11))
"""Pixels of the canvas: of the curves in the plot."""
INLIER_PIXELS = 3.0
"""Largest transfer error of the inliers of a homography, for all methods."""
NEAR_PIXELS = 16.0
"""Distance within which a pixel counts as covered by a match."""

_COVERAGE_STEP = 4  # pixels between the positions at which coverage is measured


@dataclass(frozen=True)
class MatchScore:
    """The score of a method's matches on a group of pairs.

    Attributes:
        method: its name.
        group: of pairs.
        pairs: in it.
        matches: mean number of a pair.
        mma: share of correct matches within each of `LIMITS`, mean over pairs.
        curve: the same within each of `CURVE_LIMITS`.
        auc: area under the curve of corner errors up to each of `LIMITS`.
        corners: corner error of each pair, infinite without a homography.
        failures: share of pairs without a homography.
        covered: share of image 0 near a correct match, mean over pairs.
        repeatable: repeatability of keypoints, mean over the pairs where it is defined.
        calibration_error: expected calibration error of the scores of the matches of all keypoints, which are
            correct within the first of `LIMITS`; NaN for methods without such scores.
    """

    method: str
    group: str
    pairs: int
    matches: float
    mma: tuple[float, ...]
    curve: tuple[float, ...]
    auc: tuple[float, ...]
    corners: tuple[float, ...]
    failures: float
    covered: float
    repeatable: float
    calibration_error: float


def score_matches(method: str, pairs: Sequence[MatchedPair], seed: int = 0) -> list[MatchScore]:
    """The scores of a method: each group of pairs, then all."""
    groups = list_groups([pair.pair for pair in pairs])
    if len(groups) > 1:
        groups[ALL] = list(range(len(pairs)))
    errors = [match_errors(pair) for pair in pairs]
    corners = np.array([_corner_error(pair, seed) for pair in pairs])
    covered = np.array([_cover(pair, row) for pair, row in zip(pairs, errors, strict=True)])
    repeatable = np.array([_repeat(pair) for pair in pairs])
    scores = []
    for group, rows in groups.items():
        defined = repeatable[rows][np.isfinite(repeatable[rows])]
        scores.append(
            MatchScore(
                method=method,
                group=group,
                pairs=len(rows),
                matches=float(np.mean([len(errors[row]) for row in rows])),
                mma=tuple(mean_matching_accuracy([errors[row] for row in rows], LIMITS).tolist()),
                curve=tuple(mean_matching_accuracy([errors[row] for row in rows], CURVE_LIMITS).tolist()),
                auc=tuple(area_under_error_curve(corners[rows], LIMITS).tolist()),
                corners=tuple(corners[rows].tolist()),
                failures=float(np.isinf(corners[rows]).mean()),
                covered=float(covered[rows].mean()),
                repeatable=float(defined.mean()) if len(defined) else float("nan"),
                calibration_error=_measure_calibration([pairs[row] for row in rows]),
            )
        )
    return scores


@dataclass(frozen=True)
class Comparison:
    """The homographies of a method beside those of the first method, on all pairs.

    Attributes:
        method: its name.
        median: corner error in pixels; infinite where half of the pairs have no homography.
        lead: area of the first method up to each of `LIMITS`, minus that of this one.
        intervals: lower and upper bound of each lead, from a paired bootstrap over sequences.
    """

    method: str
    median: float
    lead: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]


def compare_homographies(
    scores: Sequence[MatchScore], sequences: Sequence[str], seed: int = 0
) -> list[Comparison]:
    """Compares the first of the scores of all methods, on the same pairs, with each of them.

    Args:
        scores: of one group, a method each.
        sequences: the sequence of each of its pairs; sequences are resampled.
        seed: of the bootstrap.
    """
    # A report on disk has nothing in place of an infinite error.
    errors = [np.nan_to_num(np.array(score.corners), nan=np.inf, posinf=np.inf) for score in scores]
    found = []
    for score, own in zip(scores, errors, strict=True):
        lead = area_under_error_curve(errors[0], LIMITS) - area_under_error_curve(own, LIMITS)
        generator = torch.Generator().manual_seed(seed)
        bounds = bootstrap_auc_difference(errors[0], own, LIMITS, sequences, generator)
        intervals = tuple((low, high) for low, high in bounds.tolist())
        found.append(Comparison(score.method, float(np.median(own)), tuple(lead.tolist()), intervals))
    return found


def match_errors(pair: MatchedPair) -> Shares:
    """(K,) errors of matches in pixels of image 1; infinite where the homography is undefined."""
    return _measure_errors(pair.points0, pair.points1, pair.true_0to1)


def _measure_errors(points0: FloatArray, points1: FloatArray, true_0to1: Shares) -> Shares:
    expected = _warp(points0, true_0to1)
    is_known = np.isfinite(expected).all(axis=1)
    errors = np.full(len(expected), np.inf)
    errors[is_known] = point_errors(points1[is_known], expected[is_known])
    return errors


def _measure_calibration(pairs: Sequence[MatchedPair]) -> float:
    """Expected calibration error of all scores, in ten bins."""
    errors = [_measure_errors(p.scored[:, :2], p.scored[:, 2:4], p.true_0to1) for p in pairs]
    scores = np.concatenate([pair.scored[:, 4] for pair in pairs])
    return measure_reliability(scores, np.concatenate(errors) <= LIMITS[0]).error


def _warp(points: FloatArray, homography: Shares) -> Shares:
    moved = warp_points(torch.from_numpy(points).double()[None], torch.from_numpy(homography)[None])[0]
    return np.asarray(moved.numpy(), np.float64)


def _corner_error(pair: MatchedPair, seed: int) -> float:
    left, top, right, bottom = pair.content0
    corner = np.array([left, top], np.float32)
    # The corners are those of the image without its padding.
    shift = np.array([[1, 0, left], [0, 1, top], [0, 0, 1]], np.float64)
    estimated = estimate_homography(
        pair.points0 - corner, pair.points1, threshold=INLIER_PIXELS, min_inliers=4, seed=seed
    )
    return corner_error(estimated.H_0to1, pair.true_0to1 @ shift, (bottom - top, right - left))


def _cover(pair: MatchedPair, errors: Shares) -> float:
    """Share of image 0 near a correct match, on a grid."""
    left, top, right, bottom = pair.content0
    points = (pair.points0[errors <= LIMITS[0]] - np.array([left, top], np.float32)) / _COVERAGE_STEP
    size_hw = (-(-(bottom - top) // _COVERAGE_STEP), -(-(right - left) // _COVERAGE_STEP))
    return coverage(points, size_hw, NEAR_PIXELS / _COVERAGE_STEP)


def _repeat(pair: MatchedPair) -> float:
    if not np.isfinite(pair.true_0to1).all():
        return float("nan")
    targets1 = _warp(pair.keypoints0, pair.true_0to1)
    targets0 = _warp(pair.keypoints1, np.asarray(np.linalg.inv(pair.true_0to1), np.float64))
    for targets, (left, top, right, bottom) in ((targets1, pair.content1), (targets0, pair.content0)):
        low, high = (left - 0.5, top - 0.5), (right - 0.5, bottom - 0.5)
        targets[~((targets >= low) & (targets <= high)).all(axis=1)] = np.nan
    return repeatability(pair.keypoints0, targets1, pair.keypoints1, targets0, LIMITS[0])
