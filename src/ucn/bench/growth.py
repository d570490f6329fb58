"""How cost and memory grow: with the side of images, with keypoints, and with correspondences in training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ucn.bench.encode import LITE
from ucn.bench.report import Cell, Column, Part, Table, Target
from ucn.bench.samples import draw_images, draw_unit
from ucn.bench.settings import Settings
from ucn.bench.timing import Effort, Work, measure_memory, time_eager, time_in_turns
from ucn.config import LossConfig, MatchConfig
from ucn.matching.cells import match_cells
from ucn.matching.matcher import Matcher
from ucn.nn.tiling import count_encoded_pixels
from ucn.train.step import compute_loss
from ucn.types import FeatureMap, PairBatch
from ucn.weights import list_weights, load_weights

TOLERANCE = 0.15
"""By how much a fitted exponent may exceed its theory: small sizes do not yet fill a device."""
_SIDES: tuple[int, ...] = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_KEYPOINTS: tuple[int, ...] = (100, 300, 1000, 3000, 10_000, 20_000, 50_000)
_CORRESPONDENCES: tuple[int, ...] = (100, 300, 1000, 3000, 10_000, 20_000)
_PASSES = 2
"""Fewest passes of one size: one is timed, one watched for its memory."""
_COLUMNS = (
    Column("size", "count"),
    Column("time", "ms"),
    Column("extra memory", "MB"),
    Column("of it result", "MB"),
    Column("rounds", "count"),
    Column("work in theory", "ratio"),
)


@dataclass(frozen=True)
class Series:
    """Work of growing sizes.

    Attributes:
        name: what grows.
        title: the same, and what is done.
        count: how much there is to do of a size, in theory, in any unit; the cost may grow as this does.
        sizes: rising.
        make: the work of a size, and megabytes of its result.
        about: a sentence on what is counted, where that is not the size itself.
    """

    name: str
    title: str
    count: Callable[[int], float]
    sizes: Sequence[int]
    make: Callable[[int], tuple[Work, float]]
    about: str = ""


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a line through the upper half of the points, in logarithms, by least squares.

    Small sizes cost what a start costs; only large ones tell how cost grows. NaN for fewer than two points.
    """
    count = len(sizes)
    upper = slice(count // 2 if count > 3 else 0, None)
    x, y = ([math.log(value) for value in column[upper]] for column in (sizes, values))
    if len(x) < 2:
        return math.nan
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - mean_x) ** 2 for each in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def measure(settings: Settings) -> Part:
    """All series, each until its time is up."""
    tables, targets = [], []
    for series in list_series(settings):
        settings.report(f"growth: {series.title}")
        table, exponent, theory = measure_series(series, settings)
        tables.append(table)
        if not math.isnan(exponent):
            name = f"exponent of the time: {series.name}"
            wanted = theory + TOLERANCE
            targets.append(Target(name, "any machine", exponent, wanted, "number", is_least=False))
    return Part(tuple(tables), tuple(targets))


