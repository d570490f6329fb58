import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import Calibration
from ucn.knn import nearest
from ucn.matching import scoring
from ucn.matching.cells import PointMatches
from ucn.matching.consensus import measure_cosines
from ucn.matching.scoring import (
    measure_neighbour_consistency,
    measure_uniformity,
    measure_visibility,
    pair_features,
    score_features,
    score_matches,
    score_pair,
)
from ucn.types import FeatureMap

NAN = math.nan
FOUND = PointMatches(
    points1=torch.tensor([[1.0, 2.0], [3.0, 4.0], [NAN, NAN]]),
    similarities=torch.tensor([0.9, 0.5, -1.0]),
    second_best=torch.tensor([0.4, 0.6, -1.0]),
    round_trip_errors=torch.tensor([0.0, 8.0, math.inf]),
)
CALIBRATION = Calibration(
    match_bias=-1.0,
    match_similarity=2.0,
    match_margin=4.0,
    match_round_trip=-2.0,
    pair_bias=-3.0,
    pair_support=10.0,
)


def pair_support(scores: Tensor, is_mutual: Tensor, points0: Tensor, points1: Tensor) -> float:
    """The first input of the pair score."""
    nothing = torch.zeros(len(scores))
    return pair_features(scores, is_mutual, points0, points1, nothing, nothing)[0]


def test_features_by_hand() -> None:
    expected = torch.tensor([[0.9, 0.5, 0.0], [0.5, -0.1, 0.5], [-1.0, 0.0, 1.0]])
    torch.testing.assert_close(score_features(FOUND)[:, :3], expected)


def test_scores_by_hand() -> None:
    # Logits: -1 + 1.8 + 2 - 0 = 2.8 and -1 + 1 - 0.4 - 1 = -1.4; nothing found scores 0.
    expected = [1 / (1 + math.exp(-2.8)), 1 / (1 + math.exp(1.4)), 0.0]
    assert score_matches(FOUND, CALIBRATION).tolist() == pytest.approx(expected)


def test_support_counts_matches_that_are_not_mutual_as_zero() -> None:
    scores, is_mutual = torch.tensor([0.8, 0.6, 0.4]), torch.tensor([True, False, True])
    points = torch.tensor([[0.0, 0.0], [NAN, NAN], [9.0, 0.0]])
    assert pair_support(scores, is_mutual, points, points) == pytest.approx(0.4)
    expected = pytest.approx(1 / (1 + math.exp(-1.0)))
    assert (
        score_pair(scores, is_mutual, points, points, torch.ones(3), torch.zeros(3), CALIBRATION) == expected
    )


def test_similarity_of_a_pair_by_hand() -> None:
    # Weights 0.8, 0.6 and 0: the second is not mutual, and of three in a row no neighbour goes elsewhere.
    scores, is_mutual = torch.tensor([0.8, 0.9, 0.6]), torch.tensor([True, False, True])
    points = torch.tensor([[0.0, 0.0], [5.0, 0.0], [9.0, 0.0]])
    similarities, uniformity = torch.tensor([0.5, 0.9, 0.85]), torch.tensor([0.3, 0.6, 0.0])
    found = pair_features(scores, is_mutual, points, points, similarities, uniformity)
    assert found == pytest.approx((1.4 / 3, (0.8 * 0.5 + 0.6 * 0.85) / 1.4, 0.3))
    curves = replace(CALIBRATION, pair_support=0.0, pair_similarity=8.0)  # -3 + 8 · 0.65 = 2.2
    score = score_pair(scores, is_mutual, points, points, similarities, uniformity, curves)
    assert score == pytest.approx(1 / (1 + math.exp(-2.2)))
    # Where no match counts, there is no similarity either.
    nothing = pair_features(torch.zeros(3), is_mutual, points, points, similarities, torch.zeros(3))
    assert nothing == (0.0, 0.0, 0.0)


def test_support_counts_matches_whose_neighbours_went_elsewhere_as_nothing() -> None:
    ones, points0 = torch.ones(2), torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    # 10 px may become at most 2 · 10 + 4, and at least (10 - 4) / 2.
    for distance, support in ((24.0, 1.0), (24.1, 0.0), (3.0, 1.0), (2.9, 0.0)):
        points1 = torch.tensor([[5.0, 5.0], [5.0, 5.0 + distance]])
        assert pair_support(ones, ones.bool(), points0, points1) == support


