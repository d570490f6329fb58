"""Triton kernels of InfoNCE, forward and backward: similarities stay in registers.

`ucn.losses.infonce` documents what they compute and does the same in plain torch where Triton is missing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.losses.triton.tiles import (
    QUERIES,
    list_launch_arguments,
    load_cells,
    load_queries,
    make_dense,
    run_backward,
    store_cells,
    store_queries,
)
from ucn.runtime.kernels import count_blocks, launch_on


@triton.jit
def _logits(
    q: tl.tensor,
    c: tl.tensor,
    centres: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    radius_squared: tl.tensor,
) -> tl.tensor:
    """Similarities of a tile; -inf for cells within the radius of the ground truth and past the last cell."""
    across = tl.load(centres + rows * 2, mask=rows < N, other=0.0)[:, None]
    across -= tl.load(positions + columns * 2, mask=columns < M, other=0.0)[None, :]
    down = tl.load(centres + rows * 2 + 1, mask=rows < N, other=0.0)[:, None]
    down -= tl.load(positions + columns * 2 + 1, mask=columns < M, other=0.0)[None, :]
    is_negative = (across * across + down * down > radius_squared) & (columns < M)[None, :]
    return tl.where(is_negative, tl.dot(q, c, input_precision="tf32"), float("-inf"))


@triton.jit
def _log_sum_exp_kernel(
    queries: tl.tensor,
    cells: tl.tensor,
    centres: tl.tensor,
    positions: tl.tensor,
    result: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    radius_squared: tl.tensor,
    stride_item: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """Log-sum-exp of one block of queries, in one pass over the cells (online softmax)."""
    item = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
    cells += item * stride_item
    centres += item * N * 2
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    summed = tl.zeros([QUERIES], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        logits = _logits(q, c, centres, positions, rows, columns, N, M, radius_squared)
        new_largest = tl.maximum(largest, tl.max(logits, axis=1))
        # Before the first negative all logits are -inf, and -inf - -inf is NaN.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        summed = summed * tl.exp(largest - shift) + tl.sum(tl.exp(logits - shift[:, None]), axis=1)
        largest = new_largest
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(result + item * N + rows, tl.log(summed) + shift, mask=rows < N)


@triton.jit
def _softmax_weights(
    logits: tl.tensor, result: tl.tensor, gradient: tl.tensor, rows: tl.tensor, N: tl.tensor
) -> tl.tensor:
    """Softmax of a tile times each query's gradient; 0 for queries without a negative."""
    log_sum = tl.load(result + rows, mask=rows < N, other=float("-inf"))
    scale = tl.load(gradient + rows, mask=rows < N, other=0.0)
    has_negatives = log_sum > float("-inf")
    shift = tl.where(has_negatives, log_sum, 0.0)
    return tl.exp(logits - shift[:, None]) * tl.where(has_negatives, scale, 0.0)[:, None]


@triton.jit
def _query_gradient_kernel(
    queries: tl.tensor,
    cells: tl.tensor,
    centres: tl.tensor,
    positions: tl.tensor,
    result: tl.tensor,
    gradient: tl.tensor,
    query_gradient: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    radius_squared: tl.tensor,
    stride_item: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """The gradient of one block of queries."""
    item = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
    cells += item * stride_item
    centres += item * N * 2
    accumulated = tl.zeros([QUERIES, D_PAD], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        logits = _logits(q, c, centres, positions, rows, columns, N, M, radius_squared)
        weights = _softmax_weights(logits, result + item * N, gradient + item * N, rows, N)
        accumulated += tl.dot(weights, tl.trans(c), input_precision="tf32")
    store_queries(query_gradient + item * N * D, accumulated, rows, N, D, D_PAD)


@triton.jit
def _cell_gradient_kernel(
    queries: tl.tensor,
    cells: tl.tensor,
    centres: tl.tensor,
    positions: tl.tensor,
    result: tl.tensor,
    gradient: tl.tensor,
    cell_gradient: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    radius_squared: tl.tensor,
    stride_item: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """The gradient of one block of cells, in the memory layout of the cells."""
    item = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    cells += item * stride_item
    c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
    centres += item * N * 2
    accumulated = tl.zeros([D_PAD, CELLS], tl.float32)
    for start in range(0, N, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
        logits = _logits(q, c, centres, positions, rows, columns, N, M, radius_squared)
        weights = _softmax_weights(logits, result + item * N, gradient + item * N, rows, N)
        accumulated += tl.dot(tl.trans(q), weights, input_precision="tf32")
    cell_gradient += item * stride_item
    store_cells(cell_gradient, accumulated, columns, M, stride_value, stride_cell, D, D_PAD)


def log_sum_exp(queries: Tensor, cells: Tensor, centres: Tensor, positions: Tensor, radius: float) -> Tensor:
    """Log-sum-exp (B, N) of query · cell over the cells outside the radius; -inf where there are none.

    Args:
        queries: (B, N, D) float32; `can_fuse` checks that D fits the device.
        cells: (B, D, M) float32, with any strides.
        centres: (B, N, 2), the true match of each query.
        positions: (M, 2) centres of the cells.
        radius: in the unit of `centres` and `positions`.
    """
    queries, centres, positions = _make_contiguous(queries, centres, positions)
    result = torch.empty(queries.shape[:2], dtype=torch.float32, device=queries.device)
    if result.numel():
        grid = (count_blocks(queries.shape[1], QUERIES), len(queries))
        settings = list_launch_arguments(queries, cells)
        with launch_on(queries):
            _log_sum_exp_kernel[grid](
                queries, cells, centres, positions, result, radius_squared=radius**2, **settings
            )
    return result


def log_sum_exp_backward(
    queries: Tensor,
    cells: Tensor,
    centres: Tensor,
    positions: Tensor,
    radius: float,
    result: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients (B, N, D) of the queries and (B, D, M) of the cells.

    The arguments up to `radius` are those of `log_sum_exp`, which returned `result` (B, N); `gradient` (B, N)
    is that of the loss by `result`.
    """
    queries, centres, positions = _make_contiguous(queries, centres, positions)
    cells = make_dense(cells)
    inputs = (queries, cells, centres, positions, result, gradient.contiguous())
    settings = {"radius_squared": radius**2, **list_launch_arguments(queries, cells)}
    return run_backward(_query_gradient_kernel, _cell_gradient_kernel, inputs, settings)


def _make_contiguous(queries: Tensor, centres: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return queries.contiguous(), centres.float().contiguous(), positions.float().contiguous()
