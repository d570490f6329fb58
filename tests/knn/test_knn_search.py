"""Nearest neighbours against brute force in float64, by differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from support.knn_cases import brute_force
from ucn.knn import ExclusionRadius, mutual_nearest, nearest


def check_against_brute_force(queries: Tensor, database: Tensor, k: int, **options: Any) -> None:
    distances, indices = brute_force(queries, database, k)
    found = nearest(queries, database, k, **options)
    np.testing.assert_array_equal(found.indices.numpy(), indices)
    np.testing.assert_allclose(found.distances.double().numpy(), distances, rtol=1e-6, atol=0)


def random_sets(
    N: int, M: int, D: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(N, D, generator=generator, dtype=torch.float64)
    database = torch.randn(M, D, generator=generator, dtype=torch.float64)
    if D == 1:
        return queries, database
    return F.normalize(queries).to(dtype), F.normalize(database).to(dtype)


def test_hand_computed_case() -> None:
    queries = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    database = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    found = nearest(queries, database, k=2)
    assert found.indices.tolist() == [[1, 0], [0, 1]]
    torch.testing.assert_close(found.distances, torch.tensor([[1.0, 5.0], [0.0, 18**0.5]]), rtol=1e-7, atol=0)
    assert found.distances.dtype == torch.float32
    assert found.indices.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("D", [1, 3, 64, 128])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_random_sets_equal_brute_force(dtype: torch.dtype, D: int, k: int) -> None:
    queries, database = (x.to(dtype) for x in random_sets(60, 300, D, dtype))
    check_against_brute_force(queries, database, k)
    assert nearest(queries, database, k).distances.dtype == (
        torch.float64 if dtype == torch.float64 else torch.float32
    )


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7, 1e-9, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_ties_equal_brute_force(k: int, size: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    queries, base = random_sets(20, 12, 32, torch.float64)
    copies = base.repeat(8, 1)
    copies = copies + size * torch.randn(copies.shape, generator=generator, dtype=torch.float64)
    copies = copies[torch.randperm(len(copies), generator=generator)]
    queries = torch.cat([queries, copies[::7]])  # some queries stand in the database themselves
    check_against_brute_force(queries.to(dtype), copies.to(dtype), k)


def test_identical_database_answers_in_order() -> None:
    queries, database = random_sets(9, 1, 64)
    found = nearest(queries, database.expand(500, 64), k=3)
    assert found.indices.tolist() == [[0, 1, 2]] * 9
    blank = nearest(database.expand(7, 64), database.expand(500, 64))
    assert blank.indices.tolist() == [[0]] * 7
    assert blank.distances.abs().max() == 0


def test_tie_of_permuted_coordinates_goes_to_the_lowest_index() -> None:
    # Equal distances in exact arithmetic; sums in another order round differently.
    row = torch.randn(40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    orders = [torch.randperm(40, generator=torch.Generator().manual_seed(i)) for i in range(50)]
    database = torch.stack([row[order] for order in orders])
    far = database + 1.0
    for dtype in (torch.float32, torch.float64):
        found = nearest(torch.zeros(1, 40, dtype=dtype), torch.cat([far, database]).to(dtype), k=2)
        assert found.indices.tolist() == [[50, 51]]


@pytest.mark.parametrize("magnitude", [1e-25, 1e-12, 1e12, 1e25])
def test_extreme_magnitudes_equal_brute_force(magnitude: float) -> None:
    queries, database = random_sets(20, 50, 8, torch.float64)
    check_against_brute_force((queries * magnitude).float(), (database * magnitude).float(), 2)
    check_against_brute_force(queries.float(), (database * magnitude).float(), 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("memory_bytes", [1, 700, 5000, 60_000])
def test_tiny_budget_gives_the_same_answer(dtype: torch.dtype, memory_bytes: int) -> None:
    queries, database = random_sets(12, 40, 16, dtype)
    database = torch.cat([database, database[:20]])  # exact ties in other blocks
    centres = torch.rand(12, 2, generator=torch.Generator().manual_seed(2)) * 20
    positions = torch.rand(60, 2, generator=torch.Generator().manual_seed(3)) * 20
    for exclusion in (None, ExclusionRadius(centres, positions, 8.0)):
        small = nearest(queries, database, 3, exclusion=exclusion, memory_bytes=memory_bytes)
        large = nearest(queries, database, 3, exclusion=exclusion)
        assert torch.equal(small.indices, large.indices)
        assert torch.equal(small.distances, large.distances)


def test_empty_sets_and_more_neighbours_than_rows() -> None:
    some, none = torch.eye(3), torch.zeros(0, 3)
    assert nearest(none, some, k=2).indices.shape == (0, 2)
    found = nearest(some, none, k=2)
    assert found.indices.tolist() == [[-1, -1]] * 3
    assert torch.isinf(found.distances).all()
    found = nearest(some, some[:2], k=4)
    assert found.indices.tolist() == [[0, 1, -1, -1], [1, 0, -1, -1], [0, 1, -1, -1]]
    assert torch.isinf(found.distances[:, 2:]).all()
    assert nearest(torch.zeros(0, 4, 3), torch.zeros(0, 5, 3)).indices.shape == (0, 4, 1)


@pytest.mark.parametrize("memory_bytes", [3000, 2**28])
@pytest.mark.parametrize("B", [1, 2, 5])
def test_batched_equals_unbatched(B: int, memory_bytes: int) -> None:
    generator = torch.Generator().manual_seed(5)
    queries, database = torch.randn(B, 7, 4, generator=generator), torch.randn(B, 9, 4, generator=generator)
    database[:, 5] = database[:, 2]
    centres = torch.rand(B, 7, 2, generator=generator) * 10
    positions = torch.rand(B, 9, 2, generator=generator) * 10
    together = nearest(
        queries, database, 2, exclusion=ExclusionRadius(centres, positions, 3.0), memory_bytes=memory_bytes
    )
    for b in range(B):
        alone = nearest(queries[b], database[b], 2, exclusion=ExclusionRadius(centres[b], positions[b], 3.0))
        assert torch.equal(together.indices[b], alone.indices)
        assert torch.equal(together.distances[b], alone.distances)


def test_exclusion_by_hand() -> None:
    queries = torch.tensor([[0.0], [0.0], [0.0]])
    database = torch.tensor([[0.1], [0.2], [0.3]])
    positions = torch.tensor([[0.0, 0.0], [16.0, 0.0], [0.0, 17.0]])
    centres = torch.tensor([[0.0, 0.0], [16.0, 1.0], [0.0, 8.0]])
    found = nearest(queries, database, 1, exclusion=ExclusionRadius(centres, positions, 16.0))
    # 16 px itself is too near; from (16, 1) the first row lies 16.03 px away; (0, 8) excludes rows 0 and 2.
    assert found.indices.tolist() == [[2], [0], [1]]
    everything = nearest(queries, database, 1, exclusion=ExclusionRadius(centres, positions, 100.0))
    assert everything.indices.tolist() == [[-1]] * 3
    assert torch.isinf(everything.distances).all()


@pytest.mark.parametrize("k", [1, 4])
def test_exclusion_equals_brute_force(k: int) -> None:
    generator = torch.Generator().manual_seed(6)
    queries, database = random_sets(40, 100, 8)
    database = torch.cat([database, database])
    centres = torch.rand(40, 2, generator=generator) * 50
    positions = torch.rand(200, 2, generator=generator) * 50
    excluded = (torch.cdist(centres.double(), positions.double()) <= 20).numpy()
    _, indices = brute_force(queries, database, k, excluded)
    found = nearest(queries, database, k, exclusion=ExclusionRadius(centres, positions, 20.0))
    np.testing.assert_array_equal(found.indices.numpy(), indices)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture(params=["high", "medium"])
def low_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    with matmul_precision(request.param):
        yield


@pytest.mark.usefixtures("low_precision")
def test_exact_where_the_caller_allows_low_precision_products() -> None:
    queries, database = random_sets(100, 2000, 64)
    check_against_brute_force(queries, database, 1)
    check_against_brute_force(queries, database, 3)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_row_just_behind_an_exact_tie_wins_by_its_lower_index(precision: str) -> None:
    database = torch.zeros(60, 3)
    database[:, 0] = 5
    database[2] = torch.tensor([1, 7e-7, 0])  # a relative 2.5e-13 behind rows 5 and 7
    database[5] = torch.tensor([1.0, 0, 0])
    database[7] = torch.tensor([0, 1.0, 0])
    with matmul_precision(precision):
        for k in range(1, 5):
            assert nearest(torch.zeros(1, 3), database, k).indices.tolist() == [[2, 5, 7, 0][:k]]


@pytest.mark.slow
@pytest.mark.usefixtures("low_precision")
@pytest.mark.parametrize("k", [1, 2, 5, 30])
@pytest.mark.parametrize("near", [3, 10, 40])
def test_exact_and_near_ties_in_low_precision_equal_brute_force(k: int, near: int) -> None:
    """Up to 40 near rows, more than are measured of a coarse product; relative gaps from 0 to 1e-11."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        database = torch.full((60, 3), 5.0)
        offsets = torch.tensor([0, 0, 0, 4e-7, 7e-7, 4e-6])[torch.randint(6, (near,), generator=generator)]
        rows = torch.stack([torch.ones(near), offsets, torch.zeros(near)], dim=1)
        database[torch.randperm(60, generator=generator)[:near]] = rows
        check_against_brute_force(torch.zeros(1, 3), database, k)


