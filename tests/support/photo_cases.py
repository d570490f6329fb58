"""Synthetic textured images, for tests that need natural-looking images."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import write_image


def make_photo(height: int, width: int, seed: int = 0, grain: int = 12) -> Tensor:
    """(3, H, W) in [0, 1]: smooth random colours that change over about `grain` pixels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, height // grain + 2, width // grain + 2, generator=generator)
    image = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)[0]
    return image.clamp(0, 1)


def write_photos(
    folder: Path, sizes_hw: Sequence[tuple[int, int]], grain: int = 12, bad: Sequence[int] = ()
) -> list[Path]:
    """Writes images 00.png, 01.png, …, each with its own seed; the files of `bad` ones are cut off."""
    folder.mkdir(exist_ok=True)
    paths = []
    for index, (height, width) in enumerate(sizes_hw):
        path = folder / f"{index:02}.png"
        pixels = (make_photo(height, width, seed=index, grain=grain) * 255).round().byte()
        write_image(path, pixels.permute(1, 2, 0).contiguous().numpy(), overwrite=True)
        if index in bad:
            path.write_bytes(path.read_bytes()[:200])
        paths.append(path)
    return paths
