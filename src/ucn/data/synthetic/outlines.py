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
"""What an outline is drawn from; lengths as shares of the side, jitter of the angle between edges."""
_OUTSIDE = -1e6
"""Pixels inside of what is nowhere near."""


@dataclass(frozen=True)
class Outlines:
    """F shapes for each of B images: half-planes' common part, with corners rounded and edges waved.

    Attributes:
        centres: (B, F, 2) pixels.
        normals: (B, F, K, 2) unit vectors out of the shape.
        offsets: (B, F, K) pixels from the centre to each edge; far below 0 for a shape that is empty.
        roundness: (B, F) pixels, above 0.
        waves: (B, F, 3) height in pixels, radians per pixel, and phase of the waves.
    """

    centres: Tensor
    normals: Tensor
    offsets: Tensor
    roundness: Tensor
    waves: Tensor

    def depth_inside(self, points: Tensor) -> Tensor:
        """(B, F, N): about how many pixels points (B, F, N, 2) lie inside; negative outside and for NaN."""
        height, frequency, phase = self.waves[:, :, None, :, None].unbind(-2)
        local = points - self.centres[:, :, None]
        local = local + height * torch.addcmul(phase, local.flip(-1), frequency).sin()
        excess = local @ self.normals.mT - self.offsets[:, :, None]  # (B, F, N, K)
        # A soft maximum over the edges: the hard one with its corners rounded off.
        roundness = self.roundness[..., None]
        outside = torch.logsumexp(excess / roundness[..., None], dim=-1) * roundness
        return -outside.nan_to_num(-_OUTSIDE)


def draw_outlines(motions: Tensor, used: Tensor, side: int, generator: torch.Generator) -> Outlines:
    """Outlines in view 0.

    Args:
        motions: (B, F, 3, 3) from view 1 to view 0, of the plane that each outline is cut from.
        used: (B,) int64, how many of the F are used; the rest is empty.
        side: of both views, pixels.
        generator: source of all draws.
    """
    drawn = uniform_columns((motions.shape[0], motions.shape[1]), _RANGES, generator)
    edge = torch.arange(_EDGES, device=motions.device)
    angle = drawn["turn"][..., None] + (edge + drawn["jitter"]) * (2 * math.pi / _EDGES)
    normals = torch.stack([angle.cos(), angle.sin()], dim=-1)
    radius, stretch = drawn["log_radius"].exp() * side, drawn["log_stretch"].exp()[..., None]
    # Where an ellipse's tangents lie, so that shapes can be long.
    ellipse = (normals[..., 0].square() * stretch + normals[..., 1].square() / stretch).sqrt()
    offsets = radius[..., None] * ellipse * drawn["reach"]
    is_half_plane = drawn["half_plane"][..., None] < 0.2
    offsets = offsets + (is_half_plane & (edge > 0)) * (10 * side)
    is_used = torch.arange(motions.shape[1], device=motions.device) < used[:, None]
    rounded = drawn["roundness"] * offsets.amin(-1)
    frequency = 2 * math.pi / (drawn["wavelength"] * side)
    # Waves below a steepness of 1 cannot fold the plane.
    steepness = drawn["steepness"] * (drawn["wavy"] < 0.5)
    return Outlines(
        centres=_place(drawn["centre0"] * side, drawn["centre1"] * side, motions, side),
        normals=normals,
        offsets=offsets.where(is_used[..., None], _OUTSIDE),
        roundness=torch.where(drawn["round"] < 0.5, rounded, 0.25),
        waves=torch.stack([steepness / frequency, frequency, drawn["phase"]], dim=-1),
    )


def _place(centres0: Tensor, centres1: Tensor, motions: Tensor, side: int) -> Tensor:
    """Points (B, F, 2) of view 0: what view 1 sees at `centres1`, if view 0 sees it, or `centres0`."""
    seen = warp_points(centres1.reshape(-1, 1, 2), motions.flatten(0, 1)).view_as(centres0)
    return torch.where(is_inside(seen, (side, side))[..., None], seen, centres0)
