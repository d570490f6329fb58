"""Camera motion on scenes with a known answer, and on those that have none."""

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from ucn.geometry.pose import (
    ESTIMATORS,
    Estimator,
    check_intrinsics,
    decompose_essential,
    estimate_pose,
    find_fundamental,
    is_in_front,
    to_rays,
)
from ucn.geometry.robust import Array

K0: Array = np.array([[700.0, 2.0, 320.0], [0.0, 710.0, 240.0], [0.0, 0.0, 1.0]])
K1: Array = np.array([[500.0, 0.0, 300.0], [0.0, 520.0, 200.0], [0.0, 0.0, 1.0]])

both = pytest.mark.parametrize("estimator", ESTIMATORS)


def rotate(axis: list[float], degrees: float) -> Array:
    """Rodrigues' formula, written out."""
    x, y, z = np.array(axis) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.deg2rad(degrees)
    R: Array = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return R


def project(points: Array, K: Array) -> Array:
    seen = points @ K.T
    flat: Array = seen[:, :2] / seen[:, 2:]
    return flat


def make_scene(R: Array, t: Array, count: int = 200, seed: int = 0) -> tuple[Array, Array]:
    """Where points in front of both cameras are seen."""
    rng = np.random.default_rng(seed)
    space = rng.uniform([-4, -3, 5], [4, 3, 12], (count, 3))
    moved = space @ R.T + t
    assert (moved[:, 2] > 1).all()
    return project(space, K0), project(moved, K1)


def angle_between(R: Array, other: Array) -> float:
    """Degrees, by the arccosine."""
    return float(np.degrees(np.arccos(np.clip((np.trace(R.T @ other) - 1) / 2, -1, 1))))


MOTIONS = [
    (rotate([1, 2, 3], 5), np.array([1.0, 0.0, 0.0])),
    (rotate([0, 1, 0], 12), np.array([0.3, -0.5, 0.8])),
    (np.eye(3), np.array([0.0, 0.0, -1.0])),
    (rotate([0, 0, 1], 170), np.array([-0.6, 0.8, 0.0])),
]


@both
@pytest.mark.parametrize(("R", "t"), MOTIONS)
def test_a_clean_scene_gives_the_motion_exactly(estimator: Estimator, R: Array, t: Array) -> None:
    points0, points1 = make_scene(R, t)
    found = estimate_pose(points0, points1, K0, K1, estimator=estimator, threshold=1e-4)
    assert found.failure == ""
    assert found.R is not None and found.t is not None
    np.testing.assert_allclose(found.R, R, atol=1e-5)
    np.testing.assert_allclose(found.t, t / np.linalg.norm(t), atol=1e-5)
    np.testing.assert_allclose(found.R.T @ found.R, np.eye(3), atol=1e-12)
    assert np.linalg.norm(found.t) == pytest.approx(1, abs=1e-12)
    assert found.inlier_count > 190


