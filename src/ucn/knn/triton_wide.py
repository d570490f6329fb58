"""The second GPU program of the fused search, in Triton, with rows of the database on the left of a product.

As in `triton_rank`, but a step multiplies few rows with many queries, which stay in shared memory: rows are
read half as often, and several steps ahead. While one program compares, tensor cores work for another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton_prepare import LOWEST, SIZES, pad_count, read_places, start_next, wait_for_last
from ucn.knn.triton_splits import (
    count_tiles,
    find_lowest,
    find_near_tiles,
    find_row,
    is_far,
    judge_penalties,
    read_sorted,
    write_best,
)


@triton.jit  # type: ignore[untyped-decorator]
def _exclude(
    scores: tl.tensor,
    centres: tl.tensor,
    queries: tl.tensor,
    N: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
    M: tl.tensor,
    radius_squared: tl.tensor,
) -> tl.tensor:
    """Scores without those of rows too near the queries' places."""
    centre_x, centre_y = read_sorted(centres, queries, N)
    x, y = read_places(positions, rows, M)
    is_kept = is_far(centre_x[None, :], centre_y[None, :], x[:, None], y[:, None], radius_squared)
    return tl.where(is_kept, scores, LOWEST)


@triton.jit  # type: ignore[untyped-decorator]
def _rank_tiles(
    best: tl.tensor,
    right: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    centres: tl.tensor,
    queries: tl.tensor,
    N: tl.tensor,
    positions: tl.tensor,
    M: tl.tensor,
    radius_squared: tl.tensor,
    tiles: tl.tensor,
    start: tl.tensor,
    gap_start: tl.tensor,
    gap: tl.tensor,
    D_PAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXCLUDES: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """The best scores (COLUMNS // 16, 8, queries) of bins over some steps, from `start` on, without a gap."""
    depth, places = tl.arange(0, D_PAD), tl.arange(0, COLUMNS)
    # A thread holds the products of rows 8 apart in every 16: those get the two rows of a bin, which are half
    # a tile apart.
    order = places // 8 % 2 * (COLUMNS // 2) + places // 16 * 8 + places % 8
    offsets = order[:, None] * D_PAD + depth[None, :]
    tl.assume(tiles > 0)
    for step in tl.range(0, tiles, num_stages=STAGES):
        row = find_row(step, start, gap_start, gap, COLUMNS)
        scores = tl.dot(tl.load(copies + row.to(tl.int64) * D_PAD + offsets), right)
        if EXCLUDES:
            # An offset of zero that hangs on the step: else all centres were read before the steps, which
            # have not so many registers to spare.
            own_centres = centres + tl.minimum(row, 0) * 16
            scores = _exclude(scores, own_centres, queries, N, positions, row + order, M, radius_squared)
        parts = tl.reshape(scores, [COLUMNS // 16, 2, 8, right.shape[1]])
        if HAS_PENALTIES:
            own = tl.load(penalties + row + order)
            parts += tl.reshape(own, [COLUMNS // 16, 2, 8])[:, :, :, None]
        best = tl.maximum(best, tl.max(parts, axis=1))
    return best


@triton.jit  # type: ignore[untyped-decorator]
def _transpose_half(bits: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """Transposes integers (BINS, rows) below 65536 by products with the unit matrix, which are exact.

    Numbers below 256 are exact in float16, and sums of two products in float32.
    """
    places = tl.arange(0, BINS)
    unit = (places[:, None] == places[None, :]).to(tl.float16)
    high = tl.dot(tl.trans((bits >> 8).to(tl.float16)), unit * 256)
    return tl.dot(tl.trans((bits & 255).to(tl.float16)), unit, high).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _transpose(best: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """Scores (BINS, rows) as (rows, BINS), bit by bit.

    Threads hold few bins of many queries after the last product, and most of the time to find a query's best
    ones would go into asking others. Tensor cores hand each thread the bins of few queries.
    """
    bits = best.to(tl.int32, bitcast=True)
    high = _transpose_half((bits >> 16) & 65535, BINS)
    return ((high << 16) | _transpose_half(bits & 65535, BINS)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def rank_wide(
    query_copies: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    shortest: tl.tensor,
    extremes: tl.tensor,
    totals: tl.tensor,
    candidates: tl.tensor,
    sorted_centres: tl.tensor,
    positions: tl.tensor,
    heights: tl.tensor,
    radius_squared: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    tiles: tl.tensor,
    blocks: tl.tensor,
    database_blocks: tl.tensor,
    position_stride_item: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SLOTS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    SKIPS: tl.constexpr,
    TRANSPOSES: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """The best scores of a block of queries in a split: every so manieth tile of the database."""
    row_block, item = tl.program_id(0), tl.program_id(2).to(tl.int64)
    queries = row_block * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, D_PAD)
    start = item * tl.num_programs(1) * tiles * COLUMNS
    copies += start * D_PAD
    penalties += start
    wait_for_last(IS_HOPPER)
    start_next(IS_HOPPER)
    starts = query_copies + item * N * D_PAD + tl.minimum(queries, N - 1).to(tl.int64)[None, :] * D_PAD
    right = tl.load(starts + depth[:, None])
    own_tiles = count_tiles(M, COLUMNS)
    first_near, near_tiles = 0, 0
    if HAS_OUTSIDE:
        sorted_centres += item * pad_count(N) * 2
        _, y = read_sorted(sorted_centres, queries, N)
        lowest, highest = find_lowest(y, queries, N), -find_lowest(-y, queries, N)
        first_near, near_tiles = find_near_tiles(
            heights + item * database_blocks * 2, lowest, highest, radius_squared, own_tiles, COLUMNS, BLOCK
        )
        positions += item * position_stride_item
    is_equal, penalty = judge_penalties(
        extremes + item * blocks * 2, shortest + item * database_blocks,
        totals + item * tl.num_programs(1) * 3, M, own_tiles, COLUMNS, BLOCK, SKIPS,
    )  # fmt: skip
    best = tl.full([COLUMNS // 16, 8, ROWS], LOWEST, tl.float32)
    far_tiles = own_tiles - near_tiles
    if is_equal & (far_tiles > 0):
        best = _rank_tiles(
            best, right, copies, penalties, sorted_centres, queries, N, positions, M, radius_squared,
            far_tiles, 0, first_near, near_tiles, D_PAD, COLUMNS, False, False, STAGES,
        ) + penalty  # fmt: skip
    elif far_tiles > 0:
        best = _rank_tiles(
            best, right, copies, penalties, sorted_centres, queries, N, positions, M, radius_squared,
            far_tiles, 0, first_near, near_tiles, D_PAD, COLUMNS, False, True, STAGES,
        )  # fmt: skip
    if HAS_OUTSIDE:  # noqa: SIM102 - known when it is compiled, the other is not
        if near_tiles > 0:
            best = _rank_tiles(
                best, right, copies, penalties, sorted_centres, queries, N, positions, M, radius_squared,
                near_tiles, first_near, 0, 0, D_PAD, COLUMNS, True, True, 1,
            )  # fmt: skip
    best = tl.reshape(best, [COLUMNS // 2, ROWS])
    best = _transpose(best, COLUMNS // 2) if TRANSPOSES else tl.trans(best)
    write_best(best, candidates, queries, N, item, COLUMNS // 2, SLOTS)
