"""Stage 2, from predictions made by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from support.evaluation_cases import make_method
from support.mutations import assert_noticed
from ucn.data.bundled import Motorcycle
from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair
from ucn.evaluate.points import scoring
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import PairPrediction, Predictions, Variant
from ucn.evaluate.points.scoring import Results, Score
from ucn.types import FloatArray

HPATCHES, CUB, SELF = (find_benchmark(name) for name in ("hpatches", "cub", "self"))


def make_pair(
    group: str, category: str, errors: list[float], length: float = math.nan, value: float = 0.0
) -> PairPrediction:
    """A pair whose points have errors of so many pixels to the right; NaN: not found."""
    truth = np.stack([np.arange(len(errors)), np.full(len(errors), 7)], axis=-1).astype(np.float32)
    found = truth + np.stack([errors, np.zeros(len(errors))], axis=-1).astype(np.float32)
    pair = BenchmarkPair(Motorcycle(), 0, group + category, group, category, "scale" if value else "", value)
    seconds: FloatArray = np.array([1.0, 2.0, 0.5], np.float32)
    return PairPrediction(pair, truth, truth, length, (found, found + 100), (seconds, seconds * 0))


def score(benchmark_name: str, *pairs: PairPrediction, module: ModuleType = scoring) -> Results:
    method = make_method()
    predictions = Predictions((Variant(method, True), Variant(method, False)), pairs, "ab" * 32)
    return module.score_predictions(find_benchmark(benchmark_name), predictions)  # type: ignore[no-any-return]


def find(scores: Results, group: str, limit: float, use_refinement: bool = True) -> Score:
    (score_,) = [
        f for f in scores.scores if (f.group, f.limit, f.use_refinement) == (group, limit, use_refinement)
    ]
    return score_


def check_pixels(module: ModuleType) -> None:
    """Groups, averages and limits in pixels."""
    scores = score(
        "hpatches",
        make_pair("viewpoint", "v_a", [3.0, 3.01, 20.0, math.nan]),
        make_pair("viewpoint", "v_b", [0.0]),
        make_pair("viewpoint", "v_b", [9.0]),
        make_pair("illumination", "i_c", [5.0, 4.0]),
        module=module,
    )
    score_ = find(scores, "viewpoint", 3.0)
    # Points: 2 of 6. Pairs: 1/4, 1 and 0. Classes: 1/4 and 1/2.
    assert (score_.per_point, score_.per_pair, score_.per_class) == pytest.approx((2 / 6, 5 / 12, 3 / 8))
    assert (score_.pairs, score_.points) == (3, 6)
    assert score_.mean_error == pytest.approx((3 + 3.01 + 20 + 0 + 9) / 5)
    assert score_.found == pytest.approx(5 / 6)
    assert score_.median_error == pytest.approx((3.01 + 9) / 2)
    assert score_.low <= score_.per_point <= score_.high
    assert find(scores, "illumination", 5.0).per_point == 1
    assert find(scores, "illumination", 3.0).per_point == 0
    assert find(scores, "all", 5.0).per_point == pytest.approx(5 / 8)
    assert find(scores, "all", 10.0, use_refinement=False).per_point == 0
    assert [f.group for f in scores.scores[::3]] == ["viewpoint", "illumination", "all"] * 2


def check_alpha(module: ModuleType) -> None:
    """Alpha is a share of each pair's own length."""
    # At alpha 0.1 the limits are 10 and 2 pixels.
    scores = score(
        "cub",
        make_pair("birds", "owl", [10.0, 11.0], 100.0),
        make_pair("birds", "owl", [3.0], 20.0),
        module=module,
    )
    assert find(scores, "birds", 0.1).per_point == pytest.approx(1 / 3)
    assert find(scores, "birds", 0.05).per_point == 0
    (curve,) = [c for c in scores.curves if c.use_refinement]
    assert curve.limits == CUB.curve_limits
    assert curve.shares[curve.limits.index(0.1)] == pytest.approx(1 / 3)
    assert curve.shares[curve.limits.index(0.2)] == 1
    assert list(curve.shares) == sorted(curve.shares)


CHECKS = (check_pixels, check_alpha)

# A fault each: a threshold, an average, a length or a variant that is swapped.
MUTATIONS = {
    "pixels for shares of a length": ('if benchmark.unit == "px":', 'if benchmark.unit == "alpha":'),
    "the first pair's length for all": ("    return pair.length", "    return 100.0"),
    "limits in another order": ("enumerate(benchmark.limits)", "enumerate(benchmark.limits[::-1])"),
    "pairs for points": (
        "per_point = average(right, counts)",
        'per_point = average(right, counts, over="pair")',
    ),
    "points for pairs": ('average(right, counts, over="pair")', "average(right, counts)"),
    "pairs for classes": (
        'average(right, counts, classes, over="class")',
        'average(right, counts, over="pair")',
    ),
    "one class for all": ("pairs[row].pair.category", "pairs[row].pair.axis"),
    "groups for classes": ("pairs[row].pair.category", "pairs[row].pair.group"),
    "the other variant": ("point_errors(pair.predicted[number]", "point_errors(pair.predicted[-1 - number]"),
    "all pairs for each group": (
        "errors = [measured.errors[row] for row in group.rows]",
        "errors = measured.errors",
    ),
    "found for median": ("median_error=middle", "median_error=mean"),
    "a curve of other limits": (
        "scales, benchmark.curve_limits)",
        "scales, sorted(benchmark.curve_limits)[::-1])",
    ),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_scores(check: Callable[[ModuleType], None]) -> None:
    check(scoring)


@pytest.mark.parametrize("fault", MUTATIONS)
def test_checks_notice(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(scoring, MUTATIONS[fault], CHECKS, monkeypatch)


def test_a_pair_without_a_length_is_named() -> None:
    with pytest.raises(DataError, match="pair birdsowl has no length for PCK@α"):
        score("cub", make_pair("birds", "owl", [10.0]))


def test_one_group_has_no_other_of_all() -> None:
    assert {f.group for f in score("cub", make_pair("birds", "owl", [1.0], 9.0)).scores} == {"birds"}


def test_groups_on_an_axis() -> None:
    pairs = [
        make_pair(f"scale {factor}×", "photo", [float(factor)], value=factor) for factor in (1.0, 2.0, 8.0)
    ]
    scores = score("self", *pairs)
    assert [(f.axis, f.value, f.per_point) for f in scores.scores if f.use_refinement] == [
        ("scale", 1.0, 1.0),
        ("scale", 2.0, 1.0),
        ("scale", 8.0, 0.0),
    ]
    assert scores.curves == ()


def test_pairs_without_points() -> None:
    scores = score("hpatches", make_pair("viewpoint", "v_a", []), make_pair("viewpoint", "v_b", [1.0]))
    score_ = find(scores, "viewpoint", 3.0)
    assert (score_.per_point, score_.per_pair, score_.pairs, score_.points) == (1, 1, 1, 1)
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
    pair = CUB.open(data_folder / "cub")[0]
    sample = pair.data.read(pair.index)
    assert sample.pck_length == pytest.approx(math.hypot(*sample.image1.shape[-2:]))
