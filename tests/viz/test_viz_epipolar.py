"""Epipolar lines of a known pose: they pass through the matches, and their ends satisfy the constraint."""

from typing import Any

import numpy as np
import pytest

from ucn.geometry.pose import PoseEstimate, find_fundamental
from ucn.types import Matches
from ucn.viz.epipolar import _choose_rows, draw_epipolar_lines, draw_pose, find_epipolar_segments

R = np.array([[0.8, 0.0, 0.6], [0.0, 1.0, 0.0], [-0.6, 0.0, 0.8]])
T = np.array([-4.0, 0.5, 3.0])
K0, K1 = (np.array([[f, 0, 39.5], [0, f, 31.5], [0, 0, 1]]) for f in (60.0, 70.0))
BLACK = np.zeros((64, 80, 3), np.uint8)


def project(space: Any, K: Any) -> Any:
    pixels = space @ K.T
    return (pixels[:, :2] / pixels[:, 2:]).astype(np.float32)


def make_matches(count: int = 40) -> Matches:
    space = np.random.default_rng(0).uniform([-2, -2, 6], [2, 2, 12], (count, 3))
    ones = np.ones(count, np.bool_)
    points = project(space, K0), project(space @ R.T + T, K1)
    return Matches(*points, ones.astype(np.float32), ones, 0.9, (64, 80), (64, 80))


def add_ones(points: Any) -> Any:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def measure_distances(points: Any, segments: Any) -> Any:
    along = segments[:, 1] - segments[:, 0]
    offset = points - segments[:, 0]
    return np.abs(along[:, 0] * offset[:, 1] - along[:, 1] * offset[:, 0]) / np.linalg.norm(along, axis=1)


def test_lines_pass_through_the_matches() -> None:
    matches, F = make_matches(), find_fundamental(R, T, K0, K1)
    whole0, whole1 = add_ones(matches.points0), add_ones(matches.points1)
    assert np.abs(np.einsum("ni,ij,nj->n", whole1, F, whole0)).max() < 1e-5
    segments1 = find_epipolar_segments(matches.points0, F, (64, 80))
    segments0 = find_epipolar_segments(matches.points1, F.T, (64, 80))
    assert np.isfinite(segments1).all() and np.isfinite(segments0).all()
    assert measure_distances(matches.points1, segments1).max() < 1e-3
    assert measure_distances(matches.points0, segments0).max() < 1e-3
    assert np.abs(np.einsum("nei,ij,nj->ne", add_ones(segments1), F, whole0)).max() < 1e-9
    assert np.abs(np.einsum("ni,ij,nej->ne", whole1, F, add_ones(segments0))).max() < 1e-9


def test_ends_lie_on_the_border() -> None:
    segments = find_epipolar_segments(make_matches().points0, find_fundamental(R, T, K0, K1), (64, 80))
    x, y = segments[..., 0], segments[..., 1]
    assert ((x >= -0.5 - 1e-9) & (x <= 79.5 + 1e-9) & (y >= -0.5 - 1e-9) & (y <= 63.5 + 1e-9)).all()
    edges = np.stack([x + 0.5, 79.5 - x, y + 0.5, 63.5 - y])
    assert np.abs(edges).min(axis=0).max() < 1e-9


def test_lines_by_hand() -> None:
    sideways = find_fundamental(np.eye(3), [1.0, 0, 0], K0, K0)  # rows are epipolar lines
    points = np.array([[5, 7], [70, 63.5], [3, 90]], np.float32)
    segments = find_epipolar_segments(points, sideways, (64, 80))
    np.testing.assert_allclose(np.sort(segments[0], axis=0), [[-0.5, 7], [79.5, 7]], atol=1e-9)
    np.testing.assert_allclose(np.sort(segments[1], axis=0), [[-0.5, 63.5], [79.5, 63.5]], atol=1e-9)
    assert np.isnan(segments[2]).all()  # below the image
    ahead = find_fundamental(np.eye(3), [0, 0, 1.0], K0, K0)  # all lines meet in the principal point
    assert np.isnan(find_epipolar_segments(np.array([[39.5, 31.5]], np.float32), ahead, (64, 80))).all()
    column = np.sort(find_epipolar_segments(np.array([[39.5, 5]], np.float32), ahead, (64, 80))[0], axis=0)
    np.testing.assert_allclose(column, [[39.5, -0.5], [39.5, 63.5]], atol=1e-9)
    assert find_epipolar_segments(np.zeros((0, 2), np.float32), ahead, (64, 80)).shape == (0, 2, 2)


def test_drawn_lines_pass_through_the_drawn_points() -> None:
    matches = make_matches(1)
    image = draw_epipolar_lines(BLACK, BLACK, matches, find_fundamental(R, T, K0, K1), width=656)
    shown = image[:256].max(axis=-1) > 60
    for view, left in ((matches.points0, 0), (matches.points1, 336)):
        x, y = 4 * (view[0] + 0.5) - 0.5
        own = shown[:, left : left + 320]
        assert own[round(y), round(x)]
        assert own[:, 2].any() or own[2].any() or own[-3].any()  # the line reaches the border
        for column in (round(x) - 20, round(x) + 20):
            assert own[:, column].any()


@pytest.mark.parametrize("count", [0, 1, 200])
def test_sizes(count: int) -> None:
    matches, F = make_matches(count), find_fundamental(R, T, K0, K1)
    assert draw_epipolar_lines(BLACK, BLACK[..., 0], matches, F, width=400).shape[1:] == (400, 3)


def test_lines_that_coincide_are_not_chosen() -> None:
    columns, rows = np.meshgrid(np.arange(5.0, 75, 10), np.arange(4.0, 60, 8))
    points = np.stack([columns.ravel(), rows.ravel()], axis=-1).astype(np.float32)
    ones = np.ones(len(points), np.bool_)
    matches = Matches(points, points, ones.astype(np.float32), ones, 0.9, (64, 80), (64, 80))
    sideways = find_fundamental(np.eye(3), [1.0, 0, 0], K0, K0)  # rows are epipolar lines
    for count in (0, 1, 4, 7):
        chosen = _choose_rows(matches, sideways, count)
        assert len(set(points[chosen, 1].tolist())) == len(chosen) == count
    assert sorted(_choose_rows(matches, sideways, 100).tolist()) == list(range(len(points)))


def test_missing_points_are_left_out() -> None:
    matches = make_matches(2)
    matches.points1[1] = np.nan
    F = find_fundamental(R, T, K0, K1)
    one = draw_epipolar_lines(BLACK, BLACK, matches.select(np.array([0])), F, width=400)
    np.testing.assert_array_equal(draw_epipolar_lines(BLACK, BLACK, matches, F, width=400), one)


def test_pose() -> None:
    matches = make_matches(20)
    is_inlier = np.arange(20) > 4
    pose = PoseEstimate(R, T / np.linalg.norm(T), is_inlier)
    image = draw_pose(BLACK, BLACK, matches, pose, K0, K1, width=400)
    failed = draw_pose(BLACK, BLACK, matches, PoseEstimate(None, None, ~is_inlier & False), K0, K1, width=400)
    assert image.shape[1] == failed.shape[1] == 400
    assert image.shape[0] > 1.8 * failed.shape[0]


@pytest.mark.parametrize("F", [np.zeros((2, 3)), np.full((3, 3), np.nan)])
def test_wrong_matrix(F: Any) -> None:
    with pytest.raises(ValueError, match=r"a fundamental matrix must be \(3, 3\) and finite, got"):
        draw_epipolar_lines(BLACK, BLACK, make_matches(3), F)
