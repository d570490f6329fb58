"""The first GPU program of the fused search, in Triton: copies of both sets, and what is known of them.

A launch may begin before the one before has ended, on devices that can do that: it waits where it must.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Below every score; with bits of a bin's number in its mantissa it stays a number, which -inf would not.
LOWEST = tl.constexpr(-3.0e38)

# The highest height: the last bits of its key may be any, and 1 in 1000 more is infinite.
HIGHEST = tl.constexpr(3.4e38)

# Queries that are sorted among themselves; a power of two, since keys have the bits of their numbers.
GROUP = tl.constexpr(4096)

# Room for places of queries is a multiple of this, the most queries of a program of `rank`.
PLACES = tl.constexpr(256)

# Arguments that differ from call to call; Triton would compile anew for those that are 1 or multiples of 16.
# Strides are not among them: where they are multiples of 16, a thread reads several values at a time.
SIZES = [
    "N", "M", "D", "padded", "blocks", "database_blocks", "splits", "tiles", "parts", "position_stride_item",
]  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def start_next(IS_HOPPER: tl.constexpr) -> None:
    """Lets the next launch begin, as far as it need not wait for this one."""
    if IS_HOPPER:
        gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator]
def wait_for_last(IS_HOPPER: tl.constexpr) -> None:
    """Waits until what the launches before wrote can be read."""
    if IS_HOPPER:
        gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def read_row(
    start: tl.tensor, D: tl.tensor, stride_value: tl.tensor, D_PAD: tl.constexpr, IS_FULL: tl.constexpr
) -> tl.tensor:
    """The D values of a row, and zeros after them."""
    places = tl.arange(0, D_PAD)
    values = start + places.to(tl.int64) * stride_value
    if IS_FULL:  # without a mask, a thread reads several values at a time
        return tl.load(values)
    return tl.load(values, mask=places < D, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def find_scale(row: tl.tensor) -> tl.tensor:
    """The power of two that brings the largest value of a row to 1 to 2, which no order of steps changes."""
    largest = tl.max(tl.abs(row), axis=0)
    exponent = ((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    exponent = tl.minimum(tl.maximum(exponent, -60), 60)
    exponent = tl.where(largest > 0, exponent, 0)
    return ((127 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _read_rows(
    source: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    D: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    IS_FULL: tl.constexpr,
) -> tl.tensor:
    """Values of rows, and zeros after them."""
    places = tl.arange(0, D_PAD)
    offsets = rows.to(tl.int64)[:, None] * stride_row + places.to(tl.int64)[None, :] * stride_value
    is_value = (rows < count)[:, None]
    if not IS_FULL:
        is_value &= (places < D)[None, :]
    return tl.load(source + offsets, mask=is_value, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _take_larger(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    return tl.maximum(a, c), tl.maximum(b, d)


@triton.jit  # type: ignore[untyped-decorator]
def _write_copies(
    values: tl.tensor,
    scale: tl.tensor,
    target: tl.tensor,
    extremes: tl.tensor,
    places_written: tl.tensor,
    is_written: tl.tensor,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """Writes rows in float16, and their largest length and rounding. Their squared lengths come back."""
    values = values.to(tl.float32) * scale
    halves = values.to(tl.float16)
    targets = target + places_written.to(tl.int64)[:, None] * D_PAD + tl.arange(0, D_PAD)[None, :]
    tl.store(targets, halves, mask=is_written[:, None])
    rounding = values - halves.to(tl.float32)
    squared = tl.sum(values * values, axis=1)
    lost = tl.sum(rounding * rounding, axis=1)
    # A comparison with NaN is false, so what is not finite becomes infinite.
    lengths = tl.where(squared < 3e38, squared, float("inf"))
    roundings = tl.where(lost < 3e38, lost, float("inf"))
    largest, largest_lost = tl.reduce((lengths, roundings), 0, _take_larger)  # both at once: it waits once
    tl.store(extremes, tl.sqrt(largest))
    tl.store(extremes + 1, tl.sqrt(largest_lost))
    return squared


@triton.jit  # type: ignore[untyped-decorator]
def pad_count(N: tl.tensor) -> tl.tensor:
    """Room for a value of each query, so that the next value's begin where many are read at a time."""
    return tl.cdiv(N, PLACES) * PLACES


