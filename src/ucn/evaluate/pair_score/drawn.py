"""Pairs that match nothing: noise, blank images and repeated patterns, drawn by code, and photographs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.io import read_image
from ucn.data.transforms import resize_by
from ucn.types import PairSample

VARIANTS = {
    "noise": ("gaussian grey", "gaussian colour", "uniform grey", "uniform colour"),
    "blank": ("black", "white", "grey", "gradient"),
    "pattern": ("checkerboard", "stripes", "dots", "bricks"),
}
"""Kinds of drawn images, and the variants of each."""
PHOTOGRAPH = "photograph"
PAIRS_A_GROUP = 100
"""Pairs of each two kinds; 1,000 in all with photographs."""
SIDES = (160, 320)
"""Least and largest side of the images in pixels."""


@dataclass(frozen=True)
class Drawn:
    """A drawn image.

    Attributes:
        variant: one of `VARIANTS`.
        seed: of its random choices.
        size_hw: (H, W).
    """

    variant: str
    seed: int
    size_hw: tuple[int, int]

    def render(self) -> Tensor:
        """The image (3, H, W) in [0, 1]."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.variant in VARIANTS["noise"]:
            return self._draw_noise(generator)
        if self.variant in VARIANTS["blank"]:
            return self._draw_blank(generator)
        return self._draw_pattern(generator)

    def _draw_noise(self, generator: torch.Generator) -> Tensor:
        law, _, colour = self.variant.partition(" ")
        shape = (3 if colour == "colour" else 1, *self.size_hw)
        if law == "uniform":
            values = torch.rand(shape, generator=generator)
        else:
            values = (0.5 + 0.2 * torch.randn(shape, generator=generator)).clamp(0, 1)
        return values.expand(3, -1, -1).contiguous()

    def _draw_blank(self, generator: torch.Generator) -> Tensor:
        first, second = torch.rand(2, 3, 1, 1, generator=generator)
        levels = {"black": 0.0, "white": 1.0, "grey": float(first[0])}
        if self.variant in levels:
            return torch.full((3, *self.size_hw), levels[self.variant])
        u, _ = self._rotate(float(torch.rand((), generator=generator)))
        share = (u - u.min()) / (u.max() - u.min())
        shades: Tensor = first + (second - first) * share
        return shades

    def _draw_pattern(self, generator: torch.Generator) -> Tensor:
        period, turn = torch.rand(2, generator=generator).tolist()
        u, v = (axis / (8 + 32 * period) for axis in self._rotate(turn))
        if self.variant == "checkerboard":
            is_dark = (u.floor() + v.floor()) % 2 == 0
        elif self.variant == "stripes":
            is_dark = u.floor() % 2 == 0
        elif self.variant == "dots":
            is_dark = (u % 1 - 0.5) ** 2 + (v % 1 - 0.5) ** 2 < 0.09
        else:  # bricks: two units wide, every second course moved by half a brick
            along = (u / 2 + 0.5 * (v.floor() % 2)) % 1
            is_dark = (along < 0.06) | (v % 1 < 0.12)
        dark, light = torch.rand(2, 3, 1, 1, generator=generator)
        return torch.where(is_dark, 0.4 * dark, 0.6 + 0.4 * light)

    def _rotate(self, turn: float) -> tuple[Tensor, Tensor]:
        """Pixel coordinates along two axes (H, W), turned by a share of a right angle."""
        y, x = torch.meshgrid(*(torch.arange(float(side)) for side in self.size_hw), indexing="ij")
        cosine, sine = math.cos(turn * math.pi / 2), math.sin(turn * math.pi / 2)
        return cosine * x + sine * y, cosine * y - sine * x


@dataclass(frozen=True)
class Photograph:
    """An image file at a size.

    Attributes:
        path: its file.
        side: longest side in pixels to which a larger one is reduced.
    """

    path: Path
    side: int

    def render(self) -> Tensor:
        """The image (3, H, W) in [0, 1]."""
        image, empty = read_image(self.path), torch.zeros(0, 2)
        scale = min(1.0, self.side / max(image.shape[-2:]))
        return resize_by(PairSample(image, image, empty, empty, ""), scale, scale).image0


def pair_drawn(
    photographs: Sequence[Path], seed: int = 0
) -> list[tuple[str, tuple[Drawn | Photograph, Drawn | Photograph]]]:
    """Pairs of all kinds with each other and with photographs: group, and images 0 and 1.

    Two patterns of a pair are of different variants, since two checkerboards do show the same, and two
    photographs are different files.

    Args:
        photographs: of different scenes, to choose from; without any, drawn images are paired with each other
            alone, and with a single one, no photographs with each other.
        seed: of all choices.
    """
    generator = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    def choose(kind: str, other: Drawn | Photograph | None) -> Drawn | Photograph:
        height, width = (SIDES[0] + pick(SIDES[1] - SIDES[0] + 1) for _ in range(2))
        if kind == PHOTOGRAPH:
            files = [
                path for path in photographs if not (isinstance(other, Photograph) and path == other.path)
            ]
            return Photograph(files[pick(len(files))], max(height, width))
        known = other.variant if isinstance(other, Drawn) and kind == "pattern" else None
        variants = [variant for variant in VARIANTS[kind] if variant != known]
        return Drawn(variants[pick(len(variants))], pick(2**31), (height, width))

    kinds = [*VARIANTS, PHOTOGRAPH] if photographs else [*VARIANTS]
    pairs = []
    for kind0, kind1 in itertools.combinations_with_replacement(kinds, 2):
        if kind0 == PHOTOGRAPH and len(set(photographs)) < 2:
            continue
        for _ in range(PAIRS_A_GROUP):
            first = choose(kind0, None)
            both = (first, choose(kind1, first))
            pairs.append((f"{kind0} and {kind1}", both if pick(2) else (both[1], both[0])))
    return pairs
