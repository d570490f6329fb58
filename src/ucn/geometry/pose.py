"""Relative pose from matches: the essential matrix, by poselib or by OpenCV, and its decomposition.

``X1 = R X0 + t``: R and t map coordinates of camera 0 (x right, y down, z forward) to those of camera 1. Two
images do not determine the length of t, so t is a unit vector; it points from the centre of camera 1 to that
of camera 0, in the axes of camera 1. Points, and the principal point of K, are pixels whose centres are at
integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import ArrayLike

from ucn.geometry.robust import CONFIDENCE, Array, BoolArray, RobustEstimate, check_matches, import_poselib

Estimator = Literal["poselib", "opencv"]
"""poselib: LO-RANSAC with non-linear refinement (Larsson et al.); opencv: RANSAC with the five-point solver
(Nistér 2004), as in the paper."""
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
"""All estimators, the default first."""

DEFAULT_THRESHOLD = 1.0
"""Largest distance of an inlier from its epipolar line, in pixels."""
MIN_MATCHES = 5
"""The degrees of freedom of the essential matrix."""

_MAX_ITERATIONS = 10_000
_ROTATION_SHARE = 0.9  # of the inliers; the rest may be outliers that happen to fit
_ROTATION_STEPS = 10


@dataclass(frozen=True)
class PoseEstimate(RobustEstimate):
    """The relative pose from camera 0 to camera 1, or the reason why there is none.

    Attributes:
        R: (3, 3) rotation; None where the estimation failed.
        t: (3,) unit translation; None where the estimation failed.
        is_inlier: (N,) bool; all False where the estimation failed.
        failure: the reason; empty on success.
    """

    R: Array | None
    t: Array | None
    is_inlier: BoolArray
    failure: str = ""


def estimate_pose(
    points0: ArrayLike,
    points1: ArrayLike,
    K0: ArrayLike,
    K1: ArrayLike | None = None,
    *,
    estimator: Estimator = "poselib",
    threshold: float = DEFAULT_THRESHOLD,
    seed: int = 0,
) -> PoseEstimate:
    """Estimates the relative pose of two images.

    Of the four poses of an essential matrix, the one with most points in front of both cameras is taken
    (cheirality). Failure is a result, not an error. Reasons are fewer than five matches, no inliers, or a
    pure rotation, which leaves the translation undetermined.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1, row by row; rows that are not finite are ignored.
        K0: (3, 3) intrinsics of camera 0, for pixels with centres at integers.
        K1: (3, 3) intrinsics of camera 1; None: those of camera 0.
        estimator: 'poselib' or 'opencv'.
        threshold: largest distance of an inlier from its epipolar line, in pixels at the mean focal length.
        seed: of RANSAC, at least 0.

    Raises:
        ValueError: a shape, a matrix, the threshold or the estimator is wrong.
        ImportError: the estimator is poselib, which is not installed.
    """
    pixels0, pixels1, rows = check_matches(points0, points1, threshold)
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be {' or '.join(ESTIMATORS)}, got '{estimator}'")
    matrix0 = check_intrinsics(K0, "K0")
    matrix1 = matrix0 if K1 is None else check_intrinsics(K1, "K1")
    if len(rows) < MIN_MATCHES:
        return _fail(len(pixels0), f"{len(rows)} matches; at least {MIN_MATCHES} are needed")
    focal = float(np.mean([matrix0[0, 0], matrix0[1, 1], matrix1[0, 0], matrix1[1, 1]]))
    # OpenCV has a generator of its own, so the seed shuffles the rows.
    rows = np.random.default_rng(seed).permutation(rows)
    rays0, rays1 = to_rays(pixels0[rows], matrix0), to_rays(pixels1[rows], matrix1)
    find = _find_by_poselib if estimator == "poselib" else _find_by_opencv
    found = find(rays0, rays1, focal, threshold, seed)
    if found is None:
        return _fail(len(pixels0), "no essential matrix fits the matches")
    matrices, is_inlier = found
    reason = _find_obstacle(rays0[is_inlier], rays1[is_inlier], threshold / focal)
    if reason:
        return _fail(len(pixels0), reason)
    R, t = _choose_pose(matrices, rays0[is_inlier], rays1[is_inlier])
    is_inlier_of_all = np.zeros(len(pixels0), np.bool_)
    is_inlier_of_all[rows[is_inlier]] = True
    return PoseEstimate(R, t, is_inlier_of_all)


def check_intrinsics(K: ArrayLike, name: str = "K") -> Array:
    """A camera matrix (3, 3) as float64; raises a ValueError where it is not one."""
    matrix = np.asarray(K, np.float64)
    is_camera = (
        matrix.shape == (3, 3)
        and bool(np.isfinite(matrix).all())
        and bool(min(matrix[0, 0], matrix[1, 1]) > 0)
        and np.array_equal(matrix[2], [0, 0, 1])
        and matrix[1, 0] == 0
    )
    if not is_camera:
        raise ValueError(
            f"{name} must be fx s cx, 0 fy cy, 0 0 1 with fx and fy above 0, got {matrix.tolist()}"
        )
    return matrix


def orient_intrinsics(K: Array, stored_hw: tuple[int, int], orientation: int) -> Array:
    """The camera matrix (3, 3) of an image after EXIF has turned it upright, without skew where it is turned.

    Args:
        K: of the image as stored.
        stored_hw: (H, W) as stored.
        orientation: as in `apply_orientation`.
    """
    if orientation == 1:
        return K
    import torch  # here, since the command line reads intrinsics before it imports torch

    from ucn.geometry.coords import apply_orientation, is_sideways

    x, y = apply_orientation(torch.from_numpy(K[:2, 2].copy()), stored_hw, orientation).tolist()
    fx, fy = (K[1, 1], K[0, 0]) if is_sideways(orientation) else (K[0, 0], K[1, 1])
    return np.array([[fx, 0, x], [0, fy, y], [0, 0, 1]], np.float64)


def to_rays(points: Array, K: Array) -> Array:
    """Rays (N, 3) of pixels (N, 2), with z = 1."""
    whole = np.column_stack([points, np.ones(len(points))])
    return np.asarray(np.linalg.solve(K, whole.T).T, np.float64)


def _fail(count: int, reason: str) -> PoseEstimate:
    return PoseEstimate(None, None, np.zeros(count, np.bool_), reason)


def _find_by_poselib(
    rays0: Array, rays1: Array, focal: float, threshold: float, seed: int
) -> tuple[list[Array], BoolArray] | None:
    """Essential matrices and inliers; None where there are none."""
    poselib = import_poselib("the estimator poselib", ", or use opencv")
    # Rays times the mean focal length are pixels of one ideal camera, without skew.
    camera = {"model": "SIMPLE_PINHOLE", "width": 1, "height": 1, "params": [focal, 0.0, 0.0]}
    options = {
        "max_epipolar_error": threshold,
        "seed": seed,
        "max_iterations": _MAX_ITERATIONS,
        "success_prob": CONFIDENCE,
    }
    flat0, flat1 = (np.ascontiguousarray(focal * rays[:, :2]) for rays in (rays0, rays1))
    pose, info = poselib.estimate_relative_pose(flat0, flat1, camera, camera, options, {})
    is_inlier = np.asarray(info["inliers"], np.bool_)
    t = np.asarray(pose.t, np.float64)
    if not is_inlier.any() or not np.isfinite(pose.R).all() or not np.linalg.norm(t) > 0:
        return None
    return [_cross(t / np.linalg.norm(t)) @ np.asarray(pose.R, np.float64)], is_inlier


def _find_by_opencv(
    rays0: Array, rays1: Array, focal: float, threshold: float, _seed: int
) -> tuple[list[Array], BoolArray] | None:
    """Essential matrices, several for only five matches, and inliers; None where there are none."""
    flat0, flat1 = (np.ascontiguousarray(rays[:, :2]) for rays in (rays0, rays1))
    try:
        found, mask = cv2.findEssentialMat(
            flat0,
            flat1,
            np.eye(3),
            method=cv2.RANSAC,
            prob=CONFIDENCE,
            threshold=threshold / focal,
            maxIters=_MAX_ITERATIONS,
        )
    except cv2.error:  # raised for some degenerate configurations
        return None
    if found is None or mask is None or found.shape[0] < 3 or not np.isfinite(found).all() or not mask.any():
        return None
    matrices = [np.asarray(found[row : row + 3], np.float64) for row in range(0, len(found), 3)]
    return matrices, np.asarray(mask).ravel() > 0


def _find_obstacle(rays0: Array, rays1: Array, limit: float) -> str:
    """Why the inliers do not determine a pose; empty where they do.

    Args:
        rays0: (M, 3) of the inliers in camera 0.
        rays1: (M, 3) of the inliers in camera 1.
        limit: the threshold, at z = 1.
    """
    if len(rays0) < MIN_MATCHES:
        return f"{len(rays0)} inliers; at least {MIN_MATCHES} are needed"
    turned = rays0 @ _fit_rotation(rays0, rays1, limit).T
    ahead = np.where(turned[:, 2:] > 0, turned[:, 2:], np.nan)
    residuals = np.linalg.norm(turned[:, :2] / ahead - rays1[:, :2], axis=1)
    if np.mean(residuals <= limit) >= _ROTATION_SHARE:
        return "a rotation alone explains the matches, so the direction of the translation is unknown"
    return ""


def _fit_rotation(rays0: Array, rays1: Array, limit: float) -> Array:
    """The rotation between rays, by iteratively reweighted least squares."""
    units0, units1 = (rays / np.linalg.norm(rays, axis=1, keepdims=True) for rays in (rays0, rays1))
    weights = np.ones(len(rays0))
    R: Array = np.eye(3)
    for _ in range(_ROTATION_STEPS):
        # Kabsch 1976.
        left, _, right = np.linalg.svd((weights[:, None] * units1).T @ units0)
        R = left @ np.diag([1.0, 1.0, np.sign(np.linalg.det(left @ right))]) @ right
        residuals = np.linalg.norm(units1 - units0 @ R.T, axis=1)
        weights = 1 / (1 + np.square(residuals / limit))
    return R


def _choose_pose(matrices: list[Array], rays0: Array, rays1: Array) -> tuple[Array, Array]:
    """The pose with most points in front of both cameras, of those that the essential matrices allow."""
    candidates = [pose for matrix in matrices for pose in decompose_essential(matrix)]
    counts = [int(is_in_front(R, t, rays0, rays1).sum()) for R, t in candidates]
    return candidates[int(np.argmax(counts))]


def decompose_essential(E: Array) -> list[tuple[Array, Array]]:
    """The four poses R, t of an essential matrix (3, 3), with t of unit length."""
    left, _, right = np.linalg.svd(E)
    left = left * np.sign(np.linalg.det(left))
    right = right * np.sign(np.linalg.det(right))
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    t = left[:, 2]
    return [(left @ turn @ right, sign * t) for turn in (quarter, quarter.T) for sign in (1.0, -1.0)]


def find_fundamental(R: ArrayLike, t: ArrayLike, K0: ArrayLike, K1: ArrayLike) -> Array:
    """The fundamental matrix F (3, 3) of a relative pose: ``x1ᵀ F x0 = 0`` for homogeneous pixels.

    Args:
        R: (3, 3) rotation from camera 0 to camera 1.
        t: (3,) translation, not zero; its length does not count.
        K0: (3, 3) intrinsics of camera 0.
        K1: (3, 3) intrinsics of camera 1.

    Returns:
        F with a norm of 1.

    Raises:
        ValueError: `t` is zero, or a camera matrix is none.
    """
    direction = np.asarray(t, np.float64)
    if not np.linalg.norm(direction) > 0:
        raise ValueError("t must not be zero: two images from one place have no epipolar lines")
    E = _cross(direction) @ np.asarray(R, np.float64)
    inverse0, inverse1 = (np.linalg.inv(check_intrinsics(K, name)) for K, name in ((K0, "K0"), (K1, "K1")))
    F = inverse1.T @ E @ inverse0
    return np.asarray(F / np.linalg.norm(F), np.float64)


def is_in_front(R: Array, t: Array, rays0: Array, rays1: Array) -> BoolArray:
    """Which points, on rays (N, 3) of both cameras, lie in front of both, for a relative pose."""
    turned = rays0 @ R.T
    along0, across, along1 = (np.sum(a * b, axis=1) for a, b in _pairs(turned, rays1))
    ahead0, ahead1 = turned @ t, rays1 @ t
    # The depths that minimise the distance of z0 R x0 + t and z1 x1, up to a positive factor.
    depth0 = across * ahead1 - along1 * ahead0
    depth1 = along0 * ahead1 - across * ahead0
    found: BoolArray = (depth0 > 0) & (depth1 > 0)
    return found


def _pairs(turned: Array, rays1: Array) -> tuple[tuple[Array, Array], ...]:
    return (turned, turned), (turned, rays1), (rays1, rays1)


def _cross(t: Array) -> Array:
    """The matrix of the cross product with t."""
    return np.array([[0.0, -t[2], t[1]], [t[2], 0.0, -t[0]], [-t[1], t[0], 0.0]])
