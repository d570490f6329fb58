"""THE coordinate conventions; every formula stands here once and is pinned by a ``test_convention_*`` test.

A point is (x, y), x to the right, y down, in pixels. The CENTRE of the top-left pixel is (0, 0), so an image
spans [-0.5, W - 0.5] x [-0.5, H - 0.5]. A size is (height, width) and its name ends in ``_hw``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.types import FeatureMap


def resize_points(points: Tensor, scale_xy: tuple[float, float]) -> Tensor:
    """Moves points (..., 2) with an image that is resized by ``scale_xy`` = (new W / W, new H / H)."""
    scale = points.new_tensor(scale_xy)
    return (points + 0.5) * scale - 0.5


def resize_scale(from_hw: tuple[int, int], to_hw: tuple[int, int]) -> tuple[float, float]:
    """The (x, y) scale that takes an image of one size to another."""
    return to_hw[1] / from_hw[1], to_hw[0] / from_hw[0]


def flip_points(points: Tensor, width: int) -> Tensor:
    """Moves points (..., 2) with an image of the given width that is mirrored left to right."""
    return torch.stack([width - 1 - points[..., 0], points[..., 1]], dim=-1)


def cells_to_pixels(cells: Tensor, stride: int, offset: float) -> Tensor:
    """Pixel coordinates of feature cells: where the cells of a backbone declaring (stride, offset) lie."""
    return cells * stride + offset


def pixels_to_cells(points: Tensor, stride: int, offset: float) -> Tensor:
    """Real-valued cell coordinates of pixels; the inverse of `cells_to_pixels`."""
    return (points - offset) / stride


def cell_centres(feature_map: FeatureMap) -> Tensor:
    """Pixel coordinates (h * w, 2) of all cells, row by row, as ``features.flatten(2)`` orders them."""
    h, w = feature_map.grid_hw
    device, dtype = feature_map.features.device, torch.float32
    y, x = torch.meshgrid(
        torch.arange(h, device=device, dtype=dtype),
        torch.arange(w, device=device, dtype=dtype),
        indexing="ij",
    )
    cells = torch.stack([x.flatten(), y.flatten()], dim=-1)
    return cells_to_pixels(cells, feature_map.stride, feature_map.offset)


def pixel_grid(size_hw: tuple[int, int], device: torch.device | str = "cpu") -> Tensor:
    """Coordinates (H, W, 2) of every pixel centre."""
    height, width = size_hw
    y, x = torch.meshgrid(
        torch.arange(height, device=device, dtype=torch.float32),
        torch.arange(width, device=device, dtype=torch.float32),
        indexing="ij",
    )
    return torch.stack([x, y], dim=-1)


def to_sampling_grid(points: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """What ``grid_sample`` with ``align_corners=False`` expects for points (..., 2) of an image or map."""
    # Not one tensor of both: graphs made for images of any size would keep the size they were made with.
    size = torch.stack([points.new_ones(()) * size_hw[1], points.new_ones(()) * size_hw[0]])
    return (2 * points + 1) / size - 1


def to_sampling_steps(shapes: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Linear maps (N, 2, 2) of steps in pixels as maps of what `to_sampling_grid` makes of them."""
    height, width = size_hw
    return torch.stack([shapes[:, 0] * (2 / width), shapes[:, 1] * (2 / height)], dim=1)


def is_inside(points: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Bool (...): which points (..., 2) lie on the image; False for NaN."""
    height, width = size_hw
    x, y = points[..., 0], points[..., 1]
    return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


def to_corner_origin(points: Tensor) -> Tensor:
    """Points for tools that put (0.5, 0.5) at the centre of the top-left pixel, such as COLMAP."""
    return points + 0.5


def from_corner_origin(points: Tensor) -> Tensor:
    """Points from tools that put (0.5, 0.5) at the centre of the top-left pixel, such as COLMAP."""
    return points - 0.5
