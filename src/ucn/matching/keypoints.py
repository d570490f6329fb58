"""Keypoints found in pixels alone: corners (`detect_corners`), corners on a GPU, or a regular grid."""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

# Corners are ranked by strength, so a dark image gets as many as a bright one; the floor excludes flat areas.
_QUALITY_FLOOR = 1e-4  # share of the strongest corner
_WINDOW = 5  # pixels, over which gradients are summed, and in which a corner is the strongest
_FloatArray = NDArray[np.float64]


class Corners(NamedTuple):
    """Corners of an image, strongest first.

    Attributes:
        points: (K, 2) float32 pixels, on the CPU.
        strengths: (K,) float32 smaller eigenvalues of the structure tensor.
    """

    points: Tensor
    strengths: Tensor


def detect_corners(
    image: Tensor, max_count: int, *, min_distance: float = 3.0, use_subpixel: bool = False
) -> Corners:
    """Detects corners (Shi and Tomasi 1994) after local contrast equalisation (CLAHE), on the CPU.

    Args:
        image: (3, H, W) in [0, 1], whose channels are averaged, or a grey image (H, W) uint8 on the CPU.
        max_count: the most corners to return, at least 1.
        min_distance: pixels between two corners, before sub-pixel refinement.
        use_subpixel: refine each corner to the peak of the response around it; whole pixels otherwise.

    Raises:
        ValueError: `max_count` is below 1.
    """
    if max_count < 1:  # OpenCV would return all corners
        raise ValueError(f"max_count must be at least 1, got {max_count}")
    grey = average_channels(image).cpu() if image.ndim == 3 else image
    equalised = cv2.createCLAHE(clipLimit=2.0, tileGridSize=(8, 8)).apply(grey.numpy())
    # Without a mask; OpenCV's annotations demand one.
    found, strengths = cv2.goodFeaturesToTrackWithQuality(  # type: ignore[call-overload]
        equalised, max_count, _QUALITY_FLOOR, min_distance, None, blockSize=_WINDOW
    )
    if found is None:
        return Corners(torch.zeros(0, 2), torch.zeros(0))
    points = np.asarray(found, np.float32).reshape(-1, 2)
    if use_subpixel:
        response = cv2.cornerMinEigenVal(equalised, _WINDOW, ksize=3)
        points = refine_peaks(response, points.astype(np.float64)).astype(np.float32)
    return Corners(torch.from_numpy(points), torch.from_numpy(np.asarray(strengths, np.float32).reshape(-1)))


def average_channels(image: Tensor) -> Tensor:
    """The grey image (H, W), uint8, in which corners of an image (3, H, W) in [0, 1] are found."""
    return (image.mean(dim=0).clamp(0, 1) * 255).byte()


def refine_peaks(response: NDArray[Any], points: _FloatArray) -> _FloatArray:
    """Moves local maxima from whole pixels to the peak of the quadric through the 3 × 3 pixels around them.

    Args:
        response: (H, W), at least 3 pixels a side.
        points: (K, 2) whole pixels.

    Returns:
        (K, 2) sub-pixel positions; a point stays where the quadric has no peak within one pixel, and on the
        border.
    """
    height, width = response.shape
    columns = points[:, 0].astype(np.int64).clip(1, width - 2)
    rows = points[:, 1].astype(np.int64).clip(1, height - 2)

    def at(down: int, right: int) -> _FloatArray:
        return np.asarray(response[rows + down, columns + right], np.float64)

    centre = at(0, 0)
    dx, dy = (at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2
    dxx, dyy = at(0, 1) - 2 * centre + at(0, -1), at(1, 0) - 2 * centre + at(-1, 0)
    dxy = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4
    determinant = dxx * dyy - dxy**2
    is_peak = (determinant > 0) & (dxx < 0)
    shift = np.stack([dxy * dy - dyy * dx, dxy * dx - dxx * dy], axis=1)
    shift /= np.where(is_peak, determinant, 1.0)[:, None]
    is_moved = is_peak & (np.abs(shift) <= 1).all(axis=1)
    is_moved &= (points == np.stack([columns, rows], axis=1)).all(axis=1)  # not on the border
    return np.where(is_moved[:, None], points + shift, points)


def strongest_corners(images: Tensor, k: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Detects the k strongest corners of each image by tensor operations alone: on any device, and in graphs.

    A corner's strength is the smaller eigenvalue of the structure tensor (Shi and Tomasi 1994). Unlike
    `detect_corners` it does not equalise contrast, so bright parts of an image count more.

    Args:
        images: (B, 3, H, W) in [0, 1].
        k: rows to return, at least 1.
        weights: (B, 1, H, W), at least 0, by which strengths are multiplied; None for none.

    Returns:
        (B, k, 2) pixels, strongest first, and (B, k) strengths; where corners are fewer, both are 0.
    """
    width = images.shape[-1]
    grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    dx = (grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2]) / 2
    dy = (grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1]) / 2
    products = torch.cat([dx * dx, dx * dy, dy * dy], dim=1)
    sums = F.avg_pool2d(products, _WINDOW, stride=1, padding=_WINDOW // 2)
    xx, xy, yy = sums[:, 0:1], sums[:, 1:2], sums[:, 2:3]
    strength = (xx + yy) / 2 - (((xx - yy) / 2).square() + xy.square()).sqrt()
    if weights is not None:
        strength = strength * weights
    highest = F.max_pool2d(strength, _WINDOW, stride=1, padding=_WINDOW // 2)
    strength = torch.where(strength == highest, strength, 0.0).flatten(1)
    # Padded by k zeros, so that topk works on small images too.
    values, index = F.pad(strength, (0, k)).topk(k, dim=1)
    values = values.clamp_min(0)
    index = torch.where(values > 0, index, 0)
    return torch.stack([index % width, index // width], dim=-1).to(images.dtype), values


def grid_points(size_hw: tuple[int, int], step: int, max_count: int | None = None) -> Tensor:
    """Returns points (K, 2) every `step` pixels, centred in the image.

    Args:
        size_hw: (H, W) of the image.
        step: pixels between neighbours, at least 1.
        max_count: the step grows until the grid has at most this many points; None sets no limit.
    """
    height, width = size_hw
    while True:
        y = torch.arange((height - 1) % step // 2, height, step, dtype=torch.float32)
        x = torch.arange((width - 1) % step // 2, width, step, dtype=torch.float32)
        if max_count is None or len(y) * len(x) <= max_count:
            return torch.cartesian_prod(y, x).flip(-1).reshape(-1, 2)
        step += 1  # a coarser grid still covers the whole image evenly
