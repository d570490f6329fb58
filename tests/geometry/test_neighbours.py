"""Places nearest to places."""

from threading import Thread

import pytest
import torch

from ucn.geometry import neighbours
from ucn.geometry.neighbours import nearest_points


@pytest.mark.parametrize(("N", "M", "count"), [(1, 1, 1), (7, 5, 5), (1200, 900, 12)])
def test_against_all_distances(N: int, M: int, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    points, known = (torch.rand(size, 2, generator=generator) * 100 for size in (N, M))
    wanted = (points.double()[:, None] - known.double()).norm(dim=-1).sort(dim=1)
    distances, rows = nearest_points(points, known, count)
    assert rows.dtype == torch.int64
    assert torch.equal(rows, wanted.indices[:, :count])
    torch.testing.assert_close(distances, wanted.values[:, :count])


def test_no_points() -> None:
    distances, rows = nearest_points(torch.zeros(0, 2), torch.zeros(3, 2), 2)
    assert distances.shape == rows.shape == (0, 2)


def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.rand(1200, 2, generator=torch.Generator().manual_seed(0))
    wanted = nearest_points(points, points, 2)[1]

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(nearest_points(points, points, 2)[1], wanted)
    monkeypatch.setattr(Thread, "start", refuse)
    assert torch.equal(nearest_points(points, points, 2)[1], wanted)


@pytest.mark.parametrize(("N", "M", "count"), [(0, 3, 2), (1, 1, 1), (7, 5, 5), (120, 90, 12)])
def test_by_comparing_all_as_by_a_tree(N: int, M: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_CHUNK_BYTES", 8 * 90 * 7)  # a few points at a time
    generator = torch.Generator().manual_seed(1)
    points, known = (torch.rand(size, 2, generator=generator) * 100 + 4000 for size in (N, M))
    distances, rows = neighbours._compare_all(points, known, count)
    wanted = nearest_points(points, known, count)
    assert torch.equal(rows, wanted[1])
    torch.testing.assert_close(distances, wanted[0])
