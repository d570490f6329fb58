"""Random numbers, and how many of each kind, from one generator."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Float32 numbers of [low, high) on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device) * (high - low) + low


def uniform_columns(
    shape: tuple[int, ...], ranges: Mapping[str, tuple[float, float, int]], generator: torch.Generator
) -> dict[str, Tensor]:
    """Numbers of many ranges in one draw, which costs a device far less than a draw each.

    Args:
        shape: of each column.
        ranges: low, high and width of each column; the same in each call, since they are kept on the device.
        generator: source of the draws, on whose device they lie.

    Returns:
        Float32 (*shape, width) for each name; (*shape,) where the width is 1.
    """
    widths = [width for _, _, width in ranges.values()]
    limits = tuple((low, high) for low, high, width in ranges.values() for _ in range(width))
    drawn = torch.rand((*shape, sum(widths)), generator=generator, device=generator.device)
    columns = torch.split(scale_to_ranges(drawn, limits), widths, dim=-1)
    return {
        name: column.squeeze(-1) if width == 1 else column
        for name, column, width in zip(ranges, columns, widths, strict=True)
    }


def scale_to_ranges(drawn: Tensor, limits: tuple[tuple[float, float], ...]) -> Tensor:
    """Brings numbers (..., K) of [0, 1) to K ranges (low, high)."""
    spans = _constants(tuple(high - low for low, high in limits), drawn.device)
    return drawn * spans + _constants(tuple(low for low, _ in limits), drawn.device)


@functools.lru_cache(maxsize=64)
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A tensor that is copied to the device once: the copy would wait for it every time."""
    return torch.tensor(values, device=device)


def draw_counts(total: int, shares: Sequence[float], generator: torch.Generator) -> list[int]:
    """Splits a number of things into kinds, by chance only where the shares do not come out even.

    The counts are wanted on the host before anything is made on the device. Waiting for a number drawn there
    would stall it, so chance comes from a digest of the generator's state, which the host knows; the state is
    not changed.

    Args:
        total: how many things.
        shares: one per kind, each at least 0, at most 1 together.
        generator: on any device.

    Returns:
        One count per share, each `total * share` rounded up or down, and right on average; at most `total`
        together.
    """
    if not any(shares):
        return [0] * len(shares)
    state = generator.get_state().numpy().tobytes()
    chance = int.from_bytes(hashlib.blake2b(state, digest_size=6).digest(), "big") / 2**48
    # Things stand at chance, 1 + chance, 2 + chance, … and each kind owns a stretch of the line.
    edges = [0]
    reached = 0.0
    for share in shares:
        reached = min(reached + share, 1.0)
        edges.append(math.floor(reached * total + chance))
    return [after - before for before, after in itertools.pairwise(edges)]
