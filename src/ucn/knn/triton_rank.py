"""The second GPU program of the fused search, in Triton: scores, of which it keeps the best.

Scores are ``q·b - |b|²/2``, as in the torch search, of float16 copies that are scaled by one power of two.
A tile is some rows of the database, a split every so manieth tile, and a bin every `BINS`-th row of a split.
Only the best score of a bin is kept, so that ranking costs an addition and a maximum a pair besides the
product, and the matrix of scores is never written.
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
def _finish(values: tl.tensor, IS_HOPPER: tl.constexpr) -> tl.tensor:
    """The same values, computed before the next product begins, whose registers would else be copies."""
    if IS_HOPPER:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [values], dtype=tl.float32, is_pure=False, pack=1
        )
    return values


@triton.jit  # type: ignore[untyped-decorator]
def _exclude(
    scores: tl.tensor,
    centre_x: tl.tensor,
    centre_y: tl.tensor,
    positions: tl.tensor,
    columns: tl.tensor,
    count: tl.tensor,
    radius_squared: tl.tensor,
) -> tl.tensor:
    """Scores without those of columns too near the queries' places."""
    x, y = read_places(positions, columns, count)
    is_kept = is_far(centre_x[:, None], centre_y[:, None], x[None, :], y[None, :], radius_squared)
    return tl.where(is_kept, scores, LOWEST)


@triton.jit  # type: ignore[untyped-decorator]
def _keep_best(
    best: tl.tensor,
    scores: tl.tensor,
    penalties: tl.tensor,
    ROWS: tl.constexpr,
    BINS: tl.constexpr,
    FOLD: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
) -> tl.tensor:
    """The best of each bin so far and of a step, in which columns `BINS` apart share a bin.

    `penalties` are addresses.
    """
    # A thread holds all columns of its bins, so nothing moves. Were penalties added to the unshaped scores,
    # Triton would have the product start with them, which tensor cores cannot do beside another product.
    parts = tl.reshape(scores, [ROWS, FOLD, BINS])
    if HAS_PENALTIES:
        parts += tl.reshape(tl.load(penalties), [FOLD, BINS])[None, :, :]
    return tl.maximum(best, tl.max(parts, axis=1))


