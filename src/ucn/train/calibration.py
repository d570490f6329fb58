"""Calibration: fits logistic curves that turn similarities into probabilities, on held-out pairs.

Half of the image pairs from photographs show one photograph under a random warp, the other half two different
ones. A match is correct if it lies within 3 px of the ground truth, or within a tenth of `pck_length` for
pairs that have one.
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
from ucn.matching.cells import PointMatches, match_points
from ucn.matching.keypoints import detect_corners
from ucn.matching.scoring import pair_support, score_features, score_matches
from ucn.nn import CorrespondenceNetwork
from ucn.types import PairBatch

CORRECT_WITHIN = 3.0
"""Pixels within which a match is correct."""
CORRECT_WITHIN_SHARE = 0.1
"""Share of `pck_length` within which a match is correct, where a pair has one."""
_CORNERS = 500
_HOMOGRAPHY_POINTS = 4


@torch.no_grad()
def fit_calibration(
    model: CorrespondenceNetwork, bank: ImageBank, synthetic: SyntheticConfig, pairs: int, seed: int
) -> Calibration:
    """Fits the calibration of a network on photographs.

    Args:
        model: in evaluation mode, on the bank's device.
        bank: held-out photographs.
        synthetic: settings of their pairs.
        pairs: number of pairs of one photograph, and of pairs of two.
        seed: of the pairs.

    Returns:
        The fitted curves. A curve without data is the default: that of pairs for a single photograph, both
        for photographs too small to show the same points in two views.
    """
    generator = torch.Generator(bank.canvases.device).manual_seed(seed)
    batch = make_pairs(bank, pairs, synthetic, generator)
    singles = [pair for pair in batch if int(pair.is_valid.sum()) >= _HOMOGRAPHY_POINTS]
    if not singles:
        return Calibration()
    related, features, labels = [], [], []
    for pair in singles:
        corners, found = _match_corners(model, pair, pair)
        related.append((corners, found))
        features.append(score_features(found))
        labels.append(_is_correct(pair, corners, found))
    matching = _fit_matches(features, labels)
    unrelated = [
        _match_corners(model, first, second)
        for first, second in zip(singles, singles[1:] + singles[:1], strict=True)
        if first.names != second.names
    ]
    if not unrelated:  # a fit to related pairs alone would score every pair as related
        return matching
    support = torch.tensor([[_support(*entry, matching)] for entry in related + unrelated])
    is_related = torch.tensor([True] * len(related) + [False] * len(unrelated))
    pair_bias, pair_weight = _fit_logistic(support, is_related)
    return replace(matching, pair_bias=pair_bias, pair_support=pair_weight)


@torch.no_grad()
def fit_match_curve(model: CorrespondenceNetwork, batches: Iterable[PairBatch]) -> Calibration:
    """Fits the curve of matches on annotated points; the curve of pairs is the default.

    Args:
        model: in evaluation mode, on the device of the batches.
        batches: held-out pairs; without any point the calibration is the default.
    """
    features, labels = [], []
    for pair in (pair for batch in batches for pair in batch if pair.is_valid.any()):
        points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
        map0, map1 = model.encode(pair.image0), model.encode(pair.image1)
        found = match_points(map0, map1, points0, second_best_radius=MatchConfig().second_best_radius)
        limit = CORRECT_WITHIN if pair.pck_length is None else CORRECT_WITHIN_SHARE * pair.pck_length
        features.append(score_features(found))
        labels.append((found.points1 - points1).norm(dim=-1) <= limit)
    return _fit_matches(features, labels) if features else Calibration()


def _fit_matches(features: list[Tensor], labels: list[Tensor]) -> Calibration:
    bias, *weights = _fit_logistic(torch.cat(features), torch.cat(labels))
    return Calibration(
        match_bias=bias, match_similarity=weights[0], match_margin=weights[1], match_miss=weights[2]
    )


def _is_correct(pair: PairBatch, corners: Tensor, found: PointMatches) -> Tensor:
    """Which matches of the corners of image 0 are correct."""
    is_valid = pair.is_valid[0]
    H_0to1 = homography_from_points(pair.points0[0][is_valid], pair.points1[0][is_valid])
    true_points = warp_points(corners[None], H_0to1[None])[0]
    is_visible = is_inside(true_points, (pair.image1.shape[-2], pair.image1.shape[-1]))
    is_near: Tensor = (found.points1 - true_points).norm(dim=-1) <= CORRECT_WITHIN
    return is_visible & is_near


def _match_corners(
    model: CorrespondenceNetwork, first: PairBatch, second: PairBatch
) -> tuple[Tensor, PointMatches]:
    """Corners of image 0 of the first pair, and their matches in image 1 of the second."""
    corners = detect_corners(first.image0[0], _CORNERS).points.to(first.image0.device)
    map0, map1 = model.encode(first.image0), model.encode(second.image1)
    return corners, match_points(map0, map1, corners, second_best_radius=MatchConfig().second_best_radius)


def _support(corners: Tensor, found: PointMatches, calibration: Calibration) -> float:
    is_mutual = found.round_trip_errors <= MatchConfig().mutual_tolerance
    return pair_support(score_matches(found, calibration), is_mutual, corners, found.points1)


def _fit_logistic(features: Tensor, labels: Tensor) -> list[float]:
    """Bias and weights of a logistic regression, by Newton's method with a small ridge."""
    inputs = torch.cat([torch.ones_like(features[:, :1]), features], dim=1).double()
    targets = labels.double()
    ridge = 1e-3 * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    weights = inputs.new_zeros(inputs.shape[1])
    for _ in range(50):
        probability = torch.sigmoid(inputs @ weights)
        gradient = inputs.t() @ (probability - targets) + ridge @ weights
        curvature = (inputs * (probability * (1 - probability))[:, None]).t() @ inputs + ridge
        step = torch.linalg.solve(curvature, gradient)
        weights = weights - step * min(1.0, 4.0 / step.norm().item()) if step.norm() > 0 else weights
        if step.square().mean() < 1e-16:
            break
    return [round(value, 4) for value in weights.tolist()]
