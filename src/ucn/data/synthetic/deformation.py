"""Bends of a view, as if it were printed on a sheet of rubber."""

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
class Bends:
    """Thin-plate splines that bend view 1 before a homography takes it to view 0.

    Attributes:
        sheet: the spline over a view.
        displacements: (S, K, 2) of its control points, pixels.
    """

    sheet: ThinPlateSpline
    displacements: Tensor

    def __len__(self) -> int:
        return len(self.displacements)

    def bend(self, points: Tensor) -> Tensor:
        """Points (S, N, 2) of view 1, or (N, 2) for the same in each, bent: (S, N, 2)."""
        return self.sheet.warp(points, self.displacements)


def draw_bends(batch: int, config: SyntheticConfig, strength: float, generator: torch.Generator) -> Bends:
    """Bends whose control points move within a disc: its radius is what keeps the sheet from folding."""
    count = config.spline_grid
    sheet = _make_sheet(count, config.side, generator.device)
    if batch == 0:
        return Bends(sheet, sheet.controls.new_empty(0, count**2, 2))
    radius = config.spline * strength * config.side / (count - 1)
    ranges = {"angle": (0.0, 2 * math.pi, 1), "area": (0.0, 1.0, 1)}
    drawn = uniform_columns((batch, count**2), ranges, generator)
    angle, length = drawn["angle"], drawn["area"].sqrt() * radius  # uniform in the disc
    return Bends(sheet, torch.stack([length * angle.cos(), length * angle.sin()], dim=-1))


@functools.lru_cache(maxsize=16)
def _make_sheet(controls: int, side: int, device: torch.device) -> ThinPlateSpline:
    """The spline over a view; it depends on the control points alone, so it is solved once."""
    return ThinPlateSpline(control_grid(controls, (side, side), device))
