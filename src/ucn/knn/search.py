"""Nearest neighbours: checks the inputs and chooses the implementation.

`reference.py` is the search in plain torch. `cpu/` replaces its first stage, `triton/` all of it; both give
the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ucn.knn.cpu.binned import SearchCache, rank_in_bins
from ucn.knn.exclusion import ExclusionRadius
from ucn.knn.reference import search_exactly
from ucn.runtime.kernels import use_fused

DEFAULT_MEMORY_BYTES = 256 * 2**20

# Squares of larger float64 values overflow.
_LARGEST_VALUE = 1e150


@dataclass(frozen=True)
class Neighbours:
    """The nearest candidates of each query, nearest first.

    Attributes:
        distances: (..., N, k) Euclidean distances, float64 for float64 inputs and else float32; inf where
            there are fewer than k candidates.
        indices: (..., N, k) int64 rows of the database; -1 where there are fewer than k candidates.
    """

    distances: Tensor
    indices: Tensor


def nearest(
    queries: Tensor,
    database: Tensor,
    k: int = 1,
    *,
    exclusion: ExclusionRadius | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    cache: SearchCache | None = None,
) -> Neighbours:
    """Finds the k rows of the database nearest to each query.

    The answer is that of a brute-force search in float64, whatever the float type and the setting of
    `torch.set_float32_matmul_precision`; of equally near rows (within a relative 1e-12) the lowest index
    comes first. Distances and indices carry no gradient.

    Args:
        queries: (N, D) or (B, N, D), of any float type; N may be 0.
        database: (M, D) or (B, M, D), of the same float type; M may be 0.
        k: number of neighbours, at least 1; it may exceed M.
        exclusion: leaves out candidates near a point given for each query.
        memory_bytes: budget of the temporaries, at least 1. Queries are compared in chunks, so that the N x M
            distances are never all held. A chunk has at least one query and one row, even where these exceed
            the budget.
        cache: an empty one to be filled, in a search without exclusion; then, for the same queries and the
            same database, it makes a search with exclusion faster on a CPU.

    Returns:
        Distances and indices of shape (N, k) or (B, N, k), sorted from near to far.

    Raises:
        ValueError: shapes, float types or devices do not fit, or a value is not finite.
    """
    if queries.device.type == database.device.type == "mps":  # has no float64, so search on the CPU
        if exclusion is not None:
            exclusion = replace(
                exclusion, centres=exclusion.centres.cpu(), positions=exclusion.positions.cpu()
            )
        found = nearest(queries.cpu(), database.cpu(), k, exclusion=exclusion, memory_bytes=memory_bytes)
        return Neighbours(found.distances.to(queries.device), found.indices.to(queries.device))
    _check_descriptors(queries, database)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if memory_bytes < 1:
        raise ValueError(f"memory_bytes must be at least 1, got {memory_bytes}")
    is_batched = queries.ndim == 3
    if exclusion is not None:
        exclusion = _check_exclusion(exclusion, queries, database)
    if not is_batched:
        queries, database = queries[None], database[None]
        exclusion = None if exclusion is None else exclusion.with_batch_axis()
    distances, indices = _search(queries, database, k, exclusion, memory_bytes, cache)
    return Neighbours(distances, indices) if is_batched else Neighbours(distances[0], indices[0])


def _search(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None,
    memory_bytes: int,
    cache: SearchCache | None,
) -> tuple[Tensor, Tensor]:
    """Distances and indices (B, N, k), by the fastest implementation that takes these inputs."""
    points = () if exclusion is None else (exclusion.centres, exclusion.positions)
    if use_fused(queries, *points):
        found = _search_fused(queries, database, k, exclusion, memory_bytes)
        if found is not None:
            return found
    _check_values(queries, database)
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        ranking = rank_in_bins(queries, database, k, exclusion, memory_bytes, cache)
        return search_exactly(queries, database, k, exclusion, memory_bytes, ranking)


def _search_fused(
    queries: Tensor, database: Tensor, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> tuple[Tensor, Tensor] | None:
    """Distances and indices (B, N, k) by the fused kernels; None where they cannot answer."""
    from ucn.knn.triton.search import can_search, search_fused  # needs Triton

    if not can_search(queries, database, k, exclusion, memory_bytes):
        return None
    found = search_fused(queries.detach(), database.detach(), k, exclusion)
    if queries.is_cuda and torch.cuda.is_current_stream_capturing():
        return found.distances, found.indices  # nothing can be read: whoever captures checks the values
    # Infinite where a value is not finite, or too large for the copies in float16.
    is_valid = found.extremes.amax().item() < torch.inf
    return (found.distances, found.indices) if is_valid else None


def mutual_nearest(
    descriptors0: Tensor, descriptors1: Tensor, *, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Tensor:
    """Matches rows of two sets that are each other's nearest.

    Args:
        descriptors0: (N, D), of any float type.
        descriptors1: (M, D), of the same float type.
        memory_bytes: budget of the temporaries, as in `nearest`.

    Returns:
        (N,) int64 ``nearest_0to1``: the row of `descriptors1`, or -1 where the match is not mutual.

    Raises:
        ValueError: shapes, float types or devices do not fit, or a value is not finite.
    """
    for name, descriptors in (("descriptors0", descriptors0), ("descriptors1", descriptors1)):
        if descriptors.ndim != 2:
            raise ValueError(f"{name} must be (N, D), got {tuple(descriptors.shape)}")
    nearest_0to1 = nearest(descriptors0, descriptors1, memory_bytes=memory_bytes).indices[:, 0]
    nearest_1to0 = nearest(descriptors1, descriptors0, memory_bytes=memory_bytes).indices[:, 0]
    if len(nearest_1to0) == 0:
        return nearest_0to1
    start = torch.arange(len(nearest_0to1), device=nearest_0to1.device)
    return torch.where(nearest_1to0[nearest_0to1.clamp(min=0)] == start, nearest_0to1, -1)


def _check_descriptors(queries: Tensor, database: Tensor) -> None:
    if queries.ndim not in (2, 3):
        raise ValueError(f"queries must be (N, D) or (B, N, D), got {tuple(queries.shape)}")
    expected = (*queries.shape[:-2], "M", queries.shape[-1])
    if database.ndim != queries.ndim or (*database.shape[:-2], "M", database.shape[-1]) != expected:
        wanted = f"({', '.join(map(str, expected))})"
        raise ValueError(
            f"database must be {wanted} for queries {tuple(queries.shape)}, got {tuple(database.shape)}"
        )
    if queries.shape[-1] == 0:
        raise ValueError(f"queries must have at least 1 value each, got {tuple(queries.shape)}")
    if not queries.is_floating_point() or queries.dtype != database.dtype:
        raise ValueError(
            f"queries and database must share one float type, got {queries.dtype} and {database.dtype}"
        )
    if queries.device != database.device:
        raise ValueError(
            f"queries and database must share a device, got {queries.device} and {database.device}"
        )


def _check_values(queries: Tensor, database: Tensor) -> None:
    for name, values in (("queries", queries), ("database", database)):
        if values.numel() == 0:
            continue
        extremes = torch.stack(torch.aminmax(values.detach())).double()  # both are NaN where a value is
        if not bool(torch.all(extremes.abs() <= _LARGEST_VALUE)):
            raise ValueError(f"{name} must be finite and within ±{_LARGEST_VALUE:g}, got {extremes.tolist()}")


def _check_exclusion(exclusion: ExclusionRadius, queries: Tensor, database: Tensor) -> ExclusionRadius:
    """Checks the points, and expands the positions to the batch axis of the database."""
    centres, positions = exclusion.centres, exclusion.positions
    wanted = (*queries.shape[:-1], 2)
    if tuple(centres.shape) != wanted:
        raise ValueError(f"exclusion.centres must be {wanted}, got {tuple(centres.shape)}")
    wanted = (*database.shape[:-1], 2)
    if tuple(positions.shape) not in (wanted, wanted[-2:]):
        raise ValueError(f"exclusion.positions must be {wanted}, got {tuple(positions.shape)}")
    if not exclusion.radius >= 0:
        raise ValueError(f"exclusion.radius must be at least 0, got {exclusion.radius}")
    if not (centres.is_floating_point() and positions.is_floating_point()):
        raise ValueError(f"exclusion must hold floats, got {centres.dtype} and {positions.dtype}")
    # Larger radii cannot be squared.
    radius = min(float(exclusion.radius), _LARGEST_VALUE)
    return replace(exclusion, positions=positions.expand(wanted), radius=radius)
