"""Which levels of descriptors match a pair: the rule by hand, and what a `Matcher` does by it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import Calibration, MatchConfig, ModelConfig
from ucn.matching import matcher as matching
from ucn.matching.consensus import Consensus
from ucn.matching.levels import (
    MIN_LEAD,
    PARTS_SIDE,
    find_parts_scale,
    measure_agreement,
    shows_parts,
)
from ucn.matching.local_affine import Lattice, LocalAffine
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.types import FeatureMap, Features
from ucn.weights import LoadedWeights, WeightsInfo


def make_consensus(trust0: float, trust1: float, mutual_share: float) -> Consensus:
    """Consensus with two regions in each image, of a trust and of 0."""

    def make_prior(trust: float) -> LocalAffine:
        lattice = Lattice((0.0, 0.0), 8.0, (1, 2))
        identity = torch.eye(2).expand(2, 2, 2)
        return LocalAffine(lattice, identity, torch.zeros(2, 2), torch.ones(2), torch.tensor([trust, 0.0]))

    priors = make_prior(trust0), make_prior(trust1)
    return Consensus(torch.zeros(1, 1, 1, 1), 4, 4, 2.0, priors=priors, mutual_share=mutual_share)


def make_matcher(**settings: object) -> Matcher:
    model = build_model(ModelConfig(dim=16, transformer="none", semantic_dim=8))
    info = WeightsInfo.of_file(Path("random"), "0" * 64, 0)
    loaded = LoadedWeights(model, Calibration(), info, {})
    return Matcher(loaded, config=MatchConfig.from_dict(settings), device="cpu", engine="plain")


@pytest.fixture(scope="module")
def image() -> Tensor:
    """Random blobs, 232 × 168."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(1, 3, 168, 232)
    for step in (5, 11, 23):
        noise = torch.rand(1, 3, 168 // step + 2, 232 // step + 2, generator=generator)
        total += F.interpolate(noise, (168, 232), mode="bicubic", align_corners=False)
    return (total[0] / 3).clamp(0, 1)


def test_agreement_by_hand() -> None:
    # Mean trusts of 0.4 and 0.2, and the share.
    assert measure_agreement(make_consensus(0.8, 0.4, 0.25)) == pytest.approx(0.55)
    assert measure_agreement(None) == 0
    assert measure_agreement(replace(make_consensus(0.8, 0.4, 0.25), priors=None)) == 0


def test_all_levels_need_a_clear_lead() -> None:
    fine = make_consensus(0.4, 0.4, 0.2)
    assert not shows_parts(fine, fine)
    assert not shows_parts(make_consensus(0.4, 0.4, 0.2 + 0.9 * MIN_LEAD), fine)
    assert shows_parts(make_consensus(0.4, 0.4, 0.2 + 1.1 * MIN_LEAD), fine)


def test_large_images_are_reduced_for_parts_and_small_ones_kept() -> None:
    def make_features(size_hw: tuple[int, int]) -> Features:
        return Features(FeatureMap(torch.zeros(1, 1, 1, 1), 4, 2.0, size_hw), size_hw, torch.zeros(0, 2))

    assert find_parts_scale(make_features((2 * PARTS_SIDE, 100))) == 0.5
    assert find_parts_scale(make_features((PARTS_SIDE, 100))) == 1
    assert find_parts_scale(make_features((40, 50))) == 1


def test_one_surface_is_matched_by_fine_descriptors(image: Tensor) -> None:
    matcher = make_matcher()
    features = matcher.extract(image)
    assert features.map.semantic_dim == 0 and features.map.features.shape[1] == 16
    views = matcher.align_views(features, features)
    assert views.features0.map.semantic_dim == views.features1.map.semantic_dim == 0
    assert views.features0 is features
    matches = matcher.match_features(features, features)
    assert len(matches) > 50 and np.abs(matches.points0 - matches.points1).max() < 0.05


def test_parts_are_matched_by_all_levels_at_their_size(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Matcher, "_shows_same_surface", lambda *_: False)
    monkeypatch.setattr(matching, "shows_parts", lambda *_: True)
    matcher = make_matcher(use_alignment=False)
    features = matcher.extract(image)
    views = matcher.align_views(features, features)
    assert max(views.features0.map.image_hw) == PARTS_SIDE and views.features1.map.semantic_dim == 8
    points = [[30.0, 40.0], [200.0, 120.0]]
    found = matcher.match_features(features, features, points=points)
    np.testing.assert_allclose(found.points1, points, atol=4)  # a cell of the reduced image
    assert (found.image0_hw, found.image1_hw) == ((168, 232), (168, 232))


def test_small_images_are_encoded_again_for_parts(monkeypatch: pytest.MonkeyPatch, image: Tensor) -> None:
    monkeypatch.setattr(Matcher, "_shows_same_surface", lambda *_: False)
    monkeypatch.setattr(matching, "shows_parts", lambda *_: True)
    matcher = make_matcher()
    small = matcher.extract(image[:, :80, :100].contiguous())
    views = matcher.align_views(small, small)
    assert views.features0.map.image_hw == (80, 100) and views.features0.map.semantic_dim == 8
    kept = replace(small, image=None)
    assert matcher.align_views(kept, kept).features0.map.semantic_dim == 0


def test_without_a_lead_other_surfaces_keep_their_size(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Matcher, "_shows_same_surface", lambda *_: False)
    monkeypatch.setattr(matching, "shows_parts", lambda *_: False)
    matcher = make_matcher()
    features = matcher.extract(image)
    assert matcher.align_views(features, features).features0.map.semantic_dim == 0


def test_different_surfaces_fail_the_test(image: Tensor) -> None:
    matcher = make_matcher()
    blank = torch.full_like(image, 0.5)
    for other in (image.flip(0).rot90(1, (1, 2)).contiguous(), blank):
        views = matcher.align_views(matcher.extract(image), matcher.extract(other))
        assert not matcher._shows_same_surface(views)


def test_without_consensus_fine_descriptors_match(image: Tensor) -> None:
    matcher = make_matcher(consensus=False)
    features = matcher.extract(image)
    assert matcher.align_views(features, features).features1.map.semantic_dim == 0
    assert len(matcher.match_features(features, features)) > 50
