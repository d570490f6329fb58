"""Image pairs with exact truth, made from single photographs on whatever device holds them.

View 0 is a zoomed crop of a photograph; view 1 sees the same plane through a random homography. Both then
change in light, colour, sharpness and noise, each on its own. All draws come from one generator, so a seed
fixes the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.io import read_image
from ucn.errors import DataError
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.geometry.sampling import sample_image
from ucn.geometry.warp import homography_from_corners, warp_points
from ucn.types import PairBatch

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}


class ImageBank:
    """Photographs held as uint8 on one device, each in the corner of a square canvas.

    Attributes:
        canvases: (M, 3, S, S) uint8.
        sizes: (M, 2) float, (width, height) of each photograph on its canvas.
        names: file names.
    """

    def __init__(self, paths: Sequence[Path], side: int, device: torch.device | str) -> None:
        if not paths:
            raise DataError("no images to make pairs from: expected a folder with .jpg or .png files")
        self.names = [path.name for path in paths]
        self.canvases = torch.zeros(len(paths), 3, side, side, dtype=torch.uint8)
        sizes = []
        for index, path in enumerate(paths):
            image = _shrink(read_image(path), side)
            height, width = image.shape[-2:]
            self.canvases[index, :, :height, :width] = (image * 255).round().to(torch.uint8)
            sizes.append((width, height))
        self.canvases = self.canvases.to(device)
        self.sizes = torch.tensor(sizes, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self.names)


def list_images(folder: Path) -> list[Path]:
    """Image files of a folder and its sub-folders, sorted by path.

    Raises:
        DataError: the folder is missing or has none.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: expected one that holds images")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not paths:
        raise DataError(f"{folder} holds no images (looked for {', '.join(sorted(IMAGE_SUFFIXES))})")
    return paths


def make_pairs(bank: ImageBank, batch: int, config: SyntheticConfig, generator: torch.Generator) -> PairBatch:
    """A batch of pairs.

    Args:
        bank: the photographs; each pair is made from one of them, drawn at random.
        batch: how many pairs.
        config: how the views differ.
        generator: source of all draws, on the bank's device.

    Returns:
        The pairs on the bank's device, with ``config.points`` rows of points each. Where fewer candidates lie
        in both views and on the photograph, the rest of the rows is not valid and may hold NaN in `points1`.
    """
    device = bank.canvases.device
    chosen = torch.randint(len(bank), (batch,), generator=generator, device=device)
    view0_to_source, view1_to_view0 = _draw_homographies(bank.sizes[chosen], config, generator)
    view1_to_source = view0_to_source @ view1_to_view0
    canvases = bank.canvases[chosen].float() / 255
    size_hw = (config.side, config.side)
    image0 = _render(canvases, bank.sizes[chosen], view0_to_source, size_hw)
    image1 = _render(canvases, bank.sizes[chosen], view1_to_source, size_hw)

    H_0to1 = torch.linalg.inv(view1_to_view0)
    candidates0 = _uniform((batch, 4 * config.points, 2), -0.5, config.side - 0.5, generator)
    candidates1 = warp_points(candidates0, H_0to1)
    in_source = warp_points(candidates0, view0_to_source)
    is_in_source = ((in_source >= 0) & (in_source <= bank.sizes[chosen, None] - 1)).all(-1)
    is_seen = is_inside(candidates1, size_hw) & is_in_source
    # A stable sort brings the visible ones to the front and keeps their random order.
    order = is_seen.int().argsort(dim=1, descending=True, stable=True)[:, : config.points]
    take = order[..., None].expand(-1, -1, 2)
    return PairBatch(
        image0=_change_photometrically(image0, config.photometric, generator),
        image1=_change_photometrically(image1, config.photometric, generator),
        points0=candidates0.gather(1, take),
        points1=candidates1.gather(1, take),
        is_valid=is_seen.gather(1, order),
        names=tuple(bank.names[i] for i in chosen.tolist()),
    )


def _shrink(image: Tensor, side: int) -> Tensor:
    height, width = image.shape[-2:]
    scale = side / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    shrunk = F.interpolate(image[None], size=size, mode="bilinear", antialias=True, align_corners=False)
    return shrunk[0].clamp(0, 1)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device) * (high - low) + low


