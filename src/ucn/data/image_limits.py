"""What an image file may ask of its decoder, checked in its headers before anything is decoded.

`check_structure` reads a file's own structure, where a few bytes can stand for hours of work or gigabytes:
scans of a JPEG, tiles and tags of a TIFF, chunks of a PNG, extensions of a GIF. `check_sides` then judges
the size that the header declares, and `ucn.data.decoding` what its decoder would take. docs/security.md
states the limits.
"""

from __future__ import annotations

import io
import math
import re
import struct
from typing import BinaryIO

from ucn.errors import ImageReadError

MAX_PIXELS = 160_000_000
"""Larger images are refused by their header; as float32 RGB, this many pixels take 1.9 GB."""
MAX_SIDE = 100_000
"""Images with a longer side are refused: decoders keep tables of rows."""
MAX_FILE_BYTES = 2**30
"""Larger image files are refused unread."""
MAX_EXTRA_BYTES = 180_000_000
"""What decoding may take beside 4 bytes a pixel; 20 MB less than promised, for all that is not counted."""

_REMEDY = "get it again or convert it"

_MAX_SCANS = 100  # of a JPEG; progressive ones have about ten
_MAX_SCANNED = 3_000_000_000  # scans × pixels: 18 scans of the largest image
_MAX_SEGMENTS = 10_000
_MAX_STRAY = 2**16  # bytes between the segments of a JPEG
_MAX_CHUNKS = 200_000  # of a PNG
_MAX_BLOCKS = 10_000  # of a GIF, before its first image
_MAX_PLAIN_BYTES = 32 * 2**20  # of a PPM in digits, which Pillow reads in Python
_MAX_TAGS = 4096
_MAX_TILE_PIXELS = 2**24  # where the image itself is smaller

_BLOCK = 2**16
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # in coded data 0 follows 255, or a restart marker does
_TAG_BYTES = {
    **{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4},
    **{10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8},
}


def check_structure(file: BinaryIO) -> bool:
    """Checks the structure of an image file by its format; the file is rewound.

    Returns:
        Whether it is a PNG with tags behind its pixels, which Pillow must decode to find its orientation.

    Raises:
        ImageReadError: it asks for too much, or is damaged.
    """
    start = file.read(16)
    file.seek(0)
    try:
        if start[:2] == b"\xff\xd8":
            _check_jpeg(file)
        elif start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            _check_tiff(file)
        elif start[:8] == b"\x89PNG\r\n\x1a\n":
            return _check_png(file)
        elif start[:4] == b"GIF8":
            _check_gif(file)
        elif start[:2] in (b"P1", b"P2", b"P3") and _measure(file) > _MAX_PLAIN_BYTES:
            raise ImageReadError(
                f"it holds its values as text, of which {_MAX_PLAIN_BYTES:,} bytes are the limit; convert it"
            )
    except struct.error:  # it ends too early, as Pillow will say
        return False
    finally:
        file.seek(0)
    return False


def check_sides(image_hw: tuple[int, int], max_pixels: int = MAX_PIXELS) -> None:
    """Checks the size that a header declares.

    Args:
        image_hw: (H, W).
        max_pixels: the most pixels.

    Raises:
        ImageReadError: the image is too large.
    """
    height, width = image_hw
    if height * width > max_pixels:
        raise TooManyPixelsError(f"{width:,} × {height:,} pixels", max_pixels)
    if max(height, width) > MAX_SIDE:
        raise ImageReadError(
            f"it has {width:,} × {height:,} pixels, the limit for a side is {MAX_SIDE:,}; cut it first"
        )


class TooManyPixelsError(ImageReadError):
    """An image has more pixels than its limit."""

    def __init__(self, size: str, limit: int, remedy: str = "reduce the image first") -> None:
        super().__init__(f"it has {size}, the limit is {limit:,} pixels; {remedy}")


def _measure(file: BinaryIO) -> int:
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    return end


def _read(file: BinaryIO, count: int) -> bytes:
    """Exactly so many bytes; raises `struct.error` where there are fewer."""
    content = file.read(count)
    if len(content) != count:
        raise struct.error("the file ends too early")
    return content


# JPEG


