"""Matching on maps whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import cell_centres, pixel_grid
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.cells import interpolate_to_pixels, match_forward, match_points, similarity_map
from ucn.types import FeatureMap


def _smooth_map(h: int, w: int, shift_xy: tuple[float, float] = (0.0, 0.0), seed: int = 0) -> FeatureMap:
    """Descriptors that vary smoothly and nowhere repeat, seen `shift_xy` cells further right and down."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(32, 2, generator=generator) * 0.5
    phases = torch.rand(32, generator=generator) * 2 * math.pi
    cells = pixel_grid((h, w)) - torch.tensor(shift_xy)
    features = torch.sin(cells @ frequencies.t() + phases).permute(2, 0, 1)[None]
    return FeatureMap(F.normalize(features, dim=1), 4, 2.0, (4 * h, 4 * w))


def _inner_points(count: int = 40, seed: int = 3) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 40 + 30


def test_whole_cell_shifts_are_found_exactly() -> None:
    map0, map1 = _smooth_map(25, 25), _smooth_map(25, 25, (2.0, -3.0))
    points0 = cell_centres(map0)[[12 * 25 + 12, 10 * 25 + 14]]
    found = match_forward(map0, map1, points0, use_refinement=False)
    torch.testing.assert_close(found.points, points0 + torch.tensor([8.0, -12.0]))
    torch.testing.assert_close(found.similarities, torch.ones(2))


@pytest.mark.parametrize("shift", [(0.25, 0.0), (0.5, 0.5), (-0.3, 0.7), (1.9, -0.1)])
def test_refinement_finds_shifts_between_cells(shift: tuple[float, float]) -> None:
    map0, map1 = _smooth_map(25, 25), _smooth_map(25, 25, shift)
    points0 = _inner_points()
    truth = points0 + 4 * torch.tensor(shift)
    coarse = (match_forward(map0, map1, points0, use_refinement=False).points - truth).norm(dim=1)
    fine = (match_forward(map0, map1, points0).points - truth).norm(dim=1)
    assert fine.median() < 0.25
    assert fine.median() < 0.5 * coarse.median()


def test_refined_position_is_where_a_fine_search_finds_the_peak() -> None:
    map0, map1 = _smooth_map(25, 25), _smooth_map(25, 25, (0.4, -0.3), seed=0)
    points0 = _inner_points(8)
    found = match_forward(map0, map1, points0)
    queries = sample_descriptors(map0, points0[None])[0]
    coarse = match_forward(map0, map1, points0, use_refinement=False).points
    steps = torch.linspace(-4, 4, 129)  # one cell each way, in 1/16 px
    for n in range(len(points0)):
        grid = coarse[n] + torch.cartesian_prod(steps, steps)
        surface = sample_descriptors(map1, grid[None])[0] @ queries[n]
        assert found.similarities[n] >= surface.max() - 1e-3
        assert (found.points[n] - grid[surface.argmax()]).norm() < 0.25  # half a step of the fine grid


def test_refinement_stays_on_the_map() -> None:
    map0 = _smooth_map(9, 9)
    corners = cell_centres(map0)[[0, 8, 72, 80]]
    found = match_forward(map0, map0, corners)
    torch.testing.assert_close(found.points, corners, atol=0.05, rtol=0)


def test_maps_of_different_sizes_and_one_cell() -> None:
    map0 = _smooth_map(7, 12)
    one = FeatureMap(map0.features[:, :, 3:4, 5:6], 4, 2.0, (4, 4))
    found = match_forward(map0, one, _inner_points(5) / 4)
    torch.testing.assert_close(found.points, torch.full((5, 2), 2.0))


def test_no_points_and_no_allowed_cells() -> None:
    map0 = _smooth_map(8, 8)
    empty = match_points(map0, map0, torch.zeros(0, 2), second_best_radius=8.0)
    assert empty.points1.shape == (0, 2) and empty.round_trip_errors.shape == (0,)
    nowhere = torch.zeros(64, dtype=torch.bool)
    found = match_points(map0, map0, torch.ones(3, 2), second_best_radius=8.0, is_allowed1=nowhere)
    assert found.points1.isnan().all()
    assert found.similarities.tolist() == [-1, -1, -1]
    assert found.round_trip_errors.isinf().all()


def test_only_allowed_cells_match() -> None:
    map0 = _smooth_map(10, 10)
    points0 = cell_centres(map0)[[22, 77]]
    is_allowed1 = torch.ones(100, dtype=torch.bool)
    is_allowed1[22] = False
    found = match_forward(map0, map0, points0, is_allowed1=is_allowed1, use_refinement=False)
    assert (found.points[0] - points0[0]).norm() >= 4
    torch.testing.assert_close(found.points[1], points0[1])
    # Refinement looks at the neighbours of the right cell, though cells were left out before it.
    refined = match_forward(map0, map0, points0, is_allowed1=is_allowed1)
    torch.testing.assert_close(refined.points[1], points0[1], atol=0.25, rtol=0)


