"""Triton kernels of distillation, forward and backward: the similarities of both networks stay in registers.

`ucn.losses.distillation` documents what they compute and does the same in plain torch where Triton is
missing.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Divergences:
    """The result of the forward pass, for each query.

    Attributes:
        values: (B, N) Kullback-Leibler divergence of the student's softmax from the teacher's.
        student_log_sums: (B, N) log-sum-exp of the student's similarities.
        teacher_log_sums: (B, N) log-sum-exp of the teacher's similarities.
    """

    values: Tensor
    student_log_sums: Tensor
    teacher_log_sums: Tensor


@triton.jit
def _similarities(q: tl.tensor, c: tl.tensor, columns: tl.tensor, M: tl.tensor) -> tl.tensor:
    """Similarities of a tile; -inf past the last cell."""
    return tl.where((columns < M)[None, :], tl.dot(q, c, input_precision="tf32"), float("-inf"))


@triton.jit
def _divergence_kernel(
    queries: tl.tensor,
    cells: tl.tensor,
    teacher_queries: tl.tensor,
    teacher_cells: tl.tensor,
    values: tl.tensor,
    student_log_sums: tl.tensor,
    teacher_log_sums: tl.tensor,
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
    the student. Sums are kept relative to the largest similarity so far (online softmax).
    """
    item = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = load_queries(queries + item * N * D, rows, N, D, D_PAD)
    teacher_q = load_queries(teacher_queries + item * N * TEACHER_D, rows, N, TEACHER_D, TEACHER_D_PAD)
    cells += item * stride_item
    teacher_cells += item * teacher_stride_item
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    teacher_largest = tl.full([QUERIES], float("-inf"), tl.float32)
    summed = tl.zeros([QUERIES], tl.float32)
    teacher_summed = tl.zeros([QUERIES], tl.float32)
    weighted = tl.zeros([QUERIES], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        teacher_c = load_cells(
            teacher_cells, columns, M, teacher_stride_value, teacher_stride_cell, TEACHER_D, TEACHER_D_PAD
        )
        student = _similarities(q, c, columns, M)
        teacher = _similarities(teacher_q, teacher_c, columns, M)
        new_largest = tl.maximum(largest, tl.max(student, axis=1))
        rescale = tl.exp(largest - new_largest)
        summed = summed * rescale + tl.sum(tl.exp(student - new_largest[:, None]), axis=1)
        largest = new_largest
        new_largest = tl.maximum(teacher_largest, tl.max(teacher, axis=1))
        rescale = tl.exp(teacher_largest - new_largest)
        probabilities = tl.exp(teacher - new_largest[:, None])
        teacher_summed = teacher_summed * rescale + tl.sum(probabilities, axis=1)
        # Past the last cell both are -inf, whose difference is NaN.
        difference = tl.where((columns < M)[None, :], teacher - student, 0.0)
        weighted = weighted * rescale + tl.sum(probabilities * difference, axis=1)
        teacher_largest = new_largest
    log_sum = tl.log(summed) + largest
    teacher_log_sum = tl.log(teacher_summed) + teacher_largest
    targets = item * N + rows
    tl.store(values + targets, weighted / teacher_summed - teacher_log_sum + log_sum, mask=rows < N)
    tl.store(student_log_sums + targets, log_sum, mask=rows < N)
    tl.store(teacher_log_sums + targets, teacher_log_sum, mask=rows < N)


@triton.jit
def _logit_gradients(
    student: tl.tensor,
    teacher: tl.tensor,
    student_log_sums: tl.tensor,
    teacher_log_sums: tl.tensor,
    gradient: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
) -> tl.tensor:
    """The gradient by the student's logits of a tile: the student's softmax minus the teacher's, scaled."""
    log_sum = tl.load(student_log_sums + rows, mask=rows < N, other=0.0)
    teacher_log_sum = tl.load(teacher_log_sums + rows, mask=rows < N, other=0.0)
    scale = tl.load(gradient + rows, mask=rows < N, other=0.0)
    probabilities = tl.exp(student - log_sum[:, None]) - tl.exp(teacher - teacher_log_sum[:, None])
    return tl.where((columns < M)[None, :], probabilities * scale[:, None], 0.0)


@triton.jit
def _query_gradient_kernel(
    queries: tl.tensor,
    cells: tl.tensor,
    teacher_queries: tl.tensor,
    teacher_cells: tl.tensor,
    student_log_sums: tl.tensor,
    teacher_log_sums: tl.tensor,
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
    teacher_q = load_queries(teacher_queries + item * N * TEACHER_D, rows, N, TEACHER_D, TEACHER_D_PAD)
    cells += item * stride_item
    teacher_cells += item * teacher_stride_item
    first = item * N
    accumulated = tl.zeros([QUERIES, D_PAD], tl.float32)
    for start in range(0, M, CELLS):
        columns = start + tl.arange(0, CELLS)
        c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
        teacher_c = load_cells(
            teacher_cells, columns, M, teacher_stride_value, teacher_stride_cell, TEACHER_D, TEACHER_D_PAD
        )
        weights = _logit_gradients(
            _similarities(q, c, columns, M), _similarities(teacher_q, teacher_c, columns, M),
            student_log_sums + first, teacher_log_sums + first, gradient + first, rows, columns, N, M,
        )  # fmt: skip
        accumulated += tl.dot(weights, tl.trans(c), input_precision="tf32")
    store_queries(query_gradient + item * N * D, accumulated, rows, N, D, D_PAD)


@triton.jit
def _cell_gradient_kernel(
    queries: tl.tensor,
    cells: tl.tensor,
    teacher_queries: tl.tensor,
    teacher_cells: tl.tensor,
    student_log_sums: tl.tensor,
    teacher_log_sums: tl.tensor,
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
    """The gradient of one block of cells, in the memory layout of the cells."""
    item = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    cells += item * stride_item
    c = load_cells(cells, columns, M, stride_value, stride_cell, D, D_PAD)
    teacher_c = load_cells(
        teacher_cells + item * teacher_stride_item, columns, M, teacher_stride_value, teacher_stride_cell,
        TEACHER_D, TEACHER_D_PAD,
    )  # fmt: skip
    first = item * N
    accumulated = tl.zeros([D_PAD, CELLS], tl.float32)
    for start in range(0, N, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        q = load_queries(queries + first * D, rows, N, D, D_PAD)
        teacher_q = load_queries(teacher_queries + first * TEACHER_D, rows, N, TEACHER_D, TEACHER_D_PAD)
        weights = _logit_gradients(
            _similarities(q, c, columns, M), _similarities(teacher_q, teacher_c, columns, M),
            student_log_sums + first, teacher_log_sums + first, gradient + first, rows, columns, N, M,
        )  # fmt: skip
        accumulated += tl.dot(tl.trans(q), weights, input_precision="tf32")
    cell_gradient += item * stride_item
    store_cells(cell_gradient, accumulated, columns, M, stride_value, stride_cell, D, D_PAD)


def compute_divergences(
    queries: Tensor, cells: Tensor, teacher_queries: Tensor, teacher_cells: Tensor
) -> Divergences:
    """The divergence of the student's softmax over all cells from the teacher's, for each query.

    Args:
        queries: (B, N, D) float32; `can_fuse` checks that D and E fit the device.
        cells: (B, D, M) float32, with any strides, M at least 1.
        teacher_queries: (B, N, E) float32.
        teacher_cells: (B, E, M) float32, with any strides.
    """
    sizes = queries.shape[:2]
    values = [torch.empty(sizes, dtype=torch.float32, device=queries.device) for _ in range(3)]
    if values[0].numel():
        settings = list_launch_arguments(queries, cells, (teacher_queries, teacher_cells))
        with launch_on(queries):
            _divergence_kernel[(count_blocks(queries.shape[1], QUERIES), len(queries))](
                queries.contiguous(), cells, teacher_queries.contiguous(), teacher_cells, *values, **settings
            )
    return Divergences(*values)


def divergences_backward(
    queries: Tensor,
    cells: Tensor,
    teacher_queries: Tensor,
    teacher_cells: Tensor,
    student_log_sums: Tensor,
    teacher_log_sums: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients (B, N, D) of the queries and (B, D, M) of the cells; the teacher gets none.

    The first four arguments are those of `compute_divergences`, which returned the sums (B, N); `gradient`
    (B, N) is that of the loss by the divergences.
    """
    queries, teacher_queries = queries.contiguous(), teacher_queries.contiguous()
    cells = make_dense(cells)
    inputs = (
        queries, cells, teacher_queries, teacher_cells,
        student_log_sums, teacher_log_sums, gradient.contiguous(),
    )  # fmt: skip
    settings = list_launch_arguments(queries, cells, (teacher_queries, teacher_cells))
    return run_backward(_query_gradient_kernel, _cell_gradient_kernel, inputs, settings)
