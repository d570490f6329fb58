"""Known places nearest to others: by a tree, or on a GPU by comparing all, so that it need not wait."""

from __future__ import annotations

import torch
from scipy.spatial import cKDTree
from torch import Tensor

_CHUNK_BYTES = 64 * 2**20
"""Of distances at a time, twice."""
_THREADS = 4
_THREAD_POINTS = 500  # each thread is started anew, which takes as long as looking up a hundred points


def nearest_points(points: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The known places nearest to points, in any order where they are equally near.

    Args:
        points: (N, 2), finite.
        known: (M, 2), finite.
        count: how many, from 1 to M.

    Returns:
        (N, count) distances in float64, near to far, and (N, count) int64 rows; on the device of `known`.
    """
    if known.is_cuda:
        return _compare_all(points.detach().to(known.device), known.detach(), count)
    # In float64, which the tree computes in anyway, and which every type of torch can become.
    tree = cKDTree(known.detach().cpu().double().numpy())
    places = points.detach().cpu().double().numpy()
    workers = max(1, min(_THREADS, torch.get_num_threads(), len(places) // _THREAD_POINTS))
    wanted = range(1, count + 1)  # not the number, for which 1 gives vectors
    try:
        distances, rows = tree.query(places, k=wanted, workers=workers)
    except RuntimeError:  # no thread could be started
        distances, rows = tree.query(places, k=wanted)
    return torch.from_numpy(distances).to(known.device), torch.from_numpy(rows).to(known.device)


def _compare_all(points: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `nearest_points`, a few points at a time."""
    points, known = points.double(), known.double()
    distances = points.new_empty(len(points), count)
    rows = torch.empty(len(points), count, dtype=torch.int64, device=known.device)
    step = max(1, _CHUNK_BYTES // (8 * len(known)))
    for start in range(0, len(points), step):
        own = slice(start, start + step)
        # By differences, since products would round places that lie close together; not by `torch.cdist`,
        # which takes many times as long for rows of two values.
        squared, down = (points[own, axis, None] - known[:, axis] for axis in (0, 1))
        squared.square_().addcmul_(down, down)
        torch.topk(squared, count, dim=1, largest=False, out=(distances[own], rows[own]))
    return distances.sqrt_(), rows
