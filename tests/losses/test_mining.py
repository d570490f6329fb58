"""Mining against loops, on pairs whose two views differ."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from support.loss_cases import Pair, make_map, make_pair, views_that_differ
from ucn.geometry.sampling import sample_descriptors
from ucn.losses import MinedNegatives, MiningMethod, mine_negatives
from ucn.types import Direction, FeatureMap

METHODS: tuple[MiningMethod, ...] = ("random", "nearest", "hardest")


def centres_by_loop(feature_map: FeatureMap) -> list[tuple[float, float]]:
    h, w = feature_map.grid_hw
    return [(4.0 * x + 2.0, 4.0 * y + 2.0) for y in range(h) for x in range(w)]


def mine_by_loop(
    map_from: FeatureMap,
    map_to: FeatureMap,
    points_from: Tensor,
    points_to: Tensor,
    is_valid: Tensor,
    method: Literal["nearest", "hardest"],
    radius: float,
) -> list[list[int]]:
    queries = sample_descriptors(map_from, points_from)
    candidates = map_to.features.flatten(2).transpose(1, 2)
    places = centres_by_loop(map_to)
    result = []
    for b in range(len(queries)):
        row = []
        for n in range(queries.shape[1]):
            x, y = points_to[b, n].tolist()
            is_far = [((x - u) ** 2 + (y - v) ** 2) ** 0.5 > radius for u, v in places]
            distances = (candidates[b] - queries[b, n]).norm(dim=1).tolist()
            allowed = [c for c in range(len(places)) if is_far[c] or method == "nearest"]
            best = min(allowed, key=lambda c: distances[c], default=-1)
            row.append(best if best >= 0 and is_far[best] and bool(is_valid[b, n]) else -1)
        result.append(row)
    return result


@pytest.mark.parametrize("method", ["nearest", "hardest"])
@pytest.mark.parametrize("radius", [0.0, 6.0, 12.0, 1000.0])
@pytest.mark.parametrize("B", [1, 2])
def test_both_directions_equal_loops(method: Literal["nearest", "hardest"], radius: float, B: int) -> None:
    pair = make_pair(B=B, N=30)
    mined = mine_negatives(*pair.arguments(), method=method, radius=radius)
    forth = mine_by_loop(*pair.arguments(), method, radius)
    back = mine_by_loop(pair.map1, pair.map0, pair.points1, pair.points0, pair.is_valid, method, radius)
    assert mined.cells_0to1 is not None and mined.cells_1to0 is not None
    assert mined.cells_0to1[..., 0].tolist() == forth
    assert mined.cells_1to0[..., 0].tolist() == back


def cells(mined: MinedNegatives) -> tuple[int, int]:
    assert mined.cells_0to1 is not None and mined.cells_1to0 is not None
    return int(mined.cells_0to1[0, 0, 0]), int(mined.cells_1to0[0, 0, 0])


def test_nearest_by_hand() -> None:
    pair = views_that_differ()
    # 0to1: the nearest cell is the truth itself, no negative. 1to0: of the equal cells 0 and 3 the lower
    # wins, and it is the truth too.
    assert cells(mine_negatives(*pair.arguments(), method="nearest", radius=5.0)) == (-1, -1)
    moved = Pair(pair.map0, pair.map1, torch.tensor([[[14.0, 2.0]]]), pair.points1, pair.is_valid)
    # Now the truth in view 0 is cell 3, and cell 0, 12 px from it, looks the same: a negative in view 0 only.
    assert cells(mine_negatives(*moved.arguments(), method="nearest", radius=11.9)) == (-1, 0)
    assert cells(mine_negatives(*moved.arguments(), method="nearest", radius=12.0)) == (-1, -1)


def test_hardest_by_hand() -> None:
    pair = views_that_differ()
    # Outside 5 px of (10, 2) in view 1 only cell 0 is left; of (2, 2) in view 0 cells 2 and 3; 3 is nearer.
    assert cells(mine_negatives(*pair.arguments(), method="hardest", radius=5.0)) == (0, 3)
    # 8 px is the distance of cell 0 of view 1: no longer outside.
    assert cells(mine_negatives(*pair.arguments(), method="hardest", radius=8.0)) == (-1, 3)


def test_random_by_hand() -> None:
    pair = views_that_differ()
    generator = torch.Generator().manual_seed(0)
    # At least 8 px from the truth: cell 0 of view 1; at least 12 px: cell 3 of view 0 alone, none of view 1.
    for radius, expected in ((8.0, {(0, 2), (0, 3)}), (12.0, {(-1, 3)})):
        drawn = {
            cells(mine_negatives(*pair.arguments(), method="random", radius=radius, generator=generator))
            for _ in range(40)
        }
        assert drawn == expected


@pytest.mark.parametrize("memory_bytes", [1, 2000, 2**28])
def test_random_is_uniform_over_the_cells_far_enough(memory_bytes: int) -> None:
    pair = make_pair(B=2, N=3)
    count = 4000
    mined = mine_negatives(
        *pair.arguments(),
        method="random",
        radius=10.0,
        count=count,
        generator=torch.Generator().manual_seed(1),
        memory_bytes=memory_bytes,
    )
    for drawn, feature_map, points in (
        (mined.cells_0to1, pair.map1, pair.points1),
        (mined.cells_1to0, pair.map0, pair.points0),
    ):
        assert drawn is not None and (drawn[:, -1] == -1).all()  # invalid
        for b in range(2):
            for n in range(2):
                x, y = points[b, n].tolist()
                places = centres_by_loop(feature_map)
                legal = [((x - u) ** 2 + (y - v) ** 2) ** 0.5 >= 10.0 for u, v in places]
                counts = drawn[b, n].bincount(minlength=len(places))
                assert (counts[~torch.tensor(legal)] == 0).all()
                expected = count / sum(legal)
                # Chi-squared of about 35 degrees of freedom: 80 is far beyond its 99.99th percentile.
                assert float(((counts[torch.tensor(legal)] - expected) ** 2 / expected).sum()) < 80


def test_random_repeats_with_its_generator_whatever_the_budget() -> None:
    pair = make_pair(N=20)

    def draw(seed: int, memory_bytes: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        mined = mine_negatives(
            *pair.arguments(),
            method="random",
            radius=5.0,
            direction="0to1",
            generator=generator,
            memory_bytes=memory_bytes,
        )
        assert mined.cells_0to1 is not None
        return mined.cells_0to1

    assert torch.equal(draw(3, 2**28), draw(3, 5000))
    assert not torch.equal(draw(3, 2**28), draw(4, 2**28))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["0to1", "1to0", "both"])
def test_shapes_and_directions(method: MiningMethod, direction: Direction) -> None:
    pair = make_pair(B=2, N=4)
    mined = mine_negatives(*pair.arguments(), method=method, radius=3.0, direction=direction, count=3)
    for name, found in (("0to1", mined.cells_0to1), ("1to0", mined.cells_1to0)):
        if direction in (name, "both"):
            assert found is not None and (found.shape, found.dtype) == ((2, 4, 3), torch.int64)
            assert (found[:, -1] == -1).all()
        else:
            assert found is None


@pytest.mark.parametrize("method", METHODS)
def test_no_points_and_none_valid(method: MiningMethod) -> None:
    empty = mine_negatives(*make_pair(N=0).arguments(), method=method, radius=3.0)
    assert empty.cells_0to1 is not None and empty.cells_0to1.shape == (2, 0, 1)
    pair = make_pair(N=3)
    nowhere = torch.full_like(pair.points0, float("nan"))
    mined = mine_negatives(
        pair.map0, pair.map1, nowhere, nowhere, torch.zeros(2, 3, dtype=torch.bool), method=method, radius=3.0
    )
    assert mined.cells_1to0 is not None and (mined.cells_1to0 == -1).all()


@pytest.mark.parametrize("method", ["nearest", "hardest"])
def test_batched_equals_unbatched_and_half_maps_work(method: MiningMethod) -> None:
    pair = make_pair(N=12, dtype=torch.float32)
    whole = mine_negatives(*pair.arguments(), method=method, radius=7.0, count=2)
    for b in range(2):
        alone = mine_negatives(*pair.item(b).arguments(), method=method, radius=7.0, count=2)
        assert whole.cells_0to1 is not None and alone.cells_0to1 is not None
        assert torch.equal(whole.cells_0to1[b : b + 1], alone.cells_0to1)
    half = make_map(pair.map0.features.bfloat16()), make_map(pair.map1.features.bfloat16())
    wide = make_map(half[0].features.float()), make_map(half[1].features.float())
    rest = pair.arguments()[2:]
    narrow = mine_negatives(*half, *rest, method=method, radius=7.0)
    expected = mine_negatives(*wide, *rest, method=method, radius=7.0)
    assert narrow.cells_0to1 is not None and expected.cells_0to1 is not None
    assert torch.equal(narrow.cells_0to1, expected.cells_0to1)


def test_errors() -> None:
    pair = make_pair()
    maps, points, is_valid = (pair.map0, pair.map1), (pair.points0, pair.points1), pair.is_valid
    with pytest.raises(ValueError, match="method must be one of random, nearest, hardest, got 'easy'"):
        mine_negatives(*maps, *points, is_valid, method="easy", radius=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="direction must be one of 0to1, 1to0, both, got 'up'"):
        mine_negatives(*maps, *points, is_valid, method="random", radius=1.0, direction="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="radius must be at least 0, got -1"):
        mine_negatives(*maps, *points, is_valid, method="random", radius=-1.0)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        mine_negatives(*maps, *points, is_valid, method="random", radius=1.0, count=0)
    with pytest.raises(ValueError, match="memory_bytes must be at least 1, got 0"):
        mine_negatives(*maps, *points, is_valid, method="random", radius=1.0, memory_bytes=0)
    with pytest.raises(ValueError, match=r"points1 must be float \(2, 9, 2\), got torch.float64 \(2, 8, 2\)"):
        mine_negatives(*maps, points[0], points[1][:, 1:], is_valid, method="random", radius=1.0)
    with pytest.raises(ValueError, match=r"is_valid must be bool \(2, N\), got torch.int64 \(2, 9\)"):
        mine_negatives(*maps, *points, is_valid.long(), method="random", radius=1.0)
    with pytest.raises(ValueError, match=r"map1.features must be \(2, 5, h, w\), got \(1, 5, 7, 6\)"):
        mine_negatives(maps[0], maps[1][0], *points, is_valid, method="random", radius=1.0)
    with pytest.raises(ValueError, match=r"map0.features must be \(B, D, h, w\), got \(5, 8\)"):
        mine_negatives(make_map(torch.zeros(5, 8)), maps[1], *points, is_valid, method="random", radius=1.0)
    with pytest.raises(ValueError, match="at least one cell"):
        blind = make_map(torch.zeros(2, 5, 0, 3))
        mine_negatives(maps[0], blind, *points, is_valid, method="random", radius=1.0)
