"""What programs that rank share: the tiles of a split, what is known of its rows, and which are near places.

A tile is some rows of the database, a split every so manieth tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton.prepare import LOWEST, bound_heights

# Programs that share the work of finding the largest length and rounding.
PARTS = tl.constexpr(8)

# Tiles that a split has at most.
MOST_TILES = tl.constexpr(32)


@triton.jit  # type: ignore[untyped-decorator]
def find_row(step: tl.tensor, gap_start: tl.tensor, gap: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """The first database row of a step; steps from `gap_start` on are `gap` tiles farther."""
    tile = step + tl.where(step >= gap_start, gap, 0)
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
def find_heights(heights: tl.tensor, first_row: tl.tensor, end_row: tl.tensor) -> tl.tensor:
    """Bounds of sorted heights from one row to another, wide enough for how they were sorted."""
    lowest, highest = (
        bound_heights(tl.load(heights + first_row)),
        bound_heights(tl.load(heights + end_row - 1)),
    )
    return lowest - tl.abs(lowest) * 0.001, highest + tl.abs(highest) * 0.001


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
    # A block of each tile at a time: every warp has all tiles, and need not wait for others.
    steps = tl.arange(0, MOST_TILES)
    blocks = (steps * tl.num_programs(1) + tl.program_id(1)) * (COLUMNS // BLOCK)
    low = tl.full([MOST_TILES], float("inf"), tl.float32)
    high = tl.full([MOST_TILES], -float("inf"), tl.float32)
    for part in tl.static_range(COLUMNS // BLOCK):
        bounds = heights + (blocks + part) * 2
        low = tl.minimum(low, tl.load(bounds, mask=steps < tiles, other=float("inf")))
        high = tl.maximum(high, tl.load(bounds + 1, mask=steps < tiles, other=-float("inf")))
    gap = tl.maximum(tl.maximum(low - highest, lowest - high), 0.0)
    # A little more than `is_far` says, whatever it rounds. Between infinite heights there may be no gap.
    is_near = (steps < tiles) & (gap * gap <= radius_squared * 1.0001)
    first_near = tl.min(tl.where(is_near, steps, tiles), axis=0)
    return first_near, tl.maximum(tl.max(tl.where(is_near, steps + 1, 0), axis=0) - first_near, 0)


@triton.jit  # type: ignore[untyped-decorator]
def write_totals(extremes: tl.tensor, totals: tl.tensor, database_blocks: tl.tensor) -> None:
    """Writes the largest length and rounding of database rows, in parts, of which some programs have one.

    These are programs of the last split, which has a step less than the first where not all have as many.
    """
    part = tl.program_id(0)
    if (part < PARTS) & (tl.program_id(1) == tl.num_programs(1) - 1):
        largest = tl.zeros([256], tl.float32)
        lost = tl.zeros([256], tl.float32)
        for start in range(part * 256, database_blocks, tl.minimum(tl.num_programs(0), PARTS) * 256):
            blocks = start + tl.arange(0, 256)
            is_block = blocks < database_blocks
            largest = tl.maximum(largest, tl.load(extremes + blocks * 2, mask=is_block, other=0.0))
            lost = tl.maximum(lost, tl.load(extremes + blocks * 2 + 1, mask=is_block, other=0.0))
        tl.store(totals + part * 2, tl.max(largest, axis=0))
        tl.store(totals + part * 2 + 1, tl.max(lost, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def write_best(
    best: tl.tensor,
    candidates: tl.tensor,
    rows: tl.tensor,
    own_rows: tl.tensor,
    N: tl.tensor,
    item: tl.tensor,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    """The best scores of `SLOTS` bins of a split, with the bin's number in the last bits of its score.

    `own_rows` are the numbers of queries before they were sorted.
    """
    packed = (best.to(tl.int32, bitcast=True) & (-BINS)) | tl.arange(0, BINS)[None, :]
    # Of two bins, both of which a thread holds, only the better is compared, until the other takes its place.
    pairs = tl.reshape(packed.to(tl.float32, bitcast=True), [best.shape[0], 2, BINS // 2])
    better, worse = tl.max(pairs, axis=1), tl.min(pairs, axis=1)
    targets = candidates + ((item * N + own_rows) * tl.num_programs(1) + tl.program_id(1)) * SLOTS
    for slot in tl.static_range(SLOTS):
        top = tl.max(better, axis=1)
        tl.store(targets + slot, top, mask=rows < N)
        is_top = better == top[:, None]
        better, worse = tl.where(is_top, worse, better), tl.where(is_top, LOWEST, worse)
