"""Label transfer to one image: each labelled image votes for the position of each point, agreement decides.

A labelled image matches its points to the target, so each point gets a vote: a position, and the match's
score as its weight. Votes are smoothed by a Gaussian (a kernel density); the point lies where the density is
largest, found by mean shift from the vote with most support. Its score is the mean of weight times kernel
over the images on which the point is labelled: votes that agree with the place count in full, votes
elsewhere, and images that label the point as hidden, count nothing.

Images in another pose are poor witnesses, so the decision is made twice. The first one shows how well each
labelled layout fits the target, up to a similarity transform (`rate_layouts`); in the second one, labelled
images count the less the worse theirs fits. A layout that fits better mirrored shows the other side of the
object: its votes for points named left or right then lower their scores.

What else was tried is in docs/development/experiments.md, "Label transfer".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.config import MIN_VISIBLE_SCORE
from ucn.data.points import check_points, to_numbers
from ucn.data.sets.semantic.parts import has_side
from ucn.errors import PointsError
from ucn.types import BoolArray, Features, FloatArray, Matches

# Chosen on training images: docs/development/experiments.md, "Label transfer".
AGREEMENT_SHARE = 0.08
"""Standard deviation of the kernel, as a share of the longer side of the target."""

POSE_WEIGHT, MAX_POSE_WEIGHT = 0.4, 4.0
"""Exponent, for each labelled image and in all, by which a layout that does not fit counts less: with more
images there are more in the pose of the target."""
MIRROR_TOLERANCE = 0.1
"""By how much better a mirrored layout fits where its votes for a side count 1 / e."""

_MEAN_SHIFT_STEPS = 10
_MIN_LAYOUT = 3  # points


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


@dataclass(frozen=True, eq=False)
class Votes:
    """The votes of R labelled images for N points.

    Attributes:
        places: (R, N, 2) in pixels of the target; NaN where an image has no vote.
        scores: (R, N) in [0, 1], of the matches; not read where an image has no vote.
        is_labelled: (R, N) bool, whether an image labels a point, as visible or as hidden.
        layouts: (R, N, 2) the labelled points, in pixels of their images; NaN where hidden or not labelled.
    """

    places: FloatArray
    scores: FloatArray
    is_labelled: BoolArray
    layouts: NDArray[np.float64]


def combine_votes(
    places: ArrayLike,
    scores: ArrayLike,
    radius: float,
    weights: ArrayLike = 1.0,
    trust: ArrayLike = 1.0,
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Combines the votes of R labelled images for N points.

    Args:
        places: (R, N, 2) in pixels of the target; NaN where an image has no vote.
        scores: (R, N) in [0, 1]; not read where an image has no vote.
        radius: standard deviation of the kernel in pixels, above 0.
        weights: (R, N), at least 0: how much an image counts for a point, 0 where it does not label it; by
            default all count the same.
        trust: (R, N), factors of the scores that do not change where a point lies.

    Returns:
        points (N, 2), NaN where all votes are missing or have score 0; scores (N,), the weighted means of
        score times kernel; votes (N,) within twice the radius.
    """
    spots, strengths = np.asarray(places, np.float64), np.asarray(scores, np.float64)
    if not len(spots):  # as one image that has none of the points
        spots, strengths = np.full((1, *spots.shape[1:]), np.nan), np.zeros((1, spots.shape[1]))
        weights = trust = 1.0
    importance, shares = (
        np.broadcast_to(np.asarray(each, np.float64), strengths.shape) for each in (weights, trust)
    )
    strengths = strengths * importance
    has_vote = np.isfinite(spots).all(axis=2) & (strengths > 0)
    spots, strengths = np.where(has_vote[..., None], spots, 0.0), np.where(has_vote, strengths, 0.0)

    def weigh(centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Strength times kernel (R, N) of all votes around a centre (N, 2) of each point."""
        squared = np.square(spots - centres).sum(axis=2)
        return np.asarray(strengths * np.exp(-squared / (2 * radius**2)))

    density = np.where(has_vote, np.stack([weigh(spot).sum(axis=0) for spot in spots]), -1.0)
    mode = spots[density.argmax(axis=0), np.arange(spots.shape[1])]
    is_known = has_vote.any(axis=0)
    for _ in range(_MEAN_SHIFT_STEPS):
        support = weigh(mode)
        total = np.where(is_known, support.sum(axis=0), 1.0)
        mode = (support[..., None] * spots).sum(axis=0) / total[:, None]
    near = has_vote & (np.square(spots - mode).sum(axis=2) <= (2 * radius) ** 2)
    total = importance.sum(axis=0)
    agreed = (shares * weigh(mode)).sum(axis=0) / np.where(total > 0, total, 1.0)  # 0 without votes
    mode[~is_known] = np.nan
    return mode.astype(np.float32), agreed.astype(np.float32), near.sum(axis=0)


def rate_layouts(layouts: ArrayLike, points: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """How well labelled layouts fit the points of a target, as they are and mirrored.

    A fit is by the similarity transform of least weighted squares; it needs three points.

    Args:
        layouts: (R, N, 2) points of labelled images, NaN where there is none.
        points: (N, 2) in the target, likewise.
        weights: (N,) of the points, at least 0.

    Returns:
        (R, 2) coefficients of determination in [0, 1], as they are and mirrored; both 1 where they are not
        known.
    """
    there = np.asarray(points, np.float64) @ (1, 1j)  # as complex numbers, a similarity is a product
    found = np.ones((len(np.asarray(layouts)), 2))
    for row, layout in enumerate(np.asarray(layouts, np.float64)):
        here = layout @ (1, 1j)
        use = np.isfinite(here) & np.isfinite(there) & (np.asarray(weights) > 0)
        if use.sum() < _MIN_LAYOUT:
            continue
        shares = np.asarray(weights, np.float64)[use]
        shares = shares / shares.sum()
        from0, to1 = (each[use] - shares @ each[use] for each in (here, there))
        spread = (shares @ np.abs(from0) ** 2) * (shares @ np.abs(to1) ** 2)
        if spread > 0:
            found[row] = [abs(shares @ (to1 * each)) ** 2 / spread for each in (from0.conj(), from0)]
    return found


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
) -> Votes:
    """The votes of labelled images.

    Args:
        match: as `Matcher.match_features`.
        references: at least one: features, and points (N, 2) that are NaN where the image has no such point.
        target: features of the image that the points are searched in.

    Raises:
        PointsError: a point lies outside its image.
    """
    places, scores, layouts = [], [], []
    for number, (features, points) in enumerate(references):
        layouts.append(points)
        rows = np.flatnonzero(~np.isnan(points).any(axis=1))
        names = [f"reference {number}, row {row}" for row in rows]
        queries = check_points(points[rows], features.image_hw, names)
        places.append(np.full((len(points), 2), np.nan, np.float32))
        scores.append(np.zeros(len(points), np.float32))
        if len(rows):
            found = match(features, target, points=queries)
            places[-1][rows], scores[-1][rows] = found.points1, found.scores
    known = np.stack(layouts)
    is_labelled = np.asarray(~np.isnan(known).any(axis=2))
    return Votes(np.stack(places), np.stack(scores), is_labelled, known)


def decide(
    votes: Votes,
    image_hw: tuple[int, int],
    min_score: float = MIN_VISIBLE_SCORE,
    names: Sequence[str] | None = None,
) -> TransferredPoints:
    """Combines votes, and decides which points are visible.

    Args:
        votes: of the labelled images.
        image_hw: (H, W) of the target.
        min_score: the score from which a point counts as visible.
        names: of the N points, if they have any: left and right in them mark the sides of the object.
    """
    radius = AGREEMENT_SHARE * max(image_hw)
    weights = votes.is_labelled.astype(np.float64)
    points, scores, _ = combine_votes(votes.places, votes.scores, radius, weights)
    fits, mirrored = rate_layouts(votes.layouts, points, scores).T[..., None]  # (R, 1)
    exponent = min(POSE_WEIGHT * len(fits), MAX_POSE_WEIGHT)
    weights *= np.exp(exponent * (fits - 1))
    is_side = has_side(names or [""] * len(points))
    trust = np.where(is_side, np.exp(-(mirrored - fits).clip(0) / MIRROR_TOLERANCE), 1.0)
    points, scores, near = combine_votes(votes.places, votes.scores, radius, weights, trust)
    is_visible = np.isfinite(points[:, 0]) & (scores >= min_score)
    return TransferredPoints(points, scores, is_visible, near, image_hw)
