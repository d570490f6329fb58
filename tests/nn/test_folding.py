"""The folded network against the original, for every kind of layer."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support.network_cases import make_lively
from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.folding import SpaceToDepthConvolution, fold

CONFIGS = [
    ModelConfig(),
    ModelConfig(dim=None, head_norm="batch", transformer="none"),
    ModelConfig(dim=32, head_norm="none", transformer="in_branch"),
    ModelConfig(
        dim=16, head_norm="batch", context_layers=2, context_dilation=2, levels=2, use_standard_light=True
    ),
    ModelConfig(dim=16, head_norm="channel", context_layers=1, levels=2),
    ModelConfig(dim=16, head_norm="batch", transformer="none", semantic_dim=12),
]


def _images(height: int = 41, width: int = 52) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.head_norm}-{c.transformer}-{c.levels}-{c.semantic_dim}"
)
@pytest.mark.parametrize("for_tensor_cores", [False, True])
@torch.no_grad()
def test_folded_network_gives_the_same_descriptors(config: ModelConfig, for_tensor_cores: bool) -> None:
    model = make_lively(config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folded = fold(model, torch.float32, for_tensor_cores=for_tensor_cores)
    torch.testing.assert_close(folded(_images()), model(_images()), rtol=0, atol=2e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) or config.dim is None


@pytest.mark.parametrize("size", [(1, 1), (2, 7), (9, 6), (8, 8)])
def test_first_convolution_over_blocks_of_pixels(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    first = nn.Conv2d(3, 5, 7, stride=2, padding=3).double()
    for parameter in first.parameters():
        nn.init.normal_(parameter, generator=generator)
    images = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)
    for batch in (images, images[:0]):
        torch.testing.assert_close(SpaceToDepthConvolution(first)(batch), first(batch))


@torch.no_grad()
def test_bfloat16_descriptors_are_unit_vectors_near_those_of_float32() -> None:
    model = make_lively(replace(CONFIGS[3], semantic_dim=12))
    found, expected = fold(model, torch.bfloat16)(_images()), model(_images())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones_like(found[:, 0]), rtol=0, atol=1e-5)
    assert (found * expected).sum(dim=1).mean() > 0.99


def test_encoder_on_a_cpu_equals_the_network() -> None:
    model = make_lively(CONFIGS[4])
    encoder = CpuEncoder(model)
    found, expected = encoder.encode(_images()), model.encode(_images())
    torch.testing.assert_close(found.features, expected.features, rtol=0, atol=2e-5)
    assert (found.stride, found.offset, found.image_hw) == (
        expected.stride,
        expected.offset,
        expected.image_hw,
    )
    assert not found.features.requires_grad


def test_encoder_refuses_what_the_network_refuses() -> None:
    encoder = CpuEncoder(build_model(ModelConfig(dim=8)))
    with pytest.raises(ValueError, match=r"images must be \(B, 3, H, W\), got \(3, 40, 40\)"):
        encoder.encode(torch.zeros(3, 40, 40))
    with pytest.raises(ValueError, match="images must be at least 32 px a side"):
        encoder.encode(torch.zeros(1, 3, 31, 40))
