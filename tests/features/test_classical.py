"""Classical descriptors are centred on their cells, to a fraction of a pixel."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from support.photo_cases import make_photo
from ucn.errors import ImageReadError
from ucn.evaluate.points.predictions import find_points
from ucn.features.classical import DenseDaisy, DenseKaze, DenseSift
from ucn.features.extractor import Extractor, count_cells, list_centres
from ucn.features.hog import DenseHog

DENSE: dict[str, Extractor] = {
    "sift": DenseSift(),
    "daisy": DenseDaisy(),
    "kaze": DenseKaze(),
    "hog": DenseHog(),
}


def extract(name: str, image: Tensor) -> Tensor:
    """(D, h, w)."""
    return DENSE[name].extract(image).map.features[0]


def _turn_squares(features: Tensor, numbers: int) -> Tensor:
    """4 × 4 squares of `count` values each, in their order after a rotation by 180 degrees."""
    return features.reshape(4, 4, numbers, *features.shape[1:]).flip(0, 1).flatten(0, 2)


def turn_sift(features: Tensor) -> Tensor:
    """SIFT and HOG: 4 × 4 histograms of 8 directions, each direction now the opposite one."""
    return _turn_squares(features, 8).view(16, 8, *features.shape[1:]).roll(4, dims=1).flatten(0, 1)


def turn_kaze(features: Tensor) -> Tensor:
    """4 × 4 squares of Σdx, Σdy, Σ|dx|, Σ|dy|; the first two change their sign."""
    signs = torch.tensor([-1.0, -1.0, 1.0, 1.0]).repeat(16)[:, None, None]
    return _turn_squares(features, 4) * signs


def turn_daisy(features: Tensor) -> Tensor:
    """The centre and three rings of 8 histograms; 180 degrees are four steps around a ring."""
    histograms = features.reshape(25, 8, *features.shape[1:]).roll(4, dims=1)
    rings = [histograms[1 + 8 * ring : 9 + 8 * ring].roll(4, dims=0) for ring in range(3)]
    return torch.cat([histograms[:1], *rings]).flatten(0, 1)


TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "sift": turn_sift,
    "daisy": turn_daisy,
    "kaze": turn_kaze,
    "hog": turn_sift,
}


def turn_error(name: str, side: int) -> float:
    """How far the descriptors of an image turned by 180 degrees are from the turned descriptors.

    In an image of 4k + 1 pixels half a turn takes cell centres to cell centres. Where a descriptor's true
    centre lies half a pixel beside the declared one, they would agree in images of 4k or 4k + 2 instead.
    """
    image = make_photo(side, side, seed=3, grain=7)
    plain, turned = extract(name, image), extract(name, image.flip(-1, -2).contiguous())
    wanted = TURNS[name](plain).flip(-1, -2)
    inner = slice(10, -10)  # windows that reach beyond the image see its border
    return float((turned - wanted)[:, inner, inner].square().sum(dim=0).mean())


@pytest.mark.parametrize("name", DENSE)
def test_descriptors_are_centred_on_their_cells(name: str) -> None:
    centred, *beside = (turn_error(name, side) for side in (125, 124, 126))
    if name == "kaze":  # its pattern of samples is not quite symmetric, so no position is exact
        assert centred < 0.6 * min(beside)
    else:
        assert centred < 1e-5
        assert min(beside) > 100 * centred


@pytest.mark.parametrize("name", DENSE)
def test_shifted_image_shifts_the_matches(name: str) -> None:
    photo = make_photo(112, 136, seed=1, grain=9)
    image0, image1 = photo[:, :96, :120].contiguous(), photo[:, 6:102, 10:130].contiguous()
    features0, features1 = (DENSE[name].extract(image) for image in (image0, image1))
    asked = torch.tensor([[60.0, 48.0], [71.0, 50.0], [54.0, 57.0], [66.5, 52.25]])
    found = find_points(features0, features1, asked, (0, 0, 120, 96), use_refinement=True)
    assert torch.allclose(found, asked - torch.tensor([10.0, 6.0]), atol=0.75)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("size_hw", [(32, 32), (33, 47)])
def test_maps_are_unit_descriptors_on_the_grid(name: str, size_hw: tuple[int, int]) -> None:
    features = DENSE[name].extract(make_photo(*size_hw, seed=2, grain=6))
    found = features.map
    assert found.grid_hw == count_cells(size_hw) == (-(-(size_hw[0] - 2) // 4), -(-(size_hw[1] - 2) // 4))
    assert (found.stride, found.offset, found.image_hw, features.image_hw) == (4, 2, size_hw, size_hw)
    assert torch.allclose(found.features.norm(dim=1), torch.ones(1, *found.grid_hw), atol=1e-5)
    assert np.array_equal(features.keypoints.numpy(), list_centres(size_hw))
    assert list_centres(size_hw)[1].tolist() == [6, 2]


@pytest.mark.parametrize("name", DENSE)
def test_blank_images_have_descriptors_of_unit_length(name: str) -> None:
    features = extract(name, torch.full((3, 48, 48), 0.5))
    assert torch.allclose(features.norm(dim=0), torch.ones(12, 12), atol=1e-5)


@pytest.mark.parametrize("name", DENSE)
def test_arrays_and_tensors_give_the_same(name: str) -> None:
    pixels = (make_photo(40, 44, seed=4) * 255).round().to(torch.uint8)
    of_array = DENSE[name].extract(pixels.permute(1, 2, 0).contiguous().numpy())
    assert torch.equal(of_array.map.features, DENSE[name].extract(pixels.float() / 255).map.features)


def test_small_images_are_refused() -> None:
    with pytest.raises(ImageReadError, match=r"at least 32 px a side, got 40 × 31"):
        DenseSift().extract(torch.zeros(3, 31, 40))