def test_exact_where_products_really_are_of_low_precision(
    monkeypatch: pytest.MonkeyPatch, low_precision: None
) -> None:
    """Processors without bfloat16 products ignore the setting, so round the factors here."""
    exact = torch.baddbmm

    def rounded(penalty: Tensor, first: Tensor, second: Tensor) -> Tensor:
        if first.dtype == torch.float32:
            bits = 13 if torch.get_float32_matmul_precision() == "high" else 16
            mask = -(1 << bits)
            first = (first.contiguous().view(torch.int32) & mask).view(torch.float32)
            second = (second.contiguous().view(torch.int32) & mask).view(torch.float32)
        return exact(penalty, first, second)

    monkeypatch.setattr(torch, "baddbmm", rounded)
    queries, database = random_sets(100, 2000, 16)
    check_against_brute_force(queries, database, 2)


def test_exact_under_autocast() -> None:
    queries, database = random_sets(100, 1000, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_against_brute_force(queries, database, 1)


def test_transposed_database_and_no_gradient() -> None:
    queries, database = random_sets(10, 30, 8)
    queries.requires_grad_()
    found = nearest(queries, database.T.contiguous().T)
    assert torch.equal(found.indices, nearest(queries.detach(), database).indices)
    assert not found.distances.requires_grad


class LargestStorage(TorchDispatchMode):
    """Remembers the largest storage that any operation returned, other than the given tensors' own."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.largest = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["distinct", "blank", "exclusion"])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_no_tensor_exceeds_the_budget(dtype: torch.dtype, kind: str, precision: str) -> None:
    budget = 200_000
    queries, database = random_sets(800, 3000, 32, dtype)
    exclusion = None
    if kind == "blank":
        database = database[:1].repeat(3000, 1)
        queries = queries[:100]
    if kind == "exclusion":
        generator = torch.Generator().manual_seed(0)
        exclusion = ExclusionRadius(
            torch.rand(800, 2, generator=generator), torch.rand(3000, 2, generator=generator), 0.3
        )
    with matmul_precision(precision), LargestStorage(queries, database) as seen:
        nearest(queries, database, 2, exclusion=exclusion, memory_bytes=budget)
    assert 0 < seen.largest <= budget


def test_by_default_a_small_part_of_the_distances_is_held() -> None:
    queries, database = random_sets(2000, 19200, 128)
    with LargestStorage(queries, database) as seen:
        nearest(queries, database)
    # All distances would be 154 MB; the rows are 9.8 MB, and a copy of them in bfloat16 half of that.
    assert 0 < seen.largest <= 5 * 2**20


class OnMps(Tensor):
    """A tensor that says it is on a device this machine lacks, and refuses float64 as MPS does."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps", 0)

    def cpu(self, *_: Any) -> Tensor:
        return self.as_subclass(Tensor)

    def double(self, *_: Any) -> NoReturn:
        raise TypeError("the MPS framework doesn't support float64")


