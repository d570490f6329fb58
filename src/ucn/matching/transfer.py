"""Label transfer to one image: each labelled image votes for the position of each point, agreement decides.

A labelled image matches its points to the target, so each point gets a vote: a position, and the match's
score as its weight. Votes are smoothed by a Gaussian (a kernel density); the point lies where the density is
largest, found by mean shift from the vote with most support. Its score is the mean of weight times kernel
over the images on which the point is labelled: votes that agree with the place count in full, votes
elsewhere, and images that label the point as hidden, count nothing. Averaging the similarities of all
labelled images before the search was no more accurate (docs/development/experiments.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.config import MIN_VISIBLE_SCORE
from ucn.data.points import check_points, to_numbers
from ucn.errors import PointsError
from ucn.types import BoolArray, Features, FloatArray, Matches

# Chosen on training images: docs/development/experiments.md, "Label transfer".
AGREEMENT_SHARE = 0.08
"""Standard deviation of the kernel, as a share of the longer side of the target."""

_MEAN_SHIFT_STEPS = 10


@dataclass(frozen=True, repr=False)
class TransferredPoints:
    """The labelled points on another image, one row for each.

    Attributes:
        points: (N, 2) float32, in pixels of the target; NaN where no labelled image has the point or could
            match it.
        scores: (N,) float32 in [0, 1]: how far the labelled images agree on the place, times their matches'
            probabilities to be correct. With one labelled image it is the score of the match.
        is_visible: (N,) bool, whether the score reaches the threshold.
        votes: (N,) int64, how many labelled images voted within twice the kernel's standard deviation.
        image_hw: (H, W) of the target.
    """

    points: FloatArray
    scores: FloatArray
    is_visible: BoolArray
    votes: NDArray[np.int64]
    image_hw: tuple[int, int]

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        height, width = self.image_hw
        visible = int(self.is_visible.sum())
        return f"TransferredPoints({visible:,} of {len(self):,} visible, image {width} × {height})"


def combine_votes(
    places: ArrayLike, scores: ArrayLike, radius: float, is_labelled: ArrayLike = True
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Combines the votes of R labelled images for N points.

    Args:
        places: (R, N, 2) in pixels of the target; NaN where an image has no vote.
        scores: (R, N) in [0, 1]; not read where an image has no vote.
        radius: standard deviation of the kernel in pixels, above 0.
        is_labelled: (R, N) bool, whether an image labels a point, as visible or as hidden; by default all do.

    Returns:
        points (N, 2), NaN where all votes are missing or have score 0; scores (N,); votes (N,) within twice
        the radius.
    """
    spots, weights = np.asarray(places, np.float64), np.asarray(scores, np.float64)
    if not len(spots):  # as one image that has none of the points
        spots, weights = np.full((1, *spots.shape[1:]), np.nan), np.zeros((1, spots.shape[1]))
    has_vote = np.isfinite(spots).all(axis=2) & (weights > 0)
    spots, weights = np.where(has_vote[..., None], spots, 0.0), np.where(has_vote, weights, 0.0)

    def weigh(centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weight times kernel (R, N) of all votes around a centre (N, 2) of each point."""
        squared = np.square(spots - centres).sum(axis=2)
        return np.asarray(weights * np.exp(-squared / (2 * radius**2)))

    density = np.where(has_vote, np.stack([weigh(spot).sum(axis=0) for spot in spots]), -1.0)
    mode = spots[density.argmax(axis=0), np.arange(spots.shape[1])]
    is_known = has_vote.any(axis=0)
    for _ in range(_MEAN_SHIFT_STEPS):
        support = weigh(mode)
        total = np.where(is_known, support.sum(axis=0), 1.0)
        mode = (support[..., None] * spots).sum(axis=0) / total[:, None]
    near = has_vote & (np.square(spots - mode).sum(axis=2) <= (2 * radius) ** 2)
    labelled_count = np.broadcast_to(np.asarray(is_labelled, np.bool_), weights.shape).sum(axis=0)
    agreed = weigh(mode).sum(axis=0) / labelled_count.clip(1)  # 0 without votes
    mode[~is_known] = np.nan
    return mode.astype(np.float32), agreed.astype(np.float32), near.sum(axis=0)


def check_labelled(references: Sequence[tuple[Any, ArrayLike]]) -> list[NDArray[np.float64]]:
    """The points (N, 2) of each labelled image, NaN where it has none; raises `PointsError`."""
    if not len(references):
        raise PointsError("references must hold at least one labelled image (image, points), got none")
    found: list[NDArray[np.float64]] = []
    for number, item in enumerate(references):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise PointsError(
                f"references must hold (image, points), got a {type(item).__name__} as {number}"
            )
        points = to_numbers(item[1], f"points of reference {number}")
        points = points.reshape(0, 2) if points.size == 0 else points
        if points.ndim != 2 or points.shape[1] != 2:
            raise PointsError(f"points of reference {number} must be (N, 2), got {points.shape}")
        if found and len(points) != len(found[0]):
            raise PointsError(
                f"all references must have the same points, in one order: reference {number} has "
                f"{len(points)}, the first {len(found[0])}; give NaN where a point is not labelled"
            )
        found.append(points)
    return found


def collect_votes(
    match: Callable[..., Matches],
    references: Iterable[tuple[Features, NDArray[np.float64]]],
    target: Features,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The votes of labelled images: places (R, N, 2), NaN where there is none, scores and is_labelled (R, N).

    Args:
        match: as `Matcher.match_features`.
        references: at least one: features, and points (N, 2) that are NaN where the image has no such point.
        target: features of the image that the points are searched in.

    Raises:
        PointsError: a point lies outside its image.
    """
    places, scores, is_labelled = [], [], []
    for number, (features, points) in enumerate(references):
        is_labelled.append(~np.isnan(points).any(axis=1))
        rows = np.flatnonzero(is_labelled[-1])
        names = [f"reference {number}, row {row}" for row in rows]
        queries = check_points(points[rows], features.image_hw, names)
        places.append(np.full((len(points), 2), np.nan, np.float32))
        scores.append(np.zeros(len(points), np.float32))
        if len(rows):
            found = match(features, target, points=queries)
            places[-1][rows], scores[-1][rows] = found.points1, found.scores
    return np.stack(places), np.stack(scores), np.stack(is_labelled)


def decide(
    places: ArrayLike,
    scores: ArrayLike,
    is_labelled: ArrayLike,
    image_hw: tuple[int, int],
    min_score: float = MIN_VISIBLE_SCORE,
) -> TransferredPoints:
    """Combines votes, as `collect_votes` returns them, and decides which points are visible."""
    points, agreed, votes = combine_votes(places, scores, AGREEMENT_SHARE * max(image_hw), is_labelled)
    is_visible = np.isfinite(points[:, 0]) & (agreed >= min_score)
    return TransferredPoints(points, agreed, is_visible, votes, image_hw)
