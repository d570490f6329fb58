"""Ranking by products on a processor: in blocks that stay in a cache, with one maximum per bin of rows.

The product itself is as fast as the processor multiplies; what costs is to find the best of its millions of
scores. Maxima without their places are quick, and so only these are taken: one for each bin of 16 rows. The
rows of the best bins are then scored again, which is little. A thread takes some queries through the whole
database, so that nothing larger than its own block is ever held. Where surroundings are left out, it takes
queries of about the same height, so that few rows of a feature map have places near theirs.

Where the processor has units for bfloat16, products of that type are twice as fast. They only choose the
bins: all whose best score comes so near to the best of all that rounding may explain it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ucn.knn.exclusion import ExclusionRadius, squared_distances, squared_distances_bytes
from ucn.knn.reranking import rerank
from ucn.knn.rounding import bound_rounding, factor_roundoff
from ucn.runtime.kernels import has_bfloat16_products
from ucn.runtime.threads import share

_BIN = 16
# A block of scores, of so many queries and rows; smaller and larger ones measured slower.
_BLOCK_QUERIES, _BLOCK_ROWS = 512, 1024
# Of which so many at a time are held against the places of rows.
_MASKED_QUERIES = 64
# Squares of larger distances overflow in float32, and nothing is farther.
_LARGEST_REACH = 1e19
_MOST_NEIGHBOURS = 8
# Queries that rounding leaves open are measured at once where they are few, as in ordinary images: so many
# bins more of each, that much memory at a time, and no more than this share of the queries.
_SPARE_BINS = 3
_MEASURED_BYTES = 2**21
_MOST_CLOSE = 0.1
# Products in bfloat16 are given up for a query that leaves more bins open than this, and for a whole database
# where more than this share of some queries do, as in blank images.
_MOST_BINS = 12
_MOST_CROWDED = 0.25
_HALF_ROUNDOFF = 2.0**-9


@dataclass(frozen=True)
class _Rows:
    """One database.

    Attributes:
        values: (M, D).
        penalties: (M,), half of their squared lengths, negative.
        largest_norm: the greatest length, in float64.
        halves: (M, D) in bfloat16, where ranking by these pays; else None.
        slack: by how much a penalty differs at most from the one in the middle, in float64.
        is_crowded: whether the halves turned out to tell too little.
    """

    values: Tensor
    penalties: Tensor
    largest_norm: Tensor
    halves: Tensor | None
    slack: Tensor
    is_crowded: threading.Event


def rank_in_bins(
    queries: Tensor, database: Tensor, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> tuple[Tensor, Tensor] | None:
    """Indices (B, N, k) for queries (B, N, D) and database (B, M, D), and which queries (B, N) those settle.

    None where this is not the way: on other devices, in other types than float32, for few rows, many
    neighbours, coarse products, or in less memory than it takes.
    """
    (B, N, D), M = queries.shape, database.shape[1]
    is_suited = queries.device.type == "cpu" and queries.dtype == torch.float32 and M >= _BLOCK_ROWS
    if not is_suited or k > _MOST_NEIGHBOURS or factor_roundoff(torch.float32) > 0:
        return None
    prepared = (28 + 2 * D) * M  # lengths in float64, what is made of them, penalties, and halves
    plan = _plan_threads(N, M, D, k, exclusion, memory_bytes - prepared)
    if plan is None:
        return None
    step, threads = plan
    indices = torch.empty(B, N, k, dtype=torch.int64)
    is_settled = torch.empty(B, N, dtype=torch.bool)
    for item in range(B):
        rows = _prepare(database[item])
        parts: list[tuple[slice | Tensor, ExclusionRadius | None]]
        if exclusion is None:
            parts = [(slice(start, start + step), None) for start in range(0, N, step)]
        else:
            places = replace(exclusion, centres=exclusion.centres[item], positions=exclusion.positions[item])
            # By height, so that most rows of a map are far from all queries of a part.
            by_height = torch.split(places.centres[:, 1].argsort(), step)
            parts = [(own, replace(places, centres=places.centres[own])) for own in by_height]

        def rank(
            part: tuple[slice | Tensor, ExclusionRadius | None], item: int = item, rows: _Rows = rows
        ) -> None:
            own, near = part
            indices[item, own], is_settled[item, own] = _rank(queries[item, own], rows, k, near)

        share(rank, parts, threads)
    return indices, is_settled


def _plan_threads(
    N: int, M: int, D: int, k: int, exclusion: ExclusionRadius | None, memory_bytes: int
) -> tuple[int, int] | None:
    """How many queries a thread takes at a time, and how many threads work at once.

    Where memory is short, threads take fewer queries at a time, and then fewer threads work: at the default
    budget some 35 at most. None where that is less than half of those there are, since all of them could work
    on plain products.
    """
    available = torch.get_num_threads()
    for threads in range(available, (available - 1) // 2, -1):
        for most in (_BLOCK_QUERIES, _BLOCK_QUERIES // 2, _BLOCK_QUERIES // 4, _BLOCK_QUERIES // 8):
            rounds = -(-N // (most * threads))
            step = -(-N // (rounds * threads))  # as much for each thread
            if _count_bytes(step, M, D, k, exclusion) * threads <= memory_bytes:
                return step, threads
    return None


def _count_bytes(step: int, M: int, D: int, k: int, exclusion: ExclusionRadius | None) -> int:
    """What one thread holds at a time."""
    scores, places = 4 * step * _BLOCK_ROWS, 0
    if exclusion is not None:  # a mask, a copy of the queries, and which rows are near
        mask = min(step, _MASKED_QUERIES) * _BLOCK_ROWS
        places = (
            mask * squared_distances_bytes(exclusion.centres, exclusion.positions) + 4 * step * D + 32 * M
        )
    bins = 2 * step * (-(-M // _BIN) + _BLOCK_ROWS) * 4
    candidates = step * (k * _BIN * (8 * D + 64) + _MOST_BINS * (12 * _BIN + 24))
    return scores + places + bins + candidates + 24 * max(_BLOCK_ROWS, step) * D + _MEASURED_BYTES


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
    # Halves leave penalties out, so rows must be about as long: descriptors of unit length are.
    if has_bfloat16_products() and largest - smallest <= _HALF_ROUNDOFF * largest:
        halves = torch.empty_like(database, dtype=torch.bfloat16, memory_format=torch.contiguous_format)

        def halve(start: int) -> None:
            halves[start : start + _BLOCK_ROWS] = database[start : start + _BLOCK_ROWS]

        share(halve, range(0, M, _BLOCK_ROWS))
    slack = 0.25 * (largest - smallest)
    return _Rows(database, (-0.5 * squares).float(), largest.sqrt(), halves, slack, threading.Event())


def _rank(queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None) -> tuple[Tensor, Tensor]:
    """Indices (n, k) of some queries (n, D), and which of them those settle."""
    norms = torch.linalg.vector_norm(queries.double(), dim=-1)
    bound = bound_rounding(norms[None], rows.largest_norm.view(1, 1), queries.shape[1], torch.float32)[0]
    if rows.halves is not None and not rows.is_crowded.is_set():
        return _rank_by_halves(queries, rows, k, exclusion, norms, bound)
    return _rank_by_floats(queries, rows, k, exclusion, bound)


def _rank_by_floats(
    queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """As `_rank`, by products in float32."""
    bins = _fill_bins(queries, rows.values, rows.penalties, exclusion)
    best, chosen = _take_best(bins, k)
    candidates = _list_rows(chosen)  # (n, k * 16)
    values, places = _take_best(_score(queries, rows, candidates, exclusion), k)
    indices = candidates.gather(1, places).masked_fill_(values[:, :k] == -torch.inf, -1)
    # A row of any other bin scored at most what the best of these bins did, in the first product.
    rival = torch.maximum(values[:, k:], best[:, k:]).double()
    is_settled = _compare_rivals(values[:, :k].double(), rival, bound)
    close = (~is_settled).nonzero()[:, 0]
    if 0 < len(close) <= _MOST_CLOSE * len(queries):
        bins.scatter_(1, chosen, best[:, :k])  # what taking the best may have overwritten
        near = None if exclusion is None else replace(exclusion, centres=exclusion.centres[close])
        measured, is_settled[close] = _measure(queries[close], rows, k, near, bins[close], bound[close])
        indices[close] = measured
    return indices, is_settled & bound.isfinite()


def _rank_by_halves(
    queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None, norms: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """As `_rank`, with bins chosen by products in bfloat16."""
    assert rows.halves is not None
    n, D = queries.shape
    bins = _fill_bins(queries.to(torch.bfloat16), rows.halves, None, exclusion)
    least = _find_least(bins, rows, k, norms, bound, D)
    owner, chosen = (bins >= least).nonzero(as_tuple=True)
    counts = torch.bincount(owner, minlength=n)
    is_crowded = counts > _MOST_BINS
    crowded = is_crowded.nonzero()[:, 0]
    if len(crowded) > _MOST_CROWDED * n:
        rows.is_crowded.set()
        return _rank_by_floats(queries, rows, k, exclusion, bound)
    if len(crowded):
        is_kept = ~is_crowded[owner]
        owner, chosen, counts = owner[is_kept], chosen[is_kept], counts.masked_fill_(is_crowded, 0)
    candidates, scores = _score_bins(queries, rows, owner, chosen, counts, exclusion, n * k)
    values, places = _take_best(scores.clone(), k)
    indices = candidates.gather(1, places).masked_fill_(values[:, :k] == -torch.inf, -1)
    # No row of another bin comes as near to the k-th as the bound: see `_find_least`.
    is_settled = _compare_rivals(values[:, :k].double(), values[:, k:].double(), bound)
    close = (~is_settled).nonzero()[:, 0]
    if 0 < len(close) <= _MOST_CLOSE * n:
        listed = candidates[close].masked_fill_(scores[close] == -torch.inf, -1)
        sets = queries[close][None], rows.values[None], listed[None]
        rest = bound.new_full((1, len(close)), -torch.inf)
        found, is_close_settled = rerank(
            *sets, k, norms[close][None], bound[close][None], rest, _MEASURED_BYTES
        )
        indices[close], is_settled[close] = found[0, :, :k], is_close_settled[0]
    is_settled &= bound.isfinite()
    if len(crowded):
        near = None if exclusion is None else replace(exclusion, centres=exclusion.centres[crowded])
        indices[crowded], is_settled[crowded] = _rank_by_floats(
            queries[crowded], rows, k, near, bound[crowded]
        )
    return indices, is_settled


def _find_least(bins: Tensor, rows: _Rows, k: int, norms: Tensor, bound: Tensor, D: int) -> Tensor:
    """The score (n, 1) in bfloat16 that a bin needs for one of its rows to be among the k nearest.

    Rounding of both factors and of the product, and the missing penalty, move a score by `doubt` at most,
    less `bound`. Of k bins each has a row that truly scores at least what the k-th has here, less that. A
    row that has less by twice `doubt` truly has less than those by twice `bound`: it is none of the nearest.
    """
    products = norms * rows.largest_norm
    # The factors' roundings, the sum's, and what the unit takes for zero.
    doubt = 3.2 * _HALF_ROUNDOFF * products + rows.slack
    doubt += D * torch.finfo(torch.float32).tiny * (norms + rows.largest_norm) + bound
    kth = bins.amax(dim=1) if k == 1 else bins.topk(k, dim=1).values[:, -1]
    least = kth.double() - 2 * doubt
    # Rounded down; bins without a row have less than any number.
    rounded = (least - 2 * _HALF_ROUNDOFF * least.abs()).to(bins.dtype)
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
    """Rows (n, c * 16) of each query's candidate bins, and their scores, -inf where it has fewer bins.

    Args:
        queries: (n, D).
        rows: the database.
        owner: (P,) which query each candidate bin is of, in order.
        chosen: (P,) the bins.
        counts: (n,) how many each query has.
        exclusion: what is excluded.
        step: bins that are scored at a time.
    """
    n, width = len(queries), max(1, int(counts.amax()))
    candidates = torch.zeros(n * width, _BIN, dtype=torch.int64)
    scores = queries.new_full((n * width, _BIN), -torch.inf)
    place = torch.arange(len(owner)) + (torch.arange(n) * width - counts.cumsum(0) + counts)[owner]
    for start in range(0, len(owner), step):
        part = slice(start, start + step)
        listed, some = _list_rows(chosen[part, None]), owner[part]
        near = None if exclusion is None else replace(exclusion, centres=exclusion.centres[some])
        candidates.index_copy_(0, place[part], listed)
        scores.index_copy_(0, place[part], _score(queries[some], rows, listed, near))
    return candidates.view(n, -1), scores.view(n, -1)


def _compare_rivals(better: Tensor, rival: Tensor, bound: Tensor) -> Tensor:
    """Which queries (n,) have their k scores (n, k), and the next (n, 1), further apart than rounding can."""
    worse = torch.cat([better[:, 1:], rival], dim=1)
    return ((better - worse > 2 * bound[:, None]) | (better == -torch.inf)).all(dim=1)


def _measure(
    queries: Tensor, rows: _Rows, k: int, exclusion: ExclusionRadius | None, bins: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """Indices (n, k) of queries with rivals that stand close, by the distances to all rows of some bins."""
    best, chosen = bins.topk(k + _SPARE_BINS + 1, dim=1)
    candidates = _list_rows(chosen[:, :-1])
    candidates = candidates.masked_fill(_score(queries, rows, candidates, exclusion) == -torch.inf, -1)
    norms = torch.linalg.vector_norm(queries.double(), dim=-1)
    sets = queries[None], rows.values[None], candidates[None]
    found, is_settled = rerank(*sets, k, norms[None], bound[None], best[None, :, -1], _MEASURED_BYTES)
    return found[0, :, :k], is_settled[0]


def _fill_bins(
    queries: Tensor, values: Tensor, penalties: Tensor | None, exclusion: ExclusionRadius | None
) -> Tensor:
    """The best scores (n, bins) of bins of rows; see `_list_rows` for which is which."""
    n, M = len(queries), len(values)
    bins = queries.new_empty(n, -(-M // _BLOCK_ROWS) * (_BLOCK_ROWS // _BIN))
    buffer = queries.new_empty(n, _BLOCK_ROWS)
    spans = [] if exclusion is None else _find_spans(exclusion)
    for start in range(0, M, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, M)
        scores = buffer[:, : stop - start]
        if penalties is None:
            torch.mm(queries, values[start:stop].T, out=scores)
        else:
            torch.addmm(penalties[start:stop], queries, values[start:stop].T, out=scores)
        if exclusion is not None:
            _exclude(scores, start, exclusion, spans)
        buffer[:, stop - start :] = -torch.inf
        first = start // _BIN
        target = bins[:, first : first + _BLOCK_ROWS // _BIN]
        torch.amax(buffer.view(n, _BIN, -1), dim=1, out=target)
    return bins


def _find_spans(exclusion: ExclusionRadius) -> list[tuple[slice, int, int]]:
    """Some queries at a time, and the first row and the end of those that may lie within their radius.

    In a feature map these are few. Rows in no order of height all lie between the first and the last.
    """
    centres, heights = exclusion.centres[:, 1].double(), exclusion.positions[:, 1].double()
    # A little more than the radius, whatever distances are rounded to, and whatever they underflow to.
    reach = 1.001 * max(exclusion.radius, 1e-18)
    spans = []
    for start in range(0, len(centres), _MASKED_QUERIES):
        group = slice(start, start + _MASKED_QUERIES)
        known = centres[group][~centres[group].isnan()]  # those that lie nowhere exclude nothing
        if not len(known):
            continue
        if exclusion.radius > _LARGEST_REACH:
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
    """Puts rows too near the queries' places out of reach, in scores (n, m) of rows from `start` on."""
    for group, first, end in spans:
        near = slice(max(start, first), min(start + scores.shape[1], end))
        if near.start < near.stop:
            away = squared_distances(exclusion.centres[group], exclusion.positions[near])
            own = scores[group, near.start - start : near.stop - start]
            own.masked_fill_(away <= exclusion.radius**2, -torch.inf)


