"""Sources that are data sets: pairs read by worker processes, or made on the device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import torch

from ucn.config import SourceConfig
from ucn.data.augment.photometric import change_photometrically
from ucn.data.checking import spread
from ucn.data.loading import PairAugmentation, PairLoader
from ucn.data.pairs import PairData
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.synthetic.part_pairs import PartAugmentation, PartBank, make_part_pairs
from ucn.errors import DataError
from ucn.train.sources.source import Source
from ucn.types import PairBatch


class _DataSetSource(Source):
    """What both have in common: the settings, and validation on the held-out pairs."""

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
        super().__init__(label, source.weight, source.loss)
        self._validation_pairs = validation_pairs
        if use_skipping:
            self.skipped_pairs = {}
        self._source, self._held_out, self._device = source, held_out, device
        self._batch, self._seed, self._pin = batch, seed, device.type == "cuda"
        self._augmentation = PairAugmentation(
            source.crop_hw,
            source.fit,
            source.min_points,
            source.mirror,
            source.mirror_view,
            source.rotation,
            source.scale,
        )
        self._open(training)

    @abstractmethod
    def _open(self, training: PairData) -> None:
        """Prepares the training pairs."""

    def validation_batches(self) -> Iterator[PairBatch]:
        """Held-out pairs, spread over the set, without random augmentation."""
        loader = self._make_loader(self._held_out, self._augmentation.for_validation())
        batches = loader.in_order(spread(len(self._held_out), self._validation_pairs))
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch.to(self._device)
        if is_empty:
            first = next(iter((self.skipped_pairs or {}).values()), "there is none")
            raise DataError(
                f"no held-out pair of {self.label} can be read, the first: {first}; check the set"
            )

    def _make_loader(self, data: PairData, augmentation: PairAugmentation) -> PairLoader:
        return PairLoader(
            data,
            augmentation,
            batch=self._batch,
            points=self._source.points,
            seed=self._seed,
            workers=self._source.workers,
            pin=self._pin,
            skipped=self.skipped_pairs,
        )


class DataSource(_DataSetSource):
    """Pairs of a data set, read by worker processes; photometric augmentation runs on the device."""

    def _open(self, training: PairData) -> None:
        self._loader = self._make_loader(training, self._augmentation)
        self._next, self._batches = 0, self._loader.batches()

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """The batch of a number; workers read the next numbers in advance."""
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


class PartSource(_DataSetSource):
    """Pairs of a data set of annotated parts; its images are held on the device, and pairs made there."""

    def _open(self, training: PairData) -> None:
        source = self._source
        if not isinstance(training, KeypointData):
            raise DataError(f"{self.label} has no images with parts: set on_device to false for it")
        self._bank = PartBank(training, max(source.crop_hw), self._device)
        self._part_augmentation = PartAugmentation(
            rotation=source.rotation,
            scale=source.scale,
            shift=source.shift,
            mirror=source.mirror,
            mirror_view=source.mirror_view,
            across=source.across,
            photometric=source.photometric,
        )

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch that the generator alone determines."""
        return make_part_pairs(
            self._bank, self._batch, self._source.crop_hw, self._part_augmentation, generator
        )

    def close(self) -> None:
        """Nothing to end."""
