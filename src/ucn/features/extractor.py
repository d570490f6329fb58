"""What a method must do to be measured beside the network, and the grid that hand-made descriptors lie on."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import to_tensor
from ucn.errors import ImageReadError
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.nn import MIN_SIDE
from ucn.types import FeatureMap, Features, FloatArray, ImageLike

STRIDE = 4
"""Pixels between the cells of hand-made descriptors: as fine as the network's own grid."""
OFFSET = 2
"""Pixel that cell 0 of hand-made descriptors is centred on, as in the network; a whole one, since OpenCV's
SIFT rounds positions."""

GreyArray = NDArray[np.uint8]

# Blank surfaces give descriptors of no length; what is below this is rounding.
_SHORTEST = 1e-6


class Extractor(Protocol):
    """Turns an image into dense features; `ucn.Matcher` is one, and so is every baseline."""

    def extract(self, image: ImageLike) -> Features:
        """Describes one image, whole, on a regular grid of cells.

        Args:
            image: path, `PIL.Image`, numpy uint8 (H, W, 3) RGB or (H, W), or torch (3, H, W) in [0, 1].

        Raises:
            ImageReadError: the file cannot be read, or a side is too short.
        """


def read_pixels(image: ImageLike) -> Tensor:
    """An image as (3, H, W) in [0, 1]; raises `ImageReadError` where a side is too short to describe."""
    pixels = to_tensor(image)
    height, width = pixels.shape[-2:]
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"image must be at least {MIN_SIDE} px a side, got {width} × {height} (width × height); "
            "enlarge it first"
        )
    return pixels


def to_grey(pixels: Tensor) -> GreyArray:
    """Luma of (3, H, W) RGB in [0, 1] as OpenCV weighs it (BT.601), rounded to uint8 (H, W)."""
    weights = pixels.new_tensor([0.299, 0.587, 0.114])
    grey = torch.einsum("c,chw->hw", weights, pixels).mul(255).round().clamp(0, 255)
    return np.ascontiguousarray(grey.to(torch.uint8).cpu().numpy())


def count_cells(image_hw: tuple[int, int]) -> tuple[int, int]:
    """(h, w): how many cells of `STRIDE` and `OFFSET` have their centre on an image."""
    height, width = image_hw
    return (height - OFFSET + STRIDE - 1) // STRIDE, (width - OFFSET + STRIDE - 1) // STRIDE


def list_centres(image_hw: tuple[int, int]) -> FloatArray:
    """(h * w, 2) pixels of the cells of `STRIDE` and `OFFSET`, row by row."""
    h, w = count_cells(image_hw)
    rows, columns = np.divmod(np.arange(h * w), w)
    centres: FloatArray = (np.stack([columns, rows], axis=-1) * STRIDE + OFFSET).astype(np.float32)
    return centres


def make_unit(descriptors: Tensor, dim: int) -> Tensor:
    """Descriptors of unit length along `dim`; those of no length, of blank surfaces, become all equal."""
    lengths = descriptors.norm(dim=dim, keepdim=True)
    flat = torch.full_like(descriptors, descriptors.shape[dim] ** -0.5)
    return torch.where(lengths > _SHORTEST, F.normalize(descriptors, dim=dim, eps=_SHORTEST), flat)


def make_features(
    descriptors: Tensor, image_hw: tuple[int, int], stride: int = STRIDE, offset: float = OFFSET
) -> Features:
    """Features of an image that was described at its own size; all cell centres are its keypoints.

    Args:
        descriptors: (D, h, w), of any length.
        image_hw: (H, W).
        stride: pixels between cells.
        offset: pixel of cell 0.
    """
    return resized_features(descriptors, image_hw, image_hw, stride, offset)


def resized_features(
    descriptors: Tensor,
    encoded_hw: tuple[int, int],
    image_hw: tuple[int, int],
    stride: int,
    offset: float,
) -> Features:
    """Features of an image of `image_hw` that was described at the size `encoded_hw`; see `make_features`."""
    feature_map = FeatureMap(make_unit(descriptors, 0)[None], stride, offset, encoded_hw)
    keypoints = resize_points(cell_centres(feature_map), resize_scale(encoded_hw, image_hw))
    return Features(feature_map, image_hw, keypoints)