def _one_hot_map(indices: list[int]) -> FeatureMap:
    """A single row of cells, each with a unit vector of its own number."""
    features = F.one_hot(torch.tensor(indices), 8).float().t()[None, :, None]
    return FeatureMap(features, 4, 2.0, (4, 4 * len(indices)))


def test_second_best_lies_outside_the_radius_in_image_1() -> None:
    map0 = _one_hot_map([0, 1, 2, 3, 4, 5])
    map1 = _one_hot_map([5, 0, 0, 2, 6, 0])  # cell 0 of image 0 appears at cells 1, 2 and 5 of image 1
    point = torch.tensor([[2.0, 2.0]])
    near = match_points(map0, map1, point, second_best_radius=4.0, use_refinement=False)
    assert near.points1.tolist() == [[6.0, 2.0]]
    assert near.second_best.item() == pytest.approx(1.0)  # the one at cell 5
    far = match_points(map0, map1, point, second_best_radius=16.0, use_refinement=False)
    assert far.second_best.item() == pytest.approx(-1.0)  # nothing is farther than 16 px from cell 1
    some = match_points(map0, map1, point, second_best_radius=12.0, use_refinement=False)
    assert some.second_best.item() == pytest.approx(1.0)


def test_round_trip_error_is_measured_in_image_0() -> None:
    map0 = _one_hot_map([0, 1, 1, 3, 4, 1])
    map1 = _one_hot_map([4, 0, 1])
    points = cell_centres(map0)[[0, 1, 5]]
    found = match_points(map0, map1, points, second_best_radius=0.0, use_refinement=False)
    # Cell 2 of image 1 goes back to the first of its equals, cell 1: 0 px from query 1, 16 px from query 5.
    assert found.round_trip_errors.tolist() == [0.0, 0.0, 16.0]


def test_small_budget_gives_the_same_matches() -> None:
    map0, map1 = _smooth_map(25, 25), _smooth_map(25, 25, (0.4, 0.2))
    points0 = _inner_points(50)
    large = match_points(map0, map1, points0, second_best_radius=16.0)
    small = match_points(map0, map1, points0, second_best_radius=16.0, memory_bytes=2**16)
    for name in vars(large):
        torch.testing.assert_close(getattr(small, name), getattr(large, name), atol=1e-4, rtol=1e-4)


def test_interpolation_is_exact_on_a_ramp_between_cell_centres() -> None:
    feature_map = FeatureMap(torch.zeros(1, 1, 6, 9), 4, 2.0, (24, 36))
    centres = cell_centres(feature_map)
    spread = interpolate_to_pixels(centres, torch.ones(54), feature_map, (24, 36))
    inner = pixel_grid((24, 36))[2:23, 2:35]
    torch.testing.assert_close(spread[2:23, 2:35], inner, atol=1e-4, rtol=0)


def test_interpolation_follows_confident_cells() -> None:
    feature_map = FeatureMap(torch.zeros(1, 1, 1, 2), 4, 2.0, (4, 8))
    values = torch.tensor([[10.0], [-500.0]])
    spread = interpolate_to_pixels(values, torch.tensor([1.0, 0.0]), feature_map, (4, 8))
    assert spread[0, 4, 0].item() == pytest.approx(10.0, abs=0.01)
    # At twice the size the same place has twice the coordinates.
    doubled = interpolate_to_pixels(values, torch.tensor([1.0, 1.0]), feature_map, (8, 16))
    assert doubled.shape == (8, 16, 1)
    assert doubled[0, 0, 0].item() == 10.0 and doubled[0, 15, 0].item() == -500.0


def test_similarity_map_is_the_cosine_of_each_cell() -> None:
    map0, map1 = _smooth_map(9, 11), _smooth_map(7, 13, seed=1)
    point = torch.tensor([17.0, 21.5])
    found = similarity_map(map0, map1, point)
    descriptor = sample_descriptors(map0, point[None, None])[0, 0]
    assert found.shape == (7, 13)
    for row, column in ((0, 0), (3, 12), (6, 5)):
        expected = sum(a * b for a, b in zip(descriptor, map1.features[0, :, row, column], strict=True))
        assert found[row, column].item() == pytest.approx(float(expected), abs=1e-5)
    same = similarity_map(map0, map0, torch.tensor([18.0, 22.0]))  # the centre of cell (5, 4)
    assert divmod(int(same.argmax()), 11) == (5, 4)
    assert same.max().item() == pytest.approx(1.0, abs=1e-5)
