"""The sums of neighbourhood consensus as one Triton kernel, in place of hundreds of launches of torch.

One program instance handles one coarse cell of image 0 and a block of cells of image 1, with all hypotheses
and all shifts. The reference is `_sum_around` of `ucn.matching.consensus`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import count_blocks, launch_on

_BLOCK = 256
_SIZES = ["h0", "w0", "h1", "w1"]  # Triton would recompile for values of 1 and multiples of 16

_LinearMap = tuple[tuple[float, float], tuple[float, float]]


def sum_around_fused(
    similarity: Tensor, hypotheses: Sequence[_LinearMap], shifts: Sequence[int], spread: float
) -> Tensor:
    """Weighted sums (h0, w0, h1, w1) of the pairs around each pair, of the best hypothesis.

    Args:
        similarity: (h0, w0, h1, w1) float32, at least 0.
        hypotheses: local linear maps, at least one.
        shifts: along each axis, in cells.
        spread: standard deviation of their Gaussian weights, in cells.
    """
    h0, w0, h1, w1 = similarity.shape
    best = torch.empty(similarity.shape, dtype=torch.float32, device=similarity.device)
    steps, weights = _list_steps(tuple(hypotheses), tuple(shifts), spread, similarity.device)
    with launch_on(similarity):
        _sum_block[(h0 * w0, count_blocks(h1 * w1, _BLOCK))](
            similarity.contiguous(), best, steps, weights, h0, w0, h1, w1,
            HYPOTHESES=len(hypotheses), SHIFTS=len(shifts), BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return best


@lru_cache(maxsize=8)
def _list_steps(
    hypotheses: tuple[_LinearMap, ...], shifts: tuple[int, ...], spread: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Steps (H, 2, S, 3), along x and then y: in image 0, rows and columns in image 1; weights (S,)."""
    steps = [
        [
            [[shift, round(linear[1][axis] * shift), round(linear[0][axis] * shift)] for shift in shifts]
            for axis in (0, 1)
        ]
        for linear in hypotheses
    ]
    weights = [math.exp(-0.5 * (shift / spread) ** 2) for shift in shifts]
    return torch.tensor(steps, dtype=torch.int32, device=device), torch.tensor(weights, device=device)


@triton.jit(do_not_specialize=_SIZES)
def _sum_block(
    similarity: tl.tensor,
    best: tl.tensor,
    steps: tl.tensor,
    weights: tl.tensor,
    h0: int,
    w0: int,
    h1: int,
    w1: int,
    HYPOTHESES: tl.constexpr,
    SHIFTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    cell0 = tl.program_id(0)
    row0, column0 = cell0 // w0, cell0 % w0
    cells1 = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row1, column1 = cells1 // w1, cells1 % w1
    highest = tl.zeros((BLOCK,), dtype=tl.float32)
    for hypothesis in range(HYPOTHESES):
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        along_x = steps + hypothesis * 2 * SHIFTS * 3
        along_y = along_x + SHIFTS * 3
        for j in range(SHIFTS):
            row0_y = row0 + tl.load(along_y + 3 * j)
            if (row0_y >= 0) & (row0_y < h0):
                row1_y = row1 + tl.load(along_y + 3 * j + 1)
                column1_y = column1 + tl.load(along_y + 3 * j + 2)
                is_inside_y = (row1_y >= 0) & (row1_y < h1) & (column1_y >= 0) & (column1_y < w1)
                weight_y = tl.load(weights + j)
                for i in range(SHIFTS):
                    column0_x = column0 + tl.load(along_x + 3 * i)
                    if (column0_x >= 0) & (column0_x < w0):
                        row1_x = row1_y + tl.load(along_x + 3 * i + 1)
                        column1_x = column1_y + tl.load(along_x + 3 * i + 2)
                        is_inside = is_inside_y & (row1_x >= 0) & (row1_x < h1)
                        is_inside = is_inside & (column1_x >= 0) & (column1_x < w1)
                        start = (row0_y * w0 + column0_x).to(tl.int64) * h1 * w1
                        values = tl.load(
                            similarity + start + row1_x * w1 + column1_x, mask=is_inside, other=0.0
                        )
                        total += weight_y * tl.load(weights + i) * values
        highest = tl.maximum(highest, total)
    place = cell0.to(tl.int64) * h1 * w1 + cells1
    tl.store(best + place, highest, mask=cells1 < h1 * w1)
