"""Encoding: images to descriptors, the fast path against the network as it stands and against peers."""

from __future__ import annotations

import copy
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ucn.bench.report import Cell, Column, Part, Table, Target
from ucn.bench.samples import (
    PAPER,
    PLAIN_PAPER,
    Accuracy,
    draw_images,
    load_network,
    measure_accuracy,
    read_example_images,
)
from ucn.bench.settings import Settings
from ucn.bench.timing import Work, measure_memory, measure_product_rate, time_eager, time_in_turns
from ucn.features.classical import DenseDaisy
from ucn.features.extractor import to_grey
from ucn.features.sparse import SiftKeypoints
from ucn.features.xfeat import XFeat
from ucn.nn import CorrespondenceNetwork
from ucn.nn.cuda.graphs import CapturePolicy
from ucn.nn.encoder import PATIENT, FastEncoder
from ucn.runtime.kernels import without_fused
from ucn.weights import list_weights

_SIFT_KEYPOINTS = 2000
_PIXELS = (1, 3, 5, 10)
_FAST = "fast path"
LITE = "geometric-lite"
"""The small network, where it is shipped."""


def measure(settings: Settings) -> Part:
    """Encoding on this device."""
    return _measure_cuda(settings) if settings.is_cuda else _measure_cpu(settings)


