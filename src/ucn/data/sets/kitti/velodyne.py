"""Velodyne laser scans: reading them, aligning two of them, and finding moving objects.

Coordinates are the scanner's: x forward, y left, z up, metres. Scans are aligned by point-to-plane ICP (Chen
and Medioni 1992) with robust weights. Point-to-point ICP would fail: the scanner's rings on the road look the
same wherever the car is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ucn.data.sets.posed.posed_pairs import Array, move, rigid
from ucn.errors import DataError
from ucn.files.reading import read_binary

Flags = NDArray[np.bool_]

MAX_SCAN_BYTES = 64 * 2**20
"""Larger scans are refused; one revolution of the scanner has 2 MB."""
MAX_DISTANCE = 250.0
"""Metres; the scanner reaches 120."""

_RANGE = (3.0, 60.0)  # metres; closer is the car itself, further is too sparse for normals
_NEIGHBOURS = 10  # points per normal
_FLAT = 0.03  # largest share of the variance across a plane
_SEARCH = (3.0, 1.5, 1.0, 0.6, 0.4, *[0.3] * 60)  # metres; search radius of each ICP iteration
_SHIFT_SEARCH = (*[1.0] * 10, *[0.5] * 6, *[0.25] * 6)  # metres; the same for a single object
_LEAST_SCALE = 0.005  # metres; noise of the scanner
_STILL = 1e-4  # radians and metres; a smaller step means convergence
_FIT = 0.1  # largest point-to-plane distance of an inlier, metres
_CLOSE_FIT = 0.02  # metres; the same, to select the best of several results
_MIN_FIT = 0.4  # smallest share of inliers of an alignment
_STARTS = (0.0, 1.0, 2.0)  # metres per frame, initial guesses of the car's speed
_GROUND_CELL, _GROUND_HEIGHT = 1.0, 0.3  # metres; lower points belong to the road
_OBJECT_HEIGHT = 4.5  # metres above the road; higher points are trees and bridges
_VOXEL = 0.4  # metres; points in adjacent voxels form one object
_MIN_POINTS = 15  # of an object that is tested
_MIN_SHIFT = 0.06  # metres between two scans that count as motion: 2 km/h
_STIFFNESS = 0.01  # regularises directions without structure, such as along walls


def read_scan(path: Path) -> Array:
    """Reads the points (N, 3) of a scan: float32 x, y, z and reflectance, little-endian, nothing else.

    Raises:
        DataError: the file is missing, empty, too large, not a multiple of 16 bytes, or has coordinates out
            of range.
    """
    content = read_binary(path, "scan", MAX_SCAN_BYTES)
    if not content or len(content) % 16:
        raise DataError(
            f"{path}: expected 16 bytes a point (x, y, z, reflectance as float32), got {len(content):,} in "
            "all; unpack it again"
        )
    points = np.frombuffer(content, "<f4").reshape(-1, 4)[:, :3].astype(np.float64)
    if not (np.abs(points) <= MAX_DISTANCE).all():
        raise DataError(
            f"{path}: expected coordinates within {MAX_DISTANCE:g} m, got others; unpack it again"
        )
    return points


@dataclass(frozen=True)
class Surface:
    """A scan with its normals.

    Attributes:
        points: (N, 3).
        normals: (N, 3) unit normals.
        is_flat: (N,) bool, which normals are reliable.
        tree: for nearest-neighbour search.
    """

    points: Array
    normals: Array
    is_flat: Flags
    tree: cKDTree

    @classmethod
    def of(cls, scan: Array) -> Surface:
        """Estimates normals from each point's nearest neighbours, on a scan subsampled to 0.2 m."""
        points = _subsample(_in_range(scan), 0.2)
        if len(points) < _NEIGHBOURS:
            return cls(points, points, np.zeros(len(points), np.bool_), cKDTree(points))
        tree = cKDTree(points)
        near = points[tree.query(points, _NEIGHBOURS)[1]]  # (N, k, 3)
        near = near - near.mean(axis=1, keepdims=True)
        spread, axes = np.linalg.eigh(np.einsum("nki,nkj->nij", near, near))
        return cls(points, axes[:, :, 0], spread[:, 0] <= _FLAT * spread.sum(axis=1), tree)

    def distances(self, points: Array, limit: float) -> tuple[Flags, Array, Array]:
        """Which points have a reliable neighbour within a limit; distances to its plane; its normals."""
        if not len(self.points):
            return np.zeros(len(points), np.bool_), np.zeros(0), np.zeros((0, 3))
        found = self.tree.query(points, distance_upper_bound=limit)[1]
        has_one = found < len(self.points)
        has_one[has_one] = self.is_flat[found[has_one]]
        normals = self.normals[found[has_one]]
        offsets = ((self.points[found[has_one]] - points[has_one]) * normals).sum(axis=1)
        return has_one, offsets, normals


def align_scans(scan: Array, surface: Surface, starts: list[Array]) -> Array:
    """Estimates the motion (4, 4) that aligns a scan with another.

    Args:
        scan: (N, 3).
        surface: the other scan.
        starts: initial motions (4, 4); the best result is returned.

    Raises:
        DataError: no start gives enough inliers.
    """
    points = _subsample(_in_range(scan), 0.4)
    results = [_descend(points, surface, start) for start in starts]
    best = max(results, key=lambda T: _fit_share(points, surface, T, _CLOSE_FIT))
    share = _fit_share(points, surface, best, _FIT)
    if share < _MIN_FIT:
        got = f"{share:.0%} of the points on a surface"
        raise DataError(f"expected two scans of the same place, got {got}; use frames closer together")
    return best


