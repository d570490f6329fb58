"""Device functions of `rank`: the tiles of a split, which of them lie near centres, and its output.

A tile is a block of consecutive database rows; with n splits, a split is every n-th tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton.prepare import LOWEST, bound_heights

# Thread blocks that share the work of finding the largest norm and rounding error.
PARTS = tl.constexpr(8)

# The most tiles of a split.
MAX_TILES = tl.constexpr(32)


@triton.jit
def find_row(step: tl.tensor, gap_start: tl.tensor, gap: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """The first database row of a step; steps from `gap_start` on skip `gap` tiles."""
    tile = step + tl.where(step >= gap_start, gap, 0)
    return (tile * tl.num_programs(1) + tl.program_id(1)) * COLUMNS


@triton.jit
def count_tiles(M: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """The number of tiles of this split that begin before the last database row."""
    return tl.cdiv(tl.cdiv(M, COLUMNS) - tl.program_id(1), tl.num_programs(1))


@triton.jit
def is_far(
    centre_x: tl.tensor, centre_y: tl.tensor, x: tl.tensor, y: tl.tensor, radius_squared: tl.tensor
) -> tl.tensor:
    """Whether positions lie outside the radius or are NaN; with `fma`, so that all kernels round alike."""
    across, down = centre_x - x, centre_y - y
    is_near = tl.fma(across, across, down * down) <= radius_squared
    return is_near == 0


@triton.jit
def find_heights(heights: tl.tensor, first_row: tl.tensor, end_row: tl.tensor) -> tl.tensor:
    """Bounds of the heights of sorted rows, widened by the tolerance of the sort."""
    lowest, highest = (
        bound_heights(tl.load(heights + first_row)),
        bound_heights(tl.load(heights + end_row - 1)),
    )
    return lowest - tl.abs(lowest) * 0.001, highest + tl.abs(highest) * 0.001


@triton.jit
def find_near_tiles(
    heights: tl.tensor,
    lowest: tl.tensor,
    highest: tl.tensor,
    radius_squared: tl.tensor,
    tiles: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The first step with positions near the centres between two heights, and the number of such steps.

    In a feature map, whose rows are in order of height, there are few.
    """
    # One block of each tile at a time: every warp has all tiles, and need not wait for other warps.
    steps = tl.arange(0, MAX_TILES)
    blocks = (steps * tl.num_programs(1) + tl.program_id(1)) * (COLUMNS // BLOCK)
    low = tl.full([MAX_TILES], float("inf"), tl.float32)
    high = tl.full([MAX_TILES], -float("inf"), tl.float32)
    for part in tl.static_range(COLUMNS // BLOCK):
        bounds = heights + (blocks + part) * 2
        low = tl.minimum(low, tl.load(bounds, mask=steps < tiles, other=float("inf")))
        high = tl.maximum(high, tl.load(bounds + 1, mask=steps < tiles, other=-float("inf")))
    gap = tl.maximum(tl.maximum(low - highest, lowest - high), 0.0)
    # Slightly more than `is_far`, to allow for its rounding. Between infinite heights the gap is NaN or 0.
    is_near = (steps < tiles) & (gap * gap <= radius_squared * 1.0001)
    first_near = tl.min(tl.where(is_near, steps, tiles), axis=0)
    return first_near, tl.maximum(tl.max(tl.where(is_near, steps + 1, 0), axis=0) - first_near, 0)


@triton.jit
def write_totals(extremes: tl.tensor, totals: tl.tensor, database_blocks: tl.tensor) -> None:
    """Writes the largest norm and rounding error of database rows, in up to `PARTS` parts.

    The first thread blocks of the last split do this, since it may have a step less than the others.
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


@triton.jit
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
    """Writes the best scores of `SLOTS` bins of a split, with the index of the bin in the last bits.

    `own_rows` are the indices of queries before they were sorted.
    """
    packed = (best.to(tl.int32, bitcast=True) & (-BINS)) | tl.arange(0, BINS)[None, :]
    # A thread holds pairs of bins. Only the better of a pair is compared, until it is taken.
    pairs = tl.reshape(packed.to(tl.float32, bitcast=True), [best.shape[0], 2, BINS // 2])
    better, worse = tl.max(pairs, axis=1), tl.min(pairs, axis=1)
    targets = candidates + ((item * N + own_rows) * tl.num_programs(1) + tl.program_id(1)) * SLOTS
    for slot in tl.static_range(SLOTS):
        top = tl.max(better, axis=1)
        tl.store(targets + slot, top, mask=rows < N)
        is_top = better == top[:, None]
        better, worse = tl.where(is_top, worse, better), tl.where(is_top, LOWEST, worse)