def test_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Tensor.to

    def to(tensor: Tensor, *options: Any, **named: Any) -> Any:
        is_to_mps = options[:1] == (torch.device("mps", 0),)
        return tensor.as_subclass(OnMps) if is_to_mps else move(tensor, *options, **named)

    monkeypatch.setattr(Tensor, "to", to)
    queries, database = random_sets(20, 50, 8)
    places = torch.arange(100.0).reshape(50, 2)
    expected = nearest(queries, database, 2, exclusion=ExclusionRadius(places[:20], places, 9.0))
    q, b, p = (x.as_subclass(OnMps) for x in (queries, database, places))
    found = nearest(q, b, 2, exclusion=ExclusionRadius(p[:20], p, 9.0))
    assert isinstance(found.distances, OnMps)
    assert isinstance(found.indices, OnMps)
    assert torch.equal(found.distances.cpu(), expected.distances)
    assert torch.equal(found.indices.cpu(), expected.indices)
    with pytest.raises(ValueError, match="must share a device, got mps:0 and cpu"):
        nearest(q, database)


def test_mutual_by_hand() -> None:
    descriptors0 = torch.tensor([[0.0], [1.0], [10.0]])
    descriptors1 = torch.tensor([[9.0], [0.9]])
    assert mutual_nearest(descriptors0, descriptors1).tolist() == [-1, 1, 0]
    assert mutual_nearest(descriptors1, descriptors0).tolist() == [2, 1]