def guess_motions(frames: int = 1) -> list[Array]:
    """Initial motions of a car between two scans: straight ahead, at several speeds."""
    return [rigid(np.eye(3), [-step * frames, 0.0, 0.0]) for step in _STARTS]


def find_moving(scan: Array, surface: Surface, T: Array) -> Flags:
    """Finds the points of a scan that are on moving objects, by comparison with another scan.

    Points in front of the car and above the road are clustered into objects; each object is shifted along the
    ground to where it fits the other scan best. An object moves where it fits only after a shift, or nowhere.

    Args:
        scan: (N, 3).
        surface: the other scan, one frame earlier or later.
        T: (4, 4) motion from the scan to the other one, as of `align_scans`.

    Returns:
        (N,) bool; False for points too far away, or of objects too small, to decide.
    """
    is_moving = np.zeros(len(scan), np.bool_)
    labels = _cluster_objects(scan)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(1, labels.max(initial=0) + 2))
    for start, end in pairwise(bounds.tolist()):
        if end - start >= _MIN_POINTS:
            rows = order[start:end]
            is_moving[rows] = _has_moved(move(T, scan[rows]), surface)
    return is_moving


def _descend(points: Array, surface: Surface, T: Array) -> Array:
    """Gauss-Newton iterations from an initial motion."""
    for limit in _SEARCH:
        moved = move(T, points)
        rows, offsets, normals = surface.distances(moved, limit)
        if len(offsets) < 20:
            break
        moments = np.concatenate([np.cross(moved[rows], normals), normals], axis=1)
        step = _solve(moments, offsets, _LEAST_SCALE)
        T = rigid(Rotation.from_rotvec(step[:3]).as_matrix(), step[3:]) @ T
        if limit == _SEARCH[-1] and np.abs(step).max() < _STILL:
            break
    return T


def _fit_share(points: Array, surface: Surface, T: Array, limit: float) -> float:
    _, offsets, _ = surface.distances(move(T, points), _SEARCH[-1])
    return float((np.abs(offsets) < limit).sum() / max(1, len(points)))


def _has_moved(points: Array, surface: Surface) -> bool:
    """Whether an object, after compensating the car's motion, fits better elsewhere, or nowhere."""
    shift: Array = np.zeros(3)
    offsets: Array = np.zeros(0)
    for limit in _SHIFT_SEARCH:
        _, offsets, normals = surface.distances(points + shift, limit)
        if len(offsets) < _MIN_POINTS / 3:
            return True
        # Roof and sides of a car that drove on fit as before: only its ends reveal the motion.
        shift[:2] += _solve(normals[:, :2], offsets, limit / 5, _STIFFNESS, shift[:2])
    does_fit = (np.abs(offsets) < _FIT).sum() >= len(points) / 3
    return not does_fit or float(np.linalg.norm(shift)) > _MIN_SHIFT


def _solve(
    directions: Array,
    offsets: Array,
    least_scale: float,
    stiffness: float = 0.0,
    held: Array | None = None,
) -> Array:
    """The least-squares step for offsets, with robust weights (Geman-McClure)."""
    scale = max(1.4826 * float(np.median(np.abs(offsets))), least_scale)
    weights = 1 / (1 + (offsets / (2 * scale)) ** 2) ** 2
    total = float(weights.sum())
    weighted = directions * weights[:, None]
    normal = weighted.T @ directions
    hold = 0.0 if held is None else stiffness * total * held
    ridge = max(stiffness * total, 1e-9)
    step = np.linalg.solve(normal + ridge * np.eye(len(normal)), weighted.T @ offsets - hold)
    return np.asarray(step, np.float64)


def _cluster_objects(scan: Array) -> NDArray[np.int64]:
    """The number of each point's object; 0 for the road and for points that are not tested."""
    labels = np.zeros(len(scan), np.int64)
    x, y, z = scan.T
    reach = _RANGE[1]
    chosen = np.flatnonzero((x > 0) & (x < reach) & (np.abs(y) < reach / 2))
    cells = ((scan[chosen, :2] + [0, reach / 2]) / _GROUND_CELL).astype(np.int64)
    lowest = np.full((int(reach / _GROUND_CELL),) * 2, np.inf)
    np.minimum.at(lowest, (cells[:, 0], cells[:, 1]), z[chosen])
    # Cells on an object contain no road, and reflections lie below it; a percentile over neighbours ignores
    # both.
    ground = ndimage.percentile_filter(lowest, 20, size=7, mode="nearest")
    height = z[chosen] - ground[cells[:, 0], cells[:, 1]]
    chosen = chosen[(height > _GROUND_HEIGHT) & (height < _OBJECT_HEIGHT)]
    if len(chosen):
        voxels = np.floor(scan[chosen] / _VOXEL).astype(np.int64)
        voxels -= voxels.min(axis=0)
        space = np.zeros(voxels.max(axis=0) + 1, np.bool_)
        space[tuple(voxels.T)] = True
        labels[chosen] = ndimage.label(space, np.ones((3, 3, 3)))[0][tuple(voxels.T)]
    return labels


def _in_range(scan: Array) -> Array:
    square: Array = (scan**2).sum(axis=1)
    return scan[(square > _RANGE[0] ** 2) & (square < _RANGE[1] ** 2)]


def _subsample(points: Array, size: float) -> Array:
    """One point of each voxel."""
    _, first = np.unique(np.floor(points / size).astype(np.int64), axis=0, return_index=True)
    kept: Array = points[np.sort(first)]
    return kept
