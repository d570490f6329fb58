"""Keypoints of many images moved to where their pixels agree, so that rays of one point meet.

A detector finds a corner a little beside where it found it in the next image, and descriptors, which see
far round a point, match it with a neighbour. So each verified match is aligned by the pixels of its two
images (`geometry.alignment`): they say how far keypoint b lies from where keypoint a is seen. One keypoint
takes part in many matches; its move is what suits all of them best: least squares over all keypoints of all
images, in which matches that contradict the rest lose their weight, and each keypoint is held where it was by
a weak spring. The idea is that of keypoint adjustment in Pixel-Perfect SfM (Lindenberger et al. 2021), with
patches in place of deep features.
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

from ucn.matching.alignment import align_points, estimate_linear_parts
from ucn.types import BoolArray, FloatArray

MAX_SHIFT = 3.0
"""Pixels by which a keypoint may move, each time."""
MAX_MISS = 1.0
"""Pixels by which a match may miss after the move; others are dropped."""
ALIGNMENTS = 2
"""How often all this is done: from better places, without dropped matches, patches agree better."""

_MIN_SHARE = 0.35  # of a pair's matches; where fewer can be aligned, its images show no common surface
_SURE = 0.9  # correlation above which a match that alignment cannot better is as good as aligned
_SPRING = 0.05  # pulls a keypoint back, as strongly as so many matches pull it away
_ROUNDS = 5
_SOFT = 0.5  # pixels of contradiction at which a match has a quarter of its weight
Values = NDArray[np.float64]
Rows = NDArray[np.int64]
Grey = Callable[[int], Tensor]
"""Gives the grey picture (H, W) in [0, 1] of an image by its number."""


@dataclass(frozen=True)
class Adjusted:
    """Keypoints and matches after the move.

    Attributes:
        keypoints: (N, 2) of each image.
        matches: (M, 2) rows of each pair: those that agree with the rest.
        moved: median of the pixels by which the keypoints that have matches moved.
        kept: share of all matches that is kept.
    """

    keypoints: list[FloatArray]
    matches: dict[tuple[int, int], Rows]
    moved: float
    kept: float


@dataclass(frozen=True)
class _Measured:
    """What the pixels of a pair say: b should lie at b + misses where a stands still."""

    first: Rows
    second: Rows
    linear: Values
    residuals: Values
    is_aligned: BoolArray


def adjust_keypoints(
    keypoints: Sequence[FloatArray],
    matches: Mapping[tuple[int, int], Rows],
    grey: Grey,
    progress: Callable[[int, int], None] | None = None,
) -> Adjusted:
    """Moves keypoints by parts of a pixel.

    Pairs of which few matches can be aligned (two things of a kind, day and night) keep all their matches,
    and have no say.

    Args:
        keypoints: (N, 2) pixels of each image.
        matches: verified ones, as (M, 2) rows, by the numbers of the two images.
        grey: gives pictures, of the size that keypoints refer to.
        progress: called with (pairs done, all pairs).
    """
    points, kept = list(keypoints), dict(matches)
    for number in range(ALIGNMENTS):
        points, kept = _adjust_once(points, kept, grey, number, progress)
    lengths = np.concatenate(
        [np.linalg.norm(after - before, axis=1) for after, before in zip(points, keypoints, strict=True)]
    )
    total = sum(len(rows) for rows in matches.values())
    return Adjusted(
        points,
        kept,
        float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 0.0,
        sum(len(rows) for rows in kept.values()) / max(total, 1),
    )


def _adjust_once(
    keypoints: Sequence[FloatArray],
    matches: Mapping[tuple[int, int], Rows],
    grey: Grey,
    number: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[FloatArray], dict[tuple[int, int], Rows]]:
    offsets = np.cumsum([0, *(len(points) for points in keypoints)])
    measured: dict[tuple[int, int], _Measured] = {}
    for done, ((image0, image1), rows) in enumerate(matches.items(), 1):
        places = keypoints[image0][rows[:, 0]], keypoints[image1][rows[:, 1]]
        found = _measure(*places, grey(image0), grey(image1))
        if found is not None:
            linear, residuals, is_aligned = found
            first, second = offsets[image0] + rows[:, 0], offsets[image1] + rows[:, 1]
            measured[image0, image1] = _Measured(first, second, linear, residuals, is_aligned)
        if progress is not None:
            progress(number * len(matches) + done, ALIGNMENTS * len(matches))
    moves = np.zeros((int(offsets[-1]), 2))
    if measured:
        moves = _solve(_join(list(measured.values())), len(moves))
    moved = [
        (points + moves[start : start + len(points)]).astype(np.float32)
        for points, start in zip(keypoints, offsets[:-1], strict=True)
    ]
    return moved, {pair: _keep(rows, measured.get(pair), moves) for pair, rows in matches.items()}


def _measure(
    points0: FloatArray, points1: FloatArray, grey0: Tensor, grey1: Tensor
) -> tuple[Values, Values, BoolArray] | None:
    """Aligns the matches of a pair; None where too few can be."""
    if not len(points0):
        return None
    places0, places1 = torch.from_numpy(points0), torch.from_numpy(points1)
    linear = estimate_linear_parts(places0, places0, places1)
    found = align_points(grey0, grey1, places0, places1, linear, max_shift=MAX_SHIFT)
    is_aligned = found.is_aligned | (found.correlations >= _SURE)
    if is_aligned.float().mean() < _MIN_SHARE:
        return None
    residuals = (found.points1 - places1).double().numpy()
    return linear.double().numpy(), residuals, is_aligned.numpy()


def _join(items: Sequence[_Measured]) -> _Measured:
    """All aligned matches of all pairs."""
    return _Measured(
        *(
            np.concatenate([getattr(item, name)[item.is_aligned] for item in items])
            for name in ("first", "second", "linear", "residuals", "is_aligned")
        )
    )


def _contradict(measured: _Measured, moves: Values) -> Values:
    """Pixels (M,) by which matches still miss after the keypoints were moved."""
    along = np.einsum("mij,mj->mi", measured.linear, moves[measured.first])
    return np.asarray(np.linalg.norm(moves[measured.second] - along - measured.residuals, axis=1))


def _solve(measured: _Measured, count: int) -> Values:
    """Moves (count, 2) of keypoints by iteratively reweighted least squares."""
    moves = np.zeros((count, 2))
    weights = np.ones(len(measured.first))
    for _ in range(_ROUNDS):
        system = _build_rows(measured, weights, count)
        right = system.T @ (measured.residuals * weights[:, None]).ravel()
        normal = system.T @ system + _SPRING * scipy.sparse.eye_array(2 * count, format="csr")
        solution, _info = scipy.sparse.linalg.cg(normal, right, x0=moves.ravel(), rtol=1e-6, maxiter=300)
        moves = solution.reshape(-1, 2)
        weights = 1 / (1 + (_contradict(measured, moves) / _SOFT) ** 2)
    moves[np.linalg.norm(moves, axis=1) > MAX_SHIFT] = 0
    return moves


def _build_rows(measured: _Measured, weights: Values, count: int) -> scipy.sparse.csr_array:
    """The equations move(b) − linear · move(a) = miss, two rows a match, times their weights."""
    size = len(measured.first)
    lines = 2 * np.arange(size)
    rows, columns, values = [], [], []
    for axis in range(2):
        rows.append(lines + axis)
        columns.append(2 * measured.second + axis)
        values.append(weights)
        for other in range(2):
            rows.append(lines + axis)
            columns.append(2 * measured.first + other)
            values.append(-weights * measured.linear[:, axis, other])
    places = (np.concatenate(rows), np.concatenate(columns))
    return scipy.sparse.csr_array((np.concatenate(values), places), shape=(2 * size, 2 * count))


def _keep(rows: Rows, measured: _Measured | None, moves: Values) -> Rows:
    if measured is None:
        return rows
    return rows[measured.is_aligned & (_contradict(measured, moves) <= MAX_MISS)]
