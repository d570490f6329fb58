"""What the Triton kernels of the losses share: tiles of queries, and of cells with any strides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import count_blocks, launch_on, round_to_power

QUERIES, CELLS = 64, 64
"""Queries and cells of a tile."""
_OTHER_BYTES = 2048  # of shared memory, for the sums and positions of a tile


@triton.jit
def load_queries(
    queries: tl.tensor, rows: tl.tensor, N: tl.tensor, D: tl.constexpr, D_PAD: tl.constexpr
) -> tl.tensor:
    """Rows of (N, D), zero-padded."""
    channels = tl.arange(0, D_PAD)
    mask = (rows < N)[:, None] & (channels < D)[None, :]
    return tl.load(queries + rows[:, None] * D + channels[None, :], mask=mask, other=0.0)


@triton.jit
def load_cells(
    cells: tl.tensor,
    columns: tl.tensor,
    M: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """Columns of (D, M), zero-padded."""
    channels = tl.arange(0, D_PAD)
    mask = (channels < D)[:, None] & (columns < M)[None, :]
    return tl.load(
        cells + channels[:, None] * stride_value + columns[None, :] * stride_cell, mask=mask, other=0.0
    )


@triton.jit
def store_queries(
    target: tl.tensor, values: tl.tensor, rows: tl.tensor, N: tl.tensor, D: tl.constexpr, D_PAD: tl.constexpr
) -> None:
    """Stores rows of (N, D), the inverse of `load_queries`."""
    channels = tl.arange(0, D_PAD)
    mask = (rows < N)[:, None] & (channels < D)[None, :]
    tl.store(target + rows[:, None] * D + channels[None, :], values, mask=mask)


@triton.jit
def store_cells(
    target: tl.tensor,
    values: tl.tensor,
    columns: tl.tensor,
    M: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> None:
    """Stores columns of (D, M), the inverse of `load_cells`."""
    channels = tl.arange(0, D_PAD)
    mask = (channels < D)[:, None] & (columns < M)[None, :]
    tl.store(target + channels[:, None] * stride_value + columns[None, :] * stride_cell, values, mask=mask)


def run_backward(
    query_kernel: Any,
    cell_kernel: Any,
    inputs: tuple[Tensor, ...],
    settings: Mapping[str, float],
) -> tuple[Tensor, Tensor]:
    """Gradients (B, N, D) of the queries and (B, D, M) of the cells, each by its kernel.

    Args:
        query_kernel: computes the gradient of a block of queries.
        cell_kernel: computes the gradient of a block of cells.
        inputs: of both kernels; the queries and the cells of `make_dense` first.
        settings: of both kernels, by name.
    """
    queries, cells = inputs[:2]
    query_gradient, cell_gradient = torch.zeros_like(queries), torch.zeros_like(cells)
    if queries.shape[:2].numel():
        with launch_on(queries):
            query_kernel[(count_blocks(queries.shape[1], QUERIES), len(queries))](
                *inputs, query_gradient, **settings
            )
            cell_kernel[(count_blocks(cells.shape[2], CELLS), len(queries))](
                *inputs, cell_gradient, **settings
            )
    return query_gradient, cell_gradient


def pad_dimension(D: int) -> int:
    """The dimension of a tile: a power of two, since `tl.arange` needs one, of at least 16 for `tl.dot`."""
    return max(16, round_to_power(D))


@cache
def shared_memory_bytes(device: torch.device) -> int:
    """Shared memory that one thread block may use; practically unlimited under Triton's interpreter."""
    if device.type == "cpu":
        return 2**31
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


def choose_stages(device: torch.device, *lengths: int) -> int:
    """Software-pipelining stages (tiles of cells held at once), 1 to 3; 0 where not even one tile fits.

    Args:
        device: that runs the kernel.
        lengths: of the descriptors that are compared, those that get gradients first.
    """
    tiles = [4 * CELLS * pad_dimension(length) for length in lengths]  # bytes
    all_tiles, available = sum(tiles), shared_memory_bytes(device) - _OTHER_BYTES
    # The backward kernels hold a tile of queries, one of cells, and the transpose of one of them.
    fitting = [n for n in (3, 2, 1) if max((1 + n) * all_tiles, 2 * all_tiles + tiles[0]) <= available]
    return fitting[0] if fitting else 0


def list_launch_arguments(
    queries: Tensor, cells: Tensor, teacher: tuple[Tensor, Tensor] | None = None
) -> dict[str, int]:
    """Sizes and strides of queries (B, N, D) and cells (B, D, M), by the parameter names of all kernels.

    Those of the teacher's queries and cells, where given, begin with ``teacher_`` or ``TEACHER_``.
    """
    pairs = {"": (queries, cells)} if teacher is None else {"": (queries, cells), "teacher_": teacher}
    lengths = [given.shape[2] for given, _ in pairs.values()]
    arguments = {
        "N": queries.shape[1],
        "M": cells.shape[2],
        "QUERIES": QUERIES,
        "CELLS": CELLS,
        "num_stages": choose_stages(queries.device, *lengths),
    }
    for (prefix, (_, own_cells)), D in zip(pairs.items(), lengths, strict=True):
        names = (f"{prefix}stride_item", f"{prefix}stride_value", f"{prefix}stride_cell")
        arguments |= zip(names, own_cells.stride(), strict=True)
        arguments |= {f"{prefix.upper()}D": D, f"{prefix.upper()}D_PAD": pad_dimension(D)}
    return arguments


def make_dense(cells: Tensor) -> Tensor:
    """The cells, such that their gradient can have their strides.

    Cells with gaps or overlaps in memory (slices, results of `expand`) are made contiguous.
    """
    return cells if torch.empty_like(cells).stride() == cells.stride() else cells.contiguous()
