"""What a run trains on: its sources opened, checked, and mixed by weight.

Which source a step takes, and which pairs, depends on the seed and the step alone, so that a run can go on at
any step without anything remembered.
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
from ucn.data.catalogue import open_data, parse_options
from ucn.data.checking import check_data, skip_bad
from ucn.data.loading import mix_seed
from ucn.data.pairs import Fault, PairData
from ucn.data.synthetic import list_images
from ucn.errors import DataError
from ucn.train.sources.kinds import DataSource, PartSource, Source, say_faults
from ucn.train.sources.photographs import (
    Photographs,
    PhotoSource,
    read_photographs,
    split_images,
    split_photographs,
)
from ucn.types import PairBatch

__all__ = [
    "PHOTOGRAPHS",
    "DataSource",
    "LateSkip",
    "Mixture",
    "PartSource",
    "PhotoSource",
    "Skipped",
    "Source",
    "open_sources",
]

PHOTOGRAPHS = "synthetic"
"""The name of the source that makes pairs from photographs."""
_VALIDATION_PAIRS = 64
_VALIDATION_PART_PAIRS = 256  # they have few points each, and small images


@dataclass(frozen=True)
class Skipped:
    """What a run leaves out of a source from the start, since files are wrong.

    Attributes:
        label: of the source.
        faults: what is wrong.
        pairs: how many pairs are left out; of photographs, how many of them.
    """

    label: str
    faults: tuple[Fault, ...]
    pairs: int


@dataclass(frozen=True)
class LateSkip:
    """A pair that could not be read when its turn came, so that another one took its place.

    Attributes:
        label: of the source.
        name: of the pair.
        message: what is wrong.
    """

    label: str
    name: str
    message: str


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

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is to be known before figures are trusted, such as validation on what is trained on."""
        return tuple(source.warning for source in self.sources if source.warning)

    def late_skips(self) -> tuple[LateSkip, ...]:
        """The pairs that were replaced so far, since they could not be read; each once."""
        return tuple(
            LateSkip(source.label, name, message)
            for source in self.sources
            for name, message in (source.late_skips or {}).items()
        )

    def source_of(self, step: int) -> Source:
        """The source that the batch of a step, counted from 1, comes from."""
        return self.sources[self._choose(step)]

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
        use_skipping: leave out what is faulty instead of refusing its source, and replace pairs that turn out
            to be unreadable while training goes on.
        watch: called with (label, done, all) while a data set is checked, or photographs are read.

    Raises:
        DataError: there is nothing to train on, a folder is missing, or the check of a data set found faults.
    """
    sources: dict[int, Source] = {}  # by their places in the recipe
    photographs: dict[int, Photographs] = {}
    skipped: list[Skipped] = []
    share = config.validation_share
    for place, (label, source) in enumerate(_label(_plan(config.sources, images))):
        watch_this = None if watch is None else partial(watch, label)
        if source.name == PHOTOGRAPHS:
            parts = split_photographs(list_images(Path(source.folder)), share)
        else:
            data, left_out = _open_good(label, source, use_skipping, watch_this)
            skipped += left_out
            if not source.use_warps:
                seed = mix_seed(config.seed, "source", place)
                sources[place] = _open_set(label, source, data, config, seed, device, use_skipping)
                continue
            parts = split_images(label, data, share)
        entry = photographs[place] = read_photographs(label, source, parts, watch_this)
        if entry.faults:
            _refuse_unless(use_skipping, label, source, entry.faults)
            skipped.append(Skipped(label, entry.faults, len(entry.faults)))
    for place, entries in _group(photographs, config).items():
        sources[place] = PhotoSource(entries, config, device, _VALIDATION_PAIRS)
    return Mixture([sources[place] for place in sorted(sources)], config.seed, skipped)


def _group(photographs: Mapping[int, Photographs], config: TrainConfig) -> dict[int, list[Photographs]]:
    """Entries that share their batches, since size and loss are the same, by the place of the first."""
    first: dict[object, int] = {}
    groups: dict[int, list[Photographs]] = {}
    for place, entry in photographs.items():
        kind = (entry.source.batch or config.batch, entry.source.loss or config.loss)
        groups.setdefault(first.setdefault(kind, place), []).append(entry)
    return groups


def _open_good(
    label: str, source: SourceConfig, use_skipping: bool, watch: Callable[[int, int], None] | None
) -> tuple[PairData, list[Skipped]]:
    """A data set, checked, and what is left out of it since files are wrong."""
    data = open_data(source.name, source.folder, source.split, parse_options(source.options))
    report = check_data(data, watch)
    if report.is_good:
        return data, []
    _refuse_unless(use_skipping, label, source, report.faults)
    good = skip_bad(data, report)
    if not len(good):
        found = say_faults(label, source, report.faults)
        raise DataError(f"{found}. Without them there is no pair left to train on")
    return good, [Skipped(label, report.faults, len(data) - len(good))]


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
            f"{label}: validation uses the pairs that are trained on, since pairs connect all its images; "
            "add others, or do not trust its figures for new images"
        )
    return opened


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


def _refuse_unless(is_allowed: bool, label: str, source: SourceConfig, faults: Sequence[Fault]) -> None:
    if not is_allowed:
        raise DataError(
            f"{say_faults(label, source, faults)}. Mend them (`ucn data check {source.name} DIR` lists all), "
            "or leave their pairs out with --skip-bad"
        )
