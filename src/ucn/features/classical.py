"""Classical descriptors of OpenCV, computed at every cell of a grid: SIFT, DAISY and KAZE.

All are upright and of one scale, since no detector chooses orientation and scale. The scales were chosen on
synthetic pairs made of photographs that no benchmark contains (``docs/evaluation.md``).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
import torch

from ucn.features.extractor import (
    STRIDE,
    GreyArray,
    count_cells,
    list_centres,
    make_features,
    read_pixels,
    to_grey,
)
from ucn.types import Features, FloatArray, ImageLike


class _GridDescriptor(ABC):
    """A descriptor of `dim` dimensions that OpenCV computes at given points."""

    dim: ClassVar[int]
    stride: ClassVar[int] = STRIDE

    @property
    def title(self) -> str:
        """Name and settings."""
        return f"dense {self._format()}, {self.dim} dimensions, upright, one cell per {STRIDE} px"

    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of the grey image at every cell."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        keypoints = _list_keypoints(image_hw, self._settings())
        descriptors = _compute(self._make(), to_grey(pixels), keypoints)
        h, w = count_cells(image_hw)
        return make_features(torch.from_numpy(descriptors).t().reshape(-1, h, w), image_hw)

    def compute_at(self, grey: GreyArray, points: FloatArray) -> FloatArray:
        """Descriptors (K, D), not normalised, at points (K, 2) that lie at least 2 px from the border."""
        return _compute(self._make(), grey, _make_keypoints(points, self._settings()))

    @abstractmethod
    def _format(self) -> str:
        """Name and settings of the descriptor."""

    @abstractmethod
    def _make(self) -> cv2.Feature2D:
        """OpenCV's descriptor."""

    @abstractmethod
    def _settings(self) -> _KeypointSettings:
        """The keypoints to give it."""


@dataclass(frozen=True)
class _KeypointSettings:
    """A keypoint without orientation.

    Attributes:
        size: OpenCV's diameter of the keypoint.
        shift: pixels to the right and down from the point to the keypoint.
        level: OpenCV's class id, which KAZE reads as the level of its scale space.
    """

    size: float
    shift: float = 0.0
    level: int = -1


@dataclass(frozen=True)
class DenseSift(_GridDescriptor):
    """SIFT (Lowe 2004): 4 × 4 histograms of 8 gradient directions.

    Attributes:
        bin_pixels: side of one of the 4 × 4 histograms in pixels, a multiple of 1.5.
    """

    dim: ClassVar[int] = 128
    bin_pixels: float = 9.0

    def _format(self) -> str:
        return f"SIFT, 4 × 4 histograms of {self.bin_pixels:g} px"

    def _make(self) -> cv2.Feature2D:
        return cv2.SIFT.create()

    def _settings(self) -> _KeypointSettings:
        # OpenCV makes a bin 3 × size / 2 wide. Octave 0 is the image itself, smoothed by 1.6 pixels.
        return _KeypointSettings(self.bin_pixels / 1.5)


@dataclass(frozen=True)
class DenseDaisy(_GridDescriptor):
    """DAISY (Tola et al. 2010): 25 histograms of 8 directions, on three rings and at the centre.

    Attributes:
        radius: of the outermost ring, in pixels.
    """

    dim: ClassVar[int] = 200
    radius: float = 20.0

    def _format(self) -> str:
        return f"DAISY, radius {self.radius:g} px"

    def _make(self) -> cv2.Feature2D:
        return cv2.xfeatures2d.DAISY.create(radius=self.radius)

    def _settings(self) -> _KeypointSettings:
        return _KeypointSettings(1.0)  # DAISY ignores the size of a keypoint without orientation


@dataclass(frozen=True)
class DenseKaze(_GridDescriptor):
    """KAZE (Alcantarilla et al. 2012): sums of derivatives in a nonlinear scale space.

    Attributes:
        unit_pixels: distance of the 24 × 24 samples of a descriptor, in whole pixels.
        level: of the scale space, from 1; four levels double the smoothing.
    """

    dim: ClassVar[int] = 64
    unit_pixels: int = 2
    level: int = 1

    def _format(self) -> str:
        return f"KAZE, 24 × 24 samples {self.unit_pixels} px apart, level {self.level}"

    def _make(self) -> cv2.Feature2D:
        module = cv2.xfeatures2d if hasattr(cv2.xfeatures2d, "KAZE") else cv2  # OpenCV 5, or 4
        descriptor: cv2.Feature2D = module.KAZE.create(upright=True)
        return descriptor

    def _settings(self) -> _KeypointSettings:
        shift = -_KAZE_CENTRE * self.unit_pixels
        return _KeypointSettings(2.0 * self.unit_pixels, shift, self.level)


# The weights of KAZE's samples are not symmetric: a descriptor is centred this many sampling distances to the
# right of and below its keypoint. Measured by rotating an image by 180 degrees and comparing descriptors.
_KAZE_CENTRE = 0.35


@functools.lru_cache(maxsize=16)
def _list_keypoints(image_hw: tuple[int, int], settings: _KeypointSettings) -> tuple[cv2.KeyPoint, ...]:
    """A keypoint on each cell."""
    return _make_keypoints(list_centres(image_hw), settings)


def _make_keypoints(points: FloatArray, settings: _KeypointSettings) -> tuple[cv2.KeyPoint, ...]:
    """A keypoint on each point (K, 2)."""
    size, level = settings.size, settings.level
    shifted = (points + np.float32(settings.shift)).tolist()
    return tuple(cv2.KeyPoint(x, y, size, 0.0, 0.0, 0, level) for x, y in shifted)


def _compute(descriptor: cv2.Feature2D, grey: GreyArray, keypoints: tuple[cv2.KeyPoint, ...]) -> FloatArray:
    kept, descriptors = descriptor.compute(grey, keypoints)
    if len(kept) != len(keypoints):
        raise RuntimeError(f"OpenCV computed {len(kept)} of {len(keypoints)} descriptors; expected all")
    return np.asarray(descriptors, np.float32)


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
