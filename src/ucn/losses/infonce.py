"""InfoNCE over all cells of the other view, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ucn.geometry.coords import cell_centres
from ucn.knn.exclusion import squared_distances, squared_distances_bytes
from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.losses.correspondences import (
    DirectedPair,
    can_fuse,
    check_direction,
    prepare_pair,
    sample_pair,
    split_into_chunks,
)
from ucn.types import Direction, FeatureMap


def infonce_loss(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    *,
    temperature: float = 0.07,
    radius: float = 16.0,
    direction: Direction = "both",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """Cross-entropy of the true match against all cells far from it (van den Oord et al. 2018).

    For a point the loss is −log( exp(p/τ) / (exp(p/τ) + Σ exp(n/τ)) ): p is the inner product of the
    descriptors at the two corresponding points, and n runs over the inner products with all cells of the
    other view that lie more than `radius` from the ground truth there. The mean is over all valid points of
    the batch and all requested directions. A point with no cell that far away contributes 0, and so does an
    empty batch, with a zero gradient.

    Similarities are computed in float32 at least, under autocast too, in chunks within the budget, and again
    in the backward pass.

    Args:
        map0: B feature maps of view 0, of unit length.
        map1: B feature maps of view 1; the number of cells may differ.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        temperature: τ, above 0.
        radius: pixels of the view the candidates lie in, at least 0.
        direction: '0to1' compares points of view 0 with the cells of view 1, '1to0' the reverse.
        memory_bytes: budget of the temporaries; a larger one means fewer, larger matrix products.

    Returns:
        A scalar.

    Raises:
        ValueError: shapes do not fit, or an argument is out of range.
    """
    check_direction(direction)
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if not radius >= 0:
        raise ValueError(f"radius must be at least 0, got {radius}")
    if memory_bytes < 1:
        raise ValueError(f"memory_bytes must be at least 1, got {memory_bytes}")
    pair = prepare_pair(map0, map1, points0, points1, is_valid)
    with torch.autocast(map0.features.device.type, enabled=False):
        sampled0, sampled1 = sample_pair(pair)
        true_logits = (sampled0 * sampled1).sum(dim=-1) / temperature  # (B, N)
        losses = []
        if direction != "1to0":
            losses.append(_compare(pair, sampled0, true_logits, temperature, radius, memory_bytes))
        if direction != "0to1":
            reverse = pair.reverse()
            losses.append(_compare(reverse, sampled1, true_logits, temperature, radius, memory_bytes))
        total = torch.stack(losses).sum()
    return total / (len(losses) * is_valid.sum().clamp(min=1))


def _compare(
    pair: DirectedPair,
    queries: Tensor,
    true_logits: Tensor,
    temperature: float,
    radius: float,
    memory_bytes: int,
) -> Tensor:
    """The sum of one direction's losses over the valid points."""
    negatives = _NegativeLogSumExp.apply(  # type: ignore[no-untyped-call]
        queries / temperature,
        pair.candidate_map.features.flatten(2),
        pair.true_points,
        cell_centres(pair.candidate_map),
        radius,
        memory_bytes,
    )
    # log(1 + exp(x)); at this threshold both branches of softplus agree to the last digit of float64.
    losses = F.softplus(negatives - true_logits, threshold=40.0)
    return torch.where(pair.is_valid, losses, 0.0).sum()


class _NegativeLogSumExp(torch.autograd.Function):
    """Log of the sum of exp(query · cell) over the cells outside the radius; -inf where there are none.

    Keeps the (B, N) result for the backward pass, and there recomputes the similarities chunk by chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        cells: Tensor,
        centres: Tensor,
        positions: Tensor,
        radius: float,
        memory_bytes: int,
    ) -> Tensor:
        """Maps queries (B, N, D) and cells (B, D, M) to (B, N)."""
        ctx.radius, ctx.memory_bytes, ctx.is_fused = radius, memory_bytes, can_fuse(queries, cells)
        if ctx.is_fused:
            from ucn.losses.triton.infonce import log_sum_exp

            result = log_sum_exp(queries, cells, centres, positions, radius)
            ctx.save_for_backward(queries, cells, centres, positions, result)
            return result
        result = queries.new_empty(queries.shape[:2])
        with torch.autocast(queries.device.type, enabled=False):
            for items, rows in _chunks(queries, cells, centres, positions, memory_bytes):
                logits = _logits(queries, cells, centres, positions, radius, items, rows)
                largest = logits.amax(dim=-1, keepdim=True)
                largest.masked_fill_(largest == -torch.inf, 0)
                summed = logits.sub_(largest).exp_().sum(dim=-1)
                result[items, rows] = summed.log_().add_(largest[..., 0])
                del logits  # frees it before the next chunk
        ctx.save_for_backward(queries, cells, centres, positions, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries and cells: softmax weights times the other."""
        queries, cells, centres, positions, result = ctx.saved_tensors
        if ctx.is_fused:
            from ucn.losses.triton.infonce import log_sum_exp_backward

            found = log_sum_exp_backward(queries, cells, centres, positions, ctx.radius, result, gradient)
            return *found, None, None, None, None
        query_gradient = torch.empty_like(queries)
        cell_gradient = torch.zeros_like(cells, memory_format=torch.contiguous_format)
        has_negatives = result > -torch.inf
        shift = torch.where(has_negatives, result, 0)[..., None]
        scale = torch.where(has_negatives, gradient, 0)[..., None]
        with torch.autocast(queries.device.type, enabled=False):
            for items, rows in _chunks(queries, cells, centres, positions, ctx.memory_bytes):
                logits = _logits(queries, cells, centres, positions, ctx.radius, items, rows)
                weights = logits.sub_(shift[items, rows]).exp_().mul_(scale[items, rows])
                query_gradient[items, rows] = weights @ cells[items].mT
                cell_gradient[items].baddbmm_(queries[items, rows].mT, weights)
                del logits, weights  # frees them before the next chunk
        return query_gradient, cell_gradient, None, None, None, None


def _chunks(
    queries: Tensor, cells: Tensor, centres: Tensor, positions: Tensor, memory_bytes: int
) -> Iterator[tuple[slice, slice]]:
    """Slices of batch items and of queries whose similarities fit the budget."""
    row_bytes = cells.shape[2] * (queries.dtype.itemsize + squared_distances_bytes(centres, positions))
    return split_into_chunks(centres.shape[:2], row_bytes, memory_bytes)


def _logits(
    queries: Tensor,
    cells: Tensor,
    centres: Tensor,
    positions: Tensor,
    radius: float,
    items: slice,
    rows: slice,
) -> Tensor:
    """Similarities (b, n, M) of one chunk; -inf within the radius of the ground truth."""
    is_near = squared_distances(centres[items, rows], positions) <= radius**2
    return torch.bmm(queries[items, rows], cells[items]).masked_fill_(is_near, -torch.inf)
