"""Reads arrays of numbers from MATLAB's .mat files.

Version 5 of the format is supported ("MAT-File Format", The MathWorks), which MATLAB's ``save`` writes by
default (-v6, -v7). SciPy is not used: its reader crashes the process on some damaged files.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.errors import DataError
from ucn.files.reading import read_binary

MAX_MAT_BYTES = 64 * 2**20
"""Larger .mat files are refused."""
MAX_UNPACKED_BYTES = 256 * 2**20
"""Compressed files that unpack to more are refused."""
MAX_NUMBERS = 2**22
"""Variables with more numbers are refused."""
REMEDY = "get the file again, or remove it"
"""What to do about a faulty file."""

_HEADER_BYTES = 128
# Element types, table 1-1 of the format.
_INT8, _UINT8, _INT32, _UINT32, _MATRIX, _COMPRESSED, _UTF8 = 1, 2, 5, 6, 14, 15, 16
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
# Array classes, table 1-3; from 6 on they are numeric.
_CLASSES = {1: "cells", 2: "a structure", 3: "an object", 4: "text", 5: "a sparse array"}
_LAST_CLASS = 15
_COMPLEX = 0x0800
_MAX_AXES = 32
_HEAD_BYTES = 4096  # of an array, which hold flags, shape and name
_BLOCK = 2**20


def read_mat(path: Path, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Reads arrays of numbers from a .mat file.

    Args:
        path: the file.
        names: the required variables.

    Returns:
        Each variable as float64, with its two or more axes.

    Raises:
        DataError: the file is missing, too large, not of version 5, damaged, or a variable is missing or not
            an array of real numbers.
    """
    content = read_binary(path, "MATLAB file", MAX_MAT_BYTES)
    order = _check_header(content, path)
    found: dict[str, NDArray[np.float64]] = {}
    for element in _unpack(content, order, path, names):
        name, value = _parse_array(element, order, path)
        if name in names and isinstance(value, str):
            raise DataError(f"{path}: expected numbers in '{name}', got {value}; {REMEDY}", path=path)
        if name in names and not isinstance(value, str):
            found[name] = value
    for name in names:
        if name not in found:
            raise DataError(f"{path} has no variable '{name}'; give the annotation file of this data set")
    return found


