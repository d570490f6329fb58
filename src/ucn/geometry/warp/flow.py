"""Points warped by flow fields and disparities, and their forward-backward consistency.

Unknown vectors are NaN or infinite. A point with an unknown pixel among those it is interpolated from becomes
NaN. Disparities are of rectified stereo: image 1 is the right view, so x1 = x0 - d and y1 = y0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ucn.geometry.coords import is_inside, pixel_grid


def flow_from_disparity(disparity0: Tensor) -> Tensor:
    """The flow (B, H, W, 2), (-d, 0), from the left to the right view, of disparities (B, H, W).

    Raises:
        ValueError: the shape does not fit.
    """
    if disparity0.ndim != 3:
        raise ValueError(f"disparity0 must be (B, H, W), got {tuple(disparity0.shape)}")
    known = disparity0.where(disparity0.isfinite(), torch.nan)
    return torch.stack([-known, known * 0], dim=-1)


def targets_of_flow(flow_0to1: Tensor) -> Tensor:
    """Where every pixel centre of image 0 lies in image 1.

    Args:
        flow_0to1: (B, H, W, 2).

    Returns:
        (B, H, W, 2) points of image 1, not limited to it; NaN where the flow is unknown.

    Raises:
        ValueError: the shape does not fit.
    """
    batch, height, width = _check_flow(flow_0to1, "flow_0to1")
    known = flow_0to1.where(flow_0to1.isfinite().all(dim=-1, keepdim=True), torch.nan)
    return pixel_grid((height, width), flow_0to1.device).expand(batch, -1, -1, -1).to(flow_0to1.dtype) + known


def warp_points_by_flow(points0: Tensor, flow_0to1: Tensor) -> Tensor:
    """Warps points by flow fields, interpolated bilinearly.

    At a pixel centre only that pixel matters; elsewhere every pixel of non-zero weight must be known. In the
    outer half of the border pixels the border pixel has all the weight, as for descriptors.

    Args:
        points0: (B, N, 2) pixels of image 0.
        flow_0to1: (B, H, W, 2), from points of image 0 to their positions in image 1.

    Returns:
        (B, N, 2), not limited to image 1; NaN where the flow is unknown or the point is not on image 0.

    Raises:
        ValueError: the shapes do not fit.
    """
    batch, _, _ = _check_flow(flow_0to1, "flow_0to1")
    if points0.ndim != 3 or points0.shape[-1] != 2 or len(points0) != batch:
        raise ValueError(f"points0 must be ({batch}, N, 2), got {tuple(points0.shape)}")
    return points0 + _read_bilinearly(flow_0to1, points0)


def is_flow_consistent(points0: Tensor, flow_0to1: Tensor, flow_1to0: Tensor, tolerance: float) -> Tensor:
    """Which points pass the forward-backward consistency check.

    A point that is occluded in image 1 is mapped to its occluder, whose backward flow leads elsewhere.

    Args:
        points0: (B, N, 2) pixels of image 0.
        flow_0to1: (B, H0, W0, 2).
        flow_1to0: (B, H1, W1, 2), as large as image 1.
        tolerance: largest round-trip error, in pixels of image 0.

    Returns:
        (B, N) bool; False where a vector is unknown or the point leaves image 1.

    Raises:
        ValueError: the shapes do not fit, or the tolerance is negative.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0 pixels, got {tolerance}")
    batch, _, _ = _check_flow(flow_0to1, "flow_0to1")
    if _check_flow(flow_1to0, "flow_1to0")[0] != batch:
        raise ValueError(f"flow_1to0 must be ({batch}, H, W, 2), got {tuple(flow_1to0.shape)}")
    returned = warp_points_by_flow(warp_points_by_flow(points0, flow_0to1), flow_1to0)
    distance: Tensor = (returned - points0).norm(dim=-1)
    return distance <= tolerance


