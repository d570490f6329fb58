"""Source images held in memory, from which synthetic pairs are rendered."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import IMAGE_SUFFIXES, image_hw, read_image
from ucn.data.sets.layout import check_folder
from ucn.data.synthetic.pyramid import locate_in_pyramid, pack_pyramid
from ucn.errors import DataError
from ucn.geometry.sampling import sample_image


class ImageBank:
    """Images held as uint8 on one device, each in the top-left corner of a square canvas.

    Attributes:
        canvases: (M, 3, S, S) uint8.
        sizes: (M, 2) float, (width, height) of each image on its canvas.
        names: file names.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        side: int,
        device: torch.device | str,
        images: Iterable[Tensor | None] | None = None,
    ) -> None:
        """Reads images; all are sampled with equal probability.

        Args:
            paths: the image files.
            side: S; larger images are downscaled to it.
            device: device of the canvases.
            images: (3, H, W) each, in place of the content of the files, consumed one by one. None omits an
                image.

        Raises:
            DataError: there are none.
            ImageReadError: a file cannot be read.
        """
        if not paths:
            raise DataError(
                "no images to make pairs from: expected at least one image file; give another folder"
            )
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
        self._bounds: Tensor | None = None  # (M,) cumulative sampling probability of each image

    @classmethod
    def join(cls, banks: Sequence[Self], weights: Sequence[float], device: torch.device | str) -> Self:
        """Joins several banks.

        Args:
            banks: at least one; all with the same side.
            weights: relative probability of sampling from each bank, whatever its size; above 0. Within a
                bank all images have equal probability.
            device: device of the joined bank.
        """
        joined = copy.copy(banks[0])
        if len(banks) == 1:
            joined.canvases, joined.sizes = joined.canvases.to(device), joined.sizes.to(device)
            return joined
        joined.names = [name for bank in banks for name in bank.names]
        joined.sizes = torch.cat([bank.sizes.to(device) for bank in banks])
        # Filled bank by bank: concatenation would hold a third copy of all images.
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

    def sample_indices(self, count: int, generator: torch.Generator) -> Tensor:
        """Random indices (B,) int64 of images, with replacement; weighted in a joined bank."""
        device = self.canvases.device
        if self._bounds is None:
            return torch.randint(len(self), (count,), generator=generator, device=device)
        uniforms = torch.rand(count, generator=generator, device=device)
        return torch.searchsorted(self._bounds, uniforms, right=True).clamp_max(len(self) - 1)

    def with_canvases(self, canvases: Tensor, sizes: Tensor) -> ImageBank:
        """A bank of other canvases (B, 3, S, S) uint8 with image sizes (B, 2), without names or weights."""
        made = copy.copy(self)
        made.canvases, made.sizes, made.names, made._bounds = canvases, sizes, [""] * len(sizes), None
        return made

    def sample(self, indices: Tensor, points: Tensor, steps: Tensor | None = None) -> Tensor:
        """Bilinear colours of images at points; beyond their borders images are mirrored.

        Args:
            indices: (B,) int64, the images.
            points: (B, P, Q, 2) pixels of the images; NaN reads the first pixel.
            steps: (B, P), pixels of the image between neighbouring points of a row: where they are two or
                more, a coarser level of the image pyramid is read. None reads the finest everywhere.

        Returns:
            (B, 3, P, Q) in [0, 1].
        """
        canvases = self.canvases[indices].float() / 255
        span = self.sizes[indices, None, None] - 1
        # Behind the horizon of a steep view coordinates diverge; mirroring needs finite ones.
        points = points.nan_to_num(0.0).clamp(-1e5, 1e5)
        # An image one pixel wide has no span to mirror; `grid_sample` reads its NaN at the border.
        folded = span - (points.remainder(2 * span) - span).abs()
        if steps is not None:
            packed = pack_pyramid(canvases)
            located = locate_in_pyramid(folded, self.sizes[indices], steps, canvases.shape[-1])
            return sample_image(packed, located, "border")
        return sample_image(canvases, folded, "border")

    def is_on(self, indices: Tensor, points: Tensor) -> Tensor:
        """Bool (B, N): which points (B, N, 2) lie between the outermost pixel centres of images (B,)."""
        return ((points >= 0) & (points <= self.sizes[indices, None] - 1)).all(-1)


def list_images(folder: Path) -> list[Path]:
    """Lists the image files of a folder and its sub-folders, sorted by path.

    Raises:
        DataError: the folder is missing or has none.
    """
    check_folder(folder, "a folder of images")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not paths:
        raise DataError(f"{folder} holds no images (looked for {', '.join(sorted(IMAGE_SUFFIXES))})")
    return paths


def find_held_hw(size_hw: tuple[int, int], side: int) -> tuple[int, int]:
    """(H, W) that an image has in a bank of this side."""
    scale = side / max(size_hw)
    if scale >= 1:
        return size_hw
    return max(1, round(size_hw[0] * scale)), max(1, round(size_hw[1] * scale))


def _shrink(image: Tensor, side: int) -> Tensor:
    size = find_held_hw(image_hw(image), side)
    if size == image_hw(image):
        return image
    shrunk = F.interpolate(image[None], size=size, mode="bilinear", antialias=True, align_corners=False)
    return shrunk[0].clamp(0, 1)
