"""What programs that rank share: the tiles of a split, what is known of its rows, and which are near places.

A tile is some rows of the database, a split every so manieth tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton_prepare import LOWEST, pad_count

# Penalties of a split count as one where half their spread is at most this much of the largest squared
# length. Float32 rows of unit length have a thousandth of it, and it is little beside what float16 rounds.
EQUAL = tl.constexpr(2e-5)


@triton.jit  # type: ignore[untyped-decorator]
def find_row(
    step: tl.tensor, start: tl.tensor, gap_start: tl.tensor, gap: tl.tensor, COLUMNS: tl.constexpr
) -> tl.tensor:
    """The first database row of a step; steps from `gap_start` on are `gap` tiles farther."""
    tile = start + step + tl.where(step >= gap_start, gap, 0)
    return (tile * tl.num_programs(1) + tl.program_id(1)) * COLUMNS


@triton.jit  # type: ignore[untyped-decorator]
def count_tiles(M: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """How many tiles of this split begin before the last database row."""
    return tl.cdiv(tl.cdiv(M, COLUMNS) - tl.program_id(1), tl.num_programs(1))


@triton.jit  # type: ignore[untyped-decorator]
def is_far(
    centre_x: tl.tensor, centre_y: tl.tensor, x: tl.tensor, y: tl.tensor, radius_squared: tl.tensor
) -> tl.tensor:
    """Whether places lie farther than the radius, or nowhere; written so that all programs round it alike."""
    across, down = centre_x - x, centre_y - y
    is_near = tl.fma(across, across, down * down) <= radius_squared
    return is_near == 0


@triton.jit  # type: ignore[untyped-decorator]
def read_sorted(centres: tl.tensor, rows: tl.tensor, N: tl.tensor) -> tl.tensor:
    """The x and y of sorted centres; any, where there are no rows."""
    return tl.load(centres + rows), tl.load(centres + pad_count(N) + rows)


@triton.jit  # type: ignore[untyped-decorator]
def find_lowest(y: tl.tensor, rows: tl.tensor, N: tl.tensor) -> tl.tensor:
    """The least y of rows that there are, without those that are nowhere."""
    return tl.min(tl.where((rows < N) & (y == y), y, float("inf")), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def find_near_tiles(
    heights: tl.tensor,
    lowest: tl.tensor,
    highest: tl.tensor,
    radius_squared: tl.tensor,
    tiles: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The first step with places near those of queries between two heights, and how many follow.

    In a feature map rows of about the same height stand together, so these are few steps.
    """
    parts = tl.arange(0, COLUMNS // BLOCK)[None, :]
    first = tl.full([32], 2**30, tl.int32)
    last = tl.full([32], -1, tl.int32)
    for start in range(0, tiles, 32):
        steps = start + tl.arange(0, 32)
        blocks = (steps * tl.num_programs(1) + tl.program_id(1))[:, None] * (COLUMNS // BLOCK) + parts
        is_step = (steps < tiles)[:, None]
        low = tl.min(tl.load(heights + blocks * 2, mask=is_step, other=float("inf")), axis=1)
        high = tl.max(tl.load(heights + blocks * 2 + 1, mask=is_step, other=-float("inf")), axis=1)
        gap = tl.maximum(tl.maximum(low - highest, lowest - high), 0.0)
        # A little more than `is_far` says, whatever it rounds.
        is_near = gap * gap <= radius_squared * 1.0001
        first = tl.where(is_near, tl.minimum(first, steps), first)
        last = tl.where(is_near, tl.maximum(last, steps), last)
    first_near = tl.minimum(tl.min(first, axis=0), tiles)
    return first_near, tl.maximum(tl.max(last, axis=0) + 1 - first_near, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _measure_split(
    extremes: tl.tensor, shortest: tl.tensor, tiles: tl.tensor, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The largest length of this split's rows, the largest rounding, and the least length."""
    parts = tl.arange(0, COLUMNS // BLOCK)[None, :]
    largest = tl.zeros([32, COLUMNS // BLOCK], tl.float32)
    lost = tl.zeros([32, COLUMNS // BLOCK], tl.float32)
    least = tl.full([32, COLUMNS // BLOCK], float("inf"), tl.float32)
    for start in range(0, tiles, 32):
        steps = start + tl.arange(0, 32)
        blocks = (steps * tl.num_programs(1) + tl.program_id(1))[:, None] * (COLUMNS // BLOCK) + parts
        is_step = (steps < tiles)[:, None]
        largest = tl.maximum(largest, tl.load(extremes + blocks * 2, mask=is_step, other=0.0))
        lost = tl.maximum(lost, tl.load(extremes + blocks * 2 + 1, mask=is_step, other=0.0))
        least = tl.minimum(least, tl.load(shortest + blocks, mask=is_step, other=float("inf")))
    largest, lost = tl.max(largest, axis=1), tl.max(lost, axis=1)
    return tl.max(largest, axis=0), tl.max(lost, axis=0), tl.min(tl.min(least, axis=1), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _write_totals(
    extremes: tl.tensor,
    shortest: tl.tensor,
    totals: tl.tensor,
    M: tl.tensor,
    tiles: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SKIPS: tl.constexpr,
) -> tl.tensor:
    """Writes what is known of a split. Whether penalties are about equal comes back, and the middle one."""
    largest, lost, least = _measure_split(extremes, shortest, tiles, COLUMNS, BLOCK)
    # No row's penalty is farther from the middle of the least and the largest.
    spread = 0.25 * (largest * largest - least * least)
    end = ((tiles - 1) * tl.num_programs(1) + tl.program_id(1) + 1) * COLUMNS
    is_equal = (end <= M) & (spread <= largest * largest * EQUAL)
    if tl.program_id(0) == 0:
        totals += tl.program_id(1) * 3
        tl.store(totals, largest)
        tl.store(totals + 1, lost)
        tl.store(totals + 2, tl.where(is_equal & SKIPS, spread, 0.0))
    return is_equal, -0.25 * (largest * largest + least * least)


@triton.jit  # type: ignore[untyped-decorator]
def judge_penalties(
    extremes: tl.tensor,
    shortest: tl.tensor,
    totals: tl.tensor,
    M: tl.tensor,
    tiles: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SKIPS: tl.constexpr,
) -> tl.tensor:
    """Whether a split may do without its rows' penalties, and the one to add to all its scores instead.

    It may where no row is missing, which a penalty marks, and lengths are about equal. A score is off by
    `spread` at most then, which `settle` adds to what rounding may change: the answer stays exact.
    """
    if SKIPS:
        return _write_totals(extremes, shortest, totals, M, tiles, COLUMNS, BLOCK, SKIPS)
    if tl.program_id(0) == 0:
        _write_totals(extremes, shortest, totals, M, tiles, COLUMNS, BLOCK, SKIPS)
    return False, 0.0


@triton.jit  # type: ignore[untyped-decorator]
def write_best(
    best: tl.tensor,
    candidates: tl.tensor,
    rows: tl.tensor,
    N: tl.tensor,
    item: tl.tensor,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    """The best scores of `SLOTS` bins of a split, with the bin's number in the last bits of its score."""
    packed = (best.to(tl.int32, bitcast=True) & (-BINS)) | tl.arange(0, BINS)[None, :]
    best = packed.to(tl.float32, bitcast=True)
    targets = candidates + ((item * N + rows) * tl.num_programs(1) + tl.program_id(1)) * SLOTS
    for slot in tl.static_range(SLOTS):
        top = tl.max(best, axis=1)
        tl.store(targets + slot, top, mask=rows < N)
        best = tl.where(best == top[:, None], LOWEST, best)
