"""Scenes of several planes: occlusion in the ground truth, and consistent cameras."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.photo_cases import write_photos
from ucn.config import SyntheticConfig
from ucn.data.io import write_image
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.data.synthetic.parallax import (
    Scenes,
    find_front,
    sample_scene_sources,
    sample_scenes,
    scales_at_centre,
)
from ucn.geometry.coords import is_inside
from ucn.geometry.sampling import sample_image
from ucn.geometry.warp import homography_from_points, warp_points
from ucn.types import PairBatch

PLAIN = SyntheticConfig(side=128, points=400, photometric=0.0, parallax_share=1.0, max_scale=1.3)
COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255), (0, 0, 0)]


@pytest.fixture
def flat_bank(tmp_path: Path) -> ImageBank:
    """Photographs of one colour each, so that a colour tells the plane."""
    paths = []
    for index, colour in enumerate(COLOURS):
        paths.append(tmp_path / f"{index}.png")
        write_image(paths[-1], np.full((200, 200, 3), colour, dtype=np.uint8), overwrite=True)
    return ImageBank(paths, 200, "cpu")


@pytest.fixture
def bank(tmp_path: Path) -> ImageBank:
    return ImageBank(write_photos(tmp_path / "photos", [(230, 250), (240, 200), (200, 200)]), 256, "cpu")


def draw(bank: ImageBank, config: SyntheticConfig = PLAIN, batch: int = 8, seed: int = 0) -> PairBatch:
    return make_pairs(bank, batch, config, torch.Generator().manual_seed(seed))


def read_colours(images: Tensor, points: Tensor) -> Tensor:
    return sample_image(images, points[:, :, None], "border")[..., 0].transpose(1, 2)  # (B, N, 3)


def planes_shown(images: Tensor, points: Tensor) -> Tensor:
    """(B, N) int64: which of `COLOURS` images show at points."""
    palette = torch.tensor(COLOURS) / 255
    return torch.cdist(read_colours(images, points), palette.expand(len(images), -1, -1)).argmin(-1)


@pytest.mark.parametrize("planes", [2, 3, 5])
def test_the_ground_truth_has_only_points_whose_plane_is_in_front_in_both_views(
    flat_bank: ImageBank, planes: int
) -> None:
    config = replace(PLAIN, parallax_planes=planes, parallax=0.4)
    batch = draw(flat_bank, config, batch=24)
    keep = batch.is_valid
    shown0 = planes_shown(batch.image0, batch.points0)[keep]
    shown1 = planes_shown(batch.image1, batch.points1.nan_to_num())[keep]
    assert keep.sum() > 5000
    assert torch.equal(shown0, shown1)
    # Edges are a pixel wide and the ground truth keeps off them, so the colours are pure.
    for images, points in ((batch.image0, batch.points0), (batch.image1, batch.points1.nan_to_num())):
        colours = read_colours(images, points)[keep]
        assert ((colours < 0.02) | (colours > 0.98)).all(dim=1).double().mean() > 0.995
    # Not only backgrounds.
    backgrounds = torch.tensor([int(name.split(".")[0]) for name in batch.names])
    is_in_front = shown0 != backgrounds[:, None].expand_as(keep)[keep]
    assert 0.1 < is_in_front.double().mean() < 0.7


def test_without_the_check_hidden_points_would_be_in_the_ground_truth(flat_bank: ImageBank) -> None:
    # The points of the backgrounds' homographies, were there nothing in front.
    generator = torch.Generator().manual_seed(0)
    background = torch.eye(3).repeat(50, 1, 1)
    config = replace(PLAIN, parallax=0.4)
    photographs = torch.arange(3).expand(50, 3)
    scenes = sample_scenes(photographs, torch.eye(3).expand(50, 3, 3, 3), background, config, 1.0, generator)
    points0 = torch.rand(50, 300, 2, generator=generator) * 127
    on_each1 = warp_points(
        points0.repeat_interleave(3, 0), torch.linalg.inv(scenes.view1_to_view0.flatten(0, 1))
    )
    points1, is_seen = scenes.follow(points0, on_each1, torch.ones(150, 300, dtype=torch.bool))
    in_front0 = scenes.outlines.depth_inside(points0[:, None].expand(-1, 2, -1, -1)).amax(1) > 2
    on_background = ~in_front0 & (points1 - points0).norm(dim=-1).lt(1e-3)
    hidden = on_background & ~is_seen
    assert 0.02 < hidden.double().mean() < 0.5


def test_all_points_of_a_scene_obey_one_epipolar_geometry(bank: ImageBank) -> None:
    config = replace(PLAIN, upright_share=1.0, parallax=0.3)
    for pair in draw(bank, config, batch=6, seed=2):
        keep = pair.is_valid[0]
        points0, points1 = (p[0][keep].double() / 64 - 1 for p in (pair.points0, pair.points1))
        one = torch.ones(len(points0), 1).double()
        x0, x1 = torch.cat([points0, one], 1), torch.cat([points1, one], 1)
        rows = (x1[:, :, None] * x0[:, None]).flatten(1)  # (N, 9): x1ᵀ F x0 = 0
        singular = torch.linalg.svdvals(rows)
        assert len(rows) > 100
        assert singular[-1] / len(rows) ** 0.5 < 1e-5
        # And not one homography: the motion has boundaries.
        H = homography_from_points(points0, points1)
        misses = (warp_points(points0[None], H[None])[0] - points1).norm(dim=-1) * 64
        assert misses.max() > 3


def test_nearer_planes_move_more() -> None:
    generator = torch.Generator().manual_seed(0)
    config = replace(PLAIN, parallax_planes=4, parallax=0.25)
    background = torch.eye(3).repeat(200, 1, 1)
    photographs = torch.zeros(200, 4, dtype=torch.int64)
    scenes = sample_scenes(photographs, torch.eye(3).expand(200, 4, 3, 3), background, config, 1.0, generator)
    middle = torch.full((800, 1, 2), 63.5)
    moves = (warp_points(middle, scenes.view1_to_view0.flatten(0, 1)) - middle).norm(dim=-1).view(200, 4)
    assert moves[:, 0].max() < 1e-4
    for count in (1, 2, 3):
        chosen = moves[scenes.in_front == count]
        assert len(chosen) > 30
        assert (chosen.diff(dim=1)[:, :count] > 0).all()
        nearest = chosen[:, count] / 128
        assert 0.4 / count * 0.25 * 0.8 < nearest.min() and nearest.max() < 0.25 * 1.2
        assert nearest.max() > 0.2


def test_colours_of_textured_scenes_agree(bank: ImageBank) -> None:
    batch = draw(bank, replace(PLAIN, max_scale=1.1, perspective=0.1), batch=12)
    colours0 = read_colours(batch.image0, batch.points0)
    colours1 = read_colours(batch.image1, batch.points1.nan_to_num())
    difference = (colours0 - colours1)[batch.is_valid].abs().mean(dim=-1)
    assert len(difference) > 2000
    assert difference.mean() < 0.01
    assert difference.quantile(0.999) < 0.06
    assert is_inside(batch.points0, (128, 128))[batch.is_valid].all()
    assert is_inside(batch.points1, (128, 128))[batch.is_valid].all()


def test_pairs_are_named_by_their_different_images(flat_bank: ImageBank) -> None:
    batch = draw(flat_bank, replace(PLAIN, side=64, points=5, parallax_planes=4), batch=40)
    parts = [name.split(" + ") for name in batch.names]
    assert {len(names) for names in parts} == {2, 3, 4}
    assert all(len(set(names)) == len(names) and set(names) <= set(flat_bank.names) for names in parts)


def test_images_repeat_where_there_are_too_few() -> None:
    config = replace(PLAIN, parallax_planes=3)
    first = torch.tensor([0, 1])
    for count, expected in ((1, [[0, 0, 0], [0, 0, 0]]), (2, [[0, 1, 0], [1, 0, 1]])):
        found = sample_scene_sources(first % count, count, config, torch.Generator())
        assert found.tolist() == expected
    found = sample_scene_sources(torch.arange(9), 9, config, torch.Generator())
    assert all(len(set(row)) == 3 for row in found.tolist())


def test_the_front_by_hand() -> None:
    # Three places: on the farther plane, on both, on none; then one near the edge of the nearer plane.
    depth_inside = torch.tensor([[[9.0, 9.0, -9.0, 9.0], [-9.0, 9.0, -9.0, -1.0]]])
    front, is_clear = find_front(depth_inside, torch.tensor([[[2.0], [2.0]]]))
    assert front.tolist() == [[1, 2, 0, 1]]
    assert is_clear.tolist() == [[True, True, True, False]]
    # An outline behind the plane in front is not seen, so it may be near.
    front, is_clear = find_front(torch.tensor([[[0.5], [9.0]]]), torch.tensor([[[2.0], [2.0]]]))
    assert front.item() == 2 and is_clear.item()


def test_scales_agree_with_small_steps() -> None:
    doubled = torch.diag(torch.tensor([2.0, 2.0, 1.0]))
    assert scales_at_centre(doubled, 65).item() == pytest.approx(2.0)
    motion = torch.tensor([[1.1, 0.2, 4.0], [-0.3, 0.9, 7.0], [0.002, -0.003, 1.2]]).double()
    square = torch.tensor([[32.0, 32.0], [32.01, 32.0], [32.0, 32.01]]).double()
    moved = warp_points(square[None], motion[None])[0]
    area = torch.linalg.det((moved[1:] - moved[0]) / 0.01).abs().item()
    assert scales_at_centre(motion, 65).item() == pytest.approx(area**0.5, rel=1e-3)


def test_nearer_planes_are_laid_over_farther_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    photographs = torch.zeros(20, 3, dtype=torch.int64)
    identity = torch.eye(3).expand(20, 3, 3, 3)
    scenes: Scenes = sample_scenes(
        photographs, identity, torch.eye(3).repeat(20, 1, 1), PLAIN, 0.0, generator
    )
    grid = torch.stack(torch.meshgrid(torch.arange(16.0) * 8, torch.arange(16.0) * 8, indexing="xy"), -1)
    colours = torch.arange(3.0).repeat(20).view(60, 1, 1, 1, 1).expand(-1, 3, 2, 16, 16)
    composed = scenes.compose(colours, grid.view(-1, 2))
    assert composed.shape == (20, 3, 2, 16, 16)
    points = grid.view(1, 1, -1, 2).expand(20, 2, -1, -1)
    depth_inside = scenes.outlines.depth_inside(points)
    front, is_clear = find_front(depth_inside, torch.ones(20, 2, 1))
    # At strength 0 nothing moves, so both views show the same plane.
    for view in (0, 1):
        shown = composed[:, 0, view].flatten(1)
        assert torch.equal(shown[is_clear].round().long(), front[is_clear])
    assert {0, 1, 2} == set(front[is_clear].tolist())


@pytest.mark.parametrize("size_hw", [(20, 30), (1, 40), (1, 1)])
def test_scenes_of_tiny_images(tmp_path: Path, size_hw: tuple[int, int]) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [size_hw], grain=5), 64, "cpu")
    batch = draw(bank, replace(PLAIN, side=64, perspective=0.4, max_scale=3.0), batch=4)
    for image in (batch.image0, batch.image1):
        assert image.isfinite().all()
        assert image.min() >= 0 and image.max() <= 1
    assert batch.points1[batch.is_valid].isfinite().all()
    assert batch.is_valid.any().item() == (min(size_hw) > 1)
