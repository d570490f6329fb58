"""Pairs that need no data folder: the shipped stereo pair, and images against warped copies."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.data.transforms import PADDING_RGB, crop, resize_to_fit, rotate_view
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.geometry.sampling import sample_image
from ucn.geometry.warp import (
    flow_from_disparity,
    homography_from_corners,
    is_nearest_by_disparity,
    targets_of_flow,
    warp_points,
)
from ucn.types import PairSample

ROTATIONS = tuple(range(0, 181, 15))
"""Degrees by which an image is rotated."""
SCALES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Factors by which an image is enlarged."""

# NASA's portrait of Eileen Collins, and photographs in the public domain (CC0).
_PUBLIC_DOMAIN = ("astronaut.png", "coffee.png", "chelsea.png")
_SELF_HW = (480, 640)
# As in the reader of Middlebury's stereo sets: the authors' own cross-check uses a pixel.
_OCCLUSION_PIXELS = 1.0
_C = TypeVar("_C")


class Motorcycle(PairData):
    """The stereo pair that ships with the package, without pixels that are occluded in the right view."""

    def __init__(self) -> None:
        self._pair = example_pair()
        super().__init__(self._pair.image0_path.parent)

    def __len__(self) -> int:
        return 1

    def pair_name(self, index: int) -> str:
        """Its name."""
        check_index(index, 1)
        return "motorcycle"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The left and the right view."""
        check_index(index, 1)
        return self._pair.image0_path, self._pair.image1_path

    def files(self) -> Sequence[DataFile]:
        """Both views."""
        return [DataFile.image(path) for path in self.image_paths(0)]

    def read(self, index: int) -> PairSample:
        """Both views, and each pixel of the left one whose correspondence is known and visible."""
        image0, image1 = map(read_image, self.image_paths(index))
        disparity = torch.from_numpy(self._pair.disparity)[None]
        targets = targets_of_flow(flow_from_disparity(disparity))[0].reshape(-1, 2)
        is_nearest = is_nearest_by_disparity(disparity, image1.shape[-1], _OCCLUSION_PIXELS).flatten()
        is_visible = is_nearest & is_inside(targets, (image1.shape[-2], image1.shape[-1]))
        points0 = pixel_grid((image0.shape[-2], image0.shape[-1])).reshape(-1, 2)
        return PairSample(image0, image1, points0[is_visible], targets[is_visible], self.pair_name(index))


class _ChangedImages(PairData, Generic[_C]):
    """Each image against itself under each of several changes."""

    def __init__(self, paths: Sequence[Path], changes: Sequence[_C]) -> None:
        super().__init__(paths[0].parent)
        self._paths, self._changes = list(paths), list(changes)

    def __len__(self) -> int:
        return len(self._paths) * len(self._changes)

    def change(self, index: int) -> _C:
        """The change from image 0 to image 1 of a pair."""
        check_index(index, len(self))
        return self._changes[index % len(self._changes)]

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The image, twice."""
        check_index(index, len(self))
        path = self._paths[index // len(self._changes)]
        return path, path

    def files(self) -> Sequence[DataFile]:
        """The images."""
        return [DataFile.image(path) for path in self._paths]


@dataclass(frozen=True)
class Change:
    """The change of view 1 of an image.

    Attributes:
        kind: rotation or scale.
        value: degrees clockwise, or a factor.
    """

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:g}°" if self.kind == "rotation" else f"{self.value:g}×"


CHANGES = (
    *(Change("rotation", float(degrees)) for degrees in ROTATIONS),
    *(Change("scale", factor) for factor in SCALES),
)


