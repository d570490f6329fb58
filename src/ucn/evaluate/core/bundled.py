"""Pairs that need no folder of the user's: the shipped stereo pair, and single images against themselves."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.example import example_pair
from ucn.data.io import read_image
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.data.transforms import crop, resize_to_fit, rotate_view
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.geometry.warp import flow_from_disparity, is_nearest_by_disparity, targets_of_flow
from ucn.types import PairSample

ROTATIONS = tuple(range(0, 181, 15))
"""Degrees by which an image is turned against itself."""
SCALES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Factors by which an image is enlarged against itself."""

# NASA's portrait of Eileen Collins, and photographs that their makers gave to the public (CC0).
_PUBLIC_DOMAIN = ("astronaut.png", "coffee.png", "chelsea.png")
_SELF_HW = (480, 640)
# As in the reader of Middlebury's stereo sets: the authors' own cross-check uses a pixel.
_HIDDEN_PIXELS = 1.0


class Motorcycle(PairData):
    """The stereo pair that ships with the package; pixels hidden in the right view are left out."""

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
        return [DataFile(path, "image", partial(read_image, path)) for path in self.image_paths(0)]

    def read(self, index: int) -> PairSample:
        """Both views, and each pixel of the left one whose partner is known and seen."""
        image0, image1 = map(read_image, self.image_paths(index))
        disparity = torch.from_numpy(self._pair.disparity)[None]
        targets = targets_of_flow(flow_from_disparity(disparity))[0].reshape(-1, 2)
        is_nearest = is_nearest_by_disparity(disparity, image1.shape[-1], _HIDDEN_PIXELS).flatten()
        is_seen = is_nearest & is_inside(targets, (image1.shape[-2], image1.shape[-1]))
        points0 = pixel_grid((image0.shape[-2], image0.shape[-1])).reshape(-1, 2)
        return PairSample(image0, image1, points0[is_seen], targets[is_seen], self.pair_name(index))


@dataclass(frozen=True)
class Change:
    """How an image is changed against itself.

    Attributes:
        kind: rotation or scale.
        value: degrees, clockwise, or a factor.
    """

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:g}°" if self.kind == "rotation" else f"{self.value:g}×"


CHANGES = (
    *(Change("rotation", float(degrees)) for degrees in ROTATIONS),
    *(Change("scale", factor) for factor in SCALES),
)


class SelfPairs(PairData):
    """Images of 640 × 480 against themselves, turned or enlarged about their centre."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths[0].parent)
        self._paths = list(paths)

    def __len__(self) -> int:
        return len(self._paths) * len(CHANGES)

    def change(self, index: int) -> Change:
        """How image 1 of a pair differs from image 0."""
        check_index(index, len(self))
        return CHANGES[index % len(CHANGES)]

    def pair_name(self, index: int) -> str:
        """The image and the change."""
        change = self.change(index)
        return f"{self._paths[index // len(CHANGES)].stem}/{change.kind} {change}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The image, twice."""
        check_index(index, len(self))
        path = self._paths[index // len(CHANGES)]
        return path, path

    def files(self) -> Sequence[DataFile]:
        """The images."""
        return [DataFile(path, "image", partial(read_image, path)) for path in self._paths]

    def read(self, index: int) -> PairSample:
        """Makes a pair; its points are all pixels of image 0 that are seen in image 1."""
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
    """The middle of an image at a size that it fills."""
    height, width = image.shape[-2:]
    scale = min(height / size_hw[0], width / size_hw[1])
    window_hw = (int(size_hw[0] * scale), int(size_hw[1] * scale))
    corner = ((width - window_hw[1]) // 2, (height - window_hw[0]) // 2)
    empty = torch.zeros(0, 2)
    sample = crop(PairSample(image, image, empty, empty, ""), corner, corner, window_hw, window_hw)
    fitted = resize_to_fit(sample, size_hw)
    # A window of whole pixels may miss the size's shape by one.
    return crop(replace(fitted), (0, 0), (0, 0), size_hw, size_hw).image0
