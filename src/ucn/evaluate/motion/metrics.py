"""Errors of an estimated relative pose: pure functions of arrays.

All angles are degrees. A pose is ``X1 = R X0 + t``, from camera 0 to camera 1, and of t only
the direction counts. A failed estimate has an error of 180 degrees in both, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.evaluate.core.metrics import area_under_error_curve

Angles = NDArray[np.float64]

FAILED = 180.0
"""The error of a failed estimate, in degrees: the largest there is."""
AUC_LIMITS = (5.0, 10.0, 20.0)
"""Degrees; those that papers report."""


@dataclass(frozen=True)
class PoseError:
    """The error of an estimated relative pose.

    Attributes:
        rotation: degrees in [0, 180].
        translation: degrees in [0, 180] between the directions.
        line: degrees in [0, 90] between the directions, without their sign; 180 where the estimate failed.
        is_failure: there is no estimate.
    """

    rotation: float
    translation: float
    line: float
    is_failure: bool = False

    @property
    def larger(self) -> float:
        """The larger of rotation and translation error: what the AUC is computed from."""
        return max(self.rotation, self.translation)


def rotation_error(estimated: ArrayLike, truth: ArrayLike) -> float:
    """The angle arccos((tr(Rᵀ R_true) - 1) / 2) between two rotations.

    Args:
        estimated: R (3, 3).
        truth: R_true (3, 3).

    Returns:
        Degrees in [0, 180].

    Raises:
        ValueError: a shape is wrong.
    """
    R, true = np.asarray(estimated, np.float64), np.asarray(truth, np.float64)
    if R.shape != (3, 3) or true.shape != (3, 3):
        raise ValueError(f"rotations must be (3, 3), got {R.shape} and {true.shape}")
    between = R.T @ true
    cosine = (np.trace(between) - 1) / 2
    # The arccosine alone loses half of the digits of a small angle.
    sine = np.linalg.norm(between - between.T) / np.sqrt(8)
    return float(np.degrees(np.arctan2(sine, cosine)))


def translation_error(estimated: ArrayLike, truth: ArrayLike) -> float:
    """The angle between two translations: 0 where they point the same way, 180 where opposite ways.

    Args:
        estimated: t (3,), of any length but 0.
        truth: t_true (3,), of any length but 0.

    Returns:
        Degrees in [0, 180].

    Raises:
        ValueError: a shape is wrong, or a vector has no direction.
    """
    t, true = np.asarray(estimated, np.float64), np.asarray(truth, np.float64)
    if t.shape != (3,) or true.shape != (3,):
        raise ValueError(f"translations must be (3,), got {t.shape} and {true.shape}")
    lengths = np.linalg.norm(t), np.linalg.norm(true)
    if not min(lengths) > 0 or not np.isfinite(lengths).all():
        raise ValueError("a translation of length 0 has no direction; leave pairs without a baseline out")
    t, true = t / lengths[0], true / lengths[1]
    return float(np.degrees(np.arctan2(np.linalg.norm(np.cross(t, true)), t @ true)))


def measure_pose(R: ArrayLike | None, t: ArrayLike | None, true_R: ArrayLike, true_t: ArrayLike) -> PoseError:
    """The error of an estimated pose.

    Args:
        R: (3, 3); None for a failure.
        t: (3,); None for a failure.
        true_R: (3, 3).
        true_t: (3,).
    """
    if R is None or t is None:
        return PoseError(FAILED, FAILED, FAILED, is_failure=True)
    angle = translation_error(t, true_t)
    return PoseError(rotation_error(R, true_R), angle, min(angle, 180.0 - angle))


def pose_auc(errors: Sequence[PoseError], limits: Sequence[float] = AUC_LIMITS) -> Angles:
    """AUC: the mean height of the curve "share of pairs within an angle", from 0 to each limit.

    The error of a pair is the larger of rotation and translation error; a failure is beyond every limit.

    Args:
        errors: of each pair.
        limits: (T,) degrees above 0.

    Returns:
        (T,) in [0, 1]; NaN where there are no pairs.
    """
    values = [np.inf if error.is_failure else error.larger for error in errors]
    return area_under_error_curve(values, limits)
