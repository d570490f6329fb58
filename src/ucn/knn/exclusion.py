"""Which candidates are too near a given place to count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExclusionRadius:
    """Keeps only candidates whose place lies more than `radius` from a place of the query's own.

    Attributes:
        centres: (..., N, 2), one per query, such as the true match in the image the candidates lie in.
        positions: (M, 2) or (..., M, 2), one per candidate, in that same image.
        radius: pixels; a candidate at exactly this distance is left out.
    """

    centres: Tensor
    positions: Tensor
    radius: float


def squared_distances(centres: Tensor, positions: Tensor) -> Tensor:
    """Squared pixel distances (..., n, m) of places (..., n, 2) to (..., m, 2), at least in float32."""
    dtype = torch.promote_types(torch.promote_types(centres.dtype, positions.dtype), torch.float32)
    centres, positions = centres.to(dtype), positions.to(dtype)
    total = (centres[..., :, None, 0] - positions[..., None, :, 0]).square_()
    total += (centres[..., :, None, 1] - positions[..., None, :, 1]).square_()
    return total


def squared_distances_bytes(centres: Tensor, positions: Tensor) -> int:
    """Most bytes per candidate pair that `squared_distances` and one comparison hold at a time."""
    dtype = torch.promote_types(torch.promote_types(centres.dtype, positions.dtype), torch.float32)
    return 2 * dtype.itemsize + 1
