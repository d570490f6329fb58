"""Collages of many images, so that no two training images are alike.

A network that sees a few thousand images often enough memorises them, and the positions in them. In a collage
it can do neither: each piece shows some image, rotated and scaled, among pieces of others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ucn.data.augment.random import uniform, uniform_columns
from ucn.data.synthetic.bank import ImageBank
from ucn.geometry.coords import pixel_grid

PIECES = 10
"""Number of pieces of a collage."""
_COPIED_SHARE = 0.35
"""Fraction of the pieces that repeat another one: as on façades and brick walls, only the surroundings tell
them apart."""
_WAVES = 3


def sample_collages(
    bank: ImageBank, count: int, share: float, zoom: tuple[float, float], generator: torch.Generator
) -> tuple[ImageBank, Tensor]:
    """Samples images of a bank, and replaces some of them by collages.

    Args:
        bank: the source images.
        count: the number of images to sample.
        share: fraction of them that become collages, in [0, 1].
        zoom: pixels of the source image per pixel of a piece, smallest and largest.
        generator: random generator, on the bank's device.

    Returns:
        A bank of `count` images, in which a collage fills its canvas; and (count,) int64, the indices of the
        sampled images in the first bank.
    """
    chosen = bank.sample_indices(count, generator)
    is_collage = uniform((count,), 0, 1, generator) < share
    canvases = bank.canvases[chosen]
    pieced = _piece_together(bank, count, zoom, generator)
    canvases = torch.where(is_collage[:, None, None, None], pieced, canvases)
    side = float(canvases.shape[-1])
    sizes = torch.where(is_collage[:, None], side, bank.sizes[chosen])
    return bank.with_canvases(canvases, sizes), chosen


def _piece_together(
    bank: ImageBank, count: int, zoom: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Collages (B, 3, S, S) uint8."""
    side = bank.canvases.shape[-1]
    grid = pixel_grid((side, side), generator.device).view(1, -1, 2)
    sites = uniform((count, PIECES, 2), 0, side, generator)
    piece = _sample_pieces(sites, grid, side, generator)  # (B, S * S)
    original = _sample_originals(count, generator)
    shown = bank.sample_indices(count * PIECES, generator).view(count, PIECES).gather(1, original)
    ranges = {
        "angle": (-math.pi, math.pi, 1),
        "log_step": (math.log(zoom[0]), math.log(zoom[1]), 1),
        "place": (0.0, 1.0, 2),
    }
    transforms = uniform_columns((count, PIECES), ranges, generator)
    step = transforms["log_step"].exp()
    rows = torch.stack([transforms["angle"].cos() * step, -transforms["angle"].sin() * step], dim=-1)
    columns = torch.stack([transforms["angle"].sin() * step, transforms["angle"].cos() * step], dim=-1)
    turning = torch.stack([rows, columns], dim=-2).flatten(2)  # (B, P, 4)
    turning = turning.gather(1, original[..., None].expand(-1, -1, 4))
    sizes = bank.sizes[shown]  # (B, P, 2)
    centre = transforms["place"].gather(1, original[..., None].expand(-1, -1, 2)) * sizes
    at = piece[..., None].expand(-1, -1, 2)
    xx, xy, yx, yy = turning.gather(1, piece[..., None].expand(-1, -1, 4)).unbind(-1)
    x, y = (grid - sites.gather(1, at)).unbind(-1)
    # Written out: batched products of millions of 2×2 matrices are slow on a GPU.
    points = torch.stack([xx * x + xy * y, yx * x + yy * y], dim=-1) + centre.gather(1, at)
    span = sizes.gather(1, at) - 1
    folded = (span - (points.remainder((2 * span).clamp_min(1)) - span).abs()).clamp_min(0)
    # Nearest pixel: the views interpolate anyway.
    x, y = folded.round().long().unbind(-1)
    colours = bank.canvases[shown.gather(1, piece), :, y, x]  # (B, S * S, 3)
    return colours.mT.reshape(count, 3, side, side)


def _sample_originals(count: int, generator: torch.Generator) -> Tensor:
    """The piece whose image each piece shows, (B, P) int64: mostly its own."""
    own = torch.arange(PIECES, device=generator.device).expand(count, -1)
    others = torch.randint(PIECES, (count, PIECES), generator=generator, device=generator.device)
    return torch.where(uniform((count, PIECES), 0, 1, generator) < _COPIED_SHARE, others, own)


def _sample_pieces(sites: Tensor, grid: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """The piece of each pixel, (B, S * S) int64: a Voronoi diagram with wavy borders.

    Args:
        sites: (B, P, 2) centres of the pieces, in pixels.
        grid: (1, S * S, 2), the pixels.
        side: S.
        generator: random generator.
    """
    count = len(sites)
    shape = {
        "pace": (1.0, 4.0, 2 * _WAVES),
        "phase": (0.0, 2 * math.pi, 2 * _WAVES),
        "height": (0.0, 0.06, 2 * _WAVES),
    }
    waves = uniform_columns((count, 1), shape, generator)
    along = grid.flip(-1).repeat(1, 1, _WAVES) * (2 * math.pi / side)  # x varies along y, and y along x
    shift = (torch.sin(along * waves["pace"] + waves["phase"]) * waves["height"] * side).view(
        count, -1, _WAVES, 2
    )
    return torch.cdist(grid + shift.sum(-2), sites).argmin(-1)
