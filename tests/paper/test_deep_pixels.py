"""DeepMatching's pixel descriptors: by hand on an edge, and centred on their cells."""

import math

import pytest
import torch

from support.photo_cases import make_photo
from ucn.paper.deep_pixels import DeepPixels


def test_blank_pixels_are_all_constant() -> None:
    found = DeepPixels().extract(torch.full((3, 32, 40), 0.5)).map
    assert (found.stride, found.offset, found.grid_hw) == (2, 0.5, (16, 20))
    wanted = torch.zeros(9)
    wanted[8] = 1
    assert torch.allclose(found.features[0, :, 5, 7], wanted, atol=1e-6)


def test_a_slope_points_where_it_rises() -> None:
    ramp = (torch.arange(64.0) * 2 / 255).expand(3, 48, 64)
    found = DeepPixels(reduction=1).extract(ramp.contiguous()).map.features[0, :, 24, 32]
    # The gradient is 2 grey levels a pixel to the right; directions 45 degrees off see cos 45 of it.
    straight, slanted = (2 / (1 + math.exp(-0.2 * size)) - 1 for size in (2.0, 2 * math.sqrt(0.5)))
    wanted = torch.tensor([straight, slanted, 0, 0, 0, 0, 0, slanted, 0.3])
    assert torch.allclose(found, wanted / wanted.norm(), atol=2e-3)


@pytest.mark.parametrize("reduction", [1, 2])
def test_half_a_turn_turns_the_descriptors(reduction: int) -> None:
    photo = make_photo(48, 64, seed=0, grain=6)
    turned = DeepPixels(reduction).extract(photo.flip(-1, -2).contiguous()).map.features[0]
    plain = DeepPixels(reduction).extract(photo).map.features[0].flip(-1, -2)
    assert torch.allclose(turned[:8], plain[:8].roll(4, dims=0), atol=1e-4)
    assert torch.allclose(turned[8], plain[8], atol=1e-4)


@pytest.mark.parametrize("size_hw", [(32, 33), (35, 47)])
def test_odd_sizes(size_hw: tuple[int, int]) -> None:
    features = DeepPixels().extract(make_photo(*size_hw, seed=1, grain=5))
    assert features.map.grid_hw == ((size_hw[0] + 1) // 2, (size_hw[1] + 1) // 2)
    assert features.image_hw == features.map.image_hw == size_hw
    assert torch.allclose(features.map.features.norm(dim=1), torch.ones(1, *features.map.grid_hw), atol=1e-5)
    assert (features.map.features >= 0).all()
