"""Metrics do what they say, and these tests notice where they would not."""

from collections.abc import Callable
from types import ModuleType

import pytest

from support.metric_cases import CHECKS
from support.mutations import assert_noticed
from ucn.evaluate.core import metrics

# A fault each: a threshold, an average, a length or a view that is swapped.
MUTATIONS = {
    "below the limit, not at it": (
        'np.asarray(limits, np.float64), side="right"',
        'np.asarray(limits, np.float64), side="left"',
    ),
    "the area without what lies at the limit": (
        '(ordered, limit, side="right")',
        '(ordered, limit, side="left")',
    ),
    "a point not found counts as right": ("np.isnan(errors), np.inf", "np.isnan(errors), 0.0"),
    "the distance along one axis only": ("found[:, 1] - expected[:, 1]", "found[:, 1] - found[:, 1]"),
    "the distance to another place": ("found[:, 0] - expected[:, 0]", "found[:, 0] - expected[:, 1]"),
    "pairs for points": ('if over == "point":', 'if over == "pair":'),
    "points for pairs": ('if over == "point":', 'if over in ("point", "pair"):'),
    "classes for all": ('if over == "class":', "if True:"),
    "the class means weighed by pairs": ("totals = _sum_rows(", "_sum_rows("),
    "pairs without points count": ("is_used = totals > 0\n    if not", "is_used = totals > -1\n    if not"),
    "one tail of the interval": ("tail = 50 *", "tail = 100 *"),
    "intervals of pairs for points": ("(times @ points)", "times.sum(axis=1)"),
    "points drawn, not pairs": ("torch.randint(len(points), (", "torch.randint(len(points) // 2, ("),
    "the share of other errors": ("counts / len(values) if", "counts / (len(values) + 1) if"),
    "points not found in the mean error": ("found = values[np.isfinite(values)]", "found = values"),
    "found for not found": ("np.isfinite(values).mean()", "np.isinf(values).mean()"),
    "the mean over matches for that over pairs": (
        "np.mean(shares, axis=0)",
        "accuracy_curve(np.concatenate(errors), limits)",
    ),
    "pairs without matches left out": (
        "np.mean(shares, axis=0)",
        "np.nanmean([accuracy_curve(row, limits) for row in errors], axis=0)",
    ),
    "homographies swapped": ("(estimated_0to1, true_0to1):", "np.linalg.inv([estimated_0to1, true_0to1]):"),
    "height for width": ("height, width = image0_hw", "width, height = image0_hw"),
    "the largest corner error": ("axis=1).mean())", "axis=1).max())"),
    "the area up to another limit": ("trapezia.sum()) / limit", "trapezia.sum()) / ordered[-1]"),
    "steps for lines": ("(heights[1:] + heights[:-1]) / 2", "heights[:-1]"),
    "failures left out of the area": (
        "ordered = np.sort(np.asarray(errors, np.float64))\n    if",
        "ordered = np.sort(np.asarray(errors, np.float64)[np.isfinite(errors)])\n    if",
    ),
    "pairs drawn, not clusters": ("rows.setdefault(name, [])", "rows.setdefault(row, [])"),
    "the second method first": ("(first - second)", "(second - first)"),
    "rows for columns": ("[columns.ravel(), rows.ravel()]", "[rows.ravel(), columns.ravel()]"),
    "the bound left out": ("np.nextafter(radius, np.inf)", "np.nextafter(radius, 0)"),
    "one side only": ("((targets1, keypoints1), (targets0, keypoints0))", "((targets1, keypoints1),)"),
    "keypoints of the other view": (
        "((targets1, keypoints1), (targets0, keypoints0))",
        "((targets1, keypoints0), (targets0, keypoints1))",
    ),
    "hidden keypoints count": (
        "expected = expected[np.isfinite(expected).all(axis=1)]",
        "expected = np.nan_to_num(expected)",
    ),
    "the upper middle": ("(len(values) - 1) // 2, len(values) // 2", "len(values) // 2, len(values) // 2"),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_metrics(check: Callable[[ModuleType], None]) -> None:
    check(metrics)


@pytest.mark.parametrize("fault", MUTATIONS)
def test_checks_notice(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(metrics, MUTATIONS[fault], CHECKS, monkeypatch)
