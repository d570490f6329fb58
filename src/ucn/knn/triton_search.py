"""Nearest neighbours on a CUDA device in three launches, without a matrix of distances.

`prepare` makes float16 copies and measures what that rounded away; `rank` multiplies, keeping the best score of
each bin of rows; `settle` takes the bins that can hold one of the k nearest, which follows from a strict bound
of the rounding, and measures their rows in float64. However many rows are nearly as near, the answer is exact:
only the time grows. Launches depend on shapes alone, so they can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ucn.knn.exclusion import Outside
from ucn.knn.triton_kernels import prepare, rank, settle

MAX_DIMENSION = 512
MAX_NEIGHBOURS = 8

_PREPARE_ROWS = 64
# Values of rows that one program of `settle` holds at a time.
_SETTLE_VALUES = 2048


@dataclass(frozen=True)
class Tuning:
    """How `rank` is cut into programs.

    Attributes:
        rows: queries per program.
        columns: database rows per step, and bins per split; a power of two.
        depth: values of a row per step.
        tiles: most steps per program, which is how many rows a bin has.
        warps: of 32 threads each.
        stages: steps that are loaded ahead.
    """

    rows: int = 128
    columns: int = 128
    depth: int = 128
    tiles: int = 16
    warps: int = 8
    stages: int = 3


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
    database_blocks: int
    blocks: int


def can_search(
    queries: Tensor, database: Tensor, k: int, outside: Outside | None, memory_bytes: int
) -> bool:
    """Whether `search_fused` takes such inputs (B, N, D) and (B, M, D); others are for the torch search."""
    (B, N, D), M = queries.shape, database.shape[1]
    if B * N * M == 0 or D > MAX_DIMENSION or k > MAX_NEIGHBOURS or B > 65535 or max(N, M) >= 2**30:
        return False
    if queries.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    if outside is not None and torch.float64 in (outside.centres.dtype, outside.positions.dtype):
        return False
    sizes = _plan(N, M, D, k, Tuning())
    row_bytes = 2 * sizes.d_pad * (N + M) + 4 * sizes.padded + N * (4 * sizes.splits * sizes.slots + 12 * k + 4)
    return sizes.splits <= 2048 and B * row_bytes <= memory_bytes


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
    tuning = tuning or Tuning()
    (B, N, D), M = queries.shape, database.shape[1]
    sizes = _plan(N, M, D, k, tuning)
    device = queries.device
    query_copies = torch.empty((B, N, sizes.d_pad), dtype=torch.float16, device=device)
    copies = torch.empty((B, M, sizes.d_pad), dtype=torch.float16, device=device)
    floats = torch.empty(B * (sizes.padded + 3), dtype=torch.float32, device=device)
    penalties, scales, totals = floats.split([B * sizes.padded, B, 2 * B])
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
            D_PAD=sizes.d_pad, BLOCK=_PREPARE_ROWS, num_warps=4,
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
            ROWS=max(1, _SETTLE_VALUES // sizes.d_pad) if sizes.d_pad > 128 else 16,
            HAS_OUTSIDE=outside is not None, num_warps=1,
        )  # fmt: skip
    return found


def _plan(N: int, M: int, D: int, k: int, tuning: Tuning) -> _Sizes:
    d_pad = max(16, triton.next_power_of_2(D))
    columns_steps = triton.cdiv(M, tuning.columns)
    splits = triton.cdiv(columns_steps, tuning.tiles)
    tiles = triton.cdiv(columns_steps, splits)
    padded = splits * tiles * tuning.columns
    database_blocks = triton.cdiv(padded, _PREPARE_ROWS)
    return _Sizes(
        splits=splits,
        tiles=tiles,
        # Room for the k best in one split and a few that rounding cannot tell from them.
        slots=4 if k == 1 else 8 if k <= 4 else 16,
        padded=padded,
        depth=min(d_pad, tuning.depth),
        d_pad=d_pad,
        database_blocks=database_blocks,
        blocks=database_blocks + triton.cdiv(N, _PREPARE_ROWS),
    )


def _read_outside(outside: Outside | None, unused: Tensor) -> tuple[Tensor, Tensor, float]:
    """Places in float32 with x and y side by side, and the squared radius."""
    if outside is None:
        return unused, unused, 0.0
    centres, positions = outside.centres.float().contiguous(), outside.positions.float()
    if positions.stride()[1:] != (2, 1):
        positions = positions.contiguous()
    return centres, positions, outside.radius**2
