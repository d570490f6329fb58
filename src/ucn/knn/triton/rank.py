"""The second kernel of the fused search: scores of all rows, of which it keeps the best of each bin.

Scores are ``q·b - |b|²/2``, as in the reference, of float16 copies that are scaled by one power of two. A
tile is a block of consecutive database rows, a split every n-th tile for n splits, and a bin every `BINS`-th
row of a split. Only the best score of a bin is kept, so that ranking costs an addition and a maximum per pair
besides the product, and the matrix of scores is never written to memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton.prepare import LOWEST, SIZES, pad_count, start_next, unpack_positions, wait_for_previous
from ucn.knn.triton.splits import (
    PARTS,
    count_tiles,
    find_heights,
    find_near_tiles,
    find_row,
    is_far,
    write_best,
    write_totals,
)


@triton.jit
def _finish(values: tl.tensor, IS_HOPPER: tl.constexpr) -> tl.tensor:
    """The same values, computed before the next product starts; otherwise its registers would be copied."""
    if IS_HOPPER:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [values], dtype=tl.float32, is_pure=False, pack=1
        )
    return values


@triton.jit
def _exclude(
    scores: tl.tensor,
    centre_x: tl.tensor,
    centre_y: tl.tensor,
    packed_xy: tl.tensor,
    radius_squared: tl.tensor,
) -> tl.tensor:
    """Scores, `LOWEST` for columns whose positions lie within the radius of a query's centre."""
    x, y = unpack_positions(tl.load(packed_xy))
    is_kept = is_far(centre_x[:, None], centre_y[:, None], x[None, :], y[None, :], radius_squared)
    return tl.where(is_kept, scores, LOWEST)


@triton.jit
def _keep_best(
    best: tl.tensor,
    scores: tl.tensor,
    penalties: tl.tensor,
    ROWS: tl.constexpr,
    BINS: tl.constexpr,
    FOLD: tl.constexpr,
) -> tl.tensor:
    """The best of each bin so far and of this step, in which columns `BINS` apart share a bin.

    `penalties` are pointers.
    """
    # A thread holds all columns of its bins, so no data is exchanged. If penalties were added before the
    # reshape, Triton would use them as the product's accumulator, and tensor cores could not overlap
    # products.
    parts = tl.reshape(scores, [ROWS, FOLD, BINS])
    parts += tl.reshape(tl.load(penalties), [FOLD, BINS])[None, :, :]
    return tl.maximum(best, tl.max(parts, axis=1))


