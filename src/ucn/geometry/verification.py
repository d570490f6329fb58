"""Geometric verification: which matches one homography, or one fundamental matrix, explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.errors import ConfigError
from ucn.files import suggest
from ucn.geometry import fundamental, homography
from ucn.geometry.fundamental import estimate_fundamental
from ucn.geometry.homography import estimate_homography
from ucn.geometry.robust import RobustEstimate

THRESHOLDS = {"homography": homography.DEFAULT_THRESHOLD, "fundamental": fundamental.DEFAULT_THRESHOLD}
"""Geometric models by name, with the largest error of an inlier in pixels: the transfer error in image 1 of a
homography, the Sampson error of a fundamental matrix."""


@dataclass(frozen=True)
class VerifySettings:
    """How matches are verified.

    Attributes:
        model: "homography" for planes and cameras that only rotate, "fundamental" for any rigid scene.
        threshold: largest error of an inlier in pixels; None takes that of `THRESHOLDS`.
        seed: of RANSAC, at least 0.
    """

    model: str = "homography"
    threshold: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        if self.model not in THRESHOLDS:
            legal = " or ".join(THRESHOLDS)
            raise ConfigError(
                f"model must be {legal}, got '{self.model[:80]}'" + suggest(self.model, THRESHOLDS)
            )
        if not (self.threshold_px > 0 and math.isfinite(self.threshold_px)):
            raise ConfigError(f"threshold must be above 0 pixels, got {self.threshold_px:g}")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")

    @property
    def threshold_px(self) -> float:
        """The threshold in pixels, also where the default is taken."""
        return THRESHOLDS[self.model] if self.threshold is None else self.threshold

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, to be stored with results."""
        return {"model": self.model, "threshold_px": self.threshold_px, "seed": self.seed}


@dataclass(frozen=True)
class Verification(RobustEstimate):
    """The outcome of a verification.

    Attributes:
        settings: how matches were verified.
        matrix: (3, 3) float64, homography or fundamental matrix from image 0 to image 1; None where the
            estimation failed.
        is_inlier: (N,) bool, row by row of the matches; all False where the estimation failed.
        failure: the reason; empty on success.
    """

    settings: VerifySettings
    matrix: NDArray[np.float64] | None
    is_inlier: NDArray[np.bool_]
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All but `is_inlier` as plain values, to be stored with results."""
        name = "H_0to1" if self.settings.model == "homography" else "F_0to1"
        return {
            **self.settings.to_dict(),
            name: None if self.matrix is None else self.matrix.tolist(),
            "inliers": self.inlier_count,
            "failure": self.failure or None,
        }


def verify_geometry(points0: ArrayLike, points1: ArrayLike, settings: VerifySettings) -> Verification:
    """Finds the matches that one geometric model explains; failure is a result, as of the estimators.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1, row by row; rows that are not finite are outliers.
        settings: model, threshold and seed.

    Raises:
        ValueError: a shape is wrong.
        ImportError: poselib is not installed.
    """
    threshold, seed = settings.threshold_px, settings.seed
    if settings.model == "homography":
        plane = estimate_homography(points0, points1, threshold=threshold, seed=seed)
        return Verification(settings, plane.H_0to1, plane.is_inlier, plane.failure)
    found = estimate_fundamental(points0, points1, threshold=threshold, seed=seed)
    return Verification(settings, found.F_0to1, found.is_inlier, found.failure)
