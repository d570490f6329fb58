"""Smooth deformations of a view by thin-plate splines."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.random import uniform_columns
from ucn.geometry.warp import ThinPlateSpline, control_grid


@dataclass(frozen=True)
class Deformation:
    """Thin-plate splines that deform view 1 before a homography maps it to view 0.

    Attributes:
        spline: the spline over a view.
        displacements: (S, K, 2) displacements of its K control points, pixels, for each of S pairs.
    """

    spline: ThinPlateSpline
    displacements: Tensor

    def __len__(self) -> int:
        return len(self.displacements)

    def warp(self, points: Tensor) -> Tensor:
        """Deforms points (S, N, 2) of view 1, or (N, 2) for the same points in each, to (S, N, 2)."""
        return self.spline.warp(points, self.displacements)


def sample_deformation(
    batch: int, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> Deformation:
    """Samples deformations; control points move within a disc small enough that the spline cannot fold."""
    count = config.spline_grid
    spline = _make_spline(count, config.side, generator.device)
    if batch == 0:
        return Deformation(spline, spline.controls.new_empty(0, count**2, 2))
    radius = config.spline * strength * config.side / (count - 1)
    ranges = {"angle": (0.0, 2 * math.pi, 1), "area": (0.0, 1.0, 1)}
    columns = uniform_columns((batch, count**2), ranges, generator)
    angle, length = columns["angle"], columns["area"].sqrt() * radius  # uniform in the disc
    return Deformation(spline, torch.stack([length * angle.cos(), length * angle.sin()], dim=-1))


@functools.lru_cache(maxsize=16)
def _make_spline(controls: int, side: int, device: torch.device) -> ThinPlateSpline:
    """The spline over a view; it depends only on the control points, so that it is solved once."""
    return ThinPlateSpline(control_grid(controls, (side, side), device))