@triton.jit
def _rank_far(
    first_best: tl.tensor,
    second_best: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    tiles: tl.tensor,
    gap_start: tl.tensor,
    gap: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    STAGES: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> tl.tensor:
    """The best scores of both blocks of queries over all steps except those in a gap.

    Triton waits for a product that is used in the same step. The product of the second block is used in the
    next step, so tensor cores compute it while the scores of the first block are compared.
    """
    BINS: tl.constexpr = COLUMNS // FOLD
    depth, columns = tl.arange(0, D_PAD), tl.arange(0, COLUMNS)
    offsets = columns[None, :] * D_PAD + depth[:, None]
    second_scores = tl.full([ROWS, COLUMNS], LOWEST, tl.float32)
    # Without this the compiler keeps a branch around the loop and does not overlap products.
    tl.assume(tiles > 0)
    for step in tl.range(0, tiles, num_stages=STAGES):
        row = find_row(step, gap_start, gap, COLUMNS)
        last_row = find_row(tl.maximum(step - 1, 0), gap_start, gap, COLUMNS)
        rows = tl.load(copies + row.to(tl.int64) * D_PAD + offsets)
        first_scores = tl.dot(first, rows)
        second_best = _keep_best(second_best, second_scores, penalties + last_row + columns, ROWS, BINS, FOLD)
        second_best = _finish(second_best, IS_HOPPER)
        second_scores = tl.dot(second, rows)
        first_best = _keep_best(first_best, first_scores, penalties + row + columns, ROWS, BINS, FOLD)
    row = find_row(tiles - 1, gap_start, gap, COLUMNS)
    second_best = _keep_best(second_best, second_scores, penalties + row + columns, ROWS, BINS, FOLD)
    return first_best, second_best


@triton.jit
def _rank_near(
    first_best: tl.tensor,
    second_best: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    packed_xy: tl.tensor,
    centres: tl.tensor,
    first_row: tl.tensor,
    N: tl.tensor,
    radius_squared: tl.tensor,
    first_near: tl.tensor,
    near_tiles: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """The best scores of both blocks of queries over steps with positions to exclude, one after the other.

    There are few such steps. They are split into parts of one row per bin, so that positions fit registers.
    """
    BINS: tl.constexpr = COLUMNS // FOLD
    depth, columns = tl.arange(0, D_PAD), tl.arange(0, BINS)
    offsets = columns[None, :] * D_PAD + depth[:, None]
    first_x, first_y = _read_centres(centres, first_row, N, ROWS)
    second_x, second_y = _read_centres(centres, first_row + ROWS, N, ROWS)
    for part in tl.range(first_near * FOLD, (first_near + near_tiles) * FOLD, num_stages=STAGES):
        row = find_row(part // FOLD, 0, 0, COLUMNS) + part % FOLD * BINS
        rows = tl.load(copies + row.to(tl.int64) * D_PAD + offsets)
        own = row + columns
        scores = _exclude(tl.dot(first, rows), first_x, first_y, packed_xy + own, radius_squared)
        first_best = _keep_best(first_best, scores, penalties + own, ROWS, BINS, 1)
        scores = _exclude(tl.dot(second, rows), second_x, second_y, packed_xy + own, radius_squared)
        second_best = _keep_best(second_best, scores, penalties + own, ROWS, BINS, 1)
    return first_best, second_best


@triton.jit
def _read_centres(centres: tl.tensor, first_row: tl.tensor, N: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """The x and y of sorted centres; undefined past the last."""
    rows = first_row + tl.arange(0, ROWS)
    return tl.load(centres + rows), tl.load(centres + pad_count(N) + rows)


@triton.jit
def _rank_long(
    row_starts: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    packed_xy: tl.tensor,
    centres: tl.tensor,
    first_row: tl.tensor,
    N: tl.tensor,
    radius_squared: tl.tensor,
    tiles: tl.tensor,
    first_near: tl.tensor,
    near_tiles: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_EXCLUSION: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """The best scores of one block of queries, which are loaded again in each step."""
    BINS: tl.constexpr = COLUMNS // FOLD
    depth, columns = tl.arange(0, DEPTH), tl.arange(0, COLUMNS)
    offsets = columns[None, :] * D_PAD + depth[:, None]
    best = tl.full([ROWS, BINS], LOWEST, tl.float32)
    for tile in range(0, tiles):
        row = find_row(tile, 0, 0, COLUMNS)
        row_copies = copies + row.to(tl.int64) * D_PAD
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in tl.range(0, D_PAD, DEPTH, num_stages=STAGES):
            query = tl.load(row_starts + start + depth[None, :])
            scores = tl.dot(query, tl.load(row_copies + start + offsets), scores)
        if HAS_EXCLUSION:  # noqa: SIM102 - a compile-time condition, unlike the next
            if (tile >= first_near) & (tile < first_near + near_tiles):
                centre_x, centre_y = _read_centres(centres, first_row, N, ROWS)
                scores = _exclude(scores, centre_x, centre_y, packed_xy + row + columns, radius_squared)
        best = _keep_best(best, scores, penalties + row + columns, ROWS, BINS, FOLD)
    return best


@triton.jit(do_not_specialize=SIZES)
def rank(
    query_copies: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    extremes: tl.tensor,
    totals: tl.tensor,
    candidates: tl.tensor,
    sorted_centres: tl.tensor,
    order: tl.tensor,
    packed_xy: tl.tensor,
    heights: tl.tensor,
    radius_squared: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    tiles: tl.tensor,
    blocks: tl.tensor,
    database_blocks: tl.tensor,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FOLD: tl.constexpr,
    DEPTH: tl.constexpr,
    SLOTS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_EXCLUSION: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """The best scores of two blocks of queries in one split of the database."""
    BINS: tl.constexpr = COLUMNS // FOLD
    first_row, item = tl.program_id(0) * (2 * ROWS), tl.program_id(2).to(tl.int64)
    # In this order: `settle` reads queries before it waits, so it must not start while they are written.
    wait_for_previous(IS_HOPPER)
    start_next(IS_HOPPER)
    first_rows = first_row + tl.arange(0, ROWS)
    second_rows = first_rows + ROWS
    query_copies += item * N * D_PAD
    first_starts = query_copies + tl.minimum(first_rows, N - 1).to(tl.int64)[:, None] * D_PAD
    second_starts = query_copies + tl.minimum(second_rows, N - 1).to(tl.int64)[:, None] * D_PAD
    start = item * tl.num_programs(1) * tiles * COLUMNS
    copies += start * D_PAD
    penalties += start
    own_tiles = count_tiles(M, COLUMNS)
    first_near, near_tiles = 0, 0
    if D_PAD == DEPTH:  # loaded before positions, so that one wait serves both
        depth = tl.arange(0, D_PAD)[None, :]
        first, second = tl.load(first_starts + depth), tl.load(second_starts + depth)
    if HAS_EXCLUSION:
        packed_xy += start
        sorted_centres += item * pad_count(N) * 2
        lowest, highest = find_heights(
            sorted_centres + pad_count(N), first_row, tl.minimum(first_row + 2 * ROWS, N)
        )
        first_near, near_tiles = find_near_tiles(
            heights + item * database_blocks * 2, lowest, highest, radius_squared, own_tiles, COLUMNS, BLOCK
        )
    if D_PAD == DEPTH:
        first_best = tl.full([ROWS, BINS], LOWEST, tl.float32)
        second_best = tl.full([ROWS, BINS], LOWEST, tl.float32)
        if own_tiles > near_tiles:
            first_best, second_best = _rank_far(
                first_best, second_best, first, second, copies, penalties, own_tiles - near_tiles,
                first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, STAGES, IS_HOPPER,
            )  # fmt: skip
        if HAS_EXCLUSION:
            first_best, second_best = _rank_near(
                first_best, second_best, first, second, copies, penalties, packed_xy, sorted_centres,
                first_row, N, radius_squared, first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, STAGES,
            )  # fmt: skip
    else:
        first_best = _rank_long(
            first_starts, copies, penalties, packed_xy, sorted_centres, first_row, N, radius_squared,
            own_tiles, first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, DEPTH, HAS_EXCLUSION, STAGES,
        )  # fmt: skip
        second_best = _rank_long(
            second_starts, copies, penalties, packed_xy, sorted_centres, first_row + ROWS, N, radius_squared,
            own_tiles, first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, DEPTH, HAS_EXCLUSION, STAGES,
        )  # fmt: skip
    write_totals(extremes + item * blocks * 2, totals + item * PARTS * 2, database_blocks)
    first_own, second_own = first_rows, second_rows
    if HAS_EXCLUSION:
        first_own = tl.load(order + item * N + first_rows, mask=first_rows < N, other=0)
        second_own = tl.load(order + item * N + second_rows, mask=second_rows < N, other=0)
    write_best(first_best, candidates, first_rows, first_own, N, item, BINS, SLOTS)
    write_best(second_best, candidates, second_rows, second_own, N, item, BINS, SLOTS)