def count_flops(network: CorrespondenceNetwork, images: Tensor) -> float:
    """Multiplications and additions of the convolutions of one pass."""
    with without_fused(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(images)
    return float(counter.get_total_flops())


@torch.no_grad()
def run_plainly(network: CorrespondenceNetwork, images: Tensor) -> Tensor:
    """The network as it stands, in float32, without fused programs."""
    with without_fused():
        return network(images)  # type: ignore[no-any-return]


def _measure_cuda(settings: Settings) -> Part:
    names = [PAPER] if not settings.is_thorough else [PAPER, *(info.name for info in list_weights())]
    count = 2 if settings.is_quick else 8
    images = draw_images(count, settings.image_hw, settings.seed, settings.device)
    rate = measure_product_rate(settings.device)
    tables, targets = [], []
    for name in names:
        settings.report(f"encoding: {name}, compiling")
        network = load_network(name, settings.device)
        started = time.perf_counter()
        encoder = FastEncoder(network)
        encoder(images)
        torch.cuda.synchronize(settings.device)
        compile_seconds = time.perf_counter() - started
        settings.report(f"encoding: {name}")
        floor = count_flops(network, images) / rate / 1e9
        times = _time_cuda(network, encoder, images)
        memory = measure_memory(partial(encoder, images), settings.device)
        notes = (
            f"The floor is the time of all multiplications at the {rate:.0f} TFLOP/s of a large bfloat16 "
            "product, measured in the same run.",
            f"Compiling and capturing took {compile_seconds:.1f} s; the fast path takes {memory:.0f} MB.",
        )
        tables.append(_tabulate_cuda(name, times, floor, rate, images, notes))
        tables.append(_compare_paths(name, network, encoder, count, settings))
        tables.append(_compare_engines(name, network, images[:1]))
        if name == PAPER:
            ms = times["fast path, copies in and out included"]
            targets.append(Target(f"fast path, {count} images", "an H200", ms, 3.0, "ms", is_least=False))
    return Part(tuple(tables), tuple(targets))


@torch.no_grad()
def _time_cuda(network: CorrespondenceNetwork, encoder: FastEncoder, images: Tensor) -> dict[str, float]:
    last = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run_half() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return last(images)

    def run_plain_half() -> Any:
        with without_fused():
            return run_half()

    captured = encoder.capture(images)
    return {
        "eager float32, plain": time_eager(partial(run_plainly, network, images)),
        "eager float32, fused transformer": time_eager(partial(network, images)),
        "eager bfloat16 channels-last, plain": time_eager(run_plain_half),
        "eager bfloat16 channels-last, fused transformer": time_eager(run_half),
        "fast path, copies in and out included": time_eager(partial(encoder, images)),
        "fast path, the graph alone": time_eager(captured.graph.replay),
    }


def _tabulate_cuda(
    name: str, times: dict[str, float], floor: float, rate: float, images: Tensor, notes: tuple[str, ...]
) -> Table:
    columns = (
        Column("way"),
        Column("time", "ms"),
        Column("eager float32 ÷ this", "ratio"),
        Column("TFLOP/s", "number"),
        Column("times the floor", "ratio"),
    )
    slowest = times["eager float32, plain"]
    rows: list[tuple[Cell, ...]] = [
        (way, ms, slowest / ms, rate * floor / ms, ms / floor) for way, ms in times.items()
    ]
    rows.append(("floor", floor, slowest / floor, rate, 1.0))
    title = f"Encoding, {name}: {len(images)} images of {images.shape[-1]} × {images.shape[-2]}"
    return Table(title, columns, tuple(rows), notes)


@torch.no_grad()
def _compare_paths(
    name: str, network: CorrespondenceNetwork, encoder: FastEncoder, count: int, settings: Settings
) -> Table:
    """What the fast path changes on a real pair: cosines with float32, and how right matches are."""

    def encode(pair: Tensor) -> Tensor:
        return encoder(pair.repeat(count // 2, 1, 1, 1))[:2]  # of the size that is compiled already

    images = read_example_images(settings.image_hw, settings.device)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = run_plainly(network, images)
        reference = measure_accuracy(
            partial(run_plainly, network), network, settings.image_hw, settings.device
        )
    cosines = (encode(images) * expected).sum(dim=1)
    fast = measure_accuracy(encode, network, settings.image_hw, settings.device)
    return tabulate_accuracy(f"Accuracy, {name}", {"float32": reference, _FAST: fast}, cosines)


@torch.no_grad()
def _compare_engines(name: str, network: CorrespondenceNetwork, image: Tensor) -> Table:
    """One image, by the engines of `Matcher` that cost nothing first."""
    uncaptured = FastEncoder(network, use_compiler=False, policy=CapturePolicy(after=2**31))
    captured = FastEncoder(network, use_compiler=False, policy=PATIENT)
    ways: dict[str, Work] = {
        "plain: the network, float32": partial(network, image),
        "auto, sizes that are new: folded, bfloat16": partial(uncaptured, image),
        "auto, sizes that came before: the same as a CUDA graph": partial(captured, image),
    }
    times = {way: time_eager(work) for way, work in ways.items()}
    plain = next(iter(times.values()))
    columns = (Column("engine"), Column("time", "ms"), Column("plain ÷ this", "ratio"))
    rows = tuple((way, ms, plain / ms) for way, ms in times.items())
    title = f"Encoding, {name}: one image of {image.shape[-1]} × {image.shape[-2]}, by engine of Matcher"
    return Table(title, columns, rows, ("Launched from Python each time; neither engine compiles.",))


def tabulate_accuracy(title: str, found: dict[str, Accuracy], cosines: Tensor | None = None) -> Table:
    """PCK of several paths on the bundled pair, side by side."""
    columns = (Column("path"), *(Column(f"PCK@{limit}", "share") for limit in _PIXELS))
    rows: list[tuple[Cell, ...]] = [
        (path, *(each.pck[limit] for limit in _PIXELS)) for path, each in found.items()
    ]
    points = next(iter(found.values())).points
    notes = [f"Nearest neighbours of {points:,} points of the bundled pair, placed between cells."]
    if cosines is not None:
        mean, least = float(cosines.mean()), float(cosines.min())
        notes.append(f"Cosine of the descriptors of both paths: {mean:.6f} on average, {least:.4f} at least.")
    return Table(title, columns, tuple(rows), tuple(notes))


def list_cpu_networks() -> list[str]:
    """The paper's network, and all that are shipped."""
    return [PLAIN_PAPER, PAPER, *(info.name for info in list_weights())]


@torch.no_grad()
def _measure_cpu(settings: Settings) -> Part:
    image = draw_images(1, settings.image_hw, settings.seed, settings.device)
    rows: list[tuple[Cell, ...]] = []
    targets: list[Target] = []
    accuracies: dict[str, Accuracy] = {}
    for name in list_cpu_networks():
        settings.report(f"encoding: {name}")
        network = load_network(name, settings.device)
        encoder = FastEncoder(network)
        eager, fast = partial(run_plainly, network, image), partial(encoder, image)
        times = time_in_turns({"eager": eager, _FAST: fast}, settings.effort)
        memory = [measure_memory(work, settings.device) for work in (eager, fast)]
        cosines = (encoder(image) * run_plainly(network, image)).sum(dim=1)
        ratio = times["eager"] / times[_FAST]
        rows.append((f"{name}, eager", times["eager"], None, memory[0], None))
        rows.append(
            (f"{name}, fast path", times[_FAST], ratio, memory[1], max(0.0, 1 - float(cosines.min())))
        )
        targets += _judge(name, times, ratio)
        if name not in (PAPER, PLAIN_PAPER):
            plain = partial(run_plainly, network)
            for path, way in ((f"{name}, eager", plain), (f"{name}, fast path", encoder)):
                accuracies[path] = measure_accuracy(way, network, settings.image_hw, settings.device)
    for peer, work in _list_peers(image[0], settings.xfeat).items():
        settings.report(f"encoding: {peer}")
        ms = time_in_turns({"peer": work}, settings.effort)["peer"]
        rows.append((peer, ms, None, measure_memory(work, settings.device), None))
    table = _tabulate_cpu(rows, settings)
    return Part((table, tabulate_accuracy("Accuracy of both paths", accuracies)), tuple(targets))


def _judge(name: str, times: dict[str, float], ratio: float) -> list[Target]:
    if name in (PAPER, PLAIN_PAPER):
        return [Target(f"{name}: eager ÷ fast path", "two cores", ratio, 2.5)]
    if name == LITE:
        return [Target(f"{name}: one image", "two cores", times[_FAST], 90.0, "ms", is_least=False)]
    return []


def _list_peers(image: Tensor, xfeat: Path | None) -> dict[str, Work]:
    grey = to_grey(image)
    sift = SiftKeypoints(_SIFT_KEYPOINTS).make_detector()
    peers: dict[str, Work] = {
        f"SIFT, {_SIFT_KEYPOINTS:,} keypoints (OpenCV)": partial(sift.detectAndCompute, grey, None),
        "DAISY, one descriptor per 4 pixels (OpenCV)": partial(DenseDaisy().extract, image),
    }
    if xfeat is not None:
        peers["XFeat's network (onnxruntime)"] = partial(XFeat(xfeat).extract, image)
    return peers


def _tabulate_cpu(rows: list[tuple[Cell, ...]], settings: Settings) -> Table:
    columns = (
        Column("what"),
        Column("time", "ms"),
        Column("eager ÷ fast path", "ratio"),
        Column("extra memory", "MB"),
        Column("1 − cosine of both paths, at most", "error"),
    )
    height, width = settings.image_hw
    notes = [
        "Eager: the network as it stands in float32, not folded, not channels-last, grid_sample for the "
        "transformer; medians of rounds in which both paths take turns.",
    ]
    if settings.xfeat is None:
        notes.append("XFeat's network is measured where its ONNX file is given (--xfeat FILE).")
    return Table(f"Encoding, one image of {width} × {height}", columns, tuple(rows), tuple(notes))
