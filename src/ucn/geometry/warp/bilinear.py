"""Bilinear interpolation of maps with unknown pixels: the four pixels around a point and their weights.

`sample_image` does not suit: in `grid_sample` an unknown (NaN) neighbour of weight 0 makes the sum NaN, and
normalised coordinates do not hit pixel centres exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ucn.geometry.coords import is_inside


def neighbours(points: Tensor, map_hw: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The four pixels around each point, one after the other.

    In the outer half of the border pixels the border pixel has all the weight.

    Args:
        points: (B, N, 2); those outside the map are treated as (0, 0).
        map_hw: (H, W).

    Yields:
        The pixel's index (B, N) in the flattened map, and its weight (B, N). A pixel of weight 0 may be
        unknown, and must not be used.
    """
    height, width = map_hw
    inside = points.where(is_inside(points, map_hw)[..., None], 0)
    x, y = inside[..., 0].clamp(0, width - 1), inside[..., 1].clamp(0, height - 1)
    left, top = x.floor(), y.floor()
    for column, weight_x in ((left, 1 - (x - left)), (left + 1, x - left)):
        for row, weight_y in ((top, 1 - (y - top)), (top + 1, y - top)):
            index = row.clamp(max=height - 1).long() * width + column.clamp(max=width - 1).long()
            yield index, weight_x * weight_y
