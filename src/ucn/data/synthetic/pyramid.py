"""Image pyramids packed into one texture, for antialiased downscaling.

A view that shows an image at a third of its size must not read every third pixel: that aliases. It reads a
coarser level of the pyramid instead (mip maps, Williams 1983).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 3
"""Levels of the pyramid: full, half and quarter resolution."""


def pack_pyramid(canvases: Tensor) -> Tensor:
    """Packs squares (B, C, S, S) and their coarser levels side by side, (B, C, S, S + S // 2).

    The half-resolution level is at the top right, the quarter-resolution level below it; the rest is zero.
    """
    side = canvases.shape[-1]
    packed = F.pad(canvases, (0, side // 2))
    top, level = 0, canvases
    for _ in range(1, LEVELS):
        level = F.avg_pool2d(level, 2)
        size = level.shape[-1]
        packed[..., top : top + size, side : side + size] = level
        top += size
    return packed


def locate_in_pyramid(points: Tensor, sizes: Tensor, steps: Tensor, side: int) -> Tensor:
    """Maps points of images to the level of `pack_pyramid` that matches their sampling step.

    Args:
        points: (B, P, Q, 2) pixels of the images, inside them.
        sizes: (B, 2), (width, height) of the images.
        steps: (B, P), pixels of the image per pixel of the view; the level where this is nearest to one is
            read, the coarsest for all larger steps. NaN reads the finest.
        side: S, the side of their canvases.

    Returns:
        (B, P, Q, 2) pixels of the packed levels.
    """
    level = steps.nan_to_num(1.0).clamp(1, 2.0 ** (LEVELS - 1)).log2().round()[..., None, None]
    scale = level.exp2()
    # Blocks that extend beyond an image are excluded; a level has at least one pixel.
    largest = ((sizes[:, None, None] / scale).floor() - 1).clamp_min(0)
    reduced = torch.minimum(((points + 0.5) / scale - 0.5).clamp_min(0), largest)
    top = torch.where(level > 1, side // 2, 0)
    corner = torch.cat([torch.where(level > 0, side, 0).expand_as(top), top], dim=-1)
    return reduced + corner
