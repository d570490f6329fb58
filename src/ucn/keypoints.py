"""Points worth matching: corners, or a regular grid."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

# Corners are ranked, not judged: a corner of a dark image is as good as one of a bright image, so the quality
# floor only removes flat areas.
_QUALITY_FLOOR = 1e-4
_MIN_DISTANCE = 3


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
    if max_count < 1:  # OpenCV would return all corners
        raise ValueError(f"max_count must be at least 1, got {max_count}")
    grey = (image.mean(dim=0).clamp(0, 1) * 255).byte().cpu().numpy()
    grey = cv2.createCLAHE(clipLimit=2.0, tileGridSize=(8, 8)).apply(grey)
    corners = cv2.goodFeaturesToTrack(
        grey, max_count, _QUALITY_FLOOR, _MIN_DISTANCE, blockSize=5, useHarrisDetector=False
    )
    if corners is None:
        return torch.zeros(0, 2)
    return torch.from_numpy(np.asarray(corners, np.float32).reshape(-1, 2))


def grid_points(size_hw: tuple[int, int], step: int) -> Tensor:
    """Points (K, 2) every `step` pixels, centred in the image."""
    height, width = size_hw
    y = torch.arange((height - 1) % step // 2, height, step, dtype=torch.float32)
    x = torch.arange((width - 1) % step // 2, width, step, dtype=torch.float32)
    return torch.cartesian_prod(y, x).flip(-1).reshape(-1, 2)
