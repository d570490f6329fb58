"""Which images a folder holds, whether it has changed, and its images at the size they are described at."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ucn.data.headers import IMAGE_SUFFIXES
from ucn.data.io import read_image
from ucn.errors import DataError, ImageReadError
from ucn.nn import MIN_SIDE
from ucn.nn.tiling import reduce_image


def list_images(folder: Path) -> tuple[str, ...]:
    """Paths of all images below a folder, relative to it and sorted, with / between folders.

    Hidden files and folders are left out.

    Raises:
        DataError: there is no such folder, it holds no image, or a name is not Unicode.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; give a folder of images")
    found = []
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts):
            continue
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
            found.append(relative.as_posix())
    for name in found:
        if not name.isprintable():  # surrogates of bytes that are no UTF-8 are not
            raise DataError(
                f"{folder}: the name {name!r} has letters that are not printable; rename the file"
            )
    if not found:
        raise DataError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)}); give another folder")
    return tuple(sorted(found))


def digest_images(folder: Path, names: Sequence[str]) -> str:
    """A digest of names, sizes and times of change of images: another one, and the folder has changed."""
    digest = hashlib.sha256()
    for name in names:
        status = (folder / name).stat()
        digest.update(json.dumps([name, status.st_size, status.st_mtime_ns]).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Reduced:
    """An image as it is described.

    Attributes:
        pixels: (3, H, W) in [0, 1].
        image_hw: (H, W) of the file.
    """

    pixels: Tensor
    image_hw: tuple[int, int]

    @property
    def hw(self) -> tuple[int, int]:
        """(H, W) of the pixels."""
        return self.pixels.shape[-2], self.pixels.shape[-1]


def read_reduced(path: Path, max_side: int | None) -> Reduced:
    """Reads an image and reduces it to a longest side; None keeps it.

    Raises:
        ImageReadError: it cannot be read, or a side is shorter than 32 px.
    """
    pixels = read_image(path)
    height, width = pixels.shape[-2:]
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"{path} must be at least {MIN_SIDE} px a side, got {width} × {height} (width × height); "
            "enlarge it first",
            path=path,
        )
    return Reduced(reduce_image(pixels, max_side), (height, width))
