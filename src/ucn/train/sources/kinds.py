"""Where training pairs come from: what a source is, data sets, and sets of images with parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ucn.config import LossConfig, SourceConfig
from ucn.data.augment.photometric import change_photometrically
from ucn.data.checking import spread
from ucn.data.loading import Fitting, PairLoader, load_in_order
from ucn.data.pairs import Fault, PairData
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.synthetic.part_pairs import PartBank, Variation, make_part_pairs
from ucn.errors import DataError
from ucn.types import PairBatch

_NAMED_FAULTS = 3


class Source(ABC):
    """One place that pairs come from.

    Attributes:
        label: how reports call it.
        weight: share of the steps, against those of the others.
        loss: of its steps; None where the run's holds.
        warning: what is to be known before its figures are trusted; empty where nothing is.
        late_skips: pairs that could not be read when their turn came and were replaced, by name with what is
            wrong; None where such pairs raise.
    """

    def __init__(self, label: str, weight: float, loss: LossConfig | None = None) -> None:
        self.label, self.weight, self.loss, self.warning = label, weight, loss, ""
        self.late_skips: dict[str, str] | None = None

    @abstractmethod
    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch for training on the device.

        Args:
            number: how many batches came from this source before.
            generator: freshly seeded for the step, on the device.
        """

    @abstractmethod
    def validation(self) -> Iterator[PairBatch]:
        """The batches held out for validation, on the device, the same each time."""

    @abstractmethod
    def close(self) -> None:
        """Ends what runs in the background."""


class _SetSource(Source):
    """A data set; where its pairs for training come from is said by derived classes."""

    def __init__(
        self,
        label: str,
        source: SourceConfig,
        held_out: PairData,
        *,
        batch: int,
        seed: int,
        device: torch.device,
        validation_pairs: int,
        use_skipping: bool,
    ) -> None:
        super().__init__(label, source.weight, source.loss)
        self._validation_pairs = validation_pairs
        if use_skipping:
            self.late_skips = {}
        self._source, self._held_out, self._device = source, held_out, device
        self._batch, self._seed, self._pin = batch, seed, device.type == "cuda"
        self._fitting = Fitting(
            source.crop_hw,
            source.fit,
            source.min_points,
            source.mirror,
            source.mirror_view,
            source.rotation,
            source.scale,
        )

    def validation(self) -> Iterator[PairBatch]:
        """Pairs of the images held out, spread over them, without random changes."""
        batches = load_in_order(
            self._held_out,
            spread(len(self._held_out), self._validation_pairs),
            self._fitting.without_changes(),
            batch=self._batch,
            points=self._source.points,
            seed=self._seed,
            workers=self._source.workers,
            pin=self._pin,
            skipped=self.late_skips,
        )
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch.to(self._device)
        if is_empty:
            first = next(iter((self.late_skips or {}).values()), "there is none")
            raise DataError(
                f"no held-out pair of {self.label} can be read, the first: {first}; check the set"
            )


class DataSource(_SetSource):
    """Pairs of a data set, read by worker processes, recoloured on the device."""

    def __init__(
        self,
        label: str,
        source: SourceConfig,
        training: PairData,
        held_out: PairData,
        *,
        batch: int,
        seed: int,
        device: torch.device,
        validation_pairs: int,
        use_skipping: bool,
    ) -> None:
        super().__init__(
            label,
            source,
            held_out,
            batch=batch,
            seed=seed,
            device=device,
            validation_pairs=validation_pairs,
            use_skipping=use_skipping,
        )
        self._loader = PairLoader(
            training,
            self._fitting,
            batch=batch,
            points=source.points,
            seed=seed,
            workers=source.workers,
            pin=self._pin,
            skipped=self.late_skips,
        )
        self._next, self._batches = 0, self._loader.batches()

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """The batch of a number; one after the other comes from the workers without waiting."""
        if number != self._next:
            self.close()
            self._next, self._batches = number, self._loader.batches(number)
        batch = next(self._batches).to(self._device)
        self._next += 1
        images = torch.stack([batch.image0, batch.image1])
        image0, image1 = change_photometrically(images, self._source.photometric, generator)
        return replace(batch, image0=image0, image1=image1)

    def close(self) -> None:
        """Ends the workers."""
        self._batches.close()


class PartSource(_SetSource):
    """Pairs of a set of images with parts, all held on the device and made there."""

    def __init__(
        self,
        label: str,
        source: SourceConfig,
        training: PairData,
        held_out: PairData,
        *,
        batch: int,
        seed: int,
        device: torch.device,
        validation_pairs: int,
        use_skipping: bool,
    ) -> None:
        super().__init__(
            label,
            source,
            held_out,
            batch=batch,
            seed=seed,
            device=device,
            validation_pairs=validation_pairs,
            use_skipping=use_skipping,
        )
        if not isinstance(training, KeypointData):
            raise DataError(f"{label} has no images with parts: set on_device to false for it")
        self._bank = PartBank(training, max(source.crop_hw), device)
        self._variation = Variation(
            rotation=source.rotation,
            scale=source.scale,
            shift=source.shift,
            mirror=source.mirror,
            mirror_view=source.mirror_view,
            across=source.across,
            photometric=source.photometric,
        )

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch; the generator decides everything."""
        return make_part_pairs(self._bank, self._batch, self._source.crop_hw, self._variation, generator)

    def close(self) -> None:
        """Nothing runs in the background."""


def say_faults(label: str, source: SourceConfig, faults: Sequence[Fault]) -> str:
    """How many faults a source has, and the first of them."""
    named = "; ".join(map(str, faults[:_NAMED_FAULTS]))
    more = "; …" if len(faults) > _NAMED_FAULTS else ""
    return f"{label} in {source.folder} has {len(faults):,} faults: {named}{more}"
