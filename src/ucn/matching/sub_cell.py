"""Sub-cell refinement: from the best cell to the position whose interpolated descriptor is most similar.

`refine` takes the fused CUDA kernel where that applies, else the reference in plain torch, in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.geometry.coords import cell_centres, pixels_to_cells
from ucn.geometry.sampling import sample_descriptors
from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.matching.local_affine import Prior
from ucn.runtime.kernels import use_fused
from ucn.types import FeatureMap

_FINE_STEPS = 8
"""Positions per cell and axis that are compared before a parabola is fitted."""
_MAX_DEVIATION = 0.4
"""Cells by which the shift of a cell beside a query may differ from that of the query's own match."""


@dataclass(frozen=True)
class NearestPoints:
    """For each query the most similar position in the searched image.

    Attributes:
        points: (N, 2) pixels of the searched image; NaN where no cell was allowed.
        similarities: (N,) cosine similarity there, in [-1, 1]; -1 where no cell was allowed.
    """

    points: Tensor
    similarities: Tensor


def refine_sub_cell(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    cells1: Tensor,
    *,
    is_allowed1: Tensor | None = None,
) -> NearestPoints:
    """Refines matches whose cells are known to sub-cell positions.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
        cells1: (N,) int64, the cell ``row * w + column`` of image 1 that each point was matched to; a match
            moves by at most one cell along each axis.
        is_allowed1: (h * w,) bool, the cells of image 1 that may take part; None allows all.
    """
    return refine(read_descriptors(map0, points0), map1, cells1, is_allowed1)


def read_descriptors(feature_map: FeatureMap, points: Tensor) -> Tensor:
    """Descriptors (N, D) at pixels (N, 2), contiguous, which makes searches faster."""
    return sample_descriptors(feature_map, points[None])[0].contiguous()


