import numpy as np
import pytest
import torch
from torch import Tensor

from support.batch_cases import make_texture
from ucn.folders.keypoint_adjustment import MAX_SHIFT, _Alignments, _build_rows, _solve, adjust_keypoints
from ucn.types import FloatArray


def make_images(shifts: list[tuple[float, float]]) -> list[Tensor]:
    """The same texture, smoothed, moved by parts of a pixel."""
    grey = torch.from_numpy(make_texture((70, 90), 0)).float().mean(dim=2)[None, None] / 255
    smooth = torch.nn.functional.avg_pool2d(grey, 3, stride=1, padding=1)
    images = []
    for x, y in shifts:
        rows, columns = torch.meshgrid(torch.arange(70.0), torch.arange(90.0), indexing="ij")
        images.append(_read(smooth[0, 0], columns - x, rows - y))
    return images


def _read(grey: Tensor, x: Tensor, y: Tensor) -> Tensor:
    x0, y0 = x.floor().long().clamp(0, 88), y.floor().long().clamp(0, 68)
    a, b = (x - x0).clamp(0, 1), (y - y0).clamp(0, 1)
    top = (1 - a) * grey[y0, x0] + a * grey[y0, x0 + 1]
    return (1 - b) * top + b * ((1 - a) * grey[y0 + 1, x0] + a * grey[y0 + 1, x0 + 1])


def make_points(seed: int, noise: float, shift: tuple[float, float]) -> FloatArray:
    places = np.random.default_rng(9).uniform([12, 12], [78, 58], (60, 2)).round()
    errors = np.random.default_rng(seed).normal(size=(60, 2)) * noise
    return (places + errors + shift).astype(np.float32)


SHIFTS = [(0.0, 0.0), (0.4, -0.3), (-0.6, 0.2)]
ALL = np.stack([np.arange(60)] * 2, axis=1)
PAIRS = {(0, 1): ALL, (0, 2): ALL, (1, 2): ALL}


def test_keypoints_of_one_place_meet() -> None:
    images = make_images(SHIFTS)
    points = [make_points(seed, 0.5, shift) for seed, shift in enumerate(SHIFTS)]
    adjusted = adjust_keypoints(points, PAIRS, lambda number: images[number])

    def spread(keypoints: list[FloatArray]) -> float:
        apart = [
            np.linalg.norm((keypoints[i] - SHIFTS[i]) - (keypoints[j] - SHIFTS[j]), axis=1) for i, j in PAIRS
        ]
        return float(np.median(np.concatenate(apart)))

    assert spread(points) > 0.5
    assert spread(adjusted.keypoints) < 0.1
    assert sum(map(len, adjusted.matches.values())) > 0.8 * sum(map(len, PAIRS.values()))
    assert 0.1 < adjusted.moved < 1
    again = adjust_keypoints(points, PAIRS, lambda number: images[number])
    for first, second in zip(adjusted.keypoints, again.keypoints, strict=True):
        np.testing.assert_array_equal(first, second)


def test_wrong_match_is_dropped() -> None:
    images = make_images(SHIFTS)
    points = [make_points(seed, 0.2, shift) for seed, shift in enumerate(SHIFTS)]
    wrong = ALL.copy()
    wrong[[3, 4], 1] = [4, 3]
    adjusted = adjust_keypoints(points, {**PAIRS, (0, 1): wrong}, lambda number: images[number])
    kept = adjusted.matches[0, 1].tolist()
    assert [3, 4] not in kept
    assert [4, 3] not in kept
    assert len(kept) > 45


def test_images_without_a_common_surface_change_nothing() -> None:
    images = [torch.from_numpy(make_texture((70, 90), seed)).float().mean(dim=2) / 255 for seed in (1, 2)]
    points = [make_points(seed, 0.2, (0, 0)) for seed in range(2)]
    adjusted = adjust_keypoints(points, {(0, 1): ALL}, lambda number: images[number])
    for before, after in zip(points, adjusted.keypoints, strict=True):
        np.testing.assert_array_equal(before, after)
    assert adjusted.matches[0, 1].tolist() == ALL.tolist()
    assert adjusted.moved == 0


