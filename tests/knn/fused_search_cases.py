"""The fused search against brute force in float64; run by `test_triton_search` in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ucn.knn import Outside, nearest
from ucn.knn.triton_search import (
    FusedNeighbours,
    Tuning,
    _choose_splits,
    can_search,
    choose_tuning,
    search_fused,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Small enough for several splits and steps of few rows each.
SMALL = Tuning(rows=16, columns=32, fold=2, depth=64, tiles=3, warps=4, stages=2, settle_values=512)


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


def check(
    queries: Tensor, database: Tensor, k: int, outside: Outside | None = None, tuning: Tuning = SMALL
) -> FusedNeighbours:
    """Searches sets (N, D) and (M, D), and compares with brute force."""
    batched = None
    excluded = None
    if outside is not None:
        batched = Outside(outside.centres[None], outside.positions[None], outside.radius)
        gaps = torch.cdist(outside.centres.double(), outside.positions.double())
        excluded = (gaps <= outside.radius).cpu().numpy()
    found = search_fused(queries[None], database[None], k, batched, tuning)
    distances, indices = brute_force(queries, database, k, excluded)
    np.testing.assert_array_equal(found.indices[0].cpu().numpy(), indices)
    np.testing.assert_allclose(found.distances[0].double().cpu().numpy(), distances, rtol=1e-6, atol=0)
    assert bool(found.extremes.isfinite().all())
    return found


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def draw_unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(draw(*shape, seed=seed), dim=-1)


@pytest.mark.parametrize(
    ("N", "M", "D", "k"),
    [(5, 200, 20, 1), (17, 97, 3, 2), (3, 300, 128, 8), (1, 1, 1, 1), (3, 5, 7, 8), (2, 70, 300, 4)],
)
def test_unit_sets_of_odd_sizes(N: int, M: int, D: int, k: int) -> None:
    check(draw_unit(N, D), draw_unit(M, D, seed=1), k)


def test_few_rows_are_measured() -> None:
    found = check(draw_unit(8, 64), draw_unit(150, 64, seed=1), 1)
    assert found.measured.double().mean() < 1.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype: torch.dtype) -> None:
    check(draw_unit(2, 32).to(dtype), draw_unit(120, 32, seed=1).to(dtype), 2)


def test_database_of_a_feature_map_is_read_in_place() -> None:
    check(draw_unit(2, 32), draw(32, 120, seed=1).T, 2)


@pytest.mark.parametrize("magnitude", [1e-6, 1e-2, 300.0, 1e5])
def test_any_magnitude(magnitude: float) -> None:
    check(draw(2, 16) * magnitude, draw(100, 16, seed=1) * magnitude, 1)


def test_rows_of_many_lengths() -> None:
    lengths = torch.logspace(-1, 3, 90, device=DEVICE)[:, None]
    check(draw(2, 16), draw_unit(90, 16, seed=1) * lengths, 2)


def test_of_equal_rows_the_lowest_comes_first() -> None:
    database = draw_unit(70, 8, seed=1)
    database = torch.cat([database, database, database[:9]])
    check(draw_unit(2, 8), database, 5)
    found = check(database[3:5], database, 3)
    assert found.indices[0].tolist() == [[3, 73, 143], [4, 74, 144]]
    assert found.distances[0, 0].tolist() == [0, 0, 0]


def test_blank_images() -> None:
    """All rows alike: every bin can hold the nearest, and splits are read whole."""
    blank = draw_unit(1, 16).expand(130, 16).contiguous()
    found = check(blank[:2], blank, 3)
    assert found.indices[0].tolist() == [[0, 1, 2]] * 2
    check(draw_unit(2, 16, seed=3), torch.zeros(40, 16, device=DEVICE), 1)


@pytest.mark.parametrize("spread", [1e-3, 1e-5, 1e-7])
def test_rows_nearer_to_each_other_than_float16_tells(spread: float) -> None:
    centre = draw_unit(1, 24)
    database = centre + spread * draw(150, 24, seed=1)
    check(centre + spread * draw(3, 24, seed=2), database, 2)


def test_ties_within_the_tolerance_stand_by_index() -> None:
    database = torch.zeros(60, 3, device=DEVICE)
    database[:, 0] = 5
    database[2] = torch.tensor([1, 7e-7, 0])  # a relative 2.5e-13 behind rows 5 and 7
    database[5] = torch.tensor([1.0, 0, 0])
    database[7] = torch.tensor([0, 1.0, 0])
    for k in (1, 3, 4):
        found = search_fused(torch.zeros(1, 1, 3, device=DEVICE), database[None], k, None, SMALL)
        assert found.indices[0].tolist() == [[2, 5, 7, 0][:k]]


def test_outside() -> None:
    places = torch.rand(4 + 150, 2, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 40
    outside = Outside(places[:4], places[4:], 15.0)
    check(draw_unit(4, 12), draw_unit(150, 12, seed=1), 3, outside)
    # The query's own row and its surroundings are the nearest by far, and do not count.
    database = draw_unit(150, 12, seed=1)
    check(database[:3], database, 1, Outside(places[4:7], places[4:], 15.0))


def test_outside_in_a_feature_map() -> None:
    """Queries in any order, also nowhere; cells in order of height, so that most are passed over."""
    cells = torch.arange(300, device=DEVICE)
    positions = torch.stack([cells % 10, cells // 10], dim=-1) * 4.0
    centres = torch.rand(40, 2, generator=torch.Generator().manual_seed(5)).to(DEVICE) * 120
    centres[7] = torch.nan
    centres[9, 1] = torch.nan
    centres[11] = torch.tensor([4.0, torch.inf])
    database = draw_unit(300, 12, seed=1)
    nearest_cell = torch.cdist(centres.nan_to_num(0.0, 0.0), positions).argmin(dim=1)
    for radius in (0.0, 8.0, 40.0):
        check(database[nearest_cell], database, 1, Outside(centres, positions, radius))
    some = slice(7, 8)
    check(database[some], database, 2, Outside(centres[some], positions, 8.0))


def test_outside_by_hand() -> None:
    database = torch.tensor([[0.1], [0.2], [0.3]], device=DEVICE)
    positions = torch.tensor([[0.0, 0.0], [16.0, 0.0], [0.0, 17.0]], device=DEVICE)
    centres = torch.tensor([[0.0, 0.0], [16.0, 1.0], [0.0, 8.0]], device=DEVICE)
    queries = torch.zeros(3, 1, device=DEVICE)
    found = check(queries, database, 1, Outside(centres, positions, 16.0))
    assert found.indices[0].tolist() == [[2], [0], [1]]
    for radius in (100, 1e30):
        found = check(queries, database, 2, Outside(centres, positions, radius))
        assert found.indices[0].tolist() == [[-1, -1]] * 3


def test_items_of_a_batch_are_searched_apart() -> None:
    queries, database = draw_unit(2, 2, 16), draw_unit(2, 40, 16, seed=1)
    centres, positions = draw(2, 2, 2) * 9, draw(40, 2, seed=1) * 9
    together = search_fused(queries, database, 2, Outside(centres, positions.expand(2, 40, 2), 6.0), SMALL)
    for b in range(2):
        alone = search_fused(
            queries[b : b + 1],
            database[b : b + 1],
            2,
            Outside(centres[b : b + 1], positions[None], 6.0),
            SMALL,
        )
        assert torch.equal(together.indices[b], alone.indices[0])
        assert torch.equal(together.distances[b], alone.distances[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_values_that_cannot_be_searched_show(bad: float) -> None:
    for place in (0, 1):
        sets = [draw_unit(3, 4), draw_unit(40, 4, seed=1)]
        sets[place][-1, 1] = bad
        assert not bool(
            search_fused(sets[0][None], sets[1][None], 1, None, SMALL).extremes.amax() < torch.inf
        )


def test_the_door_takes_the_fused_search(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, database = draw_unit(2, 16), draw_unit(40, 16, seed=1)
    places = torch.rand(40, 2, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 40
    outside = Outside(places[:2], places, 9.0)
    monkeypatch.setattr("ucn.knn.search.use_fused", lambda *tensors: False)
    expected = [nearest(queries, database, 3), nearest(queries, database, outside=outside)]
    monkeypatch.setattr("ucn.knn.search.use_fused", lambda *tensors: True)
    huge = nearest(queries * 1e30, database * 1e30, 3)  # by torch: too large for float32 products
    assert torch.equal(huge.indices, expected[0].indices)
    with pytest.raises(ValueError, match="database must be finite"):
        nearest(queries, torch.full_like(database, torch.nan))
    assert nearest(queries[:0], database).indices.shape == (0, 1)
    assert nearest(queries, database[:0]).indices.tolist() == [[-1]] * 2

    def refuse(*_: object) -> None:
        raise AssertionError("the torch search was called")

    monkeypatch.setattr("ucn.knn.search.search_exactly", refuse)
    found = [nearest(queries, database, 3), nearest(queries, database, outside=outside)]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.indices, theirs.indices)
        torch.testing.assert_close(ours.distances, theirs.distances, rtol=1e-6, atol=0)


def test_what_is_left_to_the_torch_search() -> None:
    some = torch.zeros(1, 10, 16)
    wide = torch.zeros(1, 10, 513)
    places = Outside(torch.zeros(1, 10, 2), torch.zeros(1, 10, 2), 1.0)
    double = Outside(torch.zeros(1, 10, 2).double(), torch.zeros(1, 10, 2), 1.0)
    assert can_search(some, some, 8, places, 2**20)
    assert not can_search(some, some, 9, None, 2**20)
    assert not can_search(wide, wide, 1, None, 2**20)
    assert not can_search(some.double(), some.double(), 1, None, 2**20)
    assert not can_search(some, some, 1, double, 2**20)
    assert not can_search(some, some, 1, None, 100)
    assert not can_search(some, some[:, :0], 1, None, 2**20)


def test_splits_cover_the_database_and_fill_the_device() -> None:
    tuning = Tuning(tiles=24, resident=1)
    for row_blocks in (1, 2, 24, 150):
        for steps in (1, 2, 172, 1000):
            splits = _choose_splits(row_blocks, steps, tuning, torch.device("cpu"))
            assert 1 <= splits <= steps
            assert -(-steps // splits) <= tuning.tiles
    assert choose_tuning(torch.device("cpu")) == Tuning()
