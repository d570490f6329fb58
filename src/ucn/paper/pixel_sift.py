"""Dense SIFT as SIFT Flow takes it: a descriptor at every pixel."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch

from ucn.features.extractor import make_features, read_pixels, to_grey
from ucn.types import Features, ImageLike

_KEYPOINTS_AT_ONCE = 50_000  # OpenCV's keypoints take ten times the memory of two numbers


@dataclass(frozen=True)
class PixelSift:
    """SIFT (Lowe 2004) at each pixel, upright and of one size: 4 × 4 histograms of 8 directions.

    Attributes:
        bin_pixels: side of a histogram in pixels, a multiple of 1.5; 3 in the authors' programme.
        stride: pixels between descriptors.
    """

    bin_pixels: float = 3.0
    stride: int = 1

    def extract(self, image: ImageLike) -> Features:
        """Describes the grey image at every pixel."""
        pixels = read_pixels(image)
        height, width = pixels.shape[-2:]
        grey = to_grey(pixels)
        rows, columns = np.mgrid[: height : self.stride, : width : self.stride]
        places = np.stack([columns.ravel(), rows.ravel()], axis=-1).astype(float).tolist()
        describer, size = cv2.SIFT.create(), self.bin_pixels / 1.5
        parts = []
        for first in range(0, len(places), _KEYPOINTS_AT_ONCE):
            some = places[first : first + _KEYPOINTS_AT_ONCE]
            keypoints = [cv2.KeyPoint(x, y, size, 0.0, 0.0, 0, -1) for x, y in some]
            parts.append(describer.compute(grey, keypoints)[1])
        descriptors = torch.from_numpy(np.concatenate(parts)).t().reshape(-1, *rows.shape)
        return make_features(descriptors, (height, width), self.stride, 0)