def test_mutual_of_ties_and_empty_sets() -> None:
    same = torch.ones(4, 3)
    assert mutual_nearest(same, same).tolist() == [0, -1, -1, -1]
    assert mutual_nearest(same, same[:0]).tolist() == [-1] * 4
    assert mutual_nearest(same[:0], same).shape == (0,)


def test_mutual_equals_brute_force_in_any_budget() -> None:
    descriptors0, descriptors1 = random_sets(50, 70, 4)
    forth = brute_force(descriptors0, descriptors1, 1)[1][:, 0]
    back = brute_force(descriptors1, descriptors0, 1)[1][:, 0]
    expected = np.where(back[forth] == np.arange(50), forth, -1)
    for memory_bytes in (1000, 2**28):
        found = mutual_nearest(descriptors0, descriptors1, memory_bytes=memory_bytes)
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_integer_vectors_equal_brute_force(data: st.DataObject) -> None:
    """Small integers are full of exact ties."""
    N, M, D = (data.draw(st.integers(1, top)) for top in (5, 8, 3))
    k, memory_bytes = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 300, 2**20]))
    values = st.lists(st.integers(-2, 2), min_size=(N + M) * D, max_size=(N + M) * D)
    rows = torch.tensor(data.draw(values), dtype=torch.float32).reshape(N + M, D)
    check_against_brute_force(rows[:N], rows[N:], k, memory_bytes=memory_bytes)


def test_errors_give_both_numbers() -> None:
    some = torch.eye(3)
    with pytest.raises(ValueError, match=r"queries must be \(N, D\) or \(B, N, D\), got \(3,\)"):
        nearest(some[0], some)
    with pytest.raises(ValueError, match=r"database must be \(M, 3\) for queries \(3, 3\), got \(3, 2\)"):
        nearest(some, some[:, :2])
    with pytest.raises(ValueError, match=r"database must be \(2, M, 3\) .* got \(4, 3, 3\)"):
        nearest(some.expand(2, 3, 3), some.expand(4, 3, 3))
    with pytest.raises(ValueError, match=r"one float type, got torch.float32 and torch.float64"):
        nearest(some, some.double())
    with pytest.raises(ValueError, match=r"one float type, got torch.int64 and torch.int64"):
        nearest(some.long(), some.long())
    with pytest.raises(ValueError, match="at least 1 value each"):
        nearest(some[:, :0], some[:, :0])
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest(some, some, 0)
    with pytest.raises(ValueError, match="memory_bytes must be at least 1, got 0"):
        nearest(some, some, memory_bytes=0)
    with pytest.raises(ValueError, match=r"descriptors1 must be \(N, D\), got \(1, 3, 3\)"):
        mutual_nearest(some, some[None])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    some = torch.eye(3)
    spoilt = some.clone()
    spoilt[1, 1] = bad
    with pytest.raises(ValueError, match="queries must be finite"):
        nearest(spoilt, some)
    with pytest.raises(ValueError, match="database must be finite"):
        nearest(some, spoilt)


def test_exclusion_errors() -> None:
    some, places = torch.eye(3), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"exclusion.centres must be \(3, 2\), got \(2, 2\)"):
        nearest(some, some, exclusion=ExclusionRadius(places[:2], places, 1.0))
    with pytest.raises(ValueError, match=r"exclusion.positions must be \(3, 2\), got \(1, 2\)"):
        nearest(some, some, exclusion=ExclusionRadius(places, places[:1], 1.0))
    with pytest.raises(ValueError, match=r"exclusion.radius must be at least 0, got -1"):
        nearest(some, some, exclusion=ExclusionRadius(places, places, -1.0))
    with pytest.raises(ValueError, match="exclusion must hold floats"):
        nearest(some, some, exclusion=ExclusionRadius(places.long(), places, 1.0))