def is_disparity_consistent(
    points0: Tensor, disparity0: Tensor, disparity1: Tensor, tolerance: float
) -> Tensor:
    """Which points of the left view pass the left-right consistency check of stereo.

    Args:
        points0: (B, N, 2) pixels of the left view.
        disparity0: (B, H0, W0) of the left view: x1 = x0 - d0.
        disparity1: (B, H1, W1) of the right view, with the same sign: x0 = x1 + d1.
        tolerance: largest difference of the two disparities, in pixels.

    Returns:
        (B, N) bool; False where a disparity is unknown or the point leaves image 1.

    Raises:
        ValueError: the shapes do not fit, or the tolerance is negative.
    """
    if disparity1.ndim != 3:
        raise ValueError(f"disparity1 must be (B, H, W), got {tuple(disparity1.shape)}")
    flow_1to0 = flow_from_disparity(-disparity1)
    return is_flow_consistent(points0, flow_from_disparity(disparity0), flow_1to0, tolerance)


def is_nearest_by_disparity(disparity0: Tensor, image1_width: int, tolerance: float) -> Tensor:
    """Which pixels of the left view are not occluded in the right one, from the left disparities alone.

    Of the pixels that are mapped to the same pixel of the right view, the one with the largest disparity is
    in front; others are occluded unless their disparity is within the tolerance of it. This replaces
    `is_disparity_consistent` for data sets without disparities of the right view.

    Args:
        disparity0: (B, H, W) of the left view.
        image1_width: width of the right view, in pixels.
        tolerance: pixels of disparity.

    Returns:
        (B, H, W) bool; False where the disparity is unknown or the pixel leaves the right view.

    Raises:
        ValueError: the shape does not fit, the tolerance is negative, or the width is not positive.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0 pixels, got {tolerance}")
    if image1_width < 1:
        raise ValueError(f"image1_width must be at least 1 pixel, got {image1_width}")
    x1 = targets_of_flow(flow_from_disparity(disparity0))[..., 0]
    is_on_image = (x1 >= -0.5) & (x1 <= image1_width - 0.5)
    columns = x1.where(is_on_image, 0).round().clamp(0, image1_width - 1).long()
    inside = disparity0.where(is_on_image, -torch.inf)
    front = inside.new_full((*disparity0.shape[:2], image1_width), -torch.inf)
    front.scatter_reduce_(2, columns, inside, "amax")
    return is_on_image & (disparity0 >= front.gather(2, columns) - tolerance)


def _check_flow(flow: Tensor, name: str) -> tuple[int, int, int]:
    """(B, H, W) of a flow field."""
    if flow.ndim != 4 or flow.shape[-1] != 2 or flow.shape[1] == 0 or flow.shape[2] == 0:
        raise ValueError(f"{name} must be (B, H, W, 2) with pixels, got {tuple(flow.shape)}")
    return flow.shape[0], flow.shape[1], flow.shape[2]


def _read_bilinearly(fields: Tensor, points: Tensor) -> Tensor:
    """Values (B, N, C) of fields (B, H, W, C) at points (B, N, 2)."""
    batch, height, width, channels = fields.shape
    is_on_image = is_inside(points, (height, width))[..., None]  # (B, N, 1)
    flat = fields.reshape(batch, height * width, channels)
    total = torch.zeros(*points.shape[:2], channels, dtype=fields.dtype, device=fields.device)
    for index, weight in neighbours(points, (height, width)):
        value = flat.gather(1, index[..., None].expand(-1, -1, channels))
        total = total + (weight[..., None] * value).where(weight[..., None] > 0, 0)
    return total.where(is_on_image & total.isfinite().all(dim=-1, keepdim=True), torch.nan)


def neighbours(points: Tensor, map_hw: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The four pixels around each point and their weights, one after the other.

    `sample_image` does not suit maps with unknown pixels: in `grid_sample` an unknown (NaN) neighbour of
    weight 0 makes the sum NaN, and normalised coordinates do not hit pixel centres exactly. In the outer
    half of the border pixels the border pixel has all the weight.

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
