"""Similarities to probabilities: how sure a match is, and whether two images match at all."""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.config import Calibration
from ucn.matching import CheckedMatches


def score_features(found: CheckedMatches) -> Tensor:
    """What a match's score is computed from: (N, 3) similarity, lead over the rival, miss of the way back."""
    lead = found.similarities - found.rivals
    return torch.stack([found.similarities, lead, found.misses.clamp_max(16) / 16], dim=1)


def score_matches(found: CheckedMatches, calibration: Calibration) -> Tensor:
    """Estimated probabilities (N,) that matches are right; 0 where there is none."""
    features = score_features(found)
    weights = (calibration.match_similarity, calibration.match_margin, calibration.match_miss)
    logits = features @ features.new_tensor(weights) + calibration.match_bias
    return torch.where(found.points1[:, 0].isnan(), 0.0, torch.sigmoid(logits))


def pair_support(scores: Tensor, is_mutual: Tensor) -> float:
    """What a pair's score is computed from: the mean score, queries without a mutual match counting 0."""
    return torch.where(is_mutual, scores, 0.0).mean().item() if len(scores) else 0.0


def score_pair(scores: Tensor, is_mutual: Tensor, calibration: Calibration) -> float:
    """Estimated probability that two images show the same thing; 0 when nothing was asked."""
    if len(scores) == 0:
        return 0.0
    logit = calibration.pair_bias + calibration.pair_support * pair_support(scores, is_mutual)
    return torch.tensor(logit, dtype=torch.float64).sigmoid().item()