def _list_rows(bins: Tensor) -> Tensor:
    """The rows (n, c * 16) of bins (n, c): every 64th of a block; the last bins reach beyond the last row."""
    per_block = _BLOCK_ROWS // _BIN
    first = bins // per_block * _BLOCK_ROWS + bins % per_block
    return (first[..., None] + torch.arange(_BIN) * per_block).flatten(1)


def _score(queries: Tensor, rows: _Rows, candidates: Tensor, exclusion: ExclusionRadius | None) -> Tensor:
    """Scores (n, c) of candidates (n, c); -inf for those that are not in the database or excluded."""
    is_row = candidates < len(rows.values)
    safe = candidates.clamp(max=len(rows.values) - 1)
    # These two are several times as fast as the same by indexing and einsum.
    chosen = rows.values.index_select(0, safe.flatten()).view(*safe.shape, -1)
    found = chosen.mul_(queries[:, None]).sum(dim=-1).add_(rows.penalties[safe])
    if exclusion is not None:
        away = squared_distances(exclusion.centres[:, None], exclusion.positions[safe])[:, 0]
        is_row &= ~(away <= exclusion.radius**2)  # not above: places that are nowhere exclude nothing
    return found.masked_fill_(~is_row, -torch.inf)


def _take_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest k + 1 scores of each row (n, m), in order, and the places of k; overwrites the scores."""
    if k > 1:
        found = scores.topk(k + 1, dim=1)
        return found.values, found.indices[:, :k]
    first = scores.max(dim=1, keepdim=True)
    second = scores.scatter_(1, first.indices, -torch.inf).amax(dim=1, keepdim=True)
    return torch.cat([first.values, second], dim=1), first.indices
