"""SIFT at every pixel is the SIFT of the grid, at more positions."""

import pytest
import torch

from support.photo_cases import make_photo
from ucn.features.classical import DenseSift, PixelSift


@pytest.mark.parametrize("size_hw", [(32, 32), (41, 50)])
def test_agrees_with_the_grid(size_hw: tuple[int, int]) -> None:
    photo = make_photo(*size_hw, seed=0, grain=5)
    fine, grid = PixelSift().extract(photo).map, DenseSift(bin_pixels=3.0).extract(photo).map
    assert (fine.stride, fine.offset, fine.grid_hw, fine.image_hw) == (1, 0, size_hw, size_hw)
    assert torch.equal(fine.features[..., 2::4, 2::4], grid.features)


def test_stride() -> None:
    photo = make_photo(33, 36, seed=1, grain=5)
    coarse = PixelSift(stride=2).extract(photo)
    assert (coarse.map.stride, coarse.map.offset, coarse.map.grid_hw) == (2, 0, (17, 18))
    assert torch.equal(coarse.map.features, PixelSift().extract(photo).map.features[..., ::2, ::2])


def test_parts_of_many_keypoints(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = make_photo(32, 33, seed=1, grain=5)
    whole = PixelSift().extract(photo).map.features
    monkeypatch.setattr("ucn.features.classical._BATCH_KEYPOINTS", 100)
    assert torch.equal(PixelSift().extract(photo).map.features, whole)