@triton.jit  # type: ignore[untyped-decorator]
def _rank_short(
    first_best: tl.tensor,
    second_best: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    first_x: tl.tensor,
    first_y: tl.tensor,
    second_x: tl.tensor,
    second_y: tl.tensor,
    positions: tl.tensor,
    radius_squared: tl.tensor,
    count: tl.tensor,
    tiles: tl.tensor,
    start: tl.tensor,
    gap_start: tl.tensor,
    gap: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    EXCLUDES: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    STAGES: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> tl.tensor:
    """The best scores of both blocks of queries over some steps: those from `start` on, without a gap.

    Triton waits for a product that is used in the same step. That of the second block is used in the next
    one, so tensor cores make it while the scores of the first block are compared.
    """
    BINS: tl.constexpr = COLUMNS // FOLD
    depth, columns = tl.arange(0, D_PAD), tl.arange(0, COLUMNS)
    offsets = columns[None, :] * D_PAD + depth[:, None]
    second_scores = tl.full([ROWS, COLUMNS], LOWEST, tl.float32)
    # Else the compiler keeps a way around the loop, and lets no product run beside others.
    tl.assume(tiles > 0)
    for step in tl.range(0, tiles, num_stages=STAGES):
        row = find_row(step, start, gap_start, gap, COLUMNS)
        last_row = find_row(tl.maximum(step - 1, 0), start, gap_start, gap, COLUMNS)
        rows = tl.load(copies + row.to(tl.int64) * D_PAD + offsets)
        first_scores = tl.dot(first, rows)
        if EXCLUDES:
            second_scores = _exclude(
                second_scores, second_x, second_y, positions, last_row + columns, count, radius_squared
            )
        second_best = _keep_best(
            second_best, second_scores, penalties + last_row + columns, ROWS, BINS, FOLD, HAS_PENALTIES
        )
        second_best = _finish(second_best, IS_HOPPER)
        second_scores = tl.dot(second, rows)
        if EXCLUDES:
            first_scores = _exclude(
                first_scores, first_x, first_y, positions, row + columns, count, radius_squared
            )
        first_best = _keep_best(
            first_best, first_scores, penalties + row + columns, ROWS, BINS, FOLD, HAS_PENALTIES
        )
    row = find_row(tiles - 1, start, gap_start, gap, COLUMNS)
    if EXCLUDES:
        second_scores = _exclude(
            second_scores, second_x, second_y, positions, row + columns, count, radius_squared
        )
    second_best = _keep_best(
        second_best, second_scores, penalties + row + columns, ROWS, BINS, FOLD, HAS_PENALTIES
    )
    return first_best, second_best


@triton.jit  # type: ignore[untyped-decorator]
def _rank_near_and_far(
    first_starts: tl.tensor,
    second_starts: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    first_x: tl.tensor,
    first_y: tl.tensor,
    second_x: tl.tensor,
    second_y: tl.tensor,
    positions: tl.tensor,
    radius_squared: tl.tensor,
    count: tl.tensor,
    tiles: tl.tensor,
    first_near: tl.tensor,
    near_tiles: tl.tensor,
    is_equal: tl.tensor,
    penalty: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    STAGES: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> tl.tensor:
    """The best scores of both blocks of queries: first over steps with no place to exclude, then the others.

    Where penalties are about equal, one is added to what was found without them.
    """
    depth = tl.arange(0, D_PAD)[None, :]
    first, second = tl.load(first_starts + depth), tl.load(second_starts + depth)
    first_best = tl.full([ROWS, COLUMNS // FOLD], LOWEST, tl.float32)
    second_best = tl.full([ROWS, COLUMNS // FOLD], LOWEST, tl.float32)
    far_tiles = tiles - near_tiles
    if is_equal & (far_tiles > 0):
        first_best, second_best = _rank_short(
            first_best, second_best, first, second, copies, penalties, first_x, first_y, second_x,
            second_y, positions, radius_squared, count, far_tiles, 0, first_near, near_tiles,
            D_PAD, ROWS, COLUMNS, FOLD, False, False, STAGES, IS_HOPPER,
        )  # fmt: skip
        first_best, second_best = first_best + penalty, second_best + penalty
    elif far_tiles > 0:
        first_best, second_best = _rank_short(
            first_best, second_best, first, second, copies, penalties, first_x, first_y, second_x,
            second_y, positions, radius_squared, count, far_tiles, 0, first_near, near_tiles,
            D_PAD, ROWS, COLUMNS, FOLD, False, True, STAGES, IS_HOPPER,
        )  # fmt: skip
    if HAS_OUTSIDE:  # noqa: SIM102 - known when it is compiled, the other is not
        if near_tiles > 0:
            first_best, second_best = _rank_short(
                first_best, second_best, first, second, copies, penalties, first_x, first_y, second_x,
                second_y, positions, radius_squared, count, near_tiles, first_near, 0, 0,
                D_PAD, ROWS, COLUMNS, FOLD, True, True, STAGES, IS_HOPPER,
            )  # fmt: skip
    return first_best, second_best


@triton.jit  # type: ignore[untyped-decorator]
def _rank_long(
    row_starts: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    centre_x: tl.tensor,
    centre_y: tl.tensor,
    positions: tl.tensor,
    radius_squared: tl.tensor,
    count: tl.tensor,
    tiles: tl.tensor,
    first_near: tl.tensor,
    near_tiles: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """The best scores of one block of queries, which are read anew in each step."""
    BINS: tl.constexpr = COLUMNS // FOLD
    depth, columns = tl.arange(0, DEPTH), tl.arange(0, COLUMNS)
    offsets = columns[None, :] * D_PAD + depth[:, None]
    best = tl.full([ROWS, BINS], LOWEST, tl.float32)
    for tile in range(0, tiles):
        row = find_row(tile, 0, 0, 0, COLUMNS)
        row_copies = copies + row.to(tl.int64) * D_PAD
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in tl.range(0, D_PAD, DEPTH, num_stages=STAGES):
            query = tl.load(row_starts + start + depth[None, :])
            scores = tl.dot(query, tl.load(row_copies + start + offsets), scores)
        if HAS_OUTSIDE:  # noqa: SIM102 - known when it is compiled, the other is not
            if (tile >= first_near) & (tile < first_near + near_tiles):
                scores = _exclude(scores, centre_x, centre_y, positions, row + columns, count, radius_squared)
        best = _keep_best(best, scores, penalties + row + columns, ROWS, BINS, FOLD, True)
    return best


@triton.jit  # type: ignore[untyped-decorator]
def _find_near(
    centres: tl.tensor,
    heights: tl.tensor,
    first_rows: tl.tensor,
    second_rows: tl.tensor,
    radius_squared: tl.tensor,
    N: tl.tensor,
    tiles: tl.tensor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The places of both blocks of queries, the first step with places near them, and how many follow."""
    first_x, first_y = read_sorted(centres, first_rows, N)
    second_x, second_y = read_sorted(centres, second_rows, N)
    lowest = tl.minimum(find_lowest(first_y, first_rows, N), find_lowest(second_y, second_rows, N))
    highest = -tl.minimum(find_lowest(-first_y, first_rows, N), find_lowest(-second_y, second_rows, N))
    first_near, near_tiles = find_near_tiles(heights, lowest, highest, radius_squared, tiles, COLUMNS, BLOCK)
    return first_x, first_y, second_x, second_y, first_near, near_tiles


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def rank(
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
    FOLD: tl.constexpr,
    DEPTH: tl.constexpr,
    SLOTS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    SKIPS: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """The best scores of two blocks of queries in a split: every so manieth tile of the database."""
    BINS: tl.constexpr = COLUMNS // FOLD
    row_block, item = tl.program_id(0), tl.program_id(2).to(tl.int64)
    wait_for_last(IS_HOPPER)
    start_next(IS_HOPPER)
    first_rows = row_block * (2 * ROWS) + tl.arange(0, ROWS)
    second_rows = first_rows + ROWS
    query_copies += item * N * D_PAD
    first_starts = query_copies + tl.minimum(first_rows, N - 1).to(tl.int64)[:, None] * D_PAD
    second_starts = query_copies + tl.minimum(second_rows, N - 1).to(tl.int64)[:, None] * D_PAD
    start = item * tl.num_programs(1) * tiles * COLUMNS
    copies += start * D_PAD
    penalties += start
    own_tiles = count_tiles(M, COLUMNS)
    is_equal, penalty = judge_penalties(
        extremes + item * blocks * 2, shortest + item * database_blocks,
        totals + item * tl.num_programs(1) * 3, M, own_tiles, COLUMNS, BLOCK, SKIPS,
    )  # fmt: skip
    first_x, first_y = 0.0, 0.0
    second_x, second_y = 0.0, 0.0
    first_near, near_tiles = 0, 0
    if HAS_OUTSIDE:
        first_x, first_y, second_x, second_y, first_near, near_tiles = _find_near(
            sorted_centres + item * pad_count(N) * 2, heights + item * database_blocks * 2, first_rows,
            second_rows, radius_squared, N, own_tiles, COLUMNS, BLOCK,
        )  # fmt: skip
        positions += item * position_stride_item
    if D_PAD == DEPTH:
        first_best, second_best = _rank_near_and_far(
            first_starts, second_starts, copies, penalties, first_x, first_y, second_x, second_y, positions,
            radius_squared, M, own_tiles, first_near, near_tiles, is_equal, penalty, D_PAD, ROWS, COLUMNS,
            FOLD, HAS_OUTSIDE, STAGES, IS_HOPPER,
        )  # fmt: skip
    else:
        first_best = _rank_long(
            first_starts, copies, penalties, first_x, first_y, positions, radius_squared, M, own_tiles,
            first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, DEPTH, HAS_OUTSIDE, STAGES,
        )  # fmt: skip
        second_best = _rank_long(
            second_starts, copies, penalties, second_x, second_y, positions, radius_squared, M, own_tiles,
            first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, DEPTH, HAS_OUTSIDE, STAGES,
        )  # fmt: skip
    write_best(first_best, candidates, first_rows, N, item, BINS, SLOTS)
    write_best(second_best, candidates, second_rows, N, item, BINS, SLOTS)
