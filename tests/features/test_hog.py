"""HOG against its definition, written with loops."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from support.photo_cases import make_photo
from ucn.features.extractor import to_grey
from ucn.features.hog import DenseHog


def describe_slowly(grey: NDArray[np.uint8], x: int, y: int) -> NDArray[np.float64]:
    """The block around one pixel: 4 × 4 histograms 8 px apart, of 8 directions."""
    values = grey.astype(np.float64) / 255
    height, width = values.shape
    block = np.zeros((4, 4, 8))
    for row in range(height):
        for column in range(width):
            right, left = values[row, min(column + 1, width - 1)], values[row, max(column - 1, 0)]
            below, above = values[min(row + 1, height - 1), column], values[max(row - 1, 0), column]
            place = math.atan2(below - above, right - left) % math.tau / math.tau * 8
            lower = int(place) % 8
            for i in range(4):
                for j in range(4):
                    far_y, far_x = abs(row - (y - 12 + 8 * i)), abs(column - (x - 12 + 8 * j))
                    if far_y < 8 and far_x < 8:
                        weight = (1 - far_y / 8) * (1 - far_x / 8) * math.hypot(right - left, below - above)
                        block[i, j, lower] += weight * (1 - place % 1)
                        block[i, j, (lower + 1) % 8] += weight * (place % 1)
    flat = block.ravel()
    clipped: NDArray[np.float64] = np.minimum(flat / np.linalg.norm(flat), 0.2)
    return np.asarray(clipped / np.linalg.norm(clipped))


def test_blocks_equal_the_definition() -> None:
    image = make_photo(36, 41, seed=5, grain=6)
    found = DenseHog().extract(image).map.features[0]
    for row, column in ((0, 0), (4, 5), (8, 9)):
        wanted = describe_slowly(to_grey(image), 4 * column + 2, 4 * row + 2)
        assert np.allclose(found[:, row, column].numpy(), wanted, atol=1e-5)


def test_grey_is_luma() -> None:
    image = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).t().reshape(3, 1, 3)
    assert to_grey(image).tolist() == [[76, 150, 29]]
