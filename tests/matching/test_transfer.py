"""Votes of labelled images: cases worked out by hand, a slow reference, and `Matcher.transfer`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ucn.config import MIN_VISIBLE_SCORE, Calibration, ModelConfig
from ucn.errors import ConfigError, PointsError
from ucn.matching.matcher import Matcher
from ucn.matching.transfer import (
    AGREEMENT_SHARE,
    MIRROR_TOLERANCE,
    Votes,
    combine_votes,
    decide,
    rate_layouts,
)
from ucn.nn import build_model
from ucn.weights import LoadedWeights, WeightsInfo

NAN = (np.nan, np.nan)
SHAPE = np.array([(10.0, 10.0), (30.0, 14.0), (52.0, 30.0), (20.0, 40.0)])  # its mirror image differs


def make_votes(places: Any, scores: Any, layouts: Any = None) -> Votes:
    """Votes of images that label all points."""
    where, likely = np.array(places, np.float32), np.array(scores, np.float32)
    known = np.full(where.shape, np.nan) if layouts is None else np.array(layouts, np.float64)
    return Votes(where, likely, np.ones(likely.shape, np.bool_), known)


def mirror(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return points * (-1, 1) + (60, 0)


def combine_slowly(
    places: NDArray[np.float64], scores: NDArray[np.float64], radius: float
) -> tuple[list[list[float]], list[float], list[int]]:
    """From the definition, point by point, in plain Python."""
    points, agreed, counts = [], [], []
    for column in range(places.shape[1]):
        votes = [
            (float(x), float(y), float(score))
            for (x, y), score in zip(places[:, column], scores[:, column], strict=True)
            if math.isfinite(x) and score > 0
        ]
        if not votes:
            points.append([math.nan, math.nan])
            agreed.append(0.0)
            counts.append(0)
            continue

        def weigh(vote: tuple[float, float, float], x: float, y: float) -> float:
            return vote[2] * math.exp(-((vote[0] - x) ** 2 + (vote[1] - y) ** 2) / (2 * radius**2))

        x, y, _ = max(votes, key=lambda vote: sum(weigh(other, vote[0], vote[1]) for other in votes))
        for _ in range(10):
            weights = [weigh(vote, x, y) for vote in votes]
            total = sum(weights)
            x, y = (
                sum(w * vote[axis] for w, vote in zip(weights, votes, strict=True)) / total for axis in (0, 1)
            )
        points.append([x, y])
        agreed.append(sum(weigh(vote, x, y) for vote in votes) / len(places))
        counts.append(sum(math.hypot(vote[0] - x, vote[1] - y) <= 2 * radius for vote in votes))
    return points, agreed, counts


def test_a_single_vote_is_the_answer() -> None:
    points, scores, votes = combine_votes([[(3.0, 4.0), NAN]], [[0.75, 0.9]], radius=2.0)
    np.testing.assert_array_equal(points, [(3.0, 4.0), NAN])
    np.testing.assert_array_equal(scores, [0.75, 0.0])
    np.testing.assert_array_equal(votes, [1, 0])


def test_two_equal_votes_meet_and_a_third_far_away_counts_nothing() -> None:
    places = [[(10.0, 5.0)], [(12.0, 5.0)], [(500.0, 500.0)]]
    points, scores, votes = combine_votes(places, [[0.6], [0.6], [0.9]], radius=4.0)
    np.testing.assert_allclose(points, [(11.0, 5.0)], atol=1e-4)
    # Two votes one pixel from the mode, of three labelled images.
    np.testing.assert_allclose(scores, 2 * 0.6 * math.exp(-1 / 32) / 3, rtol=1e-6)
    assert votes.tolist() == [2]


def test_a_confident_vote_outweighs_two_doubtful_ones() -> None:
    places = [[(0.0, 0.0)], [(100.0, 0.0)], [(100.0, 0.0)]]
    points, scores, _ = combine_votes(places, [[0.9], [0.3], [0.3]], radius=5.0)
    np.testing.assert_allclose(points, [(0.0, 0.0)], atol=1e-6)
    np.testing.assert_allclose(scores, [0.3], rtol=1e-6)


def test_only_images_that_label_a_point_count_in_its_score() -> None:
    places, scores = [[(5.0, 5.0)], [NAN], [NAN]], [[0.8], [0.0], [0.0]]
    is_labelled = [[True], [True], [False]]  # the second shows that it is hidden
    assert combine_votes(places, scores, 2.0, is_labelled)[1] == pytest.approx([0.4])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_nothing_to_combine(shape: tuple[int, int]) -> None:
    points, scores, votes = combine_votes(np.zeros((*shape, 2)), np.zeros(shape), radius=1.0)
    assert points.shape == (shape[1], 2)
    assert np.isnan(points).all()
    assert scores.tolist() == votes.tolist() == [0] * shape[1]


def test_as_the_definition() -> None:
    rng = np.random.default_rng(0)
    places, scores = rng.uniform(0, 60, (7, 20, 2)), rng.uniform(0, 1, (7, 20))
    places[rng.random((7, 20)) < 0.2] = np.nan
    scores[rng.random((7, 20)) < 0.2] = 0
    places[:, 3] = np.nan
    points, agreed, votes = combine_votes(places, scores, 9.0)
    expected = combine_slowly(places, scores, 9.0)
    np.testing.assert_allclose(points, expected[0], rtol=1e-5)
    np.testing.assert_allclose(agreed, expected[1], rtol=1e-5)
    np.testing.assert_array_equal(votes, expected[2])


def test_visible_from_the_threshold_on() -> None:
    low = MIN_VISIBLE_SCORE - 0.01
    votes = make_votes([[(1.0, 1.0), (2.0, 2.0), NAN]], [[MIN_VISIBLE_SCORE + 0.01, low, 1.0]])
    found = decide(votes, (50, 100))
    assert found.is_visible.tolist() == [True, False, False]
    assert repr(found) == "TransferredPoints(1 of 3 visible, image 100 × 50)"
    assert decide(make_votes([[NAN]], [[0.0]]), (50, 100), min_score=0.0).is_visible.tolist() == [False]


def test_the_kernel_grows_with_the_image() -> None:
    far = 2 * AGREEMENT_SHARE * 100
    votes = make_votes([[(10.0, 0.0)], [(10.0 + far, 0.0)]], [[0.5], [0.5]])
    assert decide(votes, (20, 1000)).scores > 1.5 * decide(votes, (20, 100)).scores


def test_layouts_fit_up_to_a_similarity_or_its_mirror_image() -> None:
    turned = SHAPE @ [(0.0, 2.0), (-2.0, 0.0)] + (70, 5)  # by 90 degrees, enlarged
    fits = rate_layouts([SHAPE, mirror(SHAPE), SHAPE * (1, 0)], turned, np.ones(4))
    np.testing.assert_allclose(fits[0, 0], 1)
    np.testing.assert_allclose(fits[1], fits[0, ::-1])
    assert fits[0, 1] < 0.7
    assert fits[2, 0] == pytest.approx(fits[2, 1])  # on a line, both are the same
    shifted = turned + np.array([(9.0, 0), (0, 0), (0, 0), (0, 0)])
    assert rate_layouts([SHAPE], shifted, np.ones(4))[0, 0] < 0.999
    np.testing.assert_allclose(rate_layouts([SHAPE], shifted, [0, 1, 1, 1])[0, 0], 1)


@pytest.mark.parametrize("layout", [[*SHAPE[:2], NAN, NAN], [(5.0, 5.0)] * 4])
def test_a_layout_without_extent_or_third_point_tells_nothing(layout: Any) -> None:
    assert rate_layouts([layout], SHAPE, np.ones(4)).tolist() == [[1, 1]]
    assert rate_layouts([SHAPE], layout, np.ones(4)).tolist() == [[1, 1]]


def test_labelled_images_in_another_pose_count_less() -> None:
    layouts = np.stack([SHAPE, SHAPE + 3, SHAPE[[2, 0, 3, 1]]])
    places = np.repeat(SHAPE[None], 3, axis=0)
    places[2, 3] = (90, 90)
    found = decide(make_votes(places, np.full((3, 4), 0.9), layouts), (100, 100))
    np.testing.assert_allclose(found.points, SHAPE, atol=1e-4)
    np.testing.assert_allclose(found.scores[:3], 0.9, rtol=1e-6)
    fit = rate_layouts(layouts, SHAPE, found.scores)[2, 0]
    weight = math.exp(0.4 * 3 * (fit - 1))
    assert found.scores[3] == pytest.approx(0.9 * 2 / (2 + weight), rel=0.01)


def test_a_mirrored_layout_lowers_the_scores_of_sides_alone() -> None:
    votes = make_votes([SHAPE], [[0.9] * 4], [mirror(SHAPE)])
    names = ["beak", "left eye", "R_Leg", "brightness"]
    found = decide(votes, (100, 100), names=names)
    np.testing.assert_array_equal(found.points, decide(votes, (100, 100)).points)
    plain, mirrored = rate_layouts([mirror(SHAPE)], SHAPE, np.ones(4))[0]
    factor = math.exp(-(mirrored - plain) / MIRROR_TOLERANCE)
    np.testing.assert_allclose(found.scores, [0.9, 0.9 * factor, 0.9 * factor, 0.9], rtol=1e-5)
    same = decide(make_votes([SHAPE], [[0.9] * 4], [SHAPE]), (100, 100), names=names)
    np.testing.assert_allclose(same.scores, 0.9, rtol=1e-6)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(ModelConfig(dim=32, transformer="none"))
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    return Matcher(LoadedWeights(model, Calibration(), info, {}), device="cpu", use_views=False)


@pytest.fixture(scope="module")
def image() -> Tensor:
    noise = torch.rand(1, 3, 16, 22, generator=torch.Generator().manual_seed(0))
    return F.interpolate(noise, (96, 132), mode="bicubic")[0].clamp(0, 1)


class TestMatcher:
    """`Matcher.transfer` with an untrained network, which finds what looks the same."""

    def test_one_labelled_image_answers_as_a_pair(self, matcher: Matcher, image: Tensor) -> None:
        points = [(40.0, 30.0), NAN, (90.5, 60.0)]
        found = matcher.transfer([(image, points)], image)
        pair = matcher.match(image, image, points=[points[0], points[2]])
        np.testing.assert_allclose(found.points[[0, 2]], pair.points1, atol=1e-4)
        np.testing.assert_allclose(found.scores[[0, 2]], pair.scores, atol=1e-6)
        assert np.isnan(found.points[1]).all()
        assert found.scores[1] == 0 and not found.is_visible[1]
        assert found.image_hw == (96, 132)

    def test_labelled_images_share_the_points(self, matcher: Matcher, image: Tensor) -> None:
        features = matcher.extract(image[:, :, 8:])
        left, right = [(40.0, 30.0), NAN, NAN], [(32.0, 30.0), (62.0, 50.0), NAN]
        found = matcher.transfer([(image, left), (features, right)], matcher.extract(image))
        np.testing.assert_allclose(found.points[:2], [(40.0, 30.0), (70.0, 50.0)], atol=1.5)
        assert found.votes.tolist() == [2, 1, 0]
        # The second labelled image alone labels the second point: the first does not count.
        alone = matcher.transfer([(features, right)], image)
        np.testing.assert_allclose(found.scores[1], alone.scores[1], rtol=1e-3)

    def test_names_of_sides(self, matcher: Matcher, image: Tensor) -> None:
        points = np.array([(20.0, 20.0), (100.0, 24.0), (110.0, 80.0), (60.0, 70.0)])
        mirrored = [(131 - x, y) for x, y in points]
        reference = (image.flip(-1), mirrored)
        plain = matcher.transfer([reference], image).scores
        named = matcher.transfer([reference], image, names=["a", "b", "c", "left d"]).scores
        np.testing.assert_allclose(named[:3], plain[:3], rtol=1e-6)
        assert named[3] <= plain[3]
        with pytest.raises(PointsError, match="names must be one for each of 4 points, got 1"):
            matcher.transfer([reference], image, names=["a"])

    def test_no_points(self, matcher: Matcher, image: Tensor) -> None:
        assert len(matcher.transfer([(image, [])], image)) == 0

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            ([], "references must hold at least one labelled image"),
            ([[(1.0, 2.0)], [(1.0, 2.0), (3.0, 4.0)]], "reference 1 has 2, the first 1; give NaN"),
            ([[(1.0, 2.0, 3.0)]], r"points of reference 0 must be \(N, 2\), got \(1, 3\)"),
            ([[(1.0, 2.0), (3.0,)]], r"points of reference 0 must be \(N, 2\) numbers"),
            ([[NAN, (500.0, 2.0)]], r"reference 0, row 1: point \(500, 2\) lies outside the image"),
        ],
    )
    def test_wrong_points(self, matcher: Matcher, image: Tensor, points: list[Any], message: str) -> None:
        with pytest.raises(PointsError, match=message):
            matcher.transfer([(image, own) for own in points], image)

    def test_points_of_types_that_numpy_lacks(self, matcher: Matcher, image: Tensor) -> None:
        points = torch.tensor([[40.0, 30.0]], dtype=torch.bfloat16)
        assert len(matcher.transfer([(image, points)], image)) == 1

    def test_a_threshold_beyond_all_scores_is_refused(self, matcher: Matcher, image: Tensor) -> None:
        with pytest.raises(ConfigError, match=r"min_score must be in \[0, 1\], got 40"):
            matcher.transfer([(image, [(40.0, 30.0)])], image, min_score=40)

    def test_no_pairs_of_image_and_points(self, matcher: Matcher, image: Tensor) -> None:
        with pytest.raises(PointsError, match=r"references must hold \(image, points\), got a Tensor as 0"):
            matcher.transfer(image, image)  # type: ignore[arg-type]
