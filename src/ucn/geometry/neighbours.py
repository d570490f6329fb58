"""Nearest neighbours among 2D points: by a k-d tree, or on a GPU by brute force, without synchronisation.

`_search_tree` is the reference; `triton/neighbours.py` does the same on a GPU in one kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.runtime.kernels import use_fused

_CHUNK_BYTES = 64 * 2**20
"""Of distances at a time; two such blocks are held."""
_THREADS = 4
_THREAD_POINTS = 500  # per thread; starting a thread takes as long as a hundred queries


def nearest_points(
    points: Tensor, known: Tensor, count: int, is_known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `known` points nearest to each of `points`; ties are in any order.

    Args:
        points: (N, 2), finite.
        known: (M, 2), finite.
        count: number of neighbours, from 1 to M.
        is_known: (M,) bool, which of them count; None counts all.

    Returns:
        (N, count) distances in float64, near to far, inf where fewer are known, and (N, count) int64 rows,
        there -1; on the device of `known`.
    """
    if known.is_cuda:
        points, known = points.detach().to(known.device), known.detach()
        if use_fused(points) and points.dtype == known.dtype == torch.float32 and len(points):
            from ucn.geometry.triton.neighbours import MAX_KNOWN, nearest_points_fused  # needs Triton

            if len(known) <= MAX_KNOWN:
                return nearest_points_fused(points, known, count, is_known)
    if is_known is not None:
        return _search_some(points, known, count, is_known)
    return _compare_all(points, known, count) if known.is_cuda else _search_tree(points, known, count)


def _search_some(points: Tensor, known: Tensor, count: int, is_known: Tensor) -> tuple[Tensor, Tensor]:
    """`nearest_points` among some of the known points."""
    places = is_known.nonzero()[:, 0]
    distances = torch.full((len(points), count), torch.inf, dtype=torch.float64, device=known.device)
    rows = torch.full((len(points), count), -1, dtype=torch.int64, device=known.device)
    most = min(count, len(places))
    if most:
        distances[:, :most], found = nearest_points(points, known[places], most)
        rows[:, :most] = places[found]
    return distances, rows


def _search_tree(points: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `nearest_points`, on the CPU."""
    from scipy.spatial import cKDTree  # imported when first needed: it takes a quarter of a second

    # The tree computes in float64.
    tree = cKDTree(known.detach().cpu().double().numpy())
    queries = points.detach().cpu().double().numpy()
    workers = max(1, min(_THREADS, torch.get_num_threads(), len(queries) // _THREAD_POINTS))
    ranks = range(1, count + 1)  # for k=1 the result would have no axis of neighbours
    try:
        distances, rows = tree.query(queries, k=ranks, workers=workers)
    except RuntimeError:  # no thread could be started
        distances, rows = tree.query(queries, k=ranks)
    return torch.from_numpy(distances).to(known.device), torch.from_numpy(rows).to(known.device)


def _compare_all(points: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `nearest_points`, in chunks of points."""
    points, known = points.double(), known.double()
    distances = points.new_empty(len(points), count)
    rows = torch.empty(len(points), count, dtype=torch.int64, device=known.device)
    step = max(1, _CHUNK_BYTES // (8 * len(known)))
    for start in range(0, len(points), step):
        own = slice(start, start + step)
        # By differences, since products would lose the digits of nearby points; `torch.cdist` is many times
        # as slow for rows of two values.
        squared, down = (points[own, axis, None] - known[:, axis] for axis in (0, 1))
        squared.square_().addcmul_(down, down)
        torch.topk(squared, count, dim=1, largest=False, out=(distances[own], rows[own]))
    return distances.sqrt_(), rows
