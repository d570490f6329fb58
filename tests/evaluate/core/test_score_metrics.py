"""AUROC and reliability against loops and by hand, and tests that notice faults in them."""

import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from support.mutations import assert_noticed
from ucn.evaluate.core import score_metrics as pair_metrics


def check_roc(module: ModuleType) -> None:
    assert module.area_under_roc([0.9, 0.8, 0.1], [True, True, False]) == 1
    assert module.area_under_roc([0.1, 0.2, 0.9], [True, True, False]) == 0
    assert module.area_under_roc([0.5, 0.5], [True, False]) == 0.5
    assert math.isnan(module.area_under_roc([0.5, 0.4], [True, True]))
    assert math.isnan(module.area_under_roc([], []))
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 6, 40) / 5, rng.random(40) < 0.3
    wins = [
        (above > below) + 0.5 * (above == below)
        for above in scores[labels].tolist()
        for below in scores[~labels].tolist()
    ]
    assert module.area_under_roc(scores, labels) == pytest.approx(sum(wins) / len(wins))
    with pytest.raises(ValueError, match=r"both be \(P,\), got \(1,\) and \(2,\)"):
        module.area_under_roc([0.5], [True, False])
    with pytest.raises(ValueError, match="must be finite"):
        module.area_under_roc([math.nan], [True])


def check_brier(module: ModuleType) -> None:
    assert module.brier_score([1.0, 0.5], [True, False]) == pytest.approx(0.125)
    assert math.isnan(module.brier_score([], []))


def check_reliability(module: ModuleType) -> None:
    # Bins of a half: 0.1, 0.4 of which one matches; 0.5, 1.0, 1.0 of which two match.
    found = module.measure_reliability([0.1, 0.4, 0.5, 1.0, 1.0], [False, True, False, True, True], bins=2)
    assert found.counts.tolist() == [2, 3]
    assert found.mean_scores.tolist() == pytest.approx([0.25, 2.5 / 3])
    assert found.shares.tolist() == pytest.approx([0.5, 2 / 3])
    assert found.edges.tolist() == [0, 0.5, 1]
    assert found.error == pytest.approx((2 * 0.25 + 3 * (2.5 / 3 - 2 / 3)) / 5)
    empty = module.measure_reliability([0.05], [False], bins=10)
    assert empty.counts.tolist() == [1, *[0] * 9]
    assert np.isnan(empty.shares[1:]).all()
    assert math.isnan(module.measure_reliability([], []).error)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got 0 to 1.5"):
        module.measure_reliability([0.0, 1.5], [True, True])


CHECKS = (check_roc, check_brier, check_reliability)

MUTATIONS = {
    "labels swapped": ("values[labels]", "values[~labels]"),
    "ties count nothing": ('("left", "right")', '("left", "left")'),
    "the distance, not its square": ("np.square(values - labels)", "np.abs(values - labels)"),
    "the upper bound of a bin included": (
        "(values * bins).astype(np.int64)",
        "np.ceil(values * bins).astype(int) - 1",
    ),
    "a bin of its own for 1": (
        "np.minimum((values * bins).astype(np.int64), bins - 1)",
        "(values * bins).astype(int)",
    ),
    "bins weighed alike": (".sum() / len(values)", ".sum() / is_used.sum()"),
    "scores for shares": ("np.bincount(bin_of, labels,", "np.bincount(bin_of, values,"),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_pair_metrics(check: Callable[[ModuleType], None]) -> None:
    check(pair_metrics)


@pytest.mark.parametrize("fault", MUTATIONS)
def test_checks_notice(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(pair_metrics, MUTATIONS[fault], CHECKS, monkeypatch)
