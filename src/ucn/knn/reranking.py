"""Candidates measured by differences in float64, and put in order."""

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
    """Puts candidates (B, N, C) of a product in true order, and says which queries (B, N) that settles.

    A query is settled when no row that was left out can be as near as its k-th, and no row as near as the
    k-th has another so little behind it that only the slowest method tells whether they tie.

    Args:
        queries: (B, N, D).
        database: (B, M, D).
        indices: (B, N, C) rows of the database, -1 for none.
        k: how many neighbours are wanted.
        query_norms: (B, N) lengths, in float64.
        bound: (B, N), by how much rounding may have changed scores.
        rest: (B, N), the best score of a row that is no candidate; -inf where there is none.
        memory_bytes: budget of the temporaries.
    """
    indices = indices.sort(dim=-1).values  # so that a stable sort by distance leaves ties in this order
    distances = measure_distances(queries, database, indices, memory_bytes, torch.float64)
    distances, order = distances.sort(dim=-1, stable=True)
    kth = distances[..., min(k, distances.shape[-1]) - 1]
    nearer, farther = distances[..., :-1], distances[..., 1:]
    is_doubtful = (farther > nearer) & (farther <= nearer * (1 + TIE_TOLERANCE))
    is_doubtful &= nearer <= kth[..., None]  # also those past k that tie with the k-th exactly
    score = 0.5 * (query_norms.square() - kth.square())
    is_complete = (score - bound > rest.double() + bound) | (rest == -torch.inf)
    return indices.gather(-1, order), ~is_doubtful.any(dim=-1) & is_complete


def measure_distances(
    queries: Tensor, database: Tensor, indices: Tensor, memory_bytes: int, dtype: torch.dtype
) -> Tensor:
    """Distances (B, N, k) to the chosen rows, by differences, so that equal vectors are exactly 0 apart.

    They are taken in float64, a few queries at a time, and returned in the given type.
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
