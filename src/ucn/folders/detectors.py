"""Keypoints that repeat from image to image: corners, blobs, peaks of features, or a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from ucn.errors import ConfigError
from ucn.features.extractor import to_grey
from ucn.geometry.coords import cells_to_pixels
from ucn.matching.keypoints import grid_points
from ucn.types import FeatureMap, FloatArray

SPACING = 5.0
"""Pixels between keypoints, at least: of nearer ones descriptors are too alike to be told apart."""

_QUALITY_FLOOR = 1e-4  # of the strongest corner; corners are ranked, so this only leaves out flat areas
_BLOCK = 5  # pixels over which gradients are gathered
_BLOB_CONTRAST = 0.01  # of SIFT's detector, whose own 0.04 finds few points on smooth surfaces
_GRID_STEP = 8
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Detected:
    """Keypoints, strongest first.

    Attributes:
        points: (K, 2) float32 pixels.
        scores: (K,) float32 in (0, 1]: strength, the strongest 1.
    """

    points: FloatArray
    scores: FloatArray


def detect(name: str, pixels: Tensor, feature_map: FeatureMap | None, max_count: int) -> Detected:
    """Finds the keypoints of an image.

    Args:
        name: of `DETECTORS`.
        pixels: (3, H, W) in [0, 1].
        feature_map: of the same image, at the same size (batch of 1); None will do where the detector is
            of `OF_PIXELS`.
        max_count: keep the strongest so many, at least 1.

    Raises:
        ConfigError: there is no such detector.
        ValueError: it needs the map, and there is none.
    """
    if name not in DETECTORS:
        raise ConfigError(f"no detector '{name[:80]}' (there are {', '.join(DETECTORS)})")
    points, strengths = DETECTORS[name](pixels, feature_map, max_count)
    order = np.argsort(-strengths, kind="stable")[:max_count]
    highest = max(float(strengths.max(initial=0.0)), 1e-12)
    scores = np.clip(strengths[order] / highest, 1e-4, 1)  # above 0 in float16 too
    height, width = pixels.shape[-2:]
    kept = np.clip(points[order], -0.5, [width - 0.5, height - 0.5])
    return Detected(kept.astype(np.float32).reshape(-1, 2), scores.astype(np.float32))


def refine_peaks(response: Values, points: Values) -> Values:
    """Moves points from the pixels of local maxima to the top of the quadric through the pixels round them.

    Args:
        response: (H, W), 3 pixels a side at least.
        points: (K, 2) whole pixels.

    Returns:
        (K, 2); points stay where there is no top within one pixel.
    """
    height, width = response.shape
    columns = points[:, 0].astype(np.int64).clip(1, width - 2)
    rows = points[:, 1].astype(np.int64).clip(1, height - 2)

    def at(down: int, right: int) -> Values:
        return np.asarray(response[rows + down, columns + right], np.float64)

    centre = at(0, 0)
    slope_x, slope_y = (at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2
    bend_x, bend_y = at(0, 1) - 2 * centre + at(0, -1), at(1, 0) - 2 * centre + at(-1, 0)
    twist = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4
    determinant = bend_x * bend_y - twist**2
    is_top = (determinant > 0) & (bend_x < 0)
    safe = np.where(is_top, determinant, 1.0)
    shift = np.stack([twist * slope_y - bend_y * slope_x, twist * slope_x - bend_x * slope_y], axis=1)
    shift /= safe[:, None]
    is_near = is_top & (np.abs(shift) <= 1).all(axis=1)
    is_near &= (points == np.stack([columns, rows], axis=1)).all(axis=1)  # not on the border
    return np.where(is_near[:, None], points + shift, points)


def keep_apart(points: Values, spacing: float) -> NDArray[np.int64]:
    """Rows of points, given strongest first, that have no stronger kept one nearer than `spacing`."""
    if not len(points):
        return np.zeros(0, np.int64)
    is_kept = np.ones(len(points), np.bool_)
    near = cKDTree(points).query_pairs(np.nextafter(spacing, 0), output_type="ndarray")
    near = near[np.lexsort((near[:, 1], near[:, 0]))]  # pairs (i, j), i < j: by the stronger one
    for stronger, weaker in near.tolist():
        if is_kept[stronger]:
            is_kept[weaker] = False
    return np.flatnonzero(is_kept)


def _find_corners(pixels: Tensor, _map: FeatureMap | None, max_count: int) -> tuple[Values, Values]:
    """Corners (Shi and Tomasi 1994) after an equalisation of contrast, so that shadows have some too."""
    grey = cv2.createCLAHE(clipLimit=2.0, tileGridSize=(8, 8)).apply(to_grey(pixels))
    found = cv2.goodFeaturesToTrack(grey, max_count, _QUALITY_FLOOR, SPACING, blockSize=_BLOCK)
    if found is None:
        return np.zeros((0, 2)), np.zeros(0)
    points = np.asarray(found, np.float64).reshape(-1, 2)
    response = np.asarray(cv2.cornerMinEigenVal(grey, _BLOCK, ksize=3), np.float64)
    strengths = response[points[:, 1].astype(np.int64), points[:, 0].astype(np.int64)]
    return refine_peaks(response, points), strengths


def _find_blobs(pixels: Tensor, _map: FeatureMap | None, max_count: int) -> tuple[Values, Values]:
    """Extrema of differences of Gaussians (Lowe 2004), in OpenCV's implementation."""
    detector = cv2.SIFT.create(contrastThreshold=_BLOB_CONTRAST, enable_precise_upscale=True)
    found = detector.detect(to_grey(pixels), None)
    order = sorted(range(len(found)), key=lambda row: (-found[row].response, *found[row].pt))
    points = np.array([found[row].pt for row in order], np.float64).reshape(-1, 2)
    rows = keep_apart(points, SPACING)[:max_count]
    return points[rows], np.array([found[order[row]].response for row in rows], np.float64)


