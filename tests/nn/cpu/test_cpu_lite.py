"""The lite network in bands against the reference."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from support.network_cases import make_lively
from ucn.config import ModelConfig
from ucn.nn.cpu import lite as banded_lite
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.cpu.lite import BandedLite, can_band_lite
from ucn.nn.folding import fold
from ucn.nn.tiling import encode_in_tiles

LITE = ModelConfig(dim=24, head_norm="none", transformer="none", use_standard_light=True, trunk="lite")
CONFIGS = [
    LITE,
    ModelConfig(dim=None, head_norm="none", transformer="none", trunk="lite"),
    ModelConfig(dim=8, head_norm="batch", transformer="none", trunk="lite"),
    ModelConfig(dim=8, head_norm="channel", transformer="none", trunk="lite"),
]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def low_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images are cut, too, into bands of 4 rows."""
    monkeypatch.setattr(banded_lite, "_MIN_CELLS", 0)
    monkeypatch.setattr(banded_lite, "_BAND_CELLS", 1)
    monkeypatch.setattr(banded_lite, "_MIN_BAND_ROWS", 4)


def _images(height: int, width: int, count: int = 1) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height))


@pytest.mark.usefixtures("low_bands")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.dim}-{c.head_norm}")
@torch.no_grad()
def test_bands_equal_the_whole(config: ModelConfig) -> None:
    model = make_lively(config)
    encoder = CpuEncoder(model)
    assert isinstance(encoder._banded, BandedLite)
    for size in ((32, 32), (33, 47), (66, 65), (101, 64)):
        expected = model(_images(*size))
        torch.testing.assert_close(encoder(_images(*size)), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.dim}-{c.head_norm}")
@torch.no_grad()
def test_images_that_are_not_cut(config: ModelConfig) -> None:
    model = make_lively(config)
    encoder = CpuEncoder(model)
    for height in range(32, 37):  # each remainder, with other rows of zero padding
        images = _images(height, 100 - height, count=2)
        torch.testing.assert_close(encoder(images), model(images), rtol=0, atol=2e-5)


@pytest.mark.usefixtures("low_bands", "two_threads")
@torch.no_grad()
def test_threads_change_nothing() -> None:
    encoder, images = CpuEncoder(make_lively(LITE)), _images(66, 65)
    found = encoder(images)
    torch.set_num_threads(1)
    torch.testing.assert_close(encoder(images), found, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("low_bands")
@torch.no_grad()
def test_batches_and_tiles() -> None:
    model = make_lively(LITE)
    encoder = CpuEncoder(model)
    images = _images(70, 90, count=2)
    torch.testing.assert_close(encoder(images), model(images), rtol=0, atol=2e-5)
    assert encoder(images[:0]).shape == model(images[:0]).shape
    image = _images(64, 420)
    tiled = encode_in_tiles(encoder, image, 64).features
    torch.testing.assert_close(tiled, model(image), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("low_bands")
@torch.no_grad()
def test_the_callers_types_do_not_matter() -> None:
    encoder, images = CpuEncoder(make_lively(LITE)), _images(70, 90)
    expected = encoder(images)
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_large_image_is_cut_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    banded = BandedLite(fold(make_lively(LITE), torch.float32))
    cut: list[int] = []
    describe = banded.describe_in_bands

    def watch(images: Tensor) -> Tensor:
        cut.append(images.shape[-1])
        return describe(images)

    monkeypatch.setattr(banded, "describe_in_bands", watch)
    for width in (700, 960):
        found = banded.describe(_images(896, width))
        torch.testing.assert_close(found.norm(dim=1), torch.ones_like(found[:, 0]), rtol=0, atol=1e-5)
    assert cut == [960]


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(dim=8, transformer="none"),
        ModelConfig(dim=8, trunk="lite", transformer="after_trunk"),
        ModelConfig(dim=8, trunk="lite", transformer="none", context_layers=1),
    ],
)
def test_other_networks_are_not_taken(config: ModelConfig) -> None:
    assert not can_band_lite(fold(make_lively(config), torch.float32))
