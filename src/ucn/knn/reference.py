"""Exact nearest neighbours in plain torch.

The answer is that of ``torch.cdist(queries.double(), database.double()).topk(k, largest=False)``, found
without holding all N x M distances, and mostly in float32. There are three stages of rising cost; each takes
the queries that the stage before could not settle:

1. `rank_by_products` orders rows by the score ``q·b - |b|²/2``, which is one matrix product and falls with
   the distance. A query is settled where its best scores differ by more than rounding can explain
   (`bound_rounding`). If the caller allowed TF32 or bfloat16 products, the best candidates are re-ranked by
   exact distances first (`rerank`).
2. The same in float64.
3. `_rank_by_differences` computes distances as ``|q - b|`` in float64, and orders ties by index.

The first stage settles nearly all queries of ordinary images, and none of blank ones. Engines that accelerate
it hand their ranking to `search_exactly`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.knn.exclusion import ExclusionRadius, squared_distances, squared_distances_bytes

TIE_TOLERANCE = 1e-12
"""Distances that differ by less than this share are ties: summing in another order explains it."""

# Extra candidates that are re-ranked where products round their factors.
_SPARE_CANDIDATES = 16

# Larger blocks of scores leave the caches of a CPU and are slower (measured).
_CPU_BLOCK_BYTES = 32 * 2**20
_CPU_COPIED_ROWS = 4096

# Yields blocks of distances (rows, columns), each with its first column; may be called repeatedly.
_ReadBlocks = Callable[[], Iterable[tuple[int, Tensor]]]


def search_exactly(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None,
    memory_bytes: int,
    ranking: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Finds the k nearest rows of each query.

    Args:
        queries: (B, N, D), checked.
        database: (B, M, D), checked.
        k: number of neighbours.
        exclusion: candidates to leave out, with a batch axis.
        memory_bytes: budget of the temporaries.
        ranking: the result of the first stage, where another engine computed it; None: `rank_by_products`.

    Returns:
        Distances and indices (B, N, k).
    """
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        indices = _find(queries, database, k, exclusion, memory_bytes, ranking)
        dtype = torch.promote_types(queries.dtype, torch.float32)
        distances = measure_distances(queries, database, indices, memory_bytes, dtype)
        # Ties within the tolerance are in the order of their indices; their distances must not decrease.
        return distances.cummax(dim=-1).values, indices


