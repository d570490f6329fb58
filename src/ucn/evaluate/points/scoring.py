"""Stage 2: figures from predictions, nothing else: averages, intervals, curves and times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.errors import DataError
from ucn.evaluate.core.metrics import (
    Counts,
    Shares,
    average,
    bootstrap_interval,
    count_within,
    end_point_error,
    median_error,
    point_errors,
    share_found,
)
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.predictions import PairPrediction, Predictions

ALL = "all"
"""The group of all pairs."""
LEVEL, RESAMPLES = 0.95, 1000
"""Of the bootstrap intervals."""


@dataclass(frozen=True)
class Figure:
    """How a method did on a group of pairs at one limit; shares are in [0, 1].

    Attributes:
        method: its name.
        use_refinement: whether matches were placed between cells.
        group: of pairs.
        axis: what `value` is, where groups make a curve; else empty.
        value: where on the axis the group lies.
        limit: in the benchmark's unit.
        per_point: mean over points.
        per_pair: mean over pairs that have points.
        per_class: mean over classes.
        low: lower bound of the mean over points, by resampling pairs.
        high: its upper bound.
        mean_error: in pixels, of the points that were found (end-point error).
        median_error: in pixels; infinite where most points were not found.
        found: share of points that have an answer, right or wrong.
        pairs: how many have points.
        points: of all pairs.
    """

    method: str
    use_refinement: bool
    group: str
    axis: str
    value: float
    limit: float
    per_point: float
    per_pair: float
    per_class: float
    low: float
    high: float
    mean_error: float
    median_error: float
    found: float
    pairs: int
    points: int


@dataclass(frozen=True)
class Curve:
    """Share of correct points (mean over points) against the limit.

    Attributes:
        method: its name.
        use_refinement: whether matches were placed between cells.
        group: of pairs.
        limits: in the benchmark's unit.
        shares: in [0, 1].
    """

    method: str
    use_refinement: bool
    group: str
    limits: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """Seconds that a method took, on the machine where its predictions were made.

    Attributes:
        method: its name.
        per_image: describing an image; NaN where none was described.
        per_pair: matching the points of a pair, mean over the variants.
    """

    method: str
    per_image: float
    per_pair: float


@dataclass(frozen=True)
class Scores:
    """All figures of a run."""

    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...]
    costs: tuple[Cost, ...]


@dataclass(frozen=True)
class _Group:
    name: str
    axis: str
    value: float
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class _Measured:
    """One variant on all pairs: errors of each, and how many points of each are right at each limit."""

    method: str
    use_refinement: bool
    errors: list[Shares]
    correct: Counts
    correct_on_curve: Counts


def score_predictions(benchmark: Benchmark, predictions: Predictions, seed: int = 0) -> Scores:
    """Scores every variant on every group of pairs.

    Args:
        benchmark: its limits.
        predictions: of stage 1.
        seed: of the resampling of pairs.
    """
    groups = _list_groups(predictions.pairs)
    figures: list[Figure] = []
    curves: list[Curve] = []
    for number in range(len(predictions.variants)):
        measured = _measure(benchmark, predictions, number)
        for group in groups:
            figures += _score_group(benchmark, predictions.pairs, measured, group, seed)
            if benchmark.curve_limits:
                curves.append(_draw_curve(benchmark, measured, group))
    return Scores(tuple(figures), tuple(curves), _cost(predictions))


def _measure(benchmark: Benchmark, predictions: Predictions, number: int) -> _Measured:
    variant = predictions.variants[number]
    errors = [point_errors(pair.found[number], pair.points1) for pair in predictions.pairs]
    # What limits are multiplied by to give pixels of each pair.
    scales = [_find_scale(benchmark, pair) for pair in predictions.pairs]
    return _Measured(
        method=variant.method.name,
        use_refinement=variant.use_refinement,
        errors=errors,
        correct=_count(errors, scales, benchmark.limits),
        correct_on_curve=_count(errors, scales, benchmark.curve_limits),
    )


def _find_scale(benchmark: Benchmark, pair: PairPrediction) -> float:
    if benchmark.unit == "px":
        return 1.0
    if math.isnan(pair.length):
        raise DataError(
            f"pair {pair.entry.name[:200]} has no length for PCK@α; give one to all pairs or to none"
        )
    return pair.length


def _count(errors: Sequence[Shares], scales: Sequence[float], limits: Sequence[float]) -> Counts:
    """(P, T) correct points of each pair at each limit."""
    rows = [count_within(row, np.asarray(limits) * scale) for row, scale in zip(errors, scales, strict=True)]
    return np.array(rows, np.int64).reshape(len(errors), len(limits))


def _score_group(
    benchmark: Benchmark, pairs: Sequence[PairPrediction], measured: _Measured, group: _Group, seed: int
) -> list[Figure]:
    """The figures of one variant on one group, one a limit."""
    errors = [measured.errors[row] for row in group.rows]
    right, counts = measured.correct[group.rows], np.array([len(row) for row in errors], np.int64)
    classes = [pairs[row].entry.category for row in group.rows]
    # The same draws for each variant, so that their intervals can be compared.
    generator = torch.Generator().manual_seed(seed)
    bounds = bootstrap_interval(right, counts, generator, level=LEVEL, resamples=RESAMPLES)
    all_errors = np.concatenate(errors)
    middle, mean, found = median_error(all_errors), end_point_error(all_errors), share_found(all_errors)
    per_point = average(right, counts)
    per_pair = average(right, counts, over="pair")
    per_class = average(right, counts, classes, over="class")
    return [
        Figure(
            method=measured.method,
            use_refinement=measured.use_refinement,
            group=group.name,
            axis=group.axis,
            value=group.value,
            limit=limit,
            per_point=float(per_point[column]),
            per_pair=float(per_pair[column]),
            per_class=float(per_class[column]),
            low=float(bounds[column, 0]),
            high=float(bounds[column, 1]),
            mean_error=mean,
            median_error=middle,
            found=found,
            pairs=int((counts > 0).sum()),
            points=int(counts.sum()),
        )
        for column, limit in enumerate(benchmark.limits)
    ]


def _draw_curve(benchmark: Benchmark, measured: _Measured, group: _Group) -> Curve:
    totals = [len(measured.errors[row]) for row in group.rows]
    shares = average(measured.correct_on_curve[group.rows], totals)
    return Curve(
        measured.method,
        measured.use_refinement,
        group.name,
        benchmark.curve_limits,
        tuple(shares.tolist()),
    )


def _list_groups(pairs: Sequence[PairPrediction]) -> list[_Group]:
    """Groups in the order of their first pairs, then all pairs where groups are parts and not a curve."""
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows.setdefault(pair.entry.group, []).append(row)
    groups = []
    for name, members in rows.items():
        entry = pairs[members[0]].entry
        groups.append(_Group(name, entry.axis, entry.value, np.array(members)))
    if len(groups) > 1 and not any(group.axis for group in groups):
        groups.append(_Group(ALL, "", 0.0, np.arange(len(pairs))))
    return groups


def _cost(predictions: Predictions) -> tuple[Cost, ...]:
    spent: dict[str, list[NDArray[np.float32]]] = {}
    for number, variant in enumerate(predictions.variants):
        rows = [pair.seconds[number] for pair in predictions.pairs]
        spent.setdefault(variant.method.name, []).extend(rows)
    costs = []
    for name, seconds in spent.items():
        describing, images, matching = np.asarray(seconds, np.float64).sum(axis=0).tolist()
        per_image = describing / images if images else float("nan")
        costs.append(Cost(name, per_image, matching / len(seconds)))
    return tuple(costs)