def test_agreement_by_hand() -> None:
    # Six in a row, of which the last goes far away.
    points0 = torch.arange(6.0)[:, None] * torch.tensor([10.0, 0.0])
    points1 = points0.clone()
    points1[5] += torch.tensor([500.0, 0.0])
    # From image 0: match 5 is none of the four nearest of the matches 0, 1 and 2, one of those of 3 and 4,
    # and its own four all stay behind. From image 1 match 5 is nobody's neighbour.
    expected = torch.tensor([1.0, 1.0, 1.0, 0.75, 0.75, 0.0])
    torch.testing.assert_close(measure_neighbour_consistency(points0, points1), expected)


def test_agreement_against_a_slow_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    points0 = 100 * torch.rand(40, 2, generator=generator)
    points1 = points0 + 12 * torch.randn(40, 2, generator=generator)

    def keep(here: list[list[float]], there: list[list[float]], i: int) -> float:
        others = sorted((j for j in range(40) if j != i), key=lambda j: math.dist(here[i], here[j]))[:4]
        pairs = [(math.dist(here[i], here[j]), math.dist(there[i], there[j])) for j in others]
        return sum(b <= 2 * a + 4 and a <= 2 * b + 4 for a, b in pairs) / 4

    first, second = points0.tolist(), points1.tolist()
    expected = [keep(first, second, i) * keep(second, first, i) for i in range(40)]
    assert 0 < sum(expected) < 40
    assert measure_neighbour_consistency(points0, points1).tolist() == pytest.approx(expected)
    # Turned, and twice the size, they are neighbours still.
    turned = 2 * points0 @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]) + 300
    assert measure_neighbour_consistency(points0, turned).eq(1).all()


def test_agreement_of_few_and_of_equal_points() -> None:
    assert measure_neighbour_consistency(torch.zeros(0, 2), torch.zeros(0, 2)).shape == (0,)
    assert measure_neighbour_consistency(torch.zeros(1, 2), torch.ones(1, 2)).tolist() == [1.0]
    assert measure_neighbour_consistency(torch.zeros(7, 2), torch.ones(7, 2)).tolist() == [1.0] * 7


@pytest.mark.parametrize("step", [0.0, 0.1, 7.3, 40.0, 100.0])
@pytest.mark.parametrize("count", [1, 5, 6, 13, 14, 900])
def test_of_equally_near_neighbours_the_first_are_used(step: float, count: int) -> None:
    """Points of a grid, many of them at one place; a step of 0 has them anywhere."""
    points = 500 * torch.rand(count, 2, generator=torch.Generator().manual_seed(count))
    points = (points / step).round() * step if step else points
    asked = min(5, count)
    found = scoring._find_nearest(points, asked)
    assert torch.equal(found, nearest(points.double(), points.double(), asked).indices)
    distances = (points.double()[:, None] - points.double()).norm(dim=-1)
    wanted = distances.sort(dim=1, stable=True)
    if step in (40.0, 100.0):  # of which distances are not rounded
        assert torch.equal(found, wanted.indices[:, :asked])
    torch.testing.assert_close(distances.gather(1, found), wanted.values[:, :asked])


def test_agreement_of_points_of_other_types() -> None:
    points = 100 * torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    assert measure_neighbour_consistency(points.bfloat16(), points.bfloat16() + 1).eq(1).all()
    assert measure_neighbour_consistency(points.requires_grad_(), points + 1).eq(1).all()


def test_of_very_many_queries_an_even_share_is_used() -> None:
    generator = torch.Generator().manual_seed(0)
    points = 2000 * torch.rand(8193, 2, generator=generator)
    scores, is_mutual = torch.rand(8193, generator=generator), torch.rand(8193, generator=generator) < 0.5
    whole = [scores, is_mutual, points, points + 3]
    few = [each[::3] for each in whole]
    assert pair_support(*whole) == pair_support(*few)
    assert pair_support(*few) == pytest.approx(float((few[0] * few[1]).mean()))


