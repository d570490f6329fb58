"""Pairs that are brought together once, however many variants of a method ask for their points."""

from __future__ import annotations

import time

from torch import Tensor

from ucn.paper import Alignment, PairMatcher
from ucn.types import FeatureMap


class OnceAligned:
    """A matcher that keeps the last pair it brought together.

    Attributes:
        saved_seconds: what that took, where it was kept from before; what asks next would else have spent it.
    """

    def __init__(self, matcher: PairMatcher) -> None:
        self._matcher = matcher
        self._maps: tuple[FeatureMap, FeatureMap] | None = None
        self._kept: Alignment | None = None
        self._seconds = 0.0
        self.saved_seconds = 0.0

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Brings a pair together, or gives what is kept of it; a pair always has the same allowed cells."""
        is_known = self._maps is not None and self._maps[0] is map0 and self._maps[1] is map1
        if not is_known or self._kept is None:
            before = time.perf_counter()
            self._kept = self._matcher.align(map0, map1, is_allowed1)
            self._maps, self._seconds = (map0, map1), time.perf_counter() - before
            self.saved_seconds = 0.0
        else:
            self.saved_seconds = self._seconds
        return self._kept
