"""SURF (Bay et al. 2008), on a grid and at its own keypoints: by mahotas, as OpenCV comes without it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np
import torch

from ucn.errors import ConfigError
from ucn.features.extractor import (
    GreyArray,
    count_cells,
    list_centres,
    make_features,
    read_pixels,
    to_grey,
)
from ucn.features.sparse import Keypoints
from ucn.types import Features, FloatArray, ImageLike

# Units of scale from a point to the farthest pixel that mahotas may read; it leaves out points nearer to the
# border. Measured: about 16.
_REACH = 18
# Pixels that its descriptors are centred left of and above the point. Measured: where the descriptors of an
# image turned by 180 degrees are those of the image.
_CENTRE = 1.0
_THRESHOLD = 1.0  # of the detector; mahotas' own is 0.1, which lets noise of dark surfaces through


@dataclass(frozen=True)
class DenseSurf:
    """SURF at each cell: sums of wavelets in 4 × 4 squares, 64 numbers, turned to the dominant direction.

    Attributes:
        scale: of all points in pixels: squares are 5 scales wide. A whole number, since mahotas' descriptors
            on a grid hardly match at scales of 1.5 or 2.5.
    """

    scale: int = 4

    def extract(self, image: ImageLike) -> Features:
        """Describes the grey image at every cell."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        descriptors = self.describe_at(to_grey(pixels), list_centres(image_hw))
        return make_features(torch.from_numpy(descriptors).t().reshape(-1, *count_cells(image_hw)), image_hw)

    def describe_at(self, grey: GreyArray, points: FloatArray) -> FloatArray:
        """Descriptors (K, 64) at points (K, 2); beyond the border the image goes on as at the border.

        Raises:
            ConfigError: mahotas is not installed.
        """
        _require_mahotas()
        from mahotas.features import surf

        frame = _REACH * self.scale
        # Row, column, scale, strength and sign of the Laplacian; the last two mean nothing to a descriptor.
        asked = np.ones((len(points), 5))
        asked[:, :2], asked[:, 2] = points[:, ::-1] + frame + _CENTRE, self.scale
        framed = np.pad(grey, frame, mode="edge")
        descriptors = surf.descriptors(framed, asked, descriptor_only=True)
        if len(descriptors) != len(points):
            raise RuntimeError(f"mahotas described {len(descriptors)} of {len(points)} points; expected all")
        return np.asarray(descriptors, np.float32)


@dataclass(frozen=True)
class SurfKeypoints:
    """SURF's keypoints with SURF's descriptors, of the scale and direction found there.

    Attributes:
        max_count: of the strongest so many, those far enough from the border are kept.
    """

    max_count: int = 4096

    def extract(self, image: ImageLike) -> Keypoints:
        """Finds and describes the keypoints of the grey image.

        Raises:
            ConfigError: mahotas is not installed.
        """
        _require_mahotas()
        from mahotas.features import surf

        grey = to_grey(read_pixels(image))
        found = surf.surf(grey, threshold=_THRESHOLD, max_points=self.max_count)
        rows = np.asarray(found, np.float32).reshape(-1, 70)  # row, column, four more, then the descriptor
        return Keypoints(torch.from_numpy(rows[:, 1::-1].copy()), torch.from_numpy(rows[:, 6:].copy()))


def find_obstacle() -> str:
    """Why SURF cannot be computed; empty where it can."""
    if importlib.util.find_spec("mahotas") is None:
        return "SURF needs mahotas, which is not installed: pip install 'ucn[baselines]'"
    return ""


def _require_mahotas() -> None:
    reason = find_obstacle()
    if reason:
        raise ConfigError(reason)
