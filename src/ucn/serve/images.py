"""Images as the server stores them: the file, its size, and a JPEG for the browser."""

from __future__ import annotations

import io
from dataclasses import dataclass

import PIL.Image
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import decode_image, to_pixels
from ucn.errors import ImageReadError
from ucn.nn import MIN_SIDE

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

    def read(self) -> Tensor:
        """The image as (3, H, W) in [0, 1]."""
        return decode_image(self.content, self.max_pixels)


def decode_upload(name: str, content: bytes, max_pixels: int) -> StoredImage:
    """Decodes an image file and encodes the JPEG for the browser.

    Raises:
        ImageReadError: the content is not a readable image, or too large or too small.
    """
    pixels = decode_image(content, max_pixels)
    height, width = pixels.shape[-2:]
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"the image must have at least {MIN_SIDE} pixels a side, got {width} × {height}; enlarge it first"
        )
    return StoredImage(name, content, (height, width), _encode_jpeg(pixels), max_pixels)


def _encode_jpeg(pixels: Tensor) -> bytes:
    height, width = pixels.shape[-2:]
    scale = _SHOWN_SIDE / max(height, width)
    if scale < 1:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        reduced = F.interpolate(pixels[None], size, mode="bilinear", antialias=True, align_corners=False)
        pixels = reduced[0].clamp(0, 1)
    file = io.BytesIO()
    PIL.Image.fromarray(to_pixels(pixels)).save(file, "JPEG", quality=92, subsampling=0)
    return file.getvalue()