@triton.jit  # type: ignore[untyped-decorator]
def _read_places(places: tl.tensor, rows: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The x and y of rows, and zeros after the last."""
    is_row = rows < count
    x = tl.load(places + rows * 2, mask=is_row, other=0.0)
    return x, tl.load(places + rows * 2 + 1, mask=is_row, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _write_spots(
    x: tl.tensor,
    y: tl.tensor,
    spots: tl.tensor,
    heights: tl.tensor,
    rows: tl.tensor,
    M: tl.tensor,
    padded: tl.tensor,
) -> None:
    """Writes both numbers of a place as one, which is read at once, and the least and largest y."""
    is_row = rows < M
    low_bits = x.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    spot = (y.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low_bits
    tl.store(spots + rows, spot, mask=rows < padded)
    tl.store(heights, tl.min(tl.where(is_row & (y == y), y, float("inf")), axis=0))
    tl.store(heights + 1, tl.max(tl.where(is_row & (y == y), y, -float("inf")), axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def split_spots(spots: tl.tensor) -> tl.tensor:
    """The x and y of places that stand in one number each."""
    x = (spots & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return x, (spots >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def bound_heights(heights: tl.tensor) -> tl.tensor:
    """Heights that can be reckoned with; NaN, which are not above anything, stand with the lowest."""
    return tl.minimum(tl.where(heights > -HIGHEST, heights, -HIGHEST), HIGHEST)


@triton.jit  # type: ignore[untyped-decorator]
def _make_keys(heights: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """Numbers in the order of heights within a relative 2⁻¹¹; no two of a group are alike.

    Their last bits are those of the row's number. So one comparison and one addition sort a pair.
    """
    bits = bound_heights(heights).to(tl.int32, bitcast=True)
    return ((bits & -GROUP) | (rows & (GROUP - 1))).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _sort_by_height(
    centres: tl.tensor,
    sorted_centres: tl.tensor,
    order: tl.tensor,
    first_row: tl.tensor,
    N: tl.tensor,
    BLOCK: tl.constexpr,
    SORTED: tl.constexpr,
) -> tl.tensor:
    """Where queries stand by the y of their centres, of which it writes a sorted copy, all x first.

    Only queries of a group are sorted among themselves, so that the work does not grow with N squared. All of
    them, or all there are, must be among its first `SORTED`, or two would have the same place.
    """
    CHUNK: tl.constexpr = 512
    rows = first_row + tl.arange(0, BLOCK)
    start = first_row // GROUP * GROUP
    x = tl.load(centres + rows * 2, mask=rows < N, other=0.0)
    y = tl.load(centres + rows * 2 + 1, mask=rows < N, other=0.0)
    keys = _make_keys(y, rows)
    before = tl.zeros([BLOCK, CHUNK], tl.float32)
    # Without a loop, so that all heights are read before the first are compared.
    for chunk in tl.static_range(0, SORTED, CHUNK):
        others = start + chunk + tl.arange(0, CHUNK)
        heights = tl.load(centres + others * 2 + 1, mask=others < N, other=HIGHEST)
        before += (_make_keys(heights, others)[None, :] < keys[:, None]).to(tl.float32)
    places = start + tl.sum(before, axis=1).to(tl.int32)
    tl.store(sorted_centres + places, x, mask=rows < N)
    tl.store(sorted_centres + pad_count(N) + places, y, mask=rows < N)
    tl.store(order + places, rows, mask=rows < N)
    return tl.where(rows < N, places, rows)


@triton.jit(do_not_specialize=SIZES)  # type: ignore[untyped-decorator]
def prepare(
    queries: tl.tensor,
    database: tl.tensor,
    query_copies: tl.tensor,
    copies: tl.tensor,
    penalties: tl.tensor,
    extremes: tl.tensor,
    centres: tl.tensor,
    sorted_centres: tl.tensor,
    order: tl.tensor,
    positions: tl.tensor,
    spots: tl.tensor,
    heights: tl.tensor,
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
    position_stride_item: tl.tensor,
    D_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,
    SORTED: tl.constexpr,
    IS_FULL: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """Copies in float16, penalties of database rows (`LOWEST` past the last), and what was rounded away.

    With places to exclude, queries are sorted by the height of theirs, and heights of database rows are
    bounded by blocks, so that most steps of `rank` can pass over places.
    """
    # In this order, so that `rank` does not take room before this can work.
    wait_for_last(IS_HOPPER)
    start_next(IS_HOPPER)
    # Queries come first, since sorting takes longest.
    block, item = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    database += item * stride_item
    extremes += (item * tl.num_programs(0) + block) * 2
    if block < database_blocks:
        rows = block * BLOCK + tl.arange(0, BLOCK)
        x, y = 0.0, 0.0
        if HAS_OUTSIDE:  # before anything is written, after which the compiler lets nothing be read earlier
            x, y = _read_places(positions + item * position_stride_item, rows, M)
        values = _read_rows(database, rows, M, D, stride_row, stride_value, D_PAD, IS_FULL)
        # After the rows, so that nothing waits for the scale but what needs it.
        scale = find_scale(read_row(database, D, stride_value, D_PAD, IS_FULL).to(tl.float32))
        copies += item * padded * D_PAD
        squared = _write_copies(values, scale, copies, extremes, rows, rows < padded, D_PAD)
        penalty = tl.where(rows < M, -0.5 * squared, LOWEST)
        tl.store(penalties + item * padded + rows, penalty, mask=rows < padded)
        if HAS_OUTSIDE:
            heights += (item * database_blocks + block) * 2
            _write_spots(x, y, spots + item * padded, heights, rows, M, padded)
    else:
        first_row = (block - database_blocks) * QUERY_BLOCK
        query_rows = first_row + tl.arange(0, QUERY_BLOCK)
        own = queries + item * query_stride_item
        query_values = _read_rows(own, query_rows, N, D, query_stride_row, query_stride_value, D_PAD, IS_FULL)
        first = read_row(database, D, stride_value, D_PAD, IS_FULL)
        places = query_rows
        if HAS_OUTSIDE:
            tl.debug_barrier()  # else the compiler has the values above read after the sort, and waits again
            places = _sort_by_height(
                centres + item * N * 2, sorted_centres + item * pad_count(N) * 2, order + item * N, first_row,
                N, QUERY_BLOCK, SORTED,
            )  # fmt: skip
        scale = find_scale(first.to(tl.float32))
        targets = query_copies + item * N * D_PAD
        _write_copies(query_values, scale, targets, extremes, places, query_rows < N, D_PAD)
