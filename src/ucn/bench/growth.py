"""Scaling of time and memory: with image side, number of keypoints, and training correspondences."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.samples import sample_images, sample_unit_vectors
from ucn.bench.settings import Settings
from ucn.bench.timing import Effort, Work, measure_memory, time_eager, time_in_turns
from ucn.config import LossConfig, MatchConfig
from ucn.matching.cells import match_forward
from ucn.matching.matcher import Matcher
from ucn.nn.tiling import count_encoded_pixels
from ucn.train.step import compute_loss
from ucn.types import FeatureMap, PairBatch
from ucn.weights import load_weights

NETWORK = "geometric-lite"
"""Shipped weights that large images are encoded with."""
_SIDES: tuple[int, ...] = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_KEYPOINTS: tuple[int, ...] = (100, 300, 1000, 3000, 10_000, 20_000, 50_000)
_CORRESPONDENCES: tuple[int, ...] = (100, 300, 1000, 3000, 10_000, 20_000)
_COLUMNS = (
    Column("size", "count"),
    Column("time", "ms"),
    Column("extra memory", "MB"),
    Column("of which result", "MB"),
    Column("rounds", "count"),
    Column("theoretical work", "ratio"),
)


@dataclass(frozen=True)
class Series:
    """A function of growing inputs.

    Attributes:
        title: what grows, and what is computed.
        count: theoretical work of a size, in any unit.
        sizes: in increasing order.
        make: the function for a size, and the MB of its result.
        about: a sentence on the theoretical work, where it is not the size itself.
    """

    title: str
    count: Callable[[int], float]
    sizes: Sequence[int]
    make: Callable[[int], tuple[Work, float]]
    about: str = ""


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of a power law, fitted by least squares in log-log space to the upper half of the sizes.

    Small sizes are dominated by fixed costs. NaN for fewer than two points.
    """
    upper = slice(first_fitted(len(sizes)), None)
    x, y = ([math.log(value) for value in column[upper]] for column in (sizes, values))
    if len(x) < 2:
        return math.nan
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - mean_x) ** 2 for each in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def first_fitted(count: int) -> int:
    """Index of the first of `count` sizes that `fit_exponent` uses."""
    return count // 2 if count > 3 else 0


def measure(settings: Settings) -> Part:
    """Measures all series, each up to its time limit."""
    tables = []
    for series in list_series(settings):
        settings.report(f"growth: {series.title}")
        tables.append(measure_series(series, settings))
    return Part(tuple(tables))


def measure_series(series: Series, settings: Settings) -> Table:
    """Time and memory of each size, with the fitted exponents in the notes."""
    rows: list[tuple[Cell, ...]] = []
    begin, skipped = time.perf_counter(), list(series.sizes)
    for size in series.sizes:
        spent = time.perf_counter() - begin
        # One pass is timed, one measures memory.
        if rows and spent + 2 * _predict_seconds(rows[-1], size, series) > settings.limit_seconds:
            break
        work, result_mb = series.make(size)
        ms, rounds = _time(work, settings, settings.limit_seconds - spent)
        amount = series.count(size) / series.count(series.sizes[0])
        rows.append((size, ms, measure_memory(work, settings.device), result_mb, rounds, amount))
        skipped.remove(size)
    sizes, times, amounts = ([float(row[column] or 0) for row in rows] for column in (0, 1, 5))
    memory = [float(row[2]) for row in rows if row[2]]
    of_memory = fit_exponent(sizes, memory) if len(memory) == len(sizes) else math.nan
    notes = [
        f"Exponents fitted to sizes from {sizes[first_fitted(len(sizes))]:,.0f}: time "
        f"{fit_exponent(sizes, times):.2f}, extra memory {of_memory:.2f}, theoretical work "
        f"{fit_exponent(sizes, amounts):.2f}."
    ]
    if series.about:
        notes.append(series.about)
    if skipped:
        sizes_text = ", ".join(f"{size:,}" for size in skipped)
        notes.append(f"Not measured within the limit of {settings.limit_seconds:g} s: {sizes_text}.")
    return Table(series.title, _COLUMNS, tuple(rows), tuple(notes))


def _predict_seconds(row: tuple[Cell, ...], size: int, series: Series) -> float:
    """Seconds of one pass of the next size, from the row of the last one."""
    last_size, last_ms = int(row[0] or 1), float(row[1] or 0)
    return last_ms / 1000 * series.count(size) / series.count(last_size)


