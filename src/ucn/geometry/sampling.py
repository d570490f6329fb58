"""Reading of images, masks and feature maps at real-valued points; only here is `grid_sample` called."""

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
    # A point given in a wider type than the map (bf16 maps, float32 points) must not lose its digits.
    values = F.grid_sample(
        images.to(grid.dtype), grid, mode="bilinear", padding_mode=padding, align_corners=False
    )
    return values.to(images.dtype)


def sample_patches(image: Tensor, places: Tensor, shapes: Tensor, offsets: Tensor) -> Tensor:
    """Values of an image in patches, which `shapes` turn and stretch; beyond its border, those of the border.

    The same as `sample_image` at ``places[:, None] + offsets @ shapes.mT``, to rounding, and several times as
    fast: what makes a grid of points is done to patches instead of pixels.

    Args:
        image: (H, W).
        places: (N, 2) pixels, where patches have their centre.
        shapes: (N, 2, 2).
        offsets: (Q, 2) of a patch's pixels from its centre.

    Returns:
        (N, Q), in the type of `places`.
    """
    if not len(places):  # grid_sample refuses an empty grid on some devices
        return places.new_zeros(0, len(offsets))
    size_hw = (image.shape[0], image.shape[1])
    centres, steps = to_sampling_grid(places, size_hw), to_sampling_steps(shapes, size_hw)
    # x of all pixels, then y. Not by a product of matrices, which may round to few digits.
    grid = torch.addcmul(centres[..., None], steps[..., :1], offsets[:, 0])
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
    """Unit descriptors at real-valued pixels; beyond the outermost cell centres the border cell answers.

    Args:
        feature_map: B maps of D channels.
        points: (B, N, 2) pixels of the encoded images.

    Returns:
        (B, N, D), re-normalised, since an average of unit vectors is shorter than one; tied to the graph of
        the map even for N = 0.

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
