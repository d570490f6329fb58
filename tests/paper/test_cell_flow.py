"""Answers between cells, on padding and without any cell; nearest neighbours behind the same door."""

import pytest
import torch
from torch import Tensor

from support.photo_cases import make_photo
from ucn.features.hog import DenseHog
from ucn.features.pair_matcher import NearestNeighbours
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.cells import match_forward
from ucn.matching.sub_cell import refine_sub_cell
from ucn.paper.cell_flow import CellFlow, pool_map, pool_mask, refine_points, round_to_grid
from ucn.types import FeatureMap


@pytest.fixture
def maps() -> tuple[FeatureMap, FeatureMap]:
    """A texture and itself, 10 pixels to the right and 6 below."""
    photo = make_photo(112, 136, seed=1, grain=9)
    views = photo[:, :96, :120].contiguous(), photo[:, 6:102, 10:130].contiguous()
    map0, map1 = (DenseHog().extract(view).map for view in views)
    return map0, map1


def shifted_flow(map0: FeatureMap) -> Tensor:
    """The nearest whole cells to a displacement of (-10, -6) pixels."""
    return torch.tensor([-2, -2]).expand(*map0.grid_hw, 2)


@pytest.mark.parametrize("use_refinement", [True, False])
def test_nearest_neighbours_are_those_of_matching(
    maps: tuple[FeatureMap, FeatureMap], use_refinement: bool
) -> None:
    points = torch.tensor([[60.0, 48.0], [71.5, 50.0]])
    is_allowed = torch.rand(maps[1].grid_hw, generator=torch.Generator().manual_seed(0)).flatten() > 0.5
    found = NearestNeighbours().align(*maps, is_allowed).find(points, use_refinement)
    wanted = match_forward(*maps, points, is_allowed1=is_allowed, use_refinement=use_refinement)
    assert torch.equal(found, wanted.points)


def test_points_move_with_their_nearest_cell() -> None:
    cells = FeatureMap(torch.ones(1, 1, 2, 3), stride=4, offset=2, image_hw=(8, 12))
    flow = torch.arange(12).view(2, 3, 2)
    found = CellFlow(cells, cells, flow)
    # Cell (1, 0) is centred on pixel (6, 2) and covers up to half a cell around it.
    points = torch.tensor([[6.0, 2.0], [4.5, 3.5], [-0.5, 7.5], [11.5, 7.5]])
    moved = torch.tensor([[2, 3], [2, 3], [6, 7], [10, 11]])
    assert torch.equal(found.find(points, use_refinement=False), points + 4.0 * moved)
    assert found.find(points[:0], use_refinement=False).shape == (0, 2)
    assert found.find(points[:0], use_refinement=True).shape == (0, 2)


def test_refined_answers_lie_between_cells(maps: tuple[FeatureMap, FeatureMap]) -> None:
    points = torch.tensor([[60.0, 48.0], [71.0, 50.0], [54.0, 57.0], [66.5, 52.25]])
    flow = CellFlow(*maps, shifted_flow(maps[0]))
    truth = points - torch.tensor([10.0, 6.0])
    assert (flow.find(points, use_refinement=False) - truth).abs().max() == 2
    assert (flow.find(points, use_refinement=True) - truth).abs().max() < 0.75


def test_refinement_moves_points_by_at_most_a_cell(maps: tuple[FeatureMap, FeatureMap]) -> None:
    points, cells1 = torch.tensor([[60.0, 48.0]]), torch.tensor([200])
    found = refine_sub_cell(*maps, points, cells1)
    w = maps[1].grid_hw[1]
    centre = torch.tensor([[200 % w, 200 // w]]) * 4.0 + 2
    assert (found.points - centre).abs().max() <= 4
    there = sample_descriptors(maps[1], found.points[None])[0]
    asked = sample_descriptors(maps[0], points[None])[0]
    assert torch.allclose((there * asked).sum(dim=1), found.similarities, atol=0.01)
    nearest = match_forward(*maps, points)
    index = match_forward(*maps, points, use_refinement=False).points.sub(2).div(4).long()
    again = refine_sub_cell(*maps, points, index[:, 1] * w + index[:, 0])
    assert torch.equal(again.points, nearest.points)


def test_points_on_other_cells_do_not_move(maps: tuple[FeatureMap, FeatureMap]) -> None:
    is_allowed = torch.zeros(maps[1].grid_hw, dtype=torch.bool)
    is_allowed[:, :12] = True
    points = torch.tensor([[40.0, 40.0], [100.0, 40.0]])
    moved = refine_points(*maps, points, points, is_allowed.flatten(), True)
    assert not torch.equal(moved[0], points[0])
    assert torch.equal(moved[1], points[1])
    nothing = refine_points(*maps, points, points, torch.zeros_like(is_allowed).flatten(), False)
    assert torch.isnan(nothing).all()


def test_rounding_to_the_grid() -> None:
    cells = torch.tensor([[0.49, 0.5], [-3.0, 1.2], [9.0, 9.0]])
    column, row = round_to_grid(cells, (3, 4))
    assert column.tolist() == [0, 0, 3]
    assert row.tolist() == [1, 1, 2]


def test_pooling_a_map() -> None:
    features = torch.arange(1.0, 31.0).view(1, 1, 5, 6).repeat(1, 2, 1, 1)
    features[:, 1] = 1
    cells = FeatureMap(features, stride=1, offset=0, image_hw=(5, 6))
    assert pool_map(cells, 1) is cells
    found = pool_map(cells, 2)
    assert (found.stride, found.offset, found.grid_hw, found.image_hw) == (2, 0.5, (3, 3), (5, 6))
    mean = torch.tensor([(1 + 2 + 7 + 8) / 4, 1.0])
    assert torch.allclose(found.features[0, :, 0, 0], mean / mean.norm())
    odd = pool_map(FeatureMap(features, stride=2, offset=0.5, image_hw=(10, 12)), 5)
    assert (odd.stride, odd.offset, odd.grid_hw) == (6, 2.5, (2, 2))
    is_allowed = torch.zeros(5, 6, dtype=torch.bool)
    is_allowed[:, :3] = True
    assert pool_mask(None, cells, 2) is None
    kept = pool_mask(is_allowed.flatten(), cells, 2)
    assert kept is not None and kept.view(3, 3).tolist() == [[True, True, False]] * 3
