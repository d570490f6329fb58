"""Excluding candidates near a point, such as the true match."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExclusionRadius:
    """Leaves out candidates that lie within `radius` of a point given for each query.

    Attributes:
        centres: (..., N, 2), one per query, such as the true match in the image the candidates lie in.
        positions: (M, 2) or (..., M, 2), one per candidate, in that same image.
        radius: pixels; a candidate at exactly this distance is left out.
    """

    centres: Tensor
    positions: Tensor
    radius: float

    def of_queries(self, rows: slice | Tensor) -> ExclusionRadius:
        """The same for some of the queries, without a batch axis."""
        return replace(self, centres=self.centres[rows])

    def of_item(self, item: int) -> ExclusionRadius:
        """One item of a batch."""
        return replace(self, centres=self.centres[item], positions=self.positions[item])

    def with_batch_axis(self) -> ExclusionRadius:
        """As a batch of one item."""
        return replace(self, centres=self.centres[None], positions=self.positions[None])


def squared_distances(centres: Tensor, positions: Tensor) -> Tensor:
    """Squared pixel distances (..., n, m) of points (..., n, 2) to (..., m, 2), at least in float32."""
    dtype = torch.promote_types(torch.promote_types(centres.dtype, positions.dtype), torch.float32)
    centres, positions = centres.to(dtype), positions.to(dtype)
    total = (centres[..., :, None, 0] - positions[..., None, :, 0]).square_()
    total += (centres[..., :, None, 1] - positions[..., None, :, 1]).square_()
    return total


def squared_distances_bytes(centres: Tensor, positions: Tensor) -> int:
    """Peak bytes per candidate pair of `squared_distances` and one comparison."""
    dtype = torch.promote_types(torch.promote_types(centres.dtype, positions.dtype), torch.float32)
    return 2 * dtype.itemsize + 1
