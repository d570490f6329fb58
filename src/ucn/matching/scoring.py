"""Calibrated probabilities: that a match is correct, and that two images show the same thing at all."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ucn.config import Calibration
from ucn.geometry.neighbours import nearest_points
from ucn.geometry.sampling import sample_patches
from ucn.knn import nearest
from ucn.matching.cells import PointMatches
from ucn.matching.consensus import rate_uniformity

PAIR_SCORE_CORNERS = 500
"""The number of corners of image 0 that pair scores were calibrated with."""
_NEIGHBOURS = 4
_SPARE_NEIGHBOURS = 8  # more candidates, so that ties are broken by the lowest row, as `nearest` breaks them
_TIE = 2e-12  # relative difference below which `nearest` may treat distances as equal
_MAX_STRETCH = 2.0  # factor by which the distance of two neighbours may differ between the images
_SLACK = 4.0  # pixels, one cell, by which it may differ in addition
_USUAL_SUPPORT = 0.9  # of correct matches
_FULL_CONTRAST = 2 / 255
_MAX_QUERIES = 4096  # the default number of keypoints; beyond it, the time of a GPU grows with their square


MATCH_INPUTS = ("similarity", "margin", "round_trip", "support", "uniformity")
"""Inputs of a match's score, in the order of `score_features`; `Calibration` weighs each by ``match_…``."""


def score_features(found: PointMatches) -> Tensor:
    """Inputs of the score (N, 5), in the order of `MATCH_INPUTS`.

    The margin is that over the second best, the round-trip error is in units of 16 px, support that is not
    known is that of correct matches, and uniformity is as `measure_uniformity`.
    """
    similarities = found.similarities
    # Without any cell outside the radius there is no second best, and nothing to lead over.
    margin = torch.where(found.second_best > -1, similarities - found.second_best, 0.0)
    support = torch.full_like(margin, _USUAL_SUPPORT) if found.support is None else found.support
    uniformity = measure_uniformity(found)
    round_trip = found.round_trip_errors.clamp_max(16) / 16
    return torch.stack([similarities, margin, round_trip, support, uniformity], dim=1)


def measure_uniformity(found: PointMatches) -> Tensor:
    """How far matches (N,) may be chance, since all places of an image look alike: 0 to 1.

    That is the uniformity of the emptier image, where it is above 0. It counts in full for a match that is no
    more similar than places of that image are among themselves (three standard deviations above the mean),
    and not at all half-way between that and equal descriptors: the same sand or asphalt is a match.
    """
    similarities = found.similarities
    if found.cosines is None:
        return torch.zeros_like(similarities)
    mean, spread = found.cosines.to(similarities.dtype)
    usual = (mean + 3 * spread).clamp_max(0.999)
    share = (1 - 2 * (similarities - usual) / (1 - usual)).clamp(0, 1)
    chance: Tensor = share * rate_uniformity(found.cosines).clamp_min(0)
    return chance


def score_matches(found: PointMatches, calibration: Calibration) -> Tensor:
    """Estimated probabilities (N,) that matches are correct; 0 where there is none."""
    features = score_features(found)
    weights = [getattr(calibration, f"match_{name}") for name in MATCH_INPUTS]
    products = [weight * each for weight, each in zip(weights, features.unbind(dim=1), strict=True)]
    logits = torch.stack(products).sum(dim=0) + calibration.match_bias
    return torch.where(found.points1[:, 0].isnan(), 0.0, torch.sigmoid(logits))


def measure_visibility(grey: Tensor, points: Tensor) -> Tensor:
    """How far there is something to see around points (N, 2) of an image (H, W) in [0, 1]: 0 to 1.

    1 where the 17 × 17 pixels around a point have a standard deviation of two grey levels of 256 or more, 0
    on a blank surface, and in between by that standard deviation.
    """
    if not len(points):
        return points.new_zeros(0)
    steps = torch.arange(-8, 9, device=points.device, dtype=points.dtype)
    offsets = torch.cartesian_prod(steps, steps)
    identity = torch.eye(2, dtype=points.dtype, device=points.device).expand(len(points), 2, 2)
    patches = sample_patches(grey, points.nan_to_num(0.0), identity, offsets)  # (N, 289)
    contrast = patches.std(dim=1, correction=0)
    return (contrast / _FULL_CONTRAST).clamp(0, 1)


def measure_neighbour_consistency(points0: Tensor, points1: Tensor, is_kept: Tensor | None = None) -> Tensor:
    """Measures neighbourhood consistency (N,): the share of neighbours that stay close, in both directions.

    Single points of two unrelated images may look alike, above all where one image is small and a point has
    few competitors; but their matches are scattered.

    Args:
        points0: (N, 2) in pixels of the encoded image 0.
        points1: (N, 2) their matches, in pixels of the encoded image 1.
        is_kept: (N,) bool, which matches count; of others the result means nothing. None counts all.

    Returns:
        In [0, 1]; 1 for a single match.
    """
    measure = _share_of_kept_neighbours if is_kept is None else partial(_share_among, is_kept)
    return measure(points0, points1) * measure(points1, points0)


