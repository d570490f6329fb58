"""One image laid over another by a homography: warped, mixed, and blinking."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.data.io import to_pixels, write_bytes_atomically
from ucn.types import BoolArray, ImageLike
from ucn.viz.canvas import resize
from ucn.viz.colours import Picture


def warp_onto(
    image1: ImageLike, H_0to1: NDArray[np.float64], size_hw: tuple[int, int]
) -> tuple[Picture, BoolArray]:
    """Image 1 as it would look in the frame of image 0.

    Args:
        image1: as `to_tensor` takes it.
        H_0to1: (3, 3) takes pixels of image 0 to pixels of image 1.
        size_hw: (H, W) of image 0.

    Returns:
        (H, W, 3) uint8, black where image 1 does not reach, and (H, W) bool, where it does.
    """
    pixels, matrix = _reduce(to_pixels(image1), np.asarray(H_0to1, np.float64), size_hw)
    height, width = size_hw
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    warped = cv2.warpPerspective(pixels, matrix, (width, height), flags=flags)
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = np.stack([columns, rows, np.ones_like(rows)], axis=-1) @ matrix.T
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = places[..., 0] / places[..., 2], places[..., 1] / places[..., 2]
    limit_x, limit_y = pixels.shape[1] - 1, pixels.shape[0] - 1
    is_seen: BoolArray = (places[..., 2] > 0) & (x >= 0) & (x <= limit_x) & (y >= 0) & (y <= limit_y)
    return np.where(is_seen[..., None], warped, 0).astype(np.uint8), is_seen


def mix(image0: ImageLike, warped: Picture, is_seen: BoolArray) -> Picture:
    """Image 0 in red and the warped image 1 in cyan: grey where they agree, coloured edges where not.

    Args:
        image0: as `to_tensor` takes it.
        warped: (H, W, 3), as `warp_onto` gives it.
        is_seen: (H, W); elsewhere image 0 stays as it is.
    """
    base = to_pixels(image0)
    greys = [cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) for picture in (base, warped)]
    mixed = np.stack([greys[0], greys[1], greys[1]], axis=-1)
    return np.where(is_seen[..., None], mixed, base).astype(np.uint8)


def write_blinking(
    path: str | Path, pictures: Sequence[Picture], milliseconds: int = 600, overwrite: bool = False
) -> None:
    """Writes pictures of one size as a GIF that shows one after the other for ever.

    Args:
        path: where the file goes.
        pictures: (H, W, 3) uint8, at least one.
        milliseconds: how long each is shown.
        overwrite: replace an existing file.

    Raises:
        OutputError: as `write_bytes_atomically`.
    """
    frames = [PIL.Image.fromarray(picture) for picture in pictures]

    def save(file: BinaryIO) -> None:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)

    write_bytes_atomically(path, save, overwrite)


def _reduce(
    pixels: Picture, matrix: NDArray[np.float64], size_hw: tuple[int, int]
) -> tuple[Picture, NDArray[np.float64]]:
    """A smaller image 1 where image 0 is coarser, so that fine detail does not turn into noise."""
    middle = np.array([(size_hw[1] - 1) / 2, (size_hw[0] - 1) / 2, 1.0])
    # Of a homography the local change of area is det(H) over the depth cubed.
    area = abs(np.linalg.det(matrix)) / max(abs(float(matrix[2] @ middle)) ** 3, 1e-12)
    factor = float(np.sqrt(area))
    if not 1.5 < factor < np.inf:
        return pixels, matrix
    reduced_hw = max(1, round(pixels.shape[0] / factor)), max(1, round(pixels.shape[1] / factor))
    scale_y, scale_x = reduced_hw[0] / pixels.shape[0], reduced_hw[1] / pixels.shape[1]
    to_reduced = np.array(
        [[scale_x, 0, (scale_x - 1) / 2], [0, scale_y, (scale_y - 1) / 2], [0, 0, 1]], np.float64
    )
    return resize(pixels, reduced_hw), np.asarray(to_reduced @ matrix, np.float64)