def refine(
    descriptors0: Tensor,
    map1: FeatureMap,
    index: Tensor,
    is_allowed1: Tensor | None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    prior: Prior | None = None,
) -> NearestPoints:
    """Sub-cell refinement by the fused CUDA kernel where it applies, else by the reference in chunks."""
    if use_fused(descriptors0, map1.features, index) and len(index):
        from ucn.matching.triton.refinement import can_refine, refine_sub_cell_fused  # needs Triton

        if can_refine(descriptors0, map1.features):
            found = refine_sub_cell_fused(
                descriptors0,
                map1.features[0],
                index,
                is_allowed1,
                None if prior is None else (prior.places, prior.spread, prior.weights),
                stride=map1.stride,
                offset=map1.offset,
                fine_steps=_FINE_STEPS,
            )
            return NearestPoints(*found)
    bytes_per_match = 12 * (descriptors0.shape[-1] + (2 * _FINE_STEPS + 1) ** 2) * 4
    chunk = max(1, memory_bytes // bytes_per_match)
    chunks = [slice(start, start + chunk) for start in range(0, len(index), chunk)]
    parts = [
        refine_reference(
            descriptors0[rows], map1, index[rows], is_allowed1, None if prior is None else prior.select(rows)
        )
        for rows in chunks
    ]
    if not parts:
        return NearestPoints(descriptors0.new_zeros(0, 2), descriptors0.new_zeros(0))
    return NearestPoints(torch.cat([p for p, _ in parts]), torch.cat([s for _, s in parts]))


def refine_reference(
    descriptors0: Tensor,
    map1: FeatureMap,
    index: Tensor,
    is_allowed1: Tensor | None,
    prior: Prior | None = None,
) -> tuple[Tensor, Tensor]:
    """Moves matches from cell centres to where the interpolated descriptor is most similar.

    The descriptor between cells is, as everywhere in this package, the normalised bilinear interpolation of
    the cells around it. With weights w over the 3 × 3 cells f around the best one, its similarity to a query
    q is w·(f q) / √(wᵀ (f fᵀ) w), so two small products give it at all positions of a fine grid. A parabola
    through the best position and its neighbours then gives the peak.

    Args:
        descriptors0: (N, D) queries.
        map1: the other image.
        index: (N,) the best cell of each query.
        is_allowed1: (h * w,) bool, the cells that may take part; None allows all.
        prior: of the queries, whose Gaussian is added to the similarity; None adds nothing.

    Returns:
        (N, 2) pixels and (N,) similarities.
    """
    h, w = map1.grid_hw
    rows, columns = index // w, index % w
    steps = torch.arange(-1, 2, device=index.device)
    near_rows = (rows[:, None, None] + steps[:, None]).expand(-1, 3, 3).flatten(1)  # (N, 9)
    near_columns = (columns[:, None, None] + steps).expand(-1, 3, 3).flatten(1)
    is_usable = (near_rows >= 0) & (near_rows < h) & (near_columns >= 0) & (near_columns < w)
    neighbours = near_rows.clamp(0, h - 1) * w + near_columns.clamp(0, w - 1)
    if is_allowed1 is not None:
        is_usable &= is_allowed1[neighbours]
    cells = map1.features[0].flatten(1).t()[neighbours].to(descriptors0.dtype)  # (N, 9, D)
    offsets, weights = _fine_grid(descriptors0)  # (Q,), (Q * Q, 9)

    # Rows times matrices: many times as fast on a CPU as matrices times columns.
    inner = (descriptors0[:, None] @ cells.transpose(1, 2))[:, 0] @ weights.t()  # (N, Q * Q)
    gram = (cells @ cells.transpose(1, 2)).flatten(1)  # (N, 81)
    pair_weights = (weights[:, :, None] * weights[:, None, :]).flatten(1)  # (Q * Q, 81)
    lengths = (gram @ pair_weights.t()).clamp_min(1e-12).sqrt()
    uses_forbidden = (~is_usable).to(weights.dtype) @ (weights > 0).to(weights.dtype).t() > 0
    surface = (inner / lengths).masked_fill(uses_forbidden, -2.0)  # (N, Q * Q)

    size = len(offsets)
    similarity = surface
    if prior is not None:
        surface = surface + prior.rate_grid(cell_centres(map1)[index], map1.stride * offsets)
    best = surface.argmax(dim=1)
    shift = torch.stack(
        [
            offsets[best % size] + _fit_peak(surface, best, best % size, 1, size),
            offsets[best // size] + _fit_peak(surface, best, best // size, size, size),
        ],
        dim=-1,
    )
    similarities = similarity.gather(1, best[:, None])[:, 0].clamp(-1, 1)
    return cell_centres(map1)[index] + map1.stride * shift, similarities


def interpolate_shift(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_allowed1: Tensor | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """Refines matches (N, 2) of points between cells by those of the four cells around each point.

    A descriptor read between cells is a mixture, and most similar to a mixture of the same proportions. So
    its match is drawn towards a shift by whole cells, by up to 0.7 px at a stride of 4. Descriptors at cell
    centres are not: each of the four is matched near the place where the match says that it lies, and the
    shifts of those that agree are averaged with the weights of bilinear interpolation.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) their matches in pixels of image 1, after sub-cell refinement; NaN where none is.
        is_allowed1: (h * w,) bool, the cells of image 1 that may take part; None allows all.
        memory_bytes: budget of the temporaries.
    """
    cells0, weights = _cells_around(map0, points0)
    centres = cell_centres(map0)[cells0]  # (N, 4, 2)
    # Beyond the outermost cell centres the border cell is used.
    inner0 = (weights[..., None] * centres).sum(dim=1, keepdim=True)
    guesses = points1.nan_to_num(0.0)[:, None] + centres - inner0
    # Cells without weight are left out, but not on a GPU, where to count them would be to wait for it.
    rows = slice(None) if weights.is_cuda else (weights > 0).flatten().nonzero()[:, 0]
    descriptors = map0.features[0].flatten(1).t()[cells0.flatten()[rows]].contiguous()
    near = guesses.flatten(0, 1)[rows]
    found = refine(descriptors, map1, _nearest_cells(map1, near), is_allowed1, memory_bytes)
    shifts = points1.new_zeros(4 * len(points1), 2)
    shifts[rows] = (found.points - near).to(points1.dtype)
    agrees = torch.zeros(len(shifts), dtype=torch.bool, device=shifts.device)
    agrees[rows] = found.similarities > -1
    agrees &= shifts.norm(dim=1) <= _MAX_DEVIATION * map1.stride
    weights = (weights * agrees.view_as(weights)).to(points1.dtype)
    shift = (weights[..., None] * shifts.view_as(guesses)).sum(dim=1)
    shift = shift / weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
    moved = points1 + shift
    if is_allowed1 is None:
        return moved
    return torch.where(is_allowed1[_nearest_cells(map1, moved.nan_to_num(0.0))][:, None], moved, points1)


def _cells_around(feature_map: FeatureMap, points: Tensor) -> tuple[Tensor, Tensor]:
    """The four cells (N, 4) around pixels (N, 2), and their bilinear weights."""
    h, w = feature_map.grid_hw
    last = points.new_tensor([w - 1, h - 1])
    cells = pixels_to_cells(points, feature_map.stride, feature_map.offset).clamp_min(0).minimum(last)
    first = cells.floor()
    second = (first + 1).minimum(last)
    share = cells - first
    columns = torch.stack([first[:, 0], second[:, 0]] * 2, dim=1).long()
    rows = torch.stack([first[:, 1], first[:, 1], second[:, 1], second[:, 1]], dim=1).long()
    along_x = torch.stack([1 - share[:, 0], share[:, 0]] * 2, dim=1)
    along_y = torch.stack([1 - share[:, 1], 1 - share[:, 1], share[:, 1], share[:, 1]], dim=1)
    return rows * w + columns, along_x * along_y


def _nearest_cells(feature_map: FeatureMap, points: Tensor) -> Tensor:
    """The cell (N,) nearest to each of the pixels (N, 2)."""
    h, w = feature_map.grid_hw
    x, y = pixels_to_cells(points, feature_map.stride, feature_map.offset).round().long().unbind(dim=1)
    return y.clamp(0, h - 1) * w + x.clamp(0, w - 1)


def _fine_grid(like: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (Q,) in cells along one axis, and bilinear weights (Q * Q, 9) of each position, row by row."""
    offsets = torch.arange(-_FINE_STEPS, _FINE_STEPS + 1, device=like.device, dtype=like.dtype) / _FINE_STEPS
    cells = torch.arange(-1, 2, device=like.device, dtype=like.dtype)
    along = (1 - (offsets[:, None] - cells).abs()).clamp_min(0)  # (Q, 3)
    weights = along[:, None, :, None] * along[None, :, None, :]  # (Qy, Qx, 3, 3)
    return offsets, weights.reshape(-1, 9)


def _fit_peak(surface: Tensor, best: Tensor, position: Tensor, stride: int, size: int) -> Tensor:
    """Offset, in cells, of the peak of a parabola through the best position and its neighbours on an axis."""
    has_both = (position > 0) & (position < size - 1)
    low = surface.gather(1, (best - stride).clamp_min(0)[:, None])[:, 0]
    high = surface.gather(1, (best + stride).clamp_max(surface.shape[1] - 1)[:, None])[:, 0]
    middle = surface.gather(1, best[:, None])[:, 0]
    curvature = low - 2 * middle + high
    is_peak = has_both & (curvature < -1e-9) & (low > -1.5) & (high > -1.5)
    peak = 0.5 * (low - high) / torch.where(is_peak, curvature, -1.0)
    return torch.where(is_peak, peak, 0.0).clamp(-0.5, 0.5) / _FINE_STEPS
