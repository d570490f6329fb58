"""One batch, again and again: a run that cannot learn that by heart has a fault somewhere."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ucn.config import LossConfig, TrainConfig
from ucn.data.loading import mix_seed
from ucn.train.sources.batches import Mixture, Source
from ucn.types import PairBatch


class OneBatch(Source):
    """A source that gives the same batch for every step, and for validation too."""

    def __init__(self, batch: PairBatch, loss: LossConfig | None) -> None:
        super().__init__("one batch", 1.0, loss)
        self._batch = batch

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """The batch."""
        return self._batch

    def validation(self) -> Iterator[PairBatch]:
        """The batch."""
        yield self._batch

    def close(self) -> None:
        """Nothing runs in the background."""


def repeat_first_batch(mixture: Mixture, config: TrainConfig, device: torch.device) -> Mixture:
    """The first batch of a run as all that it trains on; what the mixture had in the background has ended.

    Args:
        mixture: what the run would train on.
        config: the run.
        device: where the run trains.
    """
    generator = torch.Generator(device).manual_seed(mix_seed(config.seed, "step", 1))
    with mixture:
        batch, loss = mixture.draw(1, generator), mixture.source_of(1).loss
        return Mixture([OneBatch(batch, loss)], config.seed, mixture.skipped)
