"""Folders of small images, and an extractor that keeps a diary."""

import time
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.data.io import to_tensor
from ucn.features.classical import DenseSift
from ucn.features.method import MethodInfo, wrap_extractor
from ucn.folders.worker import ExtractSettings
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
    """Dense SIFT that records the number of each image that it encodes."""

    def __init__(self, diary: Path, delay: float) -> None:
        self._diary, self._delay = diary, delay

    def extract(self, image: ImageLike) -> Features:
        number = int(to_tensor(image)[0, 0, 0].mul(255).round())
        with self._diary.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(self._delay)
        return DenseSift().extract(image)


def make_method(diary: Path, delay: float = 0.0) -> MethodInfo:
    """A method for executors; its key does not depend on the diary."""
    loader = wrap_extractor(DiaryExtractor(diary, delay))
    return MethodInfo("diary", "dense SIFT with a diary", {"test": 1}, loader=loader)


def read_diary(diary: Path) -> list[int]:
    return [int(line) for line in diary.read_text().split()]
