"""`Source`: what every origin of training pairs implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch

from ucn.config import LossConfig, SourceConfig
from ucn.data.pairs import Problem
from ucn.types import PairBatch

_SHOWN_PROBLEMS = 3


class Source(ABC):
    """An origin of training pairs: a data set, or photographs.

    Attributes:
        label: name in reports.
        weight: share of the steps, relative to the weights of the other sources.
        loss: of its steps; None: the run's.
        warning: why its metrics should not be trusted, such as validation on training images; mostly empty.
        skipped_pairs: messages by name of pairs that could not be read during training and were replaced;
            None where such pairs raise.
    """

    def __init__(self, label: str, weight: float, loss: LossConfig | None = None) -> None:
        self.label, self.weight, self.loss, self.warning = label, weight, loss, ""
        self.skipped_pairs: dict[str, str] | None = None

    @abstractmethod
    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """A training batch, on the device.

        Args:
            number: index of the batch among those of this source, from 0.
            generator: seeded for the step, on the device.
        """

    @abstractmethod
    def validation_batches(self) -> Iterator[PairBatch]:
        """The held-out batches, on the device; the same in each validation."""

    @abstractmethod
    def close(self) -> None:
        """Ends worker processes."""


def format_problems(label: str, source: SourceConfig, problems: Sequence[Problem]) -> str:
    """The number of problems of a source, and the first of them."""
    shown = "; ".join(map(str, problems[:_SHOWN_PROBLEMS]))
    more = "; …" if len(problems) > _SHOWN_PROBLEMS else ""
    return f"{label} in {source.folder} has {len(problems):,} problems: {shown}{more}"
