"""Fundamental matrices from matches: exact ones come back, wrong matches do not count, none is an answer."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ucn.geometry.fundamental import (
    MIN_INLIERS,
    _find_obstacle,
    estimate_fundamental,
    sampson_errors,
)

Array = NDArray[np.float64]
K0: Array = np.array([[700.0, 0.0, 320.0], [0.0, 710.0, 240.0], [0.0, 0.0, 1.0]])
K1: Array = np.array([[500.0, 0.0, 300.0], [0.0, 520.0, 200.0], [0.0, 0.0, 1.0]])
R: Array = np.asarray(cv2.Rodrigues(np.array([0.05, 0.2, -0.1]))[0], np.float64)
T: Array = np.array([0.8, -0.3, 0.2])


def project(points: Array, K: Array) -> Array:
    seen = points @ K.T
    flat: Array = seen[:, :2] / seen[:, 2:]
    return flat


def make_scene(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Where two different cameras see points at several depths."""
    space = np.random.default_rng(seed).uniform([-3, -2, 5], [3, 2, 12], (count, 3))
    return project(space, K0), project(space @ R.T + T, K1)


def make_wrong(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(0, [640, 480], (count, 2))


def expected_F() -> Array:
    """K1⁻ᵀ [t]× R K0⁻¹, of norm 1, with a positive largest entry."""
    cross = np.array([[0, -T[2], T[1]], [T[2], 0, -T[0]], [-T[1], T[0], 0]])
    F: Array = np.linalg.inv(K1).T @ cross @ R @ np.linalg.inv(K0)
    scaled: Array = F / (np.linalg.norm(F) * np.sign(F.flat[np.abs(F).argmax()]))
    return scaled


class TestFound:
    def test_exact_matches(self) -> None:
        found = estimate_fundamental(*make_scene(60))
        assert found.F_0to1 is not None
        np.testing.assert_allclose(found.F_0to1, expected_F(), atol=1e-6)
        assert np.linalg.norm(found.F_0to1) == pytest.approx(1)
        assert np.linalg.matrix_rank(found.F_0to1, tol=1e-9) == 2
        assert found.inlier_count == 60
        assert found.failure == ""

    def test_the_views_are_not_swapped(self) -> None:
        points0, points1 = make_scene(60)
        found = estimate_fundamental(points1, points0)
        assert found.F_0to1 is not None
        np.testing.assert_allclose(found.F_0to1, expected_F().T, atol=1e-6)

    def test_wrong_matches_do_not_count(self) -> None:
        points0, points1 = make_scene(300)
        exact = points1.copy()
        points1 = points1 + np.random.default_rng(1).normal(0, 0.3, points1.shape)
        points1[::2] = make_wrong(150, seed=2)
        found = estimate_fundamental(points0, points1)
        assert found.F_0to1 is not None and sampson_errors(found.F_0to1, points0, exact).max() < 1
        assert found.is_inlier[1::2].mean() > 0.95
        assert found.is_inlier[::2].mean() < 0.05

    def test_rows_that_are_not_finite(self) -> None:
        points0, points1 = make_scene(40)
        points1[3], points0[5, 0] = np.nan, np.inf
        found = estimate_fundamental(points0, points1)
        assert found.F_0to1 is not None and np.flatnonzero(~found.is_inlier).tolist() == [3, 5]

    def test_a_plane_has_right_inliers(self) -> None:
        flat = np.column_stack([make_wrong(80, 0) / 100 - [3, 2], np.full(80, 7.0)])
        points0, points1 = project(flat, K0), project(flat @ R.T + T, K1)
        points1[::4] = make_wrong(20, seed=3)
        found = estimate_fundamental(points0, points1)
        assert found.is_inlier.reshape(-1, 4)[:, 1:].all()

    def test_same_seed_same_answer(self) -> None:
        points0, points1 = make_scene(100)
        points1[::3] = make_wrong(34, seed=5)
        first, second = (estimate_fundamental(points0, points1, seed=7) for _ in range(2))
        assert first.F_0to1 is not None and second.F_0to1 is not None
        np.testing.assert_array_equal(first.F_0to1, second.F_0to1)


class TestNotFound:
    @pytest.mark.parametrize("count", [0, 1, 7, MIN_INLIERS - 1])
    def test_too_few_matches(self, count: int) -> None:
        found = estimate_fundamental(*make_scene(count))
        assert found.F_0to1 is None
        assert found.failure == f"{count} matches; at least 15 are needed"
        assert found.is_inlier.shape == (count,)
        assert not found.is_inlier.any()

    def test_no_list_of_points(self) -> None:
        assert estimate_fundamental(np.zeros((0, 2)), np.zeros((0, 2))).inlier_count == 0

    @pytest.mark.parametrize(("count", "seed"), [(60, 0), (60, 1), (300, 2), (2000, 3)])
    def test_nothing_but_wrong_matches(self, count: int, seed: int) -> None:
        found = estimate_fundamental(
            make_wrong(count, seed), make_wrong(count, seed + 10), max_iterations=2000, seed=seed
        )
        assert found.F_0to1 is None
        assert not found.is_inlier.any()

    def test_all_in_one_place(self) -> None:
        points = make_wrong(50, 0)
        found = estimate_fundamental(points, np.full((50, 2), 7.0))
        assert found.failure == "no fundamental matrix fits the matches"
        assert estimate_fundamental(np.full((50, 2), 7.0), points).F_0to1 is None

    def test_one_line_does_not_determine_it(self) -> None:
        line = np.column_stack([np.arange(40.0), 2 * np.arange(40.0)])
        found = estimate_fundamental(line, line)
        assert found.F_0to1 is None
        assert found.failure == "the inliers lie on a line, which does not determine a fundamental matrix"

    def test_what_chance_explains(self) -> None:
        points = make_wrong(1000, 0)
        is_inlier = np.arange(1000) < 25
        assert "25 inliers of 1000 matches, which wrong" in _find_obstacle(points, points, is_inlier, 1.0, 15)
        assert _find_obstacle(points, points, np.arange(1000) < 80, 1.0, 15) == ""
        assert _find_obstacle(points[:30], points[:30], is_inlier[:30], 1.0, 15) == ""


def test_sampson_errors_by_hand() -> None:
    # A camera that moves along x: epipolar lines are rows, and y1 - y0 is shared by both points.
    rows = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    points0 = np.array([[5.0, 3.0], [1.0, 1.0]])
    np.testing.assert_allclose(
        sampson_errors(rows, points0, np.array([[9.0, 3.0], [4.0, 3.0]])), [0, np.sqrt(2)]
    )
    # Moving forward, the epipole is (0, 0) in both images.
    forward = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 0]])
    assert sampson_errors(forward, np.zeros((1, 2)), np.zeros((1, 2))).tolist() == [0]
