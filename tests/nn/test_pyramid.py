"""Smaller copies of the image: where their pixels lie, what they add, how far they see."""

import pytest
import torch
from torch import Tensor, nn

from ucn.config import ModelConfig
from ucn.errors import ConfigError
from ucn.nn import build_model
from ucn.nn.normalise import normalise_illumination
from ucn.nn.pyramid import CoarseLevel, downsample
from ucn.nn.tiling import encode_in_tiles


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def halve_slowly(image: Tensor) -> Tensor:
    """One channel (H, W), pixel by pixel, the edge repeated beyond itself."""
    height, width = image.shape
    taps = {-2: 1, -1: 4, 0: 6, 1: 4, 2: 1}
    made = torch.zeros((height + 1) // 2, (width + 1) // 2, dtype=image.dtype)
    for row in range(made.shape[0]):
        for column in range(made.shape[1]):
            for down, weight_down in taps.items():
                for right, weight_right in taps.items():
                    y = min(max(2 * row + down, 0), height - 1)
                    x = min(max(2 * column + right, 0), width - 1)
                    made[row, column] += image[y, x] * weight_down * weight_right / 256
    return made


@pytest.mark.parametrize("size_hw", [(1, 1), (2, 3), (7, 6), (9, 12)])
def test_halving_equals_a_slow_reference(size_hw: tuple[int, int]) -> None:
    images = torch.rand(2, 3, *size_hw, dtype=torch.float64, generator=seeded())
    found = downsample(images)
    for image, made in zip(images.flatten(0, 1), found.flatten(0, 1), strict=True):
        torch.testing.assert_close(made, halve_slowly(image))


def test_pixels_of_a_copy_lie_on_every_second_pixel() -> None:
    ramp = torch.arange(20.0).expand(1, 1, 6, 20)
    torch.testing.assert_close(downsample(ramp)[0, 0, 0, 1:9], torch.arange(2.0, 18.0, 2))


def make_plain_level(factor: int) -> CoarseLevel:
    """A level that only grows its one channel back."""
    level = CoarseLevel(1, 1, factor, lambda _: nn.Identity())
    level.initialise_to_zero()
    nn.init.ones_(level.projection.weight)
    return level


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_cells_of_a_copy_come_back_to_where_they_were(factor: int) -> None:
    # Trunk cell k of an image lies at pixel 2 + 4k; of a copy, at pixel factor · (2 + 4k) of the image.
    cells, coarse_cells = 32, 32 // factor
    pixels = 2.0 + 4 * torch.arange(cells)
    coarse_pixels = factor * (2.0 + 4 * torch.arange(coarse_cells))
    coarse = coarse_pixels.expand(1, 1, coarse_cells, coarse_cells)
    grown = make_plain_level(factor)(coarse, (cells, cells))[0, 0, 5]
    within = (pixels >= coarse_pixels[0]) & (pixels <= coarse_pixels[-1])
    assert within.sum() > cells // 2
    torch.testing.assert_close(grown[within], pixels[within])


def test_the_network_agrees_with_where_cells_lie() -> None:
    model = build_model(ModelConfig())
    assert (model.stride, model.offset) == (4, 2.0)  # which the test above takes for granted


def test_every_size_gets_a_whole_map() -> None:
    """Cells of the coarsest level are 32 pixels apart, so that grids repeat every 32 sizes."""
    shadow = build_model(ModelConfig(dim=4, levels=4, transformer="none")).eval().to("meta")
    for side in range(32, 65):
        image = torch.empty(1, 3, side, side + 33, device="meta")
        assert shadow.encode(image).features.shape[-2:] == shadow.trunk(image).shape[-2:], side


def test_a_coarse_grid_one_cell_short_goes_on_as_it_ends() -> None:
    coarse = torch.tensor([1.0, 3.0]).expand(1, 1, 2, 2)
    grown = make_plain_level(2)(coarse, (2, 5))[0, 0, 0]
    torch.testing.assert_close(grown, torch.tensor([1.0, 1.5, 2.5, 3.0, 3.0]))


def test_a_new_network_is_what_it_would_be_without() -> None:
    plain, with_levels = (build_model(ModelConfig(dim=8, levels=n)).eval() for n in (1, 3))
    for name, value in plain.state_dict().items():
        with_levels.state_dict()[name].copy_(value)
    image = torch.rand(1, 3, 40, 56, generator=seeded())
    with torch.no_grad():
        assert torch.equal(plain(image), with_levels(image))


def test_gradients() -> None:
    level = CoarseLevel(2, 3, 2, lambda _: nn.Identity()).double()
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=seeded(9))
    assert torch.autograd.gradcheck(lambda features: level(features, (7, 7)), x.requires_grad_())


