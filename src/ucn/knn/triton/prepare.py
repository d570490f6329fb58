"""The first kernel of the fused search: float16 copies of both sets, their norms and rounding errors.

On devices with programmatic dependent launch (Hopper), a kernel may start before the previous one has ended;
it waits where it must.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Below every score. Unlike -inf it stays a number with the index of a bin in its mantissa.
LOWEST = tl.constexpr(-3.0e38)

# The largest height (y): its key may have any last bits, and 1.001 times it is infinite.
HIGHEST = tl.constexpr(3.4e38)

# Queries that are sorted among themselves; a power of two, since keys contain the bits of their indices.
GROUP = tl.constexpr(4096)

# Arrays of centres are padded to a multiple of this, the most queries of a thread block of `rank`.
QUERY_PADDING = tl.constexpr(256)

# Arguments that vary between calls; Triton would recompile for those that are 1 or multiples of 16. Strides
# are not among them: where they are multiples of 16, a thread reads several values at a time.
SIZES = [
    "N", "M", "D", "padded", "blocks", "database_blocks", "splits", "tiles", "parts", "position_stride_item",
]  # fmt: skip


@triton.jit
def start_next(IS_HOPPER: tl.constexpr) -> None:
    """Lets the next kernel start, up to its `wait_for_previous`."""
    if IS_HOPPER:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(IS_HOPPER: tl.constexpr) -> None:
    """Waits until the results of the previous kernels can be read."""
    if IS_HOPPER:
        gdc_wait()


@triton.jit
def read_row(
    start: tl.tensor, D: tl.tensor, stride_value: tl.tensor, D_PAD: tl.constexpr, IS_FULL: tl.constexpr
) -> tl.tensor:
    """The D values of a row, zero-padded."""
    channels = tl.arange(0, D_PAD)
    values = start + channels.to(tl.int64) * stride_value
    if IS_FULL:  # a load without a mask is vectorised
        return tl.load(values)
    return tl.load(values, mask=channels < D, other=0.0)


@triton.jit
def find_scale(row: tl.tensor) -> tl.tensor:
    """The power of two that scales the largest value of a row into [1, 2), which is exact."""
    largest = tl.max(tl.abs(row), axis=0)
    exponent = ((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    exponent = tl.minimum(tl.maximum(exponent, -60), 60)
    exponent = tl.where(largest > 0, exponent, 0)
    return ((127 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
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
    """Values of rows, zero-padded."""
    channels = tl.arange(0, D_PAD)
    offsets = rows.to(tl.int64)[:, None] * stride_row + channels.to(tl.int64)[None, :] * stride_value
    is_value = (rows < count)[:, None]
    if not IS_FULL:
        is_value &= (channels < D)[None, :]
    return tl.load(source + offsets, mask=is_value, other=0.0)


@triton.jit
def _take_larger(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    return tl.maximum(a, c), tl.maximum(b, d)


@triton.jit
def _write_copies(
    values: tl.tensor,
    scale: tl.tensor,
    target: tl.tensor,
    extremes: tl.tensor,
    rows_written: tl.tensor,
    is_written: tl.tensor,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """Writes rows in float16, and the largest norm and rounding error of them; returns squared norms."""
    values = values.to(tl.float32) * scale
    halves = values.to(tl.float16)
    targets = target + rows_written.to(tl.int64)[:, None] * D_PAD + tl.arange(0, D_PAD)[None, :]
    tl.store(targets, halves, mask=is_written[:, None])
    rounding = values - halves.to(tl.float32)
    squared = tl.sum(values * values, axis=1)
    lost = tl.sum(rounding * rounding, axis=1)
    # A comparison with NaN is false, so NaN becomes infinite.
    lengths = tl.where(squared < 3e38, squared, float("inf"))
    roundings = tl.where(lost < 3e38, lost, float("inf"))
    largest, largest_lost = tl.reduce((lengths, roundings), 0, _take_larger)  # both in one reduction
    tl.store(extremes, tl.sqrt(largest))
    tl.store(extremes + 1, tl.sqrt(largest_lost))
    return squared


@triton.jit
def pad_count(N: tl.tensor) -> tl.tensor:
    """The padded number of queries, which keeps the arrays behind each other aligned."""
    return tl.cdiv(N, QUERY_PADDING) * QUERY_PADDING


@triton.jit
def _read_positions(positions: tl.tensor, rows: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The x and y of rows; 0 past the last."""
    is_row = rows < count
    x = tl.load(positions + rows * 2, mask=is_row, other=0.0)
    return x, tl.load(positions + rows * 2 + 1, mask=is_row, other=0.0)


