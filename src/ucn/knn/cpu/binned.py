"""The first stage of the search on a CPU: cache-sized blocks of scores, with one maximum per bin of rows.

The matrix product runs at the speed of the CPU; the expensive part is to find the best of its millions of
scores. A maximum without its index is cheap, so only maxima are taken, one for each bin of 16 rows. The rows
of the best bins are then scored again. A thread takes some queries through the whole database, so that it
holds no more than one block. With an exclusion radius a thread takes queries of similar height (y), so that
few rows of a feature map lie near any of them.

On CPUs with bfloat16 units, products of that type are twice as fast. They only choose the bins: all whose
best score is within the rounding error of the k-th best.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ucn.knn.exclusion import ExclusionRadius, squared_distances, squared_distances_bytes
from ucn.knn.reference import bound_rounding, factor_roundoff, rerank
from ucn.runtime.kernels import has_bfloat16_products
from ucn.runtime.threads import share

_BIN = 16
# The size of a block of scores; smaller and larger ones are slower (measured).
_BLOCK_QUERIES, _BLOCK_ROWS = 512, 1024
# Queries whose distances from the positions of rows are computed at a time.
_MASKED_QUERIES = 64
# Squares of larger distances overflow in float32.
_LARGEST_RADIUS = 1e19
_MAX_NEIGHBOURS = 8
# Queries that rounding leaves open are re-ranked by exact distances, if they are at most this share, as in
# ordinary images: the number of further bins for each, and the memory at a time.
_SPARE_BINS = 3
_RERANK_BYTES = 2**21
_MAX_OPEN_SHARE = 0.1
# bfloat16 is given up for a query that leaves more bins open than this, and for a whole database where more
# than this share of the queries do, as in blank images.
_MAX_OPEN_BINS = 12
_MAX_CROWDED_SHARE = 0.25
_HALF_ROUNDOFF = 2.0**-9
# Of the memory, for the bins that a search keeps for the next.
_KEPT_SHARE = 0.25


@dataclass(frozen=True)
class _Rows:
    """One database.

    Attributes:
        values: (M, D).
        penalties: (M,), -|b|²/2 of each row.
        largest_norm: in float64.
        halves: (M, D) in bfloat16, where the CPU is faster in it; else None.
        slack: the largest difference of a penalty from the middle of their range, in float64.
        is_crowded: set when bfloat16 turns out to be too coarse for this database.
    """

    values: Tensor
    penalties: Tensor
    largest_norm: Tensor
    halves: Tensor | None
    slack: Tensor
    is_crowded: threading.Event


@dataclass
class SearchCache:
    """What a search without exclusion keeps for another one, of the same queries in the same database.

    With an exclusion radius, only the bins with rows near a query change.

    Attributes:
        rows: of each item of the batch.
        bins: (B, N, bins) in bfloat16, of all rows; None where the first search kept none.
    """

    rows: list[_Rows] = field(default_factory=list)
    bins: Tensor | None = None


def rank_in_bins(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None,
    memory_bytes: int,
    cache: SearchCache | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Ranks rows as `rank_by_products` of the reference does.

    Args:
        queries: (B, N, D).
        database: (B, M, D).
        k: number of neighbours.
        exclusion: candidates to leave out, with a batch axis.
        memory_bytes: budget of the temporaries.
        cache: filled by a search without exclusion, and used by one with it.

    Returns:
        Indices (B, N, k), and which queries (B, N) they are exact for. None where this engine does not apply:
        other devices and types than a CPU and float32, few rows, many neighbours, TF32 or bfloat16 products
        allowed, or too small a budget.
    """
    (B, N, D), M = queries.shape, database.shape[1]
    is_suited = queries.device.type == "cpu" and queries.dtype == torch.float32 and M >= _BLOCK_ROWS
    if B * N == 0 or not is_suited or k > _MAX_NEIGHBOURS or factor_roundoff(torch.float32) > 0:
        return None
    prepared = (28 + 2 * D) * M  # norms and their squares in float64, penalties, and halves
    size = B, N, _count_bins(M)
    keeps = cache is not None and 2 * math.prod(size) <= _KEPT_SHARE * memory_bytes
    prepared += 2 * math.prod(size) if keeps else 0
    plan = _plan_threads(N, M, D, k, exclusion, memory_bytes - prepared)
    if plan is None:
        return None
    step, threads = plan
    indices = torch.empty(B, N, k, dtype=torch.int64)
    is_settled = torch.empty(B, N, dtype=torch.bool)
    prepared_rows = [] if cache is None else cache.rows
    if not prepared_rows:
        prepared_rows.extend(_prepare(database[item]) for item in range(B))
    kept = None if cache is None else cache.bins
    if cache is not None and keeps and exclusion is None and prepared_rows[0].halves is not None:
        kept = cache.bins = torch.empty(size, dtype=torch.bfloat16)
    for item in range(B):
        rows = prepared_rows[item]
        parts: list[tuple[slice | Tensor, ExclusionRadius | None]]
        if exclusion is None:
            parts = [(slice(start, start + step), None) for start in range(0, N, step)]
        else:
            near = exclusion.of_item(item)
            # By height, so that most rows of a feature map are far from all queries of a part.
            by_height = torch.split(near.centres[:, 1].argsort(), step)
            parts = [(own, near.of_queries(own)) for own in by_height]

        def rank(
            part: tuple[slice | Tensor, ExclusionRadius | None], item: int = item, rows: _Rows = rows
        ) -> None:
            own, near = part
            bins = None if kept is None else kept[item, own]  # a view without exclusion, else a copy
            indices[item, own], is_settled[item, own] = _rank(queries[item, own], rows, k, near, bins)

        share(rank, parts, threads)
    return indices, is_settled


