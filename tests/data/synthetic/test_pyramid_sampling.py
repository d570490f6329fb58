"""Image pyramids: sampling equals a slow reference, without aliasing."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.photo_cases import write_photos
from ucn.config import SyntheticConfig
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.data.synthetic.pyramid import LEVELS, locate_in_pyramid, pack_pyramid
from ucn.geometry.sampling import sample_image


def reduce_slowly(image: np.ndarray, level: int) -> np.ndarray:
    """Means over blocks of 2 ** level pixels a side, (C, H, W) to (C, h, w)."""
    block = 2**level
    height, width = image.shape[1] // block, image.shape[2] // block
    rows = [
        [
            image[:, y * block : (y + 1) * block, x * block : (x + 1) * block].mean(axis=(1, 2))
            for x in range(width)
        ]
        for y in range(height)
    ]
    return np.array(rows).transpose(2, 0, 1)


def read_slowly(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """Bilinear between pixel centres; the border goes on."""
    x, y = min(max(x, 0), image.shape[2] - 1), min(max(y, 0), image.shape[1] - 1)
    left, top = math.floor(x), math.floor(y)
    right, below = min(left + 1, image.shape[2] - 1), min(top + 1, image.shape[1] - 1)
    across, along = x - left, y - top
    upper = image[:, top, left] * (1 - across) + image[:, top, right] * across
    lower = image[:, below, left] * (1 - across) + image[:, below, right] * across
    return upper * (1 - along) + lower * along


@pytest.mark.parametrize("side", [16, 21])
def test_reading_equals_a_slow_reference(side: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((2, 3, side, side))
    sizes = np.array([[side, side - 2], [side - 5, side]])
    steps = np.array([[0.3, 1.0, 1.3, 1.6, 2.7, 3.0, 9.0], [4.0, 1.0, 2.0, np.nan, 0.0, 2.9, np.inf]])
    levels = [[0, 0, 0, 1, 1, 2, 2], [2, 0, 1, 0, 0, 2, 2]]
    points = rng.random((2, 7, 5, 2)) * (sizes[:, None, None] - 1)
    sheets = pack_pyramid(torch.from_numpy(images))
    places = locate_in_pyramid(
        torch.from_numpy(points), torch.from_numpy(sizes), torch.from_numpy(steps), side
    )
    found = sample_image(sheets, places, "border")
    for image, row, column in np.ndindex(2, 7, 5):
        level = levels[image][row]
        width, height = sizes[image]
        reduced = reduce_slowly(images[image][:, :height, :width], level)
        x, y = (points[image, row, column] + 0.5) / 2**level - 0.5
        np.testing.assert_allclose(found[image, :, row, column], read_slowly(reduced, x, y), atol=1e-9)


def test_a_pixel_of_each_copy_by_hand() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    sheets = pack_pyramid(image)
    assert sheets.shape == (1, 1, 4, 6) and LEVELS == 3
    assert torch.equal(sheets[0, 0, :, :4], image[0, 0])
    assert sheets[0, 0, :2, 4:].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert sheets[0, 0, 2].tolist()[4:] == [7.5, 0.0]


def test_an_image_smaller_than_a_block_is_read_at_its_corner() -> None:
    sheets = pack_pyramid(torch.ones(1, 1, 8, 8))
    sizes, steps = torch.tensor([[1.0, 3.0]]), torch.tensor([[4.0]])
    places = locate_in_pyramid(torch.zeros(1, 1, 1, 2), sizes, steps, 8)
    assert places.flatten().tolist() == [8.0, 4.0]
    assert sample_image(sheets, places, "border").item() == 1.0


def test_a_fine_pattern_seen_from_afar_is_grey_and_does_not_flicker(tmp_path: Path) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(128, 128)]), 128, "cpu")
    checks = (torch.arange(128)[:, None] + torch.arange(128)) % 2
    bank.canvases[0] = checks.to(torch.uint8) * 255
    plain = SyntheticConfig(side=64, points=50, photometric=0.0, zoom=(2.0, 2.0))
    config = replace(plain, max_scale=1.0, perspective=0.0, upright_share=1.0, upright_degrees=0.0)
    pairs = make_pairs(bank, 4, config, torch.Generator().manual_seed(0))
    for image in (pairs.image0, pairs.image1):
        assert (image - 0.5).abs().max() < 0.01


def test_without_steps_pixels_are_read(tmp_path: Path) -> None:
    bank = ImageBank(write_photos(tmp_path / "photos", [(20, 30)], grain=3), 32, "cpu")
    photographs, points = torch.tensor([0]), torch.tensor([[[[3.0, 4.0], [29.0, 19.0]]]])
    expected = bank.canvases[0, :, [4, 19], [3, 29]] / 255
    torch.testing.assert_close(bank.sample(photographs, points)[0, :, 0], expected)
    torch.testing.assert_close(bank.sample(photographs, points, torch.ones(1, 1))[0, :, 0], expected)
