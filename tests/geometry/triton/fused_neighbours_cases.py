"""Fused nearest points against the k-d tree; run by `test_triton_neighbours`."""

from __future__ import annotations

import pytest
import torch

from ucn.geometry.neighbours import nearest_points
from ucn.geometry.triton.neighbours import nearest_points_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("known_count", "count", "share"), [(50, 5, 1.0), (17, 12, 0.5), (3, 2, 0.0), (1, 1, 1.0)]
)
def test_distances_and_rows(known_count: int, count: int, share: float) -> None:
    generator = torch.Generator().manual_seed(known_count)
    points, known = (100 * torch.rand(n, 2, generator=generator) for n in (9, known_count))
    is_known = torch.rand(known_count, generator=generator) < share
    for mask in (None, is_known):
        given = None if mask is None else mask.to(DEVICE)
        distances, rows = nearest_points_fused(points.to(DEVICE), known.to(DEVICE), count, given)
        expected_distances, expected_rows = nearest_points(points, known, count, mask)
        assert torch.equal(rows.cpu(), expected_rows)
        torch.testing.assert_close(distances.cpu(), expected_distances)


def test_of_equally_near_points_the_first_comes_first() -> None:
    known = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, -3.0], [-3.0, 0.0]], device=DEVICE)
    distances, rows = nearest_points_fused(torch.zeros(1, 2, device=DEVICE), known, 4)
    assert rows.tolist() == [[0, 2, 3, 1]]
    assert distances.tolist() == [[3, 3, 3, 4]]
