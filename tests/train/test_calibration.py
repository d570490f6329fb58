"""Curves that turn similarities into probabilities, also where there is little to fit them on."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.photo_cases import write_photos
from ucn.config import Calibration, ModelConfig, SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.calibration import (
    _MATCH_BOUNDS,
    MIN_POINTS,
    _fit_logistic,
    _fit_matches,
    fit_calibration,
    fit_match_curve,
)

SYNTHETIC = SyntheticConfig(side=64, points=50, photometric=0.0, max_scale=1.2, upright_share=1.0)
FREE = (-math.inf, math.inf)
START = Calibration(
    match_bias=-4.6,
    match_similarity=6.1,
    match_margin=10.6,
    match_round_trip=-1.7,
    pair_bias=-2.8,
    pair_support=80.0,
)


@pytest.fixture(scope="module")
def model() -> CorrespondenceNetwork:
    return build_model(ModelConfig(dim=8, transformer="none")).eval()


def fit(model: CorrespondenceNetwork, folder: Path, sizes_hw: list[tuple[int, int]]) -> Calibration:
    bank = ImageBank(write_photos(folder / "photos", sizes_hw, grain=8), 192, "cpu")
    return fit_calibration(model, bank, SYNTHETIC, 6, 0, Calibration())


def fit_slowly(
    features: Tensor,
    labels: Tensor,
    prior: list[float],
    observations: float,
    bounds: Sequence[tuple[float, float]],
) -> list[float]:
    """The maximum a posteriori, one weight after the other, each by bisection of its derivative."""
    rows = np.concatenate([np.ones((len(features), 1)), features.numpy()], axis=1)
    signs = np.where(labels.numpy(), 1.0, -1.0)
    weights = [min(max(value, low), high) for value, (low, high) in zip(prior, bounds, strict=True)]
    centre = list(weights)
    for _ in range(150):
        for number, (low, high) in enumerate(bounds):

            def slope(value: float, number: int = number) -> float:
                logits = rows @ [*weights[:number], value, *weights[number + 1 :]]
                change = observations / 4 * (logits - rows @ centre)  # of n observations with p = 1/2
                own = (rows[:, number] * change).mean() - (
                    rows[:, number] * signs / (1 + np.exp(signs * logits))
                ).sum()
                return float(own) + 1e-3 * (value - centre[number])

            low, high = max(low, -200.0), min(high, 200.0)
            for _ in range(40):
                middle = (low + high) / 2
                low, high = (low, middle) if slope(middle) > 0 else (middle, high)
            weights[number] = (low + high) / 2
    return weights


def test_logistic_regression_by_hand() -> None:
    # At 0 one of four is right, at 1 three of four: logit(1/4) = -log 3, and log 9 more at 1.
    features = torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 1]).repeat(250)[:, None]
    labels = torch.tensor([True, False, False, False, True, True, True, False]).repeat(250)
    bias, weight = _fit_logistic(features, labels, [0, 0], 0, [FREE, FREE])
    assert bias == pytest.approx(-math.log(3), abs=0.01)
    assert weight == pytest.approx(math.log(9), abs=0.01)


def test_the_prior_by_hand() -> None:
    # One input of 1: the bias alone, with a precision of 8 / 4 = 2. Of 8 observations all are right, so
    # 8 (1 - sigmoid(b)) = 2 (b - 0) where b = 1.6169.
    labels = torch.ones(8, dtype=torch.bool)
    (bias,) = _fit_logistic(torch.zeros(8, 0), labels, [0.0], 8, [FREE])
    assert 8 * (1 - 1 / (1 + math.exp(-bias))) == pytest.approx(2 * bias, abs=0.01)


@pytest.mark.parametrize("observations", [0.0, 5.0, 300.0])
@pytest.mark.parametrize("is_bounded", [False, True])
def test_the_fit_agrees_with_a_slow_search(observations: float, is_bounded: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    features = torch.rand(60, 3, generator=generator) * torch.tensor([1.0, 0.3, 0.05])
    logits = features @ torch.tensor([2.0, -6.0, 30.0]) - 0.5
    labels = torch.rand(60, generator=generator) < logits.sigmoid()
    prior = [-1.0, 1.5, 4.0, 2.0]
    bounds = _MATCH_BOUNDS[:4] if is_bounded else [FREE] * 4
    found = _fit_logistic(features, labels, prior, observations, bounds)
    expected = fit_slowly(features, labels, prior, observations, bounds)
    assert found == pytest.approx(expected, abs=2e-3)
    if is_bounded:
        assert found[1] >= 0 and found[2] >= 0 and found[3] == 0


def test_few_observations_hardly_move_the_prior_and_many_override_it() -> None:
    generator = torch.Generator().manual_seed(0)
    prior, truth = [-4.0, 6.0, 10.0, -1.5], torch.tensor([1.0, 2.0, 5.0, -3.0])
    features = torch.rand(100_000, 3, generator=generator)
    labels = torch.rand(100_000, generator=generator) < (features @ truth[1:] + truth[0]).sigmoid()
    few = _fit_logistic(features[:10], labels[:10], prior, 500, _MATCH_BOUNDS[:4])
    assert few == pytest.approx(prior, abs=0.15)
    many = _fit_logistic(features, labels, prior, 500, _MATCH_BOUNDS[:4])
    assert many == pytest.approx(truth.tolist(), abs=0.3)


def test_logistic_regression_of_one_class_and_of_nothing() -> None:
    bias, weight = _fit_logistic(torch.rand(20, 1), torch.ones(20, dtype=torch.bool), [0, 0], 0, [FREE] * 2)
    assert math.isfinite(bias) and math.isfinite(weight) and bias > 0
    nothing = torch.zeros(0, 2), torch.zeros(0, dtype=torch.bool)
    assert _fit_logistic(*nothing, [1, 2, 3], 50, [FREE] * 3) == [1, 2, 3]
    assert _fit_logistic(*nothing, [1, 2, 3], 50, [FREE, (4, 5), (0, 1)]) == [1, 4, 1]


def test_a_seed_fixes_the_calibration(model: CorrespondenceNetwork, tmp_path: Path) -> None:
    found = fit(model, tmp_path, [(128, 128), (100, 130), (130, 100)])
    assert found == fit(model, tmp_path, [(128, 128), (100, 130), (130, 100)])
    assert found != Calibration()
    assert all(math.isfinite(value) for value in found.to_dict().values())
    assert found.match_similarity > 0 or found.match_margin > 0
    assert found.pair_support > 0  # pairs of one photograph have more support than pairs of two


def test_one_photograph_gives_no_unrelated_pairs(model: CorrespondenceNetwork, tmp_path: Path) -> None:
    found = fit(model, tmp_path, [(128, 128)])
    assert (found.pair_bias, found.pair_support) == (Calibration.pair_bias, Calibration.pair_support)
    assert found.match_bias != Calibration.match_bias


def test_a_curve_of_matches_from_pairs_of_a_data_set(model: CorrespondenceNetwork, tmp_path: Path) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(128, 128)] * 3, grain=8), 192, "cpu")
    batch = make_pairs(bank, 8, SYNTHETIC, torch.Generator().manual_seed(0))
    assert int(batch.is_valid.sum()) >= MIN_POINTS
    found = fit_match_curve(model, [batch], START)
    assert found == fit_match_curve(model, list(batch), START)
    assert (found.pair_bias, found.pair_support) == (START.pair_bias, START.pair_support)
    assert found.match_bias != START.match_bias
    assert found.match_similarity >= 0 and found.match_margin >= 0 and found.match_round_trip <= 0
    # Within a tenth of a huge length every match is right.
    lenient = fit_match_curve(model, [replace(batch, pck_length=torch.full((8,), 1e4))], START)
    assert lenient.match_bias > found.match_bias


def test_too_few_points_keep_the_calibration_of_the_start(
    model: CorrespondenceNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(128, 128)] * 3, grain=8), 192, "cpu")
    batch = make_pairs(bank, 2, SYNTHETIC, torch.Generator().manual_seed(0))
    count = int(batch.is_valid.sum())
    assert 0 < count < MIN_POINTS
    assert fit_match_curve(model, [batch], START) == START
    message = "calibration kept from the start: {} held-out points, at least 200 needed"
    assert [record.getMessage() for record in caplog.records] == [message.format(count)]
    empty = replace(batch, is_valid=torch.zeros_like(batch.is_valid))
    assert fit_match_curve(model, [empty], START) == fit_match_curve(model, [], START) == START
    assert caplog.records[-1].getMessage() == message.format(0)


def test_scores_stay_near_those_of_the_start() -> None:
    """Four held-out pairs of 68 landmarks, most of them right, some of these with a large round trip."""
    generator = torch.Generator().manual_seed(0)
    similarity, margin = (0.6 + 0.3 * torch.rand(272, 1, generator=generator) for _ in range(2))
    features = torch.cat([similarity, margin - 0.5, torch.rand(272, 1, generator=generator)], dim=1)
    labels = torch.rand(272, generator=generator) < 0.7 + 0.2 * features[:, 2]
    usual = torch.tensor([0.9, 0.0]).expand(272, 2)  # support and uniformity
    found = _fit_matches([torch.cat([features, usual], dim=1)], [labels], START)
    before, after = (
        torch.sigmoid(
            c.match_bias
            + features @ torch.tensor([c.match_similarity, c.match_margin, c.match_round_trip])
            + 0.9 * c.match_support
        )
        for c in (START, found)
    )
    assert (after - before).abs().mean() < 0.06 and (after - before).abs().max() < 0.2
    assert found.match_round_trip <= 0
    loose = _fit_logistic(features, labels, [0] * 4, 0, [FREE] * 4)
    assert loose[3] > 0 and loose[1] < 0.5  # without the prior the curve says the opposite


@pytest.mark.parametrize("sizes_hw", [[(1, 60), (128, 128)], [(1, 60)]])
def test_photographs_too_small_for_ground_truth_are_left_out(
    model: CorrespondenceNetwork, tmp_path: Path, sizes_hw: list[tuple[int, int]]
) -> None:
    found = fit(model, tmp_path, sizes_hw)
    assert all(math.isfinite(value) for value in found.to_dict().values())
    if len(sizes_hw) == 1:
        assert found == Calibration()
