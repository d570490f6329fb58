"""Sources that are images by class, without annotated points: a trained network matches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ucn.config import SourceConfig
from ucn.config.training import CLASSES
from ucn.data.augment.random import uniform_columns
from ucn.data.catalogue import parse_options
from ucn.data.synthetic.class_bank import ClassBank, list_classes
from ucn.data.synthetic.part_pairs import PartAugmentation, ViewPlan, render_pairs
from ucn.errors import DataError
from ucn.geometry.coords import cells_to_pixels, pixel_grid
from ucn.nn import CorrespondenceNetwork
from ucn.train.sources.pseudo_matches import PseudoMatches, match_cells
from ucn.train.sources.source import Source
from ucn.train.teacher import load_same
from ucn.types import PairBatch

_ENCODED_AT_ONCE = 32
_MIN_MATCHES = 16  # of a pair; those with fewer have no valid point


class ClassSource(Source):
    """Pairs of two images of a class; a frozen network finds their correspondences on the device.

    The partner is matched as it is and mirrored, and the pair that agrees better is used: an object that
    looks left shows other sides than one that looks right.

    Attributes:
        problems: files that cannot be read; they are left out.
    """

    def __init__(
        self,
        label: str,
        source: SourceConfig,
        share: float,
        *,
        batch: int,
        device: torch.device,
        validation_pairs: int,
        seed: int,
        watch: Callable[[int, int], None] | None = None,
    ) -> None:
        """Reads and encodes all images.

        Args:
            label: name in reports.
            source: the entry of the recipe.
            share: of the images of each class that is held out.
            batch: pairs of a batch.
            device: holds images and descriptors.
            validation_pairs: number of pairs of a validation.
            seed: of these pairs.
            watch: called with (read, all) after each image of the training part, then of the held-out part.

        Raises:
            ConfigError: the teacher is not the one that the run began with.
            DataError: the folder has no classes, an option is unknown, or no image can be read.
            WeightsError: the file of the teacher is missing or damaged.
        """
        super().__init__(label, source.weight, source.loss)
        self._source, self._batch, self._seed = source, batch, seed
        self._validation_pairs = validation_pairs
        self._side, self._device = source.crop_hw[0], device
        training, held_out = _split(Path(source.folder), source.options, share)
        teacher = load_same(source.teacher, source.teacher_sha256, f"the teacher of {label}")
        model = teacher.model.eval().to(device)
        self._training = self._held_out = _Encoded(training, self._side, model, watch)
        self.problems = self._training.bank.problems
        self.warning = f"{label}: validation compares with the matches of its teacher, not with ground truth"
        if held_out:
            self._held_out = _Encoded(held_out, self._side, model, watch)
            self.problems += self._held_out.bank.problems
        else:
            self.warning += ", and on the training images: no class has four"
        self._augmentation = PartAugmentation(
            rotation=source.rotation,
            scale=source.scale,
            shift=source.shift,
            mirror=source.mirror,
            photometric=source.photometric,
        )

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch that the generator alone determines."""
        return self._make(self._training, self._augmentation, generator)

    def validation_batches(self) -> Iterator[PairBatch]:
        """Pairs of held-out images without augmentation, compared with the teacher's matches."""
        generator = torch.Generator(self._device).manual_seed(self._seed)
        length = torch.full((self._batch,), float(self._side), device=self._device)
        for _ in range(max(1, self._validation_pairs // self._batch)):
            yield replace(self._make(self._held_out, PartAugmentation(), generator), pck_length=length)

    def close(self) -> None:
        """Nothing to end."""

    def _make(
        self, encoded: _Encoded, augmentation: PartAugmentation, generator: torch.Generator
    ) -> PairBatch:
        bank, size_hw = encoded.bank, (self._side, self._side)
        unit = dict.fromkeys(("image", "partner", "mirror"), (0.0, 1.0, 1))
        columns = uniform_columns((self._batch,), unit, generator)
        index0 = (columns["image"] * len(bank)).long().clamp_max(len(bank) - 1)
        count, first = bank.count[index0], bank.first[index0]
        index1 = first + (index0 - first + 1 + (columns["partner"] * (count - 1)).long()) % count
        found, is_mirrored1 = encoded.match(index0, index1)
        rows = self._choose(found.is_kept, generator)
        is_valid = found.is_kept.gather(1, rows) & (found.is_kept.sum(dim=1, keepdim=True) >= _MIN_MATCHES)
        points0 = encoded.to_image(encoded.cells[rows], index0, torch.zeros_like(is_mirrored1))
        targets = found.targets.gather(1, rows[..., None].expand(-1, -1, 2))
        points1 = encoded.to_image(targets, index1, is_mirrored1)
        flip = columns["mirror"] < augmentation.mirror
        view0 = ViewPlan(index0, points0, is_valid, flip)
        view1 = ViewPlan(index1, points1, is_valid, is_mirrored1 ^ flip)
        return render_pairs(bank.images, view0, view1, size_hw, augmentation, generator)

    def _choose(self, is_kept: Tensor, generator: torch.Generator) -> Tensor:
        """Rows (B, P) of random cells, those with a match first."""
        chance = torch.rand(is_kept.shape, generator=generator, device=is_kept.device)
        return (chance + is_kept).topk(min(self._source.points, is_kept.shape[1]), dim=1).indices


class _Encoded:
    """Images by class with a teacher's descriptors of their views, as they are and mirrored."""

    def __init__(
        self,
        paths: list[Path],
        side: int,
        teacher: CorrespondenceNetwork,
        watch: Callable[[int, int], None] | None,
    ) -> None:
        device = next(teacher.parameters()).device
        self.bank, self._side = ClassBank(paths, side, device, watch), side
        self._stride, self._offset = teacher.stride, teacher.offset
        rows = torch.arange(len(self.bank), device=device)
        self._features = [
            torch.cat([self._encode(part, is_mirrored, teacher) for part in rows.split(_ENCODED_AT_ONCE)])
            for is_mirrored in (False, True)
        ]
        h, w = self._features[0].shape[-2:]
        self.cells = pixel_grid((h, w), device).reshape(-1, 2).float()

    @torch.no_grad()
    def _encode(self, rows: Tensor, is_mirrored: bool, teacher: CorrespondenceNetwork) -> Tensor:
        views = self.bank.render(rows, torch.full_like(rows, is_mirrored, dtype=torch.bool), self._side)
        is_gpu = rows.device.type == "cuda"
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=is_gpu):
            features: Tensor = teacher(views.contiguous(memory_format=torch.channels_last))
        return features.half().contiguous()

    def to_image(self, cells: Tensor, index: Tensor, is_mirrored: Tensor) -> Tensor:
        """Pixels (B, P, 2) of the images at cells (B, P, 2) of their views."""
        pixels = cells_to_pixels(cells, self._stride, self._offset)
        return self.bank.to_image(pixels, index, is_mirrored, self._side)

    @torch.no_grad()
    def match(self, index0: Tensor, index1: Tensor) -> tuple[PseudoMatches, Tensor]:
        """Matches of pairs, and whether image 1 (B,) was mirrored for them."""
        plain = torch.zeros_like(index0, dtype=torch.bool)
        usable0 = self._find_usable(index0, plain)
        as_it_is, mirrored = (
            match_cells(
                self._features[0][index0],
                self._features[int(mirror)][index1],
                usable0,
                self._find_usable(index1, plain | mirror),
            )
            for mirror in (False, True)
        )
        is_mirrored = mirrored.agreement > as_it_is.agreement
        return PseudoMatches(
            torch.where(is_mirrored[:, None, None], mirrored.targets, as_it_is.targets),
            torch.where(is_mirrored[:, None], mirrored.is_kept, as_it_is.is_kept),
            torch.where(is_mirrored, mirrored.agreement, as_it_is.agreement),
        ), is_mirrored

    def _find_usable(self, index: Tensor, is_mirrored: Tensor) -> Tensor:
        """Cells (B, N) that show the object."""
        cells = self.cells.expand(len(index), -1, -1)
        return self.bank.is_object(self.to_image(cells, index, is_mirrored), index)


def _split(folder: Path, options: tuple[str, ...], share: float) -> tuple[list[Path], list[Path]]:
    """Images for training and validation: the last ones of each class are held out, at least two.

    A class with fewer than four images is used for training alone.
    """
    values = parse_options(options)
    unknown = sorted(set(values) - {"exclude"})
    if unknown:
        raise DataError(f"{CLASSES} has no option '{unknown[0][:80]}' (there are: exclude)")
    excluded = [name.strip() for name in str(values.get("exclude", "")).split(",") if name.strip()]
    training: list[Path] = []
    held_out: list[Path] = []
    for images in list_classes(folder, excluded).values():
        count = max(2, math.ceil(share * len(images))) if len(images) >= 4 else 0
        training += images[: len(images) - count]
        held_out += images[len(images) - count :]
    return training, held_out
