"""Pairs made of photographs: the files of a run's folders and data sets, read, held out and mixed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ucn.config import SourceConfig, TrainConfig
from ucn.data.checking import to_fault
from ucn.data.io import read_image
from ucn.data.loading import mix_seed
from ucn.data.pairs import Fault, PairData
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.errors import DataError, ImageReadError
from ucn.train.sources.kinds import Source, say_faults
from ucn.types import PairBatch

_CANVAS_SIDE = 448
_READ_AHEAD = 64
"""Photographs held decoded before their turn."""
_PAIRS_AT_ONCE = 32
"""Pairs that a GPU makes at once, for one step or more: few of them take longer to launch than to make."""


@dataclass(frozen=True)
class Photographs:
    """The photographs of one entry of a recipe, in the main memory.

    Attributes:
        label: how reports call the entry.
        source: the entry.
        training: the photographs that are trained on.
        held_out: the photographs that are not; the same where no other can be read.
        faults: files that cannot be read and are left out.
    """

    label: str
    source: SourceConfig
    training: ImageBank
    held_out: ImageBank
    faults: tuple[Fault, ...]


class PhotoSource(Source):
    """Pairs made from photographs on the device; a batch has those of all its entries, by their weights.

    Batches of one entry each would teach a batch norm statistics that hold for none of them.

    Attributes:
        training: the photographs that are trained on.
        held_out: the photographs that are not; those of an entry that has no others are in both.
        ahead: of how many steps the batches are made at once.
    """

    def __init__(
        self,
        entries: Sequence[Photographs],
        config: TrainConfig,
        device: torch.device,
        validation_pairs: int,
    ) -> None:
        """Brings photographs to the device.

        Args:
            entries: of the recipe, at least one; they have one batch and one loss.
            config: the run.
            device: where to hold the photographs.
            validation_pairs: how many pairs a validation takes.
        """
        source = entries[0].source
        weights = [entry.source.weight for entry in entries]
        super().__init__(" + ".join(entry.label for entry in entries), sum(weights), source.loss)
        self._batch, self._synthetic, self._seed = source.batch or config.batch, config.synthetic, config.seed
        self._validation_pairs = validation_pairs
        self.ahead = _count_ahead(device, self._batch)
        self._group, self._made = -1, list[PairBatch]()
        self.training = ImageBank.join([entry.training for entry in entries], weights, device)
        lacking = [entry.label for entry in entries if entry.held_out is entry.training]
        self.held_out = self.training
        if len(lacking) < len(entries):
            self.held_out = ImageBank.join([entry.held_out for entry in entries], weights, device)
        if lacking:
            self.warning = (
                f"{' + '.join(lacking)}: validation uses the photographs that are trained on, for want of "
                "others; add photographs, or do not trust its figures for new images"
            )

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch; the generator decides everything, unless batches of several steps are made at once.

        These come from a generator of their own, which follows from the number: a run that goes on amid
        them, or draws in another order, gets the same ones.
        """
        if self.ahead == 1:
            return make_pairs(self.training, self._batch, self._synthetic, generator)
        group, place = divmod(number, self.ahead)
        if group != self._group:
            self._group, self._made = -1, []  # given back before the next are made
            self._made = list(self._make_group(group))
            self._group = group
        return self._made[place]

    def _make_group(self, group: int) -> Iterator[PairBatch]:
        """The batches of several steps.

        Each pair is as likely to be of any kind as the others: `make_pairs` shuffles where kinds have places.
        """
        seed = mix_seed(self._seed, "photographs", self.label, group)  # a seed for each process of a team
        generator = torch.Generator(self.training.canvases.device).manual_seed(seed)
        pairs = make_pairs(self.training, self.ahead * self._batch, self._synthetic, generator)
        return pairs.split(self._batch)

    def validation(self) -> Iterator[PairBatch]:
        """Pairs of the photographs held out, as they are: no collages, no double exposures."""
        synthetic = replace(self._synthetic, collage_share=0.0, blend_share=0.0)
        generator = torch.Generator(self.held_out.canvases.device).manual_seed(self._seed + 1)
        for _ in range(max(1, self._validation_pairs // self._batch)):
            yield make_pairs(self.held_out, self._batch, synthetic, generator)

    def close(self) -> None:
        """Nothing runs in the background."""


def _count_ahead(device: torch.device, batch: int) -> int:
    """How many batches are made at once; a CPU gains nothing by more than one."""
    return max(1, _PAIRS_AT_ONCE // batch) if device.type == "cuda" else 1


def read_photographs(
    label: str,
    source: SourceConfig,
    parts: tuple[Sequence[Path], Sequence[Path]],
    watch: Callable[[int, int], None] | None = None,
) -> Photographs:
    """Reads the photographs of an entry, each once.

    Args:
        label: how reports call the entry.
        source: the entry.
        parts: files to train on and files for validation; without a common one, or the same.
        watch: called with (read, all) after each file.

    Raises:
        DataError: none of them can be read.
    """
    wanted = parts[:1] if list(parts[0]) == list(parts[1]) else parts
    faults: list[Fault] = []
    images = _read_images([path for part in wanted for path in part], faults, watch)
    banks = [_hold(part, images) for part in wanted]
    good = [bank for bank in banks if bank is not None]
    if not good:
        raise DataError(f"{say_faults(label, source, faults)}. Without them there is no photograph left")
    return Photographs(label, source, good[0], good[-1], tuple(faults))


def _read_images(
    paths: Sequence[Path], faults: list[Fault], watch: Callable[[int, int], None] | None
) -> Iterator[Tensor | None]:
    """Each image in turn, some read ahead; None where it cannot be read, which is added to the faults."""
    waiting = iter(paths)
    with ThreadPoolExecutor() as pool:
        ahead = deque((path, pool.submit(read_image, path)) for path in islice(waiting, _READ_AHEAD))
        for done in range(1, len(paths) + 1):
            path, reading = ahead.popleft()
            image = None
            try:
                image = reading.result()
            except ImageReadError as error:
                faults.append(to_fault(error, path))
            ahead.extend((path, pool.submit(read_image, path)) for path in islice(waiting, 1))
            if watch is not None:
                watch(done, len(paths))
            yield image


def _hold(paths: Sequence[Path], images: Iterator[Tensor | None]) -> ImageBank | None:
    """The next photographs, those of these paths; None where none of them can be read."""
    try:
        return ImageBank(paths, _CANVAS_SIDE, "cpu", islice(images, len(paths)))
    except DataError:
        return None


def split_photographs(paths: Sequence[Path], share: float) -> tuple[list[Path], list[Path]]:
    """Photographs for training and validation: every n-th is held out. A lone one serves both."""
    every = max(2, round(1 / share))
    held_out = list(paths[::every])
    return [path for index, path in enumerate(paths) if index % every] or held_out, held_out


def split_images(label: str, data: PairData, share: float) -> tuple[list[Path], list[Path]]:
    """Images of a data set for training and validation, each once and sorted, split as its pairs are.

    So what is held out here is held out as well where the pairs of the same set are trained on.

    Raises:
        DataError: images are not files of their own.
    """
    training, held_out = (_list_images(part) for part in data.split_off(share))
    for path in (*training, *held_out):
        if not path.is_file():
            raise DataError(
                f"{label} has images that are not files of their own ({path}): set use_warps to false for "
                "it, or cut its clips into frames"
            )
    return training, held_out


def _list_images(data: PairData) -> list[Path]:
    if isinstance(data, KeypointData):  # whose pairs may be millions
        return sorted({example.image for example in data.examples})
    return sorted({path for index in range(len(data)) for path in data.image_paths(index)})
