"""Outlines: signed distances by hand."""

import math

import pytest
import torch
from torch import Tensor

from ucn.data.synthetic.outlines import Outlines, sample_outlines

FAR = 1e4


def outline(
    offsets: list[float], roundness: float = 0.25, waves: tuple[float, float, float] = (0, 0, 0)
) -> Outlines:
    """One shape round (10, 20) with edges to the right, below, to the left and above."""
    normals = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    return Outlines(
        centres=torch.tensor([[[10.0, 20.0]]]),
        normals=normals[None, None],
        offsets=torch.tensor(offsets)[None, None],
        roundness=torch.tensor([[roundness]]),
        waves=torch.tensor(waves, dtype=torch.float32)[None, None],
    )


def depth(shape: Outlines, points: list[list[float]]) -> Tensor:
    return shape.depth_inside(torch.tensor(points)[None, None])[0, 0]


def test_a_half_plane() -> None:
    shape = outline([3.0, FAR, FAR, FAR])
    found = depth(shape, [[10.0, 20.0], [13.0, -50.0], [-87.0, 5.0], [15.0, 20.0]])
    torch.testing.assert_close(found, torch.tensor([3.0, 0.0, 100.0, -2.0]), atol=1e-2, rtol=0)


def test_a_rectangle_with_sharp_corners() -> None:
    shape = outline([4.0, 8.0, 2.0, 6.0], roundness=0.01)
    found = depth(shape, [[10.0, 20.0], [13.0, 21.0], [13.0, 27.5], [14.0, 28.0], [5.0, 20.0], [10.0, 34.0]])
    torch.testing.assert_close(found, torch.tensor([2.0, 1.0, 0.5, 0.0, -3.0, -6.0]), atol=2e-2, rtol=0)


def test_corners_are_rounded() -> None:
    shape = outline([4.0, 4.0, FAR, FAR], roundness=2.0)
    # Two edges equally far: the soft maximum lies roundness * log 2 beyond the hard one.
    assert depth(shape, [[14.0, 24.0]]).item() == pytest.approx(-2 * math.log(2), abs=1e-4)
    assert depth(shape, [[14.0, -100.0]]).item() == pytest.approx(0, abs=1e-4)


def test_edges_are_waved() -> None:
    shape = outline([3.0, FAR, FAR, FAR], waves=(1.5, 0.1, 0.0))
    # At y - 20 = 5π the wave moves the place by 1.5 sin(π / 2) to the right, so out of the shape.
    found = depth(shape, [[10.0, 20.0 + 5 * math.pi], [10.0, 20.0 - 5 * math.pi]])
    torch.testing.assert_close(found, torch.tensor([1.5, 4.5]), atol=1e-2, rtol=0)


def test_nowhere_and_nothing_are_outside() -> None:
    assert depth(outline([3.0, FAR, FAR, FAR]), [[math.nan, 0.0]]).item() < -1e5
    assert depth(outline([-1e6] * 4), [[10.0, 20.0]]).item() < -1e5


def test_sampled_outlines_lie_in_the_views() -> None:
    side, motions = 64, torch.eye(3).expand(100, 2, 3, 3)
    used = torch.tensor([1, 2]).repeat(50)
    shapes = sample_outlines(motions, used, side, torch.Generator().manual_seed(0))
    inside = shapes.depth_inside(shapes.centres[:, :, None])[..., 0]  # at the centres themselves
    is_used = torch.arange(2) < used[:, None]
    # Waves move the middle by a few pixels at most.
    assert (inside[is_used] > -3).all() and (inside[is_used] > 3).double().mean() > 0.95
    assert (inside[~is_used] < -1e5).all()
    assert shapes.centres.min() >= 0 and shapes.centres.max() <= side - 0.5
    steepness = shapes.waves[..., 0] * shapes.waves[..., 1]
    assert steepness.max() < 0.5
    assert 0.3 < (steepness == 0).double().mean() < 0.7


def test_centres_are_seen_by_both_views_where_they_can_be() -> None:
    # View 1 sees the left half of view 0 on its right half.
    motions = torch.eye(3).repeat(500, 1, 1, 1)
    motions[:, :, 0, 2] = -32
    centres = sample_outlines(motions, torch.ones(500), 64, torch.Generator().manual_seed(0)).centres
    # Nearly half of the draws in view 1 lie in view 0, and half of the others by chance.
    assert (centres[..., 0] < 32).double().mean().item() == pytest.approx(0.75, abs=0.06)