def _plan_threads(
    N: int, M: int, D: int, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> tuple[int, int] | None:
    """The number of queries that a thread takes at a time, and the number of threads.

    A small budget first reduces the queries of a thread, then the threads (the default budget allows about
    35). None where fewer than half of the threads would work, since plain products use all of them.
    """
    available = torch.get_num_threads()
    for threads in range(available, (available - 1) // 2, -1):
        for most in (_BLOCK_QUERIES, _BLOCK_QUERIES // 2, _BLOCK_QUERIES // 4, _BLOCK_QUERIES // 8):
            rounds = -(-N // (most * threads))
            step = -(-N // (rounds * threads))  # the same for each thread
            if _count_bytes(step, M, D, k, exclusion) * threads <= memory_bytes:
                return step, threads
    return None


def _count_bytes(step: int, M: int, D: int, k: int, exclusion: ExclusionRadius | None) -> int:
    """Bytes of the temporaries of one thread."""
    scores, excluded = 4 * step * _BLOCK_ROWS, 0
    if exclusion is not None:  # a mask, a copy of the queries, and which rows are near
        mask = min(step, _MASKED_QUERIES) * _BLOCK_ROWS
        excluded = (
            mask * squared_distances_bytes(exclusion.centres, exclusion.positions) + 4 * step * D + 32 * M
        )
    bins = 2 * step * (-(-M // _BIN) + _BLOCK_ROWS) * 4
    candidates = step * (k * _BIN * (8 * D + 64) + _MAX_OPEN_BINS * (12 * _BIN + 24))
    return scores + excluded + bins + candidates + 24 * max(_BLOCK_ROWS, step) * D + _RERANK_BYTES


def _prepare(database: Tensor) -> _Rows:
    M = len(database)
    norms = torch.empty(M, dtype=torch.float64)

    def measure(start: int) -> None:
        part = slice(start, start + _BLOCK_ROWS)
        norms[part] = torch.linalg.vector_norm(database[part].double(), dim=-1)

    share(measure, range(0, M, _BLOCK_ROWS))
    squares = norms.square()
    smallest, largest = squares.aminmax()
    halves = None
    # Products in bfloat16 leave penalties out, so rows must be of similar norm, as unit descriptors are.
    if has_bfloat16_products() and largest - smallest <= _HALF_ROUNDOFF * largest:
        halves = torch.empty_like(database, dtype=torch.bfloat16, memory_format=torch.contiguous_format)

        def halve(start: int) -> None:
            halves[start : start + _BLOCK_ROWS] = database[start : start + _BLOCK_ROWS]

        share(halve, range(0, M, _BLOCK_ROWS))
    slack = 0.25 * (largest - smallest)
    return _Rows(database, (-0.5 * squares).float(), largest.sqrt(), halves, slack, threading.Event())


def _rank(
    queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Indices (n, k) of some queries (n, D), and which of them are settled; `kept` as in `_fill_bins`."""
    norms = torch.linalg.vector_norm(queries.double(), dim=-1)
    bound = bound_rounding(norms[None], rows.largest_norm.view(1, 1), queries.shape[1], torch.float32)[0]
    if rows.halves is not None and not rows.is_crowded.is_set():
        return _rank_by_halves(queries, rows, k, exclusion, norms, bound, kept)
    return _rank_by_floats(queries, rows, k, exclusion, bound)


def _rank_by_floats(
    queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """As `_rank`, by products in float32."""
    bins = _fill_bins(queries, rows.values, rows.penalties, exclusion)
    best, chosen = _take_best(bins, k)
    candidates = _list_rows(chosen)  # (n, k * 16)
    values, columns = _take_best(_score(queries, rows, candidates, exclusion), k)
    indices = candidates.gather(1, columns).masked_fill_(values[:, :k] == -torch.inf, -1)
    # A row of any other bin scored at most as high as the best of these bins.
    runner_up = torch.maximum(values[:, k:], best[:, k:]).double()
    is_settled = _is_settled(values[:, :k].double(), runner_up, bound)
    close = (~is_settled).nonzero()[:, 0]
    if 0 < len(close) <= _MAX_OPEN_SHARE * len(queries):
        bins.scatter_(1, chosen, best[:, :k])  # `_take_best` may have overwritten them
        near = None if exclusion is None else exclusion.of_queries(close)
        reranked = _rerank_open(queries[close], rows, k, near, bins[close], bound[close])
        indices[close], is_settled[close] = reranked
    return indices, is_settled & bound.isfinite()


def _rank_by_halves(
    queries: Tensor,
    rows: _Rows,
    k: int,
    exclusion: ExclusionRadius | None,
    norms: Tensor,
    bound: Tensor,
    kept: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `_rank`, with bins chosen by products in bfloat16."""
    assert rows.halves is not None
    n, D = queries.shape
    bins = _fill_bins(queries.to(torch.bfloat16), rows.halves, None, exclusion, kept)
    lowest = _lowest_bin_score(bins, rows, k, norms, bound, D)
    owner, chosen = (bins >= lowest).nonzero(as_tuple=True)
    counts = torch.bincount(owner, minlength=n)
    is_crowded = counts > _MAX_OPEN_BINS
    crowded = is_crowded.nonzero()[:, 0]
    if len(crowded) > _MAX_CROWDED_SHARE * n:
        rows.is_crowded.set()
        return _rank_by_floats(queries, rows, k, exclusion, bound)
    if len(crowded):
        is_kept = ~is_crowded[owner]
        owner, chosen, counts = owner[is_kept], chosen[is_kept], counts.masked_fill_(is_crowded, 0)
    candidates, scores = _score_bins(queries, rows, owner, chosen, counts, exclusion, n * k)
    values, columns = _take_best(scores.clone(), k)
    indices = candidates.gather(1, columns).masked_fill_(values[:, :k] == -torch.inf, -1)
    # No row of another bin is within the bound of the k-th: see `_lowest_bin_score`.
    is_settled = _is_settled(values[:, :k].double(), values[:, k:].double(), bound)
    close = (~is_settled).nonzero()[:, 0]
    if 0 < len(close) <= _MAX_OPEN_SHARE * n:
        listed = candidates[close].masked_fill_(scores[close] == -torch.inf, -1)
        sets = queries[close][None], rows.values[None], listed[None]
        rest = bound.new_full((1, len(close)), -torch.inf)
        found, is_close_settled = rerank(
            *sets, k, norms[close][None], bound[close][None], rest, _RERANK_BYTES
        )
        indices[close], is_settled[close] = found[0, :, :k], is_close_settled[0]
    is_settled &= bound.isfinite()
    if len(crowded):
        near = None if exclusion is None else exclusion.of_queries(crowded)
        indices[crowded], is_settled[crowded] = _rank_by_floats(
            queries[crowded], rows, k, near, bound[crowded]
        )
    return indices, is_settled


def _lowest_bin_score(bins: Tensor, rows: _Rows, k: int, norms: Tensor, bound: Tensor, D: int) -> Tensor:
    """The score (n, 1) in bfloat16 that a bin needs to contain one of the k nearest rows.

    The rounding of both factors and of the product, and the missing penalty, change a score by at most
    `error - bound`. Each of the k best bins has a row whose exact score is at least the k-th best here, less
    that. A row whose score is lower by twice `error` has an exact score that is lower than those by twice
    `bound`, so it is none of the nearest.
    """
    products = norms * rows.largest_norm
    # The rounding of the factors and of the sum, and underflow.
    error = 3.2 * _HALF_ROUNDOFF * products + rows.slack
    error += D * torch.finfo(torch.float32).tiny * (norms + rows.largest_norm) + bound
    kth = bins.amax(dim=1) if k == 1 else bins.topk(k, dim=1).values[:, -1]
    lowest = kth.double() - 2 * error
    # Rounded down; the scores of bins without a row are -inf.
    rounded = (lowest - 2 * _HALF_ROUNDOFF * lowest.abs()).to(bins.dtype)
    return rounded.clamp_min(torch.finfo(bins.dtype).min)[:, None]


def _score_bins(
    queries: Tensor,
    rows: _Rows,
    owner: Tensor,
    chosen: Tensor,
    counts: Tensor,
    exclusion: ExclusionRadius | None,
    step: int,
) -> tuple[Tensor, Tensor]:
    """Rows (n, c * 16) of each query's candidate bins, and their scores; -inf where it has fewer than c bins.

    Args:
        queries: (n, D).
        rows: the database.
        owner: (P,) the query of each candidate bin, in order.
        chosen: (P,) the bins.
        counts: (n,) the number of bins of each query.
        exclusion: rows to leave out.
        step: bins that are scored at a time.
    """
    n, width = len(queries), max(1, int(counts.amax()))
    candidates = torch.zeros(n * width, _BIN, dtype=torch.int64)
    scores = queries.new_full((n * width, _BIN), -torch.inf)
    target = torch.arange(len(owner)) + (torch.arange(n) * width - counts.cumsum(0) + counts)[owner]
    for start in range(0, len(owner), step):
        part = slice(start, start + step)
        listed, some = _list_rows(chosen[part, None]), owner[part]
        near = None if exclusion is None else exclusion.of_queries(some)
        candidates.index_copy_(0, target[part], listed)
        scores.index_copy_(0, target[part], _score(queries[some], rows, listed, near))
    return candidates.view(n, -1), scores.view(n, -1)


def _is_settled(better: Tensor, runner_up: Tensor, bound: Tensor) -> Tensor:
    """Whether the k best scores (n, k) and the next (n, 1) differ by more than rounding can explain, (n,)."""
    worse = torch.cat([better[:, 1:], runner_up], dim=1)
    return ((better - worse > 2 * bound[:, None]) | (better == -torch.inf)).all(dim=1)


def _rerank_open(
    queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None, bins: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """Indices (n, k) of open queries, by the exact distances of all rows of their best bins."""
    best, chosen = bins.topk(k + _SPARE_BINS + 1, dim=1)
    candidates = _list_rows(chosen[:, :-1])
    candidates = candidates.masked_fill(_score(queries, rows, candidates, exclusion) == -torch.inf, -1)
    norms = torch.linalg.vector_norm(queries.double(), dim=-1)
    sets = queries[None], rows.values[None], candidates[None]
    found, is_settled = rerank(*sets, k, norms[None], bound[None], best[None, :, -1], _RERANK_BYTES)
    return found[0, :, :k], is_settled[0]


def _fill_bins(
    queries: Tensor,
    values: Tensor,
    penalties: Tensor | None,
    exclusion: ExclusionRadius | None,
    kept: Tensor | None = None,
) -> Tensor:
    """The best score (n, bins) of each bin; `_list_rows` gives the rows of a bin.

    `kept` (n, bins) takes the result; with an exclusion radius it comes with the scores of all rows.
    """
    n, M = len(queries), len(values)
    bins = queries.new_empty(n, _count_bins(M)) if kept is None else kept
    buffer = queries.new_empty(n, _BLOCK_ROWS)
    spans = [] if exclusion is None else _find_spans(exclusion)
    for start in range(0, M, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, M)
        near = [span for span in spans if span[1] < stop and start < span[2]]
        own = slice(0, n)
        if kept is not None and exclusion is not None:
            if not near:
                continue
            own = slice(near[0][0].start, min(n, near[-1][0].stop))
        block = buffer[own]
        scores = block[:, : stop - start]
        if penalties is None:
            torch.mm(queries[own], values[start:stop].T, out=scores)
        else:
            torch.addmm(penalties[start:stop], queries[own], values[start:stop].T, out=scores)
        if exclusion is not None:
            _exclude(buffer[:, : stop - start], start, exclusion, near)
        block[:, stop - start :] = -torch.inf
        first = start // _BIN
        target = bins[own, first : first + _BLOCK_ROWS // _BIN]
        torch.amax(block.view(len(block), _BIN, -1), dim=1, out=target)
    return bins


def _count_bins(M: int) -> int:
    return -(-M // _BLOCK_ROWS) * (_BLOCK_ROWS // _BIN)


def _find_spans(exclusion: ExclusionRadius) -> list[tuple[slice, int, int]]:
    """Groups of queries, each with the range of rows that may lie within their radius.

    In a feature map, whose rows are in order of height, the ranges are short.
    """
    centres, heights = exclusion.centres[:, 1].double(), exclusion.positions[:, 1].double()
    # A little more than the radius, to allow for rounding and underflow.
    reach = 1.001 * max(exclusion.radius, 1e-18)
    spans = []
    for start in range(0, len(centres), _MASKED_QUERIES):
        group = slice(start, start + _MASKED_QUERIES)
        known = centres[group][~centres[group].isnan()]  # NaN excludes nothing
        if not len(known):
            continue
        if exclusion.radius > _LARGEST_RADIUS:
            spans.append((group, 0, len(heights)))
            continue
        is_near = (heights >= known.amin() - reach) & (heights <= known.amax() + reach)
        rows = is_near.nonzero()[:, 0]
        if len(rows):
            spans.append((group, int(rows[0]), int(rows[-1]) + 1))
    return spans


def _exclude(
    scores: Tensor, start: int, exclusion: ExclusionRadius, spans: list[tuple[slice, int, int]]
) -> None:
    """Sets scores (n, m) of rows from `start` on to -inf, where they lie within the radius."""
    for group, first, end in spans:
        near = slice(max(start, first), min(start + scores.shape[1], end))
        if near.start < near.stop:
            offsets = squared_distances(exclusion.centres[group], exclusion.positions[near])
            own = scores[group, near.start - start : near.stop - start]
            own.masked_fill_(offsets <= exclusion.radius**2, -torch.inf)


def _list_rows(bins: Tensor) -> Tensor:
    """The rows (n, c * 16) of bins (n, c): every 64th of a block; the last bins extend past the last row."""
    per_block = _BLOCK_ROWS // _BIN
    first = bins // per_block * _BLOCK_ROWS + bins % per_block
    return (first[..., None] + torch.arange(_BIN) * per_block).flatten(1)


def _score(queries: Tensor, rows: _Rows, candidates: Tensor, exclusion: ExclusionRadius | None) -> Tensor:
    """Scores (n, c) of candidates (n, c); -inf for those past the last row or excluded."""
    is_row = candidates < len(rows.values)
    safe = candidates.clamp(max=len(rows.values) - 1)
    # Several times as fast as indexing and einsum.
    chosen = rows.values.index_select(0, safe.flatten()).view(*safe.shape, -1)
    found = chosen.mul_(queries[:, None]).sum(dim=-1).add_(rows.penalties[safe])
    if exclusion is not None:
        offsets = squared_distances(exclusion.centres[:, None], exclusion.positions[safe])[:, 0]
        is_row &= ~(offsets <= exclusion.radius**2)  # not `>`: NaN excludes nothing
    return found.masked_fill_(~is_row, -torch.inf)


def _take_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest k + 1 scores of each row (n, m), in order, and the columns of k; overwrites the scores."""
    if k > 1:
        found = scores.topk(k + 1, dim=1)
        return found.values, found.indices[:, :k]
    first = scores.max(dim=1, keepdim=True)
    second = scores.scatter_(1, first.indices, -torch.inf).amax(dim=1, keepdim=True)
    return torch.cat([first.values, second], dim=1), first.indices
