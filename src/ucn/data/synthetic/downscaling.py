"""Photographs beside smaller copies of themselves, so that a view from far away is no flickering one.

A view that shows a photograph at a third of its size and reads single pixels of it shows every third: fine
patterns turn into others, which no camera does. It reads a smaller copy instead (mip maps, Williams 1983).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 3
"""The photograph itself, and copies of a half and a quarter of its size."""


def lay_out_reductions(canvases: Tensor) -> Tensor:
    """Squares (B, C, S, S) with their smaller copies to the right of them, (B, C, S, S + S // 2).

    The copy of a half stands on top, that of a quarter below it; what is left over is zero.
    """
    side = canvases.shape[-1]
    sheets = F.pad(canvases, (0, side // 2))
    top, reduced = 0, canvases
    for _ in range(1, LEVELS):
        reduced = F.avg_pool2d(reduced, 2)
        size = reduced.shape[-1]
        sheets[..., top : top + size, side : side + size] = reduced
        top += size
    return sheets


def find_on_reductions(points: Tensor, sizes: Tensor, steps: Tensor, side: int) -> Tensor:
    """Where on a sheet of `lay_out_reductions` to read what lies at points of photographs.

    Args:
        points: (B, P, Q, 2) pixels of the photographs, on them.
        sizes: (B, 2) of the photographs, (width, height).
        steps: (B, P), how many pixels of the photograph a pixel of the view spans; the copy in which these
            are nearest to one is read, the smallest for all beyond. NaN reads the photograph.
        side: S, of their canvases.

    Returns:
        (B, P, Q, 2) pixels of the sheets.
    """
    level = steps.nan_to_num(1.0).clamp(1, 2.0 ** (LEVELS - 1)).log2().round()[..., None, None]
    reduction = level.exp2()
    # Blocks that hang over the edge of a photograph are not all of it; a copy has one pixel at least.
    largest = ((sizes[:, None, None] / reduction).floor() - 1).clamp_min(0)
    # Centres of pixels: those of a copy lie amid the pixels it is the mean of.
    reduced = torch.minimum(((points + 0.5) / reduction - 0.5).clamp_min(0), largest)
    top = torch.where(level > 1, side // 2, 0)
    corner = torch.cat([torch.where(level > 0, side, 0).expand_as(top), top], dim=-1)
    return reduced + corner