@triton.jit
def _write_positions(
    x: tl.tensor,
    y: tl.tensor,
    packed_xy: tl.tensor,
    heights: tl.tensor,
    rows: tl.tensor,
    M: tl.tensor,
    padded: tl.tensor,
) -> None:
    """Writes x and y packed into one int64, for a single load, and the smallest and largest y."""
    is_row = rows < M
    low_bits = x.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    packed = (y.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low_bits
    tl.store(packed_xy + rows, packed, mask=rows < padded)
    tl.store(heights, tl.min(tl.where(is_row & (y == y), y, float("inf")), axis=0))
    tl.store(heights + 1, tl.max(tl.where(is_row & (y == y), y, -float("inf")), axis=0))


@triton.jit
def unpack_positions(packed_xy: tl.tensor) -> tl.tensor:
    """The x and y of positions that are packed into one int64 each."""
    x = (packed_xy & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return x, (packed_xy >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def bound_heights(heights: tl.tensor) -> tl.tensor:
    """Heights clamped to finite values; NaN becomes the lowest."""
    return tl.minimum(tl.where(heights > -HIGHEST, heights, -HIGHEST), HIGHEST)


@triton.jit
def _make_keys(heights: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """Sort keys in the order of heights, to a relative 2⁻¹¹, and unique within a group.

    Their last bits are those of the row index, so one comparison and one addition order a pair.
    """
    bits = bound_heights(heights).to(tl.int32, bitcast=True)
    return ((bits & -GROUP) | (rows & (GROUP - 1))).to(tl.float32, bitcast=True)


@triton.jit
def _sort_by_height(
    centres: tl.tensor,
    sorted_centres: tl.tensor,
    order: tl.tensor,
    first_row: tl.tensor,
    N: tl.tensor,
    BLOCK: tl.constexpr,
    SORTED: tl.constexpr,
) -> tl.tensor:
    """Ranks queries by the y of their centres, and writes a sorted copy of these, all x first.

    Queries are sorted within groups, so that the work does not grow with N squared. The queries of a group
    must be among its first `SORTED`, or two would get the same rank.
    """
    CHUNK: tl.constexpr = 512
    rows = first_row + tl.arange(0, BLOCK)
    start = first_row // GROUP * GROUP
    x = tl.load(centres + rows * 2, mask=rows < N, other=0.0)
    y = tl.load(centres + rows * 2 + 1, mask=rows < N, other=0.0)
    keys = _make_keys(y, rows)
    before = tl.zeros([BLOCK, CHUNK], tl.float32)
    # Unrolled, so that all heights are loaded before the first comparison.
    for chunk in tl.static_range(0, SORTED, CHUNK):
        others = start + chunk + tl.arange(0, CHUNK)
        heights = tl.load(centres + others * 2 + 1, mask=others < N, other=HIGHEST)
        before += (_make_keys(heights, others)[None, :] < keys[:, None]).to(tl.float32)
    ranks = start + tl.sum(before, axis=1).to(tl.int32)
    tl.store(sorted_centres + ranks, x, mask=rows < N)
    tl.store(sorted_centres + pad_count(N) + ranks, y, mask=rows < N)
    tl.store(order + ranks, rows, mask=rows < N)
    return tl.where(rows < N, ranks, rows)


@triton.jit(do_not_specialize=SIZES)
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
    packed_xy: tl.tensor,
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
    HAS_EXCLUSION: tl.constexpr,
    IS_HOPPER: tl.constexpr,
) -> None:
    """Copies in float16, penalties of database rows (`LOWEST` past the last), and rounding errors.

    With an exclusion radius, queries are sorted by the height of their centres and the heights of database
    rows are bounded by blocks, so that most steps of `rank` need no positions.
    """
    # In this order, so that `rank` does not occupy the device before this kernel can work.
    wait_for_previous(IS_HOPPER)
    start_next(IS_HOPPER)
    # Blocks of queries start first, since sorting takes longest.
    block, item = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    database += item * stride_item
    extremes += (item * tl.num_programs(0) + block) * 2
    if block < database_blocks:
        rows = block * BLOCK + tl.arange(0, BLOCK)
        x, y = 0.0, 0.0
        if HAS_EXCLUSION:  # before the first store, since the compiler moves no load in front of one
            x, y = _read_positions(positions + item * position_stride_item, rows, M)
        values = _read_rows(database, rows, M, D, stride_row, stride_value, D_PAD, IS_FULL)
        # After the rows, so that their loads need not wait for the scale.
        scale = find_scale(read_row(database, D, stride_value, D_PAD, IS_FULL).to(tl.float32))
        copies += item * padded * D_PAD
        squared = _write_copies(values, scale, copies, extremes, rows, rows < padded, D_PAD)
        penalty = tl.where(rows < M, -0.5 * squared, LOWEST)
        tl.store(penalties + item * padded + rows, penalty, mask=rows < padded)
        if HAS_EXCLUSION:
            heights += (item * database_blocks + block) * 2
            _write_positions(x, y, packed_xy + item * padded, heights, rows, M, padded)
    else:
        first_row = (block - database_blocks) * QUERY_BLOCK
        query_rows = first_row + tl.arange(0, QUERY_BLOCK)
        own = queries + item * query_stride_item
        query_values = _read_rows(own, query_rows, N, D, query_stride_row, query_stride_value, D_PAD, IS_FULL)
        first = read_row(database, D, stride_value, D_PAD, IS_FULL)
        ranks = query_rows
        if HAS_EXCLUSION:
            tl.debug_barrier()  # or the compiler moves the loads above behind the sort, and waits again
            ranks = _sort_by_height(
                centres + item * N * 2, sorted_centres + item * pad_count(N) * 2, order + item * N, first_row,
                N, QUERY_BLOCK, SORTED,
            )  # fmt: skip
        scale = find_scale(first.to(tl.float32))
        targets = query_copies + item * N * D_PAD
        _write_copies(query_values, scale, targets, extremes, ranks, query_rows < N, D_PAD)
