"""Stage 2, from predictions made by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluation_cases import make_method
from ucn.evaluate.benchmarks import Entry, find_benchmark
from ucn.evaluate.bundled import Motorcycle
from ucn.evaluate.predictions import PairPrediction, Predictions, Variant
from ucn.evaluate.scoring import Figure, Scores, score_predictions
from ucn.types import FloatArray

HPATCHES, CUB, SELF = (find_benchmark(name) for name in ("hpatches", "cub", "self"))


def make_pair(
    group: str, category: str, misses: list[float], length: float = math.nan, value: float = 0.0
) -> PairPrediction:
    """A pair whose points were missed by so many pixels to the right; NaN: not found."""
    truth = np.stack([np.arange(len(misses)), np.full(len(misses), 7)], axis=-1).astype(np.float32)
    found = truth + np.stack([misses, np.zeros(len(misses))], axis=-1).astype(np.float32)
    entry = Entry(Motorcycle(), 0, group + category, group, category, "scale" if value else "", value)
    seconds: FloatArray = np.array([1.0, 2.0, 0.5], np.float32)
    return PairPrediction(entry, truth, length, (found, found + 100), (seconds, seconds * 0))


def score(benchmark_name: str, *pairs: PairPrediction) -> Scores:
    method = make_method()
    predictions = Predictions((Variant(method, True), Variant(method, False)), pairs, "ab" * 32)
    return score_predictions(find_benchmark(benchmark_name), predictions)


def find(scores: Scores, group: str, limit: float, use_refinement: bool = True) -> Figure:
    (figure,) = [
        f for f in scores.figures if (f.group, f.limit, f.use_refinement) == (group, limit, use_refinement)
    ]
    return figure


def test_pixels_groups_and_averages() -> None:
    scores = score(
        "hpatches",
        make_pair("viewpoint", "v_a", [3.0, 3.01, 20.0, math.nan]),
        make_pair("viewpoint", "v_b", [0.0]),
        make_pair("illumination", "i_c", [5.0, 4.0]),
    )
    figure = find(scores, "viewpoint", 3.0)
    assert (figure.per_point, figure.per_pair, figure.per_class) == pytest.approx((2 / 5, 5 / 8, 5 / 8))
    assert (figure.pairs, figure.points) == (2, 5)
    assert figure.median_error == pytest.approx(3.01)
    assert figure.low <= figure.per_point <= figure.high
    assert find(scores, "illumination", 5.0).per_point == 1
    assert find(scores, "illumination", 3.0).per_point == 0
    assert find(scores, "all", 5.0).per_point == pytest.approx(5 / 7)
    assert find(scores, "all", 10.0, use_refinement=False).per_point == 0
    assert [f.group for f in scores.figures[::3]] == ["viewpoint", "illumination", "all"] * 2


def test_alpha_is_a_share_of_each_pairs_length() -> None:
    # At alpha 0.1 the limits are 10 and 2 pixels.
    scores = score(
        "cub", make_pair("birds", "owl", [10.0, 11.0], 100.0), make_pair("birds", "owl", [3.0], 20.0)
    )
    assert find(scores, "birds", 0.1).per_point == pytest.approx(1 / 3)
    assert find(scores, "birds", 0.05).per_point == 0
    (curve,) = [c for c in scores.curves if c.use_refinement]
    assert curve.limits == CUB.curve_limits
    assert curve.shares[curve.limits.index(0.1)] == pytest.approx(1 / 3)
    assert curve.shares[curve.limits.index(0.2)] == 1
    assert list(curve.shares) == sorted(curve.shares)


def test_one_group_has_no_other_of_all() -> None:
    assert {f.group for f in score("cub", make_pair("birds", "owl", [1.0], 9.0)).figures} == {"birds"}


def test_groups_on_an_axis() -> None:
    pairs = [
        make_pair(f"scale {factor}×", "photo", [float(factor)], value=factor) for factor in (1.0, 2.0, 8.0)
    ]
    scores = score("self", *pairs)
    assert [(f.axis, f.value, f.per_point) for f in scores.figures if f.use_refinement] == [
        ("scale", 1.0, 1.0),
        ("scale", 2.0, 1.0),
        ("scale", 8.0, 0.0),
    ]
    assert scores.curves == ()


def test_pairs_without_points() -> None:
    scores = score("hpatches", make_pair("viewpoint", "v_a", []), make_pair("viewpoint", "v_b", [1.0]))
    figure = find(scores, "viewpoint", 3.0)
    assert (figure.per_point, figure.per_pair, figure.pairs, figure.points) == (1, 1, 1, 1)
    empty = score("hpatches", make_pair("viewpoint", "v_a", []))
    assert math.isnan(find(empty, "viewpoint", 3.0).per_point)


def test_costs() -> None:
    (cost,) = score(
        "hpatches", make_pair("viewpoint", "v_a", [1.0]), make_pair("viewpoint", "v_b", [1.0])
    ).costs
    assert (cost.per_image, cost.per_pair) == (0.5, 0.25)
    pair = make_pair("viewpoint", "v_a", [1.0])
    cached = replace(pair, seconds=(np.zeros(3, np.float32),) * 2)
    assert math.isnan(score("hpatches", cached).costs[0].per_image)


def test_length_of_cub_is_of_image_1(data_folder: Path) -> None:
    entry = CUB.open(data_folder / "cub")[0]
    sample = entry.data.read(entry.index)
    assert sample.pck_length == pytest.approx(math.hypot(*sample.image1.shape[-2:]))
