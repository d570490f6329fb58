"""Sources that are images by class, without annotated points: a trained network matches them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ucn.config import SourceConfig
from ucn.data.augment.photometric import change_photometrically
from ucn.data.augment.random import uniform_columns
from ucn.data.synthetic.class_bank import ClassBank, list_classes
from ucn.data.synthetic.part_pairs import PartAugmentation, render_views
from ucn.errors import ConfigError
from ucn.geometry.coords import cells_to_pixels, pixel_grid
from ucn.nn import CorrespondenceNetwork
from ucn.train.sources.pseudo_matches import PseudoMatches, match_cells
from ucn.train.sources.source import Source
from ucn.types import LazyNames, PairBatch
from ucn.weights import load_weights

CLASSES = "classes"
"""The name of sources that are images by class."""
_ENCODED_AT_ONCE = 32
_MIN_MATCHES = 16  # of a pair; those with fewer have no valid point


class ClassSource(Source):
    """Pairs of two images of a class; a frozen network finds their correspondences on the device.

    The partner is matched as it is and mirrored, and the pair that agrees better is used: an object that looks
    left shows other sides than one that looks right.
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

        Raises:
            ConfigError: the entry names no teacher, or the view is not square.
            DataError: the folder has no classes.
        """
        super().__init__(label, source.weight, source.loss)
        if not source.teacher:
            raise ConfigError(
                f"the source {label} needs a network that matches its images: set teacher to weights"
            )
        if source.crop_hw[0] != source.crop_hw[1]:
            raise ConfigError(f"crop_hw of the source {label} must be square, got {source.crop_hw}")
        self._source, self._batch, self._seed = source, batch, seed
        self._validation_pairs = validation_pairs
        self._side, self._device = source.crop_hw[0], device
        training, held_out = _split(Path(source.folder), source.options, share)
        teacher = load_weights(source.teacher).model.eval().to(device)
        self._training = _Encoded(training, self._side, teacher)
        self._held_out = _Encoded(held_out, self._side, teacher)
        self._augmentation = PartAugmentation(
            rotation=source.rotation,
            scale=source.scale,
            shift=source.shift,
            mirror=source.mirror,
            photometric=source.photometric,
        )

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        """A batch that the generator alone determines."""
        return self._make(self._training, self._batch, self._augmentation, generator)

    def validation_batches(self) -> Iterator[PairBatch]:
        """Pairs of held-out images without augmentation, compared with the teacher's matches."""
        generator = torch.Generator(self._device).manual_seed(self._seed)
        for _ in range(max(1, self._validation_pairs // self._batch)):
            made = self._make(self._held_out, self._batch, PartAugmentation(), generator)
            yield replace(made, pck_length=torch.full((self._batch,), float(self._side), device=self._device))

    def close(self) -> None:
        """Nothing to end."""

    def _make(
        self, encoded: _Encoded, batch: int, augmentation: PartAugmentation, generator: torch.Generator
    ) -> PairBatch:
        bank = encoded.bank
        names = ("image", "partner", "mirror")
        columns = uniform_columns((batch,), dict.fromkeys(names, (0.0, 1.0, 1)), generator)
        index0 = (columns["image"] * len(bank)).long().clamp_max(len(bank) - 1)
        count, first = bank.count[index0], bank.first[index0]
        index1 = first + (index0 - first + 1 + (columns["partner"] * (count - 1)).long()) % count
        found, is_mirrored1 = encoded.match(index0, index1)
        rows = self._choose(found.is_kept, generator)
        is_valid = found.is_kept.gather(1, rows) & (found.is_kept.sum(dim=1, keepdim=True) >= _MIN_MATCHES)
        no_mirror = torch.zeros_like(is_mirrored1)
        points0 = encoded.to_image(encoded.cells[rows], index0, no_mirror)
        targets = found.targets.gather(1, rows[..., None].expand(-1, -1, 2))
        points1 = encoded.to_image(targets, index1, is_mirrored1)
        flip = columns["mirror"] < augmentation.mirror
        size_hw, images = (self._side, self._side), bank.images
        view0 = render_views(images, index0, points0, is_valid, flip, size_hw, augmentation, generator)
        view1 = render_views(
            images, index1, points1, is_valid, is_mirrored1 ^ flip, size_hw, augmentation, generator
        )
        both = torch.stack([view0.images, view1.images])
        image0, image1 = change_photometrically(both, augmentation.photometric, generator)
        labels = bank.images.names

        def name_pairs() -> Iterator[str]:
            return (
                f"{labels[i]}--{labels[j]}" for i, j in zip(index0.tolist(), index1.tolist(), strict=True)
            )

        return PairBatch(
            image0=image0,
            image1=image1,
            points0=view0.points,
            points1=view1.points,
            is_valid=view0.is_visible & view1.is_visible,
            names=LazyNames(batch, name_pairs),
        )

    def _choose(self, is_kept: Tensor, generator: torch.Generator) -> Tensor:
        """Rows (B, P) of random cells, those with a match first."""
        chance = torch.rand(is_kept.shape, generator=generator, device=is_kept.device)
        return (chance + is_kept).topk(min(self._source.points, is_kept.shape[1]), dim=1).indices


class _Encoded:
    """Images by class with a teacher's descriptors of their views, as they are and mirrored."""

    def __init__(self, paths: list[Path], side: int, teacher: CorrespondenceNetwork) -> None:
        device = next(teacher.parameters()).device
        self.bank, self._side = ClassBank(paths, side, device), side
        self._stride, self._offset = teacher.stride, teacher.offset
        rows = torch.arange(len(self.bank), device=device)
        self._features = [
            torch.cat([self._encode(part, is_mirrored, teacher) for part in rows.split(_ENCODED_AT_ONCE)])
            for is_mirrored in (False, True)
        ]
        self.cells = pixel_grid(self._features[0].shape[-2:], device).reshape(-1, 2).float()

    @torch.no_grad()
    def _encode(self, rows: Tensor, is_mirrored: bool, teacher: CorrespondenceNetwork) -> Tensor:
        views = self.bank.render(rows, torch.full_like(rows, is_mirrored, dtype=torch.bool), self._side)
        is_gpu = rows.device.type == "cuda"
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=is_gpu):
            return teacher(views.contiguous(memory_format=torch.channels_last)).half().contiguous()

    def to_image(self, cells: Tensor, index: Tensor, is_mirrored: Tensor) -> Tensor:
        """Pixels (B, P, 2) of the images at cells (B, P, 2) of their views."""
        pixels = cells_to_pixels(cells, self._stride, self._offset)
        return self.bank.to_image(pixels, index, is_mirrored, self._side)

    @torch.no_grad()
    def match(self, index0: Tensor, index1: Tensor) -> tuple[PseudoMatches, Tensor]:
        """Matches of pairs, and whether image 1 (B,) was mirrored for them."""
        plain = torch.zeros_like(index0, dtype=torch.bool)
        usable0 = self._find_usable(index0, plain)
        tried = [
            match_cells(
                self._features[0][index0],
                self._features[int(mirror)][index1],
                usable0,
                self._find_usable(index1, plain | mirror),
            )
            for mirror in (False, True)
        ]
        is_mirrored = tried[1].agreement > tried[0].agreement
        parts = [
            torch.where(is_mirrored.view(-1, *[1] * (b.ndim - 1)), b, a)
            for a, b in (
                (tried[0].targets, tried[1].targets),
                (tried[0].is_kept, tried[1].is_kept),
                (tried[0].agreement, tried[1].agreement),
            )
        ]
        return PseudoMatches(*parts), is_mirrored

    def _find_usable(self, index: Tensor, is_mirrored: Tensor) -> Tensor:
        """Cells (B, N) that show the object."""
        cells = self.cells.expand(len(index), -1, -1)
        return self.bank.is_object(self.to_image(cells, index, is_mirrored), index)


def _split(folder: Path, options: tuple[str, ...], share: float) -> tuple[list[Path], list[Path]]:
    """Images for training and validation: the last ones of each class are held out, at least two.

    A class with fewer than four images is used for training alone; where no other is left, for both.
    """
    values = dict(option.split("=", 1) for option in options)
    unknown = sorted(set(values) - {"exclude"})
    if unknown:
        raise ConfigError(f"{CLASSES} has no option '{unknown[0][:80]}' (there are: exclude)")
    excluded = [name for name in values.get("exclude", "").split(",") if name]
    training: list[Path] = []
    held_out: list[Path] = []
    for images in list_classes(folder, excluded).values():
        count = max(2, math.ceil(share * len(images))) if len(images) >= 4 else 0
        training += images[: len(images) - count]
        held_out += images[len(images) - count :]
    return training, held_out or training
