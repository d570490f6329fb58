"""Which matches one homography, or one fundamental matrix, explains."""

import numpy as np
import pytest

from ucn.errors import ConfigError
from ucn.geometry.verification import VerifySettings, verify_geometry


def make_plane(outliers: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Points shifted by (5, -2); the last ones go elsewhere."""
    rng = np.random.default_rng(0)
    points0 = rng.uniform(0, 300, (60, 2))
    points1 = points0 + np.array([5.0, -2.0])
    points1[60 - outliers :] = rng.uniform(0, 300, (outliers, 2))
    return points0, points1


def make_space() -> tuple[np.ndarray, np.ndarray]:
    """Points at several depths, seen by a camera that moves to the right; the last ones go elsewhere."""
    rng = np.random.default_rng(1)
    points0 = rng.uniform(0, 300, (120, 2))
    points1 = points0 - np.column_stack([rng.uniform(5, 80, 120), np.zeros(120)])
    points1[100:] = rng.uniform(0, 300, (20, 2))
    return points0, points1


def test_homography() -> None:
    found = verify_geometry(*make_plane(), VerifySettings("homography"))
    assert found.is_inlier.tolist() == [True] * 50 + [False] * 10
    assert found.matrix is not None
    np.testing.assert_allclose(found.matrix, [[1, 0, 5], [0, 1, -2], [0, 0, 1]], atol=1e-6)
    assert found.to_dict()["inliers"] == found.inlier_count == 50
    assert found.to_dict()["threshold_px"] == 3.0
    assert found.to_dict()["failure"] is None


def test_fundamental() -> None:
    points0, points1 = make_space()
    found = verify_geometry(points0, points1, VerifySettings("fundamental", seed=3))
    assert found.is_inlier[:100].all()
    assert found.is_inlier[100:].mean() < 0.2  # near their epipolar lines by chance
    assert found.matrix is not None
    whole0, whole1 = (np.column_stack([points, np.ones(120)]) for points in (points0, points1))
    residuals = (whole1 * (whole0 @ found.matrix.T)).sum(axis=1)
    np.testing.assert_allclose(residuals[:100], 0, atol=1e-6)  # not with the views swapped, by the depths
    assert list(found.to_dict()) == ["model", "threshold_px", "seed", "F_0to1", "inliers", "failure"]
    assert found.to_dict()["threshold_px"] == 1.0
    assert verify_geometry(points0, points1, VerifySettings("homography")).inlier_count < 100


def test_the_threshold_is_given_to_the_estimator() -> None:
    points0, points1 = make_plane(outliers=0)
    points1[50:] += (1.0, 0.0)
    assert verify_geometry(points0, points1, VerifySettings("homography")).inlier_count == 60
    assert verify_geometry(points0, points1, VerifySettings("homography", 0.3)).inlier_count == 50


@pytest.mark.parametrize("model", ["homography", "fundamental"])
def test_no_matches_fail_with_a_reason(model: str) -> None:
    found = verify_geometry(np.zeros((0, 2)), np.zeros((0, 2)), VerifySettings(model))
    assert found.matrix is None
    assert found.is_inlier.shape == (0,)
    assert "at least 15 are needed" in found.failure
    assert found.to_dict()["failure"] == found.failure


@pytest.mark.parametrize(
    ("model", "threshold", "seed", "message"),
    [
        ("homografy", None, 0, "model must be homography or fundamental, got 'homografy'; did you mean 'hom"),
        ("homography", 0.0, 0, "threshold must be above 0 pixels, got 0"),
        ("fundamental", float("inf"), 0, "threshold must be above 0 pixels, got inf"),
        ("fundamental", float("nan"), 0, "threshold must be above 0 pixels, got nan"),
        ("homography", None, -1, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_settings(model: str, threshold: float | None, seed: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VerifySettings(model, threshold, seed)
