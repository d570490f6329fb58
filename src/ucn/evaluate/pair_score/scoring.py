"""Stage 2 of `pair-score`: how well the pair score separates matching from non-matching pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ucn.evaluate.core.metrics import Shares
from ucn.evaluate.pair_score.metrics import area_under_roc, brier_score, measure_reliability
from ucn.evaluate.pair_score.predictions import LabelledPair

BINS = 10
"""Bins of the reliability diagram."""
THRESHOLD = 0.5
"""Pairs with at least this score are accepted as matching."""


@dataclass(frozen=True)
class PairScoreResult:
    """The separation of a group of pairs by a method's pair score.

    Attributes:
        method: its name.
        group: of pairs.
        matching: number of matching pairs.
        others: number of non-matching pairs.
        auroc: area under the ROC curve.
        brier: Brier score.
        calibration_error: expected calibration error.
        accepted: share of matching pairs that score at least `THRESHOLD`.
        wrongly_accepted: share of non-matching pairs that do.
    """

    method: str
    group: str
    matching: int
    others: int
    auroc: float
    brier: float
    calibration_error: float
    accepted: float
    wrongly_accepted: float


@dataclass(frozen=True)
class ReliabilityBins:
    """The reliability diagram of a method on a group of pairs; see `Reliability`."""

    method: str
    group: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean_scores: tuple[float, ...]
    shares: tuple[float, ...]


def score_separation(
    method: str, pairs: Sequence[LabelledPair], scores: Sequence[float]
) -> tuple[list[PairScoreResult], list[ReliabilityBins]]:
    """The results of a method, one of each kind a group.

    Args:
        method: its name.
        pairs: with their labels.
        scores: of each pair.
    """
    results, diagrams = [], []
    for group in dict.fromkeys(pair.group for pair in pairs):
        rows = [row for row, pair in enumerate(pairs) if pair.group == group]
        values = np.array([scores[row] for row in rows])
        labels = np.array([pairs[row].is_match for row in rows])
        bins = measure_reliability(values, labels, BINS)
        results.append(
            PairScoreResult(
                method=method,
                group=group,
                matching=int(labels.sum()),
                others=int((~labels).sum()),
                auroc=area_under_roc(values, labels),
                brier=brier_score(values, labels),
                calibration_error=bins.error,
                accepted=_share_accepted(values[labels]),
                wrongly_accepted=_share_accepted(values[~labels]),
            )
        )
        columns = (bins.edges, bins.counts, bins.mean_scores, bins.shares)
        diagrams.append(ReliabilityBins(method, group, *(tuple(column.tolist()) for column in columns)))
    return results, diagrams


def _share_accepted(scores: Shares) -> float:
    return float((scores >= THRESHOLD).mean()) if len(scores) else float("nan")
