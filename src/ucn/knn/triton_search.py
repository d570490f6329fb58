"""Nearest neighbours on a CUDA device in three launches, without a matrix of distances.

`prepare` makes float16 copies and measures what that rounded away; `rank` multiplies, keeping the best score
of each bin of rows; `settle` takes the bins that can hold one of the k nearest, which follows from a strict
bound of the rounding, and measures their rows in float64. However many rows are nearly as near, the answer is
exact: only the time grows. Launches depend on shapes alone, so they can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ucn.knn.exclusion import Outside
from ucn.knn.triton_rank import prepare, rank
from ucn.knn.triton_settle import settle

MAX_DIMENSION = 512
MAX_NEIGHBOURS = 8

# Values that one program of `prepare` holds at a time, and bins that one of `settle` chooses from: as many as
# its registers take.
_PREPARE_VALUES = 8192
_MOST_CANDIDATES = 4096


@dataclass(frozen=True)
class Tuning:
    """How `rank` is cut into programs.

    Attributes:
        rows: queries per program.
        columns: database rows per step, and bins per split; a power of two.
        depth: values of a row per step where a row is longer than 128.
        tiles: most steps per program, which is how many rows a bin has.
        warps: of 32 threads each.
        stages: steps that are loaded ahead.
        resident: programs that a multiprocessor holds at a time.
        settle_values: of database rows, held at a time by a program of `settle`.
        settle_warps: of such a program.
    """

    rows: int = 128
    columns: int = 128
    depth: int = 64
    tiles: int = 24
    warps: int = 8
    stages: int = 3
    resident: int = 1
    settle_values: int = 1024
    settle_warps: int = 1


@dataclass(frozen=True)
class FusedNeighbours:
    """What the search found.

    Attributes:
        distances: (B, N, k) float32.
        indices: (B, N, k) int64, -1 where no row was left.
        measured: (B, N) int32, how many rows were measured in float64.
        extremes: float32, lengths and roundings by blocks of rows; all finite where the answer is valid.
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
    database_blocks: int
    blocks: int


def can_search(queries: Tensor, database: Tensor, k: int, outside: Outside | None, memory_bytes: int) -> bool:
    """Whether `search_fused` takes such inputs (B, N, D) and (B, M, D); others are for the torch search."""
    (B, N, D), M = queries.shape, database.shape[1]
    if B * N * M == 0 or D > MAX_DIMENSION or k > MAX_NEIGHBOURS or B > 65535 or max(N, M) >= 2**30:
        return False
    if queries.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if outside is not None and torch.float64 in (outside.centres.dtype, outside.positions.dtype):
        return False
    sizes = _plan(queries, database, k, choose_tuning(queries.device))
    row_bytes = (
        2 * sizes.d_pad * (N + M) + 4 * sizes.padded + N * (4 * sizes.splits * sizes.slots + 12 * k + 4)
    )
    is_held = triton.next_power_of_2(sizes.splits) * sizes.slots <= _MOST_CANDIDATES
    return is_held and B * row_bytes <= memory_bytes


