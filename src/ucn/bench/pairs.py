"""End to end: pairs of images to their mutual matches, by the fast path and by the plain one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ucn.bench.encode import run_plainly
from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.samples import Encode, load_network, read_example_images
from ucn.bench.settings import Settings
from ucn.bench.timing import time_in_turns
from ucn.config import MatchConfig
from ucn.data.example import disparity_errors, example_pair
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.knn import nearest
from ucn.matching.keypoints import strongest_corners
from ucn.matching.matcher import Matcher
from ucn.nn import CorrespondenceNetwork
from ucn.nn.encoder import PATIENT, Engine, FastEncoder
from ucn.runtime.kernels import without_fused
from ucn.types import FeatureMap, Matches

MATCHES = 2000
_CORNERS = 4096
_TOLERANCE_PIXELS = 6.0
"""How far the way back may miss its start: as far as the corner of the next cell."""
_CHUNK = 8
"""Images that a CUDA device encodes at once: more do not make it faster."""
_ABOUT_GRAPHS = (
    "The fast path is captured in CUDA graphs, and compiled with --thorough; Matcher.match is not."
)
_COLUMNS = (
    Column("path"),
    Column("pairs at once", "count"),
    Column("time of a pair", "ms"),
    Column("pairs", "rate"),
    Column("plain ÷ this", "ratio"),
    Column("matches of a pair", "count"),
    Column("right within 5 px", "share"),
    Column("right within 10 px", "share"),
)

Path = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""As `match_pairs`: pairs (2B, 3, H, W) uint8 to matches (B, K, 2) of both, and which (B, K) are mutual."""


@dataclass(frozen=True)
class _Measured:
    """One row: which path, how many pairs at once, and the milliseconds of all of them."""

    name: str
    count: int
    milliseconds: float
    path: Path


