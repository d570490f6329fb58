"""Re-ranking of candidates by exact distances."""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.knn.rounding import TIE_TOLERANCE


def rerank(
    queries: Tensor,
    database: Tensor,
    indices: Tensor,
    k: int,
    query_norms: Tensor,
    bound: Tensor,
    rest: Tensor,
    memory_bytes: int,
) -> tuple[Tensor, Tensor]:
    """Sorts candidates by their distances in float64.

    A query is settled if no row outside the candidates can be as near as its k-th neighbour, and no two
    neighbours are so nearly tied that only the last stage can decide.

    Args:
        queries: (B, N, D).
        database: (B, M, D).
        indices: (B, N, C) rows of the database, the candidates; -1 for none.
        k: number of neighbours.
        query_norms: (B, N), in float64.
        bound: (B, N), the largest rounding error of a score.
        rest: (B, N), the best score of a row that is no candidate; -inf where there is none.
        memory_bytes: budget of the temporaries.

    Returns:
        Indices (B, N, C) in order, and which queries (B, N) are settled.
    """
    indices = indices.sort(dim=-1).values  # a stable sort by distance then orders ties by index
    distances = measure_distances(queries, database, indices, memory_bytes, torch.float64)
    distances, order = distances.sort(dim=-1, stable=True)
    kth = distances[..., min(k, distances.shape[-1]) - 1]
    nearer, farther = distances[..., :-1], distances[..., 1:]
    is_near_tie = (farther > nearer) & (farther <= nearer * (1 + TIE_TOLERANCE))
    is_near_tie &= nearer <= kth[..., None]  # includes rows past k that tie with the k-th exactly
    score = 0.5 * (query_norms.square() - kth.square())
    is_complete = (score - bound > rest.double() + bound) | (rest == -torch.inf)
    return indices.gather(-1, order), ~is_near_tie.any(dim=-1) & is_complete


def measure_distances(
    queries: Tensor, database: Tensor, indices: Tensor, memory_bytes: int, dtype: torch.dtype
) -> Tensor:
    """Distances (B, N, k) to the chosen rows, in the given type.

    They are norms of differences in float64, so that equal vectors are exactly 0 apart.
    """
    B, N, k = indices.shape
    D = queries.shape[-1]
    distances = torch.full((B, N, k), torch.inf, dtype=dtype, device=queries.device)
    if database.shape[1] == 0:
        return distances
    step = max(1, memory_bytes // (32 * D * k))
    for item in range(B):
        for start in range(0, N, step):
            rows = slice(start, start + step)
            chosen = database[item, indices[item, rows].clamp(min=0)].double()  # (n, k, D)
            chosen -= queries[item, rows, None]
            distances[item, rows] = torch.linalg.vector_norm(chosen, dim=-1).to(dtype)
    return distances.masked_fill_(indices < 0, torch.inf)
