"""SURF (Bay et al. 2008), on a grid and at its own keypoints: by mahotas, as OpenCV is built without it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ucn.errors import ConfigError
from ucn.features.extractor import (
    STRIDE,
    GreyArray,
    count_cells,
    list_centres,
    make_features,
    read_pixels,
    to_grey,
)
from ucn.features.sparse import Keypoints
from ucn.types import Features, FloatArray, ImageLike

# Scales from a point to the farthest pixel that mahotas may read; it drops points nearer to the border.
# Measured: about 16.
_REACH = 18
# Pixels by which its descriptors are centred left of and above the point. Measured by rotating an image by
# 180 degrees and comparing descriptors.
_CENTRE = 1.0
_THRESHOLD = 1.0  # of the detector; mahotas' default of 0.1 lets noise of dark surfaces through


@dataclass(frozen=True)
class DenseSurf:
    """SURF at each cell: sums of wavelets in 4 × 4 squares, rotated to the dominant orientation.

    Attributes:
        scale: of all points in pixels; squares are 5 scales wide. A whole number, since mahotas' descriptors
            on a grid hardly match at scales of 1.5 or 2.5.
    """

    dim: ClassVar[int] = 64
    stride: ClassVar[int] = STRIDE
    scale: int = 4

    @property
    def title(self) -> str:
        """Name and settings."""
        return (
            f"dense SURF, 4 × 4 squares of {5 * self.scale} px, {self.dim} dimensions, rotated to the "
            f"dominant orientation, one cell per {STRIDE} px"
        )

    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of the grey image at every cell."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        descriptors = self.compute_at(to_grey(pixels), list_centres(image_hw))
        return make_features(torch.from_numpy(descriptors).t().reshape(-1, *count_cells(image_hw)), image_hw)

    def compute_at(self, grey: GreyArray, points: FloatArray) -> FloatArray:
        """Descriptors (K, 64) at points (K, 2); the image is extended by its border pixels.

        Raises:
            ConfigError: mahotas is not installed.
        """
        _require_mahotas()
        from mahotas.features import surf

        frame = _REACH * self.scale
        # Row, column, scale, strength and sign of the Laplacian; descriptors do not depend on the last two.
        interest_points = np.ones((len(points), 5))
        interest_points[:, :2] = points[:, ::-1] + frame + _CENTRE
        interest_points[:, 2] = self.scale
        framed = np.pad(grey, frame, mode="edge")
        descriptors = surf.descriptors(framed, interest_points, descriptor_only=True)
        if len(descriptors) != len(points):
            raise RuntimeError(
                f"mahotas computed {len(descriptors)} of {len(points)} descriptors; expected all"
            )
        return np.asarray(descriptors, np.float32)


@dataclass(frozen=True)
class SurfKeypoints:
    """SURF's keypoints with SURF's descriptors, at the scale and orientation of each keypoint.

    Attributes:
        max_count: the strongest keypoints to detect; those too near to the border are then dropped.
    """

    dim: ClassVar[int] = DenseSurf.dim
    max_count: int = 4096

    def extract(self, image: ImageLike) -> Keypoints:
        """Detects keypoints of the grey image and computes their descriptors.

        Raises:
            ConfigError: mahotas is not installed.
        """
        _require_mahotas()
        from mahotas.features import surf

        grey = to_grey(read_pixels(image))
        found = surf.surf(grey, threshold=_THRESHOLD, max_points=self.max_count)
        rows = np.asarray(found, np.float32).reshape(-1, 70)  # row, column, four more, then the descriptor
        return Keypoints(torch.from_numpy(rows[:, 1::-1].copy()), torch.from_numpy(rows[:, 6:].copy()))


def explain_unavailable() -> str:
    """Why SURF cannot be computed here; empty where it can."""
    if importlib.util.find_spec("mahotas") is None:
        return "SURF needs mahotas, which is not installed: pip install 'ucn[baselines]'"
    return ""


def _require_mahotas() -> None:
    reason = explain_unavailable()
    if reason:
        raise ConfigError(reason)