def test_a_camera_that_moves_right_sees_the_world_move_left() -> None:
    # Points 10 m away at K of focal length 100: a step of 1 m to the right moves them 10 px to the left.
    K = np.diag([100.0, 100.0, 1.0])
    depths = np.array([5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 8.0])
    points0 = np.array([[0, 0], [30, 10], [-20, 40], [10, -30], [-40, -20], [25, 35], [-5, 15]], np.float64)
    points1 = points0 - np.column_stack([100 / depths, np.zeros(7)])
    found = estimate_pose(points0, points1, K, threshold=0.01)
    assert found.R is not None and found.t is not None
    np.testing.assert_allclose(found.R, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(found.t, [-1, 0, 0], atol=1e-6)


@both
def test_outliers_are_separated_from_inliers(estimator: Estimator) -> None:
    R, t = MOTIONS[1]
    points0, points1 = make_scene(R, t)
    rng = np.random.default_rng(1)
    points1 = points1 + rng.normal(0, 0.2, points1.shape)
    is_wrong = np.arange(len(points1)) % 5 < 2
    points1[is_wrong] = rng.uniform([0, 0], [640, 480], (int(is_wrong.sum()), 2))
    found = estimate_pose(points0, points1, K0, K1, estimator=estimator)
    assert found.R is not None and found.t is not None and angle_between(found.R, R) < 1
    assert np.degrees(np.arccos(found.t @ t / np.linalg.norm(t))) < 3
    assert found.is_inlier[~is_wrong].mean() > 0.9
    assert found.is_inlier[is_wrong].mean() < 0.1


@both
def test_the_same_seed_gives_the_same_answer(estimator: Estimator) -> None:
    rng = np.random.default_rng(2)
    points0, points1 = make_scene(*MOTIONS[0])
    points1 = points1 + rng.normal(0, 2, points1.shape)
    answers = [estimate_pose(points0, points1, K0, K1, estimator=estimator, seed=seed) for seed in (3, 3, 4)]
    first, again, other = (answer.R for answer in answers)
    np.testing.assert_array_equal(first, again)
    assert first is not None and other is not None and not np.array_equal(first, other)


@both
def test_rows_that_are_not_finite_do_not_count(estimator: Estimator) -> None:
    points0, points1 = make_scene(*MOTIONS[0], count=60)
    holes = [0, 7, 59]
    points1[holes] = np.nan
    found = estimate_pose(points0, points1, K0, K1, estimator=estimator)
    assert found.is_inlier.shape == (60,)
    assert not found.is_inlier[holes].any()
    assert found.inlier_count == 57


@both
@pytest.mark.parametrize("count", [0, 1, 4])
def test_fewer_than_five_matches_fail(estimator: Estimator, count: int) -> None:
    points0, points1 = make_scene(*MOTIONS[0], count=10)
    found = estimate_pose(points0[:count], points1[:count], K0, K1, estimator=estimator)
    assert (found.R, found.t, found.inlier_count) == (None, None, 0)
    assert found.is_inlier.shape == (count,)
    assert found.failure == f"{count} matches; at least 5 are needed"


@both
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("wrong_share", [0.0, 0.3])
def test_a_camera_that_only_turns_has_no_translation(
    estimator: Estimator, noise: float, wrong_share: float
) -> None:
    points0, points1 = make_scene(rotate([1, 2, 0], 8), np.zeros(3))
    rng = np.random.default_rng(3)
    points1 = points1 + rng.normal(0, noise, points1.shape)
    is_wrong = rng.random(len(points1)) < wrong_share
    points1[is_wrong] = rng.uniform([0, 0], [640, 480], (int(is_wrong.sum()), 2))
    found = estimate_pose(points0, points1, K0, K1, estimator=estimator)
    assert "a rotation alone explains the matches" in found.failure
    assert (found.R, found.t, found.inlier_count) == (None, None, 0)


@both
@pytest.mark.parametrize(
    "shape",
    [
        lambda rows: np.ones((len(rows), 2)),
        lambda rows: np.column_stack([rows, rows]),
        lambda rows: np.column_stack([rows % 3, rows % 2]),
    ],
    ids=["one point", "a line", "few places"],
)
def test_degenerate_points_fail_without_an_error(estimator: Estimator, shape: object) -> None:
    assert callable(shape)
    points: NDArray[np.float64] = shape(np.arange(40.0))
    found = estimate_pose(points, points, K0, estimator=estimator)
    assert found.failure
    assert not found.is_inlier.any()


@both
def test_exactly_five_matches_never_raise(estimator: Estimator) -> None:
    for seed in range(5):
        points0, points1 = make_scene(*MOTIONS[1], count=5, seed=seed)
        found = estimate_pose(points0, points1, K0, K1, estimator=estimator)
        assert bool(found.failure) == (found.R is None) == (found.t is None)


def test_an_essential_matrix_allows_four_motions_and_one_is_in_front() -> None:
    R, t = rotate([1, 1, 0], 20), np.array([0.6, 0.0, 0.8])
    E = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]]) @ R
    motions = decompose_essential(-3 * E)  # of any sign and length
    assert len(motions) == 4
    assert all(np.linalg.det(rotation) == pytest.approx(1) for rotation, _ in motions)
    space = np.array([[0.5, -0.2, 4.0]])
    moved = space @ R.T + t
    counts = [int(is_in_front(r, v, space / space[:, 2:], moved / moved[:, 2:]).sum()) for r, v in motions]
    assert sorted(counts) == [0, 0, 0, 1]
    best_R, best_t = motions[counts.index(1)]
    assert best_R == pytest.approx(R, abs=1e-12)
    assert best_t == pytest.approx(t, abs=1e-12)


