"""SIFT Flow on textures whose displacements are known, and its pyramid."""

import pytest
import torch

from support.flow_cases import deform_texture, find_errors
from ucn.features.classical import DenseSift, PixelSift
from ucn.features.pair_matcher import NearestNeighbours
from ucn.paper.sift_flow import SiftFlow, build_pyramid, upsample_flow
from ucn.types import FeatureMap


def test_a_shift_larger_than_any_window() -> None:
    # 26 cells to the left on a grid of 120: found on the coarsest level, carried down to whole pixels.
    errors = find_errors(
        PixelSift(), SiftFlow(), deform_texture((90, 120), (26.0, -9.0)), use_refinement=False
    )
    assert errors.quantile(0.9) < 0.01


def test_waves_are_followed() -> None:
    views = deform_texture((96, 112), (7.0, 4.0), waves=4.0)
    errors = find_errors(PixelSift(), SiftFlow(), views)
    assert errors.median() < 1
    assert errors.quantile(0.9) < 2
    assert errors.mean() < 0.3 * find_errors(PixelSift(), NearestNeighbours(), views).mean()


def test_any_features_will_do() -> None:
    views = deform_texture((128, 144), (-13.0, 10.0), waves=3.0)
    assert find_errors(DenseSift(), SiftFlow(), views).quantile(0.9) < 3


def test_it_is_deterministic() -> None:
    views = deform_texture((64, 72), (5.0, 3.0), waves=2.0)
    threads = torch.get_num_threads()
    first, second = (find_errors(PixelSift(stride=2), SiftFlow(), views) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.get_num_threads() == threads  # while it works there is one


def test_smoothness_decides_where_features_do_not() -> None:
    # A row of cells that are alike but for the ends, which agree on a displacement of 2.
    features = torch.zeros(1, 12, 1, 40)
    features[0, 0] = 1
    for cell in (*range(5), *range(35, 40)):
        features[0, :, 0, cell] = torch.eye(12)[1 + cell % 11]
    map0 = FeatureMap(features, 1, 0, (1, 40))
    map1 = FeatureMap(features.roll(2, dims=-1), 1, 0, (1, 40))
    points = torch.tensor([[float(x), 0.0] for x in range(8, 33)])
    found = SiftFlow().align(map0, map1).find(points, use_refinement=False)
    assert torch.equal(found - points, torch.tensor([2.0, 0.0]).expand(25, 2))


def test_padding_is_not_matched() -> None:
    views = deform_texture((64, 80), (6.0, 0.0))
    map0, map1 = (PixelSift(stride=2).extract(image).map for image in (views.image0, views.image1))
    is_allowed = torch.zeros(map1.grid_hw, dtype=torch.bool)
    is_allowed[:, 20:] = True
    found = SiftFlow().align(map0, map1, is_allowed.flatten()).find(views.points0, use_refinement=False)
    is_hidden = views.points1[:, 0] < 44
    errors = (found - views.points1).norm(dim=-1)
    assert is_hidden.any()
    assert errors[~is_hidden].quantile(0.9) <= 1
    nothing = SiftFlow().align(map0, map1, torch.zeros_like(is_allowed).flatten())
    assert torch.isnan(nothing.find(views.points0[:3], use_refinement=True)).all()


def test_maps_of_other_sizes() -> None:
    views = deform_texture((66, 90), (9.0, 5.0))
    map0 = PixelSift(stride=2).extract(views.image0[:, :50, :70].contiguous()).map
    map1 = PixelSift(stride=2).extract(views.image1).map
    is_there = (views.points0 < torch.tensor([58.0, 38.0])).all(dim=-1)
    found = SiftFlow().align(map0, map1).find(views.points0[is_there], use_refinement=True)
    assert (found - views.points1[is_there]).norm(dim=-1).quantile(0.9) < 1
    assert SiftFlow().align(map0, map1).find(torch.zeros(0, 2), use_refinement=True).shape == (0, 2)


@pytest.mark.parametrize(("size", "other", "levels"), [((10, 81), (5, 5), 2), ((7, 9), (90, 3), 3)])
def test_both_pyramids_have_the_same_levels(
    size: tuple[int, int], other: tuple[int, int], levels: int
) -> None:
    features = torch.rand(2, *size, generator=torch.Generator().manual_seed(0))
    pyramid = build_pyramid(features, 41, other)
    assert len(pyramid) == levels == len(build_pyramid(torch.rand(2, *other), 41, size))
    assert torch.allclose(pyramid[1][:, 2, 3], features[:, 4:6, 6:8].mean(dim=(1, 2)))
    # An odd last column is averaged with itself.
    assert pyramid[1].shape[-2:] == ((size[0] + 1) // 2, (size[1] + 1) // 2)
    assert torch.allclose(pyramid[1][:, 1, -1], features[:, 2:4, -1].mean(dim=1))


def test_upsampling_a_flow() -> None:
    flow = torch.tensor([[[1, -2]], [[0, 3]]])
    assert upsample_flow(flow, torch.zeros(5, 2, 3)).tolist() == [
        [[2, 2, -4], [2, 2, -4]],
        [[0, 0, 6], [0, 0, 6]],
    ]


def test_shortness_is_of_the_whole_displacement_not_of_the_step() -> None:
    # Cells that are all alike: of a flow of 2 from the coarser level nothing stays but what η leaves.
    features = torch.ones(3, 6, 7)
    flow = torch.full((2, 6, 7), 2)
    improved = SiftFlow()._improve(features, features, flow, None, is_coarsest=False, is_finest=True)
    assert torch.equal(improved, torch.zeros_like(flow))
