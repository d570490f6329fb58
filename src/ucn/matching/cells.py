"""Feature maps to matches: nearest cell, place between cells, rival elsewhere, the way back.

Everything here is in pixels of the encoded images; `predict` moves results to the caller's pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.geometry.coords import cell_centres, pixel_grid, pixels_to_cells, resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors, sample_image
from ucn.knn import ExclusionRadius, nearest
from ucn.runtime.kernels import use_fused
from ucn.types import FeatureMap

_FINE_STEPS = 8
"""Places per cell and axis at which a refined match is tried before the peak is fitted."""


@dataclass(frozen=True)
class CellMatches:
    """For each query the best place in the other image.

    Attributes:
        points1: (N, 2) pixels of image 1; NaN where no cell was allowed.
        similarities: (N,) cosine similarity there, in [-1, 1]; -1 where no cell was allowed.
    """

    points1: Tensor
    similarities: Tensor


@dataclass(frozen=True)
class CheckedMatches:
    """Matches with what tells good from bad.

    Attributes:
        points1: (N, 2) pixels of image 1; NaN where no cell was allowed.
        similarities: (N,) cosine similarity there.
        second_best: (N,) best similarity farther away than the exclusion radius; -1 where nothing is that far.
        round_trip_errors: (N,) pixels of image 0 by which the match back from `points1` misses the query.
    """

    points1: Tensor
    similarities: Tensor
    second_best: Tensor
    round_trip_errors: Tensor


def match_cells(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    *,
    is_allowed1: Tensor | None = None,
    use_refinement: bool = True,
    memory_bytes: int = 256 * 2**20,
) -> CellMatches:
    """Finds where points of image 0 lie in image 1.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
        is_allowed1: (h * w,) bool, which cells of image 1 may match; None allows all.
        use_refinement: place matches between cells instead of on their centres.
        memory_bytes: budget of the temporaries.
    """
    descriptors0 = _read_descriptors(map0, points0)
    return _match_descriptors(descriptors0, map1, is_allowed1, use_refinement, memory_bytes)


def refine_matches(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    cells1: Tensor,
    *,
    is_allowed1: Tensor | None = None,
    memory_bytes: int = 256 * 2**20,
) -> CellMatches:
    """Places matches whose cells are already known between cells, where descriptors are most similar.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
        cells1: (N,) int64, the cell ``row * w + column`` of image 1 that each point was matched to; a match
            moves by at most one cell along each axis.
        is_allowed1: (h * w,) bool, which cells of image 1 may take part; None allows all.
        memory_bytes: budget of the temporaries.
    """
    descriptors0 = _read_descriptors(map0, points0)
    return _refine_in_chunks(descriptors0, map1, cells1, is_allowed1, memory_bytes)


def match_points(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    *,
    second_best_radius: float,
    is_allowed0: Tensor | None = None,
    is_allowed1: Tensor | None = None,
    use_refinement: bool = True,
    memory_bytes: int = 256 * 2**20,
) -> CheckedMatches:
    """Matches as `match_cells` does, then looks for a rival elsewhere and matches back.

    Args:
        map0: descriptors of image 0 (batch of 1).
        map1: descriptors of image 1 (batch of 1).
        points0: (N, 2) pixels of image 0.
        second_best_radius: pixels; only cells farther than this from a match can be its rival.
        is_allowed0: (h * w,) bool, which cells of image 0 the way back may end on; None allows all.
        is_allowed1: (h * w,) bool, which cells of image 1 may match; None allows all.
        use_refinement: place matches between cells instead of on their centres.
        memory_bytes: budget of the temporaries.
    """
    descriptors0 = _read_descriptors(map0, points0)
    there = _match_descriptors(descriptors0, map1, is_allowed1, use_refinement, memory_bytes)
    starts1 = there.points1.nan_to_num(0.0)
    cells1, positions1 = _candidates(map1, is_allowed1)
    exclusion = ExclusionRadius(starts1, positions1, second_best_radius)
    second_best = nearest(descriptors0, cells1, exclusion=exclusion, memory_bytes=memory_bytes)
    descriptors1 = _read_descriptors(map1, starts1)
    back = _match_descriptors(descriptors1, map0, is_allowed0, use_refinement, memory_bytes)
    round_trip_errors = (back.points1 - points0).norm(dim=-1) + 0 * there.points1[:, 0]  # NaN stays NaN
    return CheckedMatches(
        there.points1,
        there.similarities,
        _similarity(second_best.distances[:, 0]),
        round_trip_errors.nan_to_num(torch.inf),
    )


def similarity_map(map0: FeatureMap, map1: FeatureMap, point0: Tensor) -> Tensor:
    """Cosine similarity (h, w) of a point (2,) of image 0, in its pixels, and each cell of image 1."""
    descriptor = sample_descriptors(map0, point0[None, None])[0, 0]
    features1 = map1.features[0].to(descriptor.dtype)
    return torch.einsum("d,dhw->hw", descriptor, features1).clamp(-1, 1)


def spread_over_pixels(
    values: Tensor, weights: Tensor, feature_map: FeatureMap, image_hw: tuple[int, int]
) -> Tensor:
    """Values known at cells, at every pixel of the caller's image, sure cells counting more.

    Args:
        values: (h * w, C) one row per cell.
        weights: (h * w,) at least 0.
        feature_map: whose cells they are.
        image_hw: (H, W) of the caller's image, of which `feature_map` encodes a resized copy.

    Returns:
        (H, W, C) weighted bilinear means.
    """
    h, w = feature_map.grid_hw
    layers = torch.cat([values, torch.ones_like(values[:, :1])], dim=1) * weights.clamp_min(1e-6)[:, None]
    grid = layers.t().reshape(1, -1, h, w)
    scale = resize_scale(image_hw, feature_map.image_hw)
    pixels = resize_points(pixel_grid(image_hw, values.device), scale)
    cells = pixels_to_cells(pixels, feature_map.stride, feature_map.offset)
    spread = sample_image(grid, cells[None], "border")[0]  # (C + 1, H, W)
    return (spread[:-1] / spread[-1:]).permute(1, 2, 0)


def _read_descriptors(feature_map: FeatureMap, points: Tensor) -> Tensor:
    """Descriptors (N, D) at pixels (N, 2), the values of each side by side, as searches like them best."""
    return sample_descriptors(feature_map, points[None])[0].contiguous()


def _match_descriptors(
    descriptors0: Tensor,
    map1: FeatureMap,
    is_allowed1: Tensor | None,
    use_refinement: bool,
    memory_bytes: int,
) -> CellMatches:
    cells1, positions1 = _candidates(map1, is_allowed1)
    if len(positions1) == 0:
        count = len(descriptors0)
        return CellMatches(
            descriptors0.new_full((count, 2), torch.nan), descriptors0.new_full((count,), -1.0)
        )
    found = nearest(descriptors0, cells1, memory_bytes=memory_bytes)
    index = found.indices[:, 0]
    if not use_refinement:
        return CellMatches(positions1[index], _similarity(found.distances[:, 0]))
    if is_allowed1 is not None:
        index = is_allowed1.nonzero().flatten()[index]
    return _refine_in_chunks(descriptors0, map1, index, is_allowed1, memory_bytes)


def _refine_in_chunks(
    descriptors0: Tensor, map1: FeatureMap, index: Tensor, is_allowed1: Tensor | None, memory_bytes: int
) -> CellMatches:
    """Moves matches from cells to places between them, in bounded memory; see `_refine`."""
    if use_fused(descriptors0, map1.features, index) and len(index):
        from ucn.matching.triton.refinement import can_refine, refine_fused  # only where Triton is there

        if can_refine(descriptors0, map1.features):
            found = refine_fused(
                descriptors0,
                map1.features[0],
                index,
                is_allowed1,
                stride=map1.stride,
                offset=map1.offset,
                fine_steps=_FINE_STEPS,
            )
            return CellMatches(*found)
    neighbourhood_bytes = 12 * (descriptors0.shape[-1] + (2 * _FINE_STEPS + 1) ** 2) * 4
    chunk = max(1, memory_bytes // neighbourhood_bytes)
    parts = [
        _refine(descriptors0[start : start + chunk], map1, index[start : start + chunk], is_allowed1)
        for start in range(0, len(index), chunk)
    ]
    if not parts:
        return CellMatches(descriptors0.new_zeros(0, 2), descriptors0.new_zeros(0))
    return CellMatches(torch.cat([p for p, _ in parts]), torch.cat([s for _, s in parts]))


def _candidates(feature_map: FeatureMap, is_allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Descriptors (M, D) and pixels (M, 2) of the cells that may match."""
    cells, positions = feature_map.features[0].flatten(1).t(), cell_centres(feature_map)
    return (cells, positions) if is_allowed is None else (cells[is_allowed], positions[is_allowed])


