"""The coordinate conventions; every formula is written here only, and pinned by ``test_convention_*``.

A point is (x, y), x to the right, y down, in pixels. The CENTRE of the top-left pixel is (0, 0), so an image
spans [-0.5, W - 0.5] x [-0.5, H - 0.5]. A size is (height, width) and its name ends in ``_hw``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.config import MIN_SIDE
from ucn.types import FeatureMap


def resize_points(points: Tensor, scale_xy: tuple[float, float]) -> Tensor:
    """Points (..., 2) after resizing their image by ``scale_xy`` = (new W / W, new H / H)."""
    # By axis: a tensor made of the scale would make a GPU wait.
    return torch.stack(
        [(points[..., axis] + 0.5) * scale - 0.5 for axis, scale in enumerate(scale_xy)], dim=-1
    )


def resize_scale(from_hw: tuple[int, int], to_hw: tuple[int, int]) -> tuple[float, float]:
    """The (x, y) scale between two sizes of an image."""
    return to_hw[1] / from_hw[1], to_hw[0] / from_hw[0]


def flip_points(points: Tensor, width: int) -> Tensor:
    """Points (..., 2) after mirroring their image, of the given width, left to right."""
    return torch.stack([width - 1 - points[..., 0], points[..., 1]], dim=-1)


def cells_to_pixels(cells: Tensor, stride: int, offset: float) -> Tensor:
    """Pixel coordinates of the feature cells of a backbone with a stride and an offset."""
    return cells * stride + offset


def pixels_to_cells(points: Tensor, stride: int, offset: float) -> Tensor:
    """Real-valued cell coordinates of pixels; the inverse of `cells_to_pixels`."""
    return (points - offset) / stride


def cell_centres(feature_map: FeatureMap) -> Tensor:
    """Pixel coordinates (h * w, 2) of all cells, in the order of ``features.flatten(2)``."""
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
    """Normalised coordinates of points (..., 2) for ``grid_sample`` with ``align_corners=False``."""
    # Not `new_tensor(size)`, which exported graphs for any image size would keep as a constant.
    size = torch.stack([points.new_ones(()) * size_hw[1], points.new_ones(()) * size_hw[0]])
    return (2 * points + 1) / size - 1


def to_sampling_steps(shapes: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Linear maps (N, 2, 2) of pixel offsets, as maps to the coordinates of `to_sampling_grid`."""
    height, width = size_hw
    return torch.stack([shapes[:, 0] * (2 / width), shapes[:, 1] * (2 / height)], dim=1)


def is_inside(points: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Which points (..., 2) lie on the image, bool (...); False for NaN."""
    height, width = size_hw
    x, y = points[..., 0], points[..., 1]
    return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


def to_corner_origin(points: Tensor) -> Tensor:
    """Points in the convention of COLMAP, where (0.5, 0.5) is the centre of the top-left pixel."""
    return points + 0.5


def from_corner_origin(points: Tensor) -> Tensor:
    """Points from the convention of COLMAP, where (0.5, 0.5) is the centre of the top-left pixel."""
    return points - 0.5


def is_sideways(orientation: int) -> bool:
    """Whether an EXIF orientation, 1 to 8, swaps height and width."""
    return orientation >= 5


def apply_orientation(points: Tensor, stored_hw: tuple[int, int], orientation: int) -> Tensor:
    """Points (..., 2) of an image as stored in its file, after EXIF has turned it upright.

    Args:
        points: in pixels as stored.
        stored_hw: (H, W) as stored.
        orientation: 1 to 8: row 0 of the stored image is at the top (1, 2), at the bottom (3, 4), on the left
            (5, 8) or on the right (6, 7) of the upright one.
    """
    height, width = stored_hw
    if orientation in (2, 3, 7, 8):  # column 0 is at the right, or at the bottom
        points = flip_points(points, width)
    if orientation in (3, 4, 6, 7):  # row 0 is at the bottom, or at the right
        points = flip_points(points.flip(-1), height).flip(-1)
    return points.flip(-1) if is_sideways(orientation) else points


def invert_orientation(orientation: int) -> int:
    """The orientation that turns an upright image into the stored one."""
    return {6: 8, 8: 6}.get(orientation, orientation)  # quarter turns; all others undo themselves


def orient_size(size_hw: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(H, W) of the upright image by that of the stored one, or the other way around."""
    return (size_hw[1], size_hw[0]) if is_sideways(orientation) else size_hw


def find_reduced_hw(image_hw: tuple[int, int], max_side: int | None) -> tuple[int, int]:
    """(H, W) of an image after its longest side is reduced; no side gets below `MIN_SIDE`. None keeps it."""
    longest, shortest = max(image_hw), min(image_hw)
    if max_side is None or longest <= max_side:
        return image_hw
    scale = max(max_side / longest, MIN_SIDE / shortest)
    return image_hw if scale >= 1 else (round(image_hw[0] * scale), round(image_hw[1] * scale))
