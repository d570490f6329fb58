"""The protocol of matchers that find any point of image 0 in image 1, and the default: nearest neighbours.

All coordinates are pixels of the encoded images, as in `ucn.matching.cells`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ucn.matching import local_affine
from ucn.matching.cells import (
    CONSENSUS_GAP,
    CONSENSUS_RADIUS,
    CONSENSUS_WEIGHT,
    match_forward,
    measure_guidance,
)
from ucn.matching.consensus import (
    CELL_PIXELS,
    HYPOTHESES,
    POWER,
    SHIFTS,
    SPREAD,
    Consensus,
)
from ucn.types import FeatureMap, Features

_SETTINGS = (
    *(CONSENSUS_WEIGHT, CONSENSUS_GAP, CONSENSUS_RADIUS),
    *(CELL_PIXELS, SHIFTS, SPREAD, POWER, HYPOTHESES),
    *(value for name, value in sorted(vars(local_affine).items()) if name.isupper()),
)
CONSENSUS_SHA256 = hashlib.sha256(repr(_SETTINGS).encode()).hexdigest()[:16]
"""The begin of the hash of all settings of consensus and of the prior, for keys of predictions."""


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


@runtime_checkable
class ViewMatcher(Protocol):
    """A matcher that may encode views of the images, and so needs more than their maps."""

    def align_features(
        self, features0: Features, features1: Features, is_allowed1: Tensor | None = None
    ) -> Alignment:
        """As `PairMatcher.align`."""


def align_features(
    matcher: PairMatcher, features0: Features, features1: Features, is_allowed1: Tensor | None = None
) -> Alignment:
    """Aligns a pair by a matcher of either protocol; as `PairMatcher.align`."""
    if isinstance(matcher, ViewMatcher):
        return matcher.align_features(features0, features1, is_allowed1)
    return matcher.align(features0.map, features1.map, is_allowed1)


@dataclass(frozen=True)
class NearestNeighbours:
    """Matches each point to the cell of image 1 with the nearest descriptor.

    Attributes:
        consensus: guide the search by neighbourhood consensus, as `ucn.Matcher` does by default.
    """

    consensus: bool = False

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Measures consensus and prior of the pair, where they are used."""
        found = measure_guidance(map0, map1, is_allowed1=is_allowed1) if self.consensus else None
        return _Nearest(map0, map1, is_allowed1, found)


@dataclass(frozen=True, eq=False)
class _Nearest:
    map0: FeatureMap
    map1: FeatureMap
    is_allowed1: Tensor | None
    consensus: Consensus | None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """See `ucn.matching.cells.match_forward`."""
        found = match_forward(
            self.map0,
            self.map1,
            points0,
            consensus=self.consensus,
            is_allowed1=self.is_allowed1,
            use_refinement=use_refinement,
        )
        return found.points
