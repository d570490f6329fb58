"""The protocol of feature extractors, and the grid that classical dense descriptors are computed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import to_tensor
from ucn.errors import ImageReadError, WeightsError
from ucn.files.reading import open_regular, shorten
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.nn import MIN_SIDE
from ucn.types import FeatureMap, Features, FloatArray, ImageLike

STRIDE = 4
"""Pixels between the cells of classical descriptors, as in the network."""
OFFSET = 2
"""Pixel coordinate of cell 0 of classical descriptors, as in the network; OpenCV's SIFT rounds it."""

GreyArray = NDArray[np.uint8]

_MIN_NORM = 1e-6  # descriptors of textureless surfaces are zero up to rounding


class Extractor(Protocol):
    """Extracts dense features from an image; `ucn.Matcher` is one, and so is every baseline.

    An extractor with a detector of its own has a class attribute ``has_own_keypoints = True``.
    """

    def extract(self, image: ImageLike) -> Features:
        """Extracts features on a regular grid of cells.

        Args:
            image: path, `PIL.Image`, numpy uint8 (H, W, 3) RGB or (H, W), or torch (3, H, W) in [0, 1].

        Raises:
            ImageReadError: the file cannot be read, or a side is too short.
        """


def has_own_keypoints(extractor: object) -> bool:
    """Whether an extractor detects keypoints itself, as DISK does; others give the centres of their cells."""
    return bool(getattr(extractor, "has_own_keypoints", False))


def read_pixels(image: ImageLike) -> Tensor:
    """An image as (3, H, W) in [0, 1]; raises `ImageReadError` where a side is too short."""
    pixels = to_tensor(image)
    height, width = pixels.shape[-2:]
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"image must be at least {MIN_SIDE} px a side, got {width} × {height} (width × height); "
            "enlarge it first"
        )
    return pixels


def to_grey(pixels: Tensor) -> GreyArray:
    """Luma of (3, H, W) RGB in [0, 1] with OpenCV's weights (BT.601), rounded to uint8 (H, W)."""
    weights = pixels.new_tensor([0.299, 0.587, 0.114])
    grey = torch.einsum("c,chw->hw", weights, pixels).mul(255).round().clamp(0, 255)
    return np.ascontiguousarray(grey.to(torch.uint8).cpu().numpy())


def count_cells(image_hw: tuple[int, int]) -> tuple[int, int]:
    """(h, w): the number of cells of `STRIDE` and `OFFSET` whose centre lies on an image."""
    height, width = image_hw
    return (height - OFFSET + STRIDE - 1) // STRIDE, (width - OFFSET + STRIDE - 1) // STRIDE


def list_centres(image_hw: tuple[int, int]) -> FloatArray:
    """(h * w, 2) pixels of the cells of `STRIDE` and `OFFSET`, row by row."""
    h, w = count_cells(image_hw)
    rows, columns = np.divmod(np.arange(h * w), w)
    centres: FloatArray = (np.stack([columns, rows], axis=-1) * STRIDE + OFFSET).astype(np.float32)
    return centres


def normalise_descriptors(descriptors: Tensor, dim: int) -> Tensor:
    """Descriptors of unit length along `dim`; zero descriptors become one constant unit vector."""
    lengths = descriptors.norm(dim=dim, keepdim=True)
    constant = torch.full_like(descriptors, descriptors.shape[dim] ** -0.5)
    return torch.where(lengths > _MIN_NORM, F.normalize(descriptors, dim=dim, eps=_MIN_NORM), constant)


def make_features(
    descriptors: Tensor,
    image_hw: tuple[int, int],
    stride: int = STRIDE,
    offset: float = OFFSET,
    *,
    encoded_hw: tuple[int, int] | None = None,
) -> Features:
    """Features of an image, with the centres of all cells as keypoints.

    Args:
        descriptors: (D, h, w), of any length; they are normalised.
        image_hw: (H, W) of the image.
        stride: pixels between cells, at the encoded size.
        offset: pixel coordinate of cell 0, at the encoded size.
        encoded_hw: (H, W) at which the descriptors were computed; `image_hw` when None.
    """
    encoded_hw = encoded_hw or image_hw
    feature_map = FeatureMap(normalise_descriptors(descriptors, 0)[None], stride, offset, encoded_hw)
    keypoints = resize_points(cell_centres(feature_map), resize_scale(encoded_hw, image_hw))
    return Features(feature_map, image_hw, keypoints)


def load_tensors(path: Path, name: str, load: Callable[[Any], object]) -> None:
    """Reads a file of another project and gives its tensors to `load`.

    Raises:
        WeightsError: the file is not one of tensors, or `load` does not find in it what it needs.
    """
    try:
        # Tensors only, so that the file cannot run code.
        with open_regular(path) as file:
            load(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises a dozen classes on damaged files
        reason = shorten(error) or type(error).__name__
        raise WeightsError(f"{path} does not hold the weights of {name}: {reason}") from error
