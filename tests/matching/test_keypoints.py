"""Corners and grids of keypoints."""

import pytest
import torch
from torch import Tensor

from ucn.matching.keypoints import average_channels, detect_corners, grid_points, strongest_corners

SQUARE = 16


def chequerboard(rows: int, columns: int, contrast: float = 1.0) -> Tensor:
    """An image (3, H, W) of squares; inner corners lie between pixels, at 15.5, 31.5, …"""
    y = torch.arange(rows * SQUARE) // SQUARE
    x = torch.arange(columns * SQUARE) // SQUARE
    return ((y[:, None] + x) % 2).float().expand(3, -1, -1) * contrast


def inner_corners(rows: int, columns: int) -> Tensor:
    y = torch.arange(1, rows) * SQUARE - 0.5
    x = torch.arange(1, columns) * SQUARE - 0.5
    return torch.cartesian_prod(y, x).flip(-1)


@pytest.mark.parametrize("contrast", [1.0, 0.1])
def test_corners_of_a_chequerboard_are_found(contrast: float) -> None:
    corners = detect_corners(chequerboard(5, 8, contrast), 1000).points
    assert corners.dtype == torch.float32
    distances = torch.cdist(inner_corners(5, 8), corners)
    # Where squares touch, gradients cancel, so that the 5 px window answers most 1.5 px off along a diagonal.
    assert distances.amin(dim=1).max().item() <= 2.5
    assert distances.amin(dim=0)[: len(distances)].max().item() <= 2.5  # and nothing else is as strong


def test_a_corner_is_given_as_x_then_y() -> None:
    image = torch.zeros(3, 60, 100)
    image[:, 10:30, 40:90] = 1
    corners = detect_corners(image, 4).points
    wanted = torch.tensor([[39.5, 9.5], [89.5, 9.5], [39.5, 29.5], [89.5, 29.5]])
    assert torch.cdist(wanted, corners).amin(dim=1).max().item() <= 3  # found just inside the bright area


def test_corners_are_apart_and_at_most_max_count() -> None:
    image = torch.rand(3, 80, 80, generator=torch.Generator().manual_seed(0))
    every = detect_corners(image, 100_000).points
    assert len(every) > 100
    assert torch.pdist(every).min().item() >= 3
    strongest = detect_corners(image, 20).points
    assert strongest.shape == (20, 2)
    assert torch.equal(strongest, every[:20])


def test_corner_options() -> None:
    image = torch.rand(3, 80, 80, generator=torch.Generator().manual_seed(0))
    default = detect_corners(image, 500)
    assert (default.strengths.diff() <= 0).all()
    of_grey = detect_corners(average_channels(image), 500)
    assert of_grey.points.equal(default.points) and of_grey.strengths.equal(default.strengths)
    apart = detect_corners(image, 500, min_distance=9.0)
    assert torch.pdist(apart.points).min().item() >= 9
    refined = detect_corners(image, 500, use_subpixel=True)
    assert refined.strengths.equal(default.strengths)
    shifts = (refined.points - default.points).abs()
    assert 0 < shifts.max().item() <= 1
    assert default.points.equal(default.points.round())


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_count must be at least 1, got 0"):
        detect_corners(chequerboard(5, 8), 0)


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_a_blank_image_has_no_corners(value: float) -> None:
    assert detect_corners(torch.full((3, 64, 48), value), 100).points.shape == (0, 2)


def test_grid_points_by_hand() -> None:
    # Rows 0..4 in steps of 4 start at 0; columns 0..6 in steps of 4 leave 2 over, so they start at 1.
    points = grid_points((5, 7), 4)
    assert points.dtype == torch.float32
    assert points.tolist() == [[1, 0], [5, 0], [1, 4], [5, 4]]
    assert grid_points((3, 2), 1).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
    assert grid_points((4, 9), 100).tolist() == [[4, 1]]


def test_grid_grows_coarser_to_fit() -> None:
    assert grid_points((40, 60), 4, max_count=150).equal(grid_points((40, 60), 4))
    assert grid_points((40, 60), 4, max_count=149).equal(grid_points((40, 60), 5))
    assert len(grid_points((4000, 6000), 4, max_count=1)) == 1


@pytest.mark.parametrize(("size_hw", "step"), [((37, 64), 4), ((10, 10), 3), ((33, 100), 8)])
def test_grid_points_are_regular_and_centred(size_hw: tuple[int, int], step: int) -> None:
    points = grid_points(size_hw, step)
    for axis, size in ((0, size_hw[1]), (1, size_hw[0])):
        values = torch.tensor(sorted(set(points[:, axis].tolist())))
        assert (values.diff() == step).all()
        before, after = values[0].item(), size - 1 - values[-1].item()
        assert 0 <= after - before <= 1
        assert after < step


def eigenvalue_by_hand(image: Tensor, x: int, y: int) -> float:
    """The smaller eigenvalue of the mean of 5 × 5 gradient products, pixel by pixel."""
    grey = image.mean(dim=0).double()
    height, width = grey.shape
    total = torch.zeros(2, 2, dtype=torch.float64)
    for row in range(y - 2, y + 3):
        for column in range(x - 2, x + 3):
            if not (0 <= row < height and 0 <= column < width):
                continue
            left, right = max(column - 1, 0), min(column + 1, width - 1)
            above, below = max(row - 1, 0), min(row + 1, height - 1)
            gradient = torch.stack(
                [(grey[row, right] - grey[row, left]) / 2, (grey[below, column] - grey[above, column]) / 2]
            )
            total += torch.outer(gradient, gradient) / 25
    return float(torch.linalg.eigvalsh(total)[0])


class TestStrongestCorners:
    def test_strengths_are_eigenvalues(self) -> None:
        images = torch.rand(2, 3, 20, 24, generator=torch.Generator().manual_seed(0))
        points, strengths = strongest_corners(images, 6)
        assert points.shape == (2, 6, 2)
        assert (strengths[:, :-1] >= strengths[:, 1:]).all()
        for image, places, values in zip(images, points.int().tolist(), strengths.tolist(), strict=True):
            for (x, y), value in zip(places, values, strict=True):
                assert value == pytest.approx(eigenvalue_by_hand(image, x, y), rel=1e-3, abs=1e-6)

    def test_corners_of_a_square(self) -> None:
        image = torch.zeros(1, 3, 40, 50)
        image[..., 10:31, 20:36] = 1
        points, strengths = strongest_corners(image, 4)
        assert (strengths > 0).all()
        true = torch.tensor([[20.0, 10.0], [35.0, 10.0], [20.0, 30.0], [35.0, 30.0]])
        assert torch.cdist(true, points[0]).amin(dim=1).max() <= 2

    def test_blank_and_small_images_have_k_rows(self) -> None:
        points, strengths = strongest_corners(torch.full((1, 3, 8, 9), 0.5), 100)
        assert points.shape == (1, 100, 2)
        assert not strengths.any()
        assert not points.any()

    def test_weights_hide(self) -> None:
        images = torch.rand(1, 3, 30, 40, generator=torch.Generator().manual_seed(0))
        weights = torch.zeros(1, 1, 30, 40)
        weights[..., 20:] = 1
        points, strengths = strongest_corners(images, 50, weights)
        assert (points[strengths > 0][:, 0] >= 20).all()
        assert (strengths > 0).any()
