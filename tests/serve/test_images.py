"""Uploads are decoded within limits and shown without anything that the file held besides pixels."""

import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from support.serve_cases import make_image
from ucn.errors import ImageReadError
from ucn.serve.images import decode_upload


def _png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def test_size_and_pixels() -> None:
    held = decode_upload("a", make_image(64, 48), 10**6)
    assert held.image_hw == (48, 64)
    shown = PIL.Image.open(io.BytesIO(held.shown))
    assert shown.format == "JPEG"
    assert shown.size == (64, 48)
    given = PIL.Image.open(io.BytesIO(make_image(64, 48)))
    difference = np.abs(np.asarray(shown, np.int64) - np.asarray(given, np.int64))
    assert difference.mean() < 6


def test_large_image_is_shown_smaller() -> None:
    held = decode_upload("a", make_image(3200, 400, image_format="JPEG"), 10**7)
    assert held.image_hw == (400, 3200)
    assert PIL.Image.open(io.BytesIO(held.shown)).size == (1600, 200)


def test_orientation_is_applied_and_metadata_removed() -> None:
    image = PIL.Image.new("RGB", (80, 40), "red")
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    exif[0x010E] = "where I live"
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    held = decode_upload("a", file.getvalue(), 10**6)
    assert held.image_hw == (80, 40)
    assert b"where I live" in file.getvalue()
    assert b"where I live" not in held.shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged or not an image"),
        (b"GIF89a", "damaged or not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image of a known format"),
        (b"%PDF-1.4 nothing", "not an image of a known format"),
        (_png_header(100_000, 100_000), "the limit is 1,000,000 pixels; reduce"),
        (_png_header(1001, 1000), "1,001 × 1,000 pixels, the limit is 1,000,000"),
        (_png_header(500, 500), "get it again"),
    ],
)
def test_what_is_no_image(content: bytes, words: str) -> None:
    with pytest.raises(ImageReadError, match=words):
        decode_upload("a", content, 10**6)


def test_truncated() -> None:
    whole = make_image(200, 200, image_format="JPEG")
    with pytest.raises(ImageReadError, match="truncated"):
        decode_upload("a", whole[: len(whole) // 2], 10**6)


def test_too_small() -> None:
    with pytest.raises(ImageReadError, match="at least 32 pixels a side, got 64 × 31"):
        decode_upload("a", make_image(64, 31), 10**6)
