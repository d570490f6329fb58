"""Matched points as the estimators of pose, homography and fundamental matrix take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


def check_matches(points0: ArrayLike, points1: ArrayLike, threshold: float) -> tuple[Array, Array, Rows]:
    """Both points as float64 (N, 2), and the rows (M,) in which all four coordinates are finite.

    Raises:
        ValueError: a shape, or the threshold in pixels, is wrong.
    """
    pixels0, pixels1 = (np.asarray(points, np.float64) for points in (points0, points1))
    if pixels0.ndim != 2 or pixels0.shape[1] != 2 or pixels0.shape != pixels1.shape:
        raise ValueError(f"points0, points1 must both be (N, 2), got {pixels0.shape} and {pixels1.shape}")
    if not threshold > 0 or not np.isfinite(threshold):
        raise ValueError(f"threshold must be above 0 pixels, got {threshold}")
    is_finite = np.isfinite(pixels0).all(axis=1) & np.isfinite(pixels1).all(axis=1)
    return pixels0, pixels1, np.flatnonzero(is_finite).astype(np.int64)
