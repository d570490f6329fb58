"""Batches for training: opens and checks the sources of a run, and mixes them by weight.

`Mixture.sample_batch` gives a step its batch, which `train/step.py` takes. The source of a step, and its
pairs, depend on the seed and the step alone, so that a run can resume at any step without a stored state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Self

import torch

from ucn.config import SourceConfig, TrainConfig
from ucn.config.training import CLASSES
from ucn.data.catalogue import open_data, parse_options
from ucn.data.checking import check_data, skip_bad
from ucn.data.loading import derive_seed
from ucn.data.pairs import PairData, Problem
from ucn.data.synthetic import list_images
from ucn.errors import DataError
from ucn.train.sources.classes import ClassSource
from ucn.train.sources.data_sets import DataSource, PartSource
from ucn.train.sources.photographs import (
    Photographs,
    PhotoSource,
    read_photographs,
    split_images,
    split_photographs,
)
from ucn.train.sources.source import Source, format_problems
from ucn.types import PairBatch

__all__ = [
    "PHOTOGRAPHS",
    "DataSource",
    "Mixture",
    "PartSource",
    "PhotoSource",
    "Skipped",
    "SkippedPair",
    "Source",
    "open_sources",
]

PHOTOGRAPHS = "synthetic"
"""The name of sources that are photographs."""
_SMALL = 2  # batches' worth of pairs to open where one batch is repeated: part of them is held out
_VALIDATION_PAIRS = 64
_VALIDATION_PART_PAIRS = 256  # more, since they have few points and small images


@dataclass(frozen=True)
class Skipped:
    """What is left out of a source when it is opened, because of bad files.

    Attributes:
        label: of the source.
        problems: of the files.
        pairs: number of pairs, or of images, that are left out.
    """

    label: str
    problems: tuple[Problem, ...]
    pairs: int


@dataclass(frozen=True)
class SkippedPair:
    """A pair that could not be read during training and was replaced by another.

    Attributes:
        label: of the source.
        name: of the pair.
        message: the error.
    """

    label: str
    name: str
    message: str


class Mixture:
    """The sources of a run; each step samples one of them, by weight.

    Attributes:
        sources: in the recipe's order.
        skipped: what was left out of them.
    """

    def __init__(self, sources: Sequence[Source], seed: int, skipped: Sequence[Skipped] = ()) -> None:
        self.sources, self.skipped = tuple(sources), tuple(skipped)
        self._seed = seed
        self._bounds = list(accumulate(source.weight for source in sources))
        self._step, self._counts = 1, Counter[int]()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why metrics should not be trusted, such as validation on training images."""
        return tuple(source.warning for source in self.sources if source.warning)

    def skipped_pairs(self) -> tuple[SkippedPair, ...]:
        """The pairs that were replaced so far because they could not be read, each once."""
        return tuple(
            SkippedPair(source.label, name, message)
            for source in self.sources
            for name, message in (source.skipped_pairs or {}).items()
        )

    def source_of(self, step: int) -> Source:
        """The source of the batch of a step, counted from 1."""
        return self.sources[self._choose(step)]

    def sample_batch(self, step: int, generator: torch.Generator) -> PairBatch:
        """The batch of a step.

        Args:
            step: counted from 1.
            generator: seeded for the step, on the device.
        """
        if step < self._step:
            self._step, self._counts = 1, Counter()
        for earlier in range(self._step, step):
            self._counts[self._choose(earlier)] += 1
        self._step = step
        chosen = self._choose(step)
        return self.sources[chosen].sample_batch(self._counts[chosen], generator)

    def _choose(self, step: int) -> int:
        share = derive_seed(self._seed, "choice", step) / 2**63
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
    is_small: bool = False,
    watch: Callable[[str, int, int], None] | None = None,
) -> Mixture:
    """Opens the training data of a run; data sets are checked first.

    Args:
        config: the run.
        images: a folder of photographs; replaces the recipe's, or is added to its sources.
        device: of the batches.
        use_skipping: leave out bad pairs instead of refusing their source, and replace pairs that turn out to
            be unreadable during training.
        is_small: open only the first photographs and pairs, enough for a batch, but all images by class.
        watch: called with (label, done, all) while a data set is checked, or photographs are read.

    Raises:
        DataError: there is nothing to train on, a folder is missing, or the check of a data set found
            problems.
    """
    sources: dict[int, Source] = {}  # by their index in the recipe
    photographs: dict[int, Photographs] = {}
    skipped: list[Skipped] = []
    share = config.validation_share
    for index, (label, source) in enumerate(_label(_plan(config.sources, images))):
        watch_this = None if watch is None else partial(watch, label)
        if source.name == PHOTOGRAPHS:
            images_found = list_images(Path(source.folder))
            few = _SMALL * (source.batch or config.batch) if is_small else None
            parts = split_photographs(images_found[:few], share)
        elif source.name == CLASSES:
            opened = sources[index] = ClassSource(
                label,
                source,
                share,
                batch=source.batch or config.batch,
                device=device,
                validation_pairs=_VALIDATION_PAIRS,
                seed=derive_seed(config.seed, "source", index),
                watch=watch_this,
            )
            if opened.problems:
                _refuse_unless(use_skipping, label, source, opened.problems)
                skipped.append(Skipped(label, opened.problems, len(opened.problems)))
            continue
        else:
            few = _SMALL * (source.batch or config.batch) if is_small else None
            data, left_out = _open_good(label, source, use_skipping, watch_this, few)
            skipped += left_out
            if not source.use_warps:
                seed = derive_seed(config.seed, "source", index)
                sources[index] = _open_set(label, source, data, config, seed, device, use_skipping)
                continue
            parts = split_images(label, data, share)
        entry = photographs[index] = read_photographs(label, source, parts, watch_this)
        if entry.problems:
            _refuse_unless(use_skipping, label, source, entry.problems)
            skipped.append(Skipped(label, entry.problems, len(entry.problems)))
    for index, entries in _group(photographs, config).items():
        sources[index] = PhotoSource(entries, config, device, _VALIDATION_PAIRS)
    return Mixture([sources[index] for index in sorted(sources)], config.seed, skipped)


