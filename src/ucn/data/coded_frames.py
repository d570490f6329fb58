"""What the coded frames of AVIF and HEIC declare: decoders go by these, not by the boxes around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from ucn.errors import ImageReadError

_MAX_BOX_BYTES = 16 * 2**20
_MAX_BOXES = 1000
_MAX_EXTENTS = 10_000  # and items
_MAX_UNITS = 1000  # before the first frame; there are one or two
_MAX_NALS = 100_000
_SEQUENCE, _FRAMES = 1, (3, 6)  # types of units
_DAMAGED = "it is damaged; get it again or remove it"

_Extents = list[tuple[int, int]]  # first byte in the file, and number of bytes


def find_av1_frames(file: BinaryIO) -> tuple[int, int]:
    """Pixels of all coded frames of an AVIF that are decoded together, and bytes a pixel of film grain.

    Of tracks, which are there beside items, only the first frames are decoded.

    Raises:
        ImageReadError: its boxes are damaged.
    """
    end = file.seek(0, 2)
    totals, most_grain = [0, 0], 0
    try:
        for is_track, content in _read_data(file, end):
            found = list(_find_sequences(content))
            totals[is_track] += max((pixels for pixels, _ in found), default=0)
            most_grain = max(most_grain, *(grain for _, grain in found), 0)
    except EOFError as error:
        raise ImageReadError(_DAMAGED) from error
    return max(totals), most_grain


def find_hevc_kinds(file: BinaryIO) -> set[tuple[int, int]]:
    """Chroma subsampling (400, 420, 422 or 444) and bits of all coded frames of a HEIC.

    Raises:
        ImageReadError: its boxes are damaged.
    """
    end = file.seek(0, 2)
    found: set[tuple[int, int]] = set()
    try:
        for kind, start, last in _find_boxes(file, 0, end):
            if kind == b"meta":
                content = _read(file, start, min(last - start, _MAX_BOX_BYTES))
                for part in content.split(b"hvcC")[1:]:
                    found.update(_find_hevc_parameters(part[23:], part[22:23]))
        for _, content in _read_data(file, end):
            found.update(_find_hevc_parameters(content))
    except EOFError as error:
        raise ImageReadError(_DAMAGED) from error
    return found


def _find_hevc_parameters(content: bytes, arrays: bytes | None = None) -> Iterator[tuple[int, int]]:
    """Chroma and bits of the parameter sets of an item, or of so many arrays of its configuration `hvcC`."""
    place, width, left = 0, 4, _MAX_NALS
    counts = [_MAX_NALS] if arrays is None else [0] * sum(arrays)
    for count in counts:
        if arrays is not None:
            width, count = 2, int.from_bytes(content[place + 1 : place + 3], "big")
            place += 3
        for _ in range(count):
            size = int.from_bytes(content[place : place + width], "big")
            place += width
            if place + size > len(content):
                return  # another kind of item
            left -= 1
            if left < 0:
                raise EOFError
            # Type 33 of layer 0.
            if size > 1 and content[place] & 127 == 0x42 and content[place + 1] < 8:
                with suppress(EOFError):
                    yield _read_hevc_parameters(content[place : place + min(size, 1024)])
            place += size


def _read_hevc_parameters(content: bytes) -> tuple[int, int]:
    """Chroma and bits of a sequence parameter set (H.265, 7.3.2.2)."""
    bits = _Bits(content.replace(b"\0\0\3", b"\0\0"))
    bits.take(16 + 4)
    layers, _ = bits.take(3), bits.take(1 + 96)
    flags = [(bits.take(1), bits.take(1)) for _ in range(8)] if layers else []
    for has_profile, has_level in flags[:layers]:
        bits.take(88 * has_profile + 8 * has_level)
    _take_unary(bits)
    chroma = _take_unary(bits)
    bits.take(chroma == 3)
    _take_unary(bits), _take_unary(bits)
    for _ in range(4 * bits.take(1)):
        _take_unary(bits)
    depths = 8 + _take_unary(bits), 8 + _take_unary(bits)
    return {0: 400, 1: 420, 2: 422}.get(chroma, 444), max(depths)


def _take_unary(bits: _Bits) -> int:
    """A number whose length is given by as many zeros."""
    zeros = 0
    while not bits.take(1):
        zeros += 1
    return (1 << zeros) - 1 + bits.take(zeros)


def _read_data(file: BinaryIO, end: int) -> Iterator[tuple[bool, bytes]]:
    """The content of each item, and the beginning of each track; and whether it is a track's."""
    left = 2 * end
    for is_track, extents in _find_data(file, end):
        left -= sum(size for _, size in extents)
        if left < 0:  # the same bytes again and again
            raise EOFError
        yield is_track, b"".join(_read(file, place, size) for place, size in extents)


def _read(file: BinaryIO, place: int, size: int) -> bytes:
    if place >= 2**62:  # which no file can seek
        raise EOFError
    file.seek(place)
    return file.read(size)


