"""Nearest neighbours by brute force."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def brute_force(
    queries: Tensor, database: Tensor, k: int, excluded: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The k nearest by differences; of rows within 1e-12 of the best one left, the first wins."""
    q, b = queries.double().cpu().numpy(), database.double().cpu().numpy()
    distances, indices = np.full((len(q), k), np.inf), np.full((len(q), k), -1, dtype=np.int64)
    for i, query in enumerate(q):
        left = np.sqrt(((query - b) ** 2).sum(axis=1))
        if excluded is not None:
            left[excluded[i]] = np.inf
        for j in range(min(k, len(b))):
            if left.min() == np.inf:
                break
            indices[i, j] = np.flatnonzero(left <= left.min() * (1 + 1e-12))[0]
            distances[i, j] = left[indices[i, j]]
            left[indices[i, j]] = np.inf
    return distances, indices
