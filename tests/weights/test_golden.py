"""The shipped weights still give the numbers they gave when they were shipped.

`UCN_ACCEPT_GOLDEN=1 pytest tests/weights/test_golden.py` writes new numbers, when a change is meant.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ucn.geometry.coords import pixel_grid
from ucn.weights import list_weights, load_weights

GOLDEN = Path(__file__).parents[1] / "golden"


def _pattern(height: int, width: int) -> Tensor:
    """A coloured pattern by formula, so that no image decoder has a say: (1, 3, H, W)."""
    x, y = pixel_grid((height, width)).double().unbind(-1)
    channels = [
        torch.sin(x / (5 + channel) + 0.3 * y / (3 + channel)) * torch.cos(y / 7 - 0.01 * x * channel)
        for channel in range(3)
    ]
    return (0.5 + 0.45 * torch.stack(channels)).float()[None]


@pytest.mark.parametrize("name", [info.name for info in list_weights()])
def test_descriptors_are_those_of_the_release(name: str) -> None:
    with torch.no_grad():
        features = load_weights(name).model.encode(_pattern(67, 90)).features
    found = features[0, :, ::4, ::5].numpy()
    path = GOLDEN / f"{name}.npz"
    if os.environ.get("UCN_ACCEPT_GOLDEN") == "1":
        np.savez_compressed(path, descriptors=found.astype(np.float32))
    with np.load(path) as golden:
        np.testing.assert_allclose(found, golden["descriptors"], atol=1e-3)