def search_fused(
    queries: Tensor, database: Tensor, k: int, outside: Outside | None = None, tuning: Tuning | None = None
) -> FusedNeighbours:
    """Finds the k nearest rows of (B, M, D) for each query (B, N, D), all on one CUDA device.

    Args:
        queries: float16, bfloat16 or float32; D up to 512.
        database: of the same type and device.
        k: how many, up to 8.
        outside: as in `nearest`, with positions (B, M, 2) that may be expanded.
        tuning: how the work is cut; a good choice where None.

    Returns:
        The neighbours. Values that are not finite, or that differ by more than float16 spans, spoil them;
        `extremes` then is not finite.
    """
    tuning = tuning or choose_tuning(queries.device)
    (B, N, D), M = queries.shape, database.shape[1]
    sizes = _plan(queries, database, k, tuning)
    device = queries.device
    query_copies = torch.empty((B, N, sizes.d_pad), dtype=torch.float16, device=device)
    copies = torch.empty((B, M, sizes.d_pad), dtype=torch.float16, device=device)
    floats = torch.empty(B * (sizes.padded + 3), dtype=torch.float32, device=device)
    penalties, scales, totals = torch.split(floats, [B * sizes.padded, B, 2 * B])
    found = FusedNeighbours(
        torch.empty((B, N, k), dtype=torch.float32, device=device),
        torch.empty((B, N, k), dtype=torch.int64, device=device),
        torch.empty((B, N), dtype=torch.int32, device=device),
        torch.empty((B, sizes.blocks, 2), dtype=torch.float32, device=device),
    )
    candidates = torch.empty((B, N, sizes.splits, sizes.slots), dtype=torch.float32, device=device)
    centres, positions, radius_squared = _read_outside(outside, floats)
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        prepare[(sizes.blocks, B)](
            queries, database, query_copies, copies, penalties, found.extremes, scales,
            N, M, D, sizes.padded, sizes.database_blocks, *queries.stride(), *database.stride(),
            D_PAD=sizes.d_pad, BLOCK=sizes.block, num_warps=4,
        )  # fmt: skip
        rank[(triton.cdiv(N, tuning.rows), sizes.splits, B)](
            query_copies, copies, penalties, found.extremes, totals, candidates,
            centres, positions, radius_squared, N, M, sizes.tiles, sizes.blocks, sizes.database_blocks,
            positions.stride(0), D_PAD=sizes.d_pad, ROWS=tuning.rows, COLUMNS=tuning.columns,
            DEPTH=sizes.depth, SLOTS=sizes.slots, HAS_OUTSIDE=outside is not None, STAGES=tuning.stages,
            num_warps=tuning.warps, num_stages=tuning.stages,
        )  # fmt: skip
        settle[(N, B)](
            queries, database, query_copies, copies, penalties, scales, totals, candidates,
            centres, positions, radius_squared, found.distances, found.indices, found.measured,
            N, M, D, sizes.splits, sizes.tiles, *queries.stride(), *database.stride(), positions.stride(0),
            D_PAD=sizes.d_pad, COLUMNS=tuning.columns, SLOTS=sizes.slots,
            SPLITS_PAD=triton.next_power_of_2(sizes.splits), K=k, K_PAD=triton.next_power_of_2(k),
            ROWS=min(32, tuning.settle_values // sizes.d_pad), HAS_OUTSIDE=outside is not None,
            num_warps=tuning.settle_warps,
        )  # fmt: skip
    return found


def choose_tuning(device: torch.device) -> Tuning:
    """A good cut for a device: less shared memory asks for smaller steps."""
    if device.type != "cuda":
        return Tuning()
    properties = torch.cuda.get_device_properties(device)
    shared = int(getattr(properties, "shared_memory_per_block_optin", 99 * 1024))
    if shared >= 140 * 1024:
        return Tuning()
    if shared >= 72 * 1024:
        return Tuning(columns=64, warps=4, stages=2)
    return Tuning(rows=64, columns=64, warps=4, stages=2)


def _plan(queries: Tensor, database: Tensor, k: int, tuning: Tuning) -> _Sizes:
    (B, N, D), M = queries.shape, database.shape[1]
    d_pad = max(16, triton.next_power_of_2(D))
    steps = triton.cdiv(M, tuning.columns)
    splits = _choose_splits(B * triton.cdiv(N, tuning.rows), steps, tuning, queries.device)
    tiles = triton.cdiv(steps, splits)
    padded = splits * tiles * tuning.columns
    block = min(64, _PREPARE_VALUES // d_pad)
    database_blocks = triton.cdiv(padded, block)
    return _Sizes(
        splits=splits,
        tiles=tiles,
        # Room for the k best in one split and a few that rounding cannot tell from them.
        slots=4 if k == 1 else 8 if k <= 4 else 16,
        padded=padded,
        depth=d_pad if d_pad <= 128 else tuning.depth,
        d_pad=d_pad,
        block=block,
        database_blocks=database_blocks,
        blocks=database_blocks + triton.cdiv(N, block),
    )


def _choose_splits(row_blocks: int, steps: int, tuning: Tuning, device: torch.device) -> int:
    """In how many stretches the database is searched, so that the last programs end together."""
    places = tuning.resident
    if device.type == "cuda":
        places *= torch.cuda.get_device_properties(device).multi_processor_count
    least = triton.cdiv(steps, tuning.tiles)

    def measure(splits: int) -> int:
        # Each program also reads its queries and picks its best bins, about the cost of three steps.
        return int(triton.cdiv(row_blocks * splits, places) * (triton.cdiv(steps, splits) + 3))

    most = max(least, min(steps, 2 * least + triton.cdiv(places, row_blocks)))
    return min(range(least, most + 1), key=measure)


def _read_outside(outside: Outside | None, unused: Tensor) -> tuple[Tensor, Tensor, float]:
    """Places in float32 with x and y side by side, and the squared radius."""
    if outside is None:
        return unused, unused, 0.0
    centres, positions = outside.centres.float().contiguous(), outside.positions.float()
    if positions.stride()[1:] != (2, 1):
        positions = positions.contiguous()
    return centres, positions, min(float(outside.radius) ** 2, 3.0e38)  # what a float32 argument can be