def test_a_point_behind_a_camera_is_not_in_front() -> None:
    # Camera 1 stands 1 m ahead of camera 0; a point half a metre ahead is behind it, and is seen mirrored.
    R, t = np.eye(3), np.array([0.0, 0.0, -1.0])
    rays0 = np.array([[0.1, 0.0, 1.0], [0.1, 0.0, 1.0]])
    seen_ahead, seen_behind = [0.2, 0.0, 1.0], [-0.1, 0.0, 1.0]
    assert is_in_front(R, t, rays0, np.array([seen_ahead, seen_behind])).tolist() == [True, False]


def test_rays_by_hand() -> None:
    K = np.array([[2.0, 1.0, 3.0], [0.0, 4.0, 5.0], [0.0, 0.0, 1.0]])
    # x = (u - cx - s y) / fx with y = (v - cy) / fy.
    assert to_rays(np.array([[10.0, 13.0]]), K).tolist() == [[2.5, 2.0, 1.0]]
    assert to_rays(np.zeros((0, 2)), K).shape == (0, 3)


@pytest.mark.parametrize(
    "K",
    [
        np.eye(2),
        np.diag([0.0, 1.0, 1.0]),
        np.diag([1.0, -1.0, 1.0]),
        np.diag([1.0, 1.0, 2.0]),
        np.diag([np.nan, 1.0, 1.0]),
        np.array([[1.0, 0, 0], [0.1, 1.0, 0], [0, 0, 1]]),
        np.eye(3).T + np.array([[0, 0, 0], [0, 0, 0], [5.0, 0, 0]]),
    ],
)
def test_a_matrix_that_is_no_camera_is_refused(K: Array) -> None:
    with pytest.raises(ValueError, match=r"K1 must be fx s cx, 0 fy cy, 0 0 1"):
        check_intrinsics(K, "K1")


def test_bad_arguments_are_refused() -> None:
    points = np.zeros((6, 2))
    with pytest.raises(ValueError, match="estimator must be poselib or opencv, got 'magic'"):
        estimate_pose(points, points, K0, estimator="magic")  # type: ignore[arg-type]


def test_without_poselib_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "poselib", None)
    points0, points1 = make_scene(*MOTIONS[0])
    with pytest.raises(ImportError, match="pip install poselib, or use opencv"):
        estimate_pose(points0, points1, K0, K1)
    assert not estimate_pose(points0, points1, K0, K1, estimator="opencv").failure


class TestFundamental:
    @pytest.mark.parametrize(("R", "t"), MOTIONS)
    def test_epipolar_constraint(self, R: Array, t: Array) -> None:
        points0, points1 = (np.column_stack([each, np.ones(len(each))]) for each in make_scene(R, t))
        F = find_fundamental(R, t, K0, K1)
        residuals = np.einsum("ni,ij,nj->n", points1, F, points0)
        lines = points0 @ F.T
        assert np.abs(residuals / np.linalg.norm(lines[:, :2], axis=1)).max() < 1e-6  # pixels
        assert np.linalg.norm(F) == pytest.approx(1)
        assert np.linalg.matrix_rank(F, tol=1e-9) == 2

    def test_by_hand(self) -> None:
        F = find_fundamental(np.eye(3), [2.0, 0, 0], np.eye(3), np.eye(3))  # rows: y1 - y0 = 0
        np.testing.assert_allclose(F, np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]]) / np.sqrt(2), atol=1e-12)

    def test_the_reverse_is_the_transpose(self) -> None:
        R, t = MOTIONS[1]
        back = find_fundamental(R.T, -R.T @ t, K1, K0)
        np.testing.assert_allclose(back, find_fundamental(R, t, K0, K1).T, atol=1e-12)

    def test_no_translation(self) -> None:
        with pytest.raises(
            ValueError, match="t must not be zero: two images from one place have no epipolar"
        ):
            find_fundamental(np.eye(3), np.zeros(3), K0, K1)

    def test_wrong_camera(self) -> None:
        with pytest.raises(ValueError, match="K1 must be fx s cx"):
            find_fundamental(np.eye(3), [1, 0, 0], K0, np.zeros((3, 3)))
