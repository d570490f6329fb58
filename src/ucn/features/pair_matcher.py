"""The protocol of matchers that find any point of image 0 in image 1, and the default: nearest neighbours.

All coordinates are pixels of the encoded images, as in `ucn.matching.cells`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ucn.matching.cells import match_forward
from ucn.types import FeatureMap


class Alignment(Protocol):
    """Dense correspondence of two images."""

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """Finds points of image 0 in image 1.

        Args:
            points0: (N, 2) pixels of image 0.
            use_refinement: refine positions within a cell.

        Returns:
            (N, 2) pixels of image 1; NaN where no cell of image 1 is allowed.
        """


class PairMatcher(Protocol):
    """Aligns two images, given their dense features."""

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Aligns a pair; systems that optimise over the whole image do it here.

        Args:
            map0: features of image 0 (batch of 1).
            map1: features of image 1 by the same extractor, on the same device (batch of 1).
            is_allowed1: (h * w,) bool, the cells of image 1 that may match; None allows all.
        """


@dataclass(frozen=True)
class NearestNeighbours:
    """Matches each point alone, to the cell of image 1 with the nearest descriptor."""

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Does no work before `find` is called."""
        return _Nearest(map0, map1, is_allowed1)


@dataclass(frozen=True, eq=False)
class _Nearest:
    map0: FeatureMap
    map1: FeatureMap
    is_allowed1: Tensor | None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """See `ucn.matching.cells.match_forward`."""
        found = match_forward(
            self.map0, self.map1, points0, is_allowed1=self.is_allowed1, use_refinement=use_refinement
        )
        return found.points