def _check_jpeg(file: BinaryIO) -> None:
    """Counts scans, for each of which the decoder goes through all pixels; and checks EXIF data.

    Of a file that ends early Pillow itself says so.
    """
    file.seek(2)
    scans = pixels = coded = segments = stray = 0
    exif = b""
    while (marker := _find_marker(file)) is not None:
        kind, skipped = marker
        segments, stray = segments + 1, stray + (0 if scans else skipped)
        if kind == 0xD9:
            break
        if kind in (0x01, 0xD8) or 0xD0 <= kind <= 0xD7:
            continue
        head = file.read(2)
        size = int.from_bytes(head, "big") - 2
        if len(head) < 2 or size < 0:
            break
        if segments - scans > _MAX_SEGMENTS or stray > _MAX_STRAY:
            raise ImageReadError(f"it is damaged: its JPEG segments are not in order; {_REMEDY}")
        if kind == 0xE1 and not scans:
            body = file.read(size)
            exif += body[6:] if body[:6] == b"Exif\0\0" else b""
            continue
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            body = file.read(size)
            height, width = struct.unpack(">HH", body[1:5]) if len(body) > 5 else (0, 0)
            pixels, coded = height * width, _count_coefficient_bytes(body)
            continue
        file.seek(size, io.SEEK_CUR)
        if kind == 0xDA:
            scans += 1
            if scans > _MAX_SCANS or (scans > 10 and scans * pixels > _MAX_SCANNED):
                raise ImageReadError(
                    f"it has {scans} scans or more, which take too long to decode; save it as a baseline JPEG"
                )
    # The coefficients count as the decoded copy: where they are most of the memory, that copy is reduced.
    if scans > 1 and coded - 4 * pixels > MAX_EXTRA_BYTES:
        most = int(pixels * MAX_EXTRA_BYTES / (coded - 4 * pixels))
        raise TooManyPixelsError(f"{pixels:,} pixels in {scans} scans", most, "save it as a baseline JPEG")
    if exif:
        _check_directory(io.BytesIO(exif))


def _find_marker(file: BinaryIO) -> tuple[int, int] | None:
    """The next marker and the number of bytes before it; None at the end. The file is left behind it."""
    skipped = 0
    while block := file.read(_BLOCK):
        if found := _MARKER.search(block):
            file.seek(found.end() - len(block), io.SEEK_CUR)
            return block[found.end() - 1], skipped + found.start()
        skipped += len(block)
        if len(block) == _BLOCK:
            file.seek(-1, io.SEEK_CUR)  # a marker may begin with the last byte
    return None


