import math

import pytest
import torch

from ucn.config import Calibration
from ucn.matching import CheckedMatches
from ucn.scoring import pair_support, score_features, score_matches, score_pair

NAN = math.nan
FOUND = CheckedMatches(
    points1=torch.tensor([[1.0, 2.0], [3.0, 4.0], [NAN, NAN]]),
    similarities=torch.tensor([0.9, 0.5, -1.0]),
    rivals=torch.tensor([0.4, 0.6, -1.0]),
    misses=torch.tensor([0.0, 8.0, math.inf]),
)
CALIBRATION = Calibration(
    match_bias=-1.0,
    match_similarity=2.0,
    match_margin=4.0,
    match_miss=-2.0,
    pair_bias=-3.0,
    pair_support=10.0,
)


def test_features_by_hand() -> None:
    expected = torch.tensor([[0.9, 0.5, 0.0], [0.5, -0.1, 0.5], [-1.0, 0.0, 1.0]])
    torch.testing.assert_close(score_features(FOUND), expected)


def test_scores_by_hand() -> None:
    # Logits: -1 + 1.8 + 2 - 0 = 2.8 and -1 + 1 - 0.4 - 1 = -1.4; nothing found scores 0.
    expected = [1 / (1 + math.exp(-2.8)), 1 / (1 + math.exp(1.4)), 0.0]
    assert score_matches(FOUND, CALIBRATION).tolist() == pytest.approx(expected)


def test_support_counts_matches_that_do_not_lead_back_as_nothing() -> None:
    scores, is_mutual = torch.tensor([0.8, 0.6, 0.4]), torch.tensor([True, False, True])
    assert pair_support(scores, is_mutual) == pytest.approx(0.4)
    assert score_pair(scores, is_mutual, CALIBRATION) == pytest.approx(1 / (1 + math.exp(-1.0)))


def test_nothing_asked() -> None:
    nothing = torch.zeros(0)
    assert pair_support(nothing, nothing.bool()) == 0
    assert score_pair(nothing, nothing.bool(), CALIBRATION) == 0


def test_extreme_curves_stay_probabilities() -> None:
    steep = Calibration(pair_bias=-5000.0)
    assert score_pair(torch.ones(1), torch.ones(1).bool(), steep) == 0.0
