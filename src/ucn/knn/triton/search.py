"""Nearest neighbours on a CUDA device in three kernels, without a matrix of distances.

`prepare` makes float16 copies and measures their rounding errors; `rank` multiplies them and keeps the best
score of each bin of rows; `settle` opens the bins that can contain one of the k nearest rows, by a strict
bound on the rounding, and computes the distances of their rows in float64. The answer is exact however many
rows are nearly tied; only the time grows. Launches depend on shapes alone, so they can be captured in a CUDA
graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from ucn.knn.exclusion import ExclusionRadius
from ucn.knn.triton.prepare import GROUP, QUERY_PADDING, prepare
from ucn.knn.triton.rank import rank
from ucn.knn.triton.settle import settle
from ucn.knn.triton.splits import MAX_TILES, PARTS
from ucn.runtime.kernels import count_blocks, launch_on, round_to_power

MAX_DIMENSION = 512
MAX_NEIGHBOURS = 8

# Bins that a thread block of `settle` chooses from: as many as its registers hold.
_MAX_CANDIDATES = 4096
_GROUP = int(GROUP.value)
_QUERY_PADDING = int(QUERY_PADDING.value)
_PARTS = int(PARTS.value)
_MAX_TILES = int(MAX_TILES.value)
# Registers of a multiprocessor, and the most of a thread.
_REGISTERS = 65536
_MAX_REGISTERS = 255


@dataclass(frozen=True)
class Tuning:
    """Launch parameters of the kernels.

    Attributes:
        rows: queries per product, up to 128; a thread block of `rank` takes two such blocks.
        columns: database rows per step; a power of two.
        fold: database rows of a step that share a bin; a step has at least 16 bins.
        depth: values of a row per step where a row is longer than 128.
        tiles: most steps per thread block, up to 32; a bin has `fold` times as many rows.
        warps: per thread block of `rank`.
        stages: of software pipelining.
        resident: thread blocks per multiprocessor at a time.
        prepare_values: per thread block of `prepare` at a time.
        prepare_warps: per thread block of `prepare`.
        settle_values: of database rows, per thread block of `settle` at a time.
        settle_warps: per thread block of `settle`.
        settle_registers: most registers of a thread of `settle`, for a higher occupancy; 0: no limit.
        use_chain: programmatic dependent launch, where the device has it.
    """

    rows: int = 64
    columns: int = 128
    fold: int = 2
    depth: int = 64
    tiles: int = 12
    warps: int = 4
    stages: int = 2
    resident: int = 2
    prepare_values: int = 8192
    prepare_warps: int = 4
    settle_values: int = 512
    settle_warps: int = 1
    settle_registers: int = 0
    use_chain: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.tiles <= _MAX_TILES:
            raise ValueError(f"tiles must be 1 to {_MAX_TILES}, got {self.tiles}")

    @property
    def queries(self) -> int:
        """Queries per thread block of `rank`."""
        return 2 * self.rows


# The fastest on an H200, for rows that a step of `rank` takes whole.
_HOPPER = Tuning(tiles=16, prepare_values=4096, prepare_warps=4, settle_values=4096, settle_registers=88)
_MAX_UNSPLIT_DIM = 128


@dataclass(frozen=True)
class FusedNeighbours:
    """The result of the fused search.

    Attributes:
        distances: (B, N, k) float32.
        indices: (B, N, k) int64; -1 where there are fewer than k candidates.
        measured: (B, N) int32, the number of distances that were computed in float64.
        extremes: float32 norms and rounding errors by blocks of rows; all finite where the result is valid.
    """

    distances: Tensor
    indices: Tensor
    measured: Tensor
    extremes: Tensor


@dataclass(frozen=True)
class _Sizes:
    splits: int
    tiles: int
    slots: int
    padded: int
    depth: int
    d_pad: int
    block: int
    query_block: int
    sorted_queries: int
    database_blocks: int
    blocks: int


@dataclass(frozen=True)
class _Work:
    """Buffers that one kernel writes and the next reads."""

    query_copies: Tensor
    copies: Tensor
    candidates: Tensor
    order: Tensor
    packed_xy: Tensor
    penalties: Tensor
    totals: Tensor
    sorted_centres: Tensor
    heights: Tensor


def can_search(
    queries: Tensor, database: Tensor, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> bool:
    """Whether `search_fused` takes these inputs (B, N, D) and (B, M, D) within the budget."""
    (B, N, D), M = queries.shape, database.shape[1]
    if B * N * M == 0 or D > MAX_DIMENSION or k > MAX_NEIGHBOURS or B > 65535 or max(N, M) >= 2**30:
        return False
    if queries.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if exclusion is not None and torch.float64 in (exclusion.centres.dtype, exclusion.positions.dtype):
        return False
    tuning = choose_tuning(queries.device, queries.shape[2])
    sizes = _plan(queries, database, k, exclusion is not None, tuning)
    row_bytes = (
        2 * sizes.d_pad * (N + sizes.padded)
        + 4 * sizes.padded
        + N * (4 * sizes.splits * sizes.slots + 12 * k + 16)
        + (exclusion is not None) * (8 * sizes.padded + 12 * N)
    )
    is_held = round_to_power(sizes.splits) * sizes.slots <= _MAX_CANDIDATES
    return is_held and B * row_bytes <= memory_bytes


def search_fused(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None = None,
    tuning: Tuning | None = None,
) -> FusedNeighbours:
    """Finds the k nearest rows of (B, M, D) for each query (B, N, D), all on one CUDA device.

    Args:
        queries: float16, bfloat16 or float32; D up to 512.
        database: of the same type and device.
        k: number of neighbours, up to 8.
        exclusion: as in `nearest`, with positions (B, M, 2) that may be expanded.
        tuning: launch parameters; None chooses them by `choose_tuning`.

    Returns:
        The neighbours. They are invalid, and `extremes` is not finite, where values are not finite or too
        large for float16.
    """
    tuning = tuning or choose_tuning(queries.device, queries.shape[2])
    (B, N, _), M = queries.shape, database.shape[1]
    sizes = _plan(queries, database, k, exclusion is not None, tuning)
    device = queries.device
    work = _allocate(B, N, sizes, exclusion is not None, device)
    found = FusedNeighbours(
        torch.empty((B, N, k), dtype=torch.float32, device=device),
        torch.empty((B, N, k), dtype=torch.int64, device=device),
        torch.empty((B, N), dtype=torch.int32, device=device),
        torch.empty((B, sizes.blocks, 2), dtype=torch.float32, device=device),
    )
    centres, positions, radius_squared = _read_exclusion(exclusion, work.penalties)
    common = {"D_PAD": sizes.d_pad, "HAS_EXCLUSION": exclusion is not None, "IS_HOPPER": _is_hopper(device)}
    # A kernel, the first included, may start before the previous one has ended: each waits before it writes,
    # and before it reads what may not be written yet.
    launch = {**common, "launch_pdl": common["IS_HOPPER"] and tuning.use_chain}
    with launch_on(queries):
        _launch_prepare(queries, database, work, found, centres, positions, sizes, tuning, launch)
        _launch_rank(N, M, work, found, radius_squared, sizes, tuning, launch)
        _launch_settle(queries, database, work, found, centres, radius_squared, sizes, tuning, launch)
    return found


def _allocate(B: int, N: int, sizes: _Sizes, has_exclusion: bool, device: torch.device) -> _Work:
    centres = has_exclusion * 2 * count_blocks(N, _QUERY_PADDING) * _QUERY_PADDING
    parts = [
        sizes.padded, 2 * _PARTS, centres, has_exclusion * 2 * sizes.database_blocks,
    ]  # fmt: skip
    # Each begins at a multiple of 16 bytes; Triton recompiles for other pointers.
    parts = [B * part + -B * part % 4 for part in parts]
    floats = torch.empty(sum(parts), dtype=torch.float32, device=device)
    return _Work(
        torch.empty((B, N, sizes.d_pad), dtype=torch.float16, device=device),
        torch.empty((B, sizes.padded, sizes.d_pad), dtype=torch.float16, device=device),
        torch.empty((B, N, sizes.splits, sizes.slots), dtype=torch.float32, device=device),
        torch.empty(B * N if has_exclusion else 0, dtype=torch.int32, device=device),
        torch.empty(B * sizes.padded if has_exclusion else 0, dtype=torch.int64, device=device),
        *torch.split(floats, parts),
    )


def _launch_prepare(
    queries: Tensor,
    database: Tensor,
    work: _Work,
    found: FusedNeighbours,
    centres: Tensor,
    positions: Tensor,
    sizes: _Sizes,
    tuning: Tuning,
    launch: dict[str, Any],
) -> None:
    (B, N, D), M = queries.shape, database.shape[1]
    prepare[(sizes.blocks, B)](
        queries, database, work.query_copies, work.copies, work.penalties, found.extremes, centres,
        work.sorted_centres, work.order, positions, work.packed_xy, work.heights, N, M, D, sizes.padded,
        sizes.database_blocks, *queries.stride(), *database.stride(), positions.stride(0),
        BLOCK=sizes.block, QUERY_BLOCK=sizes.query_block, SORTED=sizes.sorted_queries,
        IS_FULL=sizes.d_pad == D, num_warps=tuning.prepare_warps, **launch,
    )  # fmt: skip


def _launch_rank(
    N: int,
    M: int,
    work: _Work,
    found: FusedNeighbours,
    radius_squared: float,
    sizes: _Sizes,
    tuning: Tuning,
    launch: dict[str, Any],
) -> None:
    rank[(count_blocks(N, tuning.queries), sizes.splits, len(work.copies))](
        work.query_copies, work.copies, work.penalties, found.extremes, work.totals, work.candidates,
        work.sorted_centres, work.order, work.packed_xy, work.heights, radius_squared, N, M, sizes.tiles,
        sizes.blocks, sizes.database_blocks, ROWS=tuning.rows, COLUMNS=tuning.columns, FOLD=tuning.fold,
        DEPTH=sizes.depth, SLOTS=sizes.slots, STAGES=tuning.stages, BLOCK=sizes.block,
        num_warps=tuning.warps, num_stages=tuning.stages, **_limit(_count_registers(tuning)), **launch,
    )  # fmt: skip


def _launch_settle(
    queries: Tensor,
    database: Tensor,
    work: _Work,
    found: FusedNeighbours,
    centres: Tensor,
    radius_squared: float,
    sizes: _Sizes,
    tuning: Tuning,
    launch: dict[str, Any],
) -> None:
    (B, N, D), M, k = queries.shape, database.shape[1], found.indices.shape[2]
    rows = max(1, min(32, tuning.settle_values // sizes.d_pad))
    settle[(N, B)](
        queries, database, work.copies, work.penalties, work.totals, work.candidates, centres, work.packed_xy,
        radius_squared, found.distances, found.indices, found.measured, N, M, D, sizes.splits, sizes.tiles,
        min(_PARTS, count_blocks(N, tuning.queries)), *queries.stride(), *database.stride(),
        COLUMNS=tuning.columns, BINS=tuning.columns // tuning.fold, SLOTS=sizes.slots,
        SPLITS_PAD=round_to_power(sizes.splits), K=k, K_PAD=round_to_power(k), ROWS=rows,
        IS_FULL=sizes.d_pad == D, num_warps=tuning.settle_warps, **_limit(tuning.settle_registers), **launch,
    )  # fmt: skip


def _limit(registers: int) -> dict[str, int]:
    return {"maxnreg": registers} if registers else {}


def choose_tuning(device: torch.device, D: int) -> Tuning:
    """Launch parameters for a device and rows of D values; less shared memory needs smaller steps."""
    if device.type != "cuda":
        return Tuning()
    facts = _read_device(device)
    if facts.generation == 9:
        return _HOPPER if D <= _MAX_UNSPLIT_DIM else Tuning()
    if facts.shared_bytes >= 140 * 1024:
        return Tuning()
    return Tuning(rows=64 if facts.shared_bytes >= 72 * 1024 else 32, columns=64, fold=1)


@dataclass(frozen=True)
class _Device:
    """The properties of a device that launch parameters depend on.

    Attributes:
        generation: the major version of the compute capability.
        processors: number of multiprocessors.
        shared_bytes: of shared memory per thread block.
    """

    generation: int
    processors: int
    shared_bytes: int


@cache  # read several times per search
def _read_device(device: torch.device) -> _Device:
    properties = torch.cuda.get_device_properties(device)
    shared = int(getattr(properties, "shared_memory_per_block_optin", 99 * 1024))
    return _Device(properties.major, properties.multi_processor_count, shared)


def _is_hopper(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: from compute capability 9.0 on."""
    return device.type == "cuda" and _read_device(device).generation >= 9


