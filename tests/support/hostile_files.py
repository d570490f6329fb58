"""Hostile files by seed: bombs that are small on disk, and damaged copies of sound files.

`make_cases(count, seed)` mixes the hand-made bombs, which are always there, with damaged files up to `count`.
Nothing here reads them: `hostile_worker` does, in a process of its own.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import PIL.Image

from ucn.data.match_files import write_matches
from ucn.data.points import write_flow
from ucn.types import Flow, Matches

SPECIAL = ("fifo", "device", "device link", "loop", "folder", "socket", "missing", "long name", "dangling")
"""Paths that are no regular files."""


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        family: for reports.
        reader: which reader of `hostile_worker` gets it.
        suffix: of the file's name.
        content: of the file; or one of `SPECIAL`.
    """

    family: str
    reader: str
    suffix: str
    content: bytes | str


def place(case: Case, folder: Path, number: int) -> Path:
    """Writes a case into a folder; returns the path to read."""
    import os
    import socket

    path = folder / f"case{number}{case.suffix}"
    if isinstance(case.content, bytes):
        path.write_bytes(case.content)
        return path
    kind = case.content
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        return Path("/dev/zero")
    elif kind == "device link":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            here = Path.cwd()
            os.chdir(folder)  # names of sockets are short
            try:
                server.bind(path.name)
            finally:
                os.chdir(here)
    elif kind == "long name":
        return folder / ("x" * 300 + case.suffix)
    return path


# Images


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def make_png(
    width: int, height: int, data: bytes, depth: int = 1, colour: int = 0, extra: bytes = b""
) -> bytes:
    """A PNG with any header; `extra` chunks come before the data."""
    header = _png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + _png_chunk(b"IDAT", data) + _png_chunk(b"IEND", b"")


def _save(image: PIL.Image.Image, image_format: str, **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **settings)
    return file.getvalue()


def _photo(side: int = 96) -> PIL.Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    return PIL.Image.fromarray(values).resize((side, side), PIL.Image.Resampling.BICUBIC)


def _with_jpeg_size(content: bytes, width: int, height: int) -> bytes:
    """A JPEG whose header claims another size; the missing pixels are grey."""
    place = min(content.find(marker) for marker in (b"\xff\xc0", b"\xff\xc2") if marker in content)
    return content[: place + 5] + struct.pack(">HH", height, width) + content[place + 9 :]


def make_scan_bomb(side: int, scans: int, progressive: bool = True) -> bytes:
    """A JPEG that repeats its last scan; the decoder goes through all blocks for each."""
    if progressive:
        content = _save(PIL.Image.new("L", (side, side), 128), "JPEG", progressive=True)
    else:
        content = _save(PIL.Image.new("L", (side, side), 128), "JPEG")
    last = content[content.rfind(b"\xff\xda") : -2]
    return content[:-2] + last * scans + b"\xff\xd9"


