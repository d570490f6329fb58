"""Validation: PCK of dense nearest-neighbour matches, with sub-cell refinement, on held-out pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.config import LossConfig
from ucn.config.training import Levels
from ucn.matching.cells import match_forward
from ucn.nn import CorrespondenceNetwork
from ucn.train.sources.batches import Source
from ucn.train.step import Precision, choose_levels, encode_pair
from ucn.types import PairBatch

_PIXELS = (1, 3, 5, 10)
_SHARES = (0.1, 0.05)  # of `pck_length`, for semantic sets
_HEADLINES = ("pck@5", "pck@0.1")  # the metrics by which networks are compared


@dataclass(frozen=True)
class Validation:
    """Metrics of held-out pairs.

    Attributes:
        pck: share of points matched within a number of pixels (``pck@5``) or, for semantic sets, within a
            share of `pck_length` (``pck@0.1``); with several sources each name begins with its source's
            label.
        score: mean over the sources of PCK within 5 pixels or a tenth of the length.
    """

    pck: dict[str, float]
    score: float


def validate(
    model: CorrespondenceNetwork,
    sources: Sequence[Source],
    precision: Precision = "bf16",
    loss: LossConfig = LossConfig(),  # noqa: B008 (frozen)
) -> Validation:
    """Computes the metrics of each source's held-out pairs, which are the same each time.

    Args:
        model: on the device of the pairs.
        sources: of the run.
        precision: of the forward pass on a GPU.
        loss: of sources without their own; pairs are matched by the levels of descriptors that it trains.
    """
    pck: dict[str, float] = {}
    scores: list[float] = []
    for source in sources:
        metrics = _measure(model, source, precision, (source.loss or loss).levels)
        prefix = f"{source.label} " if len(sources) > 1 else ""
        pck |= {prefix + name: value for name, value in metrics.items()}
        scores += [metrics[name] for name in _HEADLINES if not math.isnan(metrics.get(name, math.nan))]
    return Validation(pck, sum(scores) / max(1, len(scores)))


@torch.no_grad()
def _measure(
    model: CorrespondenceNetwork, source: Source, precision: Precision, levels: Levels
) -> dict[str, float]:
    """The metrics of one source; NaN where its held-out pairs have no points."""
    errors: list[Tensor] = []
    has_lengths = False
    for batch in source.validation_batches():
        has_lengths = batch.pck_length is not None
        errors += [match_errors(model, pair, precision, levels) for pair in batch]
    merged = torch.cat(errors)
    thresholds: tuple[float, ...] = _SHARES if has_lengths else _PIXELS
    return {f"pck@{t:g}": (merged <= t).float().mean().item() for t in thresholds}


def match_errors(
    model: CorrespondenceNetwork,
    pair: PairBatch,
    precision: Precision = "bf16",
    levels: Levels = "all",
) -> Tensor:
    """End-point errors (N,) of matches: in pixels, or as a share of `pck_length` where the pair has one."""
    points0, points1 = pair.points0[0][pair.is_valid[0]], pair.points1[0][pair.is_valid[0]]
    errors: Tensor = (match_batch_points(model, pair, points0, precision, levels) - points1).norm(dim=-1)
    return errors if pair.pck_length is None else errors / pair.pck_length


@torch.no_grad()
def match_batch_points(
    model: CorrespondenceNetwork,
    pair: PairBatch,
    points0: Tensor,
    precision: Precision = "bf16",
    levels: Levels = "all",
) -> Tensor:
    """Matches (N, 2) in image 1 of points (N, 2) of image 0, for a batch of one pair."""
    maps = choose_levels(*encode_pair(model, pair, precision), levels)
    return match_forward(*maps, points0).points
