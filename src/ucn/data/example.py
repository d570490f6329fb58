"""The stereo pair that ships with the package, and the error of matches against its disparity.

Middlebury 2014 "Motorcycle", as distributed by scikit-image; see ``example/ATTRIBUTION.txt``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ucn.types import FloatArray

_FOLDER = Path(__file__).with_name("example")


@dataclass(frozen=True)
class ExamplePair:
    """Two views of one scene, 741 × 500 pixels each.

    Attributes:
        image0_path: the left view.
        image1_path: the right view.
        disparity: (H, W) float32: pixel (x, y) of the left view corresponds to (x - disparity, y) of the
            right; NaN where unknown.
    """

    image0_path: Path
    image1_path: Path
    disparity: FloatArray


@dataclass(frozen=True)
class DisparityScore:
    """The accuracy of matches against a ground-truth disparity.

    Attributes:
        count: number of matches.
        known_count: number of matches with known disparity; the metrics below are over these.
        share_within: threshold in pixels to the fraction, in [0, 1], of matches whose error is at most that;
            NaN where `known_count` is 0.
        median_error: median error in pixels; NaN where `known_count` is 0.
    """

    count: int
    known_count: int
    share_within: dict[float, float]
    median_error: float


def example_pair() -> ExamplePair:
    """The shipped pair with its ground truth."""
    with np.load(_FOLDER / "motorcycle_disp.npz", allow_pickle=False) as archive:
        disparity = archive["arr_0"].astype(np.float32)
    disparity[~np.isfinite(disparity)] = np.nan
    return ExamplePair(_FOLDER / "motorcycle_left.png", _FOLDER / "motorcycle_right.png", disparity)


def disparity_errors(points0: FloatArray, points1: FloatArray, disparity: FloatArray) -> FloatArray:
    """End-point error of each match, in both coordinates: matches are not projected onto their epipolar line.

    Args:
        points0: (N, 2) points in the left view; the disparity of the nearest pixel is used.
        points1: (N, 2) matched points in the right view; NaN means unmatched, with an infinite error.
        disparity: (H, W), NaN where unknown.

    Returns:
        (N,) float32 pixels; NaN where the disparity is unknown or the point is outside the image.

    Raises:
        ValueError: the shapes do not match.
    """
    if points0.ndim != 2 or points0.shape[1] != 2 or points0.shape != points1.shape:
        raise ValueError(f"points0, points1 must both be (N, 2), got {points0.shape} and {points1.shape}")
    height, width = disparity.shape
    nearest = np.floor(points0 + 0.5).astype(np.int64)
    column, row = np.clip(nearest[:, 0], 0, width - 1), np.clip(nearest[:, 1], 0, height - 1)
    # A point on the image's far edge, W - 0.5, belongs to the last pixel.
    is_inside = ((points0 >= -0.5) & (points0 <= (width - 0.5, height - 0.5))).all(axis=1)
    known = np.where(is_inside, disparity[row, column], np.nan)
    error: FloatArray = np.hypot(
        points1[:, 0] - (points0[:, 0] - known), points1[:, 1] - points0[:, 1]
    ).astype(np.float32)
    error[np.isfinite(known) & ~np.isfinite(error)] = np.inf
    return error


def score_against_disparity(
    points0: FloatArray, points1: FloatArray, disparity: FloatArray, thresholds: Sequence[float] = (1, 3, 5)
) -> DisparityScore:
    """Scores matches of a rectified stereo pair; arguments as `disparity_errors`, `thresholds` in pixels."""
    errors = disparity_errors(points0, points1, disparity)
    errors = errors[~np.isnan(errors)]
    is_empty = len(errors) == 0
    within = {float(t): float("nan") if is_empty else float((errors <= t).mean()) for t in thresholds}
    median = float("nan") if is_empty else float(np.median(errors))
    return DisparityScore(len(points0), len(errors), within, median)
