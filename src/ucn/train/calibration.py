"""Calibration: fits logistic curves that turn similarities into probabilities, on held-out pairs.

Some image pairs from photographs show one photograph under a random warp; others show two different ones, or
images with nothing to see: noise, blank surfaces and patterns. A match is correct if it lies within 3 px of
the ground truth, or within a tenth of `pck_length` for pairs that have one. Matches are guided by
neighbourhood consensus, as `Matcher` guides them.

The calibration of the network that training started from is the prior: few held-out matches hardly change it,
many override it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import scipy.optimize
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.config import Calibration, MatchConfig, SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.evaluate.pair_score.drawn import pair_drawn
from ucn.geometry.coords import is_inside
from ucn.geometry.warp import homography_from_points, warp_points
from ucn.matching.cells import PointMatches, match_points, measure_guidance
from ucn.matching.keypoints import detect_corners
from ucn.matching.scoring import (
    MATCH_INPUTS,
    PAIR_INPUTS,
    measure_uniformity,
    pair_features,
    score_features,
    score_matches,
)
from ucn.nn import CorrespondenceNetwork
from ucn.types import FeatureMap, PairBatch

CORRECT_WITHIN = 3.0
"""Pixels within which a match is correct."""
CORRECT_WITHIN_SHARE = 0.1
"""Share of `pck_length` within which a match is correct, where a pair has one."""
MIN_POINTS = 200
"""Held-out matches below which the curve of matches stays that of the start."""
PRIOR_MATCHES = 1000
"""Held-out matches that the start's curve of matches counts as much as: about fifteen pairs of 68 landmarks,
since matches of one pair are not independent."""
PRIOR_PAIRS = 10
"""Held-out image pairs that the start's curve of pairs counts as much as."""
_CORNERS = 500
_HOMOGRAPHY_POINTS = 4
# Of the bias, then of the weights, in the order of `MATCH_INPUTS`: more similar, more distinct, smaller
# round-trip error and more support never mean less likely, more uniform images never more likely.
_UP, _DOWN = (0.0, math.inf), (-math.inf, 0.0)
_MATCH_BOUNDS = ((-math.inf, math.inf), _UP, _UP, _DOWN, _UP, _DOWN)
_MATCH_FIELDS = ("match_bias", *(f"match_{name}" for name in MATCH_INPUTS))
_PAIR_BOUNDS = ((-math.inf, math.inf), (1.0, math.inf), _UP, _DOWN)
_PAIR_FIELDS = ("pair_bias", *(f"pair_{name}" for name in PAIR_INPUTS))
_EMPTY_SHARE = 0.5  # pairs with an image with nothing to see, per pair of one photograph
_RIDGE = 1e-3  # keeps weights of inputs that are 0 in all data

_LOGGER = logging.getLogger(__name__)


@torch.no_grad()
def fit_calibration(
    model: CorrespondenceNetwork,
    bank: ImageBank,
    synthetic: SyntheticConfig,
    pairs: int,
    seed: int,
    start: Calibration,
) -> Calibration:
    """Fits the calibration of a network on photographs.

    Args:
        model: in evaluation mode, on the bank's device.
        bank: held-out photographs.
        synthetic: settings of their pairs.
        pairs: number of pairs of one photograph, and of pairs of two.
        seed: of the pairs.
        start: the prior.

    Returns:
        The fitted curves. A curve without data is that of the start: that of pairs for a single photograph,
        both for photographs too small to show the same points in two views.
    """
    generator = torch.Generator(bank.canvases.device).manual_seed(seed)
    batch = make_pairs(bank, pairs, synthetic, generator)
    singles = [pair for pair in batch if int(pair.is_valid.sum()) >= _HOMOGRAPHY_POINTS]
    related, features, labels = [], [], []
    for pair in singles:
        corners, found = _match_corners(model, pair, pair)
        related.append((corners, found))
        features.append(score_features(found))
        labels.append(_is_correct(pair, corners, found))
    unrelated = [
        _match_corners(model, first, second)
        for first, second in zip(singles, singles[1:] + singles[:1], strict=True)
        if first.names != second.names
    ]
    has_unrelated = len(unrelated) > 0
    if singles:
        unrelated += _match_empty(model, singles, seed)
    for _, found in unrelated:
        features.append(score_features(found))
        labels.append(torch.zeros_like(found.similarities, dtype=torch.bool))
    matching = _fit_matches(features, labels, start)
    if not has_unrelated:  # a fit to related pairs alone would score every pair as related
        return matching
    inputs = torch.tensor([_pair_features(*entry, matching) for entry in related + unrelated])
    is_related = torch.tensor([True] * len(related) + [False] * len(unrelated))
    prior = [getattr(start, name) for name in _PAIR_FIELDS]
    found_pair = _fit_logistic(inputs, is_related, prior, PRIOR_PAIRS, _PAIR_BOUNDS)
    return replace(matching, **dict(zip(_PAIR_FIELDS, found_pair, strict=True)))


