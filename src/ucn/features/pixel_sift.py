"""Dense SIFT as SIFT Flow uses it: a descriptor at every pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
import torch

from ucn.features.extractor import make_features, read_pixels, to_grey
from ucn.types import Features, ImageLike

_BATCH_KEYPOINTS = 50_000  # a keypoint of OpenCV takes ten times the memory of its coordinates


@dataclass(frozen=True)
class PixelSift:
    """SIFT (Lowe 2004) at each pixel, upright and of one scale: 4 × 4 histograms of 8 directions.

    Attributes:
        bin_pixels: side of a histogram in pixels, a multiple of 1.5; 3 in the authors' code.
        stride: pixels between descriptors.
    """

    dim: ClassVar[int] = 128
    bin_pixels: float = 3.0
    stride: int = 1

    @property
    def title(self) -> str:
        """Name and settings."""
        return f"SIFT at every pixel, 4 × 4 histograms of {self.bin_pixels:g} px, upright; SIFT Flow's own"

    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of the grey image at every pixel."""
        pixels = read_pixels(image)
        height, width = pixels.shape[-2:]
        grey = to_grey(pixels)
        rows, columns = np.mgrid[: height : self.stride, : width : self.stride]
        points = np.stack([columns.ravel(), rows.ravel()], axis=-1).astype(float).tolist()
        sift, size = cv2.SIFT.create(), self.bin_pixels / 1.5
        parts = []
        for first in range(0, len(points), _BATCH_KEYPOINTS):
            batch = points[first : first + _BATCH_KEYPOINTS]
            keypoints = [cv2.KeyPoint(x, y, size, 0.0, 0.0, 0, -1) for x, y in batch]
            parts.append(sift.compute(grey, keypoints)[1])
        descriptors = torch.from_numpy(np.concatenate(parts)).t().reshape(-1, *rows.shape)
        return make_features(descriptors, (height, width), self.stride, 0)
