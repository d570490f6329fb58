"""Images as the page holds them: the file as it came, its size, and a picture that any browser shows."""

from __future__ import annotations

import io
from dataclasses import dataclass

import PIL.Image
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import decode_image, to_pixels
from ucn.errors import ImageReadError
from ucn.nn import MIN_SIDE

_SHOWN_SIDE = 1600  # more than two panels of a screen can show


@dataclass(frozen=True)
class HeldImage:
    """One image, upload or sample.

    Attributes:
        name: what the interface calls it; hard to guess for uploads.
        content: the file.
        image_hw: (H, W) of the upright image, in whose pixels points are given.
        shown: the same picture as JPEG, reduced if it is large, without anything else that the file held.
        max_pixels: limit under which the file is decoded.
    """

    name: str
    content: bytes
    image_hw: tuple[int, int]
    shown: bytes
    max_pixels: int

    @property
    def held_bytes(self) -> int:
        """Memory that it takes."""
        return len(self.content) + len(self.shown)

    def read(self) -> Tensor:
        """The image as (3, H, W) in [0, 1]."""
        return decode_image(self.content, self.max_pixels)


def hold_image(name: str, content: bytes, max_pixels: int) -> HeldImage:
    """Decodes the bytes of a file and makes the picture that is shown.

    Raises:
        ImageReadError: they are no image that can be read, or one that is too large or too small.
    """
    pixels = decode_image(content, max_pixels)
    height, width = pixels.shape[-2:]
    if min(height, width) < MIN_SIDE:
        raise ImageReadError(
            f"the image must have at least {MIN_SIDE} pixels a side, got {width} × {height}; enlarge it first"
        )
    return HeldImage(name, content, (height, width), _encode_jpeg(pixels), max_pixels)


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
