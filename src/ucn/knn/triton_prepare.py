"""The first GPU program of the fused search, in Triton: copies of both sets, and what is known of them.

A launch may begin before the one before has ended, on devices that can do that: it waits where it must.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Below every score; with bits of a bin's number in its mantissa it stays a number, which -inf would not.
LOWEST = tl.constexpr(-3.0e38)

# Room for places of queries is a multiple of this, the most queries of a program of `rank`.
PLACES = tl.constexpr(256)

# Arguments that differ from call to call; Triton would compile anew for those that are 1 or multiples of 16.
# Strides are not among them: where they are multiples of 16, a thread reads several values at a time.
SIZES = ["N", "M", "D", "padded", "blocks", "database_blocks", "splits", "tiles", "position_stride_item"]


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
def _find_scale(row: tl.tensor) -> tl.tensor:
    """The power of two that brings a row to a length of 1 to 2, where float16 has most digits."""
    squared = tl.sum(row * row, axis=0)
    exponent = (((squared.to(tl.int32, bitcast=True) >> 23) & 255) - 127) >> 1
    exponent = tl.minimum(tl.maximum(exponent, -60), 60)
    exponent = tl.where(squared > 0, exponent, 0)
    return ((127 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _copy_rows(
    source: tl.tensor,
    first_row: tl.tensor,
    target: tl.tensor,
    extremes: tl.tensor,
    rows: tl.tensor,
    places_written: tl.tensor,
    count: tl.tensor,
    count_written: tl.tensor,
    D: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    first_stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    IS_FULL: tl.constexpr,
) -> tl.tensor:
    """Writes rows in float16, to other places, and their largest length and rounding.

    Zeros stand in rows from `count` to `count_written`. The rows' squared lengths and the scale come back.
    """
    places = tl.arange(0, D_PAD)
    offsets = rows.to(tl.int64)[:, None] * stride_row + places.to(tl.int64)[None, :] * stride_value
    is_value = (rows < count)[:, None]
    if not IS_FULL:
        is_value &= (places < D)[None, :]
    values = tl.load(source + offsets, mask=is_value, other=0.0)
    # After the rows, so that nothing waits for the scale but what needs it.
    scale = _find_scale(read_row(first_row, D, first_stride_value, D_PAD, IS_FULL).to(tl.float32))
    values = values.to(tl.float32) * scale
    halves = values.to(tl.float16)
    targets = target + places_written.to(tl.int64)[:, None] * D_PAD + places[None, :]
    tl.store(targets, halves, mask=(rows < count_written)[:, None])
    rounding = values - halves.to(tl.float32)
    squared = tl.sum(values * values, axis=1)
    lost = tl.sum(rounding * rounding, axis=1)
    # A comparison with NaN is false, so what is not finite becomes infinite.
    tl.store(extremes, tl.sqrt(tl.max(tl.where(squared < 3e38, squared, float("inf")), axis=0)))
    tl.store(extremes + 1, tl.sqrt(tl.max(tl.where(lost < 3e38, lost, float("inf")), axis=0)))
    return squared, scale


@triton.jit  # type: ignore[untyped-decorator]
def read_places(places: tl.tensor, rows: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The x and y of some places."""
    x = tl.load(places + rows * 2, mask=rows < count, other=0.0)
    return x, tl.load(places + rows * 2 + 1, mask=rows < count, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def pad_count(N: tl.tensor) -> tl.tensor:
    """Room for a value of each query, so that the next value's begin where many are read at a time."""
    return tl.cdiv(N, PLACES) * PLACES


@triton.jit  # type: ignore[untyped-decorator]
def _sort_by_height(
    centres: tl.tensor,
    sorted_centres: tl.tensor,
    order: tl.tensor,
    rows: tl.tensor,
    N: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Where queries stand by the y of their centres, of which it writes a sorted copy, and by their number.

    The copy has all x first, then all y.
    Only some thousand queries are sorted among themselves, so that the work does not grow with N squared.
    """
    GROUP: tl.constexpr = 4096
    start = tl.min(rows, axis=0) // GROUP * GROUP
    x, y = read_places(centres, rows, N)
    height = tl.where(y == y, y, float("inf"))  # NaN stands in no order
    before = tl.zeros([BLOCK, 256], tl.int32)
    for others_start in tl.range(start, tl.minimum(start + GROUP, N), 256, num_stages=3):
        others = others_start + tl.arange(0, 256)
        other = tl.load(centres + others * 2 + 1, mask=others < N, other=float("inf"))
        other = tl.where(other == other, other, float("inf"))[None, :]
        is_equal = (other == height[:, None]) & (others[None, :] < rows[:, None])
        before += ((other < height[:, None]) | is_equal).to(tl.int32)
    places = start + tl.sum(before, axis=1)
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
    shortest: tl.tensor,
    extremes: tl.tensor,
    scales: tl.tensor,
    centres: tl.tensor,
    sorted_centres: tl.tensor,
    order: tl.tensor,
    positions: tl.tensor,
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
    IS_FULL: tl.constexpr,
    HAS_OUTSIDE: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """Copies in float16, penalties of database rows (`LOWEST` past the last), and what was rounded away.

    With places to exclude, queries are sorted by the height of theirs, and heights of database rows are
    bounded by blocks, so that most steps of `rank` can pass over places.
    """
    start_next(IS_HOPPER)
    # Queries come first, since sorting takes longest.
    block, item = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    database += item * stride_item
    extremes += (item * tl.num_programs(0) + block) * 2
    if block < database_blocks:
        rows = block * BLOCK + tl.arange(0, BLOCK)
        copies += item * padded * D_PAD
        squared, scale = _copy_rows(
            database, database, copies, extremes, rows, rows, M, padded, D, stride_row, stride_value,
            stride_value, D_PAD, IS_FULL,
        )  # fmt: skip
        tl.store(
            penalties + item * padded + rows, tl.where(rows < M, -0.5 * squared, LOWEST), mask=rows < padded
        )
        # Zero where there are no rows: `rank` takes penalties for unequal then.
        least = tl.sqrt(tl.min(tl.where(rows < M, squared, float("inf")), axis=0))
        tl.store(shortest + item * database_blocks + block, tl.where(least < float("inf"), least, 0.0))
        if block == 0:
            tl.store(scales + item, scale)
        if HAS_OUTSIDE:
            _, y = read_places(positions + item * position_stride_item, rows, M)
            heights += (item * database_blocks + block) * 2
            tl.store(heights, tl.min(tl.where((rows < M) & (y == y), y, float("inf")), axis=0))
            tl.store(heights + 1, tl.max(tl.where((rows < M) & (y == y), y, -float("inf")), axis=0))
    else:
        query_rows = (block - database_blocks) * QUERY_BLOCK + tl.arange(0, QUERY_BLOCK)
        queries += item * query_stride_item
        query_copies += item * N * D_PAD
        places = query_rows
        if HAS_OUTSIDE:
            start = item * N
            places = _sort_by_height(
                centres + start * 2, sorted_centres + item * pad_count(N) * 2, order + start, query_rows, N,
                QUERY_BLOCK,
            )  # fmt: skip
        _copy_rows(
            queries, database, query_copies, extremes, query_rows, places, N, N, D, query_stride_row,
            query_stride_value, stride_value, D_PAD, IS_FULL,
        )  # fmt: skip
