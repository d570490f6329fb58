"""The fused search against brute force in float64; run by `test_triton_search` in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.knn_cases import brute_force
from ucn.knn import ExclusionRadius, nearest
from ucn.knn.triton.search import (
    FusedNeighbours,
    Tuning,
    _allocate,
    _choose_splits,
    _Device,
    _is_hopper,
    _launch_prepare,
    _plan,
    can_search,
    choose_tuning,
    search_fused,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Small enough for several splits and steps of few rows each.
SMALL = Tuning(rows=16, columns=32, fold=2, depth=64, tiles=3, warps=4, stages=2, settle_values=512)
# Larger blocks of queries, bins of one row a tile, more rows settled at a time, launches one by one.
UNFOLDED = Tuning(
    rows=32, columns=32, fold=1, tiles=4, prepare_values=1024, settle_values=2048, use_chain=False
)
TUNINGS = (SMALL, UNFOLDED)
# Steps of several blocks that `prepare` takes at a time, as on a device.
PARTED = replace(SMALL, prepare_values=128)
# What a device runs; the interpreter is too slow for so large steps, and takes fewer cases below.
CHOSEN = choose_tuning(torch.device(DEVICE), 128)
LAUNCHED = (CHOSEN, replace(CHOSEN, use_chain=False)) if DEVICE == "cuda" else TUNINGS


def check(
    queries: Tensor,
    database: Tensor,
    k: int,
    exclusion: ExclusionRadius | None = None,
    tunings: Sequence[Tuning] = TUNINGS,
) -> FusedNeighbours:
    """Searches sets (N, D) and (M, D) in several ways, and compares with brute force."""
    batched = None
    excluded = None
    if exclusion is not None:
        batched = ExclusionRadius(exclusion.centres[None], exclusion.positions[None], exclusion.radius)
        exactly = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
        gaps = exactly(exclusion.centres.double(), exclusion.positions.double())
        excluded = (gaps <= exclusion.radius).cpu().numpy()
    distances, indices = brute_force(queries, database, k, excluded)
    for tuning in tunings:
        found = search_fused(queries[None], database[None], k, batched, tuning)
        np.testing.assert_array_equal(found.indices[0].cpu().numpy(), indices, err_msg=str(tuning))
        np.testing.assert_allclose(found.distances[0].double().cpu().numpy(), distances, rtol=1e-6, atol=0)
        assert bool(found.extremes.isfinite().all())
    return found


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def draw_unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(draw(*shape, seed=seed), dim=-1)


@pytest.mark.parametrize(
    ("N", "M", "D", "k"),
    [
        (3, 200, 20, 1), (17, 65, 3, 1), (2, 192, 128, 8), (1, 1, 1, 1), (3, 5, 7, 8), (2, 70, 300, 4),
    ],
)  # fmt: skip
def test_unit_sets_of_odd_sizes(N: int, M: int, D: int, k: int) -> None:
    check(draw_unit(N, D), draw_unit(M, D, seed=1), k)


@pytest.mark.parametrize("M", [65, 96] if DEVICE == "cpu" else [64, 65, 96, 127])
def test_queries_far_from_all_rows(M: int) -> None:
    """All scores are negative, so that a row that is not there, of score zero, would count as nearest."""
    rows = F.normalize(draw(M, 8, seed=1).abs(), dim=-1)
    check(-rows[:3], rows, 2)


@pytest.mark.parametrize("spread", [1e-7, 1e-4] if DEVICE == "cpu" else [1e-7, 1e-5, 1e-4, 1e-2])
def test_lengths_nearly_equal(spread: float) -> None:
    """Rows of one direction in each bin: their lengths alone say which is nearest, and less than float16."""
    directions = draw_unit(32, 8, seed=1).repeat(6, 1)
    lengths = 1 + spread * torch.rand(192, 1, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    check(directions[:3] * 1.5, directions * lengths, 1)
    check(directions[:2] * 0.5, directions * lengths, 2)


def test_few_rows_are_measured() -> None:
    found = check(draw_unit(8, 64), draw_unit(150, 64, seed=1), 1)
    assert found.measured.double().mean() < 1.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype: torch.dtype) -> None:
    check(draw_unit(2, 32).to(dtype), draw_unit(120, 32, seed=1).to(dtype), 2)


def test_database_of_a_feature_map_is_read_in_place() -> None:
    check(draw_unit(2, 32), draw(32, 120, seed=1).T, 2)


@pytest.mark.parametrize("magnitude", [1e-6, 1e5] if DEVICE == "cpu" else [1e-6, 1e-2, 300.0, 1e5])
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
    found = check(blank[:1], blank, 3)
    assert found.indices[0].tolist() == [[0, 1, 2]]
    check(draw_unit(2, 16, seed=3), torch.zeros(40, 16, device=DEVICE), 1)


@pytest.mark.parametrize("spread", [1e-3, 1e-7] if DEVICE == "cpu" else [1e-3, 1e-5, 1e-7])
def test_rows_nearer_to_each_other_than_float16_tells(spread: float) -> None:
    centre = draw_unit(1, 24)
    database = centre + spread * draw(100, 24, seed=1)
    check(centre + spread * draw(2, 24, seed=2), database, 2)


def test_ties_within_the_tolerance_stand_by_index() -> None:
    database = torch.zeros(60, 3, device=DEVICE)
    database[:, 0] = 5
    database[2] = torch.tensor([1, 7e-7, 0])  # a relative 2.5e-13 behind rows 5 and 7
    database[5] = torch.tensor([1.0, 0, 0])
    database[7] = torch.tensor([0, 1.0, 0])
    for k in (1, 3, 4):
        found = search_fused(torch.zeros(1, 1, 3, device=DEVICE), database[None], k, None, SMALL)
        assert found.indices[0].tolist() == [[2, 5, 7, 0][:k]]


def test_exclusion() -> None:
    places = torch.rand(4 + 150, 2, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 40
    exclusion = ExclusionRadius(places[:4], places[4:], 15.0)
    check(draw_unit(4, 12), draw_unit(150, 12, seed=1), 3, exclusion)
    # The query's own row and its surroundings are the nearest by far, and do not count.
    database = draw_unit(150, 12, seed=1)
    check(database[:3], database, 1, ExclusionRadius(places[4:7], places[4:], 15.0))


@pytest.mark.parametrize("N", [1, 1025, 4097] if DEVICE == "cpu" else [1, 1024, 1025, 4097])
def test_queries_are_sorted_by_the_y_of_their_positions(N: int) -> None:
    """All that there are, each once, 4,096 at a time; nearly, since their numbers take the last bits."""
    generator = torch.Generator().manual_seed(N)
    centres = (torch.rand(1, N, 2, generator=generator) * 900 - 200).to(DEVICE)
    centres[0, ::7, 1] = 64.0
    centres[0, 3::50, 1] = torch.nan
    positions, queries = torch.zeros(1, 4, 2, device=DEVICE), torch.ones(1, N, 1, device=DEVICE)
    database = torch.ones(1, 4, 1, device=DEVICE)
    sizes = _plan(queries, database, 1, True, SMALL)
    work = _allocate(1, N, sizes, True, queries.device)
    empty = torch.empty(0, device=DEVICE)
    found = FusedNeighbours(empty, empty, empty, torch.empty(1, sizes.blocks, 2, device=DEVICE))
    launch = {"D_PAD": sizes.d_pad, "HAS_EXCLUSION": True, "IS_HOPPER": _is_hopper(queries.device)}
    _launch_prepare(queries, database, work, found, centres, positions, sizes, SMALL, launch)
    heights = centres[0, :, 1].nan_to_num(-1e30).cpu()
    start = 0
    for order in torch.split(work.order.cpu().long(), 4096):
        assert torch.equal(order.sort().values, torch.arange(start, start + len(order)))
        stand = heights[order]
        assert (stand.diff() >= -1e-3 * stand[1:].abs()).all()
        across = work.sorted_centres[start : start + len(order)].cpu()
        assert torch.equal(across, centres[0, :, 0].cpu()[order])
        start += len(order)


@pytest.mark.parametrize("tuning", [*TUNINGS, PARTED], ids=["small", "unfolded", "parted"])
def test_exclusion_in_a_feature_map(tuning: Tuning) -> None:
    """Queries in any order, also nowhere; cells in order of height, so that most are passed over."""
    cells = torch.arange(256, device=DEVICE)
    positions = torch.stack([cells % 10, cells // 10], dim=-1) * 4.0
    centres = torch.rand(20, 2, generator=torch.Generator().manual_seed(5)).to(DEVICE) * 40
    centres[:, 1] = 40 + centres[:, 1] * 0.45  # to 58, so that some tiles are near by their edge alone
    centres[7] = torch.nan
    centres[9, 1] = torch.nan
    centres[11] = torch.tensor([4.0, torch.inf])
    centres[13] = torch.tensor([4.0, -torch.inf])
    database = draw_unit(256, 12, seed=1)
    usual = [i for i in range(20) if i not in (7, 9, 11, 13)]  # beside the others no tile is passed over
    every = tuple(product((0.0, 20.0, 40.0), (range(20), usual)))
    # The interpreter takes seconds for each: some near with queries nowhere; none near, all near.
    few = (every[1], every[2], every[5]) if tuning is SMALL else (every[2],)
    for radius, asked in every if DEVICE == "cuda" else few:
        own = centres[list(asked)]
        # The last cell down, or up, that does not count is the nearest, so that none can be forgotten.
        is_near = torch.cdist(own.nan_to_num(0.0, 0.0, 0.0), positions) <= radius
        for cell in (
            torch.where(is_near, cells, -1).argmax(dim=1),
            torch.where(is_near, cells, 256).argmin(dim=1),
        ):
            check(database[cell], database, 1, ExclusionRadius(own, positions, radius), tunings=[tuning])
    some = slice(7, 8)
    check(database[some], database, 2, ExclusionRadius(centres[some], positions, 8.0), tunings=[tuning])


@pytest.mark.parametrize("N", [600] if DEVICE == "cpu" else [600, 9000])
def test_exclusion_with_many_queries_of_equal_height(N: int) -> None:
    """More than are compared at a time, and on a device more than are sorted together."""
    M = 40 if DEVICE == "cuda" else 20
    positions = torch.stack([torch.arange(M) % 5, torch.arange(M) // 5], dim=-1).to(DEVICE) * 4.0
    generator = torch.Generator().manual_seed(7)
    centres = torch.randint(-8, 9, (N, 2), generator=generator).to(DEVICE) * 2.0
    exclusion = ExclusionRadius(centres, positions, 12.0)
    check(draw_unit(N, 4), draw_unit(M, 4, seed=1), 1, exclusion, tunings=[SMALL])


@pytest.mark.parametrize(
    ("tuning", "sign"),
    [(SMALL, 1), (UNFOLDED, -1)] if DEVICE == "cpu" else list(product(TUNINGS, (1, -1))),
    ids=lambda value: str(value) if isinstance(value, int) else f"fold {value.fold}",
)
def test_exclusion_with_heights_that_sorting_does_not_tell_apart(tuning: Tuning, sign: int) -> None:
    """Each query is the row at its own place, which alone is left out."""
    heights = sign * (600 + 0.01 * torch.arange(128, device=DEVICE))
    positions = torch.stack([torch.zeros_like(heights), heights], dim=-1)
    database = draw_unit(128, 12, seed=1)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    check(database[order], database, 1, ExclusionRadius(positions[order], positions, 0.0), tunings=[tuning])


@pytest.mark.parametrize(
    "height", [3.402e38, -3.402e38] if DEVICE == "cpu" else [3.2e38, -3.2e38, 3.402e38, -3.402e38]
)
def test_exclusion_of_positions_at_the_largest_distances(height: float) -> None:
    positions = torch.tensor([[0.0, height]], device=DEVICE).repeat(40, 1)
    positions[:, 0] = torch.arange(40) * 4.0
    database = draw_unit(40, 8, seed=1)
    check(database[:5], database, 1, ExclusionRadius(positions[:5], positions, 6.0), tunings=[SMALL])


def test_exclusion_by_hand() -> None:
    database = torch.tensor([[0.1], [0.2], [0.3]], device=DEVICE)
    positions = torch.tensor([[0.0, 0.0], [16.0, 0.0], [0.0, 17.0]], device=DEVICE)
    centres = torch.tensor([[0.0, 0.0], [16.0, 1.0], [0.0, 8.0]], device=DEVICE)
    queries = torch.zeros(3, 1, device=DEVICE)
    found = check(queries, database, 1, ExclusionRadius(centres, positions, 16.0))
    assert found.indices[0].tolist() == [[2], [0], [1]]
    for radius in (100, 1e30):
        found = check(queries, database, 2, ExclusionRadius(centres, positions, radius))
        assert found.indices[0].tolist() == [[-1, -1]] * 3


def test_items_of_a_batch_are_searched_apart() -> None:
    queries, database = draw_unit(2, 2, 16), draw_unit(2, 40, 16, seed=1)
    centres, positions = draw(2, 2, 2) * 9, draw(40, 2, seed=1) * 9
    together = search_fused(
        queries, database, 2, ExclusionRadius(centres, positions.expand(2, 40, 2), 6.0), SMALL
    )
    for b in range(2):
        alone = search_fused(
            queries[b : b + 1],
            database[b : b + 1],
            2,
            ExclusionRadius(centres[b : b + 1], positions[None], 6.0),
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


def test_nearest_takes_the_fused_search(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, database = draw_unit(2, 16), draw_unit(40, 16, seed=1)
    places = torch.rand(40, 2, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 40
    exclusion = ExclusionRadius(places[:2], places, 9.0)
    monkeypatch.setattr("ucn.knn.search.use_fused", lambda *tensors: False)
    expected = [nearest(queries, database, 3), nearest(queries, database, exclusion=exclusion)]
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
    found = [nearest(queries, database, 3), nearest(queries, database, exclusion=exclusion)]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.indices, theirs.indices)
        torch.testing.assert_close(ours.distances, theirs.distances, rtol=1e-6, atol=0)


def test_what_is_left_to_the_torch_search() -> None:
    some = torch.zeros(1, 10, 16)
    wide = torch.zeros(1, 10, 513)
    places = ExclusionRadius(torch.zeros(1, 10, 2), torch.zeros(1, 10, 2), 1.0)
    double = ExclusionRadius(torch.zeros(1, 10, 2).double(), torch.zeros(1, 10, 2), 1.0)
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
            splits = _choose_splits(row_blocks, steps, tuning, tuning.resident)
            assert 1 <= splits <= steps
            assert -(-steps // splits) <= tuning.tiles
    assert choose_tuning(torch.device("cpu"), 128) == Tuning()


def check_nearest(
    queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None, found: FusedNeighbours
) -> None:
    """Compares with float64, for sets too large for brute force row by row."""
    exactly = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
    distances = exactly(queries.double(), database.double())
    if exclusion is not None:
        gaps = exactly(exclusion.centres.double(), exclusion.positions.double())
        distances.masked_fill_(gaps <= exclusion.radius, torch.inf)
    assert torch.equal(found.indices, distances.argmin(dim=2, keepdim=True))
    torch.testing.assert_close(
        found.distances.double(), distances.amin(dim=2, keepdim=True), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("has_exclusion", [False, True], ids=["plain", "exclusion"])
@pytest.mark.parametrize("tuning", LAUNCHED, ids=range(len(LAUNCHED)))
def test_searches_in_a_row_do_not_disturb_each_other(tuning: Tuning, has_exclusion: bool) -> None:
    """Nothing waits between them, and each finds its inputs where those of the last one were."""
    rounds, N, M, D = (40, 700, 6000, 128) if DEVICE == "cuda" else (2, 5, 90, 16)
    cells = torch.arange(M, device=DEVICE)
    positions = torch.stack([cells % 60, cells // 60], dim=-1)[None] * 4.0
    inputs = [
        (draw_unit(1, N, D, seed=3 * i), draw_unit(1, M, D, seed=3 * i + 1), draw(1, N, 2, seed=i) * 50 + 120)
        for i in range(rounds)
    ]
    queries, database, centres = (torch.empty_like(part) for part in inputs[0])
    exclusion = ExclusionRadius(centres, positions, 16.0) if has_exclusion else None
    answers = []
    for parts in inputs:
        for target, part in zip((queries, database, centres), parts, strict=True):
            target.copy_(part)
        answers.append(search_fused(queries, database, 1, exclusion, tuning))
    for (own_queries, own_database, own_centres), found in zip(inputs, answers, strict=True):
        own = ExclusionRadius(own_centres, positions, 16.0) if has_exclusion else None
        check_nearest(own_queries, own_database, own, found)


@pytest.mark.skipif(DEVICE != "cuda", reason="a processor has no graphs")
@pytest.mark.parametrize("tuning", LAUNCHED, ids=range(len(LAUNCHED)))
def test_a_captured_graph_is_replayed_on_other_inputs(tuning: Tuning) -> None:
    queries, database = draw_unit(1, 700, 128), draw_unit(1, 6000, 128, seed=1)
    search_fused(queries, database, 1, None, tuning)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = search_fused(queries, database, 1, None, tuning)
    for seed in range(20):
        queries.copy_(draw_unit(1, 700, 128, seed=2 * seed))
        database.copy_(draw_unit(1, 6000, 128, seed=2 * seed + 1))
        graph.replay()
        check_nearest(queries, database, None, found)


def pretend(monkeypatch: pytest.MonkeyPatch, generation: int) -> None:
    """Has the search take any device for one as large as an H200."""
    device = _Device(generation, processors=132, shared_bytes=227 * 1024)
    monkeypatch.setattr("ucn.knn.triton.search._read_device", lambda _: device)


def test_launches_overlap_where_the_device_can_do_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _is_hopper(torch.device("cpu"))
    for generation, is_hopper in ((8, False), (9, True), (12, True)):
        pretend(monkeypatch, generation)
        assert _is_hopper(torch.device("cuda")) == is_hopper


@pytest.mark.parametrize("has_exclusion", [False, True])
def test_memory_on_an_h200(has_exclusion: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """3000 queries, 22000 rows of 128 values: less than 7.6 MB. Torch hands out 512 bytes at a time."""
    pretend(monkeypatch, 9)
    tuning = choose_tuning(torch.device("cuda"), 128)
    queries, database = (
        SimpleNamespace(shape=(1, n, 128), device=torch.device("cuda")) for n in (3000, 22000)
    )
    sizes = _plan(queries, database, 1, has_exclusion, tuning)  # type: ignore[arg-type]
    assert (sizes.splits, sizes.tiles) == (11, 16)
    work = _allocate(1, 3000, sizes, has_exclusion, torch.device("meta"))
    storages = {
        part.untyped_storage()._cdata: part.untyped_storage().nbytes() for part in vars(work).values()
    }
    results = (4 * 3000, 8 * 3000, 4 * 3000, 8 * sizes.blocks)
    assert 7.1e6 < sum(size + -size % 512 for size in (*storages.values(), *results)) < 7.6e6