def _count_registers(tuning: Tuning) -> int:
    """Registers per thread of `rank` that allow `resident` thread blocks per multiprocessor."""
    return min(_MAX_REGISTERS, _REGISTERS // (32 * tuning.warps * tuning.resident) // 8 * 8)


def _plan(queries: Tensor, database: Tensor, k: int, has_exclusion: bool, tuning: Tuning) -> _Sizes:
    capacity = tuning.resident
    if queries.device.type == "cuda":
        capacity *= _read_device(queries.device).processors
    return _plan_sizes(*queries.shape, database.shape[1], k, has_exclusion, tuning, capacity)


@lru_cache(maxsize=256)
def _plan_sizes(
    B: int, N: int, D: int, M: int, k: int, has_exclusion: bool, tuning: Tuning, capacity: int
) -> _Sizes:
    """Sizes of the launches, for a device that holds `capacity` thread blocks of `rank` at a time."""
    d_pad = max(16, round_to_power(D))
    steps = count_blocks(M, tuning.columns)
    splits = _choose_splits(B * count_blocks(N, tuning.queries), steps, tuning, capacity)
    tiles = count_blocks(steps, splits)
    padded = splits * tiles * tuning.columns
    block = min(64, tuning.columns, tuning.prepare_values // d_pad)
    # Smaller blocks where queries are sorted, which takes long.
    query_block = max(1, block // (4 if has_exclusion else 2))
    database_blocks = count_blocks(padded, block)
    return _Sizes(
        splits=splits,
        tiles=tiles,
        # For the k best of one split, and a few that rounding cannot tell from them.
        slots=4 if k == 1 else 8 if k <= 4 else 16,
        padded=padded,
        depth=d_pad if d_pad <= _MAX_UNSPLIT_DIM else tuning.depth,
        d_pad=d_pad,
        block=block,
        query_block=query_block,
        # Rounded up, since each size is compiled.
        sorted_queries=has_exclusion * min(_GROUP, count_blocks(N, 1024) * 1024),
        database_blocks=database_blocks,
        blocks=database_blocks + count_blocks(N, query_block),
    )


def _choose_splits(row_blocks: int, steps: int, tuning: Tuning, capacity: int) -> int:
    """The number of splits of the database with the shortest estimated time."""
    least = count_blocks(steps, tuning.tiles)

    def measure(splits: int) -> int:
        # A thread block also reads its queries and picks its best bins, at the cost of about three steps.
        return count_blocks(row_blocks * splits, capacity) * (count_blocks(steps, splits) + 3)

    most = max(least, min(steps, 2 * least + count_blocks(capacity, row_blocks)))
    return min(range(least, most + 1), key=measure)


def _read_exclusion(exclusion: ExclusionRadius | None, unused: Tensor) -> tuple[Tensor, Tensor, float]:
    """Points in float32 with x and y side by side, and the squared radius."""
    if exclusion is None:
        return unused, unused, 0.0
    centres, positions = exclusion.centres.float().contiguous(), exclusion.positions.float()
    if positions.stride()[1:] != (2, 1):
        positions = positions.contiguous()
    return centres, positions, min(float(exclusion.radius) ** 2, 3.0e38)  # what a float32 argument can be
