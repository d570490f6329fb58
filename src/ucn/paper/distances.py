"""Matching costs of cells, in the unit of the energies of SIFT Flow and DSP.

These energies weigh smoothness against L1 distances of SIFT descriptors of unit length. L1 distances of other
descriptors depend on their dimension and sign, so they are scaled until unrelated cells are as far apart on
average as they are with SIFT.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNRELATED = 8.6
"""Mean L1 distance of SIFT descriptors at unrelated positions, to which other features are scaled."""


def unrelated_distance(features0: Tensor, features1: Tensor) -> float:
    """Mean L1 distance between cells of two maps (D, h, w) at unrelated positions.

    Cell k of one map is compared with cell k from the end of the other, which needs no random numbers and is
    symmetric in the images.
    """
    rows0, rows1 = features0.flatten(1), features1.flatten(1).flip(1)
    count = min(rows0.shape[1], rows1.shape[1])
    return float((rows0[:, :count] - rows1[:, :count]).abs().sum(dim=0).mean())


def scale_to_sift(features0: Tensor, features1: Tensor) -> float:
    """The factor that scales L1 distances of two maps (D, h, w) to those of SIFT."""
    found = unrelated_distance(features0, features1)
    return UNRELATED / found if found > 0 else 1.0


def window_costs(
    features0: Tensor,
    features1: Tensor,
    starts: Tensor,
    radius: int,
    limit: float,
    is_allowed1: Tensor | None,
    memory_bytes: int = 4 * 2**20,
) -> Tensor:
    """Truncated L1 distances of each cell to the cells of a window in image 1.

    Args:
        features0: (D, h, w) of image 0.
        features1: (D, h1, w1) of image 1.
        starts: (2, h, w) int64, displacement (x, y) in cells of the centre of each window.
        radius: of the windows, in cells.
        limit: truncation of distances, and the cost of cells outside image 1.
        is_allowed1: (h1 * w1,) bool; other cells count as outside. None allows all.
        memory_bytes: of temporary arrays; small ones stay in the cache of a core.

    Returns:
        (h, w, L, L) with L = 2 * radius + 1; the last axis is that of x.
    """
    dim, h, w = features0.shape
    h1, w1 = features1.shape[1:]
    side = 2 * radius + 1
    rows0, rows1 = features0.flatten(1).t().contiguous(), features1.flatten(1).t().contiguous()
    cells0 = torch.arange(h * w, device=rows0.device)
    steps = torch.arange(-radius, radius + 1, device=rows0.device)
    columns = cells0 % w + starts[0].flatten() + steps[:, None]  # (L, h * w)
    lines = cells0 // w + starts[1].flatten() + steps[:, None]
    is_column, is_line = (columns >= 0) & (columns < w1), (lines >= 0) & (lines < h1)
    columns, lines = columns.clamp(0, w1 - 1), lines.clamp(0, h1 - 1) * w1
    costs = rows0.new_empty(h * w, side * side)
    # Windows that cover most of image 1: all distances at once are faster.
    use_all = side * side > h1 * w1 // 2
    chunk = max(1, memory_bytes // (4 * (h1 * w1 if use_all else 2 * dim)))
    for first in range(0, h * w, chunk):
        part = slice(first, first + chunk)
        distances = torch.cdist(rows0[part], rows1, p=1) if use_all else None
        for state in range(side * side):
            right, down = state % side, state // side
            cells = lines[down, part] + columns[right, part]
            is_inside = is_line[down, part] & is_column[right, part]
            if is_allowed1 is not None:
                is_inside &= is_allowed1[cells]
            if distances is not None:
                found = distances.gather(1, cells[:, None])[:, 0]
            else:
                found = torch.linalg.vector_norm(rows0[part] - rows1[cells], ord=1, dim=1)
            costs[part, state] = found.clamp_max_(limit).masked_fill_(~is_inside, limit)
    return costs.view(h, w, side, side)