@torch.no_grad()
def fit_match_curve(
    model: CorrespondenceNetwork, batches: Iterable[PairBatch], start: Calibration
) -> Calibration:
    """Fits the curve of matches on annotated points; the curve of pairs is that of the start.

    Args:
        model: in evaluation mode, on the device of the batches.
        batches: held-out pairs.
        start: the prior; with fewer than `MIN_POINTS` points also the result, which is logged.
    """
    features, labels = [], []
    for pair in (pair for batch in batches for pair in batch if pair.is_valid.any()):
        points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
        map0, map1 = model.encode(pair.image0), model.encode(pair.image1)
        found = _match(map0, map1, points0)
        limit = CORRECT_WITHIN if pair.pck_length is None else CORRECT_WITHIN_SHARE * pair.pck_length
        features.append(score_features(found))
        labels.append((found.points1 - points1).norm(dim=-1) <= limit)
    return _fit_matches(features, labels, start)


def _fit_matches(features: list[Tensor], labels: list[Tensor], start: Calibration) -> Calibration:
    count = sum(map(len, labels))
    if count < MIN_POINTS:
        message = "calibration kept from the start: %d held-out points, at least %d needed"
        _LOGGER.warning(message, count, MIN_POINTS)
        return start
    prior = [getattr(start, name) for name in _MATCH_FIELDS]
    found = _fit_logistic(torch.cat(features), torch.cat(labels), prior, PRIOR_MATCHES, _MATCH_BOUNDS)
    return replace(start, **dict(zip(_MATCH_FIELDS, found, strict=True)))


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
    return _match_images(model, first.image0, second.image1)


def _match_images(
    model: CorrespondenceNetwork, image0: Tensor, image1: Tensor
) -> tuple[Tensor, PointMatches]:
    corners = detect_corners(image0[0], _CORNERS).points.to(image0.device)
    return corners, _match(model.encode(image0), model.encode(image1), corners)


def _match(map0: FeatureMap, map1: FeatureMap, points0: Tensor) -> PointMatches:
    radius, consensus = MatchConfig().second_best_radius, measure_guidance(map0, map1)
    return match_points(map0, map1, points0, second_best_radius=radius, consensus=consensus)


def _match_empty(
    model: CorrespondenceNetwork, pairs: Sequence[PairBatch], seed: int
) -> list[tuple[Tensor, PointMatches]]:
    """Matches of images with nothing to see, with each other and with photographs."""
    device = pairs[0].image0.device
    drawn = [images for _, images in pair_drawn([], seed)]
    chosen = drawn[:: max(1, len(drawn) // max(1, int(_EMPTY_SHARE * len(pairs))))]
    found = []
    for number, (first, second) in enumerate(chosen):
        image0, image1 = (image.render()[None].to(device) for image in (first, second))
        if number % 3 == 2:
            image1 = pairs[number % len(pairs)].image1
        found.append(_match_images(model, image0, image1))
    return [entry for entry in found if len(entry[0])]


def _pair_features(
    corners: Tensor, found: PointMatches, calibration: Calibration
) -> tuple[float, float, float]:
    """Inputs of the pair score, in the order of `PAIR_INPUTS`."""
    return pair_features(
        score_matches(found, calibration),
        found.round_trip_errors <= MatchConfig().mutual_tolerance,
        corners,
        found.points1,
        found.similarities,
        measure_uniformity(found),
    )


def _fit_logistic(
    features: Tensor,
    labels: Tensor,
    prior: Sequence[float],
    observations: float,
    bounds: Sequence[tuple[float, float]],
) -> list[float]:
    """Bias and weights of a logistic regression with a Gaussian prior (MAP) and bounds.

    The precision of the prior is the information that so many observations with these inputs have at most:
    it weighs the mean square by which the logits of the data differ from those of the prior.

    Args:
        features: (N, K) inputs; N may be 0.
        labels: (N,) bool.
        prior: (K + 1) bias and weights at the centre of the prior, moved into the bounds.
        observations: the number of observations that the prior counts as much as, 0 or more.
        bounds: (K + 1) least and largest values.

    Returns:
        (K + 1) values, rounded to four decimals; the prior without data.
    """
    inputs = features.double().cpu().numpy()
    inputs = np.concatenate([np.ones((len(inputs), 1)), inputs], axis=1)
    signs = np.where(labels.cpu().numpy(), 1.0, -1.0)
    lower, upper = np.array(bounds).T
    centre = np.clip(prior, lower, upper)
    moments = inputs.T @ inputs / 4
    precision = observations / max(1, len(inputs)) * moments + _RIDGE * np.eye(len(moments))
    # Weights are solved for in units in which the loss is about equally curved in all of them.
    units = 1 / np.sqrt(np.diag(moments + precision))

    def measure_loss(scaled: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = units * scaled
        logits = signs * (inputs @ weights)
        pull = precision @ (weights - centre)
        loss = np.logaddexp(0, -logits).sum() + (pull * (weights - centre)).sum() / 2
        gradient = pull - inputs.T @ (signs * scipy.special.expit(-logits))
        return float(loss), units * gradient

    found = scipy.optimize.minimize(
        measure_loss,
        centre / units,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(lower / units, upper / units, strict=True)),
        options={"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9},
    )
    return [round(float(value), 4) for value in units * found.x]
