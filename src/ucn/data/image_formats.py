"""Which image formats are read, and how an image is stored: its EXIF orientation."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import PIL.Image

from ucn.errors import ImageReadError

READ_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are read, by Pillow's names; Pillow's others run external programs or hold no pixels. HEIC is
read, too, where pillow-heif is installed."""
EXIF_ORIENTATION = 0x0112
"""The EXIF tag of an image's orientation."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_HEIF = "HEIF"
_HEIC_BRANDS = frozenset(
    (*(b"heic", b"heix", b"heim", b"heis", b"hevc"), *(b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"))
)
_AVIF_BRANDS = frozenset((b"avif", b"avis"))


def choose_formats(source: Path | BinaryIO) -> tuple[str, ...]:
    """The formats as one of which an image is opened.

    For HEIC this is HEIF, which is first registered with Pillow.

    Raises:
        ImageReadError: it is HEIC, and pillow-heif is not installed.
        OSError: the file cannot be read.
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


def find_orientation(image: PIL.Image.Image) -> int:
    """The EXIF orientation of an opened image, 1 to 8; that of HEIC is 1, since its decoder turns it."""
    found = image.getexif().get(EXIF_ORIENTATION, 1)
    return int(found) if found in range(1, 9) else 1


def is_png_cut(image: PIL.Image.Image, source: Path | BinaryIO) -> bool:
    """Whether the compressed data of a decoded PNG end before its last row: Pillow leaves those rows black.

    The data are inflated again, and only where the last row is black or the rows are interlaced.
    """
    if image.format != "PNG":
        return False
    last_row = image.crop((0, image.height - 1, image.width, image.height))
    if last_row.getbbox(alpha_only=False) is not None and not image.info.get("interlace"):
        return False
    if isinstance(source, Path):
        with source.open("rb") as file:
            return _is_png_cut(file)
    source.seek(0)
    return _is_png_cut(source)


def _is_png_cut(file: BinaryIO) -> bool:
    """Whether the pixels of a PNG, whose chunks are sound, are fewer than its header says."""
    file.seek(len(_PNG_START))
    inflater, missing = zlib.decompressobj(), 0
    while len(head := file.read(8)) == 8:
        size, kind = int.from_bytes(head[:4], "big"), head[4:]
        content = file.read(size + 4)[:size]
        if kind == b"IHDR":
            width, height, depth, colours, _, _, is_interlaced = struct.unpack(">IIBBBBB", content[:13])
            bits = depth * _PNG_CHANNELS.get(colours, 1)
            missing = sum(
                rows * (1 + (columns * bits + 7) // 8)
                for rows, columns in _png_passes(height, width, bool(is_interlaced))
                if columns
            )
        while kind == b"IDAT" and content and not inflater.eof:
            missing -= len(inflater.decompress(content, 2**20))
            content = inflater.unconsumed_tail
    return missing > 0


def _png_passes(height: int, width: int, is_interlaced: bool) -> list[tuple[int, int]]:
    """(rows, columns) of each pass over the image: one, or the seven of Adam7 (PNG specification, 8.2)."""
    if not is_interlaced:
        return [(height, width)]
    starts_and_steps = ((0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2))
    passes = (*starts_and_steps, (1, 2, 0, 1))
    return [(len(range(y, height, dy)), len(range(x, width, dx))) for y, dy, x, dx in passes]


def _is_heic(source: Path | BinaryIO) -> bool:
    """Whether a file begins, as HEIC does, with a box `ftyp` of such a brand; AVIF is built alike."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            start = file.read(64)
    else:
        start = source.read(64)
        source.seek(0)
    if start[4:8] != b"ftyp":
        return False
    end = min(int.from_bytes(start[:4], "big"), len(start))
    brands = {start[8:12], *(start[place : place + 4] for place in range(16, end, 4))}
    return bool(brands & _HEIC_BRANDS) and not brands & _AVIF_BRANDS
