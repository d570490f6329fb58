"""The memory that decoding an image takes, by its headers, and decoders that take less than Pillow's.

Beside one copy of 4 bytes a pixel, decoding takes at most `MAX_EXTRA_BYTES`: `choose_decoder` refuses what
would take more. Pillow's decoders of most formats take one copy; those below keep several, or the strips of a
whole image. The figures were measured with Pillow 13, pillow-heif 1.8 and OpenCV 5.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.data.coded_frames import find_av1_frames, find_hevc_kinds
from ucn.data.image_limits import MAX_EXTRA_BYTES, TooManyPixelsError, find_strip_bytes
from ucn.errors import ImageReadError

_COPY = 4  # bytes a pixel of an image of Pillow
_SMALL_MODES = {"1": 1, "L": 1, "P": 1, "LA": 4, "I;16": 2, "I;16B": 2}
_MAX_SLOW_VALUES = 6_000_000  # of a PPM that Pillow converts in Python, at about 1 µs a value

# Bytes a pixel of Pillow, and of `load_frugally`, by bits (over 8) and chroma subsampling.
_HEIF = {
    **{(False, 400): (3.0, 3.0), (False, 420): (7.7, 7.4)},  # 4:2:0 with a margin: frugally it took 5.2
    **{(False, 422): (8.9, 8.9), (False, 444): (9.6, 9.6)},
    **{(True, 400): (8.1, 8.1), (True, 420): (8.1, 8.1)},
    **{(True, 422): (14.0, 14.0), (True, 444): (15.6, 15.6)},
}
_TRANSPARENT_HEIF = {
    **{(False, 420): (8.6, 7.2), (False, 422): (13.0, 13.0), (False, 444): (13.0, 13.0)},
    (True, 420): (12.8, 12.8),
}
_OTHER_HEIF = (21.0, 21.0)


@dataclass(frozen=True)
class PixelArray:
    """Decoded pixels that are cut into bands as a PIL image is, without another copy.

    Attributes:
        pixels: uint8 (H, W), (H, W, 3) or (H, W, 4).
        is_bgr: blue comes first.
    """

    pixels: NDArray[np.uint8]
    is_bgr: bool = False

    @property
    def width(self) -> int:
        """W."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """H."""
        return int(self.pixels.shape[0])

    @property
    def mode(self) -> str:
        """Pillow's name of the channels."""
        return "L" if self.pixels.ndim == 2 else {3: "RGB", 4: "RGBA"}[self.pixels.shape[2]]

    def crop(self, box: tuple[int, int, int, int]) -> PIL.Image.Image:
        """Cuts a rectangle out (left, top, right, bottom), as `PIL.Image.Image.crop`."""
        left, top, right, bottom = box
        band = self.pixels[top:bottom, left:right]
        if self.is_bgr and band.ndim == 3:
            band = band[..., [2, 1, 0, 3][: band.shape[2]]]
        return PIL.Image.fromarray(np.ascontiguousarray(band))


def choose_decoder(image: PIL.Image.Image, file: BinaryIO) -> bool:
    """Checks what decoding an opened image takes.

    Args:
        image: with its header read.
        file: its content; rewound.

    Returns:
        Whether it must be decoded by `load_frugally`, since Pillow would take too much.

    Raises:
        ImageReadError: it would take too much in any way, in memory or in time.
    """
    pixels = image.width * image.height
    try:
        (plain, plain_fixed), (frugal, frugal_fixed) = _find_costs(image, file)
    finally:
        file.seek(0)
    if (plain - _COPY) * pixels + plain_fixed <= MAX_EXTRA_BYTES:
        return False
    if (frugal - _COPY) * pixels + frugal_fixed <= MAX_EXTRA_BYTES:
        return True
    if frugal_fixed > MAX_EXTRA_BYTES or frugal <= _COPY:
        raise ImageReadError(
            f"its decoder would take {round(frugal_fixed / 1e6):,} MB beside the image, the limit is "
            f"{MAX_EXTRA_BYTES // 10**6} MB; save it in smaller tiles or strips, or as JPEG or PNG"
        )
    limit = int((MAX_EXTRA_BYTES - frugal_fixed) / (frugal - _COPY))
    raise TooManyPixelsError(
        f"{pixels:,} pixels as {image.format}", limit, "reduce the image or save it as PNG"
    )


def load_frugally(image: PIL.Image.Image, file: BinaryIO) -> PixelArray:
    """Decodes a WebP or HEIC of one frame with less memory than Pillow, to the same pixels.

    Raises:
        ImageReadError: it is damaged.
    """
    file.seek(0)
    if image.format == "WEBP":
        import cv2

        found: Any = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_UNCHANGED)
    else:
        from pillow_heif import open_heif

        container = open_heif(file, convert_hdr_to_8bit=True, remove_stride=False)
        found = np.asarray(container[container.primary_index])
    file.seek(0)
    if found is None or found.dtype != np.uint8 or found.shape[:2] != (image.height, image.width):
        raise ImageReadError("it is damaged; get it again or remove it")
    return PixelArray(found, is_bgr=image.format == "WEBP")


_Cost = tuple[float, float]  # bytes a pixel, and other bytes


