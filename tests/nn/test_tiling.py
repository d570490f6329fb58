import pytest
import torch

from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.tiling import _plan_tiles, count_encoded_pixels, encode_in_tiles, reduce_image


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


@pytest.mark.parametrize("reach", [20, 83, 269])
@pytest.mark.parametrize("tile_side", [64, 256, 1536])
@pytest.mark.parametrize(
    "size_hw", [(1537, 40), (348, 5113), (2048, 2048), (4096, 4096), (257, 3001), (9000, 1000), (5, 1600)]
)
def test_tiles_cover_an_image_in_bounded_memory(size_hw: tuple[int, int], tile_side: int, reach: int) -> None:
    plan = _plan_tiles(size_hw, tile_side, reach)
    margin = -(-reach // 32) * 32
    longest = []
    for spans, size in zip(plan, size_hw, strict=True):
        stops = [span.stop for span in spans]
        assert [span.start for span in spans] == [0, *stops[:-1]]
        assert stops[-1] == size
        assert all(stop % 32 == 0 for stop in stops[:-1])
        for span in spans:
            assert span.stop > span.start
            assert span.wide_start == max(0, span.start - margin)
            assert span.wide_stop == min(size, span.stop + margin)
        longest.append(max(span.wide_stop - span.wide_start for span in spans))
    assert longest[0] * longest[1] <= (tile_side + 2 * margin) ** 2
    encoded = [sum(span.wide_stop - span.wide_start for span in spans) for spans in plan]
    assert count_encoded_pixels(size_hw, tile_side, reach) == encoded[0] * encoded[1]


def test_few_pixels_are_encoded_twice() -> None:
    assert count_encoded_pixels((1536, 1536), 1536, 269) == 1536**2
    # Two halves of 1024 rows, each with a border of 288; squares would have two borders each.
    assert count_encoded_pixels((2048, 2048), 1536, 269) == 2 * (1024 + 288) * 2048
    # What square tiles of 1536 pixels encode, with the borders that they have.
    for side, squares in ((3072, 2), (4096, 3), (8192, 6)):
        by_squares = (side + 2 * 288 * (squares - 1)) ** 2
        assert side**2 < count_encoded_pixels((side, side), 1536, 269) <= by_squares
    # Four quarters with a border of 512 are as large as tiles may be, to the pixel.
    assert count_encoded_pixels((4096, 4096), 1536, 489) == 4 * (2048 + 512) ** 2


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
