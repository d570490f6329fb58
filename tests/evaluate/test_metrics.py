"""Metrics do what they say, and these tests notice where they would not."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

from metric_cases import CHECKS
from ucn.evaluate import metrics

# A fault each: a threshold, an average, a length or a view that is swapped.
MUTATIONS = {
    "below the limit, not at it": ('side="right"', 'side="left"'),
    "a point not found counts as right": ("np.isnan(errors), np.inf", "np.isnan(errors), 0.0"),
    "the distance along one axis only": ("found[:, 1] - wanted[:, 1]", "found[:, 1] - found[:, 1]"),
    "the distance to another place": ("found[:, 0] - wanted[:, 0]", "found[:, 0] - wanted[:, 1]"),
    "pairs for points": ('if over == "point":', 'if over == "pair":'),
    "points for pairs": ('if over == "point":', 'if over in ("point", "pair"):'),
    "classes for all": ('if over == "class":', "if True:"),
    "the class means weighed by pairs": ("totals = _sum_rows(", "_sum_rows("),
    "pairs without points count": ("is_used = totals > 0\n    if not", "is_used = totals > -1\n    if not"),
    "the shorter side": ("float(max(height, width))", "float(min(height, width))"),
    "the longer side for the diagonal": ("np.hypot(height, width)", "max(height, width)"),
    "the shorter side of the box": ("np.ptp(spots, axis=0).max()", "np.ptp(spots, axis=0).min()"),
    "the image for the box": ("np.ptp(spots, axis=0).max()", "max(image_hw)"),
    "one tail of the interval": ("tail = 50 *", "tail = 100 *"),
    "intervals of pairs for points": ('if over == "pair" else totals', 'if over == "point" else totals'),
    "points drawn, not pairs": ("torch.randint(len(totals), (", "torch.randint(len(totals) // 2, ("),
    "the upper middle": ("(len(values) - 1) // 2, len(values) // 2", "len(values) // 2, len(values) // 2"),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_metrics(check: Callable[[ModuleType], None]) -> None:
    check(metrics)


@pytest.mark.parametrize("fault", MUTATIONS)
def test_checks_notice(fault: str) -> None:
    old, new = MUTATIONS[fault]
    source = inspect.getsource(metrics)
    assert source.count(old) == 1, f"metrics.py no longer has one '{old}'"
    broken = ModuleType("broken_metrics")
    exec(compile(source.replace(old, new), f"metrics with {fault}", "exec"), broken.__dict__)
    failures = 0
    for check in CHECKS:
        try:
            check(broken)
        except Exception:  # an AssertionError, or numpy's where shapes no longer fit
            failures += 1
    assert failures, f"no check notices: {fault}"
