"""Which image formats are read, and how an image is stored: its EXIF orientation."""

from __future__ import annotations

from typing import BinaryIO

import PIL.Image

from ucn.errors import ImageReadError

READ_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are read, by Pillow's names; Pillow's others run external programs or hold no pixels. HEIC is
read, too, where pillow-heif is installed."""
EXIF_ORIENTATION = 0x0112
"""The EXIF tag of an image's orientation."""

_HEIF = "HEIF"
_HEIC_BRANDS = frozenset(
    (*(b"heic", b"heix", b"heim", b"heis", b"hevc"), *(b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"))
)
_AVIF_BRANDS = frozenset((b"avif", b"avis"))


def choose_formats(source: BinaryIO) -> tuple[str, ...]:
    """The formats as one of which an image is opened.

    For HEIC this is HEIF, which is first registered with Pillow.

    Raises:
        ImageReadError: it is HEIC, and pillow-heif is not installed.
    """
    if not _is_heic(source):
        return READ_FORMATS
    if _HEIF not in PIL.Image.OPEN:
        try:
            from pillow_heif import register_heif_opener
        except ImportError as error:
            raise ImageReadError(
                "it is HEIC, which needs pillow-heif: pip install 'ucn[heif]', or convert it to JPEG"
            ) from error
        register_heif_opener()
    return (_HEIF,)


def find_orientation(image: PIL.Image.Image, has_late_tags: bool = True) -> int:
    """The EXIF orientation of an opened image, 1 to 8; that of HEIC is 1, since its decoder turns it.

    Without `has_late_tags`, no PNG is decoded, as Pillow does to find tags behind its pixels.
    """
    exif = image.getexif() if has_late_tags or image.format != "PNG" else PIL.Image.Image.getexif(image)
    found = exif.get(EXIF_ORIENTATION, 1)
    return int(found) if found in range(1, 9) else 1


def _is_heic(source: BinaryIO) -> bool:
    """Whether a file begins, as HEIC does, with a box `ftyp` of such a brand; AVIF is built alike."""
    start = source.read(64)
    source.seek(0)
    if start[4:8] != b"ftyp":
        return False
    end = min(int.from_bytes(start[:4], "big"), len(start))
    brands = {start[8:12], *(start[place : place + 4] for place in range(16, end, 4))}
    return bool(brands & _HEIC_BRANDS) and not brands & _AVIF_BRANDS
