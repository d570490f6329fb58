"""Nearest 2D points as one Triton kernel: one program instance compares one point with all known ones.

The reference is `nearest_points` of `ucn.geometry.neighbours`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import launch_on, round_to_power

MAX_KNOWN = 8192  # as many as the registers of a thread block hold
_LAST = tl.constexpr(2**31 - 1)


def nearest_points_fused(
    points: Tensor, known: Tensor, count: int, is_known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Distances (N, count) in float64, inf where there is none, and rows (N, count), there -1.

    Args:
        points: (N, 2) float32, N at least 1.
        known: (M, 2) float32, M at least 1.
        count: number of neighbours; of equally near ones the lowest row comes first.
        is_known: (M,) bool, which of them count; None counts all.
    """
    N, M = len(points), len(known)
    distances = torch.empty(N, count, dtype=torch.float64, device=points.device)
    rows = torch.empty(N, count, dtype=torch.int64, device=points.device)
    padded = max(16, round_to_power(M))
    with launch_on(points):
        _find_nearest[(N,)](
            points.contiguous(), known.contiguous(), known if is_known is None else is_known.contiguous(),
            distances, rows, M, count, PADDED=padded, HAS_MASK=is_known is not None,
            num_warps=min(8, max(1, padded // 512)),
        )  # fmt: skip
    return distances, rows


@triton.jit(do_not_specialize=["M", "count"])
def _find_nearest(
    points: tl.tensor,
    known: tl.tensor,
    is_known: tl.tensor,
    distances: tl.tensor,
    rows: tl.tensor,
    M: tl.tensor,
    count: tl.tensor,
    PADDED: tl.constexpr,
    HAS_MASK: tl.constexpr,
) -> None:
    """Takes the nearest point that is left, again and again."""
    point = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, PADDED)
    is_left = row < M
    if HAS_MASK:
        is_left = is_left & (tl.load(is_known + row, mask=is_left, other=0) != 0)
    away_x = tl.load(known + 2 * row, mask=row < M, other=0.0).to(tl.float64)
    away_y = tl.load(known + 2 * row + 1, mask=row < M, other=0.0).to(tl.float64)
    away_x -= tl.load(points + 2 * point).to(tl.float64)
    away_y -= tl.load(points + 2 * point + 1).to(tl.float64)
    squared = tl.where(is_left, away_x * away_x + away_y * away_y, float("inf"))
    for rank in range(count):
        nearest = tl.min(squared, axis=0)
        found = tl.min(tl.where(squared == nearest, row, _LAST), axis=0)
        is_found = nearest < float("inf")
        tl.store(distances + point * count + rank, tl.sqrt(nearest))
        tl.store(rows + point * count + rank, tl.where(is_found, found, -1).to(tl.int64))
        squared = tl.where(row == found, float("inf"), squared)
