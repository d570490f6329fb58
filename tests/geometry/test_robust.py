"""Arguments that every robust estimator refuses, and the error without poselib."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ucn.geometry.fundamental import estimate_fundamental
from ucn.geometry.homography import estimate_homography
from ucn.geometry.pose import estimate_pose
from ucn.geometry.robust import Array, check_matches, measure_width


def _estimate_pose(points0: Array, points1: Array, **options: Any) -> object:
    return estimate_pose(points0, points1, np.eye(3), **options)


ESTIMATORS = (estimate_homography, estimate_fundamental, _estimate_pose)


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_matches_and_thresholds_that_are_refused(estimate: Callable[..., object]) -> None:
    points = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"points0, points1 must both be \(N, 2\), got \(3, 3\)"):
        estimate(np.zeros((3, 3)), np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"got \(3, 2\) and \(4, 2\)"):
        estimate(points, np.zeros((4, 2)))
    for threshold in (0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"threshold must be above 0 pixels, got {threshold}"):
            estimate(points, points, threshold=threshold)


@pytest.mark.parametrize(
    ("estimate", "options", "error"),
    [
        (estimate_homography, {"min_inliers": 3}, "min_inliers must be at least 4, got 3"),
        (estimate_homography, {"seed": -1}, "seed must be at least 0, got -1"),
        (estimate_fundamental, {"min_inliers": 7}, "min_inliers must be at least 8, got 7"),
        (estimate_fundamental, {"max_iterations": 0}, "max_iterations must be at least 1, got 0"),
        (estimate_fundamental, {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_numbers_out_of_range(estimate: Callable[..., object], options: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        estimate(np.zeros((3, 2)), np.zeros((3, 2)), **options)


def test_rows_that_are_finite_in_both_images() -> None:
    points0, points1 = np.zeros((4, 2)), np.zeros((4, 2))
    points0[1, 0], points1[3] = np.inf, np.nan
    found0, found1, rows = check_matches(points0.tolist(), points1.astype(np.float32), 1.0)
    assert found0.dtype == found1.dtype == np.float64 and rows.tolist() == [0, 2]


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_poselib_is_named_where_it_is_missing(
    estimate: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "poselib", None)
    points = np.random.default_rng(0).uniform(0, 100, (20, 2))
    with pytest.raises(ImportError, match="needs the package poselib: pip install poselib"):
        estimate(points, points)


def test_width_by_hand() -> None:
    assert measure_width(np.array([[0.0, 1], [10, -1], [20, -1], [30, 1]])) == pytest.approx(1)
    assert measure_width(np.array([[0.0, 0], [1, 2], [2, 4]])) == pytest.approx(0)
