"""Repeatable keypoints for folders of images: corners, blobs, peaks of the feature map, or a grid."""

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
from ucn.matching.keypoints import detect_corners, grid_points, refine_peaks
from ucn.types import FeatureMap, FloatArray

MIN_DISTANCE = 5.0
"""Pixels between keypoints, at least; descriptors of closer ones are too similar to match reliably."""
DEFAULT_DETECTOR = "corners"

_BLOB_CONTRAST = 0.01  # contrastThreshold of SIFT's detector; OpenCV's 0.04 finds few on smooth surfaces
_GRID_STEP = 8
_Values = NDArray[np.float64]


@dataclass(frozen=True)
class DetectedKeypoints:
    """Keypoints of an image, strongest first.

    Attributes:
        points: (K, 2) float32 pixels.
        scores: (K,) float32 in (0, 1]: detector strength relative to the strongest.
    """

    points: FloatArray
    scores: FloatArray


def detect_keypoints(
    detector: str, pixels: Tensor, feature_map: FeatureMap | None, max_count: int
) -> DetectedKeypoints:
    """Detects the keypoints of an image.

    Args:
        detector: one of `DETECTORS`.
        pixels: (3, H, W) in [0, 1].
        feature_map: of the same image, at the same size (batch of 1); None where the detector is one of
            `PIXEL_DETECTORS`.
        max_count: the most keypoints to return, at least 1.

    Raises:
        ConfigError: there is no such detector.
        ValueError: the detector needs a feature map, and got None.
    """
    if detector not in DETECTORS:
        raise ConfigError(f"no detector '{detector[:80]}' (there are {', '.join(DETECTORS)})")
    points, strengths = DETECTORS[detector](pixels, feature_map, max_count)
    order = np.argsort(-strengths, kind="stable")[:max_count]
    highest = max(float(strengths.max(initial=0.0)), 1e-12)
    scores = np.clip(strengths[order] / highest, 1e-4, 1)  # above 0 in float16 too
    height, width = pixels.shape[-2:]
    kept = np.clip(points[order], -0.5, [width - 0.5, height - 0.5])
    return DetectedKeypoints(kept.astype(np.float32).reshape(-1, 2), scores.astype(np.float32))


def _detect_corners(pixels: Tensor, _map: FeatureMap | None, max_count: int) -> tuple[_Values, _Values]:
    grey = torch.from_numpy(to_grey(pixels))
    found = detect_corners(grey, max_count, min_distance=MIN_DISTANCE, use_subpixel=True)
    return found.points.double().numpy(), found.strengths.double().numpy()


def _detect_blobs(pixels: Tensor, _map: FeatureMap | None, max_count: int) -> tuple[_Values, _Values]:
    """Extrema of differences of Gaussians (Lowe 2004), in OpenCV's implementation."""
    detector = cv2.SIFT.create(contrastThreshold=_BLOB_CONTRAST, enable_precise_upscale=True)
    found = detector.detect(to_grey(pixels), None)
    found = sorted(found, key=lambda keypoint: (-keypoint.response, *keypoint.pt))
    points = np.array([keypoint.pt for keypoint in found], np.float64).reshape(-1, 2)
    rows = suppress_close_points(points, MIN_DISTANCE)[:max_count]
    return points[rows], np.array([found[row].response for row in rows], np.float64)


def _detect_feature_peaks(
    _pixels: Tensor, feature_map: FeatureMap | None, _max_count: int
) -> tuple[_Values, _Values]:
    """Cells whose descriptor differs most from those two cells away: 3 × 3 maxima, refined to sub-cell."""
    if feature_map is None:
        raise ValueError("detector 'features' finds keypoints in a feature map: give one")
    features = feature_map.features[0].float()
    ring = [(down, right) for down in (0, 2, 4) for right in (0, 2, 4) if (down, right) != (2, 2)]
    padded = F.pad(features[None], (2, 2, 2, 2), mode="replicate")[0]
    h, w = feature_map.grid_hw
    similarity = sum((features * padded[:, y : y + h, x : x + w]).sum(dim=0) for y, x in ring) / len(ring)
    response = 1 - torch.as_tensor(similarity)
    is_peak = response == F.max_pool2d(response[None], 3, stride=1, padding=1)[0]
    rows, columns = is_peak.nonzero(as_tuple=True)
    strengths = response[rows, columns].double().cpu().numpy()
    cells = torch.stack([columns, rows], dim=-1).double().cpu().numpy()
    if min(h, w) >= 3:
        cells = refine_peaks(response.double().cpu().numpy(), cells)
    points = cells_to_pixels(torch.from_numpy(cells), feature_map.stride, feature_map.offset)
    return points.numpy(), strengths


def _make_grid(pixels: Tensor, _map: FeatureMap | None, max_count: int) -> tuple[_Values, _Values]:
    grid = grid_points((pixels.shape[-2], pixels.shape[-1]), _GRID_STEP, max_count)
    return grid.double().numpy(), np.ones(len(grid))


def suppress_close_points(points: _Values, radius: float) -> NDArray[np.int64]:
    """Greedy non-maximum suppression: rows of points, given strongest first, without a kept one closer by.

    Args:
        points: (N, 2) strongest first.
        radius: pixels; a point nearer than this to a stronger kept one is dropped.
    """
    if not len(points):
        return np.zeros(0, np.int64)
    is_kept = np.ones(len(points), np.bool_)
    close = cKDTree(points).query_pairs(np.nextafter(radius, 0), output_type="ndarray")
    close = close[np.lexsort((close[:, 1], close[:, 0]))]  # pairs (i, j), i < j, by the stronger one
    for stronger, weaker in close.tolist():
        if is_kept[stronger]:
            is_kept[weaker] = False
    return np.flatnonzero(is_kept)


DETECTORS: dict[str, Callable[[Tensor, FeatureMap | None, int], tuple[_Values, _Values]]] = {
    "corners": _detect_corners,
    "blobs": _detect_blobs,
    "features": _detect_feature_peaks,
    "grid": _make_grid,
}
"""Detectors by name; each returns points (K, 2) and their strengths (K,)."""
PIXEL_DETECTORS = ("corners", "blobs", "grid")
"""Detectors that need no feature map."""
