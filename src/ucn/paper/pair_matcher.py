"""What turns the features of two images into answers: the protocol, nearest neighbours, and flows of cells.

Everything here is in pixels of the encoded images, as in `ucn.matching.cells`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import pixels_to_cells
from ucn.matching.cells import match_cells, refine_matches
from ucn.types import FeatureMap


class Alignment(Protocol):
    """Two images that have been brought together; it can be asked for any point."""

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """Where points of image 0 lie in image 1.

        Args:
            points0: (N, 2) pixels of image 0.
            use_refinement: place answers between cells.

        Returns:
            (N, 2) pixels of image 1; NaN where nothing in image 1 may match.
        """


class PairMatcher(Protocol):
    """Brings two images together, given their dense features; one that optimises does its work here."""

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Prepares answers for a pair.

        Args:
            map0: features of image 0 (batch of 1).
            map1: features of image 1 by the same extractor, on the same device (batch of 1).
            is_allowed1: (h * w,) bool, which cells of image 1 may match; None allows all.
        """


@dataclass(frozen=True)
class NearestNeighbours:
    """Each point on its own: the cell of image 1 with the nearest descriptor."""

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Nothing is to be prepared."""
        return _Nearest(map0, map1, is_allowed1)


@dataclass(frozen=True, eq=False)
class _Nearest:
    map0: FeatureMap
    map1: FeatureMap
    is_allowed1: Tensor | None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """See `ucn.matching.cells.match_cells`."""
        found = match_cells(
            self.map0, self.map1, points0, is_allowed1=self.is_allowed1, use_refinement=use_refinement
        )
        return found.points1


@dataclass(frozen=True, eq=False)
class CellFlow:
    """A displacement for each cell of image 0.

    Attributes:
        map0: features of image 0 (batch of 1).
        map1: features of image 1, with the same stride and offset.
        flow_cells: (h, w, 2) displacements (x, y) in cells.
        is_allowed1: (h * w,) bool, which cells of image 1 may match; None allows all.
    """

    map0: FeatureMap
    map1: FeatureMap
    flow_cells: Tensor
    is_allowed1: Tensor | None = None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """A point moves with its nearest cell; refined, to the most similar place within a cell of there."""
        cells0 = pixels_to_cells(points0, self.map0.stride, self.map0.offset)
        column0, row0 = round_to_grid(cells0, self.map0.grid_hw)
        points1 = points0 + self.map0.stride * self.flow_cells[row0, column0].to(points0.dtype)
        return settle(self.map0, self.map1, points0, points1, self.is_allowed1, use_refinement)


def thin_out(feature_map: FeatureMap, finest_pixels: int) -> FeatureMap:
    """A map whose cells lie at least so many pixels apart; finer ones are averaged, to unit length again."""
    step = -(-finest_pixels // feature_map.stride)
    if step == 1:
        return feature_map
    pooled = F.avg_pool2d(feature_map.features.float(), step, ceil_mode=True)
    return FeatureMap(
        features=F.normalize(pooled, dim=1),
        stride=feature_map.stride * step,
        offset=feature_map.offset + feature_map.stride * (step - 1) / 2,
        image_hw=feature_map.image_hw,
    )


def thin_out_mask(is_allowed: Tensor | None, feature_map: FeatureMap, finest_pixels: int) -> Tensor | None:
    """Which cells (h' * w') of a thinned map are allowed: those of which at least half was."""
    step = -(-finest_pixels // feature_map.stride)
    if is_allowed is None or step == 1:
        return is_allowed
    mask = is_allowed.view(1, *feature_map.grid_hw).float()
    return F.avg_pool2d(mask, step, ceil_mode=True).flatten() >= 0.5


def settle(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_allowed1: Tensor | None,
    use_refinement: bool,
) -> Tensor:
    """Answers of an optimiser as they are, or moved to the most similar place within a cell of there.

    Args:
        map0: features of image 0.
        map1: features of image 1.
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) where the optimiser puts them.
        is_allowed1: (h * w,) bool, which cells of image 1 may match; answers beside those stay.
        use_refinement: whether to move them.

    Returns:
        (N, 2) pixels of image 1; NaN where no cell of it is allowed.
    """
    if is_allowed1 is not None and not is_allowed1.any():
        return torch.full_like(points1, torch.nan)
    if not use_refinement:
        return points1
    column1, row1 = round_to_grid(pixels_to_cells(points1, map1.stride, map1.offset), map1.grid_hw)
    cells1 = row1 * map1.grid_hw[1] + column1
    refined = refine_matches(map0, map1, points0, cells1, is_allowed1=is_allowed1).points1
    if is_allowed1 is None:
        return refined
    return torch.where(is_allowed1[cells1][:, None], refined, points1)


def round_to_grid(cells: Tensor, grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(column, row) int64 of the cells of a map that lie nearest to places (N, 2) in cells."""
    h, w = grid_hw
    whole = (cells + 0.5).floor().long()
    return whole[:, 0].clamp(0, w - 1), whole[:, 1].clamp(0, h - 1)
