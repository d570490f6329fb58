"""What the GPU programs of losses share, in Triton: tiles of queries and of cells in any layout."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

QUERIES, CELLS = 64, 64
"""Queries and cells of a tile."""


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
    return max(16, int(triton.next_power_of_2(D)))


def name_strides(cells: Tensor, prefix: str = "") -> dict[str, int]:
    """Strides of (B, D, M) under the names that all programs give them."""
    names = ("stride_item", "stride_value", "stride_cell")
    return {f"{prefix}{name}": stride for name, stride in zip(names, cells.stride(), strict=True)}