def test_all_levels_learn_and_the_trunk_from_all() -> None:
    model = build_model(ModelConfig(dim=8, levels=3)).train()
    wish = torch.randn(1, 8, 12, 12, generator=seeded(1))
    (model(torch.rand(1, 3, 48, 48, generator=seeded())) * wish).sum().backward()
    for level in model.coarse_levels:
        assert isinstance(level, CoarseLevel)
        assert level.projection.weight.grad is not None and level.projection.weight.grad.abs().max() > 0


@pytest.mark.parametrize(("levels", "size_hw"), [(2, (137, 333)), (3, (60, 700))])
def test_tiles_equal_the_whole_image(levels: int, size_hw: tuple[int, int]) -> None:
    config = ModelConfig(dim=16, transformer="none", levels=levels, use_standard_light=True)
    model = build_model(config).eval()
    with torch.no_grad():
        for level in model.coarse_levels:
            assert isinstance(level, CoarseLevel)
            level.projection.weight.normal_(std=0.1, generator=seeded(1))
        image = torch.rand(1, 3, *size_hw, generator=seeded())
        image[..., : size_hw[1] // 3] *= 0.3  # tiles on their own would be brought to another light
        tiled = encode_in_tiles(model, image, 64)
        torch.testing.assert_close(tiled.features, model.encode(image).features, atol=1e-4, rtol=0)


def test_levels_that_tiles_cannot_start_on() -> None:
    with pytest.raises(ConfigError, match="levels must be such that"):
        ModelConfig(strides=(2, 2, 2, 2), levels=3)


def test_standard_light_by_hand() -> None:
    image = torch.tensor([0.2, 0.4]).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    # Mean 0.3, spread 0.1, so a gain of 0.24 / 0.12.
    expected = torch.tensor([0.44 - 0.2, 0.44 + 0.2]).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    torch.testing.assert_close(normalise_illumination(image), expected)


def test_standard_light_undoes_gain_and_shift_of_a_whole_image() -> None:
    images = torch.rand(3, 3, 20, 30, generator=seeded())
    dimmed = images * torch.tensor([0.5, 0.7, 1.0]).view(3, 1, 1, 1) + 0.1
    found = normalise_illumination(dimmed)
    assert (found - normalise_illumination(images)).abs().max() < 0.06  # but for what is added to the spread
    # Each image on its own; colours keep their balance.
    torch.testing.assert_close(found[1:2], normalise_illumination(dimmed[1:2]))
    torch.testing.assert_close(
        (found[0, 0] - found[0, 2]) / (dimmed[0, 0] - dimmed[0, 2]),
        ((found[0, 0] - found[0, 2]) / (dimmed[0, 0] - dimmed[0, 2])).mean().expand(20, 30),
        atol=1e-3,
        rtol=1e-3,
    )


def test_standard_light_of_nothing_and_of_one_colour() -> None:
    assert normalise_illumination(torch.zeros(0, 3, 4, 4)).shape == (0, 3, 4, 4)
    torch.testing.assert_close(
        normalise_illumination(torch.full((1, 3, 5, 5), 0.9)), torch.full((1, 3, 5, 5), 0.44)
    )
