"""The four pixels round a point and their shares, for maps in which pixels may be unknown.

`sample_image` does not serve there: in `grid_sample` an unknown neighbour of weight 0 makes the sum NaN, too,
and normalised coordinates do not hit pixel centres exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ucn.geometry.coords import is_inside


def neighbours(points: Tensor, map_hw: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The pixels round points, one after the other.

    In the outer half of the border pixels the border pixel answers alone.

    Args:
        points: (B, N, 2); those off the map are treated as if they were at (0, 0).
        map_hw: (H, W).

    Yields:
        The pixel's index (B, N) in the map, row by row, and its share (B, N) in the mixture. Where that is 0
        the pixel may be unknown, and must not be used.
    """
    height, width = map_hw
    place = points.where(is_inside(points, map_hw)[..., None], 0)
    x, y = place[..., 0].clamp(0, width - 1), place[..., 1].clamp(0, height - 1)
    left, top = x.floor(), y.floor()
    for column, share_x in ((left, 1 - (x - left)), (left + 1, x - left)):
        for row, share_y in ((top, 1 - (y - top)), (top + 1, y - top)):
            index = row.clamp(max=height - 1).long() * width + column.clamp(max=width - 1).long()
            yield index, share_x * share_y
