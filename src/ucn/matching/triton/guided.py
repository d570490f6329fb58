"""The guided search as two Triton kernels: the best cell by similarity, support and local affine prior.

Queries that are open come first; thread blocks of the others end at once, so nothing waits for their number.
Neither the similarities nor what guides them are ever written to memory for all cells. The reference is
`compare` in `_find_guided` of `ucn.matching.cells`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import count_blocks, launch_on, round_to_power

MAX_DIMENSION = 512
_QUERIES, _CELLS, _DEPTH = 64, 64, 64  # per product
_SPLITS = 16  # of the cells, so that few open queries keep a GPU busy
_SUPPORT_BLOCK = 1024
# Arguments that differ from call to call; Triton would recompile for values of 1 and multiples of 16.
_SIZES = ["N", "M", "D", "w", "h_coarse", "w_coarse", "tiles", "cells_per_coarse"]


def can_guide(descriptors: Tensor, features: Tensor) -> bool:
    """Whether `guide_fused` takes these descriptors."""
    is_float = descriptors.dtype == features.dtype == torch.float32
    return is_float and len(descriptors) > 0 and descriptors.shape[1] <= MAX_DIMENSION


def guide_fused(
    descriptors: Tensor,
    features: Tensor,
    is_open: Tensor,
    support: Tensor,
    rows: Tensor,
    weights: Tensor,
    places: Tensor,
    spread: Tensor,
    prior_weights: Tensor,
    *,
    cells_per_coarse: int,
    stride: float,
    offset: float,
) -> tuple[Tensor, Tensor]:
    """The best cell (N,) of each open query, and its cosine similarity (N,); of others, anything.

    Args:
        descriptors: (N, D) float32 queries.
        features: (D, h, w) float32 of the searched image.
        is_open: (N,) bool, the queries to compare.
        support: (h0 * w0, h1, w1) float32 of all pairs of coarse cells.
        rows: (N, 4) int64, rows of `support` around each query.
        weights: (N, 4) float32 of these rows: what full support adds to a similarity.
        places: (N, 2) float32 pixels, where the prior expects each query.
        spread: (N,) standard deviation of the prior, in pixels.
        prior_weights: (N,) what it adds at the place itself.
        cells_per_coarse: feature cells along each axis of a coarse cell.
        stride: pixels between neighbouring cell centres.
        offset: pixel coordinate of the centre of cell 0.
    """
    (N, D), (_, h, w), (_, h_coarse, w_coarse) = descriptors.shape, features.shape, support.shape
    cells, device, coarse = features.flatten(1).t(), descriptors.device, h_coarse * w_coarse
    order = is_open.to(torch.uint8).sort(descending=True, stable=True).indices
    count = is_open.sum()
    guidance = torch.empty(N, coarse, dtype=torch.float32, device=device)
    values, cosines = torch.empty(2, _SPLITS, N, dtype=torch.float32, device=device).unbind()
    index = torch.empty(_SPLITS, N, dtype=torch.int64, device=device)
    tiles = count_blocks(count_blocks(h * w, _CELLS), _SPLITS)
    with launch_on(descriptors):
        _weigh_support[(N, count_blocks(coarse, _SUPPORT_BLOCK))](
            support.contiguous(), rows.contiguous(), weights.contiguous(), order, count, guidance, coarse,
            BLOCK=_SUPPORT_BLOCK, num_warps=4,
        )  # fmt: skip
        _guide_block[(count_blocks(N, _QUERIES), _SPLITS)](
            descriptors, cells, order, count, guidance, places.contiguous(), spread.contiguous(),
            prior_weights.contiguous(), values, cosines, index, N, h * w, D, w, h_coarse, w_coarse, tiles,
            cells_per_coarse, float(stride), float(offset), *descriptors.stride(), *cells.stride(),
            QUERIES=_QUERIES, CELLS=_CELLS, DEPTH=min(_DEPTH, max(16, round_to_power(D))), num_warps=4,
        )  # fmt: skip
    best = values.max(dim=0, keepdim=True).indices
    return index.gather(0, best)[0], cosines.gather(0, best)[0].clamp(-1, 1)


@triton.jit(do_not_specialize=["coarse"])
def _weigh_support(
    support: tl.tensor,
    rows: tl.tensor,
    weights: tl.tensor,
    order: tl.tensor,
    count: tl.tensor,
    guidance: tl.tensor,
    coarse: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """What the consensus adds at all coarse cells for one open query, from the four rows around it."""
    if tl.program_id(0) < tl.load(count):
        query = tl.load(order + tl.program_id(0))
        cells = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for corner in tl.static_range(4):
            row = tl.load(rows + query * 4 + corner)
            weight = tl.load(weights + query * 4 + corner)
            total += weight * tl.load(support + row * coarse + cells, mask=cells < coarse, other=0.0)
        tl.store(guidance + query * coarse + cells, total, mask=cells < coarse)


@triton.jit
def _find_corners(position: tl.tensor, cells_per_coarse: tl.tensor, coarse: tl.tensor) -> tl.tensor:
    """The coarse cells below and above feature cells along an axis, and the share of the latter."""
    place = (position.to(tl.float32) + 0.5) / cells_per_coarse - 0.5
    place = tl.minimum(tl.maximum(place, 0.0), (coarse - 1).to(tl.float32))
    low = tl.floor(place)
    first = low.to(tl.int32)
    return first, tl.minimum(first + 1, coarse - 1), place - low


@triton.jit(do_not_specialize=_SIZES)
def _guide_block(
    descriptors: tl.tensor,
    cells: tl.tensor,
    order: tl.tensor,
    count: tl.tensor,
    guidance: tl.tensor,
    places: tl.tensor,
    spread: tl.tensor,
    prior_weights: tl.tensor,
    values: tl.tensor,
    cosines: tl.tensor,
    index: tl.tensor,
    N: tl.tensor,
    M: tl.tensor,
    D: tl.tensor,
    w: tl.tensor,
    h_coarse: tl.tensor,
    w_coarse: tl.tensor,
    tiles: tl.tensor,
    cells_per_coarse: tl.tensor,
    pixel_stride: tl.tensor,
    pixel_offset: tl.tensor,
    query_stride_row: tl.tensor,
    query_stride_value: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    QUERIES: tl.constexpr,
    CELLS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """The best cell of a block of open queries in a part of the cells."""
    first, open_count = tl.program_id(0) * QUERIES, tl.load(count)
    if first < open_count:
        slots = first + tl.arange(0, QUERIES)
        is_query = slots < open_count
        query = tl.load(order + slots, mask=is_query, other=0)
        place_x, place_y = tl.load(places + query * 2), tl.load(places + query * 2 + 1)
        width, weight = tl.load(spread + query), tl.load(prior_weights + query)
        factor = -0.5 / (width * width)
        starts = guidance + (query * h_coarse * w_coarse)[:, None]
        depth = tl.arange(0, DEPTH)
        best = tl.full([QUERIES], -float("inf"), tl.float32)
        best_cosine = tl.zeros([QUERIES], tl.float32)
        best_cell = tl.zeros([QUERIES], tl.int32)
        for tile in range(tiles):
            cell = (tl.program_id(1) * tiles + tile) * CELLS + tl.arange(0, CELLS)
            is_cell = cell < M
            cosine = tl.zeros([QUERIES, CELLS], tl.float32)
            for start in range(0, D, DEPTH):
                value = start + depth
                own = tl.load(
                    descriptors + query[:, None] * query_stride_row + value[None, :] * query_stride_value,
                    mask=is_query[:, None] & (value < D)[None, :], other=0.0,
                )  # fmt: skip
                other = tl.load(
                    cells + cell.to(tl.int64)[None, :] * stride_row + value[:, None] * stride_value,
                    mask=is_cell[None, :] & (value < D)[:, None], other=0.0,
                )  # fmt: skip
                cosine = tl.dot(own, other, cosine, input_precision="tf32x3")
            row, column = cell // w, cell % w
            top, bottom, down = _find_corners(row, cells_per_coarse, h_coarse)
            left, right, across = _find_corners(column, cells_per_coarse, w_coarse)
            is_both = is_query[:, None] & is_cell[None, :]
            above = tl.load(starts + (top * w_coarse + left)[None, :], mask=is_both, other=0.0)
            above_right = tl.load(starts + (top * w_coarse + right)[None, :], mask=is_both, other=0.0)
            below = tl.load(starts + (bottom * w_coarse + left)[None, :], mask=is_both, other=0.0)
            below_right = tl.load(starts + (bottom * w_coarse + right)[None, :], mask=is_both, other=0.0)
            above += across[None, :] * (above_right - above)
            below += across[None, :] * (below_right - below)
            x, y = column * pixel_stride + pixel_offset, row * pixel_stride + pixel_offset
            away_x, away_y = x[None, :] - place_x[:, None], y[None, :] - place_y[:, None]
            prior = tl.exp(factor[:, None] * (away_x * away_x + away_y * away_y)) * weight[:, None]
            total = cosine + above + down[None, :] * (below - above) + prior
            total = tl.where(is_cell[None, :], total, -float("inf"))
            found, column_found = tl.max(total, axis=1, return_indices=True)
            is_found = tl.arange(0, CELLS)[None, :] == column_found[:, None]
            found_cosine = tl.sum(tl.where(is_found, cosine, 0.0), axis=1)
            is_better = found > best
            best = tl.where(is_better, found, best)
            best_cosine = tl.where(is_better, found_cosine, best_cosine)
            found_cell = (tl.program_id(1) * tiles + tile) * CELLS + column_found
            best_cell = tl.where(is_better, found_cell, best_cell)
        target = tl.program_id(1) * N + query
        tl.store(values + target, best, mask=is_query)
        tl.store(cosines + target, best_cosine, mask=is_query)
        tl.store(index + target, best_cell.to(tl.int64), mask=is_query)