class SelfPairs(_ChangedImages[Change]):
    """Images of 640 × 480 against themselves, rotated or enlarged about their centre."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths, CHANGES)

    def pair_name(self, index: int) -> str:
        """The image and the change."""
        change = self.change(index)
        return f"{self.image_paths(index)[0].stem}/{change.kind} {change}"

    def read(self, index: int) -> PairSample:
        """Makes a pair; its points are all pixels of image 0 that are visible in image 1."""
        change = self.change(index)
        image = _fill(read_image(self.image_paths(index)[0]), _SELF_HW)
        points = pixel_grid(_SELF_HW).reshape(-1, 2)
        sample = PairSample(image, image, points, points, self.pair_name(index))
        if change.kind == "rotation":
            return rotate_view(sample, 1, change.value)
        return rotate_view(sample, 1, 0.0, change.value)


def find_self_images() -> list[Path]:
    """The left view of the shipped pair, and images of scikit-image where that is installed."""
    found = [example_pair().image0_path]
    spec = importlib.util.find_spec("skimage")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "data"
        found += [folder / name for name in _PUBLIC_DOMAIN if (folder / name).is_file()]
    return found


def _fill(image: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """The centre of an image, resized to fill a size."""
    height, width = image.shape[-2:]
    scale = min(height / size_hw[0], width / size_hw[1])
    window_hw = (int(size_hw[0] * scale), int(size_hw[1] * scale))
    corner = ((width - window_hw[1]) // 2, (height - window_hw[0]) // 2)
    empty = torch.zeros(0, 2)
    sample = crop(PairSample(image, image, empty, empty, ""), corner, corner, window_hw, window_hw)
    fitted = resize_to_fit(sample, size_hw)
    # A window of whole pixels may differ from the aspect ratio by one pixel.
    return crop(replace(fitted), (0, 0), (0, 0), size_hw, size_hw).image0


MINI_IMAGES = tuple(
    Path(__file__).with_name("pictures") / f"{name}.jpg" for name in ("astronaut", "coffee", "chelsea")
)
"""The photographs of the benchmark `mini`; ATTRIBUTION.txt beside them names their authors."""


@dataclass(frozen=True)
class Warp:
    """The homography and the illumination change from a photograph to view 1.

    Attributes:
        name: of the change.
        degrees: clockwise rotation about the centre.
        scale: above 1 enlarges.
        corners: shifts of the four corners, as shares of width and height, before rotation and scale: top
            left, top right, bottom left, bottom right.
        gain: factor of the brightness.
        gamma: exponent of the brightness.
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
        # y points down, so the usual matrix rotates clockwise.
        rotation = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        turned = moved @ torch.tensor(rotation, dtype=torch.float64).t() * self.scale + size / 2
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
"""The changes of each photograph, from mild to strong, for the benchmark `mini`."""


class WarpedImages(_ChangedImages[Warp]):
    """Each photograph against itself under each warp."""

    def __init__(self, paths: Sequence[Path] = MINI_IMAGES) -> None:
        super().__init__(paths, WARPS)

    def pair_name(self, index: int) -> str:
        """The photograph and the change."""
        return f"{self.image_paths(index)[0].stem}/{self.change(index).name}"

    def read(self, index: int) -> PairSample:
        """Makes a pair; its points are all pixels of the photograph that are visible in view 1."""
        image, warp = read_image(self.image_paths(index)[0]), self.change(index)
        image_hw = (image.shape[-2], image.shape[-1])
        points = pixel_grid(image_hw).reshape(-1, 2)
        H_0to1 = warp.homography(image_hw)
        targets = warp_points(points[None].double(), H_0to1[None])[0]
        view = _render(image, torch.linalg.inv(H_0to1), warp)
        is_visible = is_inside(targets, image_hw)
        return PairSample(image, view, points[is_visible], targets[is_visible].float(), self.pair_name(index))


def _render(image: Tensor, H_1to0: Tensor, warp: Warp) -> Tensor:
    """View 1, (3, H, W), grey outside the photograph."""
    image_hw = (image.shape[-2], image.shape[-1])
    grid = pixel_grid(image_hw).double().reshape(1, -1, 2)
    source = warp_points(grid, H_1to0[None]).view(1, *image_hw, 2).float()
    padding = image.new_tensor(PADDING_RGB).view(3, 1, 1)
    shown = sample_image((image - padding)[None], source, "zeros")[0] + padding
    return (shown.clamp(0, 1) ** warp.gamma * warp.gain).clamp(0, 1)
