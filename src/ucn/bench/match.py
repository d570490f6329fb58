"""End to end: image pairs to matches, with fast and with reference code, and beside other methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ucn.bench.encode import run_reference
from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.samples import Encode, load_network, read_example_images
from ucn.bench.settings import Settings
from ucn.bench.timing import Effort, measure_memory, time_in_turns
from ucn.config import MatchConfig
from ucn.data.example import disparity_errors, example_pair
from ucn.features.baselines import BASELINES, RATIO
from ucn.features.lightglue import KEYPOINTS, LIGHTGLUE, LearnedKeypoints, explain_unavailable
from ucn.features.method import KeypointMethod, Method, MethodFiles, UnavailableError
from ucn.features.sparse import SiftKeypoints
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.knn import nearest
from ucn.matching.keypoints import strongest_corners
from ucn.matching.matcher import Matcher
from ucn.nn import CorrespondenceNetwork
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.cuda.encoder import CudaEncoder
from ucn.nn.cuda.graphs import LAZY_CAPTURE
from ucn.nn.encoder import Engine
from ucn.runtime.kernels import without_fused
from ucn.types import FeatureMap

_MATCHES = 2000
_SIFT_KEYPOINTS = 2000
_OWN_WEIGHTS = ("geometric", "geometric-lite")
_CORNERS = 4096
_TOLERANCE_PIXELS = 6.0
"""Largest round-trip error of a mutual match: the distance to the corner of the next cell."""
_CHUNK = 8
"""Batch size of encoding on a CUDA device; larger ones are not faster."""
_COLUMNS = (
    Column("path"),
    Column("pairs at once", "count"),
    Column("time per pair", "ms"),
    Column("pairs", "rate"),
    Column("plain ÷ this", "ratio"),
    Column("matches per pair", "count"),
    Column("correct within 5 px", "share"),
    Column("correct within 10 px", "share"),
)
_NOTES = (
    "From uint8 images to points in host memory: 4,096 corners of view 0, each compared with all cells of "
    "view 1, and the results with all cells of view 0. The bundled pair, which has ground truth.",
    "Matcher.match also computes the second-best match and scores, and refines matches photometrically; its "
    "share refers to the matches it keeps.",
)
_CUDA_NOTE = "The fast path uses CUDA graphs, and compiles with --thorough; Matcher.match does not compile."

_METHOD_COLUMNS = (
    Column("method"),
    Column("time per pair", "ms"),
    Column("extra memory", "MB"),
    Column("matches per pair", "count"),
    Column("correct within 3 px", "share"),
    Column("correct within 5 px", "share"),
    Column("correct within 10 px", "share"),
)
_METHOD_NOTES = (
    "From uint8 images to points in host memory, one pair at a time, features of both images included. "
    "geometric and geometric-lite by Matcher.match; LightGlue's methods with up to "
    f"{KEYPOINTS:,} keypoints. Memory is beyond images and weights.",
)

Path = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Images (2B, 3, H, W) uint8 to points0, points1 (B, K, 2) and is_mutual (B, K)."""


def measure(settings: Settings) -> Part:
    """Pairs per second, one at a time and, on a CUDA device, 32 at a time."""
    settings.report(f"match: loading {settings.weights}")
    network = load_network(settings.weights, settings.device)
    pair = (read_example_images(settings.image_hw, torch.device("cpu")) * 255).round().to(torch.uint8)
    counts = [1] if not settings.is_cuda else [1, 2 if settings.is_quick else 32]
    rows: list[tuple[Cell, ...]] = []
    encoder: Encode = CpuEncoder(network)
    if settings.is_cuda:
        encoder = CudaEncoder(network, use_compiler=None if settings.is_thorough else False)
    for count in counts:
        settings.report(f"match: both paths, {count} at once")
        rows += _measure_paths(_list_paths(network, encoder, count, settings), pair, count, settings)
    settings.report("match: Matcher.match")
    matchers = _list_matchers(settings)
    for _ in range(
        LAZY_CAPTURE.eager_passes if settings.is_cuda else 0
    ):  # until their CUDA graphs are captured
        for match in matchers.values():
            match(pair)
    rows += _measure_paths(matchers, pair, 1, settings)
    height, width = settings.image_hw
    title = f"Pairs of {width} × {height} to {_MATCHES:,} mutual matches, {settings.weights}"
    notes = (*_NOTES, _CUDA_NOTE) if settings.is_cuda else _NOTES
    return Part((Table(title, _COLUMNS, tuple(rows), notes), _measure_methods(pair, settings)))


