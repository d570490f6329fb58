"""Corners without a copy to the CPU: `detect_corners` as tensor operations, with its result to rounding.

OpenCV's steps: contrast-limited adaptive histogram equalisation (CLAHE, Zuiderveld 1994), the smaller
eigenvalue of the structure tensor, local maxima, and a least distance, strongest first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.runtime.graphs import RecurringGraphs

MAX_PIXELS = 2**22  # so that strength and pixel index fit in one float64
MIN_DISTANCE = 3.0
_QUALITY_FLOOR = 1e-4  # as in `ucn.matching.keypoints`, as the next two
_WINDOW = 5
_CLIP_LIMIT = 2.0
_TILES = 8  # along each axis
_LEVELS = 256
_ROUNDS = 8  # of the suppression of weaker neighbours; chains of neighbours are shorter


def detect_corners_on_device(grey: Tensor, max_count: int) -> tuple[Tensor, Tensor]:
    """Corners of a grey image, at least three pixels apart, without waiting for a GPU.

    Args:
        grey: (H, W) uint8, at most `MAX_PIXELS`, at least 32 pixels a side.
        max_count: the most corners to return.

    Returns:
        (max_count, 2) float32 pixels, strongest first, 0 after the last, and their number.
    """
    height, width = grey.shape
    strength = _measure_strength(_equalise(grey))
    is_strong = strength > strength.amax() * _QUALITY_FLOOR
    is_highest = F.max_pool2d(strength[None, None], 3, stride=1, padding=1)[0, 0] == strength
    is_corner = F.pad((is_strong & is_highest)[1:-1, 1:-1], (1, 1, 1, 1))
    # Ordered by strength, then by pixel, as OpenCV does.
    index = torch.arange(height * width, device=grey.device).view(height, width)
    keys = (strength.view(torch.int32).to(torch.int64) * MAX_PIXELS + index).double().where(is_corner, 0.0)
    best = _suppress_neighbours(keys).flatten()
    count = min(max_count, height * width)
    kept = best.topk(count).values.long()
    pixel = kept % MAX_PIXELS
    points = torch.stack([pixel % width, pixel // width], dim=-1).float()
    points = points.where((kept > 0)[:, None], 0.0)
    return F.pad(points, (0, 0, 0, max_count - count)), (kept > 0).sum()


def detect_by_graphs(graphs: RecurringGraphs, grey: Tensor, max_count: int) -> Tensor:
    """The corners of a grey image, as `detect_corners_on_device`, and in the last row their number."""

    def run(grey: Tensor) -> Tensor:
        points, count = detect_corners_on_device(grey, max_count)
        return torch.cat([points, count.float().expand(1, 2)])

    return graphs.run(("corners", max_count), run, (grey,))


def read_corners(found: Tensor) -> Tensor:
    """The corners (K, 2) in a result of `detect_by_graphs`; waits for the GPU."""
    return found[: int(found[-1, 0])]


def _equalise(grey: Tensor) -> Tensor:
    """CLAHE of a grey image (H, W) uint8, as whole numbers in float32."""
    height, width = grey.shape
    values, device = grey.float(), grey.device
    down, right = (0, 0) if height % _TILES == width % _TILES == 0 else (-height % _TILES, -width % _TILES)
    if down or right:  # OpenCV adds a whole row or column of tiles' pixels where only the other is needed
        down, right = down or _TILES, right or _TILES
    extended = F.pad(values[None, None], (0, right, 0, down), mode="reflect")[0, 0]
    tile_h, tile_w = extended.shape[0] // _TILES, extended.shape[1] // _TILES
    size = tile_h * tile_w
    tiles = extended.view(_TILES, tile_h, _TILES, tile_w).transpose(1, 2).reshape(_TILES**2, size)
    counts = torch.zeros(_TILES**2, _LEVELS, device=device)
    counts.scatter_add_(1, tiles.long(), torch.ones_like(tiles))
    # What exceeds the limit is spread over all levels.
    limit = max(int(_CLIP_LIMIT * size / _LEVELS), 1)
    excess = (counts - limit).clamp_min(0).sum(dim=1, keepdim=True).long()
    rest, level = excess % _LEVELS, torch.arange(_LEVELS, device=device)
    step = (_LEVELS // rest.clamp_min(1)).clamp_min(1)
    extra = (level % step == 0) & (level // step < rest)
    counts = counts.clamp_max(limit) + excess // _LEVELS + extra
    tables = (counts.cumsum(dim=1) * ((_LEVELS - 1) / size)).round().clamp_max(_LEVELS - 1)
    (top, bottom, below), (left, after, across) = (
        _find_tiles(length, tile, device) for length, tile in ((height, tile_h), (width, tile_w))
    )
    levels = grey.long()

    def look_up(rows: Tensor, columns: Tensor) -> Tensor:
        return tables[rows[:, None] * _TILES + columns, levels]

    upper = look_up(top, left) * (1 - across) + look_up(top, after) * across
    lower = look_up(bottom, left) * (1 - across) + look_up(bottom, after) * across
    levelled: Tensor = (upper * (1 - below[:, None]) + lower * below[:, None]).round().clamp(0, _LEVELS - 1)
    return levelled


def _find_tiles(length: int, tile: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The tiles before and after each pixel along an axis, and the weight of the latter."""
    place = torch.arange(length, device=device, dtype=torch.float32) * (1 / tile) - 0.5
    before = place.floor()
    first = before.long()
    return first.clamp_min(0), (first + 1).clamp_max(_TILES - 1), place - before


def _measure_strength(image: Tensor) -> Tensor:
    """Smaller eigenvalues (H, W) of the structure tensor of whole numbers (H, W)."""
    padded = F.pad(image[None, None], (1, 1, 1, 1), mode="reflect")[0, 0].double()
    rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    columns = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    dx, dy = rows[:, 2:] - rows[:, :-2], columns[2:] - columns[:-2]
    products = torch.stack([dx * dx, dx * dy, dy * dy])[None]
    half = _WINDOW // 2
    # Sums of whole numbers are exact in float64.
    sums = F.avg_pool2d(F.pad(products, (half,) * 4, mode="reflect"), _WINDOW, stride=1, divisor_override=1)
    scale = 1 / (4 * _WINDOW * 255.0)
    xx, xy, yy = (sums[0] * scale**2).float()
    xx, yy = xx * 0.5, yy * 0.5
    strength: Tensor = (xx + yy) - ((xx - yy).square() + xy.square()).sqrt()
    return strength


def _suppress_neighbours(keys: Tensor) -> Tensor:
    """The keys (H, W) that remain where the highest are taken first and exclude those within two pixels."""
    left, taken = keys[None, None], torch.zeros_like(keys)[None, None]
    for _ in range(_ROUNDS):
        is_best = (F.max_pool2d(left, 5, stride=1, padding=2) == left) & (left > 0)
        best = left.where(is_best, 0.0)
        taken = taken + best
        left = left.where(F.max_pool2d(best, 5, stride=1, padding=2) == 0, 0.0)
    return taken[0, 0]