def make_tiff(tags: dict[int, tuple[int, list[int]]], data: bytes = b"") -> bytes:
    """A little-endian TIFF with one directory: types and values by tag; 3 is SHORT, 4 is LONG."""
    sizes = {1: 1, 2: 1, 3: 2, 4: 4, 7: 1, 16: 8}
    codes = {1: "B", 2: "B", 3: "H", 4: "I", 7: "B", 16: "Q"}
    start = 8 + 2 + 12 * len(tags) + 4
    directory, heap = struct.pack("<H", len(tags)), b""
    for tag, (kind, values) in sorted(tags.items()):
        packed = struct.pack(f"<{len(values)}{codes[kind]}", *values)
        if len(packed) > 4:
            directory += struct.pack("<HHII", tag, kind, len(values), start + len(heap))
            heap += packed + b"\0" * (len(packed) % 2)
        else:
            directory += struct.pack("<HHI", tag, kind, len(packed) // sizes[kind]) + packed.ljust(4, b"\0")
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", 0) + heap + data


def make_tile_bomb(tile: int, compression: int = 5) -> bytes:
    """A TIFF of 64 × 64 pixels in one tile of any size."""
    return make_tiff(
        {
            **{256: (3, [64]), 257: (3, [64]), 258: (3, [8]), 259: (3, [compression]), 262: (3, [1])},
            **{277: (3, [1]), 322: (4, [tile]), 323: (4, [tile]), 324: (4, [230]), 325: (4, [16])},
        },
        b"\x80\x00" * 16,
    )


def make_tag_bomb(tags: int, size: int) -> bytes:
    """A TIFF whose many tags all point at one long run of bytes."""
    entries = {
        256: (3, 1, 64),
        257: (3, 1, 64),
        258: (3, 1, 8),
        259: (3, 1, 1),
        262: (3, 1, 1),
        273: (4, 1, 8),
    }
    start = 8 + 2 + 12 * (len(entries) + tags) + 4
    content = struct.pack("<H", len(entries) + tags)
    for tag, (kind, count, value) in entries.items():
        content += struct.pack("<HHII", tag, kind, count, value)
    for tag in range(40000, 40000 + tags):
        content += struct.pack("<HHII", tag, 7, size, start)
    return b"II*\0" + struct.pack("<I", 8) + content + struct.pack("<I", 0) + bytes(size)


def _image_bombs() -> Iterator[tuple[str, str, bytes]]:
    black = zlib.compress(bytes(2**16))
    sparse = zlib.compress(bytes(2**22), 9)
    yield "png sides", ".png", make_png(1, 160_000_000, black)
    yield "png sides", ".png", make_png(160_000_000, 1, black)
    yield "png sides", ".png", make_png(40, 4_000_000, black)
    yield "png sides", ".png", make_png(2**31 - 1, 2**31 - 1, black)
    yield "png size", ".png", make_png(12_600, 12_600, sparse, 8, 2)
    yield "png size", ".png", make_png(12_600, 12_600, black, 16, 6)
    yield "png text", ".png", make_png(64, 64, black, 8, 0, _png_chunk(b"zTXt", b"a\0\0" + sparse) * 40)
    yield "png profile", ".png", make_png(64, 64, black, 8, 0, _png_chunk(b"iCCP", b"a\0\0" + sparse))
    exif = make_tag_bomb(3000, 2**18)
    yield "exif tags", ".png", make_png(64, 64, black, 8, 0, _png_chunk(b"eXIf", exif))
    yield "jpeg scans", ".jpg", make_scan_bomb(2000, 14_000)
    yield "jpeg scans", ".jpg", _with_jpeg_size(make_scan_bomb(64, 600), 12_000, 12_000)
    yield "jpeg scans", ".jpg", make_scan_bomb(64, 14_000)
    jpeg = _save(_photo(), "JPEG")
    yield "jpeg size", ".jpg", _with_jpeg_size(jpeg, 12_649, 12_649)
    yield "jpeg size", ".jpg", _with_jpeg_size(_save(_photo(), "JPEG", progressive=True), 9_000, 9_000)
    yield "jpeg size", ".jpg", _with_jpeg_size(jpeg, 65_500, 2)
    yield "jpeg size", ".jpg", _with_jpeg_size(jpeg, 65_500, 65_500)
    short = _save(_photo(), "JPEG", exif=b"Exif\0\0" + make_tag_bomb(1500, 40_000)[:65_000])
    yield "exif tags", ".jpg", short
    for tile in (46_336, 30_000, 65_536, 2**20):
        yield "tiff tile", ".tif", make_tile_bomb(tile)
        yield "tiff tile", ".tif", make_tile_bomb(tile, compression=1)
    yield "tiff tile", ".tif", make_tile_bomb(46_336, compression=8)
    yield "tiff tags", ".tif", make_tag_bomb(3000, 2**20)
    grey = {258: (3, [8]), 262: (3, [1]), 277: (3, [1]), 273: (4, [8]), 279: (4, [64])}
    for sides in ((60_000, 60_000), (160_000_000, 1), (1, 160_000_000), (12_600, 12_600)):
        for compression in (1, 5, 8, 32773):
            size = {256: (4, [sides[0]]), 257: (4, [sides[1]]), 259: (3, [compression])}
            yield "tiff size", ".tif", make_tiff({**grey, **size, 278: (4, [2**31 - 1])}, bytes(64))
    offsets = {273: (4, [8] * 200_000), 279: (4, [1] * 200_000)}
    size = {256: (3, [64]), 257: (3, [64]), 259: (3, [1]), 278: (3, [1])}
    yield "tiff strips", ".tif", make_tiff({**grey, **size, **offsets})
    gif = _save(_photo().convert("P"), "GIF")
    yield "gif size", ".gif", gif[:6] + struct.pack("<HH", 65_535, 65_535) + gif[10:]
    yield "gif size", ".gif", gif[:6] + struct.pack("<HH", 9_000, 9_000) + gif[10:]
    bmp = _save(_photo(), "BMP")
    for width, height in ((2**31 - 1, 1), (12_600, 12_600), (1, 2**31 - 1), (12_600, -12_600), (-5, 9)):
        yield "bmp size", ".bmp", bmp[:18] + struct.pack("<ii", width, height) + bmp[26:]
    rle = struct.pack("<IiiHHIIiiII", 40, 12_600, 12_600, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    yield "bmp size", ".bmp", b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(rle)) + rle + b"\xff\0" * 64
    for header in (
        b"P6 12600 12600 255\n",
        b"P5 1 160000000 255\n",
        b"P3 12600 12600 255\n",
        b"P1 4000 4000\n",
    ):
        yield "ppm size", ".ppm", header + b"1 " * 2**17
    yield "ppm range", ".ppm", b"P6 4000 3000 100\n" + bytes(36_000_000)
    yield "ppm range", ".ppm", b"P6 1500 1300 1023\n" + bytes(11_700_000)
    yield "ppm size", ".ppm", b"P3 100 100 255 " + b"9" * 2**20
    yield "ppm size", ".ppm", b"P6 #" + b"a" * 2**21
    yield "ppm size", ".pfm", b"Pf 12600 12600 -1.0\n" + bytes(64)
    webp = _save(_photo(), "WEBP", lossless=True)
    big = (16_383 | 16_383 << 14).to_bytes(4, "little")
    at = webp.find(b"\x2f")
    yield "webp size", ".webp", webp[: at + 1] + big + webp[at + 5 :]
    canvas = (12_599).to_bytes(3, "little") * 2
    body = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + canvas + webp[12:]
    yield "webp size", ".webp", b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    jp2 = _save(_photo(), "JPEG2000")
    for sides in ((12_600, 12_600), (2**31 - 1, 1), (60_000, 60_000)):
        at = jp2.find(b"ihdr")
        changed = jp2[: at + 4] + struct.pack(">II", sides[1], sides[0]) + jp2[at + 12 :]
        yield "jpeg 2000 size", ".jp2", changed
        at = changed.find(b"\xff\x4f\xff\x51")
        sizes = struct.pack(">II8xII", *sides, *sides)
        yield "jpeg 2000 size", ".jp2", changed[: at + 8] + sizes + changed[at + 32 :]
        yield "jpeg 2000 size", ".jp2", jp2[: at + 8] + sizes + jp2[at + 32 :]
    avif = _save(_photo(), "AVIF")
    at = avif.find(b"ispe")
    for sides in ((12_600, 12_600), (2**31 - 1, 1)):
        yield "avif size", ".avif", avif[: at + 8] + struct.pack(">II", *sides) + avif[at + 16 :]


# Data files


def _mat_element(kind: int, body: bytes) -> bytes:
    return struct.pack("<II", kind, len(body)) + body + b"\0" * (-len(body) % 8)


def make_mat(
    name: str, shape: tuple[int, ...], numbers: bytes, kind: int = 2, compressed: bool = True
) -> bytes:
    """A .mat file of version 5 with one array."""
    matrix = _mat_element(6, struct.pack("<II", 9, 0)) + _mat_element(
        5, struct.pack(f"<{len(shape)}i", *shape)
    )
    matrix += _mat_element(1, name.encode()) + _mat_element(kind, numbers)
    element = _mat_element(14, matrix)
    if compressed:
        packed = zlib.compress(element, 1)
        element = struct.pack("<II", 15, len(packed)) + packed
    return b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + element


def _make_h5(fill: Callable[[h5py.File], object]) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as target:
        fill(target)
    return file.getvalue()


def _sound_matches() -> Matches:
    points = np.arange(40, dtype=np.float32).reshape(20, 2)
    return Matches(
        points, points + 1, np.full(20, 0.5, np.float32), np.ones(20, bool), 0.5, (64, 64), (64, 64)
    )


def _fill_matches(rows: int, dtype: str, **settings: object) -> Callable[[h5py.File], object]:
    """Matches whose data sets declare many rows and hold none."""

    def fill(file: h5py.File) -> None:
        group = file.create_group("a/b")
        for name, columns in (("points0", (2,)), ("points1", (2,)), ("scores", ()), ("is_mutual", ())):
            group.create_dataset(name, (rows, *columns), dtype, **settings)
        group.attrs.update(pair_score=0.5, image0_hw=(64, 64), image1_hw=(64, 64), meta="{}")

    return fill


def _fill_features(rows: int, **settings: object) -> Callable[[h5py.File], object]:
    def fill(file: h5py.File) -> None:
        group = file.create_group("a.jpg")
        group.create_dataset("keypoints", (rows, 2), "f4", **settings)
        group.create_dataset("descriptors", (128, rows), "f2", **settings)
        group.create_dataset("scores", (rows,), "f2", **settings)
        group["image_size"] = np.array([64, 64])

    return fill


def _fill_links(file: h5py.File) -> None:
    file["a"] = h5py.SoftLink("/a")
    file["b"] = h5py.ExternalLink("/dev/zero", "/x")
    group = file.create_group("g")
    group["again"] = file["/"]
    group["points0"] = h5py.SoftLink("/nowhere")
    group["keypoints"] = h5py.ExternalLink("other.h5", "/x")


def _fill_deep(file: h5py.File) -> None:
    group = file
    for _ in range(3000):
        group = group.create_group("g")


def _fill_outside(file: h5py.File) -> None:
    group = file.create_group("a/b")
    for name in ("points0", "points1", "scores", "is_mutual"):
        group.create_dataset(name, (2**26,), "u1", external=[("/dev/zero", 0, 2**26)])
    layout = h5py.VirtualLayout((2**28, 2), "f4", maxshape=(2**28, 2))
    layout[:] = h5py.VirtualSource("/dev/zero", "x", (2**28, 2))
    file.create_group("v").create_virtual_dataset("keypoints", layout)


def _fill_odd_types(file: h5py.File) -> None:
    group = file.create_group("a/b")
    text = h5py.string_dtype()
    for name in ("points0", "points1", "scores", "is_mutual", "keypoints", "descriptors", "matches0"):
        group.create_dataset(name, (4,), text)
    group.attrs["meta"] = h5py.Empty("f4")
    group.attrs["image0_hw"] = np.zeros((2, 2), "S900")


def make_npz(members: dict[str, bytes]) -> bytes:
    """An .npz with any members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + body


def _lying_npz(size: int) -> bytes:
    """An .npz that declares a member smaller than it unpacks to."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}"
    content = make_npz({"confidence.npy": _npy(header, bytes(size))})
    true, false = struct.pack("<I", size + 128 + 1), struct.pack("<I", 200)
    return content.replace(true, false)


def _data_bombs() -> Iterator[tuple[str, str, str, bytes]]:
    many = bytes(40 * 2**20)
    yield "mat size", "mat", ".mat", make_mat("kps", (len(many), 1), many)
    yield "mat size", "mat", ".mat", make_mat("other", (2**25, 1), many[: 2**25])
    yield "mat size", "mat", ".mat", make_mat("kps", (2**31 - 1, 2**31 - 1), bytes(64))
    yield "mat size", "mat", ".mat", make_mat("kps", (1,) * 100, bytes(1))
    yield "mat size", "mat", ".mat", make_mat("kps", (0, 2**31 - 1, 2**31 - 1), b"")
    yield "mat size", "mat", ".mat", make_mat("k" * 2**20, (1, 1), bytes(1), 2, False)
    for rows, dtype in ((2**27 - 1, "u1"), (2**25, "f4"), (2**40, "u1"), (2**31, "f8")):
        chunks = {"chunks": True, "compression": "gzip"}
        yield "h5 size", "matches", ".h5", _make_h5(_fill_matches(rows, dtype, maxshape=None))
        yield "h5 size", "matches", ".h5", _make_h5(_fill_matches(rows, dtype, **chunks))
    yield "h5 size", "hloc", ".h5", _make_h5(_fill_features(2**24, chunks=True))
    yield "h5 size", "hloc", ".h5", _make_h5(_fill_features(2**40, chunks=True))
    yield "h5 size", "hloc", ".h5", _make_h5(_fill_features(2**22))
    for reader in ("matches", "hloc", "pair matches"):
        for fill in (_fill_links, _fill_deep, _fill_outside, _fill_odd_types):
            yield "h5 layout", reader, ".h5", _make_h5(fill)
    junk = _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (67108864,), }", bytes(2**26))
    yield "npz size", "matches", ".npz", make_npz({"junk.npy": junk})
    zero = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"
    for reader in ("flow", "matches"):
        names = ("flow_0to1", "confidence", "meta", "points0", "points1", "scores", "is_mutual")
        for shape in ("2**40,", "1000000000000,", "-1,", "10000, 10000, 2"):
            members = {f"{name}.npy": _npy(zero % shape) for name in names}
            yield "npz size", reader, ".npz", make_npz(members)
        yield "npz layout", reader, ".npz", _lying_npz(2**25)
        deep = _npy("{'descr': " + "[" * 4000 + "]" * 4000 + ", 'fortran_order': False, 'shape': (1,), }")
        yield "npz layout", reader, ".npz", make_npz({"meta.npy": deep})
        yield "npz layout", reader, ".npz", make_npz({"meta.npy": _npy(zero.replace("<f4", "|O") % "1,")})
    for text in (
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"points": [' + "[]," * 10**5 + "[]]}",
        "9" * 5000,
        "NaN",
        '""',
    ):
        yield "json", "points", ".json", text.encode()
        yield "json", "own", ".jsonl", text.encode()
    yield "text", "points", ".csv", b"x,y\n" + b"1," * 2**20
    yield "text", "points", ".csv", b"x,y," + b"a," * 2**19 + b"\n"
    yield "text", "points", ".csv", b'x,y\n"' + b"1" * 2**21
    yield "text", "points", ".csv", b"x,y\n" + b"\n" * 2**21
    yield "text", "points", ".pts", b"version: 1\nn_points: 99999999999\n{\n" + b"1 2\n" * 9
    yield "text", "pairs", ".txt", b"a" * 2**21
    yield "text", "matches", ".csv", b"x0,y0,x1,y1,score,is_mutual\n" + b'"' * 2**21
    yield "text", "camera", ".txt", b"1 " * 2**18
    yield "yaml", "camera", ".yml", b"K: &a [1]\nb: [" + b"*a," * 1000 + b"]"
    yield "yaml", "camera", ".yml", b"[" * 10_000
    yield "yaml", "camera", ".yml", b"K: !!opencv-matrix\n rows: 3\n data: !!int ''"
    for header in (
        b"{",
        b'{"a":' * 9000,
        b'{"__metadata__":{"format":"ucn-1"}}',
        b'{"x":{"dtype":"F32","shape":[1099511627776,4],"data_offsets":[0,64]}}',
    ):
        for reader in ("weights", "checkpoint", "features"):
            yield "safetensors", reader, ".safetensors", struct.pack("<Q", len(header)) + header + bytes(64)
            yield "safetensors", reader, ".safetensors", struct.pack("<Q", 2**62) + header
    yield "flo", "flo", ".flo", b"PIEH" + struct.pack("<ii", 2**31 - 1, 2**31 - 1)
    yield "flo", "flo", ".flo", b"PIEH" + struct.pack("<ii", -1, -1) + bytes(8)
    for reader in ("colmap cameras", "colmap images", "colmap points"):
        yield "colmap", reader, ".bin", struct.pack("<Q", 2**63) + bytes(64)
        yield "colmap", reader, ".bin", struct.pack("<Q", 1) + bytes(200)


# Recipes

_RECIPE = """\
name: own
steps: 100
init: ""
model: {trunk: lite}
sources:
  - {name: own, folder: data, weight: 1.0}
loss: {radius: 8.0}
"""
_VALUES = (
    *(
        "!!bool foo",
        "!!int ''",
        "!!float ''",
        "!!timestamp foo",
        "!!binary '='",
        "!!set {a, b}",
        "!!omap [a: 1]",
    ),
    *(
        "!!python/object/apply:os.system ['true']",
        "!!pairs [a: 1]",
        "!!null x",
        "!!int 1:99:99:99",
        "!!str [a]",
    ),
    *(
        "2001-99-99",
        "2001-12-14t21:59:43.10-99:99",
        "0x" + "f" * 5000,
        "1" * 5000,
        "1e999999",
        ".nan",
        "-.inf",
    ),
    *(
        "&a [*a]",
        "*nowhere",
        "!x y",
        "!!map [a]",
        "!!seq {a: b}",
        "!!int {a: b}",
        "? [a]\n: b",
        "{[a]: b}",
        "{{}: 1}",
    ),
    *(
        "[" * 3000,
        "{a: " * 3000,
        "- " * 3000,
        "'\\",
        '"\\xZZ"',
        '"\\ud800"',
        "\t",
        "%TAG",
        "\0",
        "!!float 0x",
        "=",
        "<<",
    ),
    *(
        "!!int 0b",
        "!!int +",
        "!!int _",
        "!!float 1:2:x",
        "!!bool ''",
        "!!timestamp ''",
        "!!merge <<",
        "!!value =",
    ),
)


def make_merge_bomb(levels: int, width: int) -> bytes:
    """A few hundred bytes of YAML whose merge keys multiply."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines).encode()


def _alias_bomb(levels: int, width: int) -> bytes:
    lines = ["a0: &a0 [x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines).encode()


def _recipe_bombs() -> Iterator[tuple[str, bytes]]:
    for value in _VALUES:
        yield "recipe values", f"{_RECIPE}seed: {value}\n".encode(errors="surrogatepass")
    for levels, width in ((9, 9), (12, 9), (30, 2)):
        yield "recipe bomb", make_merge_bomb(levels, width)
        yield "recipe bomb", _alias_bomb(levels, width)
    yield "recipe bomb", b"a: [" + b"1," * 400_000 + b"]"
    yield "recipe bomb", b"sources: [" + b"{name: a}," * 80_000 + b"]"
    yield "recipe bomb", b"- " * 500_000
    yield "recipe bomb", b"a: " + b"9" * 900_000
    yield "recipe bomb", b"a: " + b"1:" * 200_000 + b"1"
    yield "recipe bomb", b"\n".join(b"k%d: 1" % n for n in range(60_000))
    yield "recipe bomb", b"a: '" + b"x" * 900_000 + b"'"
    yield "recipe bomb", b"\xff\xfea\0:\0"


# Damage


def list_sound_files(folder: Path) -> list[tuple[str, str, str, bytes]]:
    """Family, reader, suffix and content of files that are fine."""
    return list(_sound_files(folder))


def _damage(content: bytes, rng: np.random.Generator) -> bytes:
    """A copy with one to four changes; most hit the first kilobyte, where headers are."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        end = len(data) if rng.random() < 0.4 else min(len(data), 1024)
        at, kind = int(rng.integers(0, end)), int(rng.integers(0, 8))
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            data[at] = int(rng.choice([0, 1, 127, 128, 255]))
        elif kind in (2, 3):
            value = int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 65_535, 12_600, 46_336]))
            data[at : at + 4] = struct.pack("<I" if kind == 2 else ">I", value)
        elif kind == 4:
            del data[at : at + int(rng.integers(1, 64))]
        elif kind == 5:
            data[at:at] = data[at : at + int(rng.integers(1, 64))] * int(rng.integers(1, 50))
        elif kind == 6:
            data = data[: max(1, at)]
        else:
            data[at : at + 16] = rng.bytes(16)
    return bytes(data)


