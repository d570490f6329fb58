"""Overfitting one batch: a run that cannot do this has a bug."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ucn.config import LossConfig, TrainConfig
from ucn.data.loading import derive_seed
from ucn.train.sources.batches import Mixture, Source
from ucn.types import PairBatch


class OneBatch(Source):
    """A source that returns the same batch for every step and for validation."""

    def __init__(self, batch: PairBatch, loss: LossConfig | None) -> None:
        super().__init__("one batch", 1.0, loss)
        self._batch = batch

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """The batch."""
        return self._batch

    def validation_batches(self) -> Iterator[PairBatch]:
        """The batch."""
        yield self._batch

    def close(self) -> None:
        """Nothing to end."""


def repeat_first_batch(mixture: Mixture, config: TrainConfig, device: torch.device) -> Mixture:
    """A mixture of the first batch only; the workers of the given mixture are ended.

    Args:
        mixture: the training data of the run.
        config: the run.
        device: where the run trains.
    """
    generator = torch.Generator(device).manual_seed(derive_seed(config.seed, "step", 1))
    with mixture:
        batch, loss = mixture.sample_batch(1, generator), mixture.source_of(1).loss
        return Mixture([OneBatch(batch, loss)], config.seed, mixture.skipped)