def test_no_queries() -> None:
    nothing, nowhere = torch.zeros(0), torch.zeros(0, 2)
    assert pair_support(nothing, nothing.bool(), nowhere, nowhere) == 0
    assert score_pair(nothing, nothing.bool(), nowhere, nowhere, nothing, nothing, CALIBRATION) == 0
    assert pair_support(torch.ones(3), torch.zeros(3).bool(), torch.zeros(3, 2), torch.zeros(3, 2)) == 0


def test_extreme_curves_stay_probabilities() -> None:
    steep = Calibration(pair_bias=-5000.0)
    one, place = torch.ones(1), torch.ones(1, 2)
    assert score_pair(one, one.bool(), place, place, one, torch.zeros(1), steep) == 0.0


def test_support_and_uniformity_by_hand() -> None:
    # Uniformity 0.4 - 1.5 · 0.1 = 0.25; in full up to a similarity of 0.4 + 3 · 0.1 = 0.7, not at all from
    # half-way between that and 1.
    support, cosines = torch.tensor([0.5, 1.0, 0.0]), torch.tensor([0.4, 0.1])
    found = replace(FOUND, support=support, cosines=cosines)
    torch.testing.assert_close(measure_uniformity(found), torch.tensor([0.0, 0.25, 0.25]))
    between = replace(found, similarities=torch.full((3,), 0.775))
    torch.testing.assert_close(measure_uniformity(between), torch.full((3,), 0.125))
    curves = replace(CALIBRATION, match_support=2.0, match_uniformity=-4.0)
    # As above, with 2 · 0.5 - 0 = 1 and 2 · 1 - 4 · 0.25 = 1 more.
    expected = [1 / (1 + math.exp(-3.8)), 1 / (1 + math.exp(0.4)), 0.0]
    assert score_matches(found, curves).tolist() == pytest.approx(expected)
    # Uniformity counts only above 0, and unknown support as that of correct matches.
    unknown = replace(found, support=None, cosines=torch.tensor([0.1, 0.3]))
    assert score_features(unknown)[:2, 3:].tolist() == [[pytest.approx(0.9), 0.0]] * 2
    one, place = torch.ones(1), torch.ones(1, 2)
    curves = replace(CALIBRATION, pair_bias=1.0, pair_support=2.0, pair_uniformity=-8.0)
    pair = score_pair(one, one.bool(), place, place, one, torch.tensor([0.5]), curves)
    assert pair == pytest.approx(1 / (1 + math.exp(1.0)))  # 1 + 2 - 4


def test_a_blank_surface_has_nothing_to_see() -> None:
    grey = torch.zeros(60, 60)
    grey[:, 40:] = 1.0
    seen = measure_visibility(grey, torch.tensor([[10.0, 30.0], [38.0, 30.0], [NAN, NAN]]))
    assert seen.tolist() == [0.0, 1.0, 0.0]
    # A step of one grey level in half of the pixels: a standard deviation of half a level, of two.
    grey = torch.full((40, 40), 0.5)
    grey[:, 20:] += 1 / 255
    assert measure_visibility(grey, torch.tensor([[19.6, 20.0]])).item() == pytest.approx(0.25, abs=0.01)
    assert measure_visibility(grey, torch.zeros(0, 2)).shape == (0,)


def test_cosines_are_those_of_the_emptier_image() -> None:
    generator = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(5, 4, 6, generator=generator), dim=0)
    cosines = features.flatten(1).t() @ features.flatten(1)
    expected = torch.stack([cosines.mean(), cosines.std(correction=0)])
    varied = FeatureMap(features[None], 4, 2.0, (16, 24))
    torch.testing.assert_close(measure_cosines(varied, varied), expected, atol=1e-5, rtol=1e-4)
    same = FeatureMap(features[None, :, :1, :1].expand(1, 5, 4, 6), 4, 2.0, (16, 24))
    for pair in ((same, varied), (varied, same)):
        torch.testing.assert_close(measure_cosines(*pair), torch.tensor([1.0, 0.0]), atol=1e-3, rtol=0)
