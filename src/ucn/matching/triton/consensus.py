"""The sums of neighbourhood consensus in a few Triton kernels, in place of hundreds of launches of torch.

The sum is separable, so each group of hypotheses takes two kernels: one along x, one along y. A program
instance handles one coarse cell of image 0 and a block of cells of image 1. The reference is `_sum_around` of
`ucn.matching.consensus`.
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
_GROUP = 4  # hypotheses at a time; their volumes stay in the cache of a large GPU
# Arguments that differ from call to call; Triton would recompile for values of 1 and multiples of 16.
_SIZES = ["h0", "w0", "h1", "w1", "first", "count"]

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
    along_x = torch.empty(min(_GROUP, len(hypotheses)), *similarity.shape, device=similarity.device)
    grid = h0 * w0, count_blocks(h1 * w1, _BLOCK)
    known = {"SHIFTS": len(shifts), "BLOCK": _BLOCK, "num_warps": 4}
    similarity = similarity.contiguous()
    with launch_on(similarity):
        for first in range(0, len(hypotheses), _GROUP):
            count = min(_GROUP, len(hypotheses) - first)
            _sum_along_x[(*grid, count)](similarity, along_x, steps, weights, h0, w0, h1, w1, first, **known)
            _sum_along_y[grid](along_x, best, steps, weights, h0, w0, h1, w1, first, count, **known)
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


@triton.jit
def _sum_shifts(
    volume: tl.tensor,
    steps: tl.tensor,
    weights: tl.tensor,
    row0: tl.tensor,
    column0: tl.tensor,
    row1: tl.tensor,
    column1: tl.tensor,
    h0: tl.tensor,
    w0: tl.tensor,
    h1: tl.tensor,
    w1: tl.tensor,
    ALONG_X: tl.constexpr,
    SHIFTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Weighted sum of a volume over shifts along one axis; outside, it counts as 0."""
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(SHIFTS):
        shift = tl.load(steps + 3 * i)
        from_row, from_column = row0, column0
        if ALONG_X:
            from_column += shift
        else:
            from_row += shift
        if (from_row >= 0) & (from_row < h0) & (from_column >= 0) & (from_column < w0):
            rows, columns = row1 + tl.load(steps + 3 * i + 1), column1 + tl.load(steps + 3 * i + 2)
            is_inside = (rows >= 0) & (rows < h1) & (columns >= 0) & (columns < w1)
            start = (from_row * w0 + from_column).to(tl.int64) * h1 * w1
            values = tl.load(volume + start + rows * w1 + columns, mask=is_inside, other=0.0)
            total += tl.load(weights + i) * values
    return total


@triton.jit(do_not_specialize=_SIZES)
def _sum_along_x(
    similarity: tl.tensor,
    along_x: tl.tensor,
    steps: tl.tensor,
    weights: tl.tensor,
    h0: int,
    w0: int,
    h1: int,
    w1: int,
    first: int,
    SHIFTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The sums along x of one hypothesis of a group that begins with `first`."""
    cell0, hypothesis = tl.program_id(0), tl.program_id(2)
    cells1 = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = _sum_shifts(
        similarity, steps + (first + hypothesis) * 2 * SHIFTS * 3, weights, cell0 // w0, cell0 % w0,
        cells1 // w1, cells1 % w1, h0, w0, h1, w1, True, SHIFTS, BLOCK,
    )  # fmt: skip
    place = (hypothesis * h0 * w0 + cell0).to(tl.int64) * h1 * w1 + cells1
    tl.store(along_x + place, total, mask=cells1 < h1 * w1)


@triton.jit(do_not_specialize=_SIZES)
def _sum_along_y(
    along_x: tl.tensor,
    best: tl.tensor,
    steps: tl.tensor,
    weights: tl.tensor,
    h0: int,
    w0: int,
    h1: int,
    w1: int,
    first: int,
    count: int,
    SHIFTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The best of the whole sums of a group of hypotheses, and of the groups before."""
    cell0 = tl.program_id(0)
    cells1 = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = cell0.to(tl.int64) * h1 * w1 + cells1
    highest = tl.zeros((BLOCK,), dtype=tl.float32)
    if first > 0:
        highest = tl.load(best + place, mask=cells1 < h1 * w1, other=0.0)
    for hypothesis in range(count):
        total = _sum_shifts(
            along_x + (hypothesis * h0 * w0).to(tl.int64) * h1 * w1,  # type: ignore[attr-defined]
            steps + (first + hypothesis) * 2 * SHIFTS * 3 + SHIFTS * 3, weights, cell0 // w0, cell0 % w0,
            cells1 // w1, cells1 % w1, h0, w0, h1, w1, False, SHIFTS, BLOCK,
        )  # fmt: skip
        highest = tl.maximum(highest, total)
    tl.store(best + place, highest, mask=cells1 < h1 * w1)
