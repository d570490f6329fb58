"""Deformations stay within their disc, and none can fold a view."""

import pytest
import torch
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.synthetic.deformation import Deformation, sample_deformation
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import ThinPlateSpline, control_grid

LARGEST = 0.19


def derivatives(spline: ThinPlateSpline, displacements: Tensor, points: Tensor) -> Tensor:
    """(B, N, 2, 2): how the displacement changes with x and with y, by central differences."""
    step = torch.eye(2, dtype=torch.float64) * 1e-4

    def displace(at: Tensor) -> Tensor:
        return spline.warp(at, displacements) - at

    return torch.stack([(displace(points + s) - displace(points - s)) / 2e-4 for s in step], dim=-1)


@pytest.mark.parametrize("grid", [3, 4, 8])
def test_controls_stay_within_their_disc(grid: int) -> None:
    config = SyntheticConfig(side=128, spline=0.1, spline_grid=grid)
    bends = sample_deformation(50, config, 1.0, torch.Generator().manual_seed(0))
    assert len(bends) == 50
    radius = 0.1 * 128 / (grid - 1)
    lengths = bends.displacements.norm(dim=-1)
    assert lengths.max().item() == pytest.approx(radius, rel=0.01)
    # Uniform in a disc: half of all lie within √½ of its radius.
    assert (lengths < radius * 0.5**0.5).double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert bends.displacements.mean(dim=(0, 1)).abs().max() < 0.2 * radius
    weaker = sample_deformation(50, config, 0.5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(weaker.displacements, bends.displacements / 2)


@pytest.mark.parametrize("grid", [3, 4, 5, 6, 7, 8])
def test_no_deformation_can_fold(grid: int) -> None:
    # Every displacement field is a sum of one field per control. Where the lengths of their gradients sum to
    # C, controls that move by at most r change the field by less than the points' distance if r * C < 1.
    side = 64
    spline = ThinPlateSpline(control_grid(grid, (side, side)).double())
    ones = torch.eye(grid**2, dtype=torch.float64)[..., None] * torch.tensor([1.0, 0.0]).double()
    points = pixel_grid((side, side)).double().view(-1, 2) * (side / (side - 1)) - 0.5
    gradients = derivatives(spline, ones, points)[:, :, 0]  # (K, N, 2)
    worst = gradients.norm(dim=-1).sum(0).max().item() * side / (grid - 1)
    assert LARGEST * worst < 1
    SyntheticConfig(spline=LARGEST, spline_grid=grid)


@pytest.mark.parametrize("grid", [3, 4, 8])
def test_sampled_deformations_keep_their_orientation(grid: int) -> None:
    config = SyntheticConfig(side=64, spline=LARGEST, spline_grid=grid)
    bends = sample_deformation(200, config, 1.0, torch.Generator().manual_seed(1))
    spline = ThinPlateSpline(control_grid(grid, (64, 64)).double())
    points = pixel_grid((32, 32)).double().view(-1, 2) * 2 + 0.5
    jacobians = derivatives(spline, bends.displacements.double(), points) + torch.eye(2).double()
    assert torch.linalg.det(jacobians).min() > 0.1


def test_deformation_is_shared_or_of_own_points() -> None:
    bends = sample_deformation(2, SyntheticConfig(side=64), 1.0, torch.Generator().manual_seed(0))
    points = torch.rand(10, 2) * 64
    torch.testing.assert_close(bends.warp(points.expand(2, -1, -1)), bends.warp(points))
    assert (bends.warp(points) - points).norm(dim=-1).mean() > 0.3


def test_no_deformation() -> None:
    bends: Deformation = sample_deformation(0, SyntheticConfig(side=64), 1.0, torch.Generator())
    assert len(bends) == 0
    assert bends.warp(torch.zeros(7, 2)).shape == (0, 7, 2)
