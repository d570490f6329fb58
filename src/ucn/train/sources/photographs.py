"""Sources that are photographs: synthetic pairs made from single images, on the device."""

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
from ucn.data.checking import to_problem
from ucn.data.io import read_image
from ucn.data.loading import derive_seed
from ucn.data.pairs import PairData, Problem
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.errors import DataError, ImageReadError
from ucn.train.sources.source import Source, format_problems
from ucn.types import PairBatch

_CANVAS_SIDE = 448
_READ_AHEAD = 64
"""Photographs that are decoded in advance."""
_PAIRS_AT_ONCE = 32
"""Pairs that a GPU makes at once, for one or more steps; with fewer, launching kernels dominates the time."""


@dataclass(frozen=True)
class Photographs:
    """The photographs of one entry of a recipe's sources, in main memory.

    Attributes:
        label: name of the entry in reports.
        source: the entry.
        training: photographs to train on.
        held_out: photographs for validation; the same where no others can be read.
        problems: files that cannot be read and are left out.
    """

    label: str
    source: SourceConfig
    training: ImageBank
    held_out: ImageBank
    problems: tuple[Problem, ...]


class PhotoSource(Source):
    """Synthetic pairs made from photographs; a batch mixes those of all its entries, by their weights.

    With batches of one entry each, batch norms would alternate between the statistics of the entries.

    Attributes:
        training: photographs to train on.
        held_out: photographs for validation; an entry without others has the same ones in both.
        ahead: number of steps whose batches are made at once.
    """

    def __init__(
        self,
        entries: Sequence[Photographs],
        config: TrainConfig,
        device: torch.device,
        validation_pairs: int,
    ) -> None:
        """Moves photographs to the device.

        Args:
            entries: of the recipe, at least one, with equal batch size and loss.
            config: the run.
            device: where to hold the photographs.
            validation_pairs: number of pairs of a validation.
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
                f"{' + '.join(lacking)}: validation uses the training photographs, for lack of others; "
                "add photographs, or do not trust its metrics for new images"
            )

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch that the generator alone determines, unless batches of several steps are made at once.

        Those have a generator of their own, seeded by the number of their group, so that a resumed run gets
        the same ones.
        """
        if self.ahead == 1:
            return make_pairs(self.training, self._batch, self._synthetic, generator)
        group, index = divmod(number, self.ahead)
        if group != self._group:
            self._group, self._made = -1, []  # frees their memory before the next are made
            self._made = list(self._make_group(group))
            self._group = group
        return self._made[index]

    def _make_group(self, group: int) -> Iterator[PairBatch]:
        """The batches of several steps; `make_pairs` shuffles the kinds of pairs over them."""
        seed = derive_seed(self._seed, "photographs", self.label, group)  # each process has its own seed
        generator = torch.Generator(self.training.canvases.device).manual_seed(seed)
        pairs = make_pairs(self.training, self.ahead * self._batch, self._synthetic, generator)
        return pairs.split(self._batch)

    def validation_batches(self) -> Iterator[PairBatch]:
        """Pairs of the held-out photographs, without collages and double exposures."""
        synthetic = replace(self._synthetic, collage_share=0.0, blend_share=0.0)
        generator = torch.Generator(self.held_out.canvases.device).manual_seed(self._seed + 1)
        for _ in range(max(1, self._validation_pairs // self._batch)):
            yield make_pairs(self.held_out, self._batch, synthetic, generator)

    def close(self) -> None:
        """Nothing to end."""


def _count_ahead(device: torch.device, batch: int) -> int:
    """The number of batches made at once; on a CPU one, since more are not faster."""
    return max(1, _PAIRS_AT_ONCE // batch) if device.type == "cuda" else 1


def read_photographs(
    label: str,
    source: SourceConfig,
    parts: tuple[Sequence[Path], Sequence[Path]],
    watch: Callable[[int, int], None] | None = None,
) -> Photographs:
    """Reads the photographs of an entry, each once.

    Args:
        label: name of the entry in reports.
        source: the entry.
        parts: files for training and for validation; disjoint, or the same.
        watch: called with (read, all) after each file.

    Raises:
        DataError: none of them can be read.
    """
    distinct = parts[:1] if list(parts[0]) == list(parts[1]) else parts
    problems: list[Problem] = []
    images = _read_images([path for part in distinct for path in part], problems, watch)
    banks = [_hold(part, images) for part in distinct]
    good = [bank for bank in banks if bank is not None]
    if not good:
        raise DataError(f"{format_problems(label, source, problems)}. Without them no photograph is left")
    return Photographs(label, source, good[0], good[-1], tuple(problems))


def _read_images(
    paths: Sequence[Path], problems: list[Problem], watch: Callable[[int, int], None] | None
) -> Iterator[Tensor | None]:
    """The images in order, read in advance; None where one cannot be read, which is added to `problems`."""
    waiting = iter(paths)
    with ThreadPoolExecutor() as pool:
        ahead = deque((path, pool.submit(read_image, path)) for path in islice(waiting, _READ_AHEAD))
        for done in range(1, len(paths) + 1):
            path, reading = ahead.popleft()
            image = None
            try:
                image = reading.result()
            except ImageReadError as error:
                problems.append(to_problem(error, path))
            ahead.extend((path, pool.submit(read_image, path)) for path in islice(waiting, 1))
            if watch is not None:
                watch(done, len(paths))
            yield image


def _hold(paths: Sequence[Path], images: Iterator[Tensor | None]) -> ImageBank | None:
    """A bank of the next `len(paths)` images; None where none of them can be read."""
    try:
        return ImageBank(paths, _CANVAS_SIDE, "cpu", islice(images, len(paths)))
    except DataError:
        return None


def split_photographs(paths: Sequence[Path], share: float) -> tuple[list[Path], list[Path]]:
    """Photographs for training and validation: every n-th is held out. A single one is used for both."""
    every = max(2, round(1 / share))
    held_out = list(paths[::every])
    return [path for index, path in enumerate(paths) if index % every] or held_out, held_out


def split_images(label: str, data: PairData, share: float) -> tuple[list[Path], list[Path]]:
    """Images of a data set for training and validation, each once and sorted, split as its pairs are.

    An image that is held out here is also held out where the pairs of the same set are used.

    Raises:
        DataError: images are not separate files.
    """
    training, held_out = (_list_images(part) for part in data.split_off(share))
    for path in (*training, *held_out):
        if not path.is_file():
            raise DataError(
                f"{label} has images that are not separate files ({path}): set use_warps to false for "
                "it, or extract the frames of its videos"
            )
    return training, held_out


def _list_images(data: PairData) -> list[Path]:
    if isinstance(data, KeypointData):  # it may have millions of pairs
        return sorted({example.image for example in data.examples})
    return sorted({path for index in range(len(data)) for path in data.image_paths(index)})
