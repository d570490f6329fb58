"""Keypoint adjustment: keypoints of many images moved so that their pixels agree, before triangulation.

A detector finds a corner at slightly different positions in different images, and descriptors, which have a
large receptive field, match it with a neighbour. So each verified match is aligned by the pixels of its two
images (`ucn.matching.alignment`), which gives a residual: how far keypoint b lies from where keypoint a is
seen. A keypoint has many matches; its shift minimises all residuals by robust least squares over all
keypoints of all images, with a weak prior towards its detected position. The idea is that of keypoint
adjustment in Pixel-Perfect SfM (Lindenberger et al. 2021), with patches instead of deep features.

Where one image of a pair shows the surface larger by more than `MAX_SCALE`, it is reduced by that before its
patches are compared. All limits are in pixels of the images as compared, its units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.geometry.coords import resize_points, resize_scale
from ucn.matching.alignment import align_patches, estimate_local_affine
from ucn.matching.views import MAX_SCALE
from ucn.nn.tiling import reduce_image
from ucn.types import BoolArray, FloatArray

MAX_SHIFT = 3.0
"""Units by which a keypoint may move in each round."""
MAX_RESIDUAL = 1.0
"""Units of residual after the shift above which a match is dropped."""
ADJUSTMENT_ROUNDS = 2
"""Rounds of alignment and adjustment; patches agree better from better positions, without dropped matches."""

_MIN_SHARE = 0.35  # of a pair's matches; if fewer can be aligned, its images show no common surface
_MIN_SURE_CORRELATION = 0.9  # above it a match counts as aligned even where alignment cannot improve it
_PRIOR_WEIGHT = 0.05  # of a keypoint's detected position, relative to one match
_SOLVER_STEPS = 5
_MAX_UNIT = 8.0
_RESIDUAL_SCALE = 0.5  # units of residual at which a match has a quarter of its weight
Values = NDArray[np.float64]
Rows = NDArray[np.int64]
Grey = Callable[[int], Tensor]
"""Returns the grey image (H, W) in [0, 1] with an index."""


@dataclass(frozen=True)
class AdjustedKeypoints:
    """Keypoints and matches after adjustment.

    Attributes:
        keypoints: (N, 2) of each image.
        matches: (M, 2) rows of each pair, without outliers.
        moved: median shift, in pixels, of the keypoints that have matches.
    """

    keypoints: list[FloatArray]
    matches: dict[tuple[int, int], Rows]
    moved: float


@dataclass(frozen=True)
class _Alignments:
    """Alignments of M matches between keypoints a and b.

    Attributes:
        first: (M,) indices of keypoints a among those of all images.
        second: (M,) indices of keypoints b.
        linear: (M, 2, 2) local affine maps from a to b.
        residuals: (M, 2) pixels by which b should move while a stays.
        is_aligned: (M,) bool.
        units: (M, 2) pixels of the images of a and of b per pixel of these images as compared, at least 1.
    """

    first: Rows
    second: Rows
    linear: Values
    residuals: Values
    is_aligned: BoolArray
    units: Values


def adjust_keypoints(
    keypoints: Sequence[FloatArray],
    matches: Mapping[tuple[int, int], Rows],
    grey: Grey,
    progress: Callable[[int, int], None] | None = None,
) -> AdjustedKeypoints:
    """Moves keypoints to sub-pixel positions at which the pixels of their matches agree.

    Pairs of which few matches can be aligned (two instances of a category, day and night) keep all their
    matches and do not contribute.

    Args:
        keypoints: (N, 2) pixels of each image.
        matches: verified matches, as (M, 2) rows, by the indices of the two images.
        grey: returns images at the size that keypoints refer to.
        progress: called with (pairs done, all pairs).
    """
    points, kept = list(keypoints), dict(matches)
    for round_index in range(ADJUSTMENT_ROUNDS):
        points, kept = _adjust_once(points, kept, grey, round_index, progress)
    lengths = np.concatenate(
        [np.linalg.norm(after - before, axis=1) for after, before in zip(points, keypoints, strict=True)]
    )
    moved = float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 0.0
    return AdjustedKeypoints(points, kept, moved)


def _adjust_once(
    keypoints: Sequence[FloatArray],
    matches: Mapping[tuple[int, int], Rows],
    grey: Grey,
    round_index: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[FloatArray], dict[tuple[int, int], Rows]]:
    offsets = np.cumsum([0, *(len(points) for points in keypoints)])
    alignments: dict[tuple[int, int], _Alignments] = {}
    for done, ((image0, image1), rows) in enumerate(matches.items(), 1):
        matched = keypoints[image0][rows[:, 0]], keypoints[image1][rows[:, 1]]
        found = _align_pair(*matched, grey(image0), grey(image1))
        if found is not None:
            linear, residuals, is_aligned, units = found
            first, second = offsets[image0] + rows[:, 0], offsets[image1] + rows[:, 1]
            alignments[image0, image1] = _Alignments(
                first, second, linear, residuals, is_aligned, np.tile(units, (len(rows), 1))
            )
        if progress is not None:
            progress(round_index * len(matches) + done, ADJUSTMENT_ROUNDS * len(matches))
    shifts = np.zeros((int(offsets[-1]), 2))
    if alignments:
        shifts = _solve(_join(list(alignments.values())), len(shifts))
    moved = [
        (points + shifts[start : start + len(points)]).astype(np.float32)
        for points, start in zip(keypoints, offsets[:-1], strict=True)
    ]
    return moved, {pair: _drop_outliers(rows, alignments.get(pair), shifts) for pair, rows in matches.items()}


def _align_pair(
    points0: FloatArray, points1: FloatArray, grey0: Tensor, grey1: Tensor
) -> tuple[Values, Values, BoolArray, tuple[float, float]] | None:
    """Local affine maps, residuals and is_aligned of a pair's matches, and the units of both images.

    None where too few align.
    """
    if not len(points0):
        return None
    start0, start1 = torch.from_numpy(points0), torch.from_numpy(points1)
    linear = estimate_local_affine(start0, start0, start1)
    units = unit0, unit1 = _find_units(linear)
    (small0, start0), (small1, start1) = _reduce(grey0, start0, unit0), _reduce(grey1, start1, unit1)
    found = align_patches(small0, small1, start0, start1, linear * (unit0 / unit1), max_shift=MAX_SHIFT)
    is_aligned = found.is_aligned | (found.correlations >= _MIN_SURE_CORRELATION)
    if is_aligned.float().mean() < _MIN_SHARE:
        return None
    residuals = unit1 * (found.points1 - start1).double().numpy()
    return linear.double().numpy(), residuals, is_aligned.numpy(), units


def _find_units(linear: Tensor) -> tuple[float, float]:
    """Units of both images, of which one is 1; the other is the relative scale if beyond `MAX_SCALE`."""
    scale = float(torch.linalg.det(linear.double()).abs().sqrt().median().clamp(1 / _MAX_UNIT, _MAX_UNIT))
    if max(scale, 1 / scale) <= MAX_SCALE:
        return 1.0, 1.0
    return max(1.0, 1 / scale), max(1.0, scale)


def _reduce(grey: Tensor, points: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """An image (H, W) reduced by a factor, and points in its pixels."""
    if unit == 1:
        return grey, points
    small = reduce_image(grey[None], round(max(grey.shape) / unit))[0]
    (height, width), (h, w) = grey.shape, small.shape
    return small, resize_points(points, resize_scale((height, width), (h, w)))


def _join(items: Sequence[_Alignments]) -> _Alignments:
    """Concatenates the aligned matches of all pairs."""
    return _Alignments(
        *(
            np.concatenate([getattr(item, name)[item.is_aligned] for item in items])
            for name in ("first", "second", "linear", "residuals", "is_aligned", "units")
        )
    )


def _residual_norms(alignments: _Alignments, shifts: Values) -> Values:
    """Residuals (M,), in units, after the keypoints were moved."""
    along = np.einsum("mij,mj->mi", alignments.linear, shifts[alignments.first])
    lengths = np.linalg.norm(shifts[alignments.second] - along - alignments.residuals, axis=1)
    return np.asarray(lengths / alignments.units[:, 1])


def _solve(alignments: _Alignments, count: int) -> Values:
    """Shifts (count, 2) of keypoints by iteratively reweighted least squares."""
    shifts = np.zeros((count, 2))
    units = np.ones(count)  # of keypoints: the largest of their matches
    np.maximum.at(units, alignments.first, alignments.units[:, 0])
    np.maximum.at(units, alignments.second, alignments.units[:, 1])
    prior = scipy.sparse.diags_array(np.repeat(_PRIOR_WEIGHT / units**2, 2), format="csr")
    weights = 1 / alignments.units[:, 1]
    for _ in range(_SOLVER_STEPS):
        system = _build_rows(alignments, weights, count)
        right = system.T @ (alignments.residuals * weights[:, None]).ravel()
        normal = system.T @ system + prior
        solution, _info = scipy.sparse.linalg.cg(normal, right, x0=shifts.ravel(), rtol=1e-6, maxiter=300)
        shifts = solution.reshape(-1, 2)
        robust = 1 / (1 + (_residual_norms(alignments, shifts) / _RESIDUAL_SCALE) ** 2)
        weights = robust / alignments.units[:, 1]
    shifts[np.linalg.norm(shifts, axis=1) > MAX_SHIFT * units] = 0
    return shifts


def _build_rows(alignments: _Alignments, weights: Values, count: int) -> scipy.sparse.csr_array:
    """The weighted equations shift(b) − linear · shift(a) = residual, two rows per match."""
    size = len(alignments.first)
    lines = 2 * np.arange(size)
    rows, columns, values = [], [], []
    for axis in range(2):
        rows.append(lines + axis)
        columns.append(2 * alignments.second + axis)
        values.append(weights)
        for other in range(2):
            rows.append(lines + axis)
            columns.append(2 * alignments.first + other)
            values.append(-weights * alignments.linear[:, axis, other])
    indices = (np.concatenate(rows), np.concatenate(columns))
    return scipy.sparse.csr_array((np.concatenate(values), indices), shape=(2 * size, 2 * count))


def _drop_outliers(rows: Rows, alignments: _Alignments | None, shifts: Values) -> Rows:
    if alignments is None:
        return rows
    return rows[alignments.is_aligned & (_residual_norms(alignments, shifts) <= MAX_RESIDUAL)]