def measure_series(series: Series, settings: Settings) -> tuple[Table, float, float]:
    """Times and memory of rising sizes, the fitted exponent of the time, and that of the work in theory."""
    rows: list[tuple[Cell, ...]] = []
    begin, left_out = time.perf_counter(), list(series.sizes)
    for size in series.sizes:
        spent = time.perf_counter() - begin
        if rows and spent + _PASSES * _expect_seconds(rows[-1], size, series) > settings.limit_seconds:
            break
        work, result_mb = series.make(size)
        ms, rounds = _time(work, settings, settings.limit_seconds - spent)
        amount = series.count(size) / series.count(series.sizes[0])
        rows.append((size, ms, measure_memory(work, settings.device), result_mb, rounds, amount))
        left_out.remove(size)
    sizes, times, amounts = ([float(row[column] or 0) for row in rows] for column in (0, 1, 5))
    exponent, theory = fit_exponent(sizes, times), fit_exponent(sizes, amounts)
    fitted = sizes[len(sizes) // 2 if len(sizes) > 3 else 0 :]
    memory = [float(row[2]) for row in rows if row[2]]
    of_memory = fit_exponent(sizes, memory) if len(memory) == len(sizes) else math.nan
    notes = [
        f"Exponents fitted over sizes from {fitted[0]:,.0f} on: time {exponent:.2f}, extra memory "
        f"{of_memory:.2f}; in theory {theory:.2f}, and {TOLERANCE:g} more is tolerated.",
    ]
    if series.about:
        notes.append(series.about)
    if left_out:
        sizes_text = ", ".join(f"{size:,}" for size in left_out)
        notes.append(f"Not measured, since {settings.limit_seconds:g} s were up: {sizes_text}.")
    return Table(series.title, _COLUMNS, tuple(rows), tuple(notes)), exponent, theory


def _expect_seconds(row: tuple[Cell, ...], size: int, series: Series) -> float:
    """What one pass of the next size will take, by the row of the last one."""
    last_size, last_ms = int(row[0] or 1), float(row[1] or 0)
    return last_ms / 1000 * series.count(size) / series.count(last_size)


def _time(work: Work, settings: Settings, seconds_left: float) -> tuple[float, int]:
    """Median milliseconds, and of how many rounds: few of what takes long."""
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
    """What grows, one after the other, so that each holds its memory alone."""
    is_quick = settings.is_quick
    sides = (64, 96, 128) if is_quick else _SIDES
    keypoints = (10, 30, 100) if is_quick else _KEYPOINTS
    correspondences = (10, 30, 100) if is_quick else _CORRESPONDENCES
    name = choose_network()
    matcher = Matcher.from_pretrained(name, config=MatchConfig(), device=str(settings.device))
    tile_side, reach = matcher.config.tile_side, load_weights(name).model.reach
    yield Series(
        "side of images",
        f"Side of an image, pixels: encoding with {name}, in tiles beyond {tile_side:,}",
        lambda side: count_encoded_pixels((side, side), tile_side, reach),
        sides,
        partial(_make_encoding, settings=settings, matcher=matcher),
        "The work is the pixels that are encoded. They are those of the image, whose number grows with the "
        f"square of the side, and of tiles those of their borders, of {reach} pixels, once more.",
    )
    del matcher
    yield Series(
        "keypoints",
        "Keypoints matched with a map of 120 × 160 cells",
        float,
        keypoints,
        partial(_make_matching, settings=settings),
    )
    for title, loss in (
        ("InfoNCE", LossConfig(kind="infonce")),
        ("contrastive loss, hardest negatives", LossConfig(kind="contrastive", mining="hardest")),
    ):
        yield Series(
            f"correspondences, {title}",
            f"Correspondences of a training pair, 80 × 80 cells: {title}, forward and backward",
            float,
            correspondences,
            partial(_make_loss, settings=settings, loss=loss),
        )


def choose_network() -> str:
    """The small network where it is shipped, or the shipped one of the smallest file."""
    table = list_weights()
    if any(info.name == LITE for info in table):
        return LITE
    return min(table, key=lambda info: info.file_bytes).name


def _make_encoding(side: int, settings: Settings, matcher: Matcher) -> tuple[Work, float]:
    image = draw_images(1, (side, side), settings.seed, settings.device)
    small = matcher.encode(image[..., :64, :64])
    cells = (side // small.stride) ** 2
    return partial(matcher.encode, image), cells * small.features.shape[1] * 4 / 1e6


def _make_matching(count: int, settings: Settings) -> tuple[Work, float]:
    (map0, map1), size_hw = _draw_maps(120, 160, settings), (480, 640)
    points = _draw_points(count, size_hw, settings)[0]
    return partial(match_cells, map0, map1, points), count * 3 * 4 / 1e6


def _make_loss(count: int, settings: Settings, loss: LossConfig) -> tuple[Work, float]:
    maps, size_hw = _draw_maps(80, 80, settings), (320, 320)
    points = _draw_points(count, size_hw, settings)
    image = torch.zeros(1, 3, 1, 1, device=settings.device)
    is_valid = torch.ones(1, count, dtype=torch.bool, device=settings.device)
    batch = PairBatch(image, image, points, points, is_valid, ["random"])
    generator = torch.Generator(settings.device).manual_seed(settings.seed)

    def work() -> tuple[Tensor, ...]:
        leaves = [each.features.clone().requires_grad_() for each in maps]
        own = [FeatureMap(leaf, m.stride, m.offset, m.image_hw) for leaf, m in zip(leaves, maps, strict=True)]
        return torch.autograd.grad(compute_loss(own[0], own[1], batch, loss, generator), leaves)

    return work, 2 * maps[0].features.numel() * 4 / 1e6


def _draw_maps(h: int, w: int, settings: Settings) -> list[FeatureMap]:
    maps = []
    for view in range(2):
        rows = draw_unit(1, h, w, 128, seed=settings.seed + view, device=settings.device)
        maps.append(FeatureMap(rows.permute(0, 3, 1, 2).contiguous(), 4, 2.0, (4 * h, 4 * w)))
    return maps


def _draw_points(count: int, size_hw: tuple[int, int], settings: Settings) -> Tensor:
    """(1, N, 2) in pixels."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    height, width = size_hw
    limits = torch.tensor([width - 1.0, height - 1.0], device=settings.device)
    return torch.rand((1, count, 2), generator=generator, device=settings.device) * limits
