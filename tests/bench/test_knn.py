from typing import Any

import pytest
import torch
from torch import Tensor

from support.bench_cases import CPU, check_part, make_fake_cuda, make_settings, replace_timings
from ucn.bench import knn
from ucn.bench.knn import compare_with_float64, sample_exclusion
from ucn.bench.samples import sample_unit_vectors
from ucn.knn import ExclusionRadius, Neighbours, nearest


def test_the_search_equals_float64() -> None:
    queries, database = (
        sample_unit_vectors(37, 16, seed=0, device=CPU),
        sample_unit_vectors(301, 16, seed=1, device=CPU),
    )
    for exclusion in (None, sample_exclusion(37, 301, 0, CPU)):
        equal, error = compare_with_float64(queries, database, exclusion)
        assert equal == 1.0
        assert error < 1e-6


def test_wrong_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(queries: Any, database: Any, exclusion: Any = None) -> Neighbours:
        return Neighbours(torch.zeros(len(queries), 1), torch.zeros(len(queries), 1, dtype=torch.int64))

    monkeypatch.setattr(knn, "nearest", wrong)
    corners = torch.eye(4)
    equal, error = compare_with_float64(corners, corners)
    assert equal == 0.25  # the first one alone is row 0
    assert error == 0.0
    equal, error = compare_with_float64(corners, -corners)
    assert equal == 0.75  # all but the first are as far from row 0 as from others, the lowest of which it is
    assert error == pytest.approx(2**0.5)


def test_everything_excluded_is_no_row() -> None:
    rows = torch.eye(3)
    places = torch.zeros(3, 2)
    equal, _ = compare_with_float64(rows, rows, ExclusionRadius(places, places, 1.0))
    assert equal == 1.0


@pytest.mark.parametrize("has_faiss", [False, True])
def test_cpu(has_faiss: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_faiss:
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    replace_timings(knn, monkeypatch)
    monkeypatch.setattr(knn, "_has_faiss", lambda: has_faiss)
    part = knn.measure(make_settings())
    check_part(part)
    (table,) = part.tables
    methods = [row[0] for row in table.rows]
    assert ("faiss-cpu IndexFlatIP" in methods) == has_faiss
    assert any("not installed" in note for note in table.notes) != has_faiss
    assert {row[1] for row in table.rows} == {"random", "real, 768 rows"}
    assert table.rows[0][5] == 1.0


def test_cuda_tables_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(knn, monkeypatch)
    monkeypatch.setattr(knn, "use_fused", lambda *_: True)
    searched: list[tuple[Tensor, Tensor, ExclusionRadius]] = []

    def search(queries: Tensor, database: Tensor, exclusion: ExclusionRadius | None) -> Any:
        if exclusion is not None:
            searched.append((queries, database, exclusion))
        return Neighbours(*knn._search_reference(queries, database))

    monkeypatch.setattr(knn, "_search_fused", search)
    part = knn.measure(make_fake_cuda())
    check_part(part)
    methods = [row[0] for row in part.tables[0].rows]
    for end in ("", ", excluding 16 px", ", then discarding within 16 px"):
        assert methods.count(f"ucn, fused{end}") == 2
    assert "torch.cdist(q, b).min(1)" in methods
    # Centres of 24 × 32 real cells, and of each query's own match.
    queries, database, real = searched[-1]
    assert real.positions[[0, 1, 32, -1]].tolist() == [[2, 2], [6, 2], [2, 6], [126, 94]]
    assert torch.equal(real.centres, real.positions[nearest(queries, database).indices[:, 0]])
