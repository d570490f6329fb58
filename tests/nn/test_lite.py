"""The lite trunk: GoogLeNet's cells, its receptive field, and every other part of the network with it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ucn.config import ModelConfig
from ucn.data.example import example_pair
from ucn.errors import ConfigError, WeightsError
from ucn.matching.matcher import Matcher
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.folding import fold
from ucn.nn.lite import LiteTrunk, ResidualUnit
from ucn.nn.summary import list_layers
from ucn.nn.tiling import encode_in_tiles
from ucn.nn.trunk_files import load_imagenet_trunk
from ucn.weights import load_weights, save_weights

CONFIG = ModelConfig(trunk="lite", dim=64, head_norm="none", transformer="none", use_standard_light=True)
OTHERS = {
    "bare": ModelConfig(trunk="lite", dim=None, head_norm="none", transformer="none"),
    "all parts": ModelConfig(trunk="lite", dim=16, head_norm="batch", context_layers=1),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def make_lively(config: ModelConfig = CONFIG) -> CorrespondenceNetwork:
    """A network whose norms and biases are no longer as they began, as after training."""
    model = build_model(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1 or not parameter.any():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(1))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean += 0.3 * torch.randn(module.running_mean.shape, generator=seeded(2))
            module.running_var += torch.rand(module.running_var.shape, generator=seeded(3))
    return model


def describe_slowly(model: CorrespondenceNetwork, image: Tensor) -> Tensor:
    """The trunk from its tensors by name: (1, 3, H, W) to (1, 64, h, w)."""
    tensors = model.trunk.state_dict()

    def normed(x: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        x = F.conv2d(x, tensors[f"{name}.convolution.weight"], stride=stride, padding=padding)
        mean, variance, weight, bias = (
            tensors[f"{name}.norm.{part}"].view(1, -1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        made: Tensor = (x - mean) / (variance + 1e-5).sqrt() * weight + bias
        return made

    def extended(x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        larger = torch.zeros(1, x.shape[1], h + 1, w + 1, dtype=x.dtype)
        larger[..., :h, :w] = x
        return larger

    def units(x: Tensor, name: str, count: int) -> Tensor:
        for number in range(count):
            x = (x + normed(x, f"{name}.{number}.body", padding=1)).clamp(min=0)
        return x

    x = normed((image - 0.44) / 0.24, "stem1", stride=2, padding=1).clamp(min=0)
    x = units(normed(extended(x), "stem2", stride=2).clamp(min=0), "down.0", 1)
    kept = [x]
    for size, count in ((1, 2), (2, 5), (3, 8)):
        x = normed(extended(x), f"halvings.{size - 1}.body", stride=2).clamp(min=0)
        x = units(x, f"down.{size}", count)
        kept.append(x)
    for size, count in ((2, 3), (1, 1), (0, 1)):
        grown = grow_slowly(normed(x, f"laterals.{size}"))
        h, w = kept[size].shape[-2:]
        x = units((kept[size] + grown[..., :h, :w]).clamp(min=0), f"up.{size}", count)
    return x


def grow_slowly(x: Tensor) -> Tensor:
    """Twice the size along both axes: cell i lies at (i - 1/2) / 2 of the coarse ones, held at the edges."""
    for axis in (-2, -1):
        count = x.shape[axis]
        places = (torch.arange(2 * count, dtype=x.dtype) - 0.5) / 2
        below = places.floor().long()
        share = (places - below).view((-1, 1) if axis == -2 else (-1,))
        lower = x.index_select(axis, below.clamp(0, count - 1))
        upper = x.index_select(axis, (below + 1).clamp(0, count - 1))
        x = lower * (1 - share) + upper * share
    return x


@pytest.mark.parametrize("size_hw", [(32, 32), (45, 71), (66, 127)])
@torch.no_grad()
def test_equals_a_slow_reference(size_hw: tuple[int, int]) -> None:
    model = make_lively().double()
    image = torch.rand(1, 3, *size_hw, dtype=torch.float64, generator=seeded())
    torch.testing.assert_close(model.trunk(image), describe_slowly(model, image))


@pytest.mark.slow
def test_cells_are_those_of_googlenet() -> None:
    small = build_model(CONFIG).eval().to("meta")
    large = build_model(ModelConfig(dim=4, transformer="none")).eval().to("meta")
    assert (small.stride, small.offset) == (large.stride, large.offset) == (4, 2.0)
    for side in range(32, 66):
        image = torch.empty(2, 3, side, 161 - side, device="meta")
        found, expected = small.encode(image), large.encode(image)
        assert found.grid_hw == expected.grid_hw and found.features.shape[1] == 64, side


@torch.no_grad()
def make_all_seeing() -> CorrespondenceNetwork:
    """A trunk that only adds up, so that every pixel of the receptive field counts."""
    model = build_model(OTHERS["bare"]).eval().double()
    for name, parameter in model.named_parameters():
        if "convolution" in name:
            parameter.fill_(0.01)
    return model


def test_a_cell_sees_what_is_said_round_its_centre() -> None:
    model = make_all_seeing()
    image = torch.full((1, 3, 1024, 32), 0.9, dtype=torch.float64).requires_grad_()
    features = model.trunk(image)
    sides = []
    for cell in range(124, 132):  # one for each offset within a cell of 32 px
        (gradient,) = torch.autograd.grad(features[0, :, cell, 4].sum(), image, retain_graph=True)
        rows = gradient[0].abs().sum(dim=(0, 2)).nonzero()[:, 0]
        centre, first, last = 4 * cell + 2, int(rows.min()), int(rows.max())
        assert max(centre - first, last - centre) <= model.reach
        assert min(centre - first, last - centre) >= 0.75 * model.reach
        sides.append(last - first + 1)
    # Interpolation reaches a quarter or three quarters of a coarse cell further, by where the cell lies.
    assert min(sides) <= list_layers(model, (64, 64))[-1].receptive_field <= max(sides)


def test_stem_by_itself_is_centred_on_its_cells() -> None:
    model = make_all_seeing()
    trunk = model.trunk
    assert isinstance(trunk, LiteTrunk)
    image = torch.full((1, 3, 64, 64), 0.9, dtype=torch.float64).requires_grad_()
    cells = trunk.stem2(F.pad(trunk.stem1(image), (0, 1, 0, 1)))
    (gradient,) = torch.autograd.grad(cells[0, :, 5, 7].sum(), image)
    seen = gradient[0].abs().sum(dim=0).nonzero()
    assert seen.min(dim=0).values.tolist() == [22 - 3, 30 - 3]
    assert seen.max(dim=0).values.tolist() == [22 + 3, 30 + 3]


@pytest.mark.parametrize("size_hw", [(64, 1101), (1139, 40)])
@torch.no_grad()
def test_tiles_equal_the_whole_image(size_hw: tuple[int, int]) -> None:
    model = make_lively()
    image = torch.rand(1, 3, *size_hw, generator=seeded())
    tiled = encode_in_tiles(model, image, 64)
    torch.testing.assert_close(tiled.features, model.encode(image).features, atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", [CONFIG, *OTHERS.values()], ids=["shipped", *OTHERS])
@torch.no_grad()
def test_folded_network_gives_the_same_descriptors(config: ModelConfig) -> None:
    model, images = make_lively(config), torch.rand(2, 3, 45, 66, generator=seeded())
    expected = model(images)
    folded = fold(model, torch.float32)
    torch.testing.assert_close(folded(images), expected, atol=2e-5, rtol=0)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.trunk.modules())
    assert not any(module.has_sum for module in folded.modules() if isinstance(module, ResidualUnit))
    torch.testing.assert_close(model(images), expected, atol=0, rtol=0)
    torch.testing.assert_close(CpuEncoder(model)(images), expected, atol=2e-5, rtol=0)
    rounded = fold(model, torch.bfloat16)(images)
    assert (rounded * expected).sum(dim=1).mean() > 0.99


@pytest.mark.parametrize("config", [CONFIG, *OTHERS.values()], ids=["shipped", *OTHERS])
def test_layers_are_those_of_the_network(config: ModelConfig) -> None:
    model = build_model(config)
    layers = list_layers(model, (70, 99))
    assert sum(layer.parameters for layer in layers) == sum(p.numel() for p in model.parameters())
    assert layers[-1].shape == (config.dim or 64, 17, 25) and layers[-1].stride == 4
    assert len({layer.title for layer in layers}) == len(layers)
    strides = {layer.block: layer.stride for layer in layers if layer.block.startswith("cells")}
    assert strides == {"cells_4": 4, "cells_8": 8, "cells_16": 16, "cells_32": 32}
    assert layers[-1].receptive_field <= 2 * model.reach + 1


def test_cost_of_an_image() -> None:
    model = build_model(CONFIG).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, 480, 640, device="meta"))
    assert 12.5e9 < counter.get_total_flops() < 13e9
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_112_736


def test_all_weights_learn_and_the_seed_decides() -> None:
    model = build_model(CONFIG, seeded(5)).train()
    images = torch.rand(2, 3, 64, 64, generator=seeded())
    (model(images) * torch.rand(2, 64, 16, 16, generator=seeded(1))).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    again, other = build_model(CONFIG, seeded(5)), build_model(CONFIG, seeded(6))
    assert torch.equal(again.projection.weight, model.projection.weight)  # type: ignore[arg-type]
    assert not torch.equal(other.projection.weight, model.projection.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": [2, 2, 2, 1]}, "strides must be 2, 2, 1, 1 where trunk is lite"),
        ({"levels": 2}, "levels must be 1 where trunk is lite"),
        ({"transformer": "in_branch"}, "transformer must be none or after_trunk where trunk is lite"),
        ({"trunk": "light"}, "trunk"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict({"trunk": "lite"} | changes)


def test_weights_of_googlenet_are_refused(tmp_path: Path) -> None:
    model = build_model(CONFIG)
    with pytest.raises(WeightsError, match="trunk is 'lite'; start from random weights"):
        load_imagenet_trunk(model.trunk, tmp_path / "bvlc.npz")


@pytest.mark.slow
def test_written_weights_match_and_are_exported(tmp_path: Path) -> None:
    model, path = make_lively(), tmp_path / "small.safetensors"
    with torch.no_grad():  # float16 of the file
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(parameter.half())
    save_weights(path, model)
    loaded = load_weights(path)
    assert loaded.model.config == CONFIG
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value), name
    pair = example_pair()
    matches = Matcher.from_pretrained(path, device="cpu").match(pair.image0_path, pair.image1_path)
    assert np.isfinite(np.asarray(matches.points1)).all()


def test_exported_network_agrees_with_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="exporting needs the extra 'export'")
    pytest.importorskip("onnxruntime", reason="exporting needs the extra 'export'")
    from ucn.formats.onnx import export_onnx

    path = tmp_path / "small.safetensors"
    save_weights(path, make_lively())
    exported = export_onnx(load_weights(path), tmp_path / "small.onnx")
    assert exported.path.stat().st_size > 0
