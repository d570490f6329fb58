"""Displacements of cells, and what the optimising matchers share: pooling of features and refinement.

All coordinates are pixels of the encoded images, as in `ucn.matching.cells`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import pixels_to_cells
from ucn.matching.sub_cell import refine_sub_cell
from ucn.types import FeatureMap


@dataclass(frozen=True, eq=False)
class CellFlow:
    """A displacement for each cell of image 0: an `Alignment`.

    Attributes:
        map0: features of image 0 (batch of 1).
        map1: features of image 1, with the same stride and offset.
        flow_cells: (h, w, 2) displacements (x, y) in cells.
        is_allowed1: (h * w,) bool, the cells of image 1 that may match; None allows all.
    """

    map0: FeatureMap
    map1: FeatureMap
    flow_cells: Tensor
    is_allowed1: Tensor | None = None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """Moves each point by the displacement of its nearest cell, then refines it within a cell."""
        cells0 = pixels_to_cells(points0, self.map0.stride, self.map0.offset)
        column0, row0 = round_to_grid(cells0, self.map0.grid_hw)
        points1 = points0 + self.map0.stride * self.flow_cells[row0, column0].to(points0.dtype)
        return refine_points(self.map0, self.map1, points0, points1, self.is_allowed1, use_refinement)


def pool_map(feature_map: FeatureMap, min_stride: int) -> FeatureMap:
    """A map with a stride of at least `min_stride` pixels: descriptors are averaged and normalised again."""
    step = -(-min_stride // feature_map.stride)
    if step == 1:
        return feature_map
    pooled = F.avg_pool2d(feature_map.features.float(), step, ceil_mode=True)
    return FeatureMap(
        features=F.normalize(pooled, dim=1),
        stride=feature_map.stride * step,
        offset=feature_map.offset + feature_map.stride * (step - 1) / 2,
        image_hw=feature_map.image_hw,
    )


def pool_mask(is_allowed: Tensor | None, feature_map: FeatureMap, min_stride: int) -> Tensor | None:
    """Mask (h' * w',) of the cells of a pooled map of which at least half is allowed."""
    step = -(-min_stride // feature_map.stride)
    if is_allowed is None or step == 1:
        return is_allowed
    mask = is_allowed.view(1, *feature_map.grid_hw).float()
    return F.avg_pool2d(mask, step, ceil_mode=True).flatten() >= 0.5


def refine_points(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_allowed1: Tensor | None,
    use_refinement: bool,
) -> Tensor:
    """Moves points of image 1 to the highest similarity within a cell.

    Args:
        map0: features of image 0.
        map1: features of image 1.
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1 that an optimiser found.
        is_allowed1: (h * w,) bool, the cells of image 1 that may match; points on other cells do not move.
        use_refinement: False leaves all points where they are.

    Returns:
        (N, 2) pixels of image 1; NaN where no cell of image 1 is allowed.
    """
    if is_allowed1 is not None and not is_allowed1.any():
        return torch.full_like(points1, torch.nan)
    if not use_refinement:
        return points1
    column1, row1 = round_to_grid(pixels_to_cells(points1, map1.stride, map1.offset), map1.grid_hw)
    cells1 = row1 * map1.grid_hw[1] + column1
    refined = refine_sub_cell(map0, map1, points0, cells1, is_allowed1=is_allowed1).points
    if is_allowed1 is None:
        return refined
    return torch.where(is_allowed1[cells1][:, None], refined, points1)


def round_to_grid(cells: Tensor, grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(column, row) int64 of the cells nearest to positions (N, 2) in cells."""
    h, w = grid_hw
    whole = (cells + 0.5).floor().long()
    return whole[:, 0].clamp(0, w - 1), whole[:, 1].clamp(0, h - 1)
