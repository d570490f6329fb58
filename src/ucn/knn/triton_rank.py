"""First GPU programs of the fused search, in Triton: copies and scores; `triton_search` launches them.

Scores are ``q·b - |b|²/2``, as in the torch search, of float16 copies that are scaled by one power of two.
A bin is every `COLUMNS`-th row of a stretch of the database (a split); only the best score of a bin is kept,
so that ranking costs an addition and a maximum a pair, and the matrix of scores is never written.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Below every score; with bits of a bin's number in its mantissa it stays a number, which -inf would not.
LOWEST = tl.constexpr(-3.0e38)

# Arguments that differ from call to call; Triton would compile anew for those that are 1 or multiples of 16.
SIZES = [
    *("N", "M", "D", "padded", "blocks", "database_blocks", "splits", "tiles"),
    *("query_stride_item", "stride_item", "position_stride_item"),
]


@triton.jit  # type: ignore[untyped-decorator]
def _find_scale(database: tl.tensor, D: tl.tensor, stride_value: tl.tensor, D_PAD: tl.constexpr) -> tl.tensor:
    """The power of two that brings the first row to a length of 1 to 2, where float16 has most digits."""
    places = tl.arange(0, D_PAD)
    row = tl.load(database + places * stride_value, mask=places < D, other=0.0).to(tl.float32)
    squared = tl.sum(row * row, axis=0)
    exponent = (((squared.to(tl.int32, bitcast=True) >> 23) & 255) - 127) >> 1
    exponent = tl.minimum(tl.maximum(exponent, -60), 60)
    exponent = tl.where(squared > 0, exponent, 0)
    return ((127 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _copy_rows(
    source: tl.tensor,
    target: tl.tensor,
    extremes: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    D: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """Writes rows in float16 and their largest length and rounding; their squared lengths come back."""
    places = tl.arange(0, D_PAD)
    is_row = rows < count
    offsets = rows.to(tl.int64)[:, None] * stride_row + places.to(tl.int64)[None, :] * stride_value
    values = tl.load(source + offsets, mask=is_row[:, None] & (places < D)[None, :], other=0.0)
    values = values.to(tl.float32) * scale
    halves = values.to(tl.float16)
    tl.store(target + rows.to(tl.int64)[:, None] * D_PAD + places[None, :], halves, mask=is_row[:, None])
    rounding = values - halves.to(tl.float32)
    squared = tl.sum(values * values, axis=1)
    lost = tl.sum(rounding * rounding, axis=1)
    # A comparison with NaN is false, so what is not finite becomes infinite.
    tl.store(extremes, tl.sqrt(tl.max(tl.where(squared < 3e38, squared, float("inf")), axis=0)))
    tl.store(extremes + 1, tl.sqrt(tl.max(tl.where(lost < 3e38, lost, float("inf")), axis=0)))
    return squared


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def prepare(
    queries: tl.tensor,
    database: tl.tensor,
    query_copies: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    extremes: tl.tensor,
    scales: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    D: tl.tensor,
    padded: tl.tensor,
    database_blocks: tl.tensor,
    query_stride_item: tl.tensor,
    query_stride_row: tl.tensor,
    query_stride_value: tl.tensor,
    stride_item: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copies in float16, penalties of database rows (`LOWEST` past the last), and what was rounded away."""
    block, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    database += item * stride_item
    scale = _find_scale(database, D, stride_value, D_PAD)
    extremes += (item * tl.num_programs(0) + block) * 2
    if block < database_blocks:
        rows = block * BLOCK + tl.arange(0, BLOCK)
        copies += item * M * D_PAD
        squared = _copy_rows(database, copies, extremes, scale, rows, M, D, stride_row, stride_value, D_PAD)
        tl.store(
            penalties + item * padded + rows, tl.where(rows < M, -0.5 * squared, LOWEST), mask=rows < padded
        )
        if block == 0:
            tl.store(scales + item, scale)
    else:
        rows = (block - database_blocks) * BLOCK + tl.arange(0, BLOCK)
        queries += item * query_stride_item
        query_copies += item * N * D_PAD
        _copy_rows(
            queries, query_copies, extremes, scale, rows, N, D, query_stride_row, query_stride_value, D_PAD
        )


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
    M: tl.tensor,
    radius_squared: tl.tensor,
) -> tl.tensor:
    """Scores without those of columns too near the queries' places."""
    x = tl.load(positions + columns * 2, mask=columns < M, other=0.0)
    y = tl.load(positions + columns * 2 + 1, mask=columns < M, other=0.0)
    is_kept = is_far(centre_x[:, None], centre_y[:, None], x[None, :], y[None, :], radius_squared)
    return tl.where(is_kept, scores, LOWEST)


