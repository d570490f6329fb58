"""GPU programs of distillation, in Triton: both networks' similarities live in registers only.

What they compute is said in `distillation`; there plain torch does the same in chunks, where Triton cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Divergences:
    """What the forward pass finds of each query.

    Attributes:
        values: (B, N), the divergence of the student's shares from the teacher's.
        student_sums: (B, N), logarithm of the sum of exponentials of the student's similarities.
        teacher_sums: (B, N), the same of the teacher's.
    """

    values: Tensor
    student_sums: Tensor
    teacher_sums: Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(q: tl.tensor, c: tl.tensor, columns: tl.tensor, M: tl.tensor) -> tl.tensor:
    """Similarities of a tile, -inf beyond the last cell."""
    return tl.where((columns < M)[None, :], tl.dot(q, c, input_precision="tf32"), float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _sum_divergences(
    queries: tl.tensor,
    cells: tl.tensor,
    teacher_queries: tl.tensor,
    teacher_cells: tl.tensor,
    values: tl.tensor,
    student_sums: tl.tensor,
    teacher_sums: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    stride_item: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    teacher_stride_item: tl.tensor,
    teacher_stride_value: tl.tensor,
    teacher_stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    TEACHER_D: tl.constexpr,
    TEACHER_D_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """The divergences of one block of queries, in one pass over the cells.

    Σ p (log p - log q) = Σ p (t - s) - log Σ exp t + log Σ exp s, with similarities t of the teacher and s of
    the student. Sums are kept relative to the largest similarity so far.
    """
    item = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
    taught_q = load_queries(teacher_queries + item * N * TEACHER_D, rows, N, TEACHER_D, TEACHER_D_PAD)
    cells += item * stride_item
    teacher_cells += item * teacher_stride_item
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    taught_largest = tl.full([QUERIES], float("-inf"), tl.float32)
    summed = tl.zeros([QUERIES], tl.float32)
    taught_summed = tl.zeros([QUERIES], tl.float32)
    gap = tl.zeros([QUERIES], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        taught_c = load_cells(
            teacher_cells, columns, M, teacher_stride_value, teacher_stride_cell, TEACHER_D, TEACHER_D_PAD
        )
        student = _multiply(q, c, columns, M)
        teacher = _multiply(taught_q, taught_c, columns, M)
        rising = tl.maximum(largest, tl.max(student, axis=1))
        summed = summed * tl.exp(largest - rising) + tl.sum(tl.exp(student - rising[:, None]), axis=1)
        largest = rising
        rising = tl.maximum(taught_largest, tl.max(teacher, axis=1))
        fall = tl.exp(taught_largest - rising)
        shares = tl.exp(teacher - rising[:, None])
        taught_summed = taught_summed * fall + tl.sum(shares, axis=1)
        # Beyond the last cell both are -inf, whose difference is no number.
        difference = tl.where((columns < M)[None, :], teacher - student, 0.0)
        gap = gap * fall + tl.sum(shares * difference, axis=1)
        taught_largest = rising
    total = tl.log(summed) + largest
    taught_total = tl.log(taught_summed) + taught_largest
    places = item * N + rows
    tl.store(values + places, gap / taught_summed - taught_total + total, mask=rows < N)
    tl.store(student_sums + places, total, mask=rows < N)
    tl.store(teacher_sums + places, taught_total, mask=rows < N)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(
    student: tl.tensor,
    teacher: tl.tensor,
    student_sums: tl.tensor,
    teacher_sums: tl.tensor,
    gradient: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
) -> tl.tensor:
    """What each cell of a tile gets of each query's gradient: the student's share less the teacher's."""
    total = tl.load(student_sums + rows, mask=rows < N, other=0.0)
    taught_total = tl.load(teacher_sums + rows, mask=rows < N, other=0.0)
    scale = tl.load(gradient + rows, mask=rows < N, other=0.0)
    shares = tl.exp(student - total[:, None]) - tl.exp(teacher - taught_total[:, None])
    return tl.where((columns < M)[None, :], shares * scale[:, None], 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _send_to_queries(
    queries: tl.tensor,
    cells: tl.tensor,
    teacher_queries: tl.tensor,
    teacher_cells: tl.tensor,
    student_sums: tl.tensor,
    teacher_sums: tl.tensor,
    gradient: tl.tensor,
    query_gradient: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    stride_item: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    teacher_stride_item: tl.tensor,
    teacher_stride_value: tl.tensor,
    teacher_stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    TEACHER_D: tl.constexpr,
    TEACHER_D_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """The gradient of one block of queries."""
    item = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
    taught_q = load_queries(teacher_queries + item * N * TEACHER_D, rows, N, TEACHER_D, TEACHER_D_PAD)
    cells += item * stride_item
    teacher_cells += item * teacher_stride_item
    first = item * N
    sent = tl.zeros([QUERIES, D_PAD], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        taught_c = load_cells(
            teacher_cells, columns, M, teacher_stride_value, teacher_stride_cell, TEACHER_D, TEACHER_D_PAD
        )
        weights = _weigh(
            _multiply(q, c, columns, M), _multiply(taught_q, taught_c, columns, M), student_sums + first,
            teacher_sums + first, gradient + first, rows, columns, N, M,
        )  # fmt: skip
        sent += tl.dot(weights, tl.trans(c), input_precision="tf32")
    places = tl.arange(0, D_PAD)
    target = query_gradient + item * N * D + rows[:, None] * D + places[None, :]
    tl.store(target, sent, mask=(rows < N)[:, None] & (places < D)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _send_to_cells(
    queries: tl.tensor,
    cells: tl.tensor,
    teacher_queries: tl.tensor,
    teacher_cells: tl.tensor,
    student_sums: tl.tensor,
    teacher_sums: tl.tensor,
    gradient: tl.tensor,
    cell_gradient: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    stride_item: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    teacher_stride_item: tl.tensor,
    teacher_stride_value: tl.tensor,
    teacher_stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    TEACHER_D: tl.constexpr,
    TEACHER_D_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """The gradient of one block of cells, laid out as the cells are."""
    item = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    cells += item * stride_item
    c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
    taught_c = load_cells(
        teacher_cells + item * teacher_stride_item, columns, M, teacher_stride_value, teacher_stride_cell,
        TEACHER_D, TEACHER_D_PAD,
    )  # fmt: skip
    first = item * N
    sent = tl.zeros([D_PAD, CELLS], tl.float32)
    for start in range(0, N, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        q = load_queries(queries + first * D, rows, N, D, D_PAD)
        taught_q = load_queries(teacher_queries + first * TEACHER_D, rows, N, TEACHER_D, TEACHER_D_PAD)
        weights = _weigh(
            _multiply(q, c, columns, M), _multiply(taught_q, taught_c, columns, M), student_sums + first,
            teacher_sums + first, gradient + first, rows, columns, N, M,
        )  # fmt: skip
        sent += tl.dot(tl.trans(q), weights, input_precision="tf32")
    places = tl.arange(0, D_PAD)
    target = (
        cell_gradient + item * stride_item + places[:, None] * stride_value + columns[None, :] * stride_cell
    )
    tl.store(target, sent, mask=(places < D)[:, None] & (columns < M)[None, :])


def sum_divergences(
    queries: Tensor, cells: Tensor, teacher_queries: Tensor, teacher_cells: Tensor
) -> Divergences:
    """How far the student's shares of all cells are from the teacher's, for each query.

    Args:
        queries: (B, N, D) float32; `can_fuse` says which D and E a device has room for.
        cells: (B, D, M) float32, in any layout, M at least 1.
        teacher_queries: (B, N, E) float32.
        teacher_cells: (B, E, M) float32, in any layout.
    """
    sizes = queries.shape[:2]
    values = [torch.empty(sizes, dtype=torch.float32, device=queries.device) for _ in range(3)]
    if values[0].numel():
        settings = _describe(queries, cells, teacher_queries, teacher_cells)
        with launch_on(queries):
            _sum_divergences[(count_blocks(queries.shape[1], QUERIES), len(queries))](
                queries.contiguous(), cells, teacher_queries.contiguous(), teacher_cells, *values, **settings
            )
    return Divergences(*values)


def send_back(
    queries: Tensor,
    cells: Tensor,
    teacher_queries: Tensor,
    teacher_cells: Tensor,
    student_sums: Tensor,
    teacher_sums: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients (B, N, D) of the queries and (B, D, M) of the cells; the teacher gets none.

    Args:
        queries: as `sum_divergences` was given, and so the next three.
        cells: likewise.
        teacher_queries: likewise.
        teacher_cells: likewise.
        student_sums: what it found, and so the next.
        teacher_sums: likewise.
        gradient: (B, N), of the divergences.
    """
    queries, teacher_queries = queries.contiguous(), teacher_queries.contiguous()
    query_gradient = torch.zeros_like(queries)
    cells, cell_gradient = make_gradient(cells)
    if gradient.numel():
        arguments = (
            queries, cells, teacher_queries, teacher_cells, student_sums, teacher_sums, gradient.contiguous(),
        )  # fmt: skip
        settings = _describe(queries, cells, teacher_queries, teacher_cells)
        with launch_on(queries):
            _send_to_queries[(count_blocks(queries.shape[1], QUERIES), len(queries))](
                *arguments, query_gradient, **settings
            )
            _send_to_cells[(count_blocks(cells.shape[2], CELLS), len(queries))](
                *arguments, cell_gradient, **settings
            )
    return query_gradient, cell_gradient


def _describe(
    queries: Tensor, cells: Tensor, teacher_queries: Tensor, teacher_cells: Tensor
) -> dict[str, int]:
    """Sizes and strides, under the names that all programs give them."""
    D, teacher_D = queries.shape[2], teacher_queries.shape[2]
    return {
        "N": queries.shape[1],
        "M": cells.shape[2],
        **name_strides(cells),
        **name_strides(teacher_cells, "teacher_"),
        "D": D,
        "D_PAD": pad_dimension(D),
        "TEACHER_D": teacher_D,
        "TEACHER_D_PAD": pad_dimension(teacher_D),
        "QUERIES": QUERIES,
        "CELLS": CELLS,
        "num_stages": choose_stages(queries.device, D, teacher_D),
    }