def _count_coefficient_bytes(frame: bytes) -> int:
    """Memory of the coefficients of a whole image, which decoders keep where there are several scans."""
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        return 0
    factors = [(value >> 4, value & 15) for value in frame[7 : 6 + 3 * frame[5] : 3]]
    height, width = struct.unpack(">HH", frame[1:5])
    widest, highest = max((x for x, _ in factors), default=0), max((y for _, y in factors), default=0)
    if not widest or not highest:
        return 0
    return sum(2 * height * width * x * y // (widest * highest) for x, y in factors)


# TIFF and EXIF


def _check_tiff(file: BinaryIO) -> None:
    tags = _check_directory(file)
    width, height = (tags.get(tag, (0, 0))[1] for tag in (256, 257))
    samples = max(1, tags.get(277, (1, 1))[1])
    tile = tuple(tags[tag][1] for tag in (322, 323) if tag in tags)
    if len(tile) == 2:
        area = max(width, 1) * max(height, 1)
        if tile[0] * tile[1] > max(_MAX_TILE_PIXELS, 4 * area) or max(tile) > MAX_SIDE:
            raise ImageReadError(
                f"it has tiles of {tile[0]:,} × {tile[1]:,} pixels for an image of {width:,} × {height:,}; "
                "save it again without tiles"
            )
        expected = math.ceil(width / max(1, tile[0])) * math.ceil(height / max(1, tile[1])) * samples
    else:
        expected = height * samples
    parts = max(tags[tag][0] for tag in (273, 324, 273) if tag in tags) if {273, 324} & tags.keys() else 0
    if parts > max(1, expected):
        raise ImageReadError(
            f"it is damaged: it has {parts:,} strips or tiles, expected {expected:,}; {_REMEDY}"
        )


def find_strip_bytes(file: BinaryIO) -> int:
    """The size of the largest strip or tile of a TIFF, which its decoder holds where it is compressed."""
    tags = _check_directory(file)

    def get(tag: int, default: int) -> int:
        return tags.get(tag, (1, default))[1]

    if get(259, 1) == 1:
        return 0
    width, height = get(322, get(256, 0)), get(323, min(get(278, 2**32 - 1), get(257, 0)))
    samples = 1 if get(284, 1) == 2 else get(277, 1)
    is_ycbcr = get(262, 0) == 6  # libtiff converts it into a second copy
    return height * ((width * samples * get(258, 1) + 7) // 8) * (2 if is_ycbcr else 1)


def _check_directory(file: BinaryIO) -> dict[int, tuple[int, int]]:
    """Checks the first directory of a TIFF file or of EXIF data.

    Returns:
        Count and first value of its whole numbers, by tag.

    Raises:
        ImageReadError: it has too many tags, or they hold more bytes than the file.
    """
    end = _measure(file)
    magic = file.read(4)
    order = {b"II": "<", b"MM": ">"}.get(magic[:2])
    if order is None or len(magic) < 4:
        return {}  # no directory, which Pillow finds too
    is_big = b"+" in magic[2:]
    file.seek(4 if not is_big else 8)
    (offset,) = struct.unpack(f"{order}{'Q' if is_big else 'I'}", _read(file, 8 if is_big else 4))
    if offset >= end:
        return {}
    file.seek(offset)
    (count,) = struct.unpack(f"{order}{'Q' if is_big else 'H'}", _read(file, 8 if is_big else 2))
    if count > _MAX_TAGS:
        raise ImageReadError(f"it is damaged: it has {count:,} tags, the limit is {_MAX_TAGS:,}; {_REMEDY}")
    width, layout = (20, f"{order}HHQ") if is_big else (12, f"{order}HHI")
    entries = file.read(width * count)
    tags: dict[int, tuple[int, int]] = {}
    total = 0
    for start in range(0, len(entries) - width + 1, width):
        tag, kind, number = struct.unpack_from(layout, entries, start)
        size = number * _TAG_BYTES.get(kind, 0)
        value = entries[start + width - (8 if is_big else 4) : start + width]
        if size > len(value):
            total += size
            (place,) = struct.unpack(f"{order}{'Q' if is_big else 'I'}", value)
            if place >= end:
                continue
            file.seek(place)
            value = file.read(8)
        code = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if code is not None and len(value) >= _TAG_BYTES[kind] and number:
            tags[tag] = (number, struct.unpack_from(f"{order}{code}", value)[0])
    if total > end:
        raise ImageReadError(f"it is damaged: its tags hold more bytes than the file; {_REMEDY}")
    return tags


# PNG and GIF


def _check_png(file: BinaryIO) -> bool:
    """Counts chunks and checks EXIF data; returns whether tags follow the pixels."""
    has_pixels = has_late_tags = False
    file.seek(8)
    for _ in range(_MAX_CHUNKS):
        head = file.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            return has_late_tags
        has_pixels |= head[4:] == b"IDAT"
        has_late_tags |= has_pixels and head[4:] in (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
        size = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf" and size < MAX_FILE_BYTES:
            _check_directory(io.BytesIO(file.read(size)))
            file.seek(4, io.SEEK_CUR)
        else:
            file.seek(size + 4, io.SEEK_CUR)
    raise ImageReadError(f"it has over {_MAX_CHUNKS:,} chunks; {_REMEDY}")


def _check_gif(file: BinaryIO) -> None:
    head = _read(file, 13)
    if head[10] & 128:
        file.seek(3 << ((head[10] & 7) + 1), io.SEEK_CUR)
    blocks = 0
    while file.read(1) == b"!":
        file.seek(1, io.SEEK_CUR)
        while size := int.from_bytes(file.read(1), "big"):
            file.seek(size, io.SEEK_CUR)
            blocks += 1
            if blocks > _MAX_BLOCKS:
                raise ImageReadError(f"it has over {_MAX_BLOCKS:,} blocks before its first image; {_REMEDY}")
