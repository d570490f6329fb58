"""Costs of windows against loops, and the one unit of all distances."""

from itertools import product

import pytest
import torch

from support.photo_cases import make_photo
from ucn.features.classical import PixelSift
from ucn.paper.distances import UNRELATED, scale_to_sift, unrelated_distance, window_costs


@pytest.mark.parametrize("memory_bytes", [1, 2**20])
@pytest.mark.parametrize("radius", [1, 2])  # windows of under and over half of image 1
def test_windows_against_loops(radius: int, memory_bytes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features0 = torch.rand(3, 4, 5, generator=generator)
    features1 = torch.rand(3, 6, 4, generator=generator)
    starts = torch.randint(-2, 3, (2, 4, 5), generator=generator)
    is_allowed1 = torch.rand(24, generator=generator) > 0.3
    limit, side = 1.1, 2 * radius + 1
    found = window_costs(features0, features1, starts, radius, limit, is_allowed1, memory_bytes)
    assert found.shape == (4, 5, side, side)
    for row, column, down, right in product(range(4), range(5), range(side), range(side)):
        y = row + int(starts[1, row, column]) + down - radius
        x = column + int(starts[0, row, column]) + right - radius
        wanted = limit
        if 0 <= y < 6 and 0 <= x < 4 and is_allowed1[4 * y + x]:
            wanted = min(limit, float((features0[:, row, column] - features1[:, y, x]).abs().sum()))
        assert float(found[row, column, down, right]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("side", [3, 5])  # the window is all of image 1, and a third of it
def test_all_cells_are_allowed_by_default(side: int) -> None:
    features = torch.rand(2, side, side, generator=torch.Generator().manual_seed(1))
    starts = torch.zeros(2, side, side, dtype=torch.int64)
    allowed = torch.ones(side * side, dtype=torch.bool)
    found = window_costs(features, features, starts, 1, 9.0, None)
    assert torch.equal(found, window_costs(features, features, starts, 1, 9.0, allowed))
    assert (found[..., 1, 1] == 0).all()


def test_unrelated_cells_by_hand() -> None:
    features0 = torch.tensor([[[0.0, 1.0]], [[2.0, 3.0]]])  # cells (0, 2) and (1, 3)
    features1 = torch.tensor([[[5.0, 7.0]], [[5.0, 7.0]]])
    # Cell 0 with the last one: 7 + 5; cell 1 with the first: 4 + 2.
    assert unrelated_distance(features0, features1) == 9
    assert scale_to_sift(features0, features1) == pytest.approx(UNRELATED / 9)
    blank = torch.ones(2, 3, 3)
    assert scale_to_sift(blank, blank) == 1


def test_sift_is_the_unit() -> None:
    photo0, photo1 = make_photo(64, 80, seed=0, grain=5), make_photo(64, 80, seed=1, grain=7)
    maps = [PixelSift(stride=2).extract(photo).map.features[0] for photo in (photo0, photo1)]
    assert scale_to_sift(*maps) == pytest.approx(1.0, abs=0.1)
    doubled = [features.repeat(4, 1, 1) / 2 for features in maps]  # four times the dimensions, of unit length
    assert scale_to_sift(*doubled) == pytest.approx(scale_to_sift(*maps) / 2, rel=1e-4)