def _find_costs(image: PIL.Image.Image, file: BinaryIO) -> tuple[_Cost, _Cost]:
    """What Pillow's decoder takes, and the most frugal one."""
    file_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    cost: _Cost = (_COPY, 0)
    if image.format == "WEBP":
        return _find_webp_costs(file, file_bytes)
    if image.format == "HEIF":
        return _find_heif_costs(image, file, file_bytes)
    if image.format == "AVIF":
        # Without transparency, up to 12 bits and 4:4:4, whatever the header says.
        coded, grain = find_av1_frames(file) if 2 * file_bytes <= MAX_EXTRA_BYTES else (0, 0)
        is_opaque = image.mode in ("RGB", "L")
        copies = (11.4 if is_opaque else 15.0) + grain
        # Frames may be larger than the image, to which the decoder reduces them.
        excess = coded - image.width * image.height * (1 if is_opaque else 2)
        cost = (copies, 2 * file_bytes + copies * max(0, excess))
    elif image.format == "JPEG2000":
        cost = (_COPY, _find_codestream_bytes(file) + file_bytes)
    elif image.format == "TIFF":
        # Pillow turns it, into a second copy.
        is_turned = image.getexif().get(0x0112, 1) != 1
        strip_bytes = find_strip_bytes(file)
        copies = _SMALL_MODES.get(image.mode, _COPY) * (1 + is_turned)
        # libtiff maps a compressed file into memory.
        limit = int(MAX_EXTRA_BYTES - (copies - _COPY) * image.width * image.height) - strip_bytes
        if strip_bytes and 0 < limit < file_bytes:
            raise ImageReadError(
                f"it is compressed to {file_bytes:,} bytes, the limit is {limit:,}; "
                "save it without compression, or as PNG"
            )
        cost = (copies, strip_bytes + (file_bytes if strip_bytes else 0))
    elif image.format == "PPM" and any(tile[0] == "ppm" for tile in getattr(image, "tile", ())):
        values = image.width * image.height * len(image.getbands())
        if values > _MAX_SLOW_VALUES:
            raise ImageReadError(
                f"it has {values:,} values of another range than 0 to 255, the limit is "
                f"{_MAX_SLOW_VALUES:,}; save it as PNG or TIFF"
            )
        cost = (12.0, 0)
    return cost, cost


def _find_webp_costs(file: BinaryIO, file_bytes: int) -> tuple[_Cost, _Cost]:
    """By its chunks: Pillow decodes all as animations, OpenCV only those."""
    pillow: _Cost = (16.3, 3 * file_bytes)
    file.seek(12)
    is_transparent = False
    for _ in range(100):
        head = file.read(8)
        kind, size = head[:4], int.from_bytes(head[4:], "little")
        if kind == b"VP8 ":
            return pillow, (8.7 if is_transparent else 6.3, 3 * file_bytes)
        if kind == b"VP8L":
            return pillow, (8.5, 3 * file_bytes)
        if kind == b"VP8X" and size:
            flags = file.read(1)[0]
            if flags & 2:  # an animation
                break
            is_transparent |= bool(flags & 16)
            file.seek(-1, io.SEEK_CUR)
        is_transparent |= kind == b"ALPH"
        if len(head) < 8 or kind == b"ANMF":
            break
        file.seek(size + size % 2, io.SEEK_CUR)
    return pillow, pillow


def _find_heif_costs(image: PIL.Image.Image, file: BinaryIO, file_bytes: int) -> tuple[_Cost, _Cost]:
    """By bits and chroma subsampling, which the header declares and the coded frames may exceed."""
    kinds = {(image.info.get("chroma", 444), image.info.get("bit_depth", 10))}
    if 2 * file_bytes <= MAX_EXTRA_BYTES:
        kinds |= find_hevc_kinds(file) or {(444, 16)}
    chroma, depth = max(each[0] for each in kinds), max(each[1] for each in kinds)
    table = _HEIF if image.mode in ("RGB", "L") else _TRANSPARENT_HEIF
    plain, frugal = table.get((depth > 8, chroma), _OTHER_HEIF)
    return (plain, 2 * file_bytes), (frugal, 3 * file_bytes)


def _find_codestream_bytes(file: BinaryIO) -> int:
    """What OpenJPEG takes for the largest tile of a JPEG 2000: 32 bits a sample, and its packed samples."""
    start = _find_codestream(file)
    file.seek(start)
    head = file.read(2**16)
    if head[:4] != b"\xff\x4f\xff\x51" or len(head) < 42:
        raise ImageReadError("it is damaged; get it again or remove it")
    sides = [int.from_bytes(head[place : place + 4], "big") for place in range(8, 40, 4)]
    width, height = sides[0] - sides[2], sides[1] - sides[3]
    components = int.from_bytes(head[40:42], "big")
    depths = head[42 : 42 + 3 * components : 3]
    sample_bytes = sum(4 + ((depth & 127) + 8) // 8 for depth in depths)
    return max(0, min(width, sides[4])) * max(0, min(height, sides[5])) * sample_bytes


def _find_codestream(file: BinaryIO) -> int:
    """Where the codestream of a JPEG 2000 file begins; 0 where it is all of the file."""
    if file.read(4) == b"\xff\x4f\xff\x51":
        return 0
    place = 0
    for _ in range(1000):
        file.seek(place)
        head = file.read(16)
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        header_bytes = 16 if size == 1 else 8
        if kind == b"jp2c":
            return place + header_bytes
        size = int.from_bytes(head[8:16], "big") if size == 1 else size
        if len(head) < 8 or size < header_bytes:
            break
        place += size
    raise ImageReadError("it is damaged: it has no codestream; get it again or remove it")
