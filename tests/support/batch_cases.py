"""Folders of small images, and an extractor that keeps a diary."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.data.io import to_tensor
from ucn.features import DenseSift, Extractor
from ucn.folders.extraction import Method
from ucn.folders.image_features import ExtractSettings
from ucn.types import Features, ImageLike

SETTINGS = ExtractSettings(max_side=None, max_keypoints=40, detector="corners", batch=2)


def make_texture(size_hw: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Blocks of random colours, of several sizes on top of each other: corners everywhere."""
    rng = np.random.default_rng(seed)
    total = np.zeros((*size_hw, 3))
    for block in (4, 9, 23):
        shape = (-(-size_hw[0] // block), -(-size_hw[1] // block), 3)
        grown = rng.random(shape).repeat(block, axis=0).repeat(block, axis=1)
        total += grown[: size_hw[0], : size_hw[1]]
    return (total / 3 * 255).round().astype(np.uint8)


def write_images(folder: Path, count: int, size_hw: tuple[int, int] = (48, 64)) -> list[str]:
    """Images 000.png, 001.png, …, each with its number in its first pixel; every third in a folder below."""
    names = []
    for number in range(count):
        pixels = make_texture(size_hw, number)
        pixels[0, 0] = number
        name = f"below/{number:03}.png" if number % 3 == 2 else f"{number:03}.png"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(pixels).save(path)
        names.append(name)
    return sorted(names)


class DiaryExtractor:
    """Dense SIFT that writes down the number of each image it describes."""

    def __init__(self, diary: Path, delay: float) -> None:
        self._diary, self._delay = diary, delay

    def extract(self, image: ImageLike) -> Features:
        number = int(to_tensor(image)[0, 0, 0].mul(255).round())
        with self._diary.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(self._delay)
        return DenseSift().extract(image)


def _make(diary: str, delay: float, _device: str | None) -> Extractor:
    return DiaryExtractor(Path(diary), delay)


def make_method(diary: Path, delay: float = 0.0) -> Method:
    """A method for engines; its key does not depend on the diary."""
    return Method("diary", {"test": 1}, partial(_make, str(diary), delay))


def read_diary(diary: Path) -> list[int]:
    return [int(line) for line in diary.read_text().split()]
