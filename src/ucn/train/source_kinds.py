"""Where training pairs come from: photographs, data sets, or sets of images with parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ucn.config import LossConfig, SourceConfig, TrainConfig
from ucn.data.checking import spread, to_fault
from ucn.data.io import read_image
from ucn.data.loading import Fitting, PairLoader, load_in_order
from ucn.data.pairs import Fault, PairData
from ucn.data.part_pairs import PartBank, Variation, make_part_pairs
from ucn.data.photometric import change_photometrically
from ucn.data.sets.keypoints import KeypointData
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.errors import DataError, ImageReadError
from ucn.types import PairBatch

_CANVAS_SIDE = 448
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


@dataclass(frozen=True)
class Photographs:
    """The photographs of one entry of a recipe.

    Attributes:
        label: how reports call it.
        source: the entry.
        training: files to train on.
        held_out: files for validation; the same where there are no others.
    """

    label: str
    source: SourceConfig
    training: list[Path]
    held_out: list[Path]

    def choose(self, faults: Sequence[Fault]) -> list[Fault]:
        """Those of some faults that are about these photographs."""
        paths = {*self.training, *self.held_out}
        return [fault for fault in faults if fault.path in paths]


class PhotoSource(Source):
    """Pairs made from photographs on the device; a batch has those of all entries, by their weights.

    Batches of one entry each would teach a batch norm statistics that hold for none of them.

    Attributes:
        training: the photographs that are trained on.
        held_out: the photographs that are not; the same where no other can be read.
        faults: photographs that cannot be read and are left out.
    """

    def __init__(
        self,
        entries: Sequence[Photographs],
        config: TrainConfig,
        device: torch.device,
        validation_pairs: int,
        watch: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """Reads all photographs; raises `DataError` where none can be read.

        Args:
            entries: of the recipe, at least one, with one batch and one loss.
            config: the run.
            device: where to hold the photographs.
            validation_pairs: how many pairs a validation takes.
            watch: called with (label, read, all) while photographs are read.
        """
        source = entries[0].source
        label = " + ".join(entry.label for entry in entries)
        super().__init__(label, sum(entry.source.weight for entry in entries), source.loss)
        self._batch, self._synthetic, self._seed = source.batch or config.batch, config.synthetic, config.seed
        self._validation_pairs = validation_pairs
        self.faults: list[Fault] = []
        training = self._hold(entries, [entry.training for entry in entries], device, watch)
        is_same = all(entry.training == entry.held_out for entry in entries)
        held_out = training
        if not is_same:
            held_out = self._hold(entries, [entry.held_out for entry in entries], device, watch)
        good = [bank for bank in (training, held_out) if bank is not None]
        if not good:
            raise DataError(
                f"{say_faults(label, source, self.faults)}. Without them there is no photograph left"
            )
        self.training, self.held_out = good[0], good[-1]
        if self.training is self.held_out:
            self.warning = f"{label}: validation uses the photographs that are trained on, for want of others"
            self.warning += "; add photographs, or do not trust its figures for new images"

    def _hold(
        self,
        entries: Sequence[Photographs],
        parts: Sequence[Sequence[Path]],
        device: torch.device,
        watch: Callable[[str, int, int], None] | None,
    ) -> ImageBank | None:
        """The photographs of all entries; None where none can be read."""
        paths = [path for part in parts for path in part]
        weights = None
        if len(entries) > 1:
            pairs = zip(entries, parts, strict=True)
            weights = [entry.source.weight / len(part) for entry, part in pairs for _ in part]
        images = (
            image
            for entry, part in zip(entries, parts, strict=True)
            for image in self._read(entry.label, part, watch)
        )
        try:
            return ImageBank(paths, _CANVAS_SIDE, device, images, weights)
        except DataError:
            return None

    def _read(
        self, label: str, paths: Sequence[Path], watch: Callable[[str, int, int], None] | None
    ) -> Iterator[Tensor | None]:
        """Each photograph; None where it cannot be read."""
        for done, path in enumerate(paths, start=1):
            image = None
            try:
                image = read_image(path)
            except ImageReadError as error:
                self.faults.append(to_fault(error, path))
            if watch is not None:
                watch(label, done, len(paths))
            yield image

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch; the generator decides everything."""
        return make_pairs(self.training, self._batch, self._synthetic, generator)

    def validation(self) -> Iterator[PairBatch]:
        """Pairs of the photographs held out."""
        generator = torch.Generator(self.held_out.canvases.device).manual_seed(self._seed + 1)
        for _ in range(max(1, self._validation_pairs // self._batch)):
            yield make_pairs(self.held_out, self._batch, self._synthetic, generator)

    def close(self) -> None:
        """Nothing runs in the background."""


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


def split_photographs(paths: Sequence[Path], share: float) -> tuple[list[Path], list[Path]]:
    """Photographs for training and validation: every n-th is held out. A lone one serves both."""
    every = max(2, round(1 / share))
    held_out = list(paths[::every])
    return [path for index, path in enumerate(paths) if index % every] or held_out, held_out


def split_images(data: PairData, share: float) -> tuple[list[Path], list[Path]]:
    """Images of a data set for training and validation, as its pairs are split, each once and sorted."""
    training, held_out = data.split_off(share)
    return _list_set_images(training), _list_set_images(held_out)


def _list_set_images(data: PairData) -> list[Path]:
    if isinstance(data, KeypointData):  # whose pairs may be millions
        return sorted({example.image for example in data.examples})
    return sorted({path for index in range(len(data)) for path in data.image_paths(index)})


def say_faults(label: str, source: SourceConfig, faults: Sequence[Fault]) -> str:
    """How many faults a source has, and the first of them."""
    named = "; ".join(map(str, faults[:_NAMED_FAULTS]))
    more = "; …" if len(faults) > _NAMED_FAULTS else ""
    return f"{label} in {source.folder} has {len(faults):,} faults: {named}{more}"
