"""Fills docs/scale.md from the results of extract_speed.py.

OMP_NUM_THREADS=1 python benchmarks/extract_speed.py --images 4 --json > benchmarks/results/extract-cpu.json
python benchmarks/extract_speed.py --device cuda --batch 16 --images 1024 --json \
    > benchmarks/results/extract-gpu.json
python benchmarks/scale_page.py

A block of the page begins with ``<!-- scale:NAME -->`` and ends with ``<!-- /scale -->``. Without a GPU
result, the entries of GPUs say that none was measured.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_text import wrap, wrap_items

from ucn.errors import DataError
from ucn.files.writing import write_bytes_atomically

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "scale.md"
_RESULTS = _ROOT / "benchmarks" / "results"
_BLOCK = re.compile(r"<!-- scale:(\w+) -->.*?<!-- /scale -->", re.DOTALL)

_DIMENSION = 128
_KEYPOINT_BYTES = 8 + 2 + 2 * _DIMENSION  # position (two floats), score and descriptor (half floats)
_FEW_KEYPOINTS = 1024
_MATCH_BYTES = 6  # per keypoint of the first image: an index and a half float
_NEIGHBOURS = 20
_CORE_FLOPS, _GPU_FLOPS = 70e9, 24e12
_EURO_GPU_HOUR, _EURO_GIGABYTE_MONTH = 2.0, 0.02
_YEAR = 3600 * 24 * 365


@dataclass(frozen=True)
class Gpu:
    """Throughput of a GPU, in images a second.

    Attributes:
        name: of the device.
        cores: CPU cores of its machine.
        batch: images per forward pass.
        all: the whole command.
        encoding: the network alone, with images on the device.
        rest: the whole command without the network; None if not measured.
        pairs: matched pairs per second.
        core_seconds: CPU time of the whole command per image.
    """

    name: str
    cores: int
    batch: int
    all: float
    encoding: float
    rest: float | None
    pairs: float
    core_seconds: float


@dataclass(frozen=True)
class Speed:
    """Measured CPU time, in core-seconds.

    Attributes:
        image: total per image.
        encoding: the network.
        reading: reading the file.
        keypoints: detecting keypoints.
        writing: packing, writing and merging the features.
        pair: matching a pair.
        image_bytes: size of the features of an image.
        count: keypoints per image.
        size: image size, as text.
        gpu: results of one GPU; None if not measured.
    """

    image: float
    encoding: float
    reading: float
    keypoints: float
    writing: float
    pair: float
    image_bytes: float
    count: int
    size: str
    gpu: Gpu | None

    @property
    def beside(self) -> float:
        """Core-seconds per image without the network."""
        return self.reading + self.keypoints + self.writing


def read_speed(cpu: Mapping[str, Any], gpu: Mapping[str, Any] | None) -> Speed:
    stages = cpu["core_seconds_per_image"]
    if gpu is not None and gpu["size"] != cpu["size"]:
        raise DataError(f"both results must be of images of one size, got {cpu['size']} and {gpu['size']}")
    return Speed(
        stages["all"],
        stages["encoding"],
        stages["reading, one thread"],
        stages["keypoints, one thread"],
        sum(stages[f"{name}, one thread"] for name in ("packing", "writing", "merging")),
        cpu["core_seconds_per_pair"],
        1000 * cpu["kilobytes_per_image"],
        cpu["keypoints"],
        cpu["size"].replace("x", " × "),
        None if gpu is None else read_gpu(gpu),
    )


def read_gpu(gpu: Mapping[str, Any]) -> Gpu:
    speeds = gpu["images_per_second"]
    return Gpu(
        gpu["device"],
        gpu["cores"],
        gpu["batch"],
        speeds["all"],
        speeds["encoding"],
        speeds.get("all but encoding"),
        gpu["pairs_per_second"],
        gpu["core_seconds_per_image"]["all"],
    )


def fill_page(text: str, speed: Speed) -> str:
    """The page with its blocks filled."""
    blocks = {"measured": show_measured, "million": show_million, "billion": show_billion}

    def fill(found: re.Match[str]) -> str:
        if found[1] not in blocks:
            raise DataError(f"the page has a block 'scale:{found[1]}': expected one of {', '.join(blocks)}")
        return f"<!-- scale:{found[1]} -->\n\n{blocks[found[1]](speed)}\n<!-- /scale -->"

    return _BLOCK.sub(fill, text)


def show_measured(speed: Speed) -> str:
    rows = [
        ("the whole command, one image", _format(speed.image), f"{_format(1 / speed.image)} images a second"),
        ("– encoding", _format(speed.encoding), ""),
        ("– reading a JPEG file", _format(speed.reading), f"{_format(1 / speed.reading)} images a second"),
        ("– keypoints", _format(speed.keypoints), f"{_format(1 / speed.keypoints)} images a second"),
        ("– writing", _format(speed.writing), f"{_format(1 / speed.writing)} images a second"),
        ("matching a pair", _format(speed.pair), f"{_format(1 / speed.pair)} pairs a second"),
        ("size of the features", f"{speed.image_bytes / 1e6:.2f} MB per image", ""),
    ]
    table = _tabulate(("stage", "core-seconds", "throughput of a core"), rows)
    text = (
        f"{_describe_gpu(speed.gpu)} On the machine of the table, reading, keypoints and writing take "
        f"{_format(speed.beside)} core-seconds, and more for larger files, so one core feeds at most about "
        f"{_format(1 / speed.beside)} images a second."
    )
    title = f"Images of {speed.size}, {speed.count:,} keypoints, weights `geometric`, one core:"
    return f"{title}\n\n{table}\n{_wrap(text)}"


def _describe_gpu(gpu: Gpu | None) -> str:
    if gpu is None:
        return "A GPU was not measured yet."
    rest = "" if gpu.rest is None else f", everything else {_format(gpu.rest)}"
    return (
        f"One GPU ({gpu.name}, {gpu.cores} CPU cores, `--batch {gpu.batch}`), the whole command: "
        f"**{_format(gpu.all)} images a second**. The network alone reaches {_format(gpu.encoding)}{rest}. "
        f"It matches {_format(gpu.pairs)} pairs a second. An image takes {_format(gpu.core_seconds)} "
        "core-seconds of the CPU."
    )


def show_million(speed: Speed) -> str:
    images, pairs = 10**6, 10**6 * _NEIGHBOURS
    hours, matching = images * speed.image / 3600, pairs * speed.pair / 3600
    looks = 2 * _DIMENSION * images**2
    few = _KEYPOINT_BYTES * _FEW_KEYPOINTS * images
    rows = [
        ("extraction, CPU", f"{_format(hours)} core-hours: {_format(hours / 100)} hours on 100 cores"),
        ("extraction, GPU", _format_gpu(speed, images, 1)),
        (
            "features",
            f"{_KEYPOINT_BYTES} bytes a keypoint (position 8, score 2, {_DIMENSION} half floats "
            f"{2 * _DIMENSION}): {images * speed.image_bytes / 1e12:.2f} TB with {speed.count:,} "
            f"keypoints, {few / 1e12:.2f} TB with `--max-keypoints {_FEW_KEYPOINTS}`",
        ),
        (
            "global descriptors",
            f"{_DIMENSION} floats, {4 * _DIMENSION} bytes: {4 * _DIMENSION * images / 1e9:.1f} GB, which "
            "fits into the memory of one machine",
        ),
        (
            "retrieval",
            f"`--pairing retrieval` compares all with all: {_power(looks)} operations, "
            f"{_format(looks / _CORE_FLOPS / 3600)} hours on a core at {_CORE_FLOPS / 1e9:.0f} GFLOP/s, "
            "seconds on a GPU, in bounded memory",
        ),
        (
            f"matching {_NEIGHBOURS} neighbours each",
            f"at most {_power(pairs)} pairs: {_format(matching)} core-hours{_format_gpu_pairs(speed, pairs)}",
        ),
        (
            "matches",
            f"{_MATCH_BYTES} bytes a keypoint of the first image, {_MATCH_BYTES * speed.count / 1000:.0f} kB "
            f"a pair: {_MATCH_BYTES * speed.count * pairs / 1e12:.1f} TB",
        ),
    ]
    every = images**2 / 2
    note = (
        f"All pairs would be {_power(every)}, and {_format(every * speed.pair / _YEAR)} core-years: at this "
        "size pairs must be chosen."
    )
    return f"{_list(rows)}\n{_wrap(note)}"


def show_billion(speed: Speed) -> str:
    images, pairs = 10**9, 10**9 * _NEIGHBOURS
    hours, matching = images * speed.image / 3600, pairs * speed.pair / 3600
    many, few = images * speed.image_bytes, images * _KEYPOINT_BYTES * _FEW_KEYPOINTS
    cost_many, cost_few = (size / 1e9 * _EURO_GIGABYTE_MONTH for size in (many, few))
    looks, whole = 2 * _DIMENSION * images**2, 4 * _DIMENSION * images / 1e9
    rows = [
        (
            "extraction, CPU",
            f"{hours / 1e6:.2f} million core-hours: {_format(hours / 24 / 1000)} days on 1,000 cores",
        ),
        ("extraction, GPU", _format_gpu(speed, images, 100)),
        (
            "features",
            f"{many / 1e15:.2f} PB with {speed.count:,} keypoints, {few / 1e15:.2f} PB with "
            f"{_FEW_KEYPOINTS:,}; at {_EURO_GIGABYTE_MONTH} € a gigabyte and month {_format(cost_many)} € or "
            f"{_format(cost_few)} € a month",
        ),
        (
            "global descriptors",
            f"{whole:.0f} GB, {whole / 2:.0f} GB as half floats: over the memory of eight machines",
        ),
        (
            "retrieval, all with all",
            f"{_power(looks)} operations: {_format(looks / _GPU_FLOPS / 100 / 3600)} hours on 100 GPUs at "
            f"{_GPU_FLOPS / 1e12:.0f} TFLOP/s; an inverted index that probes a thousandth of its lists does "
            "it in minutes. This package has none; `faiss` reads the `global_descriptor`s as they are",
        ),
        (
            f"matching {_NEIGHBOURS} neighbours each",
            f"{_power(pairs)} pairs: {matching / 1e6:.2f} million core-hours"
            f"{_format_gpu_pairs(speed, pairs)}",
        ),
    ]
    return _list(rows)


def _format_gpu(speed: Speed, images: int, gpus: int) -> str:
    if speed.gpu is None:
        return "not measured yet"
    hours = images / speed.gpu.all / 3600
    cores = math.ceil(speed.gpu.all * speed.gpu.core_seconds)
    where = "on one GPU" if gpus == 1 else f"of GPU time, {_format(hours / gpus)} hours on {gpus} GPUs"
    cost = f"{_format(hours * _EURO_GPU_HOUR)} € at {_EURO_GPU_HOUR:g} € a GPU-hour"
    return f"{_format(hours)} hours {where}; each keeps {cores} CPU cores busy; {cost}"


def _format_gpu_pairs(speed: Speed, pairs: int) -> str:
    if speed.gpu is None:
        return ""
    hours = pairs / speed.gpu.pairs / 3600
    return f", or {_format(hours)} hours of a GPU ({_format(hours * _EURO_GPU_HOUR)} €)"


def _list(rows: Sequence[tuple[str, str]]) -> str:
    return "".join(f"{line}\n" for line in wrap_items(f"**{name}**: {text}" for name, text in rows))


def _wrap(text: str) -> str:
    return "".join(f"{line}\n" for line in wrap(text))


def _tabulate(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _format(value: float) -> str:
    """Two significant digits, as accurate as the measurement."""
    if value == 0:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}"


def _power(value: float) -> str:
    exponent = math.floor(math.log10(value))
    digits = str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value / 10**exponent:.2g} × 10{digits}"


def read_results() -> Speed:
    cpu, gpu = (_RESULTS / f"extract-{name}.json" for name in ("cpu", "gpu"))
    return read_speed(
        json.loads(cpu.read_text(encoding="utf-8")),
        json.loads(gpu.read_text(encoding="utf-8")) if gpu.is_file() else None,
    )


def main() -> None:
    page = fill_page(_PAGE.read_text(encoding="utf-8"), read_results())
    write_bytes_atomically(_PAGE, page.encode(), overwrite=True)
    print(f"written: {_PAGE.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
