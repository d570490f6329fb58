"""Two views of a plane: what view 0 crops from a photograph, and how view 1 stands to view 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.random import uniform, uniform_columns
from ucn.geometry.warp import homography_from_corners


def draw_crops(sizes: Tensor, config: SyntheticConfig, generator: torch.Generator) -> Tensor:
    """Homographies (B, 3, 3) from view 0 to places on photographs of sizes (B, 2), (width, height)."""
    batch, side = len(sizes), float(config.side)
    zoom = uniform((batch,), math.log(config.zoom[0]), math.log(config.zoom[1]), generator).exp()
    # A crop larger than the photograph would be mostly mirrored border.
    zoom = torch.minimum(zoom, 1.1 * sizes.amin(1) / side)
    slack = (sizes - zoom[:, None] * side).clamp_min(0)
    corner = slack * uniform((batch, 2), 0, 1, generator) - 0.5 + 0.5 * zoom[:, None]
    view0_to_source = torch.eye(3, device=sizes.device).repeat(batch, 1, 1)
    view0_to_source[:, 0, 0] = view0_to_source[:, 1, 1] = zoom
    view0_to_source[:, :2, 2] = corner
    if not (config.mirror or config.crop_degrees or config.crop_stretch > 1):
        return view0_to_source
    return view0_to_source @ _draw_poses(batch, config, generator)


def _draw_poses(batch: int, config: SyntheticConfig, generator: torch.Generator) -> Tensor:
    """Affine maps (B, 3, 3) of view 0 onto itself, about its centre: a mirror, a turn, a stretch."""
    turn, half_log = math.radians(config.crop_degrees), math.log(config.crop_stretch) / 2
    angle = uniform((batch,), -turn, turn, generator)
    stretch = uniform((batch,), -half_log, half_log, generator).exp()
    side = torch.where(uniform((batch,), 0, 1, generator) < config.mirror, -1.0, 1.0)
    cosine, sine = angle.cos(), angle.sin()
    rows = [stretch * side * cosine, -stretch * sine, side * sine / stretch, cosine / stretch]
    turning = torch.stack(rows, dim=-1).view(batch, 2, 2)
    centre = torch.full((2,), (config.side - 1) / 2, device=generator.device)
    poses = torch.eye(3, device=generator.device).repeat(batch, 1, 1)
    poses[:, :2, :2] = turning
    poses[:, :2, 2] = centre - turning @ centre
    return poses


def draw_motions(
    batch: int, affine: slice, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> Tensor:
    """Homographies (B, 3, 3) from view 1 to view 0: turn, scale, shift, and perspective or stretch.

    Args:
        batch: how many.
        affine: those of them that have a stretch along a random axis in place of perspective.
        config: how far they go.
        strength: share of that, in [0, 1]; at 0 all are the identity.
        generator: source of all draws.
    """
    side = float(config.side)
    is_upright = uniform((batch,), 0, 1, generator) < config.upright_share
    turn = uniform((batch,), -1, 1, generator) * strength
    angle = torch.where(is_upright, math.radians(config.upright_degrees) * turn, math.pi * turn)
    log_scale = math.log(config.max_scale) * strength
    scale = uniform((batch,), -log_scale, log_scale, generator).exp()
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    turning = torch.stack([cosine, -sine, sine, cosine], dim=-1).view(batch, 2, 2)
    corners = _unit_corners(generator.device) * side / 2
    bent = corners + uniform((batch, 4, 2), -1, 1, generator) * (config.perspective * strength) * side
    if affine.stop > affine.start:
        count = affine.stop - affine.start
        bent[affine] = corners @ _draw_stretches(count, config.stretch, strength, generator)
    moved = bent @ turning.transpose(1, 2)
    # A larger view may look further afield; a smaller one stays inside view 0.
    reach = (1 - scale).abs().clamp_min(0.3)[:, None, None] * strength
    shift = uniform((batch, 1, 2), -0.5, 0.5, generator) * side * reach
    centre = (side - 1) / 2
    motions = homography_from_corners(corners + centre, moved + shift + centre)
    motions[affine, 2, :2] = 0  # what solving the system left of rounding
    return motions


def _unit_corners(device: torch.device) -> Tensor:
    """(4, 2): (-1, -1), (1, -1), (1, 1), (-1, 1), made on the device: a copy there would wait for it."""
    index = torch.arange(4, device=device)
    x, y = (index + 1) // 2 % 2, index // 2
    return torch.stack([x, y], dim=-1) * 2.0 - 1


def _draw_stretches(batch: int, largest: float, strength: float, generator: torch.Generator) -> Tensor:
    """Symmetric matrices (B, 2, 2) of determinant 1: a stretch along a random axis, shear in the others."""
    ranges = {"share": (0.0, 1.0, 1), "twice_the_angle": (0.0, 2 * math.pi, 1)}
    share, angle = uniform_columns((batch,), ranges, generator).values()
    half_log_ratio = share * (math.log(largest) / 2 * strength)
    mean, difference = half_log_ratio.cosh(), half_log_ratio.sinh()
    along, across = difference * angle.cos(), difference * angle.sin()
    return torch.stack([mean + along, across, across, mean - along], dim=-1).view(batch, 2, 2)