class _Bits:
    """Big-endian numbers, one after another."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def take(self, count: int) -> int:
        """The next number of so many bits; raises `EOFError` behind the last one."""
        first, self._place = self._place, self._place + count
        part = self._content[first // 8 : -(-self._place // 8)]
        if self._place > 8 * len(self._content):
            raise EOFError
        return int.from_bytes(part, "big") >> -self._place % 8 & ((1 << count) - 1)


def _find_boxes(file: BinaryIO, place: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, first byte of the content, and end of each box."""
    for _ in range(_MAX_BOXES):
        if place + 8 > end:
            return
        head = _read(file, place, 16)
        size, start = int.from_bytes(head[:4], "big"), place + 8
        if size == 1:
            size, start = int.from_bytes(head[8:], "big"), place + 16
        last = min(place + size, end) if size else end
        if last < start:
            break
        yield head[4:8], start, last
        place = last
    raise EOFError


def _find_data(file: BinaryIO, end: int) -> Iterator[tuple[bool, _Extents]]:
    """Where each item lies, and the first frame of each track; and whether it is a track's."""
    for kind, start, last in _find_boxes(file, 0, end):
        if kind == b"meta":
            children = {name: place for name, *place in _find_boxes(file, start + 4, last)}
            if b"iloc" in children:
                first, behind = children[b"iloc"]
                content = _read(file, first, min(behind - first, _MAX_BOX_BYTES))
                inside = children.get(b"idat", [0, 0])[0]
                yield from ((False, extents) for extents in _locate_items(_Bits(content), inside, end))
        elif kind == b"moov":
            content = _read(file, start, min(last - start, _MAX_BOX_BYTES))
            for name, count in ((b"stco", 4), (b"co64", 8)):
                for part in content.split(name)[1:]:
                    place = int.from_bytes(part[8 : 8 + count], "big")
                    yield True, [(place, min(2**16, end))]  # more than headers take


def _locate_items(bits: _Bits, data: int, end: int) -> Iterator[_Extents]:
    """Reads a box `iloc` (ISO/IEC 14496-12, 8.11.3); `data` is where the content of `idat` begins."""
    version, _ = bits.take(8), bits.take(24)
    offset, length, base, index = (8 * bits.take(4) for _ in range(4))
    left = _MAX_EXTENTS
    for _ in range(bits.take(32 if version == 2 else 16)):
        bits.take(32 if version == 2 else 16)
        is_inside = version > 0 and bits.take(16) & 15 == 1
        bits.take(16)
        start = bits.take(base) + (data if is_inside else 0)
        extents = []
        count = bits.take(16)
        left -= count + 1
        if left < 0:
            raise EOFError
        for _ in range(count):
            bits.take(index if version > 0 else 0)
            place, size = start + bits.take(offset), bits.take(length)
            extents.append((place, min(size or end, max(0, end - place))))
        yield extents


def _find_sequences(content: bytes) -> Iterator[tuple[int, int]]:
    """Pixels, and bytes of film grain a pixel, by the sequence headers before the first frame."""
    place = 0
    for _ in range(_MAX_UNITS):
        if place >= len(content):
            return
        head, place = content[place], place + 1 + (content[place] >> 2 & 1)
        size = len(content) - place
        if head & 2:  # it states its size, seven bits a byte
            size = shift = 0
            for byte in content[place : place + 8]:
                size, shift, place = size | (byte & 127) << shift, shift + 7, place + 1
                if byte < 128:
                    break
        kind = head >> 3 & 15
        if head & 128 or kind in _FRAMES:  # another kind of item, or a frame
            return
        if kind == _SEQUENCE:
            yield _read_sequence(_Bits(content[place : place + min(size, 1024)]))
        place += size
    raise EOFError


def _read_sequence(bits: _Bits) -> tuple[int, int]:
    """Reads a sequence header (AV1, 5.5): pixels, and bytes a pixel of a copy with film grain."""
    take = bits.take
    profile, _, is_reduced = take(3), take(1), take(1)
    if is_reduced:
        take(5)
    else:
        _skip_operating_points(bits)
    sides = take(4) + 1, take(4) + 1
    width, height = take(sides[0]) + 1, take(sides[1]) + 1
    if not is_reduced and take(1):
        take(7)
    take(3)
    if not is_reduced:
        take(4)
        has_order = take(1)
        take(2 * has_order)
        screen = 2 if take(1) else take(1)
        if screen and not take(1):
            take(1)
        take(3 * has_order)
    take(3)
    is_deep = take(1)
    is_twelve = profile == 2 and is_deep and take(1)
    is_grey = profile != 1 and take(1)
    colours = (take(8), take(8), take(8)) if take(1) else (2, 2, 2)
    if is_grey or colours == (1, 13, 0):
        take(1)
    else:
        take(1)
        halves = (1, 1) if profile == 0 else (0, 0) if profile == 1 else (1, 0)
        if is_twelve:
            across = take(1)
            halves = across, across and take(1)
        take(2 * (halves == (1, 1)))
        take(1)
    return width * height, take(1) * (6 if is_deep else 3)


def _skip_operating_points(bits: _Bits) -> None:
    take = bits.take
    delay = 0
    if take(1):  # timing
        take(64)
        if take(1):
            _take_unary(bits)
        if take(1):
            delay = take(5) + 1
            take(42)
    has_delays = take(1)
    for _ in range(take(5) + 1):
        take(12)
        if take(5) > 7:
            take(1)
        if delay and take(1):
            take(2 * delay + 1)
        if has_delays and take(1):
            take(4)
