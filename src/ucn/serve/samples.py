"""Bundled image pairs to try."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import PIL.Image
import torch

from ucn.data.bundled import MINI_IMAGES
from ucn.data.example import example_pair
from ucn.data.image_limits import MAX_PIXELS
from ucn.data.io import read_image, to_pixels
from ucn.data.transforms import rotate_view
from ucn.serve.images import StoredImage, decode_upload
from ucn.types import PairSample


@dataclass(frozen=True)
class SamplePair:
    """A pair of bundled images.

    Attributes:
        title: shown on the page.
        image0: name of the first image.
        image1: name of the second image.
        credit: author and licence.
    """

    title: str
    image0: str
    image1: str
    credit: str


PAIRS = (
    SamplePair(
        "Motorcycle, stereo pair",
        "sample-motorcycle-left",
        "sample-motorcycle-right",
        "Middlebury 2014 stereo data sets",
    ),
    SamplePair(
        "Cup of coffee, rotated by 35°",
        "sample-coffee",
        "sample-coffee-turned",
        "Rachel Michetti, courtesy of Pikolo Espresso Bar, CC0",
    ),
    SamplePair(
        "Chelsea the cat, rotated and enlarged",
        "sample-chelsea",
        "sample-chelsea-nearer",
        "Stefan van der Walt, CC0",
    ),
)


def _motorcycle_left() -> bytes:
    return example_pair().image0_path.read_bytes()


def _motorcycle_right() -> bytes:
    return example_pair().image1_path.read_bytes()


def _photograph(name: str) -> Path:
    return MINI_IMAGES[0].with_name(f"{name}.jpg")


def _changed(name: str, degrees: float, factor: float) -> bytes:
    """A bundled photograph, rotated and enlarged about its centre, as PNG."""
    image, empty = read_image(_photograph(name)), torch.zeros(0, 2)
    changed = rotate_view(PairSample(image, image, empty, empty, name), 1, degrees, factor).image1
    file = io.BytesIO()
    PIL.Image.fromarray(to_pixels(changed)).save(file, "PNG")
    return file.getvalue()


_CONTENTS: dict[str, Callable[[], bytes]] = {
    "sample-motorcycle-left": _motorcycle_left,
    "sample-motorcycle-right": _motorcycle_right,
    "sample-coffee": lambda: _photograph("coffee").read_bytes(),
    "sample-coffee-turned": lambda: _changed("coffee", 35.0, 1.0),
    "sample-chelsea": lambda: _photograph("chelsea").read_bytes(),
    "sample-chelsea-nearer": lambda: _changed("chelsea", -20.0, 1.4),
}


class Samples:
    """The bundled images, each read at first use."""

    def __init__(self) -> None:
        self._held: dict[str, StoredImage] = {}

    def find(self, name: str) -> StoredImage | None:
        """The sample of this name, or None."""
        if name in _CONTENTS and name not in self._held:
            self._held[name] = decode_upload(name, _CONTENTS[name](), MAX_PIXELS)
        return self._held.get(name)
