"""An image warped onto another by a homography, blended with it, or animated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.data.io import to_pixels
from ucn.files import write_bytes_atomically
from ucn.matching.mosaic import reduce_for_warp
from ucn.types import BoolArray, ImageLike
from ucn.viz.colours import ImageArray


def warp_onto(
    image1: ImageLike, H_0to1: NDArray[np.float64], size_hw: tuple[int, int]
) -> tuple[ImageArray, BoolArray]:
    """Warps image 1 into the frame of image 0.

    Args:
        image1: as `to_tensor` takes it.
        H_0to1: (3, 3) maps pixels of image 0 to pixels of image 1.
        size_hw: (H, W) of image 0.

    Returns:
        The warped image (H, W, 3) uint8, black outside image 1, and the mask (H, W) of its inside.
    """
    pixels, matrix = reduce_for_warp(to_pixels(image1), np.asarray(H_0to1, np.float64), size_hw)
    height, width = size_hw
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    warped = cv2.warpPerspective(pixels, matrix, (width, height), flags=flags)
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    positions = np.stack([columns, rows, np.ones_like(rows)], axis=-1) @ matrix.T
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = positions[..., 0] / positions[..., 2], positions[..., 1] / positions[..., 2]
    limit_x, limit_y = pixels.shape[1] - 1, pixels.shape[0] - 1
    is_inside: BoolArray = (positions[..., 2] > 0) & (x >= 0) & (x <= limit_x) & (y >= 0) & (y <= limit_y)
    return np.where(is_inside[..., None], warped, 0).astype(np.uint8), is_inside


def blend(image0: ImageLike, warped: ImageArray, is_inside: BoolArray) -> ImageArray:
    """Blends image 0 in red with the warped image 1 in cyan: grey where they agree, else coloured edges.

    Args:
        image0: as `to_tensor` takes it.
        warped: (H, W, 3) from `warp_onto`.
        is_inside: (H, W) from `warp_onto`; elsewhere image 0 is shown.
    """
    base = to_pixels(image0)
    greys = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (base, warped)]
    mixed = np.stack([greys[0], greys[1], greys[1]], axis=-1)
    return np.where(is_inside[..., None], mixed, base).astype(np.uint8)


def write_animation(path: str | Path, images: Sequence[ImageArray]) -> None:
    """Writes images of one size as an endless animated GIF, 600 ms each.

    Args:
        path: of the file.
        images: (H, W, 3) uint8, at least one.

    Raises:
        OutputError: as `write_bytes_atomically`.
    """
    frames = [PIL.Image.fromarray(image) for image in images]

    def save(file: BinaryIO) -> None:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=600, loop=0)

    write_bytes_atomically(path, save, overwrite=False)
