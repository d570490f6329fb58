"""Which two images pair k of a set is made of, without a list of the pairs: sets have millions."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


class PairIndex(Protocol):
    """Which two examples pair k is made of."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[int, int]: ...


class GroupPairs:
    """All pairs within groups of consecutive examples, in the order of `itertools.combinations`."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self._sizes = list(sizes)
        self._first_example = [0, *itertools.accumulate(self._sizes)]
        self._first_pair = [0, *itertools.accumulate(math.comb(size, 2) for size in self._sizes)]

    def __len__(self) -> int:
        return self._first_pair[-1]

    def __getitem__(self, index: int) -> tuple[int, int]:
        group = bisect_right(self._first_pair, index) - 1
        i, j = unrank_pair(index - self._first_pair[group], self._sizes[group])
        return self._first_example[group] + i, self._first_example[group] + j


class ListedPairs:
    """Pairs that a file lists."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._rows = np.asarray(pairs, np.int32).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return int(self._rows[index, 0]), int(self._rows[index, 1])


def unrank_pair(rank: int, count: int) -> tuple[int, int]:
    """Pair number `rank` of ``itertools.combinations(range(count), 2)``, by whole numbers alone."""
    # Counted from the last pair, row i = count - 2 - k has the k + 1 ranks from k (k + 1) / 2 on.
    reverse = math.comb(count, 2) - 1 - rank
    k = (math.isqrt(8 * reverse + 1) - 1) // 2
    return count - 2 - k, count - 1 - (reverse - k * (k + 1) // 2)
