"""Stage 2 of `reconstruction`: errors of the cameras of sparse reconstructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ucn.evaluate.reconstruction.predictions import Scene, SceneModel, Variant

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


@dataclass(frozen=True)
class ReconstructionScore:
    """The score of a variant on a scene.

    Attributes:
        scene: its name.
        method: its name.
        cameras: "given" or "guessed".
        is_adjusted: whether keypoints were adjusted.
        images: number of images of the scene.
        registered: number of registered images.
        points: number of 3D points.
        track_length: mean number of images of a point.
        reprojection_error: pixels.
        centre_mean: mean error of camera centres in mm, over registered images.
        centre_range: smallest and largest of these means over the seeds.
        centre_median: mm.
        centre_max: mm.
        direction_mean: mean error of viewing directions, degrees.
        refined: number of seeds whose model has a refined principal point.
        seeds: number of seeds; all but the fewest registered images and the range are averages over them.
    """

    scene: str
    method: str
    cameras: str
    is_adjusted: bool
    images: int
    registered: int
    points: int
    track_length: float
    reprojection_error: float
    centre_mean: float
    centre_range: tuple[float, float]
    centre_median: float
    centre_max: float
    direction_mean: float
    refined: int
    seeds: int


@dataclass(frozen=True)
class CameraErrors:
    """The errors of the camera centres of a variant on a scene.

    Attributes:
        scene: its name.
        method: its name.
        cameras: "given" or "guessed".
        is_adjusted: whether keypoints were adjusted.
        images: numbers of the registered ones; empty where too few are registered for an error.
        errors: mm, of each of them.
    """

    scene: str
    method: str
    cameras: str
    is_adjusted: bool
    images: tuple[int, ...]
    errors: tuple[float, ...]


def score_model(scene: Scene, variant: Variant, model: SceneModel) -> ReconstructionScore:
    """The score of a model; errors are NaN where fewer than three cameras are registered."""
    rows = model.is_registered
    truth = scene.centres[rows]
    errors = 1000 * centre_errors(model.centres[rows], truth)
    angles = direction_errors(model.centres[rows], truth, model.rotations[rows], scene.rotations[rows])
    is_scored = len(errors) > 0 and bool(np.isfinite(errors).all())
    nan = float("nan")
    mean = float(errors.mean()) if is_scored else nan
    return ReconstructionScore(
        scene=scene.name,
        method=variant.method.name,
        cameras=variant.cameras,
        is_adjusted=variant.is_adjusted,
        images=len(scene.images),
        registered=int(rows.sum()),
        points=model.points,
        track_length=model.track_length,
        reprojection_error=model.reprojection_error,
        centre_mean=mean,
        centre_range=(mean, mean),
        centre_median=float(np.median(errors)) if is_scored else nan,
        centre_max=float(errors.max()) if is_scored else nan,
        direction_mean=float(angles.mean()) if is_scored else nan,
        refined=int(model.is_refined),
        seeds=1,
    )


def average_scores(scores: Sequence[ReconstructionScore]) -> ReconstructionScore:
    """The score of a variant on a scene over several seeds; NaN where a seed has no error."""
    means = [score.centre_mean for score in scores]
    return replace(
        scores[0],
        registered=min(score.registered for score in scores),
        points=round(np.mean([score.points for score in scores])),
        track_length=float(np.mean([score.track_length for score in scores])),
        reprojection_error=float(np.mean([score.reprojection_error for score in scores])),
        centre_mean=float(np.mean(means)),
        centre_range=(float(np.min(means)), float(np.max(means))),
        centre_median=float(np.mean([score.centre_median for score in scores])),
        centre_max=float(np.mean([score.centre_max for score in scores])),
        direction_mean=float(np.mean([score.direction_mean for score in scores])),
        refined=sum(score.refined for score in scores),
        seeds=len(scores),
    )


def list_camera_errors(scene: Scene, variant: Variant, model: SceneModel) -> CameraErrors:
    """The error of each registered camera of a model."""
    rows = np.flatnonzero(model.is_registered)
    if fit_similarity(model.centres[rows], scene.centres[rows]) is None:
        rows = rows[:0]
    return CameraErrors(
        scene=scene.name,
        method=variant.method.name,
        cameras=variant.cameras,
        is_adjusted=variant.is_adjusted,
        images=tuple(rows.tolist()),
        errors=tuple((1000 * centre_errors(model.centres[rows], scene.centres[rows])).tolist()),
    )
