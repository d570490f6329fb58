"""Images as the server stores them: the file, its size, and a JPEG for the browser. It imports no torch."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.config import MIN_SIDE
from ucn.data.io import decode_pixels
from ucn.errors import ImageReadError

_SHOWN_SIDE = 1600  # pixels; larger than a panel of the page


@dataclass(frozen=True)
class StoredImage:
    """An upload or a sample.

    Attributes:
        name: identifier in the REST interface; random for uploads.
        content: the file.
        image_hw: (H, W) of the upright image; points refer to its pixels.
        shown: the image as JPEG, reduced if large, without metadata.
        max_pixels: limit for decoding.
    """

    name: str
    content: bytes
    image_hw: tuple[int, int]
    shown: bytes
    max_pixels: int

    @property
    def memory_bytes(self) -> int:
        """Memory of the file and the JPEG."""
        return len(self.content) + len(self.shown)


def decode_upload(name: str, content: bytes, max_pixels: int) -> StoredImage:
    """Decodes an image file and encodes the JPEG for the browser.

    The server does this in a child process, see `ucn.serve.decoder`; only for its own samples it does not.

    Raises:
        ImageReadError: the content is not a readable image, or too large or too small.
    """
    pixels = decode_pixels(content, max_pixels)
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"the image must have at least {MIN_SIDE} pixels a side, got {width} × {height}; enlarge it first"
        )
    return StoredImage(name, content, (height, width), _encode_jpeg(pixels), max_pixels)


def _encode_jpeg(pixels: NDArray[Any]) -> bytes:
    if pixels.dtype != np.uint8:
        pixels = (255 * pixels).round().astype(np.uint8)
    image = PIL.Image.fromarray(pixels)
    image.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE), PIL.Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=92, subsampling=0)
    return file.getvalue()
