"""Robust estimation of the homography between two images from matches with outliers.

A homography maps points of image 0 to points of image 1. It holds for views of a plane, and for a camera that
only rotates. Points are pixels whose centres are at integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from ucn.geometry.robust import (
    CONFIDENCE,
    Array,
    BoolArray,
    RobustEstimate,
    check_matches,
    import_poselib,
    measure_width,
)

DEFAULT_THRESHOLD = 3.0
"""Largest transfer error of an inlier, in pixels of image 1."""
MIN_INLIERS = 15
"""Fewer inliers are no evidence: of 4,000 random matches in 640 × 480 pixels, up to 8 are inliers of the best
homography at 3 px."""

_MAX_ITERATIONS = 10_000
_MAX_STRETCH = 100.0  # largest change of scale between the images
_STEPS = 8  # of the refinement by reweighted least squares
_SCALE = 4.0  # of its weights, in standard deviations of the inliers' errors
_MIN_SCALE = 0.1  # pixels, also for matches that fit better
_NEIGHBOURS = 24  # nearest matches, itself included, by which noise is told from a deviation of the surface
_REGION = 0.75  # radius of the region around a match, in standard deviations of the inliers' positions
_MEDIAN = np.sqrt(2 * np.log(2))  # of the length of a normal error in two dimensions


@dataclass(frozen=True)
class HomographyEstimate(RobustEstimate):
    """The homography from image 0 to image 1, or the reason why there is none.

    Attributes:
        H_0to1: (3, 3), whose last entry is 1; None where the estimation failed.
        is_inlier: (N,) bool; all False where the estimation failed.
        failure: the reason; empty on success.
    """

    H_0to1: Array | None
    is_inlier: BoolArray
    failure: str = ""


def estimate_homography(
    points0: ArrayLike,
    points1: ArrayLike,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    min_inliers: int = MIN_INLIERS,
    seed: int = 0,
) -> HomographyEstimate:
    """Estimates a homography by poselib's LO-RANSAC, then by reweighted least squares over the inliers.

    In the second step accurate matches count more: by the weights of Geman and McClure, whose scale follows
    the median error of the inliers, and by the noise of the matches around them. Lenses and surfaces deviate
    a little from any homography. Where they do, by what neighbouring matches have in common, matches in
    crowded regions of image 0 count less, so that the homography does not fit these regions alone.
    Failure is a result, not an error. Reasons are too few matches, too few inliers, inliers on one line, or a
    homography that no camera produces around the inliers: one that mirrors the image, or changes its scale a
    hundredfold.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1, row by row; rows that are not finite are ignored.
        threshold: largest transfer error of an inlier, in pixels of image 1.
        min_inliers: with fewer the estimation fails; at least 4.
        seed: of RANSAC, at least 0.

    Raises:
        ValueError: a shape, the threshold, `min_inliers` or the seed is wrong.
        ImportError: poselib is not installed.
    """
    pixels0, pixels1, rows = check_matches(
        points0, points1, threshold, min_inliers=(min_inliers, 4), seed=(seed, 0)
    )
    if len(rows) < min_inliers:
        return _fail(len(pixels0), f"{len(rows)} matches; at least {min_inliers} are needed")
    H = _find_by_poselib(pixels0[rows], pixels1[rows], threshold, seed)
    if H is None:
        return _fail(len(pixels0), "no homography fits the matches")
    H = refine_homography(H, pixels0[rows], pixels1[rows], threshold)
    is_inlier = np.zeros(len(pixels0), np.bool_)
    is_inlier[rows] = transfer_errors(H, pixels0[rows], pixels1[rows]) <= threshold
    if is_inlier.sum() < min_inliers:
        return _fail(len(pixels0), f"{is_inlier.sum()} inliers; at least {min_inliers} are needed")
    if measure_width(pixels1[is_inlier]) < threshold:
        reason = "the inliers lie on a line, which does not determine a homography"
    else:
        reason = _find_obstacle(H, pixels0[is_inlier])
    return _fail(len(pixels0), reason) if reason else HomographyEstimate(H, is_inlier)


def refine_homography(H_0to1: Array, points0: Array, points1: Array, threshold: float) -> Array:
    """Minimises the transfer errors of inliers by iteratively reweighted least squares.

    Args:
        H_0to1: (3, 3), close to the result.
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1, row by row.
        threshold: largest transfer error of an inlier, in pixels of image 1; inliers are chosen in each step.

    Returns:
        (3, 3), whose last entry is 1; `H_0to1` where the inliers do not determine a homography.
    """
    H = H_0to1
    inliers = np.flatnonzero(transfer_errors(H, points0, points1) <= threshold)
    if len(inliers) <= 4:  # which it fits exactly
        return H
    near, counts = _find_neighbours(points0, points0[inliers])
    for _ in range(_STEPS):
        residuals = _transfer(H, points0) - points1
        rows = np.flatnonzero(transfer_errors(H, points0, points1) <= threshold)
        if len(rows) <= 4:
            return H
        weights = _weigh(residuals[rows], residuals[inliers][near[rows]], counts[rows])
        moved = _step(H, points0[rows], points1[rows], weights)
        if not np.isfinite(moved).all() or not abs(moved[2, 2]) > 1e-12 * np.abs(moved).max():
            return H
        H = moved / moved[2, 2]
    return H


def _find_neighbours(points: Array, inliers: Array) -> tuple[NDArray[np.int64], Array]:
    """For each of points (N, 2) the rows (N, K) of the nearest inliers, and how many are in its region."""
    tree = cKDTree(inliers)
    near = tree.query(points, [*range(1, min(_NEIGHBOURS, len(inliers)) + 1)])[1]
    counts = tree.query_ball_point(points, _REGION * float(inliers.std(axis=0).mean()), return_length=True)
    return np.asarray(near, np.int64), np.maximum(np.asarray(counts, np.float64), 1)


def _weigh(residuals: Array, near: Array, counts: Array) -> Array:
    """Weights (N,) of matches.

    What the nearest matches have in common is no noise, but a deviation of the surface or the lens, which all
    matches of a region share. The mean of n such matches has the variance noise² / n + deviation², so each of
    them counts 1 / (noise² + n deviation²): by its accuracy alone where the model is exact, and by the share
    of its region where it is not.

    Args:
        residuals: (N, 2) of the matches.
        near: (N, K, 2) residuals of the nearest ones.
        counts: (N,) number of inliers in the region of each match.
    """
    errors = np.linalg.norm(residuals, axis=1)
    scale = max(_SCALE * float(np.median(errors)) / _MEDIAN, _MIN_SCALE)
    common = np.median(near, axis=1)
    spreads = np.median(np.linalg.norm(near - common[:, None], axis=2), axis=1) / _MEDIAN
    noise = np.maximum(spreads, _MIN_SCALE) ** 2
    # Noise moves the median of K residuals, too: by π / 2 of the variance of their mean.
    chance = np.pi / 2 * float(np.median(noise)) / near.shape[1]
    deviation = max(float(np.median((common**2).sum(axis=1))) / _MEDIAN**2 - chance, 0.0)
    return np.asarray((1 + (errors / scale) ** 2) ** -2 / (noise + counts * deviation), np.float64)


def _step(H: Array, points0: Array, points1: Array, weights: Array) -> Array:
    """One Gauss-Newton step of weighted transfer errors, in coordinates of mean 0 and variance 1."""
    to0, to1 = _normaliser(points0), _normaliser(points1)
    normalised = to1 @ H @ np.linalg.inv(to0)
    whole = np.column_stack([points0, np.ones(len(points0))]) @ to0.T
    moved = whole @ normalised.T
    places, whole = moved[:, :2] / moved[:, 2:], whole / moved[:, 2:]
    jacobian = np.zeros((len(whole), 2, 9))
    jacobian[:, 0, :3] = jacobian[:, 1, 3:6] = whole
    jacobian[:, :, 6:] = -places[:, :, None] * whole[:, None]
    residuals = places - (points1 * to1[0, 0] + to1[:2, 2])
    roots = np.sqrt(weights)
    # The shortest solution, since a multiple of H is the same homography.
    change = np.linalg.lstsq(
        (jacobian * roots[:, None, None]).reshape(-1, 9), (residuals * roots[:, None]).ravel(), rcond=1e-9
    )[0]
    return np.asarray(np.linalg.inv(to1) @ (normalised - change.reshape(3, 3)) @ to0, np.float64)


def _normaliser(points: Array) -> Array:
    """(3, 3), which moves points (N, 2) to mean 0 and variance 1."""
    mean = points.mean(axis=0)
    scale = 1 / max(float(np.sqrt(((points - mean) ** 2).mean())), 1e-9)
    return np.array([[scale, 0, -scale * mean[0]], [0, scale, -scale * mean[1]], [0, 0, 1]])


def transfer_errors(H_0to1: Array, points0: Array, points1: Array) -> Array:
    """Transfer errors (N,) in image 1; infinite for points behind the camera."""
    is_ahead = np.column_stack([points0, np.ones(len(points0))]) @ H_0to1[2] > 0
    return np.where(is_ahead, np.linalg.norm(_transfer(H_0to1, points0) - points1, axis=1), np.inf)


def _transfer(H: Array, points0: Array) -> Array:
    """Points (N, 2) of image 0 in image 1; those behind the camera without division by their depth."""
    moved = np.column_stack([points0, np.ones(len(points0))]) @ H.T
    return np.asarray(moved[:, :2] / np.where(moved[:, 2:] > 0, moved[:, 2:], 1.0), np.float64)


def _fail(count: int, reason: str) -> HomographyEstimate:
    return HomographyEstimate(None, np.zeros(count, np.bool_), reason)


def _find_by_poselib(points0: Array, points1: Array, threshold: float, seed: int) -> Array | None:
    poselib = import_poselib("estimating a homography")
    options = {
        "max_reproj_error": threshold,
        "seed": seed,
        "max_iterations": _MAX_ITERATIONS,
        "success_prob": CONFIDENCE,
    }
    found, _ = poselib.estimate_homography(
        np.ascontiguousarray(points0), np.ascontiguousarray(points1), options, {}
    )
    H = np.asarray(found, np.float64)
    if H.shape != (3, 3) or not np.isfinite(H).all() or not abs(H[2, 2]) > 1e-12 * np.abs(H).max():
        return None
    return np.asarray(H / H[2, 2], np.float64)


def _find_obstacle(H: Array, points0: Array) -> str:
    """Why no camera produces this homography around the inliers; empty where one can."""
    whole = np.column_stack([points0, np.ones(len(points0))])
    depths = whole @ H[2]
    # The local change of area of a homography is det(H) divided by the cube of the depth.
    areas = np.linalg.det(H) / depths**3
    if (areas <= 0).any():
        return "the best homography mirrors the image"
    if areas.max() > _MAX_STRETCH**2 or areas.min() < _MAX_STRETCH**-2:
        return f"the best homography changes the scale more than {_MAX_STRETCH:g} times"
    return ""