def _measure_methods(pair: Tensor, settings: Settings) -> Table:
    """Whole pairs by ucn and by other methods, as far as they can run here."""
    paths, notes = _list_methods(settings)
    rows: list[tuple[Cell, ...]] = []
    for name, path in paths.items():
        settings.report(f"match: {name}")
        work = partial(path, pair)
        for _ in range(LAZY_CAPTURE.eager_passes if settings.is_cuda else 0):
            work()
        ms = time_in_turns({name: work}, settings.effort)[name]
        memory = measure_memory(work, settings.device)
        points0, points1 = (points[0] for points in path(pair)[:2])
        shares = score_example(points0, points1, settings.image_hw, (3, 5, 10))
        rows.append((name, ms, memory, len(points0), *shares))
    height, width = settings.image_hw
    title = f"Pairs of {width} × {height}, from pixels to matches, by method"
    return Table(title, _METHOD_COLUMNS, tuple(rows), (*_METHOD_NOTES, *notes))


def _list_methods(settings: Settings) -> tuple[dict[str, Path], list[str]]:
    """Methods by their row, and why others cannot run here."""
    device = str(settings.device)
    paths = {name: _make_matcher("auto", replace(settings, weights=name)) for name in _OWN_WEIGHTS}
    sift = KeypointMethod(
        name="sift", title="", key={}, extractor=SiftKeypoints(_SIFT_KEYPOINTS), ratio=RATIO
    )
    paths[f"SIFT, {_SIFT_KEYPOINTS:,} keypoints, ratio test (OpenCV)"] = _wrap_method(sift)
    if settings.xfeat is not None:
        found = BASELINES.find("xfeat", MethodFiles(xfeat=settings.xfeat), kind="sparse")
        paths["XFeat's dense descriptors at corners (onnxruntime)"] = _wrap_method(found.load(device))
    skipped = []
    if not explain_unavailable("xfeat-lighterglue"):
        extractor = LearnedKeypoints("xfeat-lighterglue", device)
        xfeat = KeypointMethod(name="xfeat", title="", key={}, extractor=extractor)
        paths[f"XFeat, {KEYPOINTS:,} keypoints, mutual nearest neighbours"] = _wrap_method(xfeat)
    for name in LIGHTGLUE:
        try:
            paths[name] = _wrap_method(BASELINES.find(name, kind="sparse").load(device))
        except UnavailableError as error:
            skipped.append(f"Not measured: {error.reason}.")
    return paths, skipped