def _share_among(is_kept: Tensor, here: Tensor, there: Tensor) -> Tensor:
    """As `_share_of_kept_neighbours` among some of the matches, whose number no GPU is asked for."""
    _, rows = nearest_points(here, here, min(_NEIGHBOURS + 1, len(here)), is_kept)
    near, is_near = rows[:, 1:].clamp_min(0), rows[:, 1:] >= 0
    count = is_near.sum(dim=1)
    share = (_is_stretched_little(here, there, near) & is_near).sum(dim=1) / count.clamp_min(1)
    return torch.where(count > 0, share, 1.0)


def _share_of_kept_neighbours(here: Tensor, there: Tensor) -> Tensor:
    count = min(_NEIGHBOURS, len(here) - 1)
    if count < 1:
        return torch.ones(len(here), dtype=torch.float32, device=here.device)
    # Where matches coincide, another one than the match itself may come first; the distances are the same.
    near = _find_nearest(here, count + 1)[:, 1:]
    share: Tensor = _is_stretched_little(here, there, near).float().mean(dim=1)
    return share


def _is_stretched_little(here: Tensor, there: Tensor, near: Tensor) -> Tensor:
    """Whether the distance to neighbours (N, k) is about the same in both images: bool (N, k)."""
    distance_here = (here[:, None] - here[near]).norm(dim=-1)
    distance_there = (there[:, None] - there[near]).norm(dim=-1)
    is_short: Tensor = distance_there <= _MAX_STRETCH * distance_here + _SLACK
    is_long: Tensor = distance_here <= _MAX_STRETCH * distance_there + _SLACK
    return is_short & is_long


def _find_nearest(points: Tensor, count: int) -> Tensor:
    """Rows (N, count) of the points nearest to each, itself included; the lowest row first among ties."""
    if points.device.type != "cpu":
        return nearest(points, points, count).indices
    distances, rows = nearest_points(points, points, min(count + _SPARE_NEIGHBOURS, len(points)))
    by_row = rows.argsort(dim=1)
    by_distance = distances.gather(1, by_row).argsort(dim=1, stable=True)
    found = rows.gather(1, by_row.gather(1, by_distance))[:, :count]
    # Searched again in float64: where distances differ by rounding alone, and where points that were not
    # looked up may be as near as the last.
    gaps, least = distances.diff(dim=1), _TIE * distances[:, 1:]
    is_open = ((gaps > 0) & (gaps <= least)).any(dim=1)
    if rows.shape[1] < len(points):
        is_open |= distances[:, -1] - distances[:, count - 1] <= _TIE * distances[:, -1]
    if bool(is_open.any()):
        positions = points.double()
        found[is_open] = nearest(positions[is_open], positions, count).indices
    return found


PAIR_INPUTS = ("support", "similarity", "uniformity")
"""Inputs of the pair score, in the order of `pair_features`; `Calibration` weighs each by ``pair_…``."""


def pair_features(
    scores: Tensor,
    is_mutual: Tensor,
    points0: Tensor,
    points1: Tensor,
    similarities: Tensor,
    uniformity: Tensor,
) -> tuple[float, float, float]:
    """Inputs of the pair score, in the order of `PAIR_INPUTS`; all 0 without queries.

    A match counts by its score times its neighbourhood consistency, and 0 unless it is mutual. Support is the
    mean of that over queries, similarity the mean over matches weighted by it, uniformity the mean over
    queries. Few points of another object agree, but those that do are as similar as those of one scene; of
    unrelated photographs as many may agree by chance.

    Args:
        scores: (N,) of the matches.
        is_mutual: (N,) bool, which of them count.
        points0: (N, 2) in pixels of the encoded image 0; of more than 4,096 every second, third and so on
            is used.
        points1: (N, 2) their matches, in pixels of the encoded image 1.
        similarities: (N,) cosines.
        uniformity: (N,) as `measure_uniformity`.
    """
    if len(scores) == 0:
        return 0.0, 0.0, 0.0
    chance = uniformity.mean().item()
    step = -(-len(scores) // _MAX_QUERIES)
    count = len(scores[::step])
    is_kept = is_mutual[::step]
    scores, points0, points1, similarities = (
        each[::step][is_kept] for each in (scores, points0, points1, similarities)
    )
    weights = scores * measure_neighbour_consistency(points0, points1)
    total = weights.sum().item()
    similarity = (weights * similarities).sum().item() / total if total > 0 else 0.0
    return total / count, similarity, chance


def score_pair(
    scores: Tensor,
    is_mutual: Tensor,
    points0: Tensor,
    points1: Tensor,
    similarities: Tensor,
    uniformity: Tensor,
    calibration: Calibration,
) -> float:
    """Estimated probability that two images show the same thing; 0 without queries.

    Arguments are those of `pair_features`, and the calibration of the network.
    """
    if len(scores) == 0:
        return 0.0
    inputs = pair_features(scores, is_mutual, points0, points1, similarities, uniformity)
    return weigh_pair(inputs, calibration)


def weigh_pair(inputs: tuple[float, float, float], calibration: Calibration) -> float:
    """The pair score by its inputs, as `pair_features` returns them."""
    weights = [getattr(calibration, f"pair_{name}") for name in PAIR_INPUTS]
    logit = calibration.pair_bias + sum(weight * value for weight, value in zip(weights, inputs, strict=True))
    return torch.tensor(logit, dtype=torch.float64).sigmoid().item()
