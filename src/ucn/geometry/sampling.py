"""Sampling of images, masks and feature maps at real-valued points; the only user of `grid_sample`."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import pixels_to_cells, to_sampling_grid, to_sampling_steps
from ucn.types import FeatureMap

Padding = Literal["border", "zeros"]


def sample_image(images: Tensor, points: Tensor, padding: Padding) -> Tensor:
    """Values of images at points, by bilinear interpolation.

    Args:
        images: (B, C, H, W).
        points: (B, P, Q, 2) in pixels of `images` (cells, when `images` is a feature map).
        padding: outside the outermost pixel centres, the nearest border value or zero.

    Returns:
        (B, C, P, Q).
    """
    grid = to_sampling_grid(points, (images.shape[-2], images.shape[-1]))
    # In the type of the points, which may be wider than the map's (bf16 maps, float32 points).
    values = F.grid_sample(
        images.to(grid.dtype), grid, mode="bilinear", padding_mode=padding, align_corners=False
    )
    return values.to(images.dtype)


def sample_patches(image: Tensor, centres: Tensor, shapes: Tensor, offsets: Tensor) -> Tensor:
    """Values of an image in affinely warped patches; outside the image, the border value.

    As `sample_image` at ``centres[:, None] + offsets @ shapes.mT``, to rounding, but several times as fast,
    since coordinates are normalised per patch instead of per pixel.

    Args:
        image: (H, W).
        centres: (N, 2) pixels, of the patches.
        shapes: (N, 2, 2) linear maps of the patches.
        offsets: (Q, 2) of a patch's pixels from its centre, before the map.

    Returns:
        (N, Q), in the type of `centres`.
    """
    if not len(centres):  # grid_sample refuses an empty grid on some devices
        return centres.new_zeros(0, len(offsets))
    size_hw = (image.shape[0], image.shape[1])
    origins, steps = to_sampling_grid(centres, size_hw), to_sampling_steps(shapes, size_hw)
    # Not by a matrix product, which may run in TF32.
    grid = torch.addcmul(origins[..., None], steps[..., :1], offsets[:, 0])
    grid.addcmul_(steps[..., 1:], offsets[:, 1])
    values = F.grid_sample(
        image[None, None].to(grid.dtype),
        grid.transpose(1, 2)[None],
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
    return values[0, 0]


def sample_descriptors(feature_map: FeatureMap, points: Tensor) -> Tensor:
    """Unit descriptors at real-valued pixels; outside the outermost cell centres, those of the border cell.

    Args:
        feature_map: B maps of D channels.
        points: (B, N, 2) pixels of the encoded images.

    Returns:
        (B, N, D), re-normalised, since an average of unit vectors is shorter than one; part of the map's
        autograd graph even for N = 0.

    Raises:
        ValueError: the shapes do not fit.
    """
    batch = feature_map.features.shape[0]
    if points.ndim != 3 or points.shape[-1] != 2 or points.shape[0] != batch:
        raise ValueError(f"points must be ({batch}, N, 2), got {tuple(points.shape)}")
    cells = pixels_to_cells(points, feature_map.stride, feature_map.offset)
    if cells.shape[1] == 0:  # grid_sample refuses an empty grid on some devices
        return feature_map.features.flatten(2)[:, :, :0].transpose(1, 2)
    sampled = sample_image(feature_map.features, cells[:, :, None], "border")  # (B, D, N, 1)
    return F.normalize(sampled[..., 0], dim=1).transpose(1, 2)


def read_nearest(values: Tensor, points: Tensor) -> Tensor:
    """Values (N,) of a map (H, W), such as a mask, at the pixels nearest to points (N, 2)."""
    height, width = values.shape
    column = (points[:, 0] + 0.5).floor().long().clamp(0, width - 1)
    row = (points[:, 1] + 0.5).floor().long().clamp(0, height - 1)
    return values[row, column]
