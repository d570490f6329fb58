"""What is known of an image file without decoding it: its suffix, and its size from the header."""

from __future__ import annotations

from pathlib import Path

import PIL.Image

from ucn.data.io import READ_FORMATS

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of image files, in the order in which they are tried where a name comes without one."""
EXIF_ORIENTATION = 0x0112
"""The EXIF tag that says how a picture is to be turned."""

_EXIF_SIDEWAYS = (5, 6, 7, 8)  # these orientations swap height and width


def read_header_hw(path: Path) -> tuple[int, int] | None:
    """(H, W) of an image from its header, as `read_image` would give it; None where that cannot be read."""
    try:
        with PIL.Image.open(path, formats=READ_FORMATS) as image:
            is_sideways = image.getexif().get(EXIF_ORIENTATION) in _EXIF_SIDEWAYS
            return (image.width, image.height) if is_sideways else (image.height, image.width)
    except Exception:  # Pillow raises many kinds; the check of the image itself says what is wrong with it
        return None
