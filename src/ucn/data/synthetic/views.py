"""Two views of a plane: the crop of the source image in view 0, and the homography from view 1 to view 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.random import uniform, uniform_columns
from ucn.geometry.warp import homography_from_corners


def sample_crops(sizes: Tensor, config: SyntheticConfig, generator: torch.Generator) -> Tensor:
    """Samples homographies (B, 3, 3) from view 0 to source images of sizes (B, 2), (width, height)."""
    batch, side = len(sizes), float(config.side)
    zoom = uniform((batch,), math.log(config.zoom[0]), math.log(config.zoom[1]), generator).exp()
    # A crop larger than the image would be mostly mirrored border.
    zoom = torch.minimum(zoom, 1.1 * sizes.amin(1) / side)
    slack = (sizes - zoom[:, None] * side).clamp_min(0)
    corner = slack * uniform((batch, 2), 0, 1, generator) - 0.5 + 0.5 * zoom[:, None]
    view0_to_source = torch.eye(3, device=sizes.device).repeat(batch, 1, 1)
    view0_to_source[:, 0, 0] = view0_to_source[:, 1, 1] = zoom
    view0_to_source[:, :2, 2] = corner
    if not (config.mirror or config.crop_degrees or config.crop_stretch > 1):
        return view0_to_source
    return view0_to_source @ _sample_poses(batch, config, generator)


def _sample_poses(batch: int, config: SyntheticConfig, generator: torch.Generator) -> Tensor:
    """Affine maps (B, 3, 3) of view 0 about its centre: reflection, rotation and anisotropic scale."""
    turn, half_log = math.radians(config.crop_degrees), math.log(config.crop_stretch) / 2
    angle = uniform((batch,), -turn, turn, generator)
    stretch = uniform((batch,), -half_log, half_log, generator).exp()
    side = torch.where(uniform((batch,), 0, 1, generator) < config.mirror, -1.0, 1.0)
    cosine, sine = angle.cos(), angle.sin()
    rows = [stretch * side * cosine, -stretch * sine, side * sine / stretch, cosine / stretch]
    linear = torch.stack(rows, dim=-1).view(batch, 2, 2)
    centre = torch.full((2,), (config.side - 1) / 2, device=generator.device)
    poses = torch.eye(3, device=generator.device).repeat(batch, 1, 1)
    poses[:, :2, :2] = linear
    poses[:, :2, 2] = centre - linear @ centre
    return poses


def sample_homographies(
    batch: int, affine: slice, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> Tensor:
    """Samples homographies (B, 3, 3) from view 1 to view 0.

    They combine rotation, scale, translation, and perspective or an anisotropic stretch.

    Args:
        batch: number of homographies.
        affine: the rows that have a stretch along a random axis in place of perspective.
        config: the ranges.
        strength: fraction of the ranges, in [0, 1]; at 0 all are the identity.
        generator: random generator.
    """
    side = float(config.side)
    is_upright = uniform((batch,), 0, 1, generator) < config.upright_share
    turn = uniform((batch,), -1, 1, generator) * strength
    angle = torch.where(is_upright, math.radians(config.upright_degrees) * turn, math.pi * turn)
    log_scale = math.log(config.max_scale) * strength
    scale = uniform((batch,), -log_scale, log_scale, generator).exp()
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    rotation = torch.stack([cosine, -sine, sine, cosine], dim=-1).view(batch, 2, 2)
    corners = _unit_corners(generator.device) * side / 2
    moved_corners = (
        corners + uniform((batch, 4, 2), -1, 1, generator) * (config.perspective * strength) * side
    )
    if affine.stop > affine.start:
        count = affine.stop - affine.start
        moved_corners[affine] = corners @ _sample_stretches(count, config.stretch, strength, generator)
    moved = moved_corners @ rotation.transpose(1, 2)
    # A zoomed-out view may shift further; a zoomed-in one stays inside view 0.
    reach = (1 - scale).abs().clamp_min(0.3)[:, None, None] * strength
    shift = uniform((batch, 1, 2), -0.5, 0.5, generator) * side * reach
    centre = (side - 1) / 2
    homographies = homography_from_corners(corners + centre, moved + shift + centre)
    homographies[affine, 2, :2] = 0  # removes the rounding errors of the solver
    return homographies


def _unit_corners(device: torch.device) -> Tensor:
    """(4, 2): (-1, -1), (1, -1), (1, 1), (-1, 1), computed on the device, since a copy synchronises."""
    index = torch.arange(4, device=device)
    x, y = (index + 1) // 2 % 2, index // 2
    return torch.stack([x, y], dim=-1) * 2.0 - 1


def _sample_stretches(batch: int, largest: float, strength: float, generator: torch.Generator) -> Tensor:
    """Symmetric matrices (B, 2, 2) of determinant 1 that stretch along a random axis."""
    ranges = {"share": (0.0, 1.0, 1), "twice_the_angle": (0.0, 2 * math.pi, 1)}
    share, angle = uniform_columns((batch,), ranges, generator).values()
    half_log_ratio = share * (math.log(largest) / 2 * strength)
    mean, difference = half_log_ratio.cosh(), half_log_ratio.sinh()
    along, across = difference * angle.cos(), difference * angle.sin()
    return torch.stack([mean + along, across, across, mean - along], dim=-1).view(batch, 2, 2)
