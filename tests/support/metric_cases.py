"""What metrics must give, as functions of the module that holds them: the real one, or one with a fault."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

# Three pairs of two classes with 4, 1 and 0 points; so many are right at each of two limits.
CORRECT = np.array([[1, 3], [1, 1], [0, 0]])
TOTALS = np.array([4, 1, 0])
CLASSES = ("owl", "wren", "wren")


def check_errors(metrics: ModuleType) -> None:
    found = [[3.0, 4.0], [1.0, 7.0], [math.nan, 2.0]]
    errors = metrics.point_errors(found, [[0.0, 0.0], [1.0, 2.0], [1.0, 2.0]])
    assert errors.tolist() == [5.0, 5.0, math.inf]
    assert metrics.point_errors(np.zeros((0, 2)), np.zeros((0, 2))).tolist() == []
    with pytest.raises(ValueError, match=r"both be \(N, 2\), got \(2,\) and \(2, 2\)"):
        metrics.point_errors([0.0, 0.0], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="ground-truth points must be finite"):
        metrics.point_errors([[0.0, 0.0]], [[0.0, math.nan]])


def check_limits_are_included(metrics: ModuleType) -> None:
    assert metrics.count_within([3.0, 5.0, 1.0, math.inf], [0.5, 3.0, 4.9, 5.0, 1e9]).tolist() == [
        0,
        2,
        2,
        3,
        3,
    ]
    assert metrics.count_within([], [1.0, 2.0]).tolist() == [0, 0]


def check_averages(metrics: ModuleType) -> None:
    # Points: 2 of 5. Pairs: 1/4 and 1/1, the third has no points. Classes: owl 1/4, wren 1/1.
    assert metrics.average(CORRECT, TOTALS).tolist() == pytest.approx([2 / 5, 4 / 5])
    assert metrics.average(CORRECT, TOTALS, over="pair").tolist() == pytest.approx([5 / 8, 7 / 8])
    assert metrics.average(CORRECT, TOTALS, CLASSES, "class").tolist() == pytest.approx([5 / 8, 7 / 8])
    # With the first two pairs in one class that class has 2 of 5, whatever its pairs have.
    joined = metrics.average(CORRECT, TOTALS, ("owl", "owl", "wren"), "class")
    assert joined.tolist() == pytest.approx([2 / 5, 4 / 5])
    empty = metrics.average(np.zeros((1, 2)), [0])
    assert np.isnan(empty).all()
    with pytest.raises(ValueError, match="classes must be 3, one a pair, got 0"):
        metrics.average(CORRECT, TOTALS, over="class")
    with pytest.raises(ValueError, match=r"correct must be \(P, T\) and totals \(P,\)"):
        metrics.average(CORRECT, TOTALS[:2])


def check_medians(metrics: ModuleType) -> None:
    assert metrics.median_error([5.0, 1.0, 2.0]) == 2
    assert metrics.median_error([4.0, 1.0]) == 2.5
    assert metrics.median_error([1.0, math.inf, math.inf]) == math.inf
    assert math.isnan(metrics.median_error([]))


def average_slowly(correct: Array, totals: Array, classes: list[str], over: str) -> list[float]:
    """The definitions, with loops."""
    shares = []
    for column in range(correct.shape[1]):
        groups: dict[str, list[float]] = {}
        for row, total in enumerate(totals):
            name = {"point": "all", "pair": str(row), "class": classes[row]}[over]
            right, count = groups.setdefault(name, [0.0, 0.0])
            groups[name] = [right + correct[row, column], count + total]
        used = [right / count for right, count in groups.values() if count]
        shares.append(sum(used) / len(used))
    return shares


def check_against_loops(metrics: ModuleType) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        totals = rng.integers(0, 6, 12)
        totals[0] = 3
        correct = np.sort(rng.integers(0, totals[:, None] + 1, (12, 4)), axis=1)
        classes = [str(number) for number in rng.integers(0, 4, 12)]
        for over in ("point", "pair", "class"):
            wanted = average_slowly(correct, totals, classes, over)
            assert metrics.average(correct, totals, classes, over).tolist() == pytest.approx(wanted)
        errors, limits = rng.uniform(0, 9, 30).round(), rng.uniform(0, 9, 5).round()
        wanted_counts = [sum(float(error) <= limit for error in errors) for limit in limits]
        assert metrics.count_within(errors, limits).tolist() == wanted_counts


def resample_slowly(correct: Array, totals: Array, level: float, resamples: int) -> list[float]:
    """Both bounds at the first limit, with loops and the same draws."""
    rows = [row for row, total in enumerate(totals) if total]
    drawn = torch.randint(len(rows), (resamples, len(rows)), generator=torch.Generator().manual_seed(7))
    shares = []
    for draw in drawn.tolist():
        chosen = [rows[place] for place in draw]
        shares.append(sum(correct[row, 0] for row in chosen) / sum(totals[row] for row in chosen))
    return [float(np.quantile(shares, (1 - level) / 2)), float(np.quantile(shares, (1 + level) / 2))]


def check_intervals(metrics: ModuleType) -> None:
    rng = np.random.default_rng(1)
    totals = np.array([9, 1, 0, 4, 7, 2, 30])
    correct = rng.integers(0, totals[:, None] + 1, (7, 2))
    generator = torch.Generator().manual_seed(7)
    bounds = metrics.bootstrap_interval(correct, totals, generator, level=0.8, resamples=200)
    assert bounds.shape == (2, 2)
    assert bounds[0].tolist() == pytest.approx(resample_slowly(correct, totals, 0.8, 200))
    same = metrics.bootstrap_interval([[1], [2]], [2, 4], torch.Generator().manual_seed(0))
    assert same.tolist() == [[0.5, 0.5]]
    assert np.isnan(metrics.bootstrap_interval(np.zeros((1, 1)), [0], torch.Generator())).all()


def check_curves(metrics: ModuleType) -> None:
    errors = [3.0, 5.0, 1.0, math.inf]
    assert metrics.accuracy_curve(errors, [0.5, 1.0, 3.0, 5.0]).tolist() == [0, 0.25, 0.5, 0.75]
    assert np.isnan(metrics.accuracy_curve([], [1.0, 2.0])).all()
    assert metrics.accuracy_curve([1.0], []).tolist() == []


def check_means(metrics: ModuleType) -> None:
    assert metrics.end_point_error([1.0, 4.0]) == 2.5
    assert metrics.end_point_error([1.0, 4.0, math.inf]) == 2.5
    assert metrics.share_found([1.0, 4.0, math.inf]) == pytest.approx(2 / 3)
    for nothing in ([], [math.inf]):
        assert math.isnan(metrics.end_point_error(nothing))
    assert math.isnan(metrics.share_found([]))
    assert metrics.share_found([math.inf]) == 0


def check_matching_accuracy(metrics: ModuleType) -> None:
    # Pairs with 4, 1 and 0 matches: at 3 px 2/4, 1/1 and nothing; the mean over matches would be 3/5.
    pairs = [[1.0, 3.0, 3.5, 9.0], [0.0], []]
    assert metrics.mean_matching_accuracy(pairs, [3.0, 5.0]).tolist() == pytest.approx([1.5 / 3, 1.75 / 3])
    assert metrics.mean_matching_accuracy([[]], [3.0]).tolist() == [0]
    assert np.isnan(metrics.mean_matching_accuracy([], [3.0, 5.0])).all()


def check_corners(metrics: ModuleType) -> None:
    true = np.array([[1.0, 0, 7], [0, 1, -3], [0, 0, 1]])
    assert metrics.corner_error(true, true, (10, 20)) == 0
    assert metrics.corner_error(5 * true, true, (10, 20)) == 0  # a homography has no scale
    shifted = true + np.array([[0, 0, 3], [0, 0, 4], [0, 0, 0]])
    assert metrics.corner_error(shifted, true, (10, 20)) == pytest.approx(5)
    # Twice as wide: corners at x = 0 stay, those at x = 19 move by 19.
    assert metrics.corner_error(np.diag([2.0, 1, 1]), np.eye(3), (10, 20)) == pytest.approx(9.5)
    # Halved instead: 9.5 pixels of image 1 at the right, so the views cannot be swapped.
    assert metrics.corner_error(np.diag([0.5, 1, 1]), np.eye(3), (10, 20)) == pytest.approx(4.75)
    assert metrics.corner_error(None, true, (10, 20)) == math.inf
    assert metrics.corner_error(np.full((3, 3), np.nan), true, (10, 20)) == math.inf
    assert metrics.corner_error([[1, 0, 0], [0, 1, 0], [1, 0, 0]], true, (10, 20)) == math.inf
    turned = np.array([[0.9, -0.2, 3], [0.1, 1.1, -2], [1e-3, 2e-3, 1]])
    wanted = []
    for x, y in ((0, 0), (19, 0), (0, 9), (19, 9)):
        places = []
        for matrix in (turned, true):
            u, v, w = (row[0] * x + row[1] * y + row[2] for row in matrix)
            places.append((u / w, v / w))
        wanted.append(math.dist(*places))
    assert metrics.corner_error(turned, true, (10, 20)) == pytest.approx(sum(wanted) / 4)


def integrate_slowly(errors: Array, limit: float, steps: int = 20000) -> float:
    """The mean of the curve at many places between 0 and the limit."""
    ordered = sorted(errors.tolist())
    corners = [(0.0, 0.0)]
    for rank, error in enumerate(ordered, start=1):
        if error <= limit:
            corners.append((error, rank / len(ordered)))
    corners.append((limit, corners[-1][1]))
    x, y = zip(*corners, strict=True)
    middles = (np.arange(steps) + 0.5) * limit / steps
    return float(np.interp(middles, x, y).mean())


def check_areas(metrics: ModuleType) -> None:
    # One pair at 2: from (0, 0) up to (2, 1), then level to 4: (1 + 2) / 4.
    assert metrics.area_under_error_curve([2.0], [4.0]).tolist() == [0.75]
    assert metrics.area_under_error_curve([2.0, math.inf], [4.0]).tolist() == [0.375]
    assert metrics.area_under_error_curve([4.0], [4.0]).tolist() == [0.5]
    assert metrics.area_under_error_curve([5.0, math.inf], [4.0]).tolist() == [0]
    assert metrics.area_under_error_curve([0.0, 0.0], [4.0]).tolist() == [1]
    assert np.isnan(metrics.area_under_error_curve([], [4.0, 5.0])).all()
    rng = np.random.default_rng(3)
    for _ in range(5):
        errors = rng.exponential(6, 15)
        areas = metrics.area_under_error_curve(errors, [3.0, 5.0, 10.0])
        wanted = [integrate_slowly(errors, limit) for limit in (3.0, 5.0, 10.0)]
        assert areas.tolist() == pytest.approx(wanted, abs=1e-3)


def check_coverage(metrics: ModuleType) -> None:
    # A pixel, its four neighbours at distance 1, and the diagonal ones at 1.41.
    assert metrics.coverage([[2, 1]], (4, 5), 0.5) == 1 / 20
    assert metrics.coverage([[2, 1]], (4, 5), 1.0) == 5 / 20
    assert metrics.coverage([[2, 1], [2, 1]], (4, 5), 1.42) == 9 / 20
    assert metrics.coverage([[4, 0]], (2, 5), 1.0) == 3 / 10  # x is the column
    assert metrics.coverage([], (4, 5), 3.0) == 0
    rng = np.random.default_rng(5)
    points = rng.uniform(0, 20, (6, 2))
    covered = sum(
        any(math.dist((x, y), point) <= 3.3 for point in points.tolist())
        for x in range(21)
        for y in range(13)
    )
    assert metrics.coverage(points, (13, 21), 3.3) == pytest.approx(covered / (13 * 21))


def check_repeatability(metrics: ModuleType) -> None:
    # Image 1 is image 0 moved by (10, 0). Of three keypoints two are seen in image 1 and one found there;
    # of image 1's two keypoints both are seen in image 0 and one found.
    keypoints0 = np.array([[0.0, 0], [5, 5], [99, 9]])
    targets1 = np.array([[10.0, 0], [15, 5], [math.nan, math.nan]])
    keypoints1 = np.array([[12.0, 0], [40, 40]])
    targets0 = np.array([[2.0, 0], [30, 40]])
    assert metrics.repeatability(keypoints0, targets1, keypoints1, targets0, 2.0) == pytest.approx(2 / 4)
    assert metrics.repeatability(keypoints0, targets1, keypoints1, targets0, 1.9) == 0
    # Five keypoints of image 1 around one of image 0: from its side one of one, from theirs five of five.
    crowd = np.array([[10.0, y] for y in range(5)])
    one = metrics.repeatability([[0.0, 0]], [[10.0, 0]], crowd, crowd - [10.0, 0], 1.0)
    assert one == pytest.approx((1 + 2) / 6)
    empty = np.zeros((0, 2))
    assert metrics.repeatability(keypoints0, targets1, empty, empty, 3.0) == 0
    assert math.isnan(metrics.repeatability(empty, empty, empty, empty, 3.0))


def check_differences(metrics: ModuleType) -> None:
    errors, others = [0.0, 1.0, 4.0, 4.0], [2.0, math.inf, 0.0, 0.0]
    clusters, limits = ["a", "a", "b", "b"], [2.0, 8.0]
    bounds = metrics.bootstrap_auc_difference(
        errors, others, limits, clusters, torch.Generator().manual_seed(1), level=0.8, resamples=300
    )
    # Two clusters drawn of two: a twice or b twice, a quarter of the samples each, are the extremes.
    extremes = []
    for rows in ([0, 1, 0, 1], [2, 3, 2, 3]):
        areas = [
            metrics.area_under_error_curve(np.array(values)[rows], limits) for values in (errors, others)
        ]
        extremes.append(areas[0] - areas[1])
    assert (extremes[0] > 0).all() and (extremes[1] < 0).all()
    expected = np.stack([extremes[1], extremes[0]], axis=1)
    assert bounds == pytest.approx(expected)
    # Within a third of the samples around the median both clusters are drawn.
    narrow = metrics.bootstrap_auc_difference(
        errors, others, limits, clusters, torch.Generator().manual_seed(1), level=0.3, resamples=300
    )
    assert (narrow[:, 0] == narrow[:, 1]).all()
    none = metrics.bootstrap_auc_difference([], [], limits, [], torch.Generator())
    assert none.shape == (2, 2) and np.isnan(none).all()
    with pytest.raises(ValueError, match="of the same pairs, got 1, 2 and 1"):
        metrics.bootstrap_auc_difference([0.0], [0.0, 1.0], limits, ["a"], torch.Generator())


CHECKS = (
    check_errors,
    check_limits_are_included,
    check_averages,
    check_medians,
    check_against_loops,
    check_intervals,
    check_curves,
    check_means,
    check_matching_accuracy,
    check_corners,
    check_areas,
    check_differences,
    check_coverage,
    check_repeatability,
)
