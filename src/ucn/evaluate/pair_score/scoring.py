"""Stage 2 of `pair-score`: how well the pair score separates matching from non-matching pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ucn.evaluate.core.metrics import Shares
from ucn.evaluate.core.score_metrics import area_under_roc, brier_score, measure_reliability
from ucn.evaluate.pair_score.predictions import SCENES, LabelledPair

SCENES_AND_DRAWN = "HPatches and drawn images"
"""Group of the scenes and of all drawn images, whose labels are the same for all weights."""
BINS = 10
"""Bins of the reliability diagram."""
THRESHOLD = 0.5
"""Pairs with at least this score are accepted as matching."""
LOW = 0.2
"""Pairs with a lower score are clearly rejected."""


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
        rejected: share of non-matching pairs that score below `LOW`.
        largest: largest score of a non-matching pair.
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
    rejected: float
    largest: float


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
    """The results of a method, one of each kind a group; in groups of non-matching pairs most are NaN.

    Args:
        method: its name.
        pairs: with their labels.
        scores: of each pair.
    """
    results, diagrams = [], []
    for group, rows in _list_groups(pairs).items():
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
                rejected=float((values[~labels] < LOW).mean()) if (~labels).any() else float("nan"),
                # To the digits of the JSON, so that an updated page shows the same.
                largest=round(float(values[~labels].max()), 6) if (~labels).any() else float("nan"),
            )
        )
        columns = (bins.edges, bins.counts, bins.mean_scores, bins.shares)
        diagrams.append(ReliabilityBins(method, group, *(tuple(column.tolist()) for column in columns)))
    return results, diagrams


def _list_groups(pairs: Sequence[LabelledPair]) -> dict[str, list[int]]:
    """Rows of each group; and of scenes together with all groups without matching pairs."""
    groups: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        groups.setdefault(pair.group, []).append(row)
    drawn = [row for rows in groups.values() if not any(pairs[row].is_match for row in rows) for row in rows]
    if drawn and SCENES in groups:
        groups[SCENES_AND_DRAWN] = [*groups[SCENES], *drawn]
    return groups


def _share_accepted(scores: Shares) -> float:
    return float((scores >= THRESHOLD).mean()) if len(scores) else float("nan")
