"""Errors of the cameras of a sparse reconstruction: pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Similarity:
    """A similarity from a model to the world: ``scale * rotation @ X + shift``.

    Attributes:
        scale: above 0.
        rotation: (3, 3).
        shift: (3,).
    """

    scale: float
    rotation: Values
    shift: Values

    def move(self, points: Values) -> Values:
        """Points (N, 3) of the model in the world."""
        return np.asarray(self.scale * points @ self.rotation.T + self.shift)


def fit_similarity(found: Values, truth: Values) -> Similarity | None:
    """The least-squares similarity from points to their ground truth (Umeyama 1991).

    Args:
        found: (N, 3) points of the model.
        truth: (N, 3) the same points of the world.

    Returns:
        None where fewer than three points, or points on a line, leave a rotation undetermined.
    """
    if len(found) < 3:
        return None
    centre, true_centre = found.mean(axis=0), truth.mean(axis=0)
    left, strengths, right = np.linalg.svd((truth - true_centre).T @ (found - centre))
    spread = float(((found - centre) ** 2).sum())
    if spread <= 0 or strengths[1] <= 1e-9 * strengths[0]:
        return None
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])  # no reflection
    rotation = left @ np.diag(signs) @ right
    scale = float((strengths * signs).sum() / spread)
    return Similarity(scale, rotation, true_centre - scale * rotation @ centre)


def centre_errors(found: Values, truth: Values) -> Values:
    """Errors (N,) of camera centres after the best similarity; infinite without one."""
    similarity = fit_similarity(found, truth)
    if similarity is None:
        return np.full(len(found), np.inf)
    return np.asarray(np.linalg.norm(similarity.move(found) - truth, axis=1))


def direction_errors(found: Values, truth: Values, rotations: Values, true_rotations: Values) -> Values:
    """Errors (N,) of camera rotations in degrees, after the best similarity of centres.

    Args:
        found: (N, 3) centres of the model.
        truth: (N, 3) true centres.
        rotations: (N, 3, 3) from the model to each camera.
        true_rotations: (N, 3, 3) from the world to each camera.
    """
    similarity = fit_similarity(found, truth)
    if similarity is None:
        return np.full(len(found), 180.0)
    # In the world a camera of the model is R · rotationᵀ.
    residual = rotations @ similarity.rotation.T @ true_rotations.transpose(0, 2, 1)
    skew = residual - residual.transpose(0, 2, 1)
    sines = np.sqrt((skew**2).sum(axis=(1, 2)) / 2) / 2
    cosines = (np.trace(residual, axis1=1, axis2=2) - 1) / 2
    return np.asarray(np.degrees(np.arctan2(sines, cosines)))
