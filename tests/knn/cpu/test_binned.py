"""The search in bins of rows, by itself and through the door, against loops in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.knn import ExclusionRadius, SearchCache, nearest
from ucn.knn.cpu import binned as binned_search
from ucn.knn.cpu.binned import (
    _count_bytes,
    _fill_bins,
    _list_rows,
    _lowest_bin_score,
    _plan_threads,
    _prepare,
    rank_in_bins,
)
from ucn.knn.exclusion import squared_distances
from ucn.knn.reference import bound_rounding

_BUDGET = 2**28


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"], autouse=True)
def uses_halves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both types of products, whichever is faster on this CPU."""
    use: bool = request.param
    monkeypatch.setattr(binned_search, "has_bfloat16_products", lambda: use)
    return use


def _draw(N: int, M: int, D: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries, database = (torch.randn(size, D, generator=generator) for size in (N, M))
    return F.normalize(queries), F.normalize(database)


def _search_slowly(queries: Tensor, database: Tensor, k: int, excluded: Tensor | None = None) -> Tensor:
    """Indices (N, k) by sorting all distances in float64; the sort is stable, so ties stay in order."""
    distances = torch.cdist(queries.double(), database.double(), compute_mode="donot_use_mm_for_euclid_dist")
    if excluded is not None:
        distances[excluded] = torch.inf
    sorted_distances, order = distances.sort(dim=1, stable=True)
    return order[:, :k].masked_fill(sorted_distances[:, :k] == torch.inf, -1)


def _rank(
    queries: Tensor, database: Tensor, k: int, exclusion: ExclusionRadius | None = None
) -> tuple[Tensor, Tensor]:
    batched = exclusion
    if exclusion is not None:
        batched = ExclusionRadius(exclusion.centres[None], exclusion.positions[None], exclusion.radius)
    answer = rank_in_bins(queries[None], database[None], k, batched, _BUDGET)
    assert answer is not None
    return answer[0][0], answer[1][0]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("M", [1024, 1025, 1039, 2047, 3000])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_settles_random_queries_rightly(M: int, k: int) -> None:
    queries, database = _draw(37, M)
    indices, is_settled = _rank(queries, database, k)
    expected = _search_slowly(queries, database, k)
    assert is_settled.float().mean() > 0.9
    assert torch.equal(indices[is_settled], expected[is_settled])
    assert torch.equal(nearest(queries, database, k).indices, expected)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("N", [1, 2, 255, 256, 257, 515])
def test_any_number_of_queries(N: int) -> None:
    queries, database = _draw(N, 1100)
    assert torch.equal(nearest(queries, database).indices, _search_slowly(queries, database, 1))


@pytest.mark.parametrize("place", [0, 15, 63, 64, 1000, 1023, 1024, 1151, 1200])
def test_the_nearest_row_is_found_wherever_it_stands(place: int) -> None:
    queries, database = _draw(3, 1201)
    database[place] = queries[1]
    found = nearest(queries, database)
    assert found.indices[1, 0] == place
    assert found.distances[1, 0] == 0


@pytest.mark.parametrize("places", [(3, 67), (3, 4), (3, 1030), (700, 1024)])
def test_equal_rows_of_one_bin_and_of_two_are_left_to_slower_methods(places: tuple[int, int]) -> None:
    queries, database = _draw(5, 1100)
    database[list(places)] = queries[2]
    _, is_settled = _rank(queries, database, 1)
    assert not is_settled[2]
    assert nearest(queries, database, 2).indices[2].tolist() == list(places)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("places", [(3, 67), (3, 4), (3, 1030), (700, 1024)])
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-4])
def test_few_near_ties_are_reranked_at_once(k: int, places: tuple[int, int], distance: float) -> None:
    queries, database = _draw(40, 1100)
    near, nearer = places
    database[near] = queries[2] * (1 + 2 * distance)
    database[nearer] = queries[2] * (1 + distance)
    indices, is_settled = _rank(queries, database, k)
    assert is_settled.all()
    assert torch.equal(indices, _search_slowly(queries, database, k))


