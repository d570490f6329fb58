"""Sub-cell refinement of matches between cells, on maps whose answer is known."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import cell_centres, pixel_grid
from ucn.matching.cells import match_forward
from ucn.matching.sub_cell import interpolate_shift
from ucn.types import FeatureMap

_SIDE = 24  # cells


def _noisy_map(shift_xy: tuple[float, float], seed: int, noise: float = 0.3) -> FeatureMap:
    """Smooth descriptors seen `shift_xy` cells further right and down, each cell with noise of its own."""
    generator = torch.Generator().manual_seed(0)
    frequencies = torch.randn(64, 2, generator=generator) * 0.5
    phases = torch.rand(64, generator=generator) * 2 * math.pi
    cells = pixel_grid((_SIDE, _SIDE)) - torch.tensor(shift_xy)
    features = torch.sin(cells @ frequencies.t() + phases)
    features = features + noise * torch.randn(features.shape, generator=generator.manual_seed(seed))
    return FeatureMap(F.normalize(features, dim=-1).permute(2, 0, 1)[None], 4, 2.0, (4 * _SIDE, 4 * _SIDE))


def _inner_points() -> Tensor:
    return torch.rand(300, 2, generator=torch.Generator().manual_seed(3)) * 56 + 20


def test_points_between_cells_are_placed_more_accurately() -> None:
    shift = torch.tensor((0.45, -1.4))
    map0, map1 = _noisy_map((0.0, 0.0), seed=1), _noisy_map((0.45, -1.4), seed=2)
    points0 = _inner_points()
    found = match_forward(map0, map1, points0).points
    moved = interpolate_shift(map0, map1, points0, found)
    before, after = ((points - points0 - 4 * shift).norm(dim=1).median() for points in (found, moved))
    assert after < 0.6 * before


def test_matches_of_cell_centres_keep_their_place() -> None:
    map0, map1 = _noisy_map((0.0, 0.0), seed=1, noise=0.0), _noisy_map((0.3, -0.2), seed=1, noise=0.0)
    centres = cell_centres(map0)[[8 * _SIDE + 9, 15 * _SIDE + 6]]
    found = match_forward(map0, map1, centres).points
    torch.testing.assert_close(interpolate_shift(map0, map1, centres, found), found)


def test_cells_that_moved_otherwise_do_not_count() -> None:
    left, right = _noisy_map((0.0, 0.0), seed=1, noise=0.0), _noisy_map((3.0, 0.0), seed=1, noise=0.0)
    features = left.features.clone()
    features[..., 12:] = right.features[..., 12:]  # an edge: cells from column 12 on move by 3 cells
    map1 = FeatureMap(features, 4, 2.0, left.image_hw)
    points0 = torch.tensor([[4 * 11 + 3.0, 50.0]])  # in column 11, next to the edge
    moved = interpolate_shift(left, map1, points0, points0)
    assert (moved - points0).norm() < 0.3


def test_masks_missing_matches_and_no_points() -> None:
    map0 = _noisy_map((0.0, 0.0), seed=1)
    points0 = torch.tensor([[30.0, 41.0], [50.0, 37.0]])
    found = torch.stack([points0[0], points0.new_full((2,), math.nan)])
    moved = interpolate_shift(map0, map0, points0, found)
    assert (moved[0] - points0[0]).norm() < 0.5 and moved[1].isnan().all()
    nothing = torch.zeros(_SIDE**2, dtype=torch.bool)
    torch.testing.assert_close(
        interpolate_shift(map0, map0, points0, found, nothing), found, equal_nan=True, rtol=0, atol=0
    )
    assert interpolate_shift(map0, map0, points0[:0], found[:0]).shape == (0, 2)
