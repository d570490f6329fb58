"""Pairs without any wait for the GPU against `Matcher.match_features`, on the CPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import Calibration, MatchConfig, ModelConfig
from ucn.matching.cuda import pairs
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.runtime.graphs import RecurringGraphs
from ucn.types import Features, Matches
from ucn.weights import LoadedWeights, WeightsInfo


def make_matcher(**settings: object) -> Matcher:
    torch.manual_seed(0)
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    loaded = LoadedWeights(build_model(ModelConfig(dim=32, transformer="none")), Calibration(), info, {})
    return Matcher(loaded, config=MatchConfig.from_dict(settings), device="cpu")


def draw(seed: int, shift: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(1, 3, 200, 280)
    for step in (4, 9, 23):
        noise = torch.rand(1, 3, 200 // step + 2, 280 // step + 2, generator=generator)
        total += F.interpolate(noise, (200, 280), mode="bicubic", align_corners=False)
    return (total[0, :, :192, shift : shift + 264] / 3).clamp(0, 1)


def match(matcher: Matcher, features0: Features, features1: Features, **settings: bool) -> Matches | None:
    keypoints, is_keypoint = pairs.pad_keypoints(features0.keypoints)
    padded = replace(features0, keypoints=keypoints)
    calibration = Calibration()
    values = pairs.match_keypoints(padded, features1, is_keypoint, matcher.config, calibration, **settings)
    return pairs.read_matches(values, features0, features1, matcher.config, calibration)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"consensus": False, "ratio": 0.97, "use_alignment": False},
        {"use_mutual": False, "min_score": 0.0, "use_views": False, "second_best_radius": 12.0},
    ],
)
def test_matches_are_those_of_the_reference(settings: dict[str, object]) -> None:
    matcher = make_matcher(max_keypoints=300, **settings)
    features0, features1 = matcher.extract(draw(0)), matcher.extract(draw(0, shift=9))
    expected = matcher.match_features(features0, features1)
    found = match(matcher, features0, features1)
    assert found is not None and len(found) == len(expected) > 50
    np.testing.assert_array_equal(found.points0, expected.points0)
    np.testing.assert_allclose(found.points1, expected.points1, atol=1e-3)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_array_equal(found.is_mutual, expected.is_mutual)
    assert found.pair_score == pytest.approx(expected.pair_score, abs=1e-6)
    assert (found.image0_hw, found.image1_hw) == (expected.image0_hw, expected.image1_hw)
    assert (found.view_change is None) == (expected.view_change is None)
    if found.view_change is not None and expected.view_change is not None:
        assert found.view_change.scale == pytest.approx(expected.view_change.scale)


def test_images_without_any_match() -> None:
    matcher = make_matcher(use_views=False)
    features0 = matcher.extract(draw(0))
    blank = matcher.extract(torch.full((3, 192, 264), 0.5))
    found = match(matcher, features0, blank)
    assert found is not None and len(found) == len(matcher.match_features(features0, blank)) == 0


def test_pairs_that_the_reference_must_match() -> None:
    matcher = make_matcher(max_keypoints=100)
    features0 = matcher.extract(draw(0))
    other = matcher.extract(draw(1))  # agrees on nothing, so other views are tried
    assert match(matcher, features0, other) is None
    damaged = replace(features0, map=replace(features0.map, features=features0.map.features * torch.nan))
    assert match(matcher, features0, damaged) is None
    assert match(matcher, features0, features0, tests_surface=True) is not None
    turned = replace(features0, grey=None if features0.grey is None else features0.grey.flip(0, 1))
    assert match(matcher, features0, turned, tests_surface=True) is None


def test_what_is_taken() -> None:
    matcher = make_matcher(max_keypoints=100)
    features = matcher.extract(draw(0))
    assert pairs.can_match(features, features)
    assert not pairs.can_match(replace(features, keypoints=features.keypoints[:0]), features)
    assert not pairs.can_match(features, replace(features, grey=None))
    assert not pairs.can_match(replace(features, view=torch.eye(2, 3)), features)
    keypoints, is_keypoint = pairs.pad_keypoints(features.keypoints)
    assert len(keypoints) == len(is_keypoint) == 1024 and int(is_keypoint.sum()) == 100


def test_without_a_gpu_nothing_is_captured() -> None:
    matcher = make_matcher(max_keypoints=100)
    features = matcher.extract(draw(0))
    graphs, settings = RecurringGraphs(2), (matcher.config, Calibration())
    found = [pairs.match_by_graphs(graphs, features, features, *settings) for _ in range(3)]
    assert all(each is not None and len(each) > 20 for each in found)
    assert len(graphs) == 0
    blind = replace(features, grey=None)
    assert pairs.match_by_graphs(graphs, features, blind, *settings) is None