def _find(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None,
    memory_bytes: int,
    ranking: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Indices (B, N, k): stage 1 for all queries, `_settle` for those that it leaves open."""
    B, N, D = queries.shape
    if B * N * database.shape[1] == 0:
        return torch.full((B, N, k), -1, dtype=torch.int64, device=queries.device)
    if ranking is None:
        dtype = torch.promote_types(queries.dtype, torch.float32)
        ranking = rank_by_products(queries, database, k, exclusion, memory_bytes, dtype)
    indices, is_settled = ranking
    for item in (~is_settled).any(dim=1).nonzero()[:, 0].tolist():
        unsettled = (~is_settled[item]).nonzero()[:, 0]
        for part in _slices(len(unsettled), max(1, memory_bytes // (32 * D))):
            rows = unsettled[part]
            own = None if exclusion is None else exclusion.of_item(item).of_queries(rows)
            indices[item, rows] = _settle(queries[item, rows], database[item], k, own, memory_bytes)
    return indices


def _settle(
    queries: Tensor, database: Tensor, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> Tensor:
    """Indices (R, k) of queries (R, D) that the first stage left open: stages 2 and 3."""
    if exclusion is None:  # blank images repeat the same query many times
        queries, inverse = torch.unique(queries, dim=0, return_inverse=True)
    else:
        inverse = torch.arange(len(queries), device=queries.device)
    if queries.dtype != torch.float64:
        batched = None if exclusion is None else exclusion.with_batch_axis()
        found, is_settled = rank_by_products(
            queries[None], database[None], k, batched, memory_bytes, torch.float64
        )
        indices, rest = found[0], (~is_settled[0]).nonzero()[:, 0]
    else:
        indices = torch.full((len(queries), k), -1, dtype=torch.int64, device=queries.device)
        rest = torch.arange(len(queries), device=queries.device)
    if len(rest):
        own = None if exclusion is None else exclusion.of_queries(rest)
        indices[rest] = _rank_by_differences(queries[rest], database, k, own, memory_bytes)
    return indices[inverse]


def rank_by_products(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None,
    memory_bytes: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Ranks rows by matrix products in the given type.

    Returns:
        Indices (B, N, k), and which queries (B, N) they are exact for.
    """
    (B, N, _), M = queries.shape, database.shape[1]
    is_coarse = factor_roundoff(dtype) > 0
    count = min(k + 1 + (_SPARE_CANDIDATES if is_coarse else 0), M)
    best = queries.new_full((B, N, count), -torch.inf, dtype=dtype)
    indices = torch.full((B, N, count), -1, dtype=torch.int64, device=queries.device)
    query_norms = queries.new_zeros((B, N), dtype=torch.float64)
    largest_norm = queries.new_zeros((B, 1), dtype=torch.float64)
    item_step, row_step, column_step = _plan(queries, database, exclusion, memory_bytes, dtype.itemsize)
    for items in _slices(B, item_step):
        for columns in _slices(M, column_step):
            block = database[items, columns].to(dtype)  # (G, m, D)
            norms = _measure_norms(block)
            largest_norm[items] = torch.maximum(largest_norm[items], norms.amax(dim=-1, keepdim=True))
            penalty = (-0.5 * norms.square()).to(dtype)[:, None]
            for rows in _slices(N, row_step):
                chunk = queries[items, rows].to(dtype)  # (G, n, D)
                query_norms[items, rows] = torch.linalg.vector_norm(chunk.double(), dim=-1)
                scores = torch.baddbmm(penalty, chunk, block.mT)  # (G, n, m)
                if exclusion is not None:
                    scores.masked_fill_(_is_excluded(exclusion, items, rows, columns), -torch.inf)
                values, found = _take_largest(scores, min(count, scores.shape[-1]))
                del scores  # frees it before the next block
                found += columns.start
                if column_step < M:
                    values, found = _merge(best[items, rows], indices[items, rows], values, found)
                best[items, rows], indices[items, rows] = values, found
    bound = bound_rounding(query_norms, largest_norm, queries.shape[-1], dtype)
    indices.masked_fill_(best == -torch.inf, -1)
    if is_coarse:
        rest = best[..., -1] if count < M else torch.full_like(best[..., -1], -torch.inf)
        indices, is_settled = rerank(queries, database, indices, k, query_norms, bound, rest, memory_bytes)
    else:
        better, worse = best[..., :-1].double(), best[..., 1:].double()
        is_settled = ((better - worse > 2 * bound[..., None]) | (better == -torch.inf)).all(dim=-1)
    is_settled &= bound.isfinite()
    indices = indices[..., :k]
    if k > M:
        indices = F.pad(indices, (0, k - M), value=-1)
    return indices, is_settled


def _measure_norms(rows: Tensor) -> Tensor:
    """Norms (B, M) of rows (B, M, D), in float64."""
    # On a CPU, allocating a wide copy of all rows costs more than the product.
    step = _CPU_COPIED_ROWS if rows.device.type == "cpu" else max(1, rows.shape[1])
    parts = _slices(rows.shape[1], step)
    return torch.cat([torch.linalg.vector_norm(rows[:, part].double(), dim=-1) for part in parts], dim=1)


def _plan(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None, memory_bytes: int, itemsize: int
) -> tuple[int, int, int]:
    """The number of batch items, queries and database rows in a block.

    Half of the budget is for the scores, a quarter each for copies of queries and of database rows in wider
    types.
    """
    (B, N, D), M = queries.shape, database.shape[1]
    pair_bytes = itemsize
    if exclusion is not None:
        pair_bytes += squared_distances_bytes(exclusion.centres, exclusion.positions)
    pairs = memory_bytes // 2
    if queries.device.type == "cpu":
        pairs = min(pairs, _CPU_BLOCK_BYTES)
    pairs //= pair_bytes
    copied_rows = memory_bytes // 4 // (16 * D)
    if queries.device.type == "cpu" and itemsize == 8:  # or a few open queries would copy the whole database
        copied_rows = min(copied_rows, _CPU_COPIED_ROWS)
    columns = max(1, min(M, pairs, copied_rows))
    rows = max(1, min(N, pairs // columns, copied_rows))
    items = 1
    if rows == N and columns == M:
        items = max(1, min(B, pairs // (N * M), copied_rows // max(N, M)))
    return items, rows, columns


def _slices(length: int, step: int) -> Iterator[slice]:
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def _is_excluded(exclusion: ExclusionRadius, items: slice, rows: slice, columns: slice) -> Tensor:
    distances = squared_distances(exclusion.centres[items, rows], exclusion.positions[items, columns])
    return distances <= exclusion.radius**2


def _take_largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` scores of each row and their columns, in order; overwrites the scores."""
    if count > 2:
        values, columns = scores.topk(count, dim=-1)
        return values, columns
    found = [scores.max(dim=-1, keepdim=True)]  # two such passes are faster than one topk
    if count == 2:
        found.append(scores.scatter_(-1, found[0].indices, -torch.inf).max(dim=-1, keepdim=True))
    return torch.cat([f.values for f in found], dim=-1), torch.cat([f.indices for f in found], dim=-1)


def _merge(best: Tensor, indices: Tensor, values: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """The best of the blocks so far and of one more."""
    merged, order = torch.cat([best, values], dim=-1).topk(best.shape[-1], dim=-1)
    return merged, torch.cat([indices, found], dim=-1).gather(-1, order)


def _rank_by_differences(
    queries: Tensor, database: Tensor, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> Tensor:
    """Indices (R, k) of queries (R, D); of equally near rows the lowest index comes first."""
    (N, D), M = queries.shape, len(database)
    pair_bytes = 8 + 2
    if exclusion is not None:
        pair_bytes += squared_distances_bytes(exclusion.centres, exclusion.positions)
    pairs, copied_rows = memory_bytes // 2 // pair_bytes, memory_bytes // 4 // (8 * D)
    column_step = max(1, min(M, pairs, copied_rows))
    row_step = max(1, min(N, pairs // column_step, copied_rows))

    def measure_blocks(rows: slice) -> Iterator[tuple[int, Tensor]]:
        for columns in _slices(M, column_step):
            chunk, block = queries[rows].double(), database[columns].double()
            distances = torch.cdist(chunk, block, compute_mode="donot_use_mm_for_euclid_dist")
            if exclusion is not None:
                offsets = squared_distances(exclusion.centres[rows], exclusion.positions[columns])
                distances.masked_fill_(offsets <= exclusion.radius**2, torch.inf)
                del offsets
            yield columns.start, distances

    picked = []
    for rows in _slices(N, row_step):
        read_blocks: _ReadBlocks = partial(measure_blocks, rows)
        if column_step == M:
            read_blocks = list(read_blocks()).copy  # computed once
        picked.append(_pick(read_blocks, rows.stop - rows.start, k, queries.device))
        del read_blocks
    return torch.cat(picked)


def _pick(read_blocks: _ReadBlocks, rows: int, k: int, device: torch.device) -> Tensor:
    """The k nearest (rows, k), one after another, over blocks of distances."""
    picks: list[Tensor] = []
    for _ in range(k):
        smallest = torch.full((rows,), torch.inf, dtype=torch.float64, device=device)
        for start, distances in read_blocks():
            _hide(distances, start, picks)
            smallest = torch.minimum(smallest, distances.amin(dim=1))
        limit = (smallest * (1 + TIE_TOLERANCE))[:, None]
        pick = torch.full((rows,), -1, dtype=torch.int64, device=device)
        for start, distances in read_blocks():
            _hide(distances, start, picks)
            first = (distances <= limit).to(torch.uint8).max(dim=1)  # max returns the first of equal maxima
            pick = torch.where((pick < 0) & (first.values > 0), first.indices + start, pick)
        picks.append(pick.masked_fill_(smallest == torch.inf, -1))
    return torch.stack(picks, dim=1)


def _hide(distances: Tensor, start: int, picks: list[Tensor]) -> None:
    """Sets the distances of candidates that were already picked to infinity."""
    for pick in picks:
        rows = ((pick >= start) & (pick < start + distances.shape[1])).nonzero()[:, 0]
        distances[rows, pick[rows] - start] = torch.inf


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


def bound_rounding(query_norms: Tensor, largest_norm: Tensor, D: int, dtype: torch.dtype) -> Tensor:
    """The largest rounding error (B, N) of the scores of each query; infinite where they overflow."""
    products = query_norms * largest_norm
    scale = products + 0.5 * largest_norm.square()
    unit = 2.0 ** (-53 if dtype == torch.float64 else -24)
    # The usual bound of a sum of D products; then the rounding of both factors (TF32, bfloat16), underflow,
    # and the tolerance of ties.
    bound = 1.05 * (D + 8) * unit * scale
    bound += 2.1 * factor_roundoff(dtype) * products + D * torch.finfo(dtype).tiny
    bound += TIE_TOLERANCE * (query_norms + largest_norm).square()
    return bound.masked_fill_(scale >= torch.finfo(dtype).max / 8, torch.inf)


def factor_roundoff(dtype: torch.dtype) -> float:
    """The relative error of a matrix product's factors, allowing for hardware that truncates them."""
    if dtype == torch.float64:
        return 0.0
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to report it where the setting per backend was used
        precision = "medium"
    return {"highest": 0.0, "high": 2.0**-10, "medium": 2.0**-7}[precision]