def _wrap_method(method: Method) -> Path:
    @torch.no_grad()
    def match(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = method.match(*(method.extract(image.float() / 255) for image in pixels))
        points0, points1 = found.points0.cpu(), found.points1.cpu()
        return points0[None], points1[None], torch.ones(1, len(points0), dtype=torch.bool)

    return match


def _list_paths(
    network: CorrespondenceNetwork, encoder: Encode, count: int, settings: Settings
) -> dict[str, Path]:
    reference: Encode = partial(run_reference, network)
    fast: Encode = encoder
    if settings.is_cuda:
        reference = partial(encode_in_chunks, reference)
        fast = encoder if count == 1 else partial(encode_in_chunks, encoder)

    def match_without_kernels(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with without_fused():
            return _match_batch(pixels, reference, network, settings.device)

    path = partial(_match_batch, encode=fast, network=network, device=settings.device)
    return {"plain": match_without_kernels, "fast path": path}


@torch.no_grad()
def _match_batch(
    pixels: Tensor, encode: Encode, network: CorrespondenceNetwork, device: torch.device, keep: int = _MATCHES
) -> tuple[Tensor, Tensor, Tensor]:
    """The best mutual matches of image pairs, from uint8 images to points in host memory.

    Corners of view 0 are matched to their nearest cell of view 1, and that cell to its nearest cell of view
    0. A match is mutual where the round-trip error is at most `_TOLERANCE_PIXELS`.

    Args:
        pixels: (2B, 3, H, W) uint8, the B images of view 0, then those of view 1.
        encode: images to descriptors.
        network: gives stride and offset of the feature map.
        device: where to compute.
        keep: matches per pair, mutual ones first.

    Returns:
        points0 and points1 (B, keep, 2), and is_mutual (B, keep).
    """
    images = pixels.to(device, non_blocking=True).float() / 255
    size_hw, B = (images.shape[-2], images.shape[-1]), len(images) // 2
    features = encode(images).float()
    map0 = FeatureMap(features[:B], network.stride, network.offset, size_hw)
    rows = features.flatten(2).transpose(1, 2).contiguous()  # (2B, h * w, D)
    points0, strengths = strongest_corners(images[:B], _CORNERS)
    queries = sample_descriptors(map0, points0).contiguous()
    forward = nearest(queries, rows[B:])
    cells1 = forward.indices[..., 0].clamp_min(0)  # (B, N)
    backward = nearest(rows[B:].gather(1, cells1[..., None].expand(-1, -1, rows.shape[-1])), rows[:B])
    w = features.shape[-1]
    points1, returned = (
        torch.stack([cells % w, cells // w], dim=-1) * float(network.stride) + network.offset
        for cells in (cells1, backward.indices[..., 0].clamp_min(0))
    )
    is_mutual = ((returned - points0).norm(dim=-1) <= _TOLERANCE_PIXELS) & (strengths > 0)
    costs = forward.distances[..., 0] + 10.0 * ~is_mutual
    order = costs.argsort(dim=1)[:, :keep]
    best = order[..., None].expand(-1, -1, 2)
    return points0.gather(1, best).cpu(), points1.gather(1, best).cpu(), is_mutual.gather(1, order).cpu()


def encode_in_chunks(encode: Encode, images: Tensor) -> Tensor:
    """Descriptors of many images, in batches of `_CHUNK`."""
    return torch.cat([encode(part) for part in torch.split(images, _CHUNK)])


def score_example(
    points0: Tensor, points1: Tensor, size_hw: tuple[int, int], limits: Sequence[float] = (5, 10)
) -> tuple[float, ...]:
    """Shares of matches of the resized bundled pair with errors of at most some limits, in pixels."""
    disparity = example_pair().disparity
    scale = resize_scale(size_hw, (disparity.shape[0], disparity.shape[1]))
    moved = [resize_points(points.float(), scale).numpy() for points in (points0, points1)]
    errors = disparity_errors(moved[0], moved[1], disparity) / np.float32(max(scale))
    errors = errors[~np.isnan(errors)]
    if not len(errors):
        return (math.nan,) * len(limits)
    return tuple(float((errors <= limit).mean()) for limit in limits)


def _measure_paths(
    paths: dict[str, Path], pair: Tensor, count: int, settings: Settings
) -> list[tuple[Cell, ...]]:
    """Rows of several paths; ratios refer to the first one."""
    pixels, effort = pair.repeat_interleave(count, dim=0), settings.effort
    if settings.is_cuda:
        pixels = pixels.pin_memory()
        effort = Effort(3, 0.0, 3) if count > 1 else Effort(10, 0.0, 10)
    times = time_in_turns({name: partial(path, pixels) for name, path in paths.items()}, effort)
    plain_ms = next(iter(times.values()))
    rows: list[tuple[Cell, ...]] = []
    for name, path in paths.items():
        points0, points1, is_mutual = (values[0] for values in path(pixels))
        shares = score_example(points0[is_mutual], points1[is_mutual], settings.image_hw)
        ms, kept = times[name] / count, int(is_mutual.sum())
        rows.append((name, count, ms, 1000 / ms, plain_ms / times[name], kept, *shares))
    return rows


def _list_matchers(settings: Settings) -> dict[str, Path]:
    """`Matcher.match` with the reference engine and with the default one."""
    return {
        "Matcher.match, engine plain": _make_matcher("plain", settings),
        "Matcher.match": _make_matcher("auto", settings),
    }


def _make_matcher(engine: Engine, settings: Settings) -> Path:
    device = str(settings.device)
    matcher = Matcher.from_pretrained(settings.weights, config=MatchConfig(), device=device, engine=engine)

    def match(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = matcher.match(*(image.float() / 255 for image in pixels))
        points0, points1 = (torch.from_numpy(each)[None] for each in (found.points0, found.points1))
        return points0, points1, torch.ones(1, len(found), dtype=torch.bool)

    return match
