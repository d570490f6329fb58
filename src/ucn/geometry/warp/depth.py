"""Points warped by depth and relative pose, and their visibility in the other view.

A camera looks along z, with x to the right and y down. ``K`` (3, 3) maps its coordinates to pixels; the
centre of the top-left pixel is (0, 0). ``T_0to1`` (4, 4) maps coordinates of camera 0 to camera 1. A depth is
a z coordinate, not the length of a ray. Unknown depths are NaN, and so are results that depend on them;
depths that are not finite and above 0 are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import is_inside
from ucn.geometry.warp.flow import neighbours


def unproject(points: Tensor, depth: Tensor, K: Tensor) -> Tensor:
    """Back-projects pixels of known depth to camera coordinates.

    Args:
        points: (B, N, 2) pixels.
        depth: (B, N).
        K: (B, 3, 3).

    Returns:
        (B, N, 3); NaN where the depth is unknown.

    Raises:
        ValueError: the shapes do not fit.
    """
    _check_points(points, depth, "points", "depth")
    _check_matrices(K, (len(points), 3, 3), "K")
    homogeneous = torch.cat([points, torch.ones_like(points[..., :1])], dim=-1)
    rays: Tensor = torch.linalg.solve(K, homogeneous.mT).mT  # (B, N, 3), z = 1
    return rays * _known(depth)[..., None]


def project(points3d: Tensor, K: Tensor, T: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Projects 3D points to pixels.

    Args:
        points3d: (B, N, 3).
        K: (B, 3, 3) intrinsics.
        T: (B, 4, 4) from the points' coordinates to the camera's; None where they are the same.

    Returns:
        (B, N, 2) pixels, not limited to the image, and (B, N) depths; both NaN behind the camera.

    Raises:
        ValueError: the shapes do not fit.
    """
    if points3d.ndim != 3 or points3d.shape[-1] != 3:
        raise ValueError(f"points3d must be (B, N, 3), got {tuple(points3d.shape)}")
    _check_matrices(K, (len(points3d), 3, 3), "K")
    if T is not None:
        _check_matrices(T, (len(points3d), 4, 4), "T")
        points3d = points3d @ T[:, :3, :3].mT + T[:, None, :3, 3]
    depth = _known(points3d[..., 2])
    return (points3d / depth[..., None] @ K.mT)[..., :2], depth


def warp_points_by_depth(
    points0: Tensor, depth0: Tensor, K0: Tensor, K1: Tensor, T_0to1: Tensor
) -> tuple[Tensor, Tensor]:
    """Warps points of view 0 to view 1, whether or not they are occluded there.

    Args:
        points0: (B, N, 2) pixels of view 0.
        depth0: (B, N) their depths.
        K0: (B, 3, 3).
        K1: (B, 3, 3).
        T_0to1: (B, 4, 4).

    Returns:
        (B, N, 2) pixels of view 1, not limited to the image, and (B, N) depths there; both NaN where the
        depth is unknown or the point lies behind camera 1.

    Raises:
        ValueError: the shapes do not fit.
    """
    return project(unproject(points0, depth0, K0), K1, T_0to1)


def sample_depth(depth_map: Tensor, points: Tensor, tolerance: float = 0.05) -> Tensor:
    """Samples a depth map at points, except at depth discontinuities.

    The inverse depth, which is linear on planes, is interpolated bilinearly. Every pixel of non-zero weight
    must be known, and the farthest must not be farther than the nearest by more than the tolerance, since
    there is no surface between the two sides of a discontinuity. In the outer half of the border pixels the
    border pixel has all the weight.

    Args:
        depth_map: (B, H, W).
        points: (B, N, 2) pixels of the map.
        tolerance: relative.

    Returns:
        (B, N); NaN where unknown, at a discontinuity, or outside the map.

    Raises:
        ValueError: the shapes do not fit, or the tolerance is negative.
    """
    _check_map(depth_map, points, tolerance)
    batch, height, width = depth_map.shape
    is_on_map = is_inside(points, (height, width))
    inverse = (1 / _known(depth_map)).reshape(batch, height * width)
    total = inverse.new_zeros(points.shape[:2])
    lowest, highest = torch.full_like(total, torch.inf), torch.zeros_like(total)
    for index, weight in neighbours(points, (height, width)):
        value, is_used = inverse.gather(1, index), weight > 0
        total = total + (weight * value).where(is_used, 0)
        lowest = torch.minimum(lowest, value.where(is_used, torch.inf))
        highest = torch.maximum(highest, value.where(is_used, 0))
    is_surface = is_on_map & (highest <= (1 + tolerance) * lowest)
    return (1 / total).where(is_surface, torch.nan)