def _draw_homographies(
    sizes: Tensor, config: SyntheticConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(B, 3, 3) each: view 0 to the source photograph, and view 1 to view 0."""
    batch, side = len(sizes), float(config.side)
    zoom = _uniform((batch,), math.log(config.zoom[0]), math.log(config.zoom[1]), generator).exp()
    # A crop larger than the photograph would be mostly mirrored border.
    zoom = torch.minimum(zoom, 1.1 * sizes.amin(1) / side)
    slack = (sizes - zoom[:, None] * side).clamp_min(0)
    corner = slack * _uniform((batch, 2), 0, 1, generator) - 0.5 + 0.5 * zoom[:, None]
    view0_to_source = torch.eye(3, device=sizes.device).repeat(batch, 1, 1)
    view0_to_source[:, 0, 0] = view0_to_source[:, 1, 1] = zoom
    view0_to_source[:, :2, 2] = corner

    is_upright = _uniform((batch,), 0, 1, generator) < config.upright_share
    turn = _uniform((batch,), -1, 1, generator)
    angle = torch.where(is_upright, math.radians(config.upright_degrees) * turn, math.pi * turn)
    log_scale = math.log(config.max_scale)
    scale = _uniform((batch,), -log_scale, log_scale, generator).exp()
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    turning = torch.stack([cosine, -sine, sine, cosine], dim=-1).view(batch, 2, 2)
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]], device=sizes.device) * side / 2
    bent = corners + _uniform((batch, 4, 2), -1, 1, generator) * config.perspective * side
    moved = bent @ turning.transpose(1, 2)
    # A larger view may look further afield; a smaller one stays inside view 0.
    reach = (1 - scale).abs().clamp_min(0.3)[:, None, None]
    shift = _uniform((batch, 1, 2), -0.5, 0.5, generator) * side * reach
    centre = (side - 1) / 2
    return view0_to_source, homography_from_corners(corners + centre, moved + shift + centre)


def _render(canvases: Tensor, sizes: Tensor, view_to_source: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """(B, 3, H, W): the photographs seen through (B, 3, 3), mirrored beyond their borders."""
    grid = pixel_grid(size_hw, canvases.device).reshape(1, -1, 2)
    points = warp_points(grid.expand(len(canvases), -1, -1), view_to_source)
    span = sizes[:, None] - 1
    # Behind the horizon of a steep view coordinates explode; the mirror needs finite ones.
    points = points.nan_to_num(0.0).clamp(-1e5, 1e5)
    # A photograph one pixel wide has no span to mirror at; `grid_sample` reads its NaN at the border.
    folded = span - (points.remainder(2 * span) - span).abs()
    return sample_image(canvases, folded.view(len(canvases), *size_hw, 2), "border")


def _change_photometrically(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Light, colour, sharpness and noise of each image, drawn independently."""
    if strength == 0:
        return images
    batch = len(images)

    def draw(low: float, high: float, channels: int = 1) -> Tensor:
        return _uniform((batch, channels, 1, 1), low, high, generator) * strength

    images = _blur(images, draw(-1.0, 1.2).clamp_min(0))
    images = images.clamp(0, 1).clamp_min(1e-4) ** draw(-0.45, 0.45).exp()  # gamma
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = (images - mean) * draw(-0.5, 0.35).exp() + mean + draw(-0.15, 0.15)  # contrast, brightness
    images = images * draw(-0.15, 0.15, 3).exp()  # colour cast
    grey = images.mean(dim=1, keepdim=True)
    images = torch.lerp(images, grey, draw(-0.5, 0.5).clamp(0, 1) + (draw(0, 1) > 0.9).float() * 0.5)
    light = _uniform((batch, 1, 4, 4), -0.3, 0.3, generator) * draw(-1, 1).clamp_min(0)
    images = images * F.interpolate(light, images.shape[-2:], mode="bicubic", align_corners=False).exp()
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    images = images + noise * draw(-0.02, 0.04).clamp_min(0)
    return images.clamp(0, 1)


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with an own width (B, 1, 1, 1) in pixels per image; 0 leaves the image as it is."""
    batch, channels, height, width = images.shape
    steps = torch.arange(-3, 4, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-0.5 * (steps / sigma.view(-1, 1).clamp_min(1e-3)) ** 2)
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(channels, dim=0)  # (B * C, 7)
    flat = F.pad(images.reshape(1, batch * channels, height, width), (3, 3, 3, 3), mode="reflect")
    flat = F.conv2d(flat, kernel.view(-1, 1, 1, 7), groups=batch * channels)
    flat = F.conv2d(flat, kernel.view(-1, 1, 7, 1), groups=batch * channels)
    return flat.view(batch, channels, height, width)
