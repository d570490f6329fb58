"""A tiny benchmark: images whose colours encode the position of a pixel, and a method that reads them."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucn.data.io import to_tensor, write_image
from ucn.features.extractor import make_features
from ucn.features.method import DenseMethod
from ucn.types import Features, ImageLike

SHIFT_XY = (8, 4)
"""Where image 1 has what image 0 has at (0, 0)."""
SIZE_HW = (48, 64)


def write_ramp(path: Path, shift_xy: tuple[int, int] = (0, 0), size_hw: tuple[int, int] = SIZE_HW) -> Path:
    """A picture whose red is that of x and whose green that of y, moved by a shift."""
    y, x = np.mgrid[: size_hw[0], : size_hw[1]]
    red, green = 40 + 3 * (x - shift_xy[0]), 30 + 4 * (y - shift_xy[1])
    pixels = np.stack([red, green, np.full_like(red, 128)], axis=-1).clip(0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, pixels, overwrite=True)
    return path


def write_sequence(root: Path, name: str, shift_xy: tuple[int, int] = SHIFT_XY) -> Path:
    """A sequence of HPatches: image 1, and five equal others, moved."""
    folder = root / name
    for number in range(1, 7):
        write_ramp(folder / f"{number}.png", (0, 0) if number == 1 else shift_xy)
        if number > 1:
            (folder / f"H_1_{number}").write_text(f"1 0 {shift_xy[0]}\n0 1 {shift_xy[1]}\n0 0 1\n")
    return folder


class ColourExtractor:
    """Describes a cell by red and green: on such pictures the nearest descriptor is the same place.

    Attributes:
        calls: how many images were described.
    """

    def __init__(self) -> None:
        self.calls = 0

    def extract(self, image: ImageLike) -> Features:
        """Reads the colours at the cells."""
        self.calls += 1
        pixels = to_tensor(image)
        cells = pixels[:, 2::4, 2::4].clone()
        cells[2] = 0.5
        return make_features(cells, (pixels.shape[-2], pixels.shape[-1]))


class BlankExtractor:
    """Describes all cells alike, so that the first cell answers everything."""

    def extract(self, image: ImageLike) -> Features:
        """Equal descriptors."""
        height, width = to_tensor(image).shape[-2:]
        return make_features(torch.ones(3, (height + 1) // 4, (width + 1) // 4), (height, width))


def make_method(name: str = "colour", extractor: object = None) -> DenseMethod:
    """A method of a synthetic key."""
    return DenseMethod(
        name,
        f"the method {name}",
        {"synthetic": name},
        extractor=extractor or ColourExtractor(),  # type: ignore[arg-type]
    )


def share_with_copies(
    work: Callable[[Any], Any], tasks: Sequence[Any], jobs: int
) -> Iterator[tuple[Any, Any]]:
    """What `share_work` does with several processes, within one: each has a copy of the work, by pickle."""
    copies = [pickle.loads(pickle.dumps(work)) for _ in range(jobs)]
    for number, task in enumerate(tasks):
        copied = pickle.loads(pickle.dumps(task))
        yield task, pickle.loads(pickle.dumps(copies[number % jobs](copied)))
