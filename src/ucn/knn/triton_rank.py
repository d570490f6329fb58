"""The second GPU program of the fused search, in Triton: scores, of which it keeps the best.

Scores are ``q·b - |b|²/2``, as in the torch search, of float16 copies that are scaled by one power of two.
A tile is some rows of the database, a split every so manieth tile, and a bin every `BINS`-th row of a split.
Only the best score of a bin is kept, so that ranking costs an addition and a maximum a pair besides the
product, and the matrix of scores is never written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton_prepare import LOWEST, SIZES, read_places, start_next, wait_for_last


@triton.jit  # type: ignore[untyped-decorator]
def _finish(values: tl.tensor, IS_HOPPER: tl.constexpr) -> tl.tensor:
    """The same values, computed before the next product begins, whose registers would else be copies."""
    if IS_HOPPER:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [values], dtype=tl.float32, is_pure=False, pack=1
        )
    return values


@triton.jit  # type: ignore[untyped-decorator]
def is_far(
    centre_x: tl.tensor, centre_y: tl.tensor, x: tl.tensor, y: tl.tensor, radius_squared: tl.tensor
) -> tl.tensor:
    """Whether places lie farther than the radius, or nowhere; written so that all programs round it alike."""
    across, down = centre_x - x, centre_y - y
    is_near = tl.fma(across, across, down * down) <= radius_squared
    return is_near == 0


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
def _find_lowest(y: tl.tensor, rows: tl.tensor, N: tl.tensor) -> tl.tensor:
    """The least y of rows that there are, without those that are nowhere."""
    return tl.min(tl.where((rows < N) & (y == y), y, float("inf")), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _find_near_tiles(
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
def _write_totals(
    extremes: tl.tensor, totals: tl.tensor, split: tl.tensor, database_blocks: tl.tensor
) -> None:
    """The largest length and rounding of every `splits`-th block of database rows."""
    splits = tl.num_programs(1)
    lengths = tl.zeros([64], tl.float32)
    roundings = tl.zeros([64], tl.float32)
    for start in range(split, database_blocks, 64 * splits):
        blocks = start + tl.arange(0, 64) * splits
        is_block = blocks < database_blocks
        lengths = tl.maximum(lengths, tl.load(extremes + blocks * 2, mask=is_block, other=0.0))
        roundings = tl.maximum(roundings, tl.load(extremes + blocks * 2 + 1, mask=is_block, other=0.0))
    tl.store(totals + split * 2, tl.max(lengths, axis=0))
    tl.store(totals + split * 2 + 1, tl.max(roundings, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _keep_best(
    best: tl.tensor,
    scores: tl.tensor,
    penalties: tl.tensor,
    ROWS: tl.constexpr,
    BINS: tl.constexpr,
    FOLD: tl.constexpr,
) -> tl.tensor:
    """The best of each bin so far and of a step, in which columns `BINS` apart share a bin."""
    # A thread holds all columns of its bins, so nothing moves. Were penalties added to the unshaped scores,
    # Triton would have the product start with them, which tensor cores cannot do beside another product.
    parts = tl.reshape(scores, [ROWS, FOLD, BINS]) + tl.reshape(penalties, [FOLD, BINS])[None, :, :]
    return tl.maximum(best, tl.max(parts, axis=1))


@triton.jit  # type: ignore[untyped-decorator]
def _write_best(
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


@triton.jit  # type: ignore[untyped-decorator]
def _find_row(
    step: tl.tensor, start: tl.tensor, gap_start: tl.tensor, gap: tl.tensor, COLUMNS: tl.constexpr
) -> tl.tensor:
    """The first database row of a step; steps from `gap_start` on are `gap` tiles farther."""
    tile = start + step + tl.where(step >= gap_start, gap, 0)
    return (tile * tl.num_programs(1) + tl.program_id(1)) * COLUMNS


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
        row = _find_row(step, start, gap_start, gap, COLUMNS)
        last_row = _find_row(tl.maximum(step - 1, 0), start, gap_start, gap, COLUMNS)
        rows = tl.load(copies + row.to(tl.int64) * D_PAD + offsets)
        first_scores = tl.dot(first, rows)
        if EXCLUDES:
            second_scores = _exclude(
                second_scores, second_x, second_y, positions, last_row + columns, count, radius_squared
            )
        last_penalties = tl.load(penalties + last_row + columns)
        second_best = _keep_best(second_best, second_scores, last_penalties, ROWS, BINS, FOLD)
        second_best = _finish(second_best, IS_HOPPER)
        second_scores = tl.dot(second, rows)
        if EXCLUDES:
            first_scores = _exclude(
                first_scores, first_x, first_y, positions, row + columns, count, radius_squared
            )
        first_best = _keep_best(
            first_best, first_scores, tl.load(penalties + row + columns), ROWS, BINS, FOLD
        )
    row = _find_row(tiles - 1, start, gap_start, gap, COLUMNS)
    if EXCLUDES:
        second_scores = _exclude(
            second_scores, second_x, second_y, positions, row + columns, count, radius_squared
        )
    second_best = _keep_best(second_best, second_scores, tl.load(penalties + row + columns), ROWS, BINS, FOLD)
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
        row = _find_row(tile, 0, 0, 0, COLUMNS)
        row_copies = copies + row.to(tl.int64) * D_PAD
        scores = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in tl.range(0, D_PAD, DEPTH, num_stages=STAGES):
            query = tl.load(row_starts + start + depth[None, :])
            scores = tl.dot(query, tl.load(row_copies + start + offsets), scores)
        if HAS_OUTSIDE:  # noqa: SIM102 - known when it is compiled, the other is not
            if (tile >= first_near) & (tile < first_near + near_tiles):
                scores = _exclude(scores, centre_x, centre_y, positions, row + columns, count, radius_squared)
        best = _keep_best(best, scores, tl.load(penalties + row + columns), ROWS, BINS, FOLD)
    return best


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def rank(
    query_copies: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
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
    HAS_OUTSIDE: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """The best scores of two blocks of queries in a split: every so manieth tile of the database."""
    BINS: tl.constexpr = COLUMNS // FOLD
    row_block, split, item = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    wait_for_last(IS_HOPPER)
    start_next(IS_HOPPER)
    if row_block == 0:
        _write_totals(
            extremes + item * blocks * 2, totals + item * tl.num_programs(1) * 2, split, database_blocks
        )
    first_rows = row_block * (2 * ROWS) + tl.arange(0, ROWS)
    second_rows = first_rows + ROWS
    query_copies += item * N * D_PAD
    first_starts = query_copies + tl.minimum(first_rows, N - 1).to(tl.int64)[:, None] * D_PAD
    second_starts = query_copies + tl.minimum(second_rows, N - 1).to(tl.int64)[:, None] * D_PAD
    start = item * tl.num_programs(1) * tiles * COLUMNS
    copies += start * D_PAD
    penalties += start
    first_x, first_y = 0.0, 0.0
    second_x, second_y = 0.0, 0.0
    first_near, near_tiles = 0, 0
    if HAS_OUTSIDE:
        sorted_centres += item * N * 2
        first_x, first_y = read_places(sorted_centres, first_rows, N)
        second_x, second_y = read_places(sorted_centres, second_rows, N)
        lowest = tl.minimum(_find_lowest(first_y, first_rows, N), _find_lowest(second_y, second_rows, N))
        highest = -tl.minimum(_find_lowest(-first_y, first_rows, N), _find_lowest(-second_y, second_rows, N))
        heights += item * database_blocks * 2
        first_near, near_tiles = _find_near_tiles(
            heights, lowest, highest, radius_squared, tiles, COLUMNS, BLOCK
        )
        positions += item * position_stride_item
    if D_PAD == DEPTH:
        depth = tl.arange(0, D_PAD)[None, :]
        first, second = tl.load(first_starts + depth), tl.load(second_starts + depth)
        first_best = tl.full([ROWS, BINS], LOWEST, tl.float32)
        second_best = tl.full([ROWS, BINS], LOWEST, tl.float32)
        if near_tiles < tiles:
            first_best, second_best = _rank_short(
                first_best, second_best, first, second, copies, penalties, first_x, first_y, second_x,
                second_y, positions, radius_squared, M, tiles - near_tiles, 0, first_near, near_tiles,
                D_PAD, ROWS, COLUMNS, FOLD, False, STAGES, IS_HOPPER,
            )  # fmt: skip
        if near_tiles > 0:
            first_best, second_best = _rank_short(
                first_best, second_best, first, second, copies, penalties, first_x, first_y, second_x,
                second_y, positions, radius_squared, M, near_tiles, first_near, 0, 0,
                D_PAD, ROWS, COLUMNS, FOLD, True, STAGES, IS_HOPPER,
            )  # fmt: skip
    else:
        first_best = _rank_long(
            first_starts, copies, penalties, first_x, first_y, positions, radius_squared, M, tiles,
            first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, DEPTH, HAS_OUTSIDE, STAGES,
        )  # fmt: skip
        second_best = _rank_long(
            second_starts, copies, penalties, second_x, second_y, positions, radius_squared, M, tiles,
            first_near, near_tiles, D_PAD, ROWS, COLUMNS, FOLD, DEPTH, HAS_OUTSIDE, STAGES,
        )  # fmt: skip
    _write_best(first_best, candidates, first_rows, N, item, BINS, SLOTS)
    _write_best(second_best, candidates, second_rows, N, item, BINS, SLOTS)
