"""GPU programs of InfoNCE, in Triton: similarities live in registers only, forwards and backwards.

What they compute is said in `infonce`; there plain torch does the same in chunks, wherever Triton cannot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.losses.triton.tiles import (
    CELLS,
    QUERIES,
    choose_stages,
    load_cells,
    load_queries,
    make_gradient,
    name_strides,
    pad_dimension,
)
from ucn.runtime.kernels import count_blocks, launch_on


@triton.jit  # type: ignore[untyped-decorator]
def _compare(
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
    """Similarities of a tile, -inf for cells within the radius of the truth and beyond the last."""
    across = tl.load(centres + rows * 2, mask=rows < N, other=0.0)[:, None]
    across -= tl.load(positions + columns * 2, mask=columns < M, other=0.0)[None, :]
    down = tl.load(centres + rows * 2 + 1, mask=rows < N, other=0.0)[:, None]
    down -= tl.load(positions + columns * 2 + 1, mask=columns < M, other=0.0)[None, :]
    is_rival = (across * across + down * down > radius_squared) & (columns < M)[None, :]
    return tl.where(is_rival, tl.dot(q, c, input_precision="tf32"), float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rivals(
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
    """The logarithm of the sum of exponentials of one block of queries."""
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
        logits = _compare(q, c, centres, positions, rows, columns, N, M, radius_squared)
        rising = tl.maximum(largest, tl.max(logits, axis=1))
        # Before the first rival everything is -inf, and -inf less -inf would not be a number.
        shift = tl.where(rising == float("-inf"), 0.0, rising)
        summed = summed * tl.exp(largest - shift) + tl.sum(tl.exp(logits - shift[:, None]), axis=1)
        largest = rising
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(result + item * N + rows, tl.log(summed) + shift, mask=rows < N)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(
    logits: tl.tensor, result: tl.tensor, gradient: tl.tensor, rows: tl.tensor, N: tl.tensor
) -> tl.tensor:
    """What each cell of a tile gets of each query's gradient: its share of the sum, or nothing."""
    total = tl.load(result + rows, mask=rows < N, other=float("-inf"))
    scale = tl.load(gradient + rows, mask=rows < N, other=0.0)
    has_rivals = total > float("-inf")
    shift = tl.where(has_rivals, total, 0.0)
    return tl.exp(logits - shift[:, None]) * tl.where(has_rivals, scale, 0.0)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _send_to_queries(
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
    sent = tl.zeros([QUERIES, D_PAD], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        logits = _compare(q, c, centres, positions, rows, columns, N, M, radius_squared)
        weights = _weigh(logits, result + item * N, gradient + item * N, rows, N)
        sent += tl.dot(weights, tl.trans(c), input_precision="tf32")
    places = tl.arange(0, D_PAD)
    target = query_gradient + item * N * D + rows[:, None] * D + places[None, :]
    tl.store(target, sent, mask=(rows < N)[:, None] & (places < D)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _send_to_cells(
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
    """The gradient of one block of cells, laid out as the cells are."""
    item = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    cells += item * stride_item
    c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
    centres += item * N * 2
    sent = tl.zeros([D_PAD, CELLS], tl.float32)
    for start in range(0, N, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
        logits = _compare(q, c, centres, positions, rows, columns, N, M, radius_squared)
        weights = _weigh(logits, result + item * N, gradient + item * N, rows, N)
        sent += tl.dot(tl.trans(q), weights, input_precision="tf32")
    places = tl.arange(0, D_PAD)
    target = (
        cell_gradient + item * stride_item + places[:, None] * stride_value + columns[None, :] * stride_cell
    )
    tl.store(target, sent, mask=(places < D)[:, None] & (columns < M)[None, :])


def sum_negatives(
    queries: Tensor, cells: Tensor, centres: Tensor, positions: Tensor, radius: float
) -> Tensor:
    """Logarithm (B, N) of the sum of exp(query · cell) over the cells outside the radius; -inf without any.

    Args:
        queries: (B, N, D) float32; `can_fuse` says which D a device has room for.
        cells: (B, D, M) float32, in any layout.
        centres: (B, N, 2), the true match of each query.
        positions: (M, 2), where the cells lie.
        radius: in the unit of both.
    """
    queries, centres, positions = _lay_out(queries, centres, positions)
    result = torch.empty(queries.shape[:2], dtype=torch.float32, device=queries.device)
    if result.numel():
        grid = (count_blocks(queries.shape[1], QUERIES), len(queries))
        settings = _describe(queries, cells, radius)
        with launch_on(queries):
            _sum_rivals[grid](queries, cells, centres, positions, result, **settings)
    return result


def send_back(
    queries: Tensor,
    cells: Tensor,
    centres: Tensor,
    positions: Tensor,
    radius: float,
    result: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients (B, N, D) of the queries and (B, D, M) of the cells.

    Args:
        queries: as `sum_negatives` was given, and so the next four.
        cells: likewise.
        centres: likewise.
        positions: likewise.
        radius: likewise.
        result: what it gave.
        gradient: (B, N), of that.
    """
    queries, centres, positions = _lay_out(queries, centres, positions)
    gradient = gradient.contiguous()
    query_gradient = torch.zeros_like(queries)
    cells, cell_gradient = make_gradient(cells)
    if result.numel():
        arguments = (queries, cells, centres, positions, result, gradient)
        settings = _describe(queries, cells, radius)
        with launch_on(queries):
            _send_to_queries[(count_blocks(queries.shape[1], QUERIES), len(queries))](
                *arguments, query_gradient, **settings
            )
            _send_to_cells[(count_blocks(cells.shape[2], CELLS), len(queries))](
                *arguments, cell_gradient, **settings
            )
    return query_gradient, cell_gradient


def _lay_out(queries: Tensor, centres: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return queries.contiguous(), centres.float().contiguous(), positions.float().contiguous()


def _describe(queries: Tensor, cells: Tensor, radius: float) -> dict[str, float]:
    """Sizes and strides, under the names that all programs give them."""
    D = queries.shape[2]
    return {
        "radius_squared": radius**2,
        "N": queries.shape[1],
        "M": cells.shape[2],
        **name_strides(cells),
        "D": D,
        "D_PAD": pad_dimension(D),
        "QUERIES": QUERIES,
        "CELLS": CELLS,
        "num_stages": choose_stages(queries.device, D),
    }