def is_smooth(depth_map: Tensor, tolerance: float = 0.05) -> Tensor:
    """Which pixels lie on a surface away from depth discontinuities, where sensors err by pixels.

    Args:
        depth_map: (B, H, W).
        tolerance: relative.

    Returns:
        (B, H, W) bool: the pixel and its eight neighbours, as far as they lie on the map, are known, and the
        farthest is not farther than the nearest by more than the tolerance.

    Raises:
        ValueError: the shape does not fit, or the tolerance is negative.
    """
    _check_map(depth_map, depth_map.new_zeros(len(depth_map), 0, 2), tolerance)
    known = _known(depth_map)
    near, far = known.nan_to_num(0.0), known.nan_to_num(torch.inf)
    smallest = -F.max_pool2d(-near[:, None], 3, stride=1, padding=1)[:, 0]
    largest = F.max_pool2d(far[:, None], 3, stride=1, padding=1)[:, 0]
    return (smallest > 0) & (largest <= (1 + tolerance) * smallest)


def is_visible(points1: Tensor, depth1: Tensor, depth_map1: Tensor, tolerance: float) -> Tensor:
    """Which points are visible in view 1, by comparison with its depth map.

    Args:
        points1: (B, N, 2) pixels of view 1.
        depth1: (B, N) their depths there, from `warp_points_by_depth`.
        depth_map1: (B, H, W) of view 1.
        tolerance: largest relative difference of the two depths.

    Returns:
        (B, N) bool; False where either depth is unknown.

    Raises:
        ValueError: the shapes do not fit, or the tolerance is negative.
    """
    _check_points(points1, depth1, "points1", "depth1")
    measured = sample_depth(depth_map1, points1, tolerance)
    return (measured - depth1).abs() <= tolerance * depth1


@dataclass(frozen=True)
class ZBuffer:
    """A coarse z-buffer of sparse points: the smallest depth in each square cell of an image.

    Attributes:
        depths: (B, ceil(H / cell), ceil(W / cell)); infinite in cells without a point of known depth.
        image_hw: (H, W).
        cell: side of a cell, pixels.
    """

    depths: Tensor
    image_hw: tuple[int, int]
    cell: float


def nearest_depths(points: Tensor, depth: Tensor, image_hw: tuple[int, int], cell: float = 2) -> ZBuffer:
    """The z-buffer of points, for `is_hidden` and `is_seen_through`.

    Args:
        points: (B, N, 2) pixels; those outside the image are left out.
        depth: (B, N).
        image_hw: (H, W).
        cell: side of a cell, pixels.

    Raises:
        ValueError: the shapes do not fit, or the cell is not above 0.
    """
    _check_points(points, depth, "points", "depth")
    if not cell > 0:
        raise ValueError(f"cell must be above 0 pixels, got {cell}")
    height, width = (math.ceil(side / cell) for side in image_hw)
    known = _known(depth)
    is_used = is_inside(points, image_hw) & known.isfinite()
    cells = _cells(points.where(is_used[..., None], 0), (height, width), cell)
    buffer = depth.new_full((len(points), height * width), torch.inf)
    buffer.scatter_reduce_(1, cells, known.where(is_used, torch.inf), "amin")
    return ZBuffer(buffer.view(len(points), height, width), image_hw, cell)


def is_hidden(
    points: Tensor,
    depth: Tensor,
    nearest: ZBuffer,
    reach: int = 4,
    tolerance: float = 0.05,
) -> Tensor:
    """Which points are occluded by nearer points, although those are sparse.

    A point is occluded if a nearer one lies in its own cell, or nearer ones lie on two opposite sides of it:
    above and below, or to the left and to the right, within `reach` cells. One side is not enough: on a
    slanted surface, such as a road, there are always nearer points on one side and farther ones on the other.

    Args:
        points: (B, N, 2) pixels.
        depth: (B, N).
        nearest: of `nearest_depths`, of the points that may occlude them.
        reach: cells to search on each side; 0 searches a point's own cell only.
        tolerance: relative; points nearer by less belong to the same surface.

    Returns:
        (B, N) bool; False for points outside the image or of unknown depth.

    Raises:
        ValueError: the shapes do not fit.
    """
    own, sides, is_used = _read_surroundings(points, depth, nearest, reach)
    limit = (1 - tolerance) * depth
    above, below, left, right = (side < limit for side in sides)
    return is_used & ((own < limit) | (above & below) | (left & right))


