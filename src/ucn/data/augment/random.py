"""Random values from a `torch.Generator`, without synchronising with the device."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Uniform float32 values in [low, high), on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device) * (high - low) + low


def uniform_columns(
    shape: tuple[int, ...], ranges: Mapping[str, tuple[float, float, int]], generator: torch.Generator
) -> dict[str, Tensor]:
    """Uniform values of several ranges from one call, which costs a device far less than one call each.

    Args:
        shape: leading shape of each column.
        ranges: low, high and width of each column; constant over calls, since they are cached on the device.
        generator: random generator; the values are on its device.

    Returns:
        Float32 (*shape, width) for each name; (*shape,) where the width is 1.
    """
    widths = [width for _, _, width in ranges.values()]
    limits = tuple((low, high) for low, high, width in ranges.values() for _ in range(width))
    uniforms = torch.rand((*shape, sum(widths)), generator=generator, device=generator.device)
    columns = torch.split(scale_to_ranges(uniforms, limits), widths, dim=-1)
    return {
        name: column.squeeze(-1) if width == 1 else column
        for name, column, width in zip(ranges, columns, widths, strict=True)
    }


def scale_to_ranges(uniforms: Tensor, limits: tuple[tuple[float, float], ...]) -> Tensor:
    """Scales uniform values (..., K) in [0, 1) to K ranges (low, high)."""
    spans = _constants(tuple(high - low for low, high in limits), uniforms.device)
    return uniforms * spans + _constants(tuple(low for low, _ in limits), uniforms.device)


@functools.lru_cache(maxsize=64)
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A tensor that is copied to the device only once, since every copy synchronises with it."""
    return torch.tensor(values, device=device)


def sample_counts(total: int, shares: Sequence[float], generator: torch.Generator) -> list[int]:
    """Splits a batch into kinds, with randomness only where the shares do not give whole numbers.

    The host needs the counts before anything runs on the device. Reading a random value back would stall it,
    so the randomness comes from a hash of the generator's state, which the host knows and which is unchanged.

    Args:
        total: the number of items.
        shares: fraction of each kind, at least 0; at most 1 in sum.
        generator: on any device.

    Returns:
        One count per share: `total * share` rounded up or down, with the right mean; at most `total` in sum.
    """
    if not any(shares):
        return [0] * len(shares)
    state = generator.get_state().numpy().tobytes()
    chance = int.from_bytes(hashlib.blake2b(state, digest_size=6).digest(), "big") / 2**48
    # Systematic sampling: items at chance, 1 + chance, 2 + chance, …; each kind owns an interval of the line.
    edges = [0]
    reached = 0.0
    for share in shares:
        reached = min(reached + share, 1.0)
        edges.append(math.floor(reached * total + chance))
    return [after - before for before, after in itertools.pairwise(edges)]
