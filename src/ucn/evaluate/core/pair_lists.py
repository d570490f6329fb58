"""Pairs drawn by a seed, for sets that have too many; one list is kept in ``lists/``, by names of images."""

from __future__ import annotations

import bisect
import hashlib
from pathlib import Path

import torch

from ucn.data.pairs import PairData

CUB_PAIRS = Path(__file__).with_name("lists") / "cub_test_pairs.csv"
"""2,000 pairs of one class among 1,000 of CUB's test images, two names a line; `write_pair_list` made it."""


def draw_rows(total: int, count: int, seed: int = 0) -> list[int]:
    """`count` of the numbers below `total`, drawn without replacement by a seed, in rising order."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:count].tolist())


def draw_rows_by_class(data: PairData, count: int, seed: int = 0) -> list[int]:
    """`count` pairs of each class, or all where it has fewer, drawn by a seed, in rising order.

    Args:
        data: pairs of a class stand together, as where any two images of a class are a pair.
        count: of each class.
        seed: of the draws; each class has its own, so that a missing class changes nothing for the others.
    """
    rows: list[int] = []
    start = 0
    while start < len(data):
        category = data.pair_class(start)
        # There may be millions of pairs: where a class ends is found by halving.
        size = bisect.bisect(range(start, len(data)), False, key=lambda row: data.pair_class(row) != category)
        own_seed = int.from_bytes(hashlib.sha256(f"{seed}/{category}".encode()).digest()[:7], "big")
        rows += [start + row for row in draw_rows(size, count, own_seed)]
        start += size
    return rows


def write_pair_list(data: PairData, count: int, seed: int = 0) -> str:
    """Lines of two names, for a semantic set: pairs and their directions are drawn by a seed.

    Args:
        data: its pairs are named ``NAME0--NAME1``.
        count: how many pairs.
        seed: of the draws.
    """
    is_swapped = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5
    lines = []
    for row, swap in zip(draw_rows(len(data), count, seed), is_swapped.tolist(), strict=True):
        name0, name1 = data.pair_name(row).split("--")
        lines.append(f"{name1},{name0}\n" if swap else f"{name0},{name1}\n")
    return "".join(lines)