def _similarity(distances: Tensor) -> Tensor:
    """Cosine of the angle between unit vectors at a Euclidean distance; -1 at an infinite one."""
    return (1 - distances.square() / 2).clamp_min(-1)


def _refine(
    descriptors0: Tensor, map1: FeatureMap, index: Tensor, is_allowed1: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Moves matches from cell centres to where the interpolated descriptor is most similar.

    The descriptor at a place between cells is, as everywhere in this package, the normalised bilinear mixture
    of the cells round it. With weights w over the 3×3 cells f round the best one, its similarity to a query q
    is w·(f q) / √(wᵀ (f fᵀ) w), so all places of a fine grid are tried by two small products. A parabola
    through the best place and its neighbours then gives the peak.

    Args:
        descriptors0: (N, D) queries.
        map1: the other image.
        index: (N,) the best cell of each query.
        is_allowed1: (h * w,) bool, which cells may take part; None allows all.

    Returns:
        (N, 2) pixels and (N,) similarities.
    """
    h, w = map1.grid_hw
    rows, columns = index // w, index % w
    steps = torch.arange(-1, 2, device=index.device)
    near_rows = (rows[:, None, None] + steps[:, None]).expand(-1, 3, 3).flatten(1)  # (N, 9)
    near_columns = (columns[:, None, None] + steps).expand(-1, 3, 3).flatten(1)
    is_on_map = (near_rows >= 0) & (near_rows < h) & (near_columns >= 0) & (near_columns < w)
    neighbours = near_rows.clamp(0, h - 1) * w + near_columns.clamp(0, w - 1)
    if is_allowed1 is not None:
        is_on_map &= is_allowed1[neighbours]
    cells = map1.features[0].flatten(1).t()[neighbours].to(descriptors0.dtype)  # (N, 9, D)
    offsets, weights = _fine_grid(descriptors0)  # (Q,), (Q * Q, 9)

    # Rows times matrices: many times as fast on a processor as matrices times columns.
    inner = (descriptors0[:, None] @ cells.transpose(1, 2))[:, 0] @ weights.t()  # (N, Q * Q)
    gram = (cells @ cells.transpose(1, 2)).flatten(1)  # (N, 81)
    pair_weights = (weights[:, :, None] * weights[:, None, :]).flatten(1)  # (Q * Q, 81)
    lengths = (gram @ pair_weights.t()).clamp_min(1e-12).sqrt()
    leaves_map = (~is_on_map).to(weights.dtype) @ (weights > 0).to(weights.dtype).t() > 0
    surface = (inner / lengths).masked_fill(leaves_map, -2.0)

    size = len(offsets)
    best = surface.argmax(dim=1)
    shift = torch.stack(
        [
            offsets[best % size] + _peak(surface, best, best % size, 1, size),
            offsets[best // size] + _peak(surface, best, best // size, size, size),
        ],
        dim=-1,
    )
    similarities = surface.gather(1, best[:, None])[:, 0].clamp(-1, 1)
    return cell_centres(map1)[index] + map1.stride * shift, similarities


def _fine_grid(like: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (Q,) in cells along one axis, and the bilinear weights (Q * Q, 9) of each place, row by row."""
    offsets = torch.arange(-_FINE_STEPS, _FINE_STEPS + 1, device=like.device, dtype=like.dtype) / _FINE_STEPS
    cells = torch.arange(-1, 2, device=like.device, dtype=like.dtype)
    along = (1 - (offsets[:, None] - cells).abs()).clamp_min(0)  # (Q, 3)
    weights = along[:, None, :, None] * along[None, :, None, :]  # (Qy, Qx, 3, 3)
    return offsets, weights.reshape(-1, 9)


def _peak(surface: Tensor, best: Tensor, position: Tensor, stride: int, size: int) -> Tensor:
    """Offset, in cells, of the top of a parabola through a fine place and its two neighbours on an axis."""
    has_both = (position > 0) & (position < size - 1)
    low = surface.gather(1, (best - stride).clamp_min(0)[:, None])[:, 0]
    high = surface.gather(1, (best + stride).clamp_max(surface.shape[1] - 1)[:, None])[:, 0]
    middle = surface.gather(1, best[:, None])[:, 0]
    curvature = low - 2 * middle + high
    is_peak = has_both & (curvature < -1e-9) & (low > -1.5) & (high > -1.5)
    top = 0.5 * (low - high) / torch.where(is_peak, curvature, -1.0)
    return torch.where(is_peak, top, 0.0).clamp(-0.5, 0.5) / _FINE_STEPS
