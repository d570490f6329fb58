"""Stage 2 of `pair-score`: how well scores separate pairs that match, and correct matches, from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ucn.evaluate.core.metrics import Shares
from ucn.evaluate.core.score_metrics import area_under_roc, brier_score, measure_reliability
from ucn.evaluate.pair_score.predictions import BIRDS, SCENES, LabelledPair, PairScores

NOTHING = "all that match nothing"
"""Group of all groups without matching pairs."""
SCENES_AND_NOTHING = "HPatches and all that match nothing"
"""Group of these and of the scenes, whose labels are the same for all weights."""
MATCHES = {
    "matches of corners, HPatches": (SCENES, True),
    "matches of corners, HPatches and all that match nothing": (SCENES_AND_NOTHING, False),
    "matches of parts, CUB": (BIRDS, True),
}
"""Groups of matches: the group of pairs they are of, and whether of matching pairs only."""
BINS = 10
"""Bins of the reliability diagram."""
THRESHOLD = 0.5
"""Pairs with at least this score are accepted as matching."""
LOW = 0.2
"""Pairs with a lower score are clearly rejected."""


@dataclass(frozen=True)
class PairScoreResult:
    """The separation of a group of pairs by a method's pair score, or of a group of matches by their score.

    For matches read correct ones for matching pairs, and wrong ones for non-matching pairs.

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
    """The reliability diagram of a method on a group of pairs or matches; see `Reliability`."""

    method: str
    group: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean_scores: tuple[float, ...]
    shares: tuple[float, ...]


def score_separation(
    method: str, pairs: Sequence[LabelledPair], scores: Sequence[PairScores]
) -> tuple[list[PairScoreResult], list[ReliabilityBins]]:
    """The results of a method, one of each kind a group; in groups of non-matching pairs most are NaN.

    Args:
        method: its name.
        pairs: with their labels.
        scores: of each pair.
    """
    results, diagrams = [], []
    for group, (values, labels) in _list_groups(pairs, scores).items():
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


def _list_groups(
    pairs: Sequence[LabelledPair], scores: Sequence[PairScores]
) -> dict[str, tuple[Shares, NDArray[np.bool_]]]:
    """Scores and labels of each group: of pairs, of all that match nothing, and of matches."""
    rows_of: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows_of.setdefault(pair.group, []).append(row)
    nothing = [row for rows in rows_of.values() if not any(pairs[r].is_match for r in rows) for row in rows]
    if nothing:
        rows_of[NOTHING] = nothing
    if nothing and SCENES in rows_of:
        rows_of[SCENES_AND_NOTHING] = [*rows_of[SCENES], *nothing]
    groups = {
        group: (np.array([scores[row].pair for row in rows]), np.array([pairs[row].is_match for row in rows]))
        for group, rows in rows_of.items()
    }
    for group, (source, is_matching) in MATCHES.items():
        chosen = [scores[row] for row in rows_of.get(source, []) if pairs[row].is_match or not is_matching]
        if any(len(entry.matches) for entry in chosen):
            values = np.concatenate([entry.matches for entry in chosen])
            groups[group] = values, np.concatenate([entry.is_correct for entry in chosen])
    return groups


def _share_accepted(scores: Shares) -> float:
    return float((scores >= THRESHOLD).mean()) if len(scores) else float("nan")
