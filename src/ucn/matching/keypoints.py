"""Points worth matching: corners, or a regular grid."""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Corners are ranked, not judged: a corner of a dark image is as good as one of a bright image, so the quality
# floor only removes flat areas.
_QUALITY_FLOOR = 1e-4
_MIN_DISTANCE = 3
_WINDOW = 5  # pixels, over which gradients are summed, and in which a corner is the strongest


def detect_corners(image: Tensor, max_count: int) -> Tensor:
    """Corners of an image, strongest first, at least 3 px apart.

    Args:
        image: (3, H, W) in [0, 1].
        max_count: keep at most this many, at least 1.

    Returns:
        (K, 2) float32 pixels, on the CPU, where they are found.

    Raises:
        ValueError: `max_count` is below 1.
    """
    return find_corners(read_brightness(image), max_count)


def read_brightness(image: Tensor) -> Tensor:
    """The brightness (H, W), uint8 on the CPU, in which corners of an image (3, H, W) in [0, 1] are found."""
    return (image.mean(dim=0).clamp(0, 1) * 255).byte().cpu()


def find_corners(brightness: Tensor, max_count: int) -> Tensor:
    """As `detect_corners`, in what `read_brightness` gave."""
    if max_count < 1:  # OpenCV would return all corners
        raise ValueError(f"max_count must be at least 1, got {max_count}")
    even = cv2.createCLAHE(clipLimit=2.0, tileGridSize=(8, 8)).apply(brightness.numpy())
    corners = cv2.goodFeaturesToTrack(
        even, max_count, _QUALITY_FLOOR, _MIN_DISTANCE, blockSize=5, useHarrisDetector=False
    )
    if corners is None:
        return torch.zeros(0, 2)
    return torch.from_numpy(np.asarray(corners, np.float32).reshape(-1, 2))


def strongest_corners(images: Tensor, k: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k strongest corners of each image, by tensor operations alone: on any device, and in graphs.

    A corner's strength is the smaller eigenvalue of the gradients round it (Shi and Tomasi 1994). Unlike
    `detect_corners` it does not even out contrast, so bright parts of an image count more.

    Args:
        images: (B, 3, H, W) in [0, 1].
        k: how many rows to give, at least 1.
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
    # k more of them that are no corners, so that small and blank images have k too.
    values, index = F.pad(strength, (0, k)).topk(k, dim=1)
    values = values.clamp_min(0)
    index = torch.where(values > 0, index, 0)
    return torch.stack([index % width, index // width], dim=-1).to(images.dtype), values


def grid_points(size_hw: tuple[int, int], step: int) -> Tensor:
    """Points (K, 2) every `step` pixels, centred in the image."""
    height, width = size_hw
    y = torch.arange((height - 1) % step // 2, height, step, dtype=torch.float32)
    x = torch.arange((width - 1) % step // 2, width, step, dtype=torch.float32)
    return torch.cartesian_prod(y, x).flip(-1).reshape(-1, 2)