@triton.jit  # type: ignore[untyped-decorator]
def _write_totals(extremes: tl.tensor, totals: tl.tensor, database_blocks: tl.tensor) -> None:
    """The largest length and rounding of all database rows."""
    lengths = tl.zeros([256], tl.float32)
    roundings = tl.zeros([256], tl.float32)
    for start in range(0, database_blocks, 256):
        blocks = start + tl.arange(0, 256)
        is_block = blocks < database_blocks
        lengths = tl.maximum(lengths, tl.load(extremes + blocks * 2, mask=is_block, other=0.0))
        roundings = tl.maximum(roundings, tl.load(extremes + blocks * 2 + 1, mask=is_block, other=0.0))
    tl.store(totals, tl.max(lengths, axis=0))
    tl.store(totals + 1, tl.max(roundings, axis=0))


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def rank(
    query_copies: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    extremes: tl.tensor,
    totals: tl.tensor,
    candidates: tl.tensor,
    centres: tl.tensor,
    positions: tl.tensor,
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
    DEPTH: tl.constexpr,
    SLOTS: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """The best scores of `SLOTS` bins of a split, with the bin's number in the last bits of its score."""
    row_block, split, item = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if (row_block == 0) & (split == 0):
        _write_totals(extremes + item * blocks * 2, totals + item * 2, database_blocks)
    rows = row_block * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    columns = split * tiles * COLUMNS + tl.arange(0, COLUMNS)
    query_copies += item * N * D_PAD
    copies += item * M * D_PAD
    penalties += item * tl.num_programs(1) * tiles * COLUMNS
    centre_x = tl.zeros([ROWS], tl.float32)
    centre_y = tl.zeros([ROWS], tl.float32)
    if HAS_OUTSIDE:
        centre_x = tl.load(centres + (item * N + rows) * 2, mask=rows < N, other=0.0)
        centre_y = tl.load(centres + (item * N + rows) * 2 + 1, mask=rows < N, other=0.0)
        positions += item * position_stride_item
    row_starts = query_copies + tl.minimum(rows, N - 1).to(tl.int64)[:, None] * D_PAD
    best = tl.full([ROWS, COLUMNS], LOWEST, tl.float32)
    if D_PAD == DEPTH:  # the queries stay where they are
        query = tl.load(row_starts + depth[None, :])
        for _ in tl.range(0, tiles, num_stages=STAGES):
            column_starts = copies + tl.minimum(columns, M - 1).to(tl.int64)[None, :] * D_PAD
            scores = tl.dot(query, tl.load(column_starts + depth[:, None]))
            scores += tl.load(penalties + columns)[None, :]
            if HAS_OUTSIDE:
                scores = _exclude(scores, centre_x, centre_y, positions, columns, M, radius_squared)
            best = tl.maximum(best, scores)
            columns += COLUMNS
    else:
        for _ in range(0, tiles):
            column_starts = copies + tl.minimum(columns, M - 1).to(tl.int64)[None, :] * D_PAD
            scores = tl.zeros([ROWS, COLUMNS], tl.float32)
            for start in tl.range(0, D_PAD, DEPTH, num_stages=STAGES):
                query = tl.load(row_starts + start + depth[None, :])
                scores = tl.dot(query, tl.load(column_starts + start + depth[:, None]), scores)
            scores += tl.load(penalties + columns)[None, :]
            if HAS_OUTSIDE:
                scores = _exclude(scores, centre_x, centre_y, positions, columns, M, radius_squared)
            best = tl.maximum(best, scores)
            columns += COLUMNS
    bins = tl.arange(0, COLUMNS)[None, :]
    packed = (best.to(tl.int32, bitcast=True) & (-COLUMNS)) | bins
    best = packed.to(tl.float32, bitcast=True)
    targets = candidates + ((item * N + rows) * tl.num_programs(1) + split) * SLOTS
    for slot in tl.static_range(SLOTS):
        top = tl.max(best, axis=1)
        tl.store(targets + slot, top, mask=rows < N)
        best = tl.where(best == top[:, None], LOWEST, best)