def _sound_files(folder: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Family, reader, suffix and content of files that are fine."""
    photo = _photo()
    exif = PIL.Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "camera"
    exif.get_ifd(0x8769)[0xA405] = 28
    for reader in ("image", "image", "mask", "exif"):
        yield "jpeg", reader, ".jpg", _save(photo, "JPEG", exif=exif)
        yield "jpeg", reader, ".jpg", _save(photo, "JPEG", progressive=True, subsampling=0)
        yield "png", reader, ".png", _save(photo, "PNG", exif=exif)
        yield "tiff", reader, ".tif", _save(photo, "TIFF", compression="tiff_deflate")
    yield "jpeg", "image", ".jpg", _save(photo.convert("CMYK"), "JPEG")
    yield "png", "image", ".png", _save(photo.convert("P"), "PNG", transparency=3)
    for compression in ("raw", "tiff_lzw", "jpeg", "packbits", "tiff_adobe_deflate", "group4"):
        mode = photo.convert("1") if compression == "group4" else photo
        yield "tiff", "image", ".tif", _save(mode, "TIFF", compression=compression)
    yield "tiff", "image", ".tif", _save(PIL.Image.new("I;16", (40, 40)), "TIFF")
    yield "gif", "image", ".gif", _save(photo.convert("P"), "GIF")
    yield "bmp", "image", ".bmp", _save(photo, "BMP")
    yield "ppm", "image", ".ppm", _save(photo, "PPM")
    yield "webp", "image", ".webp", _save(photo, "WEBP", exif=exif)
    yield "webp", "image", ".webp", _save(photo, "WEBP", lossless=True)
    yield "jpeg 2000", "image", ".jp2", _save(photo, "JPEG2000")
    yield "jpeg 2000", "image", ".j2k", _save(photo, "JPEG2000", no_jp2=True)
    yield "avif", "image", ".avif", _save(photo, "AVIF", exif=exif)
    for suffix, codec in ((".mp4", "mp4v"), (".avi", "MJPG")):
        path = folder / f"video{suffix}"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), 25, (64, 48))
        for _ in range(5):
            writer.write(np.asarray(photo.resize((64, 48))))
        writer.release()
        yield "video", "video", suffix, path.read_bytes()
    flow = Flow(np.zeros((12, 16, 2), np.float32), np.ones((12, 16), np.float32))
    for suffix, reader in ((".npz", "flow"), (".flo", "flo")):
        path = folder / f"flow{suffix}"
        write_flow(path, flow, overwrite=True)
        yield "flow", reader, suffix, path.read_bytes()
    for suffix in (".npz", ".h5", ".csv"):
        path = folder / f"matches{suffix}"
        write_matches(path, _sound_matches(), {"a": 1}, overwrite=True)
        for _ in range(3 if suffix == ".h5" else 1):
            yield f"matches {suffix}", "matches", suffix, path.read_bytes()
    features = _make_h5(_fill_features(20))
    for _ in range(3):
        yield "hloc", "hloc", ".h5", features
    yield "mat", "mat", ".mat", make_mat("kps", (4, 2), bytes(64), 9)
    yield "mat", "mat", ".mat", make_mat("kps", (4, 2), bytes(64), 9, compressed=False)
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "name": "car", "keypoints": ["a", "b"]}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "keypoints": [1, 2, 2, 3, 4, 0]}],
    }
    yield "points", "points", ".json", json.dumps(coco).encode()
    yield "points", "points", ".csv", b"name,x,y\na,1,2\nb,3.5,4\n"
    yield "points", "points", ".pts", b"version: 1\nn_points: 2\n{\n1 2\n3 4\n}\n"
    yield "pairs", "pairs", ".txt", b"a.jpg b.jpg\nc.jpg d.jpg\n"
    yield "camera", "camera", ".txt", b"500 0 320\n0 500 240\n0 0 1\n"
    matrix = b"%YAML:1.0\nK: !!opencv-matrix\n   rows: 3\n   data: [500,0,320,0,500,240,0,0,1]\n"
    yield "camera", "camera", ".yml", matrix
    line = {"image0": "a.jpg", "image1": "b.jpg", "points0": [[1, 2]], "points1": [[3, 4]]}
    yield "own", "own", ".jsonl", json.dumps(line).encode()
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    for reader in ("weights", "checkpoint", "features"):
        yield "safetensors", reader, ".safetensors", struct.pack("<Q", len(header)) + header + bytes(16)
    recipe = _RECIPE.encode()
    for _ in range(6):
        yield "recipe", "recipe", ".yaml", recipe


_READERS = {
    **{"image": ".png", "mask": ".png", "exif": ".jpg", "points": ".csv", "pairs": ".txt", "matches": ".npz"},
    **{"flow": ".npz", "flo": ".flo", "hloc": ".h5", "camera": ".txt", "mat": ".mat", "recipe": ".yaml"},
    **{"weights": ".safetensors", "checkpoint": ".safetensors", "features": ".safetensors", "own": ".jsonl"},
    **{
        "video": ".mp4",
        "colmap points": ".bin",
        "colmap cameras": ".txt",
        "trunk": ".npz",
        "pair matches": ".h5",
    },
}


def _special_cases() -> Iterator[Case]:
    for reader, suffix in _READERS.items():
        for kind in SPECIAL:
            if kind == "long name" and reader.startswith("colmap"):
                continue  # the folder has the name
            yield Case(f"path: {kind}", reader, suffix, kind)
    for reader, suffix in (("matches", ".h5"), ("points", ".json"), ("camera", ".yml"), ("trunk", ".onnx")):
        yield Case("path: fifo", reader, suffix, "fifo")
        yield Case("path: device link", reader, suffix, "device link")


def make_bombs() -> list[Case]:
    """The hand-made attacks; equal in each run."""
    images = [Case(family, "image", suffix, content) for family, suffix, content in _image_bombs()]
    masks = [Case(each.family, "mask", each.suffix, each.content) for each in images[::11]]
    data = [Case(*bomb) for bomb in _data_bombs()]
    recipes = [Case(family, "recipe", ".yaml", content) for family, content in _recipe_bombs()]
    return [*images, *masks, *data, *recipes]


def make_largest() -> Iterator[Case]:
    """Images near the limits of their formats, one after another."""
    for name, megapixels, mode, settings in _LARGEST:
        width = int((megapixels * 4e6 / 3) ** 0.5) // 16 * 16
        size = width, int(megapixels * 1e6 / width) // 16 * 16
        image = PIL.Image.new(mode, size, 128 if mode in ("L", "P") else (90, 120, 150, 200)[: len(mode)])
        kind, _, suffix = name.partition(".")
        settings = (
            {**settings, "append_images": [PIL.Image.new(mode, size)]} if kind == "animated" else settings
        )
        yield Case(f"largest {kind}", "image", f".{suffix}", _save(image, _FORMATS[suffix], **settings))


_FORMATS = {
    **{"webp": "WEBP", "avif": "AVIF", "jp2": "JPEG2000", "jpg": "JPEG", "tif": "TIFF", "png": "PNG"},
    **{"gif": "GIF", "bmp": "BMP", "ppm": "PPM"},
}
_QUICK = {"method": 0, "quality": 30}
_WHOLE_STRIP = {"compression": "tiff_lzw", "tiffinfo": {278: 2**20}}
_TURNED = {"compression": "tiff_deflate", "tiffinfo": {278: 64, 274: 6}}
_LARGEST: tuple[tuple[str, float, str, dict[str, Any]], ...] = (
    ("lossy.webp", 77, "RGB", _QUICK),
    ("transparent.webp", 38, "RGBA", _QUICK),
    ("lossless.webp", 38, "RGB", {**_QUICK, "lossless": True}),
    ("animated.webp", 14.3, "RGB", {**_QUICK, "save_all": True}),
    ("plain.avif", 24, "RGB", {"speed": 10}),
    ("full chroma.avif", 24, "RGB", {"speed": 10, "subsampling": "4:4:4"}),
    ("transparent.avif", 16, "RGBA", {"speed": 10, "subsampling": "4:4:4"}),
    ("one tile.jp2", 11.8, "RGB", {}),
    ("one tile transparent.jp2", 8.8, "RGBA", {}),
    ("tiled.jp2", 60, "RGB", {"tile_size": (1024, 1024)}),
    ("progressive full chroma.jpg", 88, "RGB", {"progressive": True, "subsampling": 0}),
    ("progressive CMYK.jpg", 44, "CMYK", {"progressive": True, "subsampling": 0}),
    ("progressive.jpg", 158, "RGB", {"progressive": True}),
    ("baseline.jpg", 158, "RGB", {}),
    ("one strip.tif", 59, "RGB", _WHOLE_STRIP),
    ("strips.tif", 158, "RGB", {"compression": "tiff_deflate"}),
    ("plain.tif", 158, "RGB", {}),
    ("turned.tif", 44, "RGB", _TURNED),
    ("transparent.png", 158, "RGBA", {"compress_level": 1}),
    ("palette.gif", 158, "P", {}),
    ("plain.bmp", 150, "RGB", {}),
    ("plain.ppm", 150, "RGB", {}),
)


def make_largest_heif() -> Iterator[Case]:
    """The same of HEIC, which needs pillow-heif; the last one has 48.8 megapixels, as phones make."""
    from pillow_heif import register_heif_opener

    register_heif_opener()
    for size, mode, chroma in (
        ((6400, 4800), "RGB", 444),
        ((7104, 5328), "RGBA", 420),
        ((8064, 6048), "RGB", 420),
    ):
        image = PIL.Image.new(mode, size, (90, 120, 150, 200)[: len(mode)])
        yield Case("largest HEIC", "image", ".heic", _save(image, "HEIF", chroma=chroma, quality=30))


def make_special() -> list[Case]:
    """Paths that are no regular files, for each reader."""
    return list(_special_cases())


def make_damaged(count: int, seed: int, folder: Path) -> Iterator[Case]:
    """Damaged copies of sound files, in turn; equal for equal seeds."""
    sound = list(_sound_files(folder))
    for number in range(count):
        family, reader, suffix, content = sound[number % len(sound)]
        rng = np.random.default_rng([seed, number])
        yield Case(f"damaged {family}", reader, suffix, _damage(content, rng))