@torch.no_grad()
def match_pairs(
    pixels: Tensor, encode: Encode, network: CorrespondenceNetwork, device: torch.device, keep: int = MATCHES
) -> tuple[Tensor, Tensor, Tensor]:
    """The best mutual matches of pairs, from bytes in the main memory to points in it.

    Corners of view 0 take the nearest cell of all in view 1, and those the nearest cell of all in view 0; a
    match is mutual where that way back ends near the corner.

    Args:
        pixels: (2B, 3, H, W) uint8, B first views and then B second ones.
        encode: images to descriptors.
        network: says where cells lie.
        device: where to work.
        keep: how many matches of each pair, mutual ones first.

    Returns:
        Points (B, keep, 2) of view 0 and of view 1, and whether (B, keep) they are mutual.
    """
    images = pixels.to(device, non_blocking=True).float() / 255
    size_hw, B = (images.shape[-2], images.shape[-1]), len(images) // 2
    features = encode(images).float()
    map0 = FeatureMap(features[:B], network.stride, network.offset, size_hw)
    rows = features.flatten(2).transpose(1, 2).contiguous()  # (2B, h * w, D)
    starts, strengths = strongest_corners(images[:B], _CORNERS)
    queries = sample_descriptors(map0, starts).contiguous()
    there = nearest(queries, rows[B:])
    found = there.indices[..., 0].clamp_min(0)  # (B, N)
    back = nearest(rows[B:].gather(1, found[..., None].expand(-1, -1, rows.shape[-1])), rows[:B])
    w = features.shape[-1]
    ends, returned = (
        torch.stack([cells % w, cells // w], dim=-1) * float(network.stride) + network.offset
        for cells in (found, back.indices[..., 0].clamp_min(0))
    )
    is_mutual = ((returned - starts).norm(dim=-1) <= _TOLERANCE_PIXELS) & (strengths > 0)
    costs = there.distances[..., 0] + 10.0 * ~is_mutual
    order = costs.argsort(dim=1)[:, :keep]
    best = order[..., None].expand(-1, -1, 2)
    return starts.gather(1, best).cpu(), ends.gather(1, best).cpu(), is_mutual.gather(1, order).cpu()


def encode_in_chunks(encode: Encode, images: Tensor) -> Tensor:
    """Descriptors of many images, a few at a time."""
    return torch.cat([encode(part) for part in torch.split(images, _CHUNK)])


def score_pair(points0: Tensor, points1: Tensor, size_hw: tuple[int, int]) -> tuple[float, float]:
    """Shares of matches of the bundled pair, resized, within 5 and 10 pixels of their true places."""
    disparity = example_pair().disparity
    scale = resize_scale(size_hw, (disparity.shape[0], disparity.shape[1]))
    moved = [resize_points(points.float(), scale).numpy() for points in (points0, points1)]
    errors = disparity_errors(moved[0], moved[1], disparity) / np.float32(max(scale))
    errors = errors[~np.isnan(errors)]
    if not len(errors):
        return math.nan, math.nan
    return float((errors <= 5).mean()), float((errors <= 10).mean())


def measure(settings: Settings) -> Part:
    """Pairs a second at batch 1 and, on a CUDA device, 32."""
    device, weights = settings.device, settings.weights
    settings.report(f"pairs: loading {weights}")
    network = load_network(weights, device)
    pair = (read_example_images(settings.image_hw, torch.device("cpu")) * 255).round().to(torch.uint8)
    if settings.is_cuda:
        measured = _measure_cuda(network, pair, settings)
    else:
        measured = _measure_cpu(network, pair, settings)
    rows = _make_rows(measured, pair, settings)
    rows += _measure_matcher(pair, settings)
    height, width = settings.image_hw
    title = f"Pairs of {width} × {height} to {MATCHES:,} mutual matches, {weights}"
    notes = (
        "From bytes in the main memory to points in it: 4,096 corners of view 0, each against all cells of "
        "view 1, and all of those back against all cells of view 0. The bundled pair, whose truth is known.",
        "Matcher.match besides looks for rivals elsewhere, scores, and aligns matches by pixels; its share "
        "is of the matches that it keeps.",
        *([_ABOUT_GRAPHS] if settings.is_cuda else []),
    )
    return Part((Table(title, _COLUMNS, tuple(rows), notes),))


def _measure_cuda(network: CorrespondenceNetwork, pair: Tensor, settings: Settings) -> list[_Measured]:
    device, many = settings.device, 2 if settings.is_quick else 32
    pinned = {count: pair.repeat_interleave(count, dim=0).pin_memory() for count in (1, many)}
    plain = partial(_match_plainly, network=network, device=device)
    settings.report("pairs: capturing")
    encoder = FastEncoder(network, use_compiler=None if settings.is_thorough else False)
    fast = {
        1: partial(match_pairs, encode=encoder, network=network, device=device),
        many: partial(match_pairs, encode=partial(encode_in_chunks, encoder), network=network, device=device),
    }
    found = []
    for count, pixels in pinned.items():
        for name, path in (("plain", plain), ("fast path", fast[count])):
            settings.report(f"pairs: {name}, {count} at once")
            work = partial(path, pixels)
            work()
            found.append(_Measured(name, count, _time_wall(work, 3 if count > 1 else 10), path))
    return found


def _time_wall(work: Callable[[], object], rounds: int) -> float:
    """Median milliseconds; the work ends with a copy to the main memory, so that nothing is left running."""
    work()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    return float(np.median(times))


def _match_plainly(
    pixels: Tensor, network: CorrespondenceNetwork, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The same without fused programs, with the network as it stands in float32."""
    with without_fused():
        encode = partial(encode_in_chunks, partial(run_plainly, network))
        return match_pairs(pixels, encode, network, device)


def _measure_cpu(network: CorrespondenceNetwork, pair: Tensor, settings: Settings) -> list[_Measured]:
    encoder = FastEncoder(network)
    paths: dict[str, Path] = {
        "plain": partial(_match_plainly, network=network, device=settings.device),
        "fast path": partial(match_pairs, encode=encoder, network=network, device=settings.device),
    }
    settings.report("pairs: both paths in turns")
    times = time_in_turns({name: partial(path, pair) for name, path in paths.items()}, settings.effort)
    return [_Measured(name, 1, times[name], path) for name, path in paths.items()]


def _make_rows(measured: list[_Measured], pair: Tensor, settings: Settings) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    plain = {each.count: each.milliseconds for each in measured if each.name == "plain"}
    for each in measured:
        found = each.path(pair.repeat_interleave(each.count, dim=0))
        points0, points1, is_mutual = (values[0] for values in found)
        shares = score_pair(points0[is_mutual], points1[is_mutual], settings.image_hw)
        ms, kept = each.milliseconds, int(is_mutual.sum())
        ratio, rate = plain[each.count] / ms, 1000 * each.count / ms
        rows.append((each.name, each.count, ms / each.count, rate, ratio, kept, *shares))
    return rows


def _measure_matcher(pair: Tensor, settings: Settings) -> list[tuple[Cell, ...]]:
    """What a user calls, with everything that it does, by the reference and by the default engine."""
    settings.report("pairs: Matcher.match")
    images = [each.float() / 255 for each in pair]
    engines: dict[str, Engine] = {"Matcher.match, engine plain": "plain", "Matcher.match": "auto"}
    works = {
        name: partial(_make_matcher(engine, settings).match, *images) for name, engine in engines.items()
    }
    if settings.is_cuda:
        works = {name: _repeat(work) for name, work in works.items()}
    times = time_in_turns(works, settings.effort)  # each ends with a copy to the main memory
    plain = times["Matcher.match, engine plain"]
    rows: list[tuple[Cell, ...]] = []
    for name, work in works.items():
        matches, ms = work(), times[name]
        points0, points1 = (torch.from_numpy(each) for each in (matches.points0, matches.points1))
        shares = score_pair(points0, points1, settings.image_hw)
        rows.append((name, 1, ms, 1000 / ms, plain / ms, len(matches), *shares))
    return rows


def _make_matcher(engine: Engine, settings: Settings) -> Matcher:
    device = str(settings.device)
    return Matcher.from_pretrained(settings.weights, config=MatchConfig(), device=device, engine=engine)


def _repeat(work: partial[Matches]) -> partial[Matches]:
    """The same work, done often enough before that what is captured for it is."""
    for _ in range(PATIENT.after):
        work()
    return work