@pytest.mark.parametrize("matches", [{}, {(0, 1): ALL[:0]}])
def test_no_matches(matches: dict[tuple[int, int], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]) -> None:
    points = [make_points(seed, 0, (0, 0)) for seed in range(2)]
    adjusted = adjust_keypoints(points, matches, lambda _number: torch.zeros(70, 90))
    np.testing.assert_array_equal(adjusted.keypoints[0], points[0])
    assert adjusted.moved == 0
    assert sum(map(len, adjusted.matches.values())) == 0


def make_alignments(residuals: list[list[float]], linear: object = None, unit: float = 1.0) -> _Alignments:
    count = len(residuals)
    shapes = np.broadcast_to(np.eye(2) if linear is None else np.asarray(linear, np.float64), (count, 2, 2))
    rows = np.arange(count)
    units = np.broadcast_to([1.0, unit], (count, 2))
    return _Alignments(2 * rows, 2 * rows + 1, shapes, np.array(residuals), np.ones(count, np.bool_), units)


def test_two_keypoints_share_the_displacement() -> None:
    """Two springs of 0.05 and a match of weight about 1: each goes half of it, in opposite directions."""
    moves = _solve(make_alignments([[0.2, 0.0]]), 2)
    np.testing.assert_allclose(moves[1], -moves[0], atol=1e-6)
    np.testing.assert_allclose(moves[1] - moves[0], [0.2, 0], atol=0.01)


def test_moves_follow_a_turn_of_the_image() -> None:
    turn = [[0.0, -1.0], [1.0, 0.0]]  # a step to the right in image 0 is one down in image 1
    moves = _solve(make_alignments([[0.0, 0.2]], turn), 2)
    np.testing.assert_allclose(moves[1] - np.array(turn) @ moves[0], [0, 0.2], atol=0.01)
    assert moves[0][0] < -0.05
    assert abs(moves[0][1]) < 1e-6


def test_both_images_share_a_displacement_in_their_own_units() -> None:
    """Image 1 shows all four times as large: its keypoint goes four times as far as the other one."""
    moves = _solve(make_alignments([[0.8, 0.0]], 4 * np.eye(2), unit=4.0), 2)
    plain = _solve(make_alignments([[0.2, 0.0]]), 2)
    np.testing.assert_allclose(moves, plain * [[1], [4]], atol=1e-4)
    assert _solve(make_alignments([[3 * MAX_SHIFT, 0.0]], 4 * np.eye(2), unit=4.0), 2).any()


@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_image_three_times_as_large_is_compared_reduced(is_swapped: bool) -> None:
    small = make_images([(0.0, 0.0)])[0]
    large = torch.nn.functional.interpolate(small[None, None], scale_factor=3, mode="bicubic")[0, 0]
    truth = [make_points(0, 0.0, (0, 0)), (make_points(0, 0.0, (0, 0)) + 0.5) * 3 - 0.5]
    noise = np.random.default_rng(1).normal(size=(60, 2)).astype(np.float32)
    images, points = [small, large], [truth[0], truth[1] + noise]
    if is_swapped:
        images, points, truth = images[::-1], points[::-1], truth[::-1]
    found = adjust_keypoints(points, {(0, 1): ALL}, lambda number: images[number])
    near, far = (found.keypoints[int(is_large != is_swapped)] for is_large in (False, True))
    errors = np.linalg.norm((near + 0.5) * 3 - 0.5 - far, axis=1)
    assert np.median(np.linalg.norm(noise, axis=1)) > 0.8
    assert np.median(errors) < 0.2
    assert len(found.matches[0, 1]) > 50


def test_too_far_is_not_gone() -> None:
    assert not _solve(make_alignments([[3 * MAX_SHIFT, 0.0]]), 2).any()


def test_equations_by_hand() -> None:
    linear = [[2.0, 3.0], [5.0, 7.0]]
    rows = _build_rows(make_alignments([[0.0, 0.0]], linear), np.array([0.5]), 2).toarray()
    np.testing.assert_allclose(rows, [[-1, -1.5, 0.5, 0], [-2.5, -3.5, 0, 0.5]])
