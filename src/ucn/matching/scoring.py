"""Similarities to probabilities: how sure a match is, and whether two images match at all."""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.config import Calibration
from ucn.geometry.neighbours import nearest_points
from ucn.knn import nearest
from ucn.matching.cells import CheckedMatches

_NEIGHBOURS = 4
"""Matches round a match that are asked whether they moved with it."""
_SPARE_NEIGHBOURS = 8
"""Further ones that are looked up, so that of equally near ones those are taken that come first."""
_TIE = 2e-12
"""Distances that differ by no more than this share may be equal for `nearest`."""
_MOST_STRETCH = 2.0
"""How much farther apart, or nearer, two neighbours may be in the other image."""
_SLACK = 4.0
"""Pixels, one cell, by which they may be off besides."""
_MOST_ASKED = 4096
"""Queries, as many as are matched by default, beyond which a pair's score asks every second or third only:
to find the neighbours of all takes a GPU time that grows with their square."""


def score_features(found: CheckedMatches) -> Tensor:
    """What a match's score is computed from: (N, 3) similarity, lead over the rival, miss of the way back."""
    lead = found.similarities - found.second_best
    return torch.stack([found.similarities, lead, found.round_trip_errors.clamp_max(16) / 16], dim=1)


def score_matches(found: CheckedMatches, calibration: Calibration) -> Tensor:
    """Estimated probabilities (N,) that matches are right; 0 where there is none."""
    features = score_features(found)
    weights = (calibration.match_similarity, calibration.match_margin, calibration.match_miss)
    logits = features @ features.new_tensor(weights) + calibration.match_bias
    return torch.where(found.points1[:, 0].isnan(), 0.0, torch.sigmoid(logits))


def measure_agreement(points0: Tensor, points1: Tensor) -> Tensor:
    """How far matches bear each other out (N,): the share of neighbours that stay neighbours, both ways.

    Of two different images single points may look alike, and more so where one image is small
    and a point has few rivals; but their matches lie about at random.

    Args:
        points0: (N, 2) in pixels of the encoded image 0.
        points1: (N, 2) of their matches, likewise.

    Returns:
        In [0, 1]; 1 for a lone match, which nothing speaks against.
    """
    return _keep_neighbours(points0, points1) * _keep_neighbours(points1, points0)


def _keep_neighbours(here: Tensor, there: Tensor) -> Tensor:
    count = min(_NEIGHBOURS, len(here) - 1)
    if count < 1:
        return torch.ones(len(here), dtype=torch.float32, device=here.device)
    # Of matches at one place another than the match itself may come first; their distances are alike.
    near = _find_nearest(here, count + 1)[:, 1:]
    distance_here = (here[:, None] - here[near]).norm(dim=-1)
    distance_there = (there[:, None] - there[near]).norm(dim=-1)
    is_kept = distance_there <= _MOST_STRETCH * distance_here + _SLACK
    is_kept &= distance_here <= _MOST_STRETCH * distance_there + _SLACK
    share: Tensor = is_kept.float().mean(dim=1)
    return share


def _find_nearest(points: Tensor, count: int) -> Tensor:
    """The rows (N, count) of points nearest to each, itself among them; of equally near ones the first."""
    if points.device.type != "cpu":
        return nearest(points, points, count).indices
    distances, rows = nearest_points(points, points, min(count + _SPARE_NEIGHBOURS, len(points)))
    by_row = rows.argsort(dim=1)
    by_distance = distances.gather(1, by_row).argsort(dim=1, stable=True)
    found = rows.gather(1, by_row.gather(1, by_distance))[:, :count]
    # Others decide where distances differ by rounding alone, and where of those that were not looked up some
    # may be as near as the last.
    gaps, least = distances.diff(dim=1), _TIE * distances[:, 1:]
    is_open = ((gaps > 0) & (gaps <= least)).any(dim=1)
    if rows.shape[1] < len(points):
        is_open |= distances[:, -1] - distances[:, count - 1] <= _TIE * distances[:, -1]
    if bool(is_open.any()):
        places = points.double()
        found[is_open] = nearest(places[is_open], places, count).indices
    return found


def pair_support(scores: Tensor, is_mutual: Tensor, points0: Tensor, points1: Tensor) -> float:
    """What a pair's score is computed from: the mean over queries of score times agreement.

    Queries without a mutual match count 0. Points are (N, 2) in pixels of the encoded images. Of more than
    4,096 queries an even part is asked.
    """
    if len(scores) == 0:
        return 0.0
    step = -(-len(scores) // _MOST_ASKED)
    scores, is_mutual, points0, points1 = (each[::step] for each in (scores, is_mutual, points0, points1))
    agreement = measure_agreement(points0[is_mutual], points1[is_mutual])
    return (scores[is_mutual] * agreement).sum().item() / len(scores)


def score_pair(
    scores: Tensor, is_mutual: Tensor, points0: Tensor, points1: Tensor, calibration: Calibration
) -> float:
    """Estimated probability that two images show the same thing; 0 when nothing was asked."""
    if len(scores) == 0:
        return 0.0
    support = pair_support(scores, is_mutual, points0, points1)
    logit = calibration.pair_bias + calibration.pair_support * support
    return torch.tensor(logit, dtype=torch.float64).sigmoid().item()
