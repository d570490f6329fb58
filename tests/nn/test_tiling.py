import pytest
import torch

from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.tiling import encode_in_tiles, reduce_image


@pytest.mark.parametrize(
    ("transformer", "stretch"),
    [("none", 0.0), ("after_trunk", 0.05), ("after_trunk", 12.0), ("in_branch", 0.05), ("in_branch", 12.0)],
)
@pytest.mark.parametrize("size_hw", [(64, 64), (137, 333), (259, 90)])
def test_tiles_equal_the_whole_image(transformer: str, stretch: float, size_hw: tuple[int, int]) -> None:
    model = build_model(ModelConfig.from_dict({"dim": 16, "transformer": transformer})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "localiser.2" in name:  # windows that turn and stretch, as after training
                parameter.normal_(std=stretch, generator=torch.Generator().manual_seed(1))
        image = torch.rand(1, 3, *size_hw, generator=torch.Generator().manual_seed(0))
        whole = model.encode(image)
        phrases: list[str] = []
        tiled = encode_in_tiles(model, image, 64, phrases.append)
    assert tiled.image_hw == whole.image_hw
    assert (tiled.stride, tiled.offset) == (whole.stride, whole.offset)
    torch.testing.assert_close(tiled.features, whole.features, atol=1e-4, rtol=0)
    if size_hw == (64, 64):
        assert phrases == []
    else:
        count = len(phrases)
        assert phrases == [f"tile {i + 1}/{count}" for i in range(count)] and count > 1


@pytest.mark.parametrize("strides", [(2, 2, 1, 1), (2, 2, 2, 1)])
@pytest.mark.parametrize(("size_hw", "dilation"), [((137, 333), 1), ((259, 90), 1), ((40, 480), 2)])
def test_tiles_equal_the_whole_image_with_context(
    strides: tuple[int, int, int, int], size_hw: tuple[int, int], dilation: int
) -> None:
    config = ModelConfig(
        strides=strides, dim=16, transformer="none", context_layers=3, context_dilation=dilation
    )
    model = build_model(config).eval()
    assert model.context is not None
    with torch.no_grad():
        model.context.exit.weight.normal_(generator=torch.Generator().manual_seed(1))
        image = torch.rand(1, 3, *size_hw, generator=torch.Generator().manual_seed(0))
        tiled = encode_in_tiles(model, image, 64)
        torch.testing.assert_close(tiled.features, model.encode(image).features, atol=1e-4, rtol=0)


def test_no_tile_is_a_sliver() -> None:
    model = build_model(ModelConfig(dim=8, transformer="none")).eval()
    with torch.no_grad():
        tiled = encode_in_tiles(model, torch.rand(1, 3, 40, 129), 64)
        assert tiled.features.shape == model.encode(torch.rand(1, 3, 40, 129)).features.shape


@pytest.mark.parametrize(
    ("hw", "side", "expected"),
    [
        ((80, 100), 50, (40, 50)),
        ((60, 100), None, (60, 100)),
        ((60, 100), 200, (60, 100)),
        ((33, 400), 64, (32, 388)),
    ],
)
def test_reduced_size(hw: tuple[int, int], side: int | None, expected: tuple[int, int]) -> None:
    assert tuple(reduce_image(torch.rand(3, *hw), side).shape[-2:]) == expected