def _check_header(content: bytes, path: Path) -> str:
    """The byte order; raises `DataError` for other files and versions."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER_BYTES])
    if order is None:
        raise DataError(f"{path} is not a MATLAB file of version 5: no byte-order mark at byte 126; {REMEDY}")
    (version,) = struct.unpack(f"{order}H", content[124:126])
    if version == 0x0200:
        raise DataError(f"{path} is of MATLAB's version 7.3 (HDF5); save it again with -v7")
    if version != 0x0100:
        raise DataError(
            f"{path}: expected version 5 of MATLAB's format (0x0100), got {version:#06x}; save it again "
            "with -v7"
        )
    return order


class _Elements:
    """Consecutive elements of a file, each with a type and data."""

    def __init__(self, content: bytes, order: str, path: Path) -> None:
        self._content, self._order, self._path = content, order, path
        self._place = 0

    def is_at_end(self) -> bool:
        """Whether no further element follows; a few bytes of padding may remain."""
        return self._place + 8 > len(self._content)

    def read(self, is_padded: bool = True) -> tuple[int, bytes]:
        """The next element; all but top-level ones are padded to eight bytes."""
        if self.is_at_end():
            raise _damaged(self._path, "it is truncated")
        word, size = struct.unpack_from(f"{self._order}II", self._content, self._place)
        if word >> 16:  # a small element: size, type and up to four bytes of data in eight bytes
            kind, size = word & 0xFFFF, word >> 16
            data = self._content[self._place + 4 : self._place + 4 + min(size, 4)]
            self._place += 8
        else:
            kind, first = word, self._place + 8
            data = self._content[first : first + size]
            self._place = first + size + (-size % 8 if is_padded else 0)
        if len(data) != size:
            raise _damaged(self._path, "it is truncated")
        return kind, data


def _unpack(content: bytes, order: str, path: Path, names: Sequence[str]) -> Iterator[bytes]:
    """Yields the data of the arrays of these names, decompressed within the limit."""
    elements, left = _Elements(content[_HEADER_BYTES:], order, path), MAX_UNPACKED_BYTES
    while not elements.is_at_end():
        kind, data = elements.read(is_padded=False)
        if kind == _COMPRESSED:
            head = _inflate_head(data, path)
            is_wanted = _is_wanted(head[8:], order, names)
            unpacked, size = _inflate(data, left, path, is_kept=is_wanted)
            left -= size
            if not is_wanted:
                continue
            kind, data = _Elements(unpacked, order, path).read(is_padded=False)
        if kind != _MATRIX:
            raise _damaged(path, f"expected an array, got element type {kind}")
        if data and _is_wanted(data[:_HEAD_BYTES], order, names):
            yield data


def _is_wanted(head: bytes, order: str, names: Sequence[str]) -> bool:
    """Whether an array that begins so may have one of the names; what is odd is left to the parser."""
    elements = _Elements(head, order, Path())
    try:
        elements.read()
        elements.read()
        name = elements.read()[1]
    except DataError:
        return True
    return name.decode("utf-8", errors="replace") in names


def _inflate_head(packed: bytes, path: Path) -> bytes:
    try:
        return zlib.decompressobj().decompress(packed, _HEAD_BYTES)
    except zlib.error as error:
        raise _damaged(path, str(error)) from error


def _inflate(packed: bytes, limit: int, path: Path, is_kept: bool) -> tuple[bytes, int]:
    """Decompressed data, empty where they are not kept, and their size."""
    reader, pieces, size = zlib.decompressobj(), [], 0
    try:
        while not reader.eof:
            piece = reader.decompress(packed, _BLOCK)
            packed, size = reader.unconsumed_tail, size + len(piece)
            if size > limit or (is_kept and size > 8 * MAX_NUMBERS + _HEAD_BYTES):
                most = min(MAX_UNPACKED_BYTES, 8 * MAX_NUMBERS) if is_kept else MAX_UNPACKED_BYTES
                raise DataError(f"{path} unpacks to more than {most:,} bytes; {REMEDY}", path=path)
            if not piece and not packed and not reader.eof:
                raise _damaged(path, "compressed data end too soon")
            if is_kept:
                pieces.append(piece)
    except zlib.error as error:
        raise _damaged(path, str(error)) from error
    return b"".join(pieces), size


def _parse_array(data: bytes, order: str, path: Path) -> tuple[str, NDArray[np.float64] | str]:
    """Name and values of an array; for other classes, a description of the class."""
    elements = _Elements(data, order, path)
    (flags_kind, flags), (shape_kind, shape_data) = elements.read(), elements.read()
    name_kind, name_data = elements.read()
    if flags_kind != _UINT32 or len(flags) != 8 or shape_kind != _INT32 or len(shape_data) % 4:
        raise _damaged(path, "an array has no flags or no size")
    if name_kind not in (_INT8, _UINT8, _UTF8):
        raise _damaged(path, "an array has no name")
    name = name_data.decode("utf-8", errors="replace")
    (flag,) = struct.unpack_from(f"{order}I", flags)
    kind = flag & 0xFF
    if kind in _CLASSES or kind > _LAST_CLASS or flag & _COMPLEX:
        return name, "complex numbers" if flag & _COMPLEX else _CLASSES.get(kind, f"class {kind}")
    shape = struct.unpack(f"{order}{len(shape_data) // 4}i", shape_data)
    number_kind, numbers = elements.read()
    if number_kind not in _NUMBERS:
        raise _damaged(path, f"'{name[:40]}' has numbers of type {number_kind}")
    dtype = np.dtype(f"{order}{_NUMBERS[number_kind]}")
    if len(shape) > _MAX_AXES:
        raise _damaged(path, f"'{name[:40]}' has {len(shape)} axes")
    if math.prod(max(1, abs(side)) for side in shape) > MAX_NUMBERS:
        raise _damaged(path, f"'{name[:40]}' of size {shape[:4]} is too large")
    if len(shape) < 2 or min(shape) < 0 or math.prod(shape) * dtype.itemsize != len(numbers):
        raise _damaged(path, f"'{name[:40]}' of size {shape[:4]} has {len(numbers)} bytes of numbers")
    return name, np.frombuffer(numbers, dtype).reshape(shape, order="F").astype(np.float64)


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"cannot read {path}: damaged MATLAB file ({reason}); {REMEDY}", path=path)
