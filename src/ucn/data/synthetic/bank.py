"""Photographs held in memory, from which synthetic pairs are made."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.headers import IMAGE_SUFFIXES
from ucn.data.io import read_image
from ucn.data.sets.layout import check_folder
from ucn.data.synthetic.downscaling import find_on_reductions, lay_out_reductions
from ucn.errors import DataError
from ucn.geometry.sampling import sample_image


class ImageBank:
    """Photographs held as uint8 on one device, each in the corner of a square canvas.

    Attributes:
        canvases: (M, 3, S, S) uint8.
        sizes: (M, 2) float, (width, height) of each photograph on its canvas.
        names: file names.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        side: int,
        device: torch.device | str,
        images: Iterable[Tensor | None] | None = None,
    ) -> None:
        """Reads photographs, all of which are drawn alike.

        Args:
            paths: their files.
            side: S; larger ones are reduced to it.
            device: where to hold them.
            images: (3, H, W) each, in place of what the files hold; read one after the other. None leaves a
                photograph out.

        Raises:
            DataError: there are none.
            ImageReadError: a file cannot be read.
        """
        if not paths:
            raise DataError("no images to make pairs from: expected a folder with .jpg or .png files")
        self.names: list[str] = []
        self.canvases = torch.zeros(len(paths), 3, side, side, dtype=torch.uint8)
        sizes: list[tuple[int, int]] = []
        for path, whole in zip(paths, map(read_image, paths) if images is None else images, strict=True):
            if whole is None:
                continue
            image = _shrink(whole, side)
            height, width = image.shape[-2:]
            self.canvases[len(sizes), :, :height, :width] = (image * 255).round().to(torch.uint8)
            sizes.append((width, height))
            self.names.append(path.name)
        if not sizes:
            raise DataError(f"none of {len(paths):,} images could be read; get them again")
        self.canvases = self.canvases[: len(sizes)].to(device)
        self.sizes = torch.tensor(sizes, dtype=torch.float32, device=device)
        self._bounds: Tensor | None = None  # (M,) up to 1: where each one's share of the draws ends

    @classmethod
    def join(cls, banks: Sequence[Self], weights: Sequence[float], device: torch.device | str) -> Self:
        """The photographs of several banks in one.

        Args:
            banks: at least one; their canvases have one side.
            weights: how often those of each bank are drawn, against those of the others, however many they
                are; above 0. Within a bank all are drawn alike.
            device: where to hold them.
        """
        joined = copy.copy(banks[0])
        if len(banks) == 1:
            joined.canvases, joined.sizes = joined.canvases.to(device), joined.sizes.to(device)
            return joined
        joined.names = [name for bank in banks for name in bank.names]
        joined.sizes = torch.cat([bank.sizes.to(device) for bank in banks])
        # Filled part by part: all photographs lie in memory once there and once here, never a third time.
        shape = (len(joined.names), *banks[0].canvases.shape[1:])
        joined.canvases = torch.empty(shape, dtype=torch.uint8, device=device)
        counts = [len(bank) for bank in banks]
        for part, bank in zip(torch.split(joined.canvases, counts), banks, strict=True):
            part.copy_(bank.canvases)
        rows = zip(weights, counts, strict=True)
        shares = torch.tensor([weight / count for weight, count in rows for _ in range(count)]).double()
        joined._bounds = (shares.cumsum(0) / shares.sum()).float().to(device)
        return joined

    def __len__(self) -> int:
        return len(self.names)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Photographs (B,) int64, drawn at random, by weight in a bank joined of several; they may repeat."""
        device = self.canvases.device
        if self._bounds is None:
            return torch.randint(len(self), (count,), generator=generator, device=device)
        drawn = torch.rand(count, generator=generator, device=device)
        return torch.searchsorted(self._bounds, drawn, right=True).clamp_max(len(self) - 1)

    def of_canvases(self, canvases: Tensor, sizes: Tensor) -> ImageBank:
        """A bank of other photographs (B, 3, S, S) uint8 of sizes (B, 2), all drawn alike, without names."""
        made = copy.copy(self)
        made.canvases, made.sizes, made.names, made._bounds = canvases, sizes, [""] * len(sizes), None
        return made

    def sample(self, photographs: Tensor, points: Tensor, steps: Tensor | None = None) -> Tensor:
        """Colours of photographs at real-valued points; beyond their borders they go on as in a mirror.

        Args:
            photographs: (B,) int64, which ones.
            points: (B, P, Q, 2) pixels of the photographs; NaN reads the first pixel.
            steps: (B, P), how far apart the points of a row lie: where it is two pixels or more, means of
                pixels are read; None reads pixels everywhere.

        Returns:
            (B, 3, P, Q) in [0, 1].
        """
        canvases = self.canvases[photographs].float() / 255
        span = self.sizes[photographs, None, None] - 1
        # Behind the horizon of a steep view coordinates explode; the mirror needs finite ones.
        points = points.nan_to_num(0.0).clamp(-1e5, 1e5)
        # A photograph one pixel wide has no span to mirror at; `grid_sample` reads its NaN at the border.
        folded = span - (points.remainder(2 * span) - span).abs()
        if steps is not None:
            sheets = lay_out_reductions(canvases)
            places = find_on_reductions(folded, self.sizes[photographs], steps, canvases.shape[-1])
            return sample_image(sheets, places, "border")
        return sample_image(canvases, folded, "border")

    def is_on(self, photographs: Tensor, points: Tensor) -> Tensor:
        """Bool (B, N): which points (B, N, 2) lie between the pixel centres of photographs (B,)."""
        return ((points >= 0) & (points <= self.sizes[photographs, None] - 1)).all(-1)


def list_images(folder: Path) -> list[Path]:
    """Image files of a folder and its sub-folders, sorted by path.

    Raises:
        DataError: the folder is missing or has none.
    """
    check_folder(folder, "a folder of images")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not paths:
        raise DataError(f"{folder} holds no images (looked for {', '.join(sorted(IMAGE_SUFFIXES))})")
    return paths


def _shrink(image: Tensor, side: int) -> Tensor:
    height, width = image.shape[-2:]
    scale = side / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    shrunk = F.interpolate(image[None], size=size, mode="bilinear", antialias=True, align_corners=False)
    return shrunk[0].clamp(0, 1)
