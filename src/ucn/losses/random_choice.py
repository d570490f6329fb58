"""Random draws that are exactly uniform and can be repeated with a generator."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_uniform(shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Float64 numbers of [0, 1); a generator may live on another device, None means torch's global one."""
    source = device if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, device=source, generator=generator).to(device)


def draw_true(mask: Tensor, uniform: Tensor) -> Tensor:
    """Places drawn uniformly from the True values of each row.

    Args:
        mask: (..., M) bool.
        uniform: (..., K) float64 numbers of [0, 1), one per draw.

    Returns:
        (..., K) int64 places in the row, with replacement; -1 where a row has no True value.
    """
    if mask.shape[-1] == 0:
        return torch.full(uniform.shape, -1, dtype=torch.int64, device=uniform.device)
    ranks = mask.contiguous().cumsum(
        dim=-1, dtype=torch.int32
    )  # the n-th True value is the first place of rank n
    total = ranks[..., -1:]
    wanted = (uniform * total).to(torch.int32).clamp(max=total - 1) + 1
    places = torch.searchsorted(ranks, wanted)
    return torch.where(total > 0, places, -1)
