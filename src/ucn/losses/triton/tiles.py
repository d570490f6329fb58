"""What the GPU programs of losses share, in Triton: tiles of queries and of cells in any layout."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import round_to_power

QUERIES, CELLS = 64, 64
"""Queries and cells of a tile."""
_OTHER_BYTES = 2048  # of shared memory, for sums and places of a tile


@triton.jit  # type: ignore[untyped-decorator]
def load_queries(
    queries: tl.tensor, rows: tl.tensor, N: tl.tensor, D: tl.constexpr, D_PAD: tl.constexpr
) -> tl.tensor:
    """Rows of (N, D), with zeros past the last value and the last row."""
    places = tl.arange(0, D_PAD)
    mask = (rows < N)[:, None] & (places < D)[None, :]
    return tl.load(queries + rows[:, None] * D + places[None, :], mask=mask, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def load_cells(
    cells: tl.tensor,
    columns: tl.tensor,
    M: tl.tensor,
    stride_value: tl.tensor,
    stride_cell: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """Columns of (D, M), with zeros past the last value and the last column."""
    places = tl.arange(0, D_PAD)
    mask = (places < D)[:, None] & (columns < M)[None, :]
    return tl.load(
        cells + places[:, None] * stride_value + columns[None, :] * stride_cell, mask=mask, other=0.0
    )


def pad_dimension(D: int) -> int:
    """How many values a tile has room for: products need at least 16."""
    return max(16, round_to_power(D))


@cache
def find_room(device: torch.device) -> int:
    """Bytes of shared memory that a program may have, on the device of a tensor; interpreted, any number."""
    if device.type == "cpu":
        return 2**31
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


def choose_stages(device: torch.device, *lengths: int) -> int:
    """How many tiles of cells a program holds loaded, 3 at most; 0 where the device has no room for any.

    Args:
        device: that is to run it.
        lengths: of the descriptors that it compares, those that get gradients first.
    """
    tiles = [4 * CELLS * pad_dimension(length) for length in lengths]  # bytes
    whole, room = sum(tiles), find_room(device) - _OTHER_BYTES
    # Backwards, a program holds a tile of queries, one of cells, and the latter's transpose or the former's.
    fitting = [count for count in (3, 2, 1) if max((1 + count) * whole, 2 * whole + tiles[0]) <= room]
    return fitting[0] if fitting else 0


def name_strides(cells: Tensor, prefix: str = "") -> dict[str, int]:
    """Strides of (B, D, M) under the names that all programs give them."""
    names = ("stride_item", "stride_value", "stride_cell")
    return {f"{prefix}{name}": stride for name, stride in zip(names, cells.stride(), strict=True)}


def make_gradient(cells: Tensor) -> tuple[Tensor, Tensor]:
    """Cells, and zeros in the same layout for their gradient.

    Those with gaps between them, as some channels of a map have, or in one place of memory, as copies by
    `expand` are, get a layout without.
    """
    gradient = torch.zeros_like(cells)
    if gradient.stride() == cells.stride():
        return cells, gradient
    cells = cells.contiguous()
    return cells, torch.zeros_like(cells)