def _group(photographs: Mapping[int, Photographs], config: TrainConfig) -> dict[int, list[Photographs]]:
    """Entries of equal batch size and loss, which share batches, by the index of the first."""
    first: dict[object, int] = {}
    groups: dict[int, list[Photographs]] = {}
    for index, entry in photographs.items():
        kind = (entry.source.batch or config.batch, entry.source.loss or config.loss)
        groups.setdefault(first.setdefault(kind, index), []).append(entry)
    return groups


def _open_good(
    label: str,
    source: SourceConfig,
    use_skipping: bool,
    watch: Callable[[int, int], None] | None,
    few: int | None = None,
) -> tuple[PairData, list[Skipped]]:
    """A checked data set, or its first pairs, and what is left out of it."""
    data = open_data(source.name, source.folder, source.split, parse_options(source.options))
    if few is not None:
        data = data.first_pairs(few)
    report = check_data(data, watch)
    if report.is_good:
        return data, []
    _refuse_unless(use_skipping, label, source, report.problems)
    good = skip_bad(data, report)
    if not len(good):
        found = format_problems(label, source, report.problems)
        raise DataError(f"{found}. Without them no pair is left to train on")
    return good, [Skipped(label, report.problems, len(data) - len(good))]


def _open_set(
    label: str,
    source: SourceConfig,
    data: PairData,
    config: TrainConfig,
    seed: int,
    device: torch.device,
    use_skipping: bool,
) -> Source:
    training, held_out = data.split_off(config.validation_share)
    kind = PartSource if source.on_device else DataSource
    opened = kind(
        label,
        source,
        training,
        held_out,
        batch=source.batch or config.batch,
        seed=seed,
        device=device,
        validation_pairs=_VALIDATION_PART_PAIRS if source.on_device else _VALIDATION_PAIRS,
        use_skipping=use_skipping,
    )
    if len(training) == len(held_out) == len(data):
        opened.warning = (
            f"{label}: validation uses the training pairs, since pairs connect all its images; "
            "add others, or do not trust its metrics for new images"
        )
    return opened


def _plan(sources: Sequence[SourceConfig], images: Path | None) -> list[SourceConfig]:
    """The sources of a run, with `images` as the folder of photographs."""
    plan = list(sources)
    if images is not None:
        names = [source.name for source in plan]
        index = names.index(PHOTOGRAPHS) if PHOTOGRAPHS in names else len(plan)
        given = plan[index] if index < len(plan) else SourceConfig(PHOTOGRAPHS)
        plan[index : index + 1] = [replace(given, folder=str(images))]
    if not plan:
        raise DataError("nothing to train on: give a folder of photographs (images) or a data set (sources)")
    for source in plan:
        if not source.folder:
            raise DataError(f"the source {source.name} has no folder: give data {source.name}=DIR")
    return plan


def _label(plan: Sequence[SourceConfig]) -> list[tuple[str, SourceConfig]]:
    """Each source with its label: its name, with -2 for the second of the same name, and so on."""
    seen: Counter[str] = Counter()
    labelled = []
    for source in plan:
        seen[source.name] += 1
        number = seen[source.name]
        labelled.append((source.name if number == 1 else f"{source.name}-{number}", source))
    return labelled


def _refuse_unless(is_allowed: bool, label: str, source: SourceConfig, problems: Sequence[Problem]) -> None:
    if not is_allowed:
        check = "" if source.name == CLASSES else f" (`ucn data check {source.name} DIR` lists all)"
        raise DataError(
            f"{format_problems(label, source, problems)}. Correct them{check}, or leave their pairs out with "
            "use_skipping=True"
        )
