"""Pairs that ship with the package: three photographs under known homographies and changes of light.

They make the benchmark `mini`, small enough for a test that fails when a change loses accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.io import read_image
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.data.transforms import PADDING_RGB
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.geometry.sampling import sample_image
from ucn.geometry.warp import homography_from_corners, warp_points
from ucn.types import PairSample

PICTURES = tuple(
    Path(__file__).with_name("pictures") / f"{name}.jpg" for name in ("astronaut", "coffee", "chelsea")
)
"""What the pairs are made of; ATTRIBUTION.txt beside them says whose they are."""


@dataclass(frozen=True)
class Warp:
    """How view 1 differs from the photograph.

    Attributes:
        name: of the kind of change.
        degrees: clockwise turn about the centre.
        scale: above 1 enlarges.
        corners: moves of the four corners, as shares of width and height, before turn and scale: top left,
            top right, bottom left, bottom right.
        gain: factor of the light.
        gamma: exponent of the light.
    """

    name: str
    degrees: float = 0.0
    scale: float = 1.0
    corners: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * 4
    gain: float = 1.0
    gamma: float = 1.0

    def homography(self, image_hw: tuple[int, int]) -> Tensor:
        """(3, 3) float64 from the photograph to view 1."""
        height, width = image_hw
        size = torch.tensor([width - 1.0, height - 1.0], dtype=torch.float64)
        square = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]], dtype=torch.float64)
        moved = (square + torch.tensor(self.corners, dtype=torch.float64)) * size - size / 2
        angle = math.radians(self.degrees)
        # y points down, so the usual matrix turns clockwise.
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        turned = moved @ torch.tensor(turn, dtype=torch.float64).t() * self.scale + size / 2
        return homography_from_corners(square * size, turned[None])[0]


WARPS = (
    Warp("turned", degrees=20, scale=0.9, gamma=1.3),
    Warp("tilted", corners=((0.12, 0.1), (-0.05, 0.0), (0.0, -0.15), (-0.1, 0.02)), gain=0.75),
    Warp(
        "both",
        degrees=-35,
        scale=1.25,
        corners=((0.1, 0.0), (0.0, 0.12), (0.05, -0.05), (-0.12, 0.0)),
        gamma=0.8,
    ),
)
"""The changes of each photograph, from mild to strong."""


class WarpedPictures(PairData):
    """Each photograph against itself under each warp."""

    def __init__(self, paths: Sequence[Path] = PICTURES, warps: Sequence[Warp] = WARPS) -> None:
        super().__init__(paths[0].parent)
        self._paths, self._warps = list(paths), list(warps)

    def __len__(self) -> int:
        return len(self._paths) * len(self._warps)

    def warp(self, index: int) -> Warp:
        """How view 1 of a pair differs from view 0."""
        check_index(index, len(self))
        return self._warps[index % len(self._warps)]

    def pair_name(self, index: int) -> str:
        """The photograph and the change."""
        return f"{self.image_paths(index)[0].stem}/{self.warp(index).name}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The photograph, twice."""
        check_index(index, len(self))
        path = self._paths[index // len(self._warps)]
        return path, path

    def files(self) -> Sequence[DataFile]:
        """The photographs."""
        return [DataFile(path, "image", partial(read_image, path)) for path in self._paths]

    def read(self, index: int) -> PairSample:
        """Makes a pair; its points are all pixels of the photograph that view 1 shows."""
        image, warp = read_image(self.image_paths(index)[0]), self.warp(index)
        image_hw = (image.shape[-2], image.shape[-1])
        points = pixel_grid(image_hw).reshape(-1, 2)
        H_0to1 = warp.homography(image_hw)
        targets = warp_points(points[None].double(), H_0to1[None])[0]
        view = _render(image, torch.linalg.inv(H_0to1), warp)
        is_seen = is_inside(targets, image_hw)
        return PairSample(image, view, points[is_seen], targets[is_seen].float(), self.pair_name(index))


def _render(image: Tensor, H_1to0: Tensor, warp: Warp) -> Tensor:
    """View 1, (3, H, W): what lies beyond the photograph is grey."""
    image_hw = (image.shape[-2], image.shape[-1])
    grid = pixel_grid(image_hw).double().reshape(1, -1, 2)
    source = warp_points(grid, H_1to0[None]).view(1, *image_hw, 2).float()
    padding = image.new_tensor(PADDING_RGB).view(3, 1, 1)
    shown = sample_image((image - padding)[None], source, "zeros")[0] + padding
    return (shown.clamp(0, 1) ** warp.gamma * warp.gain).clamp(0, 1)
