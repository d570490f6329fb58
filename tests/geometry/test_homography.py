"""Homographies from matches: exact ones come back, wrong matches do not count, and none is a clear answer."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ucn.geometry import homography
from ucn.geometry.homography import (
    MIN_INLIERS,
    _find_obstacle,
    estimate_homography,
    refine_homography,
    transfer_errors,
)

Array = NDArray[np.float64]
H = np.array([[0.9, -0.2, 30.0], [0.15, 1.1, -12.0], [2e-4, -1e-4, 1.0]])


def make_points(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(0, [640, 480], (count, 2))


def move(points: Array, matrix: Array = H) -> Array:
    moved = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    found: Array = moved[:, :2] / moved[:, 2:]
    return found


class TestFound:
    def test_exact_matches(self) -> None:
        points = make_points(60)
        found = estimate_homography(points, move(points))
        assert found.H_0to1 is not None
        np.testing.assert_allclose(found.H_0to1, H, atol=1e-6)
        assert found.inlier_count == 60
        assert found.failure == ""

    def test_wrong_matches_do_not_count(self) -> None:
        points0, points1 = make_points(300), move(make_points(300))
        points1 += np.random.default_rng(1).normal(0, 0.5, points1.shape)
        points1[::2] = make_points(150, seed=2)
        found = estimate_homography(points0, points1)
        assert found.H_0to1 is not None
        corners = np.array([[0.0, 0.0], [639.0, 0.0], [0.0, 479.0], [639.0, 479.0]])
        assert np.abs(move(corners, found.H_0to1) - move(corners)).max() < 1.5
        assert found.is_inlier[1::2].mean() > 0.97
        assert found.is_inlier[::2].mean() < 0.02

    def test_accurate_matches_count_more(self) -> None:
        corners = np.array([[0.0, 0.0], [639.0, 0.0], [0.0, 479.0], [639.0, 479.0]])
        refined: list[float] = []
        alike: list[float] = []
        for seed in range(10):
            generator = np.random.default_rng(seed)
            points0 = make_points(600, seed)
            points1 = move(points0)
            points1[:300] += generator.normal(0, 0.05, (300, 2))
            points1[300:] += generator.normal(0, 1.0, (300, 2))
            found = estimate_homography(points0, points1, seed=seed)
            assert found.H_0to1 is not None
            squares, _ = cv2.findHomography(points0, points1, 0)
            for errors, matrix in ((refined, found.H_0to1), (alike, np.asarray(squares, np.float64))):
                errors.append(np.abs(move(corners, matrix) - move(corners)).mean())
        assert np.mean(refined) < 0.6 * np.mean(alike)

    def test_crowded_regions_count_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A lens bends the image by up to two pixels. Nine of ten matches are in one quarter of it.
        def bend(points: Array) -> Array:
            offsets = (points - [320, 240]) / 400
            return move(points + 3 * offsets * (offsets**2).sum(axis=1, keepdims=True))

        x, y = np.meshgrid(np.arange(10.0, 640, 20), np.arange(10.0, 480, 20))
        everywhere = np.column_stack([x.ravel(), y.ravel()])
        expected, _ = cv2.findHomography(everywhere, bend(everywhere), 0)
        crowded = np.concatenate([make_points(900) / 2, make_points(200, seed=1)])

        def measure() -> float:
            found = refine_homography(H, crowded, bend(crowded), 3.0)
            differences = move(everywhere, found) - move(everywhere, np.asarray(expected, np.float64))
            return float(np.linalg.norm(differences, axis=1).mean())

        error = measure()
        find = homography._find_neighbours
        monkeypatch.setattr(homography, "_find_neighbours", lambda *args: (find(*args)[0], np.ones(1100)))
        assert error < 0.8 * measure()

    def test_noisy_regions_count_less(self) -> None:
        corners = np.array([[0.0, 0.0], [639.0, 0.0], [0.0, 479.0], [639.0, 479.0]])
        errors: list[list[float]] = [[], []]
        for seed in range(10):
            points0 = make_points(600, seed)
            points1 = move(points0)
            is_noisy = points0[:, 0] > 320
            deviation = np.where(is_noisy, 1.0, 0.1)[:, None]
            points1 += np.random.default_rng(seed).normal(0, 1, points1.shape) * deviation
            found = [refine_homography(H, points0, points1, 3.0)]
            best = np.ones(len(points0)) / deviation[:, 0] ** 2
            found.append(homography._step(H, points0, points1, best))
            for own, matrix in zip(errors, found, strict=True):
                own.append(float(np.abs(move(corners, matrix) - move(corners)).mean()))
        assert np.mean(errors[0]) < 1.5 * np.mean(errors[1])

    def test_equal_accuracy_costs_little(self) -> None:
        points0, points1 = make_points(400), move(make_points(400))
        points1 += np.random.default_rng(6).normal(0, 0.5, points1.shape)
        corners = np.array([[0.0, 0.0], [639.0, 0.0], [0.0, 479.0], [639.0, 479.0]])
        least_squares, _ = cv2.findHomography(points0, points1, 0)
        refined = refine_homography(H, points0, points1, 3.0)
        difference = move(corners, refined) - move(corners, np.asarray(least_squares, np.float64))
        assert np.abs(difference).max() < 0.25

    def test_refinement_keeps_what_few_inliers_determine(self) -> None:
        points = make_points(4)
        assert refine_homography(H, points, move(points) + 0.5, 3.0) is H
        assert refine_homography(H, points[:0], points[:0], 3.0) is H

    def test_agrees_with_another_estimator(self) -> None:
        points0, points1 = make_points(200), move(make_points(200))
        points1 += np.random.default_rng(1).normal(0, 0.3, points1.shape)
        found = estimate_homography(points0, points1)
        expected, _ = cv2.findHomography(points0, points1, 0)
        assert found.H_0to1 is not None
        difference = move(points0, found.H_0to1) - move(points0, np.asarray(expected, np.float64))
        assert np.abs(difference).max() < 0.3

    def test_rows_that_are_not_finite(self) -> None:
        points0, points1 = make_points(40), move(make_points(40))
        points1[3], points0[5, 0] = np.nan, np.inf
        found = estimate_homography(points0, points1)
        assert found.H_0to1 is not None and np.flatnonzero(~found.is_inlier).tolist() == [3, 5]

    def test_same_seed_same_answer(self) -> None:
        points0, points1 = make_points(100), move(make_points(100))
        points1[::3] = make_points(34, seed=5)
        first, second = (estimate_homography(points0, points1, seed=7) for _ in range(2))
        assert first.H_0to1 is not None and second.H_0to1 is not None
        np.testing.assert_array_equal(first.H_0to1, second.H_0to1)


class TestNotFound:
    @pytest.mark.parametrize("count", [0, 1, 4, MIN_INLIERS - 1])
    def test_too_few_matches(self, count: int) -> None:
        points = make_points(count)
        found = estimate_homography(points, points)
        assert found.H_0to1 is None
        assert found.failure == f"{count} matches; at least 15 are needed"
        assert found.is_inlier.shape == (count,)
        assert not found.is_inlier.any()

    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_but_wrong_matches(self, seed: int) -> None:
        found = estimate_homography(make_points(1000, seed), make_points(1000, seed + 10), seed=seed)
        assert found.H_0to1 is None
        assert "inliers; at least 15" in found.failure

    @pytest.mark.parametrize("seed", range(3))
    def test_how_many_agree_by_chance(self, seed: int) -> None:
        points0, points1 = make_points(4000, seed), make_points(4000, seed + 10)
        found = estimate_homography(points0, points1, min_inliers=4, seed=seed)
        assert found.inlier_count <= 8 < MIN_INLIERS

    def test_mirrored(self) -> None:
        points = make_points(50)
        found = estimate_homography(points, points * [-1, 1] + [639, 0])
        assert found.H_0to1 is None
        assert found.failure

    @pytest.mark.parametrize(
        ("scales", "words"), [((-1, 1), "mirrors"), ((200, 150), "100 times"), ((0.005, 0.006), "100 times")]
    )
    def test_what_no_camera_makes(self, scales: tuple[float, float], words: str) -> None:
        assert words in _find_obstacle(np.diag([*scales, 1.0]), make_points(5))
        assert _find_obstacle(H, make_points(5)) == ""

    def test_all_in_one_place(self) -> None:
        points = make_points(50)
        assert estimate_homography(points, np.full((50, 2), 7.0)).H_0to1 is None

    @pytest.mark.parametrize("noise", [0.0, 1.0])
    def test_one_line_does_not_determine_it(self, noise: float) -> None:
        line = np.column_stack([np.arange(40.0), 2 * np.arange(40.0)])
        line += np.random.default_rng(0).normal(0, noise, line.shape)
        found = estimate_homography(line, line)
        assert found.H_0to1 is None
        assert found.failure == "the inliers lie on a line, which does not determine a homography"

    def test_a_narrow_strip_does(self) -> None:
        strip = make_points(60) * [1, 0.05]  # 24 pixels high
        found = estimate_homography(strip, strip)
        assert found.H_0to1 is not None
        np.testing.assert_allclose(found.H_0to1, np.eye(3), atol=1e-6)


def test_transfer_errors_by_hand() -> None:
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(transfer_errors(shift, points, points), [5, 5])
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0.5]])
    assert transfer_errors(behind, points, points)[1] == np.inf
