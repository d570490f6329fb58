"""Fits the curves that turn similarities into probabilities, on held-out pairs.

Of photographs, half of the image pairs show one under a random warp; the other half show two. A match counts
as right when it lies within 3 px of the truth, in pairs of a data set with lengths within a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ucn.config import Calibration, MatchConfig, SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.geometry.coords import is_inside
from ucn.geometry.warp import homography_from_points, warp_points
from ucn.matching.cells import CheckedMatches, match_points
from ucn.matching.keypoints import detect_corners
from ucn.matching.scoring import pair_support, score_features, score_matches
from ucn.nn import CorrespondenceNetwork
from ucn.types import PairBatch

RIGHT_WITHIN = 3.0
"""Pixels within which a match counts as right."""
RIGHT_WITHIN_SHARE = 0.1
"""Share of a pair's length within which a match counts as right, where it has one."""
_CORNERS = 500
_POINTS_OF_A_HOMOGRAPHY = 4


@torch.no_grad()
def fit_calibration(
    model: CorrespondenceNetwork, bank: ImageBank, synthetic: SyntheticConfig, pairs: int, seed: int
) -> Calibration:
    """The calibration of a network.

    Args:
        model: the network, in evaluation mode, on the bank's device.
        bank: photographs that were not trained on.
        synthetic: how their pairs are made.
        pairs: how many pairs of one photograph, and as many of two, are matched.
        seed: of the pairs.

    Returns:
        The fitted curves. Where there is nothing to fit one on, it is the default: the curve of pairs for a
        single photograph, both for photographs too small to show the same points in two views.
    """
    generator = torch.Generator(bank.canvases.device).manual_seed(seed)
    batch = make_pairs(bank, pairs, synthetic, generator)
    singles = [pair for pair in batch if int(pair.is_valid.sum()) >= _POINTS_OF_A_HOMOGRAPHY]
    if not singles:
        return Calibration()
    related, features, labels = [], [], []
    for pair in singles:
        corners, found = _match_corners(model, pair, pair)
        related.append((corners, found))
        features.append(score_features(found))
        labels.append(_judge(pair, corners, found))
    matching = _fit_matches(features, labels)
    unrelated = [
        _match_corners(model, first, second)
        for first, second in zip(singles, singles[1:] + singles[:1], strict=True)
        if first.names != second.names
    ]
    if not unrelated:  # a fit to related pairs alone would call every pair related
        return matching
    support = torch.tensor([[_support(*entry, matching)] for entry in related + unrelated])
    is_related = torch.tensor([True] * len(related) + [False] * len(unrelated))
    pair_bias, pair_weight = _fit_logistic(support, is_related)
    return replace(matching, pair_bias=pair_bias, pair_support=pair_weight)


@torch.no_grad()
def fit_match_curve(model: CorrespondenceNetwork, batches: Iterable[PairBatch]) -> Calibration:
    """A calibration whose curve of matches is fitted to true points; the curve of pairs is the default.

    Args:
        model: the network, in evaluation mode, on the device of the batches.
        batches: pairs that were not trained on; without any point the calibration is the default.
    """
    features, labels = [], []
    for pair in (pair for batch in batches for pair in batch if pair.is_valid.any()):
        points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
        map0, map1 = model.encode(pair.image0), model.encode(pair.image1)
        found = match_points(map0, map1, points0, second_best_radius=MatchConfig().second_best_radius)
        limit = RIGHT_WITHIN if pair.pck_length is None else RIGHT_WITHIN_SHARE * pair.pck_length
        features.append(score_features(found))
        labels.append((found.points1 - points1).norm(dim=-1) <= limit)
    return _fit_matches(features, labels) if features else Calibration()


def _fit_matches(features: list[Tensor], labels: list[Tensor]) -> Calibration:
    bias, *weights = _fit_logistic(torch.cat(features), torch.cat(labels))
    return Calibration(
        match_bias=bias, match_similarity=weights[0], match_margin=weights[1], match_miss=weights[2]
    )


def _judge(pair: PairBatch, corners: Tensor, found: CheckedMatches) -> Tensor:
    """Which matches of the corners of image 0 are right."""
    is_valid = pair.is_valid[0]
    H_0to1 = homography_from_points(pair.points0[0][is_valid], pair.points1[0][is_valid])
    truth = warp_points(corners[None], H_0to1[None])[0]
    is_seen = is_inside(truth, (pair.image1.shape[-2], pair.image1.shape[-1]))
    is_near: Tensor = (found.points1 - truth).norm(dim=-1) <= RIGHT_WITHIN
    return is_seen & is_near


def _match_corners(
    model: CorrespondenceNetwork, first: PairBatch, second: PairBatch
) -> tuple[Tensor, CheckedMatches]:
    """Corners of image 0 of one pair, and their matches in image 1 of another."""
    corners = detect_corners(first.image0[0], _CORNERS).to(first.image0.device)
    map0, map1 = model.encode(first.image0), model.encode(second.image1)
    return corners, match_points(map0, map1, corners, second_best_radius=MatchConfig().second_best_radius)


def _support(corners: Tensor, found: CheckedMatches, calibration: Calibration) -> float:
    is_mutual = found.round_trip_errors <= MatchConfig().mutual_tolerance
    return pair_support(score_matches(found, calibration), is_mutual, corners, found.points1)


def _fit_logistic(features: Tensor, labels: Tensor) -> list[float]:
    """Bias and weights of a logistic regression, by Newton's method with a little ridge."""
    inputs = torch.cat([torch.ones_like(features[:, :1]), features], dim=1).double()
    targets = labels.double()
    ridge = 1e-3 * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    weights = inputs.new_zeros(inputs.shape[1])
    for _ in range(50):
        chance = torch.sigmoid(inputs @ weights)
        gradient = inputs.t() @ (chance - targets) + ridge @ weights
        curvature = (inputs * (chance * (1 - chance))[:, None]).t() @ inputs + ridge
        step = torch.linalg.solve(curvature, gradient)
        weights = weights - step * min(1.0, 4.0 / step.norm().item()) if step.norm() > 0 else weights
        if step.square().mean() < 1e-16:
            break
    return [round(value, 4) for value in weights.tolist()]
