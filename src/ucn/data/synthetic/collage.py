"""Pictures pieced together from many photographs, so that no two of them are alike.

A network that sees a few thousand photographs often enough knows them, and where in them it looks. In a
collage it knows neither: each piece shows some photograph, somehow turned and scaled, among pieces of others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ucn.data.augment.random import uniform, uniform_columns
from ucn.data.synthetic.bank import ImageBank
from ucn.geometry.coords import pixel_grid

PIECES = 10
"""Pieces of a collage."""
_COPIED_SHARE = 0.35
"""Of the pieces that show the same as another one: as on façades and brick walls, what looks alike is told
apart by what lies round it."""
_WAVES = 3


def draw_collages(
    bank: ImageBank, count: int, share: float, zoom: tuple[float, float], generator: torch.Generator
) -> tuple[ImageBank, Tensor]:
    """Photographs of a bank, some of them turned into collages.

    Args:
        bank: the photographs.
        count: how many are wanted.
        share: of them that become collages, in [0, 1].
        zoom: pixels of a photograph per pixel of a piece that shows it, smallest and largest.
        generator: source of all draws, on the bank's device.

    Returns:
        A bank of `count`, of which a collage fills its canvas; and (count,) int64, which photographs of the
        first bank they are, or were before they became collages.
    """
    chosen = bank.draw(count, generator)
    is_collage = uniform((count,), 0, 1, generator) < share
    canvases = bank.canvases[chosen]
    pieced = _piece_together(bank, count, zoom, generator)
    canvases = torch.where(is_collage[:, None, None, None], pieced, canvases)
    side = float(canvases.shape[-1])
    sizes = torch.where(is_collage[:, None], side, bank.sizes[chosen])
    return bank.of_canvases(canvases, sizes), chosen


def _piece_together(
    bank: ImageBank, count: int, zoom: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Collages (B, 3, S, S) uint8."""
    side = bank.canvases.shape[-1]
    grid = pixel_grid((side, side), generator.device).view(1, -1, 2)
    sites = uniform((count, PIECES, 2), 0, side, generator)
    piece = _draw_pieces(sites, grid, side, generator)  # (B, S * S)
    original = _draw_originals(count, generator)
    shown = bank.draw(count * PIECES, generator).view(count, PIECES).gather(1, original)
    ranges = {
        "angle": (-math.pi, math.pi, 1),
        "log_step": (math.log(zoom[0]), math.log(zoom[1]), 1),
        "place": (0.0, 1.0, 2),
    }
    drawn = uniform_columns((count, PIECES), ranges, generator)
    step = drawn["log_step"].exp()
    rows = torch.stack([drawn["angle"].cos() * step, -drawn["angle"].sin() * step], dim=-1)
    columns = torch.stack([drawn["angle"].sin() * step, drawn["angle"].cos() * step], dim=-1)
    turning = torch.stack([rows, columns], dim=-2).flatten(2)  # (B, P, 4)
    turning = turning.gather(1, original[..., None].expand(-1, -1, 4))
    sizes = bank.sizes[shown]  # (B, P, 2)
    centre = drawn["place"].gather(1, original[..., None].expand(-1, -1, 2)) * sizes
    at = piece[..., None].expand(-1, -1, 2)
    xx, xy, yx, yy = turning.gather(1, piece[..., None].expand(-1, -1, 4)).unbind(-1)
    x, y = (grid - sites.gather(1, at)).unbind(-1)
    # Written out: millions of products of 2×2 matrices, one by one, are slow on a GPU.
    points = torch.stack([xx * x + xy * y, yx * x + yy * y], dim=-1) + centre.gather(1, at)
    span = sizes.gather(1, at) - 1
    folded = (span - (points.remainder((2 * span).clamp_min(1)) - span).abs()).clamp_min(0)
    # To the nearest pixel: pieces are seen through a warp that interpolates anyway.
    x, y = folded.round().long().unbind(-1)
    colours = bank.canvases[shown.gather(1, piece), :, y, x]  # (B, S * S, 3)
    return colours.mT.reshape(count, 3, side, side)


def _draw_originals(count: int, generator: torch.Generator) -> Tensor:
    """Which piece each piece shows the picture of, (B, P) int64: most their own."""
    own = torch.arange(PIECES, device=generator.device).expand(count, -1)
    others = torch.randint(PIECES, (count, PIECES), generator=generator, device=generator.device)
    return torch.where(uniform((count, PIECES), 0, 1, generator) < _COPIED_SHARE, others, own)


def _draw_pieces(sites: Tensor, grid: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Which piece each pixel belongs to, (B, S * S) int64: that of the nearest site, by waving borders.

    Args:
        sites: (B, P, 2) in pixels.
        grid: (1, S * S, 2), the pixels.
        side: S.
        generator: source of all draws.
    """
    count = len(sites)
    shape = {
        "pace": (1.0, 4.0, 2 * _WAVES),
        "phase": (0.0, 2 * math.pi, 2 * _WAVES),
        "height": (0.0, 0.06, 2 * _WAVES),
    }
    waves = uniform_columns((count, 1), shape, generator)
    along = grid.flip(-1).repeat(1, 1, _WAVES) * (2 * math.pi / side)  # x waves along y, and y along x
    shift = (torch.sin(along * waves["pace"] + waves["phase"]) * waves["height"] * side).view(
        count, -1, _WAVES, 2
    )
    return torch.cdist(grid + shift.sum(-2), sites).argmin(-1)
