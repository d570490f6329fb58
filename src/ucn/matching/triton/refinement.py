"""Sub-cell refinement as one Triton kernel, in place of many kernel launches of torch.

One program instance handles one match: the 3 × 3 cells around its best one, and a fine grid of positions.
The reference is `refine_reference` of `ucn.matching.sub_cell`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import launch_on, round_to_power

MAX_DIMENSION = 512
# The 3 × 3 cells around a match, and their number padded to what matrix products on a GPU need.
_CELLS = tl.constexpr(9)
_CELLS_PAD = tl.constexpr(16)
# Below every similarity: of positions that use a forbidden cell, and of padding.
_FORBIDDEN = tl.constexpr(-2.0)
_PADDING = tl.constexpr(-3.0)
# Arguments that differ from call to call; Triton would recompile for values of 1 and multiples of 16. Strides
# are not among them: where they are multiples of 16, a thread reads several values at a time.
_SIZES = ["h", "w", "D"]


def can_refine(descriptors: Tensor, features: Tensor) -> bool:
    """Whether `refine_sub_cell_fused` takes these inputs: float32 without gradients."""
    is_short = 1 <= descriptors.shape[1] <= MAX_DIMENSION
    needs_gradient = torch.is_grad_enabled() and (descriptors.requires_grad or features.requires_grad)
    return is_short and not needs_gradient and descriptors.dtype == features.dtype == torch.float32


def refine_sub_cell_fused(
    descriptors: Tensor,
    features: Tensor,
    index: Tensor,
    is_allowed: Tensor | None,
    prior: tuple[Tensor, Tensor, Tensor] | None = None,
    *,
    stride: float,
    offset: float,
    fine_steps: int,
) -> tuple[Tensor, Tensor]:
    """Refines matches to sub-cell positions: pixels (N, 2) and similarities (N,).

    Args:
        descriptors: (N, D) float32 queries.
        features: (D, h, w) of the other image, likewise.
        index: (N,) int64, the best cell of each query.
        is_allowed: (h * w,) bool, the cells that may take part; None allows all.
        prior: places (N, 2), spread (N,) and weights (N,) of Gaussians that are added to similarities, in
            float32; None adds nothing.
        stride: pixels between neighbouring cell centres.
        offset: pixel coordinate of the centre of cell 0.
        fine_steps: positions per cell and axis.
    """
    (count, D), (_, h, w) = descriptors.shape, features.shape
    cells = features.flatten(1).t()
    points = torch.empty(count, 2, dtype=torch.float32, device=index.device)
    similarities = torch.empty(count, dtype=torch.float32, device=index.device)
    places, spread, weights = (points,) * 3 if prior is None else (each.contiguous() for each in prior)
    with launch_on(index):
        _refine_match[(count,)](
            descriptors, cells, index.contiguous(), index if is_allowed is None else is_allowed.contiguous(),
            places, spread, weights, points, similarities, float(stride), float(offset), h, w, D,
            *descriptors.stride(), *cells.stride(), D_PAD=max(16, round_to_power(D)), FINE_STEPS=fine_steps,
            POSITIONS=round_to_power((2 * fine_steps + 1) ** 2), HAS_MASK=is_allowed is not None,
            HAS_PRIOR=prior is not None, num_warps=4,
        )  # fmt: skip
    return points, similarities


@triton.jit
def _fit_peak(
    surface: tl.tensor,
    positions: tl.tensor,
    best: tl.tensor,
    middle: tl.tensor,
    position: tl.tensor,
    step: tl.constexpr,
    SIDE: tl.constexpr,
) -> tl.tensor:
    """Offset, in grid steps, of the peak of a parabola through a position and its neighbours on an axis."""
    low = tl.sum(tl.where(positions == best - step, surface, 0.0), axis=0)
    high = tl.sum(tl.where(positions == best + step, surface, 0.0), axis=0)
    curvature = low - 2 * middle + high
    is_peak = (position > 0) & (position < SIDE - 1) & (curvature < -1e-9) & (low > -1.5) & (high > -1.5)
    peak = 0.5 * (low - high) / tl.where(is_peak, curvature, -1.0)
    return tl.where(is_peak, tl.minimum(tl.maximum(peak, -0.5), 0.5), 0.0)


@triton.jit(do_not_specialize=_SIZES)
def _refine_match(
    descriptors: tl.tensor,
    cells: tl.tensor,
    index: tl.tensor,
    is_allowed: tl.tensor,
    places: tl.tensor,
    spread: tl.tensor,
    prior_weights: tl.tensor,
    points: tl.tensor,
    similarities: tl.tensor,
    pixel_stride: tl.tensor,
    pixel_offset: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    D: tl.tensor,
    query_stride_row: tl.tensor,
    query_stride_value: tl.tensor,
    stride_row: tl.tensor,
    stride_value: tl.tensor,
    D_PAD: tl.constexpr,
    FINE_STEPS: tl.constexpr,
    POSITIONS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_PRIOR: tl.constexpr,
) -> None:
    """Moves one match to where the interpolated descriptor is most similar."""
    SIDE: tl.constexpr = 2 * FINE_STEPS + 1
    match = tl.program_id(0).to(tl.int64)
    own = tl.load(index + match)
    own_row, own_column = own // w, own % w
    near = tl.arange(0, _CELLS_PAD)
    row, column = own_row + near // 3 - 1, own_column + near % 3 - 1
    is_usable = (near < _CELLS) & (row >= 0) & (row < h) & (column >= 0) & (column < w)
    cell = tl.where(is_usable, row * w + column, own)
    if HAS_MASK:
        is_usable &= tl.load(is_allowed + cell) != 0
    value = tl.arange(0, D_PAD)
    is_value = value < D
    query_values = descriptors + match * query_stride_row + value.to(tl.int64) * query_stride_value
    query = tl.load(query_values, mask=is_value, other=0.0)
    starts = cells + cell.to(tl.int64)[:, None] * stride_row
    rows = tl.load(starts + value.to(tl.int64)[None, :] * stride_value, mask=is_value[None, :], other=0.0)
    along = tl.sum(rows * query[None, :], axis=1)
    gram = tl.dot(rows, tl.trans(rows), input_precision="ieee")

    positions = tl.arange(0, POSITIONS)
    across = (positions % SIDE - FINE_STEPS).to(tl.float32) * (1.0 / FINE_STEPS)
    down = (positions // SIDE - FINE_STEPS).to(tl.float32) * (1.0 / FINE_STEPS)
    share_across = 1 - tl.abs(across[:, None] - (near % 3 - 1).to(tl.float32)[None, :])
    share_down = 1 - tl.abs(down[:, None] - (near // 3 - 1).to(tl.float32)[None, :])
    weights = tl.maximum(share_across, 0.0) * tl.maximum(share_down, 0.0)
    weights = tl.where((near < _CELLS)[None, :], weights, 0.0)
    inner = tl.sum(weights * along[None, :], axis=1)
    squared = tl.sum(tl.dot(weights, gram, input_precision="ieee") * weights, axis=1)
    uses_forbidden = tl.sum(((weights > 0) & (is_usable == 0)[None, :]).to(tl.int32), axis=1) > 0
    surface = inner / tl.sqrt(tl.maximum(squared, 1e-12))
    surface = tl.where(uses_forbidden, _FORBIDDEN, surface)
    similarity = surface
    if HAS_PRIOR:
        away_x = (own_column + across) * pixel_stride + pixel_offset - tl.load(places + 2 * match)
        away_y = (own_row + down) * pixel_stride + pixel_offset - tl.load(places + 2 * match + 1)
        width = tl.load(spread + match)
        gaussian = tl.exp(-0.5 * (away_x * away_x + away_y * away_y) / (width * width))
        surface += tl.load(prior_weights + match) * gaussian
    surface = tl.where(positions < SIDE * SIDE, surface, _PADDING)

    best = tl.argmax(surface, axis=0)
    highest = tl.max(surface, axis=0)
    x, y = best % SIDE, best // SIDE
    x_peak = x - FINE_STEPS + _fit_peak(surface, positions, best, highest, x, 1, SIDE)
    y_peak = y - FINE_STEPS + _fit_peak(surface, positions, best, highest, y, SIDE, SIDE)
    targets = points + match * 2
    tl.store(targets, own_column * pixel_stride + pixel_offset + pixel_stride * (x_peak * (1.0 / FINE_STEPS)))
    tl.store(
        targets + 1, own_row * pixel_stride + pixel_offset + pixel_stride * (y_peak * (1.0 / FINE_STEPS))
    )
    if HAS_PRIOR:
        highest = tl.sum(tl.where(positions == best, similarity, 0.0), axis=0)
    tl.store(similarities + match, tl.minimum(tl.maximum(highest, -1.0), 1.0))
