"""The last kernel of the fused search: exact distances of the rows that can be among the nearest.

Why no neighbour is missed: let every score that `rank` kept be within a bound of its exact value. The K best
bins contain K different rows, whose exact scores are at least `kth` minus the bound. Each of the K nearest
rows has an exact score no lower than the worst of those, so its computed score, and with it the best score of
its bin, is at least `kth` minus two bounds. All bins above this threshold are opened; where every bin that a
split recorded is, the whole split is, since it may have more. The scores of their rows are computed again,
within the same bound, and rows above the threshold get their distances in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ucn.knn.triton.prepare import LOWEST, SIZES, find_scale, read_row, unpack_positions, wait_for_previous
from ucn.knn.triton.splits import PARTS, is_far

# Lower scores mark empty bins.
VALID = tl.constexpr(-1.0e38)
NO_ROW = tl.constexpr(2**31 - 1)
# Values of a row in a part. With Triton 3.6 eight threads load a part, and each sums its own values over all
# parts; where Triton distributes rows over more threads, they exchange more.
ROW_PART = tl.constexpr(64)
# As in the reference, distances within a relative 1e-12 are ties; twice that for squares.
TIE = tl.constexpr(2e-12)


@triton.jit
def _take_first(distances: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """The nearest and its row; of those that tie, the lowest row."""
    smallest = tl.min(distances, axis=0)
    row = tl.min(tl.where(distances <= smallest + smallest * TIE, rows, NO_ROW), axis=0)
    return tl.max(tl.where(rows == row, distances, -float("inf")), axis=0), row


@triton.jit
def _take_last(distances: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """The farthest and its row; of those that tie, the highest row."""
    largest = tl.max(distances, axis=0)
    row = tl.max(tl.where(distances + distances * TIE >= largest, rows, -1), axis=0)
    return largest, row


@triton.jit
def _insert(top: tl.tensor, top_rows: tl.tensor, near: tl.tensor, near_row: tl.tensor) -> tl.tensor:
    """Replaces the farthest of the best so far by a row that is nearer, or ties with a lower index."""
    far, far_row = _take_last(top, top_rows)
    is_tie = (near <= far + far * TIE) & (near_row < far_row) & (near < float("inf"))
    is_replaced = top_rows == tl.where((near + near * TIE < far) | is_tie, far_row, -1)
    return tl.where(is_replaced, near, top), tl.where(is_replaced, near_row, top_rows)


@triton.jit
def _find_threshold(
    values: tl.tensor,
    flat: tl.tensor,
    length: tl.tensor,
    lost: tl.tensor,
    lengths: tl.tensor,
    roundings: tl.tensor,
    D: tl.tensor,
    K: tl.constexpr,
) -> tl.tensor:
    """The lowest score that one of the K nearest rows can have in the computed product.

    `length` and `lost` are the norms of the query and of its rounding error in float16.
    """
    left = values
    kth = tl.max(left, axis=0)
    for _ in tl.static_range(K - 1):
        entry = tl.min(tl.where(left == kth, flat, NO_ROW), axis=0)
        left = tl.where(flat == entry, LOWEST, left)
        kth = tl.max(left, axis=0)
    largest, largest_lost = tl.max(lengths, axis=0), tl.max(roundings, axis=0)
    # The rounding to float16 (Cauchy-Schwarz); the sum of D products in float32 on tensor cores, which
    # truncate; the bits of the bin index, also where scores are zero; and the rounding of the penalty.
    bound = lost * largest + (length + lost) * largest_lost + 1e-30
    scale = length * largest + 0.5 * largest * largest
    bound += (D + 8) * 2.4e-7 * length * largest + 3.2e-5 * scale
    # K rows have scores of at least `kth`, so none of the K nearest is more than two bounds below. Where
    # values are not finite, no row qualifies, and the caller finds infinite norms in `extremes`.
    return tl.where(bound < 1e37, tl.maximum(kth - 2.02 * bound, VALID), float("inf"))


@triton.jit
def _measure(
    row_start: tl.tensor,
    query: tl.tensor,
    D: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    IS_FULL: tl.constexpr,
) -> tl.tensor:
    """The squared distance of a row in float64."""
    values = read_row(row_start, D, stride_value, D_PAD, IS_FULL)
    difference = values.to(tl.float64) - query.to(tl.float64)
    return tl.sum(difference * difference, axis=0)


@triton.jit
def _reaches_threshold(
    rows: tl.tensor,
    is_row: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    query_copy: tl.tensor,
    threshold: tl.tensor,
    packed_xy: tl.tensor,
    centre_x: tl.tensor,
    centre_y: tl.tensor,
    radius_squared: tl.tensor,
    D_PAD: tl.constexpr,
    HAS_EXCLUSION: tl.constexpr,
) -> tl.tensor:
    """Which rows reach the threshold and lie outside the exclusion radius."""
    PART: tl.constexpr = query_copy.shape[1]
    values = tl.arange(0, D_PAD // PART)[None, :, None] * PART + tl.arange(0, PART)[None, None, :]
    starts = rows.to(tl.int64)[:, None, None] * D_PAD
    copy = tl.load(copies + starts + values, mask=is_row[:, None, None], other=0.0)
    penalty = tl.load(penalties + rows, mask=is_row, other=LOWEST)
    is_kept = is_row
    if HAS_EXCLUSION:
        x, y = unpack_positions(tl.load(packed_xy + rows, mask=is_row, other=0))
        is_kept &= is_far(centre_x, centre_y, x, y, radius_squared)
    products = copy.to(tl.float32) * query_copy.to(tl.float32)[None, :, :]
    scores = tl.sum(tl.sum(products, axis=1), axis=1)
    return is_kept & (scores + penalty >= threshold)


@triton.jit
def _measure_rows(
    top: tl.tensor,
    top_rows: tl.tensor,
    rows: tl.tensor,
    is_near: tl.tensor,
    database: tl.tensor,
    query: tl.tensor,
    D: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    IS_FULL: tl.constexpr,
) -> tl.tensor:
    """Updates the best so far with the exact distances of some rows; also returns the number of these."""
    count = 0
    row = tl.min(tl.where(is_near, rows, NO_ROW), axis=0)
    while row < NO_ROW:
        row_start = database + row.to(tl.int64) * stride_row
        squared = _measure(row_start, query, D, stride_value, D_PAD, IS_FULL)
        top, top_rows = _insert(top, top_rows, squared, row)
        count += 1
        is_near &= rows > row
        row = tl.min(tl.where(is_near, rows, NO_ROW), axis=0)
    return top, top_rows, count


@triton.jit
def _pop_bin(
    best: tl.tensor,
    left: tl.tensor,
    flat: tl.tensor,
    threshold: tl.tensor,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tl.tensor:
    """Takes the best remaining bin, or its whole split where that may have more bins than it recorded.

    Returns:
        The remaining bins, the first row, the step between rows within a tile, and their number per tile.
    """
    entry = tl.min(tl.where(left == best, flat, NO_ROW), axis=0)
    split = entry // SLOTS
    # The lowest bin that the split recorded; it remains, unless the split was taken whole.
    last = tl.max(tl.where(flat == split * SLOTS + SLOTS - 1, left, LOWEST), axis=0)
    is_overfull = last >= threshold
    done = tl.where(is_overfull, split * SLOTS, entry)
    done_end = tl.where(is_overfull, split * SLOTS + SLOTS, entry + 1)
    left = tl.where((flat >= done) & (flat < done_end), LOWEST, left)
    own_bin = best.to(tl.int32, bitcast=True) & (BINS - 1)
    first = split * COLUMNS + tl.where(is_overfull, 0, own_bin)
    return left, first, tl.where(is_overfull, 1, BINS), tl.where(is_overfull, COLUMNS, COLUMNS // BINS)


@triton.jit(do_not_specialize=SIZES)
def settle(
    queries: tl.tensor,
    database: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    totals: tl.tensor,
    candidates: tl.tensor,
    centres: tl.tensor,
    packed_xy: tl.tensor,
    radius_squared: tl.tensor,
    distances: tl.tensor,
    indices: tl.tensor,
    measured: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    D: tl.tensor,
    splits: tl.tensor,
    tiles: tl.tensor,
    parts: tl.tensor,
    query_stride_item: tl.tensor,
    query_stride_row: tl.tensor,
    query_stride_value: tl.tensor,
    stride_item: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    IS_FULL: tl.constexpr,
    HAS_EXCLUSION: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """The K nearest rows of one query, by distances in float64 (see the module's docstring)."""
    item = tl.program_id(1).to(tl.int64)
    query_index = item * N + tl.program_id(0)
    query_row = queries + item * query_stride_item + tl.program_id(0).to(tl.int64) * query_stride_row
    query = read_row(query_row, D, query_stride_value, D_PAD, IS_FULL)
    database += item * stride_item
    first = read_row(database, D, stride_value, D_PAD, IS_FULL)
    centre_x, centre_y = 0.0, 0.0
    start = item * splits * tiles * COLUMNS
    if HAS_EXCLUSION:
        centre_x, centre_y = tl.load(centres + query_index * 2), tl.load(centres + query_index * 2 + 1)
        packed_xy += start
    copies += start * D_PAD
    penalties += start
    scaled = query.to(tl.float32) * find_scale(first.to(tl.float32))
    query_copy = scaled.to(tl.float16)  # as `prepare` made it
    rounding = scaled - query_copy.to(tl.float32)
    length, lost = tl.sqrt(tl.sum(scaled * scaled, axis=0)), tl.sqrt(tl.sum(rounding * rounding, axis=0))
    PART: tl.constexpr = min(D_PAD, ROW_PART)
    query_copy = tl.reshape(query_copy, [D_PAD // PART, PART])
    flat, part = tl.arange(0, SPLITS_PAD * SLOTS), tl.arange(0, PARTS)
    # The loads above depend on no kernel of the search, and whatever wrote them has ended, since `rank` lets
    # this kernel start after its own wait.
    wait_for_previous(IS_HOPPER)
    left = tl.load(candidates + query_index * splits * SLOTS + flat, mask=flat < splits * SLOTS, other=LOWEST)
    totals += item * PARTS * 2 + part * 2
    lengths = tl.load(totals, mask=part < parts, other=0.0)
    roundings = tl.load(totals + 1, mask=part < parts, other=0.0)
    threshold = _find_threshold(left, flat, length, lost, lengths, roundings, D, K)
    slots = tl.arange(0, K_PAD)
    top = tl.where(slots < K, float("inf"), -float("inf")).to(tl.float64)
    top_rows = NO_ROW - slots
    count_measured = 0
    best = tl.max(left, axis=0)
    while best >= threshold:
        left, first_row, step, tile_rows = _pop_bin(best, left, flat, threshold, COLUMNS, BINS, SLOTS)
        for begin in range(0, tile_rows * tiles, ROWS):
            taken = begin + tl.arange(0, ROWS)
            within = taken & (tile_rows - 1)
            rows = first_row + step * ((taken - within) * splits + within)
            is_row = (taken < tile_rows * tiles) & (rows < M)
            is_near = _reaches_threshold(
                rows, is_row, copies, penalties, query_copy, threshold, packed_xy, centre_x, centre_y,
                radius_squared, D_PAD, HAS_EXCLUSION,
            )  # fmt: skip
            top, top_rows, count = _measure_rows(
                top, top_rows, rows, is_near, database, query, D, stride_row, stride_value, D_PAD, IS_FULL
            )
            count_measured += count
        best = tl.max(left, axis=0)
    tl.store(measured + query_index, count_measured)
    _write_sorted(tl.where(slots < K, top, float("inf")), top_rows, distances, indices, query_index, K)


@triton.jit
def _write_sorted(
    top: tl.tensor,
    top_rows: tl.tensor,
    distances: tl.tensor,
    indices: tl.tensor,
    query_index: tl.tensor,
    K: tl.constexpr,
) -> None:
    """Writes the best from near to far; ties are ordered by row, and their distances must not decrease."""
    before, _ = _take_first(top, top_rows)
    for slot in tl.static_range(K):
        squared, row = _take_first(top, top_rows)
        is_row = squared < float("inf")
        before = tl.maximum(before, squared)
        tl.store(distances + query_index * K + slot, tl.sqrt(before).to(tl.float32))
        tl.store(indices + query_index * K + slot, tl.where(is_row, row, -1).to(tl.int64))
        top = tl.where(top_rows == row, float("inf"), top)
