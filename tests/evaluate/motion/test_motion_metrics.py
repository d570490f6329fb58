"""Errors of camera motions by hand, and against slow references."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ucn.evaluate.motion.metrics import (
    PoseError,
    measure_pose,
    pose_auc,
    rotation_error,
    translation_error,
)


def turn(degrees: float, axis: int = 2) -> NDArray[np.float64]:
    """A rotation about an axis of coordinates."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    first, second = [index for index in range(3) if index != axis]
    R = np.eye(3)
    R[first, first] = R[second, second] = cosine
    R[first, second], R[second, first] = -sine, sine
    return R


@pytest.mark.parametrize("degrees", [0.0, 1e-7, 0.3, 45.0, 90.0, 179.0, 180.0])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rotation_error_is_the_angle_of_the_turn_between(degrees: float, axis: int) -> None:
    start = turn(33, 0) @ turn(-80, 1)
    assert rotation_error(start, start @ turn(degrees, axis)) == pytest.approx(degrees, abs=1e-9)
    assert rotation_error(start @ turn(degrees, axis), start) == pytest.approx(degrees, abs=1e-9)


def test_rotation_error_of_two_axes_by_the_formula_of_the_paper() -> None:
    R, true = turn(10, 0), turn(20, 1)
    # tr(Rᵀ R_true) = cos 10 + cos 20 + cos 10 cos 20.
    trace = math.cos(math.radians(10)) * (1 + math.cos(math.radians(20))) + math.cos(math.radians(20))
    assert rotation_error(R, true) == pytest.approx(math.degrees(math.acos((trace - 1) / 2)), abs=1e-9)


def test_translation_error_by_hand() -> None:
    assert translation_error([1, 0, 0], [5, 0, 0]) == 0
    assert translation_error([0, 0, 2], [0, 0, -1]) == 180
    assert translation_error([1, 0, 0], [0, 3, 0]) == pytest.approx(90)
    assert translation_error([1, 0, 0], [1, 1, 0]) == pytest.approx(45)
    assert translation_error([1, 1e-9, 0], [1, 0, 0]) == pytest.approx(math.degrees(1e-9))


def test_a_motion_and_its_sign() -> None:
    error = measure_pose(turn(3), [0, 0, -1], np.eye(3), [0, 0, 2])
    assert error.rotation == pytest.approx(3)
    assert (error.translation, error.line, error.larger, error.is_failure) == (180, 0, 180, False)
    other = measure_pose(np.eye(3), [1, 0, 0], np.eye(3), [0, 1, 0])
    assert [other.translation, other.line] == pytest.approx([90, 90])


def test_a_failure_is_180_degrees_and_never_nan() -> None:
    error = measure_pose(None, None, np.eye(3), [1, 0, 0])
    assert error == PoseError(180, 180, 180, is_failure=True)
    assert pose_auc([error, error]).tolist() == [0, 0, 0]


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rotations must be \(3, 3\), got \(2, 2\) and \(3, 3\)"):
        rotation_error(np.eye(2), np.eye(3))
    with pytest.raises(ValueError, match=r"translations must be \(3,\), got \(3,\) and \(2,\)"):
        translation_error([1, 0, 0], [1, 0])
    with pytest.raises(ValueError, match="length 0 has no direction"):
        translation_error([1, 0, 0], [0, 0, 0])


def errors(*angles: float) -> list[PoseError]:
    return [PoseError(angle, angle / 2, angle / 2) for angle in angles]


def test_auc_by_hand() -> None:
    # The curve goes from (0, 0) to (1, 1/2) and (3, 1), then level: up to 5 its area is 1/4 + 3/2 + 2.
    assert pose_auc(errors(3, 1), [5]).tolist() == pytest.approx([3.75 / 5])
    assert pose_auc(errors(0, 0), [5, 10]).tolist() == [1, 1]
    assert pose_auc(errors(30), [20]).tolist() == [0]
    assert np.isnan(pose_auc([])).all()


def test_auc_takes_the_larger_error() -> None:
    swapped = [PoseError(1, 4, 4), PoseError(4, 1, 1)]
    assert pose_auc(swapped, [5]).tolist() == pose_auc(errors(4, 4), [5]).tolist()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 40), min_size=1, max_size=12), st.sampled_from([5.0, 10.0, 20.0]))
def test_auc_equals_a_sum_of_thin_slices(angles: list[float], limit: float) -> None:
    ordered = sorted(angles)
    knots = [0.0, *ordered]
    heights = [index / len(ordered) for index in range(len(knots))]
    places = (np.arange(20000) + 0.5) * limit / 20000
    inside = [knot for knot in knots if knot <= limit]
    slices = np.interp(places, inside, heights[: len(inside)])
    assert pose_auc(errors(*angles), [limit])[0] == pytest.approx(float(slices.mean()), abs=2e-3)


class TestMutants:
    """The cases above would not pass with any of these mistakes in place."""

    def test_a_rotation_that_is_not_turned_back(self) -> None:
        start = turn(33, 0) @ turn(-80, 1)
        true = start @ turn(0.3)
        wrong = math.degrees(math.acos(np.clip((np.trace(start @ true) - 1) / 2, -1, 1)))
        assert abs(wrong - rotation_error(start, true)) > 1

    def test_views_that_are_swapped(self) -> None:
        # The motion from 1 to 0 has another translation, unless the camera does not turn.
        R, t = turn(40, 1), np.array([1.0, 0.0, 0.0])
        assert measure_pose(R.T, -R.T @ t, R, t).translation > 100
        assert measure_pose(R, t, R, t).translation == 0

    def test_a_sign_that_is_ignored(self) -> None:
        error = measure_pose(np.eye(3), [0, 0, 1], np.eye(3), [0, 0, -1])
        assert error.translation != error.line

    def test_the_smaller_error_or_their_mean_in_place_of_the_larger(self) -> None:
        pair = [PoseError(1, 9, 9)]
        assert pose_auc(pair, [5])[0] == 0
        assert pose_auc(errors(1), [5])[0] > 0.8
        assert pose_auc(errors(5), [10])[0] != pose_auc([PoseError(9, 1, 1)], [10])[0]

    def test_failures_that_are_left_out(self) -> None:
        failed = measure_pose(None, None, np.eye(3), [1, 0, 0])
        assert pose_auc([*errors(1), failed], [5])[0] < 0.6 * pose_auc(errors(1), [5])[0]

    def test_radians_or_the_wrong_limit(self) -> None:
        assert rotation_error(np.eye(3), turn(90)) == pytest.approx(90)
        assert len({round(float(value), 6) for value in pose_auc(errors(4))}) == 3
