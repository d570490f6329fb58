"""What the robust estimators share: the check of their matches, poselib, and what their results count."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CONFIDENCE = 0.9999
"""Probability with which RANSAC finds a sample without outliers."""


class RobustEstimate:
    """A result with inliers."""

    is_inlier: BoolArray

    @property
    def inlier_count(self) -> int:
        """Number of inliers."""
        return int(self.is_inlier.sum())


def check_matches(
    points0: ArrayLike, points1: ArrayLike, threshold: float, **at_least: tuple[float, int]
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Matches as float64, and the rows that are finite in both images.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1, row by row.
        threshold: in pixels.
        at_least: value and lower bound of further arguments, by name.

    Returns:
        Points (N, 2) of image 0 and of image 1, and rows (M,).

    Raises:
        ValueError: a shape, the threshold or another argument is wrong.
    """
    pixels0, pixels1 = (np.asarray(points, np.float64) for points in (points0, points1))
    if pixels0.ndim != 2 or pixels0.shape[1] != 2 or pixels0.shape != pixels1.shape:
        raise ValueError(f"points0, points1 must both be (N, 2), got {pixels0.shape} and {pixels1.shape}")
    if not threshold > 0 or not np.isfinite(threshold):
        raise ValueError(f"threshold must be above 0 pixels, got {threshold}")
    for name, (value, lowest) in at_least.items():
        if value < lowest:
            raise ValueError(f"{name} must be at least {lowest}, got {value}")
    return (
        pixels0,
        pixels1,
        np.flatnonzero(np.isfinite(pixels0).all(axis=1) & np.isfinite(pixels1).all(axis=1)),
    )


def import_poselib(purpose: str, otherwise: str = "") -> ModuleType:
    """The module poselib; raises `ImportError` with a purpose, and a way without it, where it is missing."""
    try:
        import poselib
    except ImportError as error:
        raise ImportError(f"{purpose} needs the package poselib: pip install poselib{otherwise}") from error
    module: ModuleType = poselib
    return module


def measure_width(points: Array) -> float:
    """RMS distance of points (N, 2) from their best-fitting line."""
    return float(np.linalg.svd(points - points.mean(axis=0), compute_uv=False)[-1] / np.sqrt(len(points)))
