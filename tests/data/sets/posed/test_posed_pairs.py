"""Rigid motions, keyed files, matrices and frame pairs by gap."""

from pathlib import Path

import numpy as np
import pytest
import torch

from support.remedy_rule import refused
from ucn.data.sets.posed.posed_pairs import (
    FramePairs,
    check_gaps,
    check_rotation,
    invert,
    make_sample,
    move,
    read_keyed_file,
    read_matrix,
    rigid,
)
from ucn.errors import DataError

TURN = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # x to y


def test_rigid_motions_by_hand() -> None:
    T = rigid(TURN, [1.0, 2.0, 3.0])
    assert move(T, np.array([[1.0, 0.0, 0.0]])).tolist() == [[1, 3, 3]]
    np.testing.assert_allclose(invert(T) @ T, np.eye(4))
    assert move(invert(T), np.array([[1.0, 3.0, 3.0]])).tolist() == [[1, 0, 0]]


def test_what_is_no_rotation() -> None:
    check_rotation(TURN, "here")
    for wrong in (2 * TURN, np.diag([1.0, 1.0, -1.0]), np.zeros((3, 3))):
        with refused("here: expected a rotation matrix"):
            check_rotation(wrong, "here")


def list_pairs(pairs: FramePairs) -> list[tuple[int, int, int]]:
    return [pairs.locate(index) for index in range(len(pairs))]


def test_frame_pairs_by_hand() -> None:
    pairs = FramePairs()
    assert pairs.add([10, 11, 14], [10, 11, 12, 14], 1, 2) == 3
    assert pairs.add([], [], 1, 2) == 0
    assert pairs.add([5], [6, 7, 8], 2, 9) == 2
    assert list_pairs(pairs) == [(0, 10, 11), (0, 10, 12), (0, 11, 12), (2, 5, 7), (2, 5, 8)]
    assert pairs.add([5, 6], [6, 7, 8], 3, 2) == 0
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"there is no pair {index}"):
            pairs.locate(index)


@pytest.mark.parametrize(("min_gap", "max_gap"), [(1, 1), (1, 5), (3, 7), (50, 90)])
def test_frame_pairs_equal_the_double_loop(min_gap: int, max_gap: int) -> None:
    generator = np.random.default_rng(0)
    pairs, expected = FramePairs(), []
    for sequence in range(3):
        firsts = generator.choice(60, 20, replace=False).tolist()
        seconds = generator.choice(60, 30, replace=False).tolist()
        pairs.add(firsts, seconds, min_gap, max_gap)
        expected += [
            (sequence, a, b) for a in sorted(firsts) for b in sorted(seconds) if min_gap <= b - a <= max_gap
        ]
    assert list_pairs(pairs) == expected


def test_millions_of_pairs_are_not_stored() -> None:
    pairs = FramePairs()
    pairs.add(range(200_000), range(200_000), 1, 30)
    assert len(pairs) == 200_000 * 30 - 30 * 31 // 2
    assert pairs.locate(3_000_000) == (0, 100_000, 100_001)


def test_gaps_that_leave_nothing() -> None:
    check_gaps(1, 1, "set")
    for gaps in ((0, 3), (4, 3)):
        with pytest.raises(DataError, match=f"set needs 1 <= min_gap <= max_gap, got min_gap {gaps[0]}"):
            check_gaps(*gaps, "set")


def test_keyed_files(tmp_path: Path) -> None:
    path = tmp_path / "calib.txt"
    path.write_text("calib_time: 09-Jan-2012\nR: 0 -1 0 1 0 0 0 0 1\nT: 1 2 3\nP: 1 2\nQ: 1 0 x\n")
    file = read_keyed_file(path, "calibration")
    np.testing.assert_array_equal(file.motion(), rigid(TURN, [1.0, 2.0, 3.0]))
    with refused(r"calib.txt: expected a line 'S:' with 9 numbers, got none"):
        file.matrix("S", 3, 3)
    with refused(r"calib.txt:4: expected 3 numbers, got 2"):
        file.matrix("P", 3, 1)
    with refused(r"calib.txt:5: expected a number, got 'x'"):
        file.matrix("Q", 3, 1)
    path.write_text("R: 2 0 0 0 2 0 0 0 2\nT: 1 2 3\n")
    with refused(r"calib.txt:1: expected a rotation matrix"):
        read_keyed_file(path, "calibration").motion()
    path.write_text("no key here\n")
    with refused(r"calib.txt:1: expected 'key: numbers', got 'no key here'"):
        read_keyed_file(path, "calibration")


def test_matrices(tmp_path: Path) -> None:
    path = tmp_path / "K.txt"
    path.write_text("1 2\n\n3 4e0\n")
    assert read_matrix(path, 2, 2, "matrix").tolist() == [[1, 2], [3, 4]]
    with refused(r"K.txt: expected 3 lines of 2 numbers, got 2"):
        read_matrix(path, 3, 2, "matrix")
    path.write_text("1 2\n3 inf\n")
    with refused(r"K.txt:2: expected a finite number, got 'inf'"):
        read_matrix(path, 2, 2, "matrix")
    with pytest.raises(DataError, match=r"cannot read matrix .*absent.txt: no such file"):
        read_matrix(tmp_path / "absent.txt", 2, 2, "matrix")


def test_a_sample_has_only_points_on_both_images() -> None:
    image = torch.zeros(3, 4, 6)
    points0 = torch.tensor([[0.0, 0], [5.5, 3.5], [2, 2], [2, 2], [-0.6, 0]], dtype=torch.float64)
    points1 = torch.tensor([[1.0, 1], [5.5, 3.5], [6, 2], [torch.nan, 2], [1, 1]], dtype=torch.float64)
    sample = make_sample(image, image, points0, points1, "name")
    assert sample.points0.dtype == torch.float32
    assert sample.points1.tolist() == [[1, 1], [5.5, 3.5]]