def is_seen_through(
    points: Tensor,
    depth: Tensor,
    nearest: ZBuffer,
    reach: int = 4,
    tolerance: float = 0.05,
) -> Tensor:
    """Which points contradict a view's own measurements, all of which are farther around them.

    This happens where an object has moved since it was measured. A point is seen through if nothing within
    `reach` is nearer or as near, and farther points lie in its own cell or on two opposite sides.

    Args:
        points: (B, N, 2) pixels.
        depth: (B, N).
        nearest: of `nearest_depths`, of the view's own measurements.
        reach: cells to search on each side.
        tolerance: relative; points farther by less belong to the same surface.

    Returns:
        (B, N) bool; False for points outside the image or of unknown depth.

    Raises:
        ValueError: the shapes do not fit.
    """
    own, sides, is_used = _read_surroundings(points, depth, nearest, reach)
    surroundings = torch.stack([own, *sides])
    above, below, left, right = (side.isfinite() for side in sides)
    is_measured = own.isfinite() | (above & below) | (left & right)
    return is_used & is_measured & (surroundings.amin(dim=0) > (1 + tolerance) * depth)


def _read_surroundings(
    points: Tensor, depth: Tensor, nearest: ZBuffer, reach: int
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Smallest depths (B, N) in the points' cells, above, below, left and right; which points are valid."""
    _check_points(points, depth, "points", "depth")
    buffer = nearest.depths
    if len(buffer) != len(points):
        raise ValueError(f"nearest must be of {len(points)} images, got {len(buffer)}")
    is_used = is_inside(points, nearest.image_hw) & _known(depth).isfinite()
    cells = _cells(points.where(is_used[..., None], 0), buffer.shape[1:], nearest.cell)
    if reach < 1:
        own = buffer.flatten(1).gather(1, cells)
        return own, [torch.full_like(own, torch.inf)] * 4, is_used
    above, below = _smallest_before(buffer, reach), _smallest_before(buffer.flip(1), reach).flip(1)
    left = _smallest_before(buffer.mT, reach).mT
    right = _smallest_before(buffer.flip(2).mT, reach).mT.flip(2)
    own, *sides = (values.flatten(1).gather(1, cells) for values in (buffer, above, below, left, right))
    return own, sides, is_used


def _smallest_before(values: Tensor, reach: int) -> Tensor:
    """For each row of (B, h, w), the smallest of up to `reach` rows above it; infinite for the first row."""
    padded = F.pad(-values, (0, 0, reach, 0), value=-torch.inf)
    largest = F.max_pool2d(padded[:, None], (reach, 1), stride=1)[:, 0, :-1]
    return -largest


def _cells(points: Tensor, grid_hw: Sequence[int], cell: float) -> Tensor:
    """Index (B, N) of the cell that each point on the image lies in, row by row."""
    column = ((points[..., 0] + 0.5) / cell).long().clamp(0, grid_hw[1] - 1)
    row = ((points[..., 1] + 0.5) / cell).long().clamp(0, grid_hw[0] - 1)
    return row * grid_hw[1] + column


def _known(depth: Tensor) -> Tensor:
    return depth.where((depth > 0) & depth.isfinite(), torch.nan)


def _check_points(points: Tensor, depth: Tensor, points_name: str, depth_name: str) -> None:
    if points.ndim != 3 or points.shape[-1] != 2:
        raise ValueError(f"{points_name} must be (B, N, 2), got {tuple(points.shape)}")
    if depth.shape != points.shape[:2]:
        raise ValueError(f"{depth_name} must be {tuple(points.shape[:2])}, got {tuple(depth.shape)}")


def _check_matrices(matrices: Tensor, shape: tuple[int, ...], name: str) -> None:
    if matrices.shape != shape:
        raise ValueError(f"{name} must be {shape}, got {tuple(matrices.shape)}")


def _check_map(depth_map: Tensor, points: Tensor, tolerance: float) -> None:
    if depth_map.ndim != 3 or 0 in depth_map.shape[1:]:
        raise ValueError(f"depth_map must be (B, H, W) with pixels, got {tuple(depth_map.shape)}")
    if points.ndim != 3 or points.shape[-1] != 2 or len(points) != len(depth_map):
        raise ValueError(f"points must be ({len(depth_map)}, N, 2), got {tuple(points.shape)}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
