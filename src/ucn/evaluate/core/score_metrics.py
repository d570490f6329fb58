"""Metrics of a score that separates matching from non-matching pairs: pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.evaluate.core.metrics import Counts, Shares


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: share of matching pairs against their score.

    Attributes:
        edges: (K + 1,) bounds of the bins of scores.
        counts: (K,) pairs of each.
        mean_scores: (K,) their mean score; NaN where there are none.
        shares: (K,) share of them that match, in [0, 1]; NaN where there are none.
        error: expected calibration error: mean distance of score and share, weighted by the pairs of a bin.
    """

    edges: Shares
    counts: Counts
    mean_scores: Shares
    shares: Shares
    error: float


def area_under_roc(scores: ArrayLike, is_match: ArrayLike) -> float:
    """AUROC: the probability that a matching pair scores above a non-matching one, ties count half.

    Args:
        scores: (P,) finite.
        is_match: (P,) bool.

    Returns:
        In [0, 1]; NaN where there are no pairs of one kind.
    """
    values, labels = _check(scores, is_match)
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    # The rank sum of Mann and Whitney; tied scores share their mean rank.
    ordered, matching = np.sort(values), values[labels]
    below, up_to = (np.searchsorted(ordered, matching, side).sum() for side in ("left", "right"))
    ranks = (below + up_to + positives) / 2
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def brier_score(scores: ArrayLike, is_match: ArrayLike) -> float:
    """The mean squared distance of scores (P,) from labels 1 and 0; NaN where there are no pairs."""
    values, labels = _check(scores, is_match)
    return float(np.square(values - labels).mean()) if len(values) else float("nan")


def measure_reliability(scores: ArrayLike, is_match: ArrayLike, bins: int = 10) -> Reliability:
    """Compares scores with labels, in bins of equal width; a score of 1 is in the last.

    Args:
        scores: (P,) in [0, 1].
        is_match: (P,) bool.
        bins: how many.

    Raises:
        ValueError: the shapes do not fit, or a score is outside [0, 1].
    """
    values, labels = _check(scores, is_match)
    if len(values) and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(f"scores must be in [0, 1], got {values.min():g} to {values.max():g}")
    bin_of = np.minimum((values * bins).astype(np.int64), bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, values, minlength=bins)
    hits = np.bincount(bin_of, labels, minlength=bins)
    is_used = counts > 0
    mean_scores, shares = np.full(bins, np.nan), np.full(bins, np.nan)
    mean_scores[is_used] = sums[is_used] / counts[is_used]
    shares[is_used] = hits[is_used] / counts[is_used]
    error = float("nan")
    if len(values):
        error = float(np.abs(hits - sums)[is_used].sum() / len(values))
    return Reliability(np.linspace(0, 1, bins + 1), counts, mean_scores, shares, error)


def _check(scores: ArrayLike, is_match: ArrayLike) -> tuple[Shares, NDArray[np.bool_]]:
    values, labels = np.asarray(scores, np.float64), np.asarray(is_match, np.bool_)
    if values.ndim != 1 or values.shape != labels.shape:
        raise ValueError(f"scores, is_match must both be (P,), got {values.shape} and {labels.shape}")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    return values, labels
