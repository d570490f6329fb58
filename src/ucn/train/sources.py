"""Where training pairs come from: photographs and data sets, mixed by weight.

Which source a step takes, and which pairs, depends on the seed and the step alone, so that a run can go on at
any step without anything remembered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Self

import torch

from ucn.config import SourceConfig, TrainConfig
from ucn.data.catalogue import open_data, parse_options
from ucn.data.checking import CheckReport, check_data, skip_bad, spread
from ucn.data.loading import Fitting, PairLoader, load_in_order, mix_seed
from ucn.data.pairs import Fault, PairData
from ucn.data.part_pairs import PartBank, Variation, make_part_pairs
from ucn.data.photometric import change_photometrically
from ucn.data.sets.keypoints import KeypointData
from ucn.data.synthetic import ImageBank, list_images, make_pairs
from ucn.errors import DataError
from ucn.types import PairBatch

PHOTOGRAPHS = "synthetic"
"""The name of the source that makes pairs from photographs."""
_CANVAS_SIDE = 448
_VALIDATION_PAIRS = 64
_NAMED_FAULTS = 3


class Source(ABC):
    """One place that pairs come from.

    Attributes:
        label: how reports call it.
        weight: share of the steps, against those of the others.
    """

    def __init__(self, label: str, weight: float) -> None:
        self.label, self.weight = label, weight

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


class PhotoSource(Source):
    """Pairs made from photographs on the device.

    Attributes:
        held_out: the photographs that are not trained on.
    """

    def __init__(self, label: str, source: SourceConfig, config: TrainConfig, device: torch.device) -> None:
        super().__init__(label, source.weight)
        self._batch, self._synthetic, self._seed = source.batch or config.batch, config.synthetic, config.seed
        training, held_out = _split_images(list_images(Path(source.folder)), config.validation_share)
        self._training = ImageBank(training, _CANVAS_SIDE, device)
        self.held_out = ImageBank(held_out, _CANVAS_SIDE, device)

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch; the generator decides everything."""
        return make_pairs(self._training, self._batch, self._synthetic, generator)

    def validation(self) -> Iterator[PairBatch]:
        """Pairs of the photographs held out."""
        generator = torch.Generator(self.held_out.canvases.device).manual_seed(self._seed + 1)
        for _ in range(max(1, _VALIDATION_PAIRS // self._batch)):
            yield make_pairs(self.held_out, self._batch, self._synthetic, generator)

    def close(self) -> None:
        """Nothing runs in the background."""


class _SetSource(Source):
    """A data set; where its pairs for training come from is said by derived classes."""

    _validation_pairs = _VALIDATION_PAIRS

    def __init__(
        self,
        label: str,
        source: SourceConfig,
        held_out: PairData,
        *,
        batch: int,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(label, source.weight)
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
        )
        for batch in batches:
            yield batch.to(self._device)


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
    ) -> None:
        super().__init__(label, source, held_out, batch=batch, seed=seed, device=device)
        self._loader = PairLoader(
            training,
            self._fitting,
            batch=batch,
            points=source.points,
            seed=seed,
            workers=source.workers,
            pin=self._pin,
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

    _validation_pairs = 256  # they have few points each, and small images

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
    ) -> None:
        super().__init__(label, source, held_out, batch=batch, seed=seed, device=device)
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


@dataclass(frozen=True)
class Skipped:
    """Pairs of a data set that a run leaves out, since their files are wrong.

    Attributes:
        label: of the source.
        faults: what is wrong.
        pairs: how many pairs are left out.
    """

    label: str
    faults: tuple[Fault, ...]
    pairs: int


class Mixture:
    """All sources of a run, of which each step draws one by weight.

    Attributes:
        sources: they, in the recipe's order.
        skipped: what was left out of them.
    """

    def __init__(self, sources: Sequence[Source], seed: int, skipped: Sequence[Skipped] = ()) -> None:
        self.sources, self.skipped = tuple(sources), tuple(skipped)
        self._seed = seed
        self._bounds = list(accumulate(source.weight for source in sources))
        self._step, self._counts = 1, Counter[int]()

    def draw(self, step: int, generator: torch.Generator) -> PairBatch:
        """The batch of a step, counted from 1.

        Args:
            step: which.
            generator: freshly seeded for the step, on the device.
        """
        if step < self._step:
            self._step, self._counts = 1, Counter()
        for earlier in range(self._step, step):
            self._counts[self._choose(earlier)] += 1
        self._step = step
        chosen = self._choose(step)
        return self.sources[chosen].draw(self._counts[chosen], generator)

    def _choose(self, step: int) -> int:
        share = mix_seed(self._seed, "choice", step) / 2**63
        return min(bisect_right(self._bounds, share * self._bounds[-1]), len(self.sources) - 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self.sources:
            source.close()


def open_sources(
    config: TrainConfig,
    images: Path | None,
    device: torch.device,
    *,
    use_skipping: bool = False,
    watch: Callable[[str, int, int], None] | None = None,
) -> Mixture:
    """Opens everything that a run trains on; data sets are checked first.

    Args:
        config: the run.
        images: a folder of photographs; it takes the place of the recipe's, or is added to its sources.
        device: where batches are wanted.
        use_skipping: leave out pairs with faulty files instead of refusing their data set.
        watch: called with (label, done, all) while a data set is checked.

    Raises:
        DataError: there is nothing to train on, a folder is missing, or the check of a data set found faults.
    """
    plan = _plan(config.sources, images)
    sources: list[Source] = []
    skipped: list[Skipped] = []
    for place, (label, source) in enumerate(_label(plan)):
        if source.name == PHOTOGRAPHS:
            sources.append(PhotoSource(label, source, config, device))
            continue
        data = open_data(source.name, source.folder, source.split, parse_options(source.options))
        report = check_data(data, None if watch is None else partial(watch, label))
        training, held_out = data.split_off(config.validation_share)
        if not report.is_good:
            training, held_out = _skip(label, source, training, held_out, report, use_skipping)
            skipped.append(Skipped(label, report.faults, len(data) - len(skip_bad(data, report))))
        batch, seed = source.batch or config.batch, mix_seed(config.seed, "source", place)
        kind = PartSource if source.on_device else DataSource
        sources.append(kind(label, source, training, held_out, batch=batch, seed=seed, device=device))
    return Mixture(sources, config.seed, skipped)


def _plan(sources: Sequence[SourceConfig], images: Path | None) -> list[SourceConfig]:
    """The sources of a run, with the folder of photographs of the command line."""
    plan = list(sources)
    if images is not None:
        names = [source.name for source in plan]
        place = names.index(PHOTOGRAPHS) if PHOTOGRAPHS in names else len(plan)
        given = plan[place] if place < len(plan) else SourceConfig(PHOTOGRAPHS)
        plan[place : place + 1] = [replace(given, folder=str(images))]
    if not plan:
        raise DataError(
            "nothing to train on: give a folder of photographs (--images DIR) or a data set (--data NAME=DIR)"
        )
    for source in plan:
        if not source.folder:
            raise DataError(f"the source {source.name} has no folder: give --data {source.name}=DIR")
    return plan


def _label(plan: Sequence[SourceConfig]) -> list[tuple[str, SourceConfig]]:
    """Each source with its name, the second of a name with a 2, and so on."""
    seen: Counter[str] = Counter()
    labelled = []
    for source in plan:
        seen[source.name] += 1
        number = seen[source.name]
        labelled.append((source.name if number == 1 else f"{source.name}-{number}", source))
    return labelled


def _split_images(paths: Sequence[Path], share: float) -> tuple[list[Path], list[Path]]:
    """Photographs for training and validation: every n-th is held out. A lone one serves both."""
    every = max(2, round(1 / share))
    held_out = list(paths[::every])
    return [path for index, path in enumerate(paths) if index % every] or held_out, held_out


def _skip(
    label: str,
    source: SourceConfig,
    training: PairData,
    held_out: PairData,
    report: CheckReport,
    use_skipping: bool,
) -> tuple[PairData, PairData]:
    """The pairs for training and validation without faulty files."""
    named = "; ".join(map(str, report.faults[:_NAMED_FAULTS]))
    more = "; …" if len(report.faults) > _NAMED_FAULTS else ""
    found = f"{label} in {source.folder} has {len(report.faults):,} faults: {named}{more}"
    if not use_skipping:
        raise DataError(
            f"{found}. Mend them (`ucn data check {source.name} DIR` lists all), or leave their pairs out "
            "with --skip-bad"
        )
    training, held_out = skip_bad(training, report), skip_bad(held_out, report)
    if not len(training):
        raise DataError(f"{found}. Without them there is no pair left to train on")
    return training, held_out if len(held_out) else training
