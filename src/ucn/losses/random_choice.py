"""Exactly uniform sampling that a generator makes reproducible."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_uniform(shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Float64 samples of [0, 1) on `device`.

    Args:
        shape: of the result.
        device: of the result.
        generator: on any device; None means torch's global generator.
    """
    source = device if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, device=source, generator=generator).to(device)


def sample_true_indices(mask: Tensor, uniform: Tensor) -> Tensor:
    """Samples uniformly among the True values of each row, with replacement.

    Args:
        mask: (..., M) bool.
        uniform: (..., K) float64 samples of [0, 1), one for each index.

    Returns:
        (..., K) int64 indices into the row; -1 where a row has no True value.
    """
    if mask.shape[-1] == 0:
        return torch.full(uniform.shape, -1, dtype=torch.int64, device=uniform.device)
    # The n-th True value is the first index whose running count is n.
    counts = mask.contiguous().cumsum(dim=-1, dtype=torch.int32)
    total = counts[..., -1:]
    ranks = (uniform * total).to(torch.int32).clamp(max=total - 1) + 1
    return torch.where(total > 0, torch.searchsorted(counts, ranks), -1)
