"""Random outlines in the plane: polygons, half-planes and blobs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.data.augment.random import uniform_columns
from ucn.geometry.coords import is_inside
from ucn.geometry.warp import warp_points

_EDGES = 6
_RANGES = {
    "turn": (0.0, 2 * math.pi, 1),
    "jitter": (-0.4, 0.4, _EDGES),
    "log_radius": (math.log(0.15), math.log(0.4), 1),
    "log_stretch": (0.0, math.log(3), 1),
    "reach": (0.6, 1.1, _EDGES),
    "half_plane": (0.0, 1.0, 1),
    "round": (0.0, 1.0, 1),
    "roundness": (0.05, 0.3, 1),
    "wavy": (0.0, 1.0, 1),
    "steepness": (0.1, 0.4, 1),
    "wavelength": (0.1, 0.5, 1),
    "phase": (0.0, 2 * math.pi, 1),
    "centre0": (0.05, 0.95, 2),
    "centre1": (0.05, 0.95, 2),
}
"""Ranges of the random values of an outline: lengths in units of the side, jitter in units of the angle."""
_OUTSIDE = -1e6
"""Signed distance of an empty shape, pixels."""


@dataclass(frozen=True)
class Outlines:
    """F shapes for each of B images: intersections of K half-planes with rounded corners and wavy edges.

    Attributes:
        centres: (B, F, 2) pixels.
        normals: (B, F, K, 2) outward unit normals of the edges.
        offsets: (B, F, K) pixels from the centre to each edge; far below 0 for an empty shape.
        roundness: (B, F) pixels, above 0.
        waves: (B, F, 3) amplitude in pixels, frequency in radians per pixel, and phase.
    """

    centres: Tensor
    normals: Tensor
    offsets: Tensor
    roundness: Tensor
    waves: Tensor

    def depth_inside(self, points: Tensor) -> Tensor:
        """Approximate signed distance (B, F, N) of points (B, F, N, 2), in pixels; negative outside."""
        height, frequency, phase = self.waves[:, :, None, :, None].unbind(-2)
        local = points - self.centres[:, :, None]
        local = local + height * torch.addcmul(phase, local.flip(-1), frequency).sin()
        excess = local @ self.normals.mT - self.offsets[:, :, None]  # (B, F, N, K)
        # A soft maximum over the edges rounds the corners.
        roundness = self.roundness[..., None]
        outside = torch.logsumexp(excess / roundness[..., None], dim=-1) * roundness
        return -outside.nan_to_num(-_OUTSIDE)


def sample_outlines(homographies: Tensor, used: Tensor, side: int, generator: torch.Generator) -> Outlines:
    """Samples outlines in view 0.

    Args:
        homographies: (B, F, 3, 3) from view 1 to view 0, of the plane of each outline.
        used: (B,) int64, the number of the F outlines that are used; the others are empty.
        side: side of both views, pixels.
        generator: random generator.
    """
    columns = uniform_columns((homographies.shape[0], homographies.shape[1]), _RANGES, generator)
    edge = torch.arange(_EDGES, device=homographies.device)
    angle = columns["turn"][..., None] + (edge + columns["jitter"]) * (2 * math.pi / _EDGES)
    normals = torch.stack([angle.cos(), angle.sin()], dim=-1)
    radius, stretch = columns["log_radius"].exp() * side, columns["log_stretch"].exp()[..., None]
    # The support function of an ellipse, so that shapes can be elongated.
    ellipse = (normals[..., 0].square() * stretch + normals[..., 1].square() / stretch).sqrt()
    offsets = radius[..., None] * ellipse * columns["reach"]
    is_half_plane = columns["half_plane"][..., None] < 0.2
    offsets = offsets + (is_half_plane & (edge > 0)) * (10 * side)
    is_used = torch.arange(homographies.shape[1], device=homographies.device) < used[:, None]
    rounded = columns["roundness"] * offsets.amin(-1)
    frequency = 2 * math.pi / (columns["wavelength"] * side)
    # Waves below a steepness of 1 cannot fold the plane.
    steepness = columns["steepness"] * (columns["wavy"] < 0.5)
    return Outlines(
        centres=_place(columns["centre0"] * side, columns["centre1"] * side, homographies, side),
        normals=normals,
        offsets=offsets.where(is_used[..., None], _OUTSIDE),
        roundness=torch.where(columns["round"] < 0.5, rounded, 0.25),
        waves=torch.stack([steepness / frequency, frequency, columns["phase"]], dim=-1),
    )


def _place(centres0: Tensor, centres1: Tensor, homographies: Tensor, side: int) -> Tensor:
    """Centres (B, F, 2) in view 0: `centres1` of view 1 mapped to view 0 where inside it, else `centres0`."""
    seen = warp_points(centres1.reshape(-1, 1, 2), homographies.flatten(0, 1)).view_as(centres0)
    return torch.where(is_inside(seen, (side, side))[..., None], seen, centres0)