def test_many_equal_rows_are_more_than_can_be_measured_at_once() -> None:
    queries, database = _draw(40, 1300)
    database[100:1200] = queries[2]
    _, is_settled = _rank(queries, database, 2)
    assert is_settled.tolist() == [row != 2 for row in range(40)]
    assert nearest(queries, database, 2).indices[2].tolist() == [100, 101]


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-8])
def test_near_ties_equal_the_slow_search(size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = F.normalize(torch.randn(20, 24, generator=generator))
    database = queries[torch.randint(0, 20, (1500,), generator=generator)]
    database = database + size * torch.randn(database.shape, generator=generator)
    indices, is_settled = _rank(queries, database, 1)
    expected = _search_slowly(queries, database, 1)
    assert torch.equal(indices[is_settled], expected[is_settled])
    assert torch.equal(nearest(queries, database).indices, expected)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("radius", [0.0, 0.3, 0.9, 2.0])
def test_surroundings_are_left_out(k: int, radius: float) -> None:
    queries, database = _draw(40, 1300)
    generator = torch.Generator().manual_seed(2)
    centres, positions = torch.rand(40, 2, generator=generator), torch.rand(1300, 2, generator=generator)
    exclusion = ExclusionRadius(centres, positions, radius)
    squared = (centres[:, None] - positions).square().sum(dim=-1)
    expected = _search_slowly(queries, database, k, squared <= radius**2)
    assert torch.equal(nearest(queries, database, k, exclusion=exclusion).indices, expected)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("radius", "order", "size"),
    [
        (0.0, "by height", 1.0),
        (4.0, "any", 1.0),
        (9.0, "by height", 1.0),
        (200.0, "any", 1.0),
        (0.0, "any", 1e-23),
        (9.0, "by height", 1e-23),
    ],
)
def test_surroundings_in_a_feature_map(radius: float, order: str, size: float) -> None:
    """Many queries in any order of height, some nowhere or infinitely far; each has its own cell's values.

    Squares of tiny distances underflow.
    """
    cells = torch.arange(2600)
    positions = torch.stack([cells % 40, cells // 40], dim=-1) * 4.0
    _, database = _draw(1, 2600)
    generator = torch.Generator().manual_seed(3)
    if order == "any":
        positions = positions[torch.randperm(2600, generator=generator)]
    positions, radius = positions * size, radius * size
    positions[5], positions[9, 1], positions[11, 1] = torch.nan, torch.inf, -torch.inf
    own = torch.randint(2600, (300,), generator=generator)
    centres = positions[own] + torch.rand(300, 2, generator=generator).round() * radius
    centres[0], centres[1, 1], centres[2, 1] = torch.nan, torch.inf, -torch.inf
    centres[3, 0] = torch.nan
    squared = (centres[:, None] - positions).square().sum(dim=-1)
    expected = _search_slowly(database[own], database, 1, squared <= radius**2)
    exclusion = ExclusionRadius(centres, positions, radius)
    found = nearest(database[own], database, exclusion=exclusion).indices
    assert torch.equal(found, expected)
    nearest(database[own], database, cache=(cache := SearchCache()))
    assert torch.equal(nearest(database[own], database, exclusion=exclusion, cache=cache).indices, expected)
    assert (found[:, 0] != own).any()
    assert found[0, 0] == own[0]


@pytest.mark.parametrize("radius", [2e19, 1e200, float("inf")])
def test_a_radius_beyond_all_squares_leaves_out_all_that_lie_anywhere(radius: float) -> None:
    queries, database = _draw(70, 2000)
    positions = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
    positions[500:] = 1e25
    positions[1990:] = torch.nan
    expected = 1990 + _search_slowly(queries, database[1990:], 1)
    found = nearest(
        queries, database, exclusion=ExclusionRadius(torch.zeros(70, 2), positions, radius)
    ).indices
    assert torch.equal(found, expected)


def test_rows_far_from_all_queries_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a map of 65 lines, queries are near so many: their radius of two, either way, and one more."""
    queries, database = _draw(64, 2600)
    cells = torch.arange(2600)
    positions = torch.stack([cells % 40, cells // 40], dim=-1) * 4.0
    centres = torch.tensor([[30.0, 121.0]]).expand(64, 2)
    measured: list[int] = []
    measure = squared_distances

    def count(some: Tensor, places: Tensor) -> Tensor:
        measured.append(places.shape[-2] * some.shape[-2] if some.ndim == 2 else 0)
        return measure(some, places)

    monkeypatch.setattr(binned_search, "squared_distances", count)
    nearest(queries, database, exclusion=ExclusionRadius(centres, positions, 8.0))
    assert 0 < sum(measured) <= 64 * 5 * 40


def test_a_cache_spares_the_products_of_rows_far_from_all_queries(
    uses_halves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, database = _draw(64, 6000)
    cells = torch.arange(6000)
    positions = torch.stack([cells % 40, cells // 40], dim=-1) * 4.0
    exclusion = ExclusionRadius(positions[1200].expand(64, 2), positions, 8.0)  # in the second block
    nearest(queries, database, cache=(cache := SearchCache()))
    multiplied: list[int] = []
    multiply = torch.mm

    def count(some: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        multiplied.append(columns.shape[1])
        return multiply(some, columns, out=out)

    monkeypatch.setattr(torch, "mm", count)
    found = nearest(queries, database, exclusion=exclusion, cache=cache).indices
    assert set(multiplied) == ({1024} if uses_halves else set())
    assert torch.equal(found, nearest(queries, database, exclusion=exclusion).indices)


def test_a_small_budget_keeps_no_bins() -> None:
    queries, database = _draw(300, 1300)
    for memory_bytes in (2**18, _BUDGET):
        nearest(queries, database, memory_bytes=memory_bytes, cache=(cache := SearchCache()))
        assert cache.bins is None or memory_bytes == _BUDGET


def test_fewer_rows_than_neighbours_are_left() -> None:
    queries, database = _draw(4, 1300)
    positions = torch.zeros(1300, 2)
    positions[7], positions[1100] = torch.tensor([5.0, 0.0]), torch.tensor([0.0, 5.0])
    found = nearest(queries, database, 3, exclusion=ExclusionRadius(torch.zeros(4, 2), positions, 1.0))
    assert (found.indices[:, 2] == -1).all()
    assert torch.equal(found.indices[:, :2].sort(dim=1).values, torch.tensor([[7, 1100]]).expand(4, 2))


@pytest.mark.usefixtures("threads")
def test_items_of_a_batch_do_not_mix() -> None:
    pairs = [_draw(30, 1200, seed=seed) for seed in range(3)]
    queries, database = (torch.stack(each) for each in zip(*pairs, strict=True))
    found = nearest(queries, database, 2).indices
    for item, pair in enumerate(pairs):
        assert torch.equal(found[item], _search_slowly(*pair, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"k": 9},
        {"memory_bytes": 100_000},
        {"dtype": torch.float64},
        {"dtype": torch.float16},
        {"M": 1023},
    ],
    ids=str,
)
def test_declines_what_it_is_not_made_for(change: dict[str, Any]) -> None:
    dtype = change.get("dtype", torch.float32)
    queries, database = (each.to(dtype)[None] for each in _draw(10, change.get("M", 1024)))
    found = rank_in_bins(queries, database, change.get("k", 1), None, change.get("memory_bytes", _BUDGET))
    assert found is None


def test_lengths_that_overflow_settle_nothing_wrongly() -> None:
    queries, database = _draw(6, 1030)
    database = database * torch.logspace(-3, 21, 1030)[:, None]
    expected = _search_slowly(queries, database, 1)
    assert torch.equal(nearest(queries, database).indices, expected)


@pytest.mark.parametrize(
    ("available", "expected"), [(1, 1), (2, 2), (16, 16), (32, 32), (48, 35), (64, 35), (100, None)]
)
@pytest.mark.parametrize("N", [2000, 20_000])
def test_as_many_threads_work_as_the_memory_allows(
    N: int, available: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: available)
    plan = _plan_threads(N, 19200, 128, 1, None, _BUDGET)
    if expected is None:
        assert plan is None
        return
    assert plan is not None
    step, threads = plan
    assert threads == pytest.approx(expected, abs=0 if expected <= 32 else 3)
    assert _count_bytes(step, 19200, 128, 1, None) * threads <= _BUDGET
    rounds = -(-N // (step * threads))
    assert step * threads * rounds < N + rounds * threads  # all have as much to do


def test_fewer_threads_find_the_same() -> None:
    queries, database = _draw(60, 1300)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        prepared = (28 + 2 * 16) * 1300
        most = _count_bytes(20, 1300, 16, 2, None) * 3 + prepared  # enough for three threads of four
        assert _plan_threads(60, 1300, 16, 2, None, most - prepared) == (20, 3)
        found = rank_in_bins(queries[None], database[None], 2, None, most)
    finally:
        torch.set_num_threads(before)
    assert found is not None
    indices, is_settled = found
    assert is_settled.all()
    assert torch.equal(indices[0], _search_slowly(queries, database, 2))


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("spread", [1.0, 0.1, 0.01])
def test_bins_chosen_in_bfloat16_hold_the_nearest(k: int, spread: float, uses_halves: bool) -> None:
    # The nearer rows stand to each other, the more of them rounding confuses.
    generator = torch.Generator().manual_seed(3)
    middle = torch.randn(1, 24, generator=generator)
    database = F.normalize(middle + spread * torch.randn(2500, 24, generator=generator))
    database *= 1 + 1e-4 * torch.rand(2500, 1, generator=generator)
    queries = F.normalize(middle + spread * torch.randn(50, 24, generator=generator))
    queries[0] *= 1e-3
    queries[1] *= 1e3
    rows = _prepare(database)
    assert (rows.halves is not None) == uses_halves
    bins = _fill_bins(queries.bfloat16(), database.bfloat16(), None, None)
    norms = queries.double().norm(dim=1)
    bound = bound_rounding(norms[None], rows.largest_norm.view(1, 1), 24, torch.float32)[0]
    is_chosen = bins >= _lowest_bin_score(bins, rows, k, norms, bound, 24)
    assert spread < 1 or is_chosen.float().mean() < 0.5
    expected = _search_slowly(queries, database, k)
    for query, chosen in enumerate(is_chosen):
        listed = _list_rows(chosen.nonzero().T)[0].tolist()
        assert set(expected[query].tolist()) <= set(listed)
    assert torch.equal(nearest(queries, database, k).indices, expected)


def test_rows_of_many_lengths_are_ranked_in_float32() -> None:
    queries, database = _draw(30, 1300)
    database *= torch.linspace(0.5, 2, 1300)[:, None]
    assert _prepare(database).halves is None
    assert torch.equal(nearest(queries, database, 2).indices, _search_slowly(queries, database, 2))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_queries_that_leave_too_many_bins_open(share: float, uses_halves: bool) -> None:
    # Of rows this near to each other bfloat16 tells none from another, float32 all.
    queries, database = _draw(60, 1600)
    generator = torch.Generator().manual_seed(4)
    middle = F.normalize(torch.randn(1, 16, generator=generator))
    database[:1500] = F.normalize(middle + 2e-2 * torch.randn(1500, 16, generator=generator))
    count = int(60 * share)
    queries[:count] = F.normalize(middle + 2e-2 * torch.randn(count, 16, generator=generator))
    indices, is_settled = _rank(queries, database, 2)
    expected = _search_slowly(queries, database, 2)
    assert is_settled.float().mean() > 0.8
    assert torch.equal(indices[is_settled], expected[is_settled])
    positions = torch.arange(1600.0)[:, None].expand(1600, 2)
    exclusion = ExclusionRadius(positions[expected[:, 0]], positions, 3.0)
    nearest(queries, database, cache=(cache := SearchCache()))
    found = nearest(queries, database, exclusion=exclusion, cache=cache)
    assert torch.equal(found.indices, nearest(queries, database, exclusion=exclusion).indices)
    rows = _prepare(database)
    binned_search._rank(queries, rows, 2, None)
    assert rows.is_crowded.is_set() == (uses_halves and share > 0.25)
