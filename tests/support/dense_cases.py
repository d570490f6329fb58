"""Tiny files in the formats of flow and stereo data sets, written byte by byte."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import ArrayLike

from ucn.data.pairs import DataFile, PairData
from ucn.types import PairSample

Correspondences = dict[tuple[float, float], tuple[float, float]]


def write_flat_image(path: Path, width: int, height: int, value: int = 128) -> Path:
    """Writes an image of one grey value, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "L" if path.suffix == ".pgm" else "RGB"
    PIL.Image.new("L", (width, height), value).convert(mode).save(path)
    return path


def write_grey(path: Path, values: ArrayLike) -> Path:
    """Writes 8-bit grey values (H, W)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.asarray(values, np.uint8)).save(path)
    return path


def write_flo(path: Path, vectors: ArrayLike) -> Path:
    """A .flo file of vectors (H, W, 2)."""
    array = np.asarray(vectors, "<f4")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PIEH" + struct.pack("<ii", array.shape[1], array.shape[0]) + array.tobytes())
    return path


def write_png(path: Path, values: ArrayLike, bits: int = 16, colour_type: int = 2) -> Path:
    """A PNG without filters, of values (H, W, channels)."""
    array = np.asarray(values, ">u2" if bits == 16 else "u1")
    header = struct.pack(">IIBBBBB", array.shape[1], array.shape[0], bits, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in array)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def correspondences(sample: PairSample) -> Correspondences:
    """The points of a sample as a table from image 0 to image 1."""
    rows0, rows1 = sample.points0.tolist(), sample.points1.tolist()
    return {(x0, y0): (x1, y1) for (x0, y0), (x1, y1) in zip(rows0, rows1, strict=True)}


def file_named(data: PairData, name: str) -> DataFile:
    """The one file of a data set whose path ends with `name`."""
    (found,) = [file for file in data.files() if file.path.as_posix().endswith(name)]
    return found


def problem_texts(data: PairData) -> Sequence[str]:
    """The problems that indexing found, with paths relative to the root."""
    return [str(problem).replace(f"{data.root}/", "") for problem in data.problems]
