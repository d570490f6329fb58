"""Hand-made descriptors of OpenCV, computed at every cell of a grid: SIFT, DAISY and KAZE.

All are upright and of one size: a dense method is asked where a given point lies, and has no keypoint
detector that would choose orientation and scale. The sizes were chosen on synthetic pairs made of photographs
that no benchmark contains (``docs/evaluation.md``).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from ucn.features.extractor import GreyArray, count_cells, list_centres, make_features, read_pixels, to_grey
from ucn.types import Features, FloatArray, ImageLike


class _GridDescriptor(ABC):
    """A descriptor that OpenCV computes at given points."""

    def extract(self, image: ImageLike) -> Features:
        """Describes the grey image at every cell."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        descriptors = _compute(self._make(), to_grey(pixels), _list_keypoints(image_hw, self._settings()))
        h, w = count_cells(image_hw)
        return make_features(torch.from_numpy(descriptors).t().reshape(-1, h, w), image_hw)

    def describe_at(self, grey: GreyArray, points: FloatArray) -> FloatArray:
        """Descriptors (K, D) at points (K, 2), at least 2 px from the border; not of unit length."""
        return _compute(self._make(), grey, _place(points, self._settings()))

    @abstractmethod
    def _make(self) -> cv2.Feature2D:
        """What computes the descriptors."""

    @abstractmethod
    def _settings(self) -> _KeypointSettings:
        """How it is told where and how large."""


@dataclass(frozen=True)
class _KeypointSettings:
    """Of a keypoint without orientation: size, how far right of and below its point it lies, level."""

    size: float
    shift: float = 0.0
    level: int = -1


@dataclass(frozen=True)
class DenseSift(_GridDescriptor):
    """SIFT (Lowe 2004): 4 × 4 histograms of 8 gradient directions, 128 numbers.

    Attributes:
        bin_pixels: side of one of the 4 × 4 histograms in pixels, a multiple of 1.5.
    """

    bin_pixels: float = 9.0

    def _make(self) -> cv2.Feature2D:
        return cv2.SIFT.create()

    def _settings(self) -> _KeypointSettings:
        # OpenCV makes a bin 3 × size / 2 wide. Octave 0 is the image itself, smoothed by 1.6 pixels.
        return _KeypointSettings(self.bin_pixels / 1.5)


@dataclass(frozen=True)
class DenseDaisy(_GridDescriptor):
    """DAISY (Tola et al. 2010): 25 histograms of 8 directions on three rings and in the middle, 200 numbers.

    Attributes:
        radius: of the outermost ring, in pixels.
    """

    radius: float = 20.0

    def _make(self) -> cv2.Feature2D:
        return cv2.xfeatures2d.DAISY.create(radius=self.radius)

    def _settings(self) -> _KeypointSettings:
        # A keypoint's size means nothing to DAISY without an orientation.
        return _KeypointSettings(1.0)


@dataclass(frozen=True)
class DenseKaze(_GridDescriptor):
    """KAZE (Alcantarilla et al. 2012): sums of derivatives in a nonlinear scale space, 64 numbers.

    Attributes:
        unit_pixels: distance of the samples, of which 24 × 24 make a descriptor, in whole pixels.
        level: of the scale space, from 1; four levels double the smoothing.
    """

    unit_pixels: int = 2
    level: int = 1

    def _make(self) -> cv2.Feature2D:
        room = cv2.xfeatures2d if hasattr(cv2.xfeatures2d, "KAZE") else cv2  # OpenCV 5, or 4
        descriptor: cv2.Feature2D = room.KAZE.create(upright=True)
        return descriptor

    def _settings(self) -> _KeypointSettings:
        # The weights of its samples are not symmetric: a descriptor's centre lies this far right and down.
        shift = -_KAZE_CENTRE * self.unit_pixels
        return _KeypointSettings(2.0 * self.unit_pixels, shift, self.level)


# In units of the sampling distance. Measured: where the descriptor of an image turned by 180 degrees is most
# like the turned descriptor.
_KAZE_CENTRE = 0.35


@functools.lru_cache(maxsize=16)
def _list_keypoints(image_hw: tuple[int, int], settings: _KeypointSettings) -> tuple[cv2.KeyPoint, ...]:
    """A keypoint on each cell."""
    return _place(list_centres(image_hw), settings)


def _place(points: FloatArray, settings: _KeypointSettings) -> tuple[cv2.KeyPoint, ...]:
    """A keypoint on each point (K, 2)."""
    size, level = settings.size, settings.level
    places = (points + np.float32(settings.shift)).tolist()
    return tuple(cv2.KeyPoint(x, y, size, 0.0, 0.0, 0, level) for x, y in places)


def _compute(descriptor: cv2.Feature2D, grey: GreyArray, keypoints: tuple[cv2.KeyPoint, ...]) -> FloatArray:
    kept, descriptors = descriptor.compute(grey, keypoints)
    if len(kept) != len(keypoints):
        raise RuntimeError(f"OpenCV described {len(kept)} of {len(keypoints)} points; expected all of them")
    return np.asarray(descriptors, np.float32)
