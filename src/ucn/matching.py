"""Feature maps to matches: nearest neighbour, sub-cell refinement, the way back, scores.

Everything here is in pixels of the encoded images; `predict` moves results to the caller's pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.geometry.coords import cell_centres, cells_to_pixels
from ucn.geometry.sampling import sample_descriptors
from ucn.knn import nearest
from ucn.types import FeatureMap


@dataclass(frozen=True)
class CellMatches:
    """For each query the best place in the other image: points (N, 2) and cosine similarities (N,)."""

    points1: Tensor
    similarities: Tensor


def match_cells(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    *,
    is_allowed1: Tensor | None = None,
    use_refinement: bool = True,
    memory_bytes: int = 256 * 2**20,
) -> CellMatches:
    descriptors0 = sample_descriptors(map0, points0[None])[0]  # (N, D)
    cells1 = map1.features[0].flatten(1).t()  # (M, D)
    found = nearest(descriptors0, cells1, memory_bytes=memory_bytes)
    best = found.indices[:, 0]
    points1 = cell_centres(map1)[best]
    if use_refinement:
        points1 = points1 + map1.stride * peak_offset(neighbourhood(descriptors0, map1, best, 1))
    return CellMatches(points1, 1 - found.distances[:, 0].square() / 2)


def neighbourhood(descriptors0: Tensor, map1: FeatureMap, best: Tensor, radius: int) -> Tensor:
    h, w = map1.grid_hw
    rows, columns = best // w, best % w
    steps = torch.arange(-radius, radius + 1, device=best.device)
    near_rows, near_columns = rows[:, None, None] + steps[:, None], columns[:, None, None] + steps[None]
    is_on_map = (near_rows >= 0) & (near_rows < h) & (near_columns >= 0) & (near_columns < w)
    index = near_rows.clamp(0, h - 1) * w + near_columns.clamp(0, w - 1)
    cells1 = map1.features[0].flatten(1).t()
    values = torch.einsum("nd,nijd->nij", descriptors0, cells1[index])
    return values.masked_fill(~is_on_map, torch.nan)


def peak_offset(values: Tensor) -> Tensor:
    c = values.shape[-1] // 2
    def axis(low, mid, high):
        curvature = low - 2 * mid + high
        d = 0.5 * (low - high) / curvature
        return torch.where(curvature < -1e-12, d, torch.zeros_like(d)).nan_to_num(0).clamp(-0.5, 0.5)
    return torch.stack([axis(values[:, c, c-1], values[:, c, c], values[:, c, c+1]), axis(values[:, c-1, c], values[:, c, c], values[:, c+1, c])], -1)
