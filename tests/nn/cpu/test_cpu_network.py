"""The network in bands of rows against the network itself: odd sizes, all parts, any number of threads."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.network_cases import make_lively
from ucn.config import ModelConfig
from ucn.nn import ConvolutionalSpatialTransformer
from ucn.nn.cpu.bands import allocate_map, cut_bands, for_each_band
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.cpu.network import can_band
from ucn.nn.cpu.transformer import BandedTransformer
from ucn.nn.folding import fold
from ucn.nn.tiling import encode_in_tiles
from ucn.weights import list_weights, load_weights

CONFIGS = [
    ModelConfig(dim=24, transformer="none"),
    ModelConfig(dim=24, transformer="none", head_norm="none"),
    ModelConfig(dim=24),
    ModelConfig(dim=24, transformer_kernel=5, head_norm="batch"),
    ModelConfig(dim=24, transformer="in_branch"),
    ModelConfig(dim=24, levels=3, context_layers=2, context_dilation=2, head_norm="batch"),
    ModelConfig(dim=24, levels=4, context_layers=1, use_standard_light=True),
    ModelConfig(dim=24, transformer="none", levels=2, semantic_dim=12, use_standard_light=True),
]


def _images(count: int, height: int, width: int) -> Tensor:
    """Smooth noise with an edge: more like a photograph than white noise is."""
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(count, 3, 6, 7, generator=generator)
    images = F.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    images[..., width // 3 :] *= 0.5
    return images


@pytest.mark.parametrize(
    "config",
    CONFIGS,
    ids=lambda c: f"{c.head_norm}-{c.transformer}{c.transformer_kernel}-{c.levels}-{c.semantic_dim}",
)
@torch.no_grad()
def test_descriptors_are_those_of_the_network(config: ModelConfig) -> None:
    model = make_lively(config)
    encoder = CpuEncoder(model)
    for height, width in ((32, 32), (33, 70), (61, 46)):
        images = _images(2, height, width)
        expected = model(images)
        found = encoder(images)
        assert found.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [info.name for info in list_weights()])
@torch.no_grad()
def test_shipped_weights(name: str) -> None:
    model = load_weights(name).model.eval()
    images = _images(1, 125, 171)
    found = CpuEncoder(model).encode(images)
    expected = model.encode(images)
    assert (found.stride, found.offset, found.image_hw) == (
        expected.stride,
        expected.offset,
        expected.image_hw,
    )
    torch.testing.assert_close(found.features, expected.features, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[7]], ids=["fine", "semantic"])
@torch.no_grad()
def test_a_blank_image_and_no_images(config: ModelConfig) -> None:
    model = make_lively(config)
    encoder = CpuEncoder(model)
    for images in (torch.zeros(1, 3, 40, 40), torch.ones(1, 3, 40, 40), torch.zeros(0, 3, 40, 40)):
        torch.testing.assert_close(encoder(images), model(images), rtol=0, atol=1e-5)


@torch.no_grad()
def test_an_image_of_a_batch_is_what_it_is_alone() -> None:
    encoder = CpuEncoder(make_lively(CONFIGS[7]))
    images = _images(3, 50, 66)
    assert torch.equal(encoder(images)[1:2], encoder(images[1:2]))


@torch.no_grad()
def test_threads_change_nothing() -> None:
    encoder, images = CpuEncoder(make_lively(CONFIGS[2])), _images(1, 300, 420)
    before, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(encoder(images))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_works_where_the_caller_records_nothing_or_everything() -> None:
    encoder, images = CpuEncoder(make_lively(CONFIGS[2])), _images(1, 40, 52)
    recorded = encoder(images)
    assert not recorded.requires_grad
    assert not recorded.is_inference()
    with torch.inference_mode():
        assert torch.equal(encoder(images), recorded)


@torch.no_grad()
def test_tiles_equal_the_whole_image() -> None:
    encoder = CpuEncoder(make_lively(ModelConfig(dim=16, transformer="none", use_standard_light=True)))
    images = _images(1, 200, 330)
    tiled = encode_in_tiles(encoder, images, 128)
    torch.testing.assert_close(tiled.features, encoder.encode(images).features, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("size_hw", [(1, 1), (3, 8), (14, 9)])
@torch.no_grad()
def test_transformer_reads_what_the_plain_one_reads(kernel: int, size_hw: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    plain = ConvolutionalSpatialTransformer(6, 5, kernel)
    for parameter in plain.parameters():  # windows that leave the map, and some that meet the limit
        nn.init.normal_(parameter, std=0.8, generator=generator)
    rows = torch.randn(*size_hw, 6, generator=generator)
    expected = plain(rows.permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    torch.testing.assert_close(BandedTransformer(plain)(rows), expected, rtol=1e-4, atol=5e-4)


@torch.no_grad()
def test_what_is_not_finite_stays_so_and_in_its_place() -> None:
    encoder = CpuEncoder(make_lively(CONFIGS[2]))
    images = _images(1, 64, 400)
    images[..., 30, 20] = torch.nan
    found = encoder(images)
    assert found[..., 7, 5].isnan().all()
    assert found[..., 60:].isfinite().all()


@torch.no_grad()
def test_windows_without_bounds_read_from_the_table_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    layer = ConvolutionalSpatialTransformer(6, 5, kernel=5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=generator)
    last = layer.localiser[2]
    assert isinstance(last, nn.Conv2d)
    assert last.bias is not None
    last.bias.copy_(torch.tensor([torch.inf, torch.inf, -torch.inf, torch.nan]))
    assert BandedTransformer(layer)(torch.randn(4, 5, 6, generator=generator)).isfinite().all()


@torch.no_grad()
def test_types_that_the_caller_prefers_do_not_matter(threads: int) -> None:
    encoder, images = CpuEncoder(make_lively(CONFIGS[5])), _images(1, 50, 66)
    expected = encoder(images)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(encoder(images), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoder(images), expected)
    assert threads == torch.get_num_threads()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size_hw", [(1, 1), (7, 300), (120, 160), (9, 5000)])
def test_bands_cover_every_row_once(size_hw: tuple[int, int]) -> None:
    counts = torch.zeros(size_hw[0])
    starts: list[int] = []

    def count(first: int, stop: int) -> None:
        counts[first:stop] += 1
        starts.append(first)

    for_each_band(count, *size_hw)
    assert (counts == 1).all()
    assert all(first % 4 == 0 for first in starts)


def test_as_many_threads_find_work_as_there_are_bands() -> None:
    bands = cut_bands(120, 160)  # of an image of 640 × 480
    assert len(bands) == 16
    assert bands[:2] == [(0, 8), (8, 16)]
    assert bands[-2:] == [(112, 116), (116, 120)]
    assert cut_bands(4, 160) == [(0, 4)]
    assert cut_bands(9, 5000) == [(0, 4), (4, 8), (8, 9)]  # the last one cannot be cut


@pytest.mark.usefixtures("threads")
def test_an_error_in_a_band_reaches_the_caller() -> None:
    def fail(first: int, stop: int) -> None:
        raise ValueError(f"rows {first} to {stop}")

    with pytest.raises(ValueError, match="rows 0 to 8"):
        for_each_band(fail, 120, 160)


def test_margins_are_zero() -> None:
    for _ in range(3):  # the second time, memory is used again
        rows = allocate_map(3, 2, 4, margin=2)
        assert rows.shape == (7, 2, 4)
        assert not rows[:2].any()
        assert not rows[5:].any()
        rows.fill_(1)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(dim=None),
        ModelConfig(dim=8, strides=(2, 2, 2, 1)),
        ModelConfig(dim=8, strides=(1, 2, 1, 1)),
    ],
)
@torch.no_grad()
def test_other_networks_are_run_as_they_are(config: ModelConfig) -> None:
    model = make_lively(config)
    assert not can_band(fold(model, torch.float32))
    images = _images(1, 40, 48)
    torch.testing.assert_close(CpuEncoder(model)(images), model(images), rtol=0, atol=2e-5)
