"""Encoding images to descriptors: the fast encoder against the reference network and other features."""

from __future__ import annotations

import copy
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.samples import (
    PAPER,
    PLAIN_PAPER,
    QUERIES,
    load_network,
    measure_accuracy,
    read_example_images,
    sample_images,
)
from ucn.bench.settings import Settings
from ucn.bench.timing import Work, measure_matmul_throughput, measure_memory, time_eager, time_in_turns
from ucn.features.classical import DenseDaisy
from ucn.features.extractor import to_grey
from ucn.features.sparse import SiftKeypoints
from ucn.features.xfeat import XFeat
from ucn.nn import CorrespondenceNetwork
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.cuda.encoder import CudaEncoder
from ucn.nn.cuda.graphs import LAZY_CAPTURE, CapturePolicy
from ucn.runtime.kernels import without_fused
from ucn.weights import list_weights

_SIFT_KEYPOINTS = 2000
_EAGER, _FAST = "eager float32, torch", "fast path, copies in and out included"


def measure(settings: Settings) -> Part:
    """Time, memory and accuracy of encoding."""
    return _measure_cuda(settings) if settings.is_cuda else _measure_cpu(settings)


def count_flops(network: CorrespondenceNetwork, images: Tensor) -> float:
    """Multiplications and additions of all convolutions of one forward pass."""
    with without_fused(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(images)
    return float(counter.get_total_flops())


@torch.no_grad()
def run_reference(network: CorrespondenceNetwork, images: Tensor) -> Tensor:
    """The reference network in float32, without fused kernels."""
    with without_fused():
        return network(images)  # type: ignore[no-any-return]


def _measure_cuda(settings: Settings) -> Part:
    names = [PAPER, *(info.name for info in list_weights())] if settings.is_thorough else [PAPER]
    count = 2 if settings.is_quick else 8
    images = sample_images(count, settings.image_hw, settings.seed, settings.device)
    throughput = measure_matmul_throughput(settings.device)
    tables: list[Table] = []
    for name in names:
        settings.report(f"encoding: {name}, compiling")
        network = load_network(name, settings.device)
        started = time.perf_counter()
        encoder = CudaEncoder(network)
        encoder(images)
        torch.cuda.synchronize(settings.device)
        compile_seconds = time.perf_counter() - started
        settings.report(f"encoding: {name}")
        bound = count_flops(network, images) / throughput / 1e9
        times = _time_cuda(network, encoder, images)
        memory = measure_memory(partial(encoder, images), settings.device)
        notes = (
            f"The lower bound is the time of all multiplications at the {throughput:.0f} TFLOP/s of a large "
            "bfloat16 matrix product, measured in the same run.",
            f"Compiling and capturing took {compile_seconds:.1f} s; the fast path takes {memory:.0f} MB.",
        )
        title = f"Encoding, {name}: {count} images of {images.shape[-1]} × {images.shape[-2]}"
        tables += [
            _tabulate_cuda(title, times, bound, throughput, notes),
            _compare_accuracy(name, network, encoder, count, settings),
            _compare_engines(name, network, images[:1]),
        ]
    return Part(tuple(tables))


@torch.no_grad()
def _time_cuda(network: CorrespondenceNetwork, encoder: CudaEncoder, images: Tensor) -> dict[str, float]:
    last = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run_half(use_kernels: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            if use_kernels:
                last(images)
            else:
                run_reference(last, images)

    captured = encoder.capture(images)
    return {
        _EAGER: time_eager(partial(run_reference, network, images)),
        "eager float32, fused transformer": time_eager(partial(network, images)),
        "eager bfloat16 channels-last, torch": time_eager(partial(run_half, use_kernels=False)),
        "eager bfloat16 channels-last, fused transformer": time_eager(partial(run_half, use_kernels=True)),
        _FAST: time_eager(partial(encoder, images)),
        "fast path, the CUDA graph alone": time_eager(captured.graph.replay),
    }


def _tabulate_cuda(
    title: str, times: dict[str, float], bound: float, throughput: float, notes: tuple[str, ...]
) -> Table:
    columns = (
        Column("method"),
        Column("time", "ms"),
        Column("eager float32 ÷ this", "ratio"),
        Column("TFLOP/s", "number"),
        Column("this ÷ lower bound", "ratio"),
    )
    rows: list[tuple[Cell, ...]] = [
        (method, ms, times[_EAGER] / ms, throughput * bound / ms, ms / bound)
        for method, ms in {**times, "lower bound": bound}.items()
    ]
    return Table(title, columns, tuple(rows), notes)


@torch.no_grad()
def _compare_accuracy(
    name: str, network: CorrespondenceNetwork, encoder: CudaEncoder, count: int, settings: Settings
) -> Table:
    """Cosine similarity to float32, and accuracy of both paths on the bundled pair."""

    def encode(pair: Tensor) -> Tensor:
        return encoder(pair.repeat(count // 2, 1, 1, 1))[:2]  # the batch size that is compiled already

    images = read_example_images(settings.image_hw, settings.device)
    reference = partial(run_reference, network)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = reference(images)
        exact = measure_accuracy(reference, network, settings.image_hw, settings.device)
    cosines = (encode(images) * expected).sum(dim=1)
    fast = measure_accuracy(encode, network, settings.image_hw, settings.device)
    return _tabulate_accuracy(f"Accuracy, {name}", {"float32": exact, "fast path": fast}, cosines)


@torch.no_grad()
def _compare_engines(name: str, network: CorrespondenceNetwork, image: Tensor) -> Table:
    """One image, with the engines that `Matcher` uses without compiling."""
    uncaptured = CudaEncoder(network, use_compiler=False, policy=CapturePolicy(eager_passes=2**31))
    captured = CudaEncoder(network, use_compiler=False, policy=LAZY_CAPTURE)
    works: dict[str, Work] = {
        "plain: the reference network, float32": partial(network, image),
        "auto, new image size: folded, bfloat16": partial(uncaptured, image),
        "auto, known image size: the same as a CUDA graph": partial(captured, image),
    }
    times = {engine: time_eager(work) for engine, work in works.items()}
    plain = next(iter(times.values()))
    columns = (Column("engine"), Column("time", "ms"), Column("plain ÷ this", "ratio"))
    rows = tuple((engine, ms, plain / ms) for engine, ms in times.items())
    title = f"Encoding, {name}: one image of {image.shape[-1]} × {image.shape[-2]}, by engine of Matcher"
    return Table(title, columns, rows, ("Launched from Python; nothing is compiled.",))


def _tabulate_accuracy(
    title: str, found: dict[str, dict[int, float]], cosines: Tensor | None = None
) -> Table:
    limits = next(iter(found.values()))
    columns = (Column("path"), *(Column(f"PCK@{limit}", "share") for limit in limits))
    rows: list[tuple[Cell, ...]] = [(path, *shares.values()) for path, shares in found.items()]
    notes = [f"Sub-cell nearest neighbours of {QUERIES:,} points of the bundled pair."]
    if cosines is not None:
        mean, least = float(cosines.mean()), float(cosines.min())
        notes.append(f"Cosine similarity of the descriptors of both paths: mean {mean:.6f}, min {least:.4f}.")
    return Table(title, columns, tuple(rows), tuple(notes))


def list_cpu_networks() -> list[str]:
    """The paper's network and all shipped weights."""
    return [PLAIN_PAPER, PAPER, *(info.name for info in list_weights())]


@torch.no_grad()
def _measure_cpu(settings: Settings) -> Part:
    image = sample_images(1, settings.image_hw, settings.seed, settings.device)
    rows: list[tuple[Cell, ...]] = []
    accuracies: dict[str, dict[int, float]] = {}
    for name in list_cpu_networks():
        settings.report(f"encoding: {name}")
        network = load_network(name, settings.device)
        reference, encoder = partial(run_reference, network), CpuEncoder(network)
        works: dict[str, Work] = {"eager": partial(reference, image), "fast path": partial(encoder, image)}
        times = time_in_turns(works, settings.effort)
        memory = {path: measure_memory(work, settings.device) for path, work in works.items()}
        error = max(0.0, 1 - float((encoder(image) * reference(image)).sum(dim=1).min()))
        ratio = times["eager"] / times["fast path"]
        rows += [
            (f"{name}, eager", times["eager"], None, memory["eager"], None),
            (f"{name}, fast path", times["fast path"], ratio, memory["fast path"], error),
        ]
        if name not in (PAPER, PLAIN_PAPER):
            for path, encode in (("eager", reference), ("fast path", encoder)):
                found = measure_accuracy(encode, network, settings.image_hw, settings.device)
                accuracies[f"{name}, {path}"] = found
    for baseline, work in _list_baselines(image[0], settings.xfeat).items():
        settings.report(f"encoding: {baseline}")
        ms = time_in_turns({baseline: work}, settings.effort)[baseline]
        rows.append((baseline, ms, None, measure_memory(work, settings.device), None))
    return Part((_tabulate_cpu(rows, settings), _tabulate_accuracy("Accuracy of both paths", accuracies)))


def _list_baselines(image: Tensor, xfeat: Path | None) -> dict[str, Work]:
    sift = SiftKeypoints(_SIFT_KEYPOINTS).make_detector()
    works: dict[str, Work] = {
        f"SIFT, {_SIFT_KEYPOINTS:,} keypoints (OpenCV)": partial(sift.detectAndCompute, to_grey(image), None),
        "DAISY, one descriptor per 4 pixels (OpenCV)": partial(DenseDaisy().extract, image),
    }
    if xfeat is not None:
        works["XFeat's network (onnxruntime)"] = partial(XFeat(xfeat).extract, image)
    return works


def _tabulate_cpu(rows: list[tuple[Cell, ...]], settings: Settings) -> Table:
    columns = (
        Column("method"),
        Column("time", "ms"),
        Column("eager ÷ fast path", "ratio"),
        Column("extra memory", "MB"),
        Column("1 − cosine similarity of both paths, max", "error"),
    )
    height, width = settings.image_hw
    notes = [
        "Eager: the reference network in float32, neither folded nor channels-last, with grid_sample in the "
        "transformer. Medians of alternating rounds."
    ]
    if settings.xfeat is None:
        notes.append("Add XFeat's network with --xfeat FILE.")
    return Table(f"Encoding, one image of {width} × {height}", columns, tuple(rows), tuple(notes))