def _time(work: Work, settings: Settings, seconds_left: float) -> tuple[float, int]:
    """Median milliseconds and the number of rounds, fewer for long work."""
    if settings.is_cuda:
        return time_eager(work, rounds=5, passes=1), 5
    started = time.perf_counter()
    work()
    once = time.perf_counter() - started
    rounds = max(1, min(settings.effort.rounds, int(seconds_left / 8 / max(once, 1e-9))))
    if rounds == 1:
        return 1000 * once, 1
    return time_in_turns({"work": work}, Effort(rounds, 0.0, rounds))["work"], rounds


def list_series(settings: Settings) -> Iterable[Series]:
    """Yields one series after the other, so that each holds its memory alone."""
    is_quick = settings.is_quick
    loaded = load_weights(NETWORK)
    matcher = Matcher(loaded, config=MatchConfig(), device=str(settings.device))
    tile_side, reach = matcher.config.tile_side, loaded.model.reach
    yield Series(
        f"Side of an image, pixels: encoding with {NETWORK}, in tiles beyond {tile_side:,}",
        lambda side: count_encoded_pixels((side, side), tile_side, reach),
        (64, 96, 128) if is_quick else _SIDES,
        partial(_make_encoding, settings=settings, matcher=matcher),
        "The theoretical work is the number of encoded pixels: those of the image, and for tiles also their "
        f"overlapping margins of {reach} pixels.",
    )
    del matcher
    yield Series(
        "Keypoints matched with a map of 120 × 160 cells",
        float,
        (10, 30, 100) if is_quick else _KEYPOINTS,
        partial(_make_matching, settings=settings),
    )
    for title, loss in (
        ("InfoNCE", LossConfig(kind="infonce")),
        ("contrastive loss, hardest negatives", LossConfig(kind="contrastive", mining="hardest")),
    ):
        yield Series(
            f"Correspondences of a training pair, 80 × 80 cells: {title}, forward and backward",
            float,
            (10, 30, 100) if is_quick else _CORRESPONDENCES,
            partial(_make_loss, settings=settings, loss=loss),
        )


def _make_encoding(side: int, settings: Settings, matcher: Matcher) -> tuple[Work, float]:
    image = sample_images(1, (side, side), settings.seed, settings.device)
    small = matcher.encode(image[..., :64, :64])
    cells = (side // small.stride) ** 2
    return partial(matcher.encode, image), cells * small.features.shape[1] * 4 / 1e6


def _make_matching(count: int, settings: Settings) -> tuple[Work, float]:
    map0, map1 = _sample_maps(120, 160, settings)
    points = _sample_points(count, map0.image_hw, settings)[0]
    return partial(match_forward, map0, map1, points), count * 3 * 4 / 1e6


def _make_loss(count: int, settings: Settings, loss: LossConfig) -> tuple[Work, float]:
    maps = _sample_maps(80, 80, settings)
    points = _sample_points(count, maps[0].image_hw, settings)
    image = torch.zeros(1, 3, 1, 1, device=settings.device)
    is_valid = torch.ones(1, count, dtype=torch.bool, device=settings.device)
    batch = PairBatch(image, image, points, points, is_valid, ["random"])
    generator = torch.Generator(settings.device).manual_seed(settings.seed)

    def work() -> tuple[Tensor, ...]:
        leaves = [each.features.clone().requires_grad_() for each in maps]
        own = [FeatureMap(leaf, m.stride, m.offset, m.image_hw) for leaf, m in zip(leaves, maps, strict=True)]
        return torch.autograd.grad(compute_loss(own[0], own[1], batch, loss, generator), leaves)

    return work, 2 * maps[0].features.numel() * 4 / 1e6


def _sample_maps(h: int, w: int, settings: Settings) -> list[FeatureMap]:
    maps = []
    for view in range(2):
        rows = sample_unit_vectors(1, h, w, 128, seed=settings.seed + view, device=settings.device)
        maps.append(FeatureMap(rows.permute(0, 3, 1, 2).contiguous(), 4, 2.0, (4 * h, 4 * w)))
    return maps


def _sample_points(count: int, size_hw: tuple[int, int], settings: Settings) -> Tensor:
    """(1, N, 2) in pixels."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    height, width = size_hw
    limits = torch.tensor([width - 1.0, height - 1.0], device=settings.device)
    return torch.rand((1, count, 2), generator=generator, device=settings.device) * limits
