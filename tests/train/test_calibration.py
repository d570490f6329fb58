"""Curves that turn similarities into probabilities, also where there is little to fit them on."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.photo_cases import write_photos
from ucn.config import Calibration, ModelConfig, SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.calibration import _fit_logistic, fit_calibration, fit_match_curve

SYNTHETIC = SyntheticConfig(side=64, points=50, photometric=0.0, max_scale=1.2, upright_share=1.0)


@pytest.fixture(scope="module")
def model() -> CorrespondenceNetwork:
    return build_model(ModelConfig(dim=8, transformer="none")).eval()


def fit(model: CorrespondenceNetwork, folder: Path, sizes_hw: list[tuple[int, int]]) -> Calibration:
    bank = ImageBank(write_photos(folder / "photos", sizes_hw, grain=8), 192, "cpu")
    return fit_calibration(model, bank, SYNTHETIC, pairs=6, seed=0)


def test_logistic_regression_by_hand() -> None:
    # At 0 one of four is right, at 1 three of four: logit(1/4) = -log 3, and log 9 more at 1.
    features = torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 1]).repeat(250)[:, None]
    labels = torch.tensor([True, False, False, False, True, True, True, False]).repeat(250)
    bias, weight = _fit_logistic(features, labels)
    assert bias == pytest.approx(-math.log(3), abs=0.01)
    assert weight == pytest.approx(math.log(9), abs=0.01)


def test_logistic_regression_of_one_class_and_of_nothing_is_finite() -> None:
    bias, weight = _fit_logistic(torch.rand(20, 1), torch.ones(20, dtype=torch.bool))
    assert math.isfinite(bias) and math.isfinite(weight) and bias > 0
    assert _fit_logistic(torch.zeros(0, 2), torch.zeros(0, dtype=torch.bool)) == [0, 0, 0]


def test_a_seed_fixes_the_calibration(model: CorrespondenceNetwork, tmp_path: Path) -> None:
    found = fit(model, tmp_path, [(128, 128), (100, 130), (130, 100)])
    assert found == fit(model, tmp_path, [(128, 128), (100, 130), (130, 100)])
    assert found != Calibration()
    assert all(math.isfinite(value) for value in found.to_dict().values())
    assert found.match_similarity > 0 or found.match_margin > 0
    assert found.pair_support > 0  # pairs of one photograph have more support than pairs of two


def test_one_photograph_says_nothing_about_unrelated_pairs(
    model: CorrespondenceNetwork, tmp_path: Path
) -> None:
    found = fit(model, tmp_path, [(128, 128)])
    assert (found.pair_bias, found.pair_support) == (Calibration.pair_bias, Calibration.pair_support)
    assert found.match_bias != Calibration.match_bias


def test_a_curve_of_matches_from_pairs_of_a_data_set(model: CorrespondenceNetwork, tmp_path: Path) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(128, 128)] * 3, grain=8), 192, "cpu")
    batch = make_pairs(bank, 4, SYNTHETIC, torch.Generator().manual_seed(0))
    found = fit_match_curve(model, [batch])
    assert found == fit_match_curve(model, list(batch))
    assert (found.pair_bias, found.pair_support) == (Calibration.pair_bias, Calibration.pair_support)
    assert found.match_bias != Calibration.match_bias
    # Within a tenth of a huge length every match is right.
    lenient = fit_match_curve(model, [replace(batch, pck_length=torch.full((4,), 1e4))])
    assert lenient.match_bias > 3
    empty = replace(batch, is_valid=torch.zeros_like(batch.is_valid))
    assert fit_match_curve(model, [empty]) == fit_match_curve(model, []) == Calibration()


@pytest.mark.parametrize("sizes_hw", [[(1, 60), (128, 128)], [(1, 60)]])
def test_photographs_too_small_for_a_truth_are_left_out(
    model: CorrespondenceNetwork, tmp_path: Path, sizes_hw: list[tuple[int, int]]
) -> None:
    found = fit(model, tmp_path, sizes_hw)
    assert all(math.isfinite(value) for value in found.to_dict().values())
    if len(sizes_hw) == 1:
        assert found == Calibration()