def _find_distinct(_pixels: Tensor, feature_map: FeatureMap | None, max_count: int) -> tuple[Values, Values]:
    """Cells whose descriptor differs most from those round it, peaks of 3 × 3, placed between cells."""
    if feature_map is None:
        raise ValueError("detector 'features' finds keypoints in a feature map: give one")
    features = feature_map.features[0].float()
    ring = [(down, right) for down in (0, 2, 4) for right in (0, 2, 4) if (down, right) != (2, 2)]
    wide = F.pad(features[None], (2, 2, 2, 2), mode="replicate")[0]
    h, w = feature_map.grid_hw
    likeness = sum((features * wide[:, y : y + h, x : x + w]).sum(dim=0) for y, x in ring) / len(ring)
    distinct = 1 - torch.as_tensor(likeness)
    is_peak = distinct == F.max_pool2d(distinct[None], 3, stride=1, padding=1)[0]
    rows, columns = is_peak.nonzero(as_tuple=True)
    strengths = distinct[rows, columns].double().cpu().numpy()
    cells = torch.stack([columns, rows], dim=-1).double().cpu().numpy()
    if min(h, w) >= 3:
        cells = refine_peaks(distinct.double().cpu().numpy(), cells)
    points = cells_to_pixels(torch.from_numpy(cells), feature_map.stride, feature_map.offset)
    return points.numpy(), strengths


def _lay_grid(pixels: Tensor, _map: FeatureMap | None, max_count: int) -> tuple[Values, Values]:
    size_hw, step = (pixels.shape[-2], pixels.shape[-1]), _GRID_STEP
    while len(grid := grid_points(size_hw, step)) > max_count:
        step += 1  # coarser, so that the whole image stays evenly covered
    return grid.double().numpy(), np.ones(len(grid))


DETECTORS: dict[str, Callable[[Tensor, FeatureMap | None, int], tuple[Values, Values]]] = {
    "corners": _find_corners,
    "blobs": _find_blobs,
    "features": _find_distinct,
    "grid": _lay_grid,
}
"""Detectors by name; each gives points (K, 2) and their strengths (K,)."""
OF_PIXELS = ("corners", "blobs", "grid")
"""Those of them that need the image alone."""
DEFAULT_DETECTOR = "corners"
