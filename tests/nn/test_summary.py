"""The list of layers: shapes, parameters, strides and receptive fields."""

import pytest
import torch

from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.summary import list_layers

CONFIGS = {
    "paper's strides": ModelConfig(),
    "original strides": ModelConfig(strides=(2, 2, 2, 2), transformer="none"),
    "in the branches": ModelConfig(transformer="in_branch"),
    "bare trunk": ModelConfig(dim=None, head_norm="none", transformer="none"),
    "context": ModelConfig(context_layers=2, head_norm="batch", transformer_kernel=5),
    "smaller copies": ModelConfig(dim=16, levels=3, head_norm="batch", transformer="none"),
    "smaller copies, no norm": ModelConfig(dim=None, levels=2, head_norm="none", context_layers=1),
    "semantic level": ModelConfig(dim=16, transformer="none", semantic_dim=24),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_are_those_of_the_network(name: str) -> None:
    model = build_model(CONFIGS[name])
    layers = list_layers(model, (70, 99))
    assert sum(layer.parameters for layer in layers) == sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        wanted = model.eval()(torch.zeros(1, 3, 70, 99)).shape[1:]
    assert layers[-1].shape == tuple(wanted)
    assert layers[-1].stride == model.stride
    joined = next(layer for layer in layers if layer.title == "inception_4a")
    assert (joined.stride, joined.receptive_field) == (model.trunk.stride, 2 * model.trunk.reach + 1)
    # What a transformer may reach is bounded, and at rest it reaches less.
    assert layers[-1].receptive_field <= 2 * model.reach + 1
    assert len({layer.title for layer in layers}) == len(layers)


def test_fields_by_hand() -> None:
    layers = {layer.title: layer for layer in list_layers(build_model(CONFIGS["context"]), (64, 64))}
    # conv1 has a field of 7 px and a stride of 2; the pool adds 2 cells of 2 px, for a stride of 4.
    assert [(layers[name].stride, layers[name].receptive_field) for name in ("conv1", "pool1", "conv2")] == [
        (2, 7),
        (4, 11),
        (4, 19),
    ]
    # Pooling 4 cells: 83 + 3 * 4; a 3×3 convolution of cells of 16 px: 32 more each; then half of 32.
    fields = [layers[f"context.{name}"].receptive_field for name in ("0", "1", "exit")]
    assert fields == [127, 159, 175]
    assert layers["context.0"].shape == (128, 4, 4)
    assert layers["transformer"].receptive_field == 175 + 4 * 4
    assert layers["transformer"].kind == "spatial transformer 5×5"
    copies = {layer.title: layer for layer in list_layers(build_model(CONFIGS["smaller copies"]), (64, 96))}
    # A cell of the copy of half the size sees 83 of its pixels, 82 steps of 2 px, and the kernel that halves
    # reaches 2 px further to each side; interpolation adds a cell of 8 px.
    assert [copies[f"level_2.{name}"].receptive_field for name in ("norm", "projection")] == [169, 177]
    assert copies["level_2.norm"].shape == (512, 8, 12) and copies["level_2.projection"].stride == 8
    assert copies["level_4.projection"].receptive_field == 82 * 4 + 1 + 2 * (2 + 4) + 16
    assert copies["normalise"].shape == (16, 16, 24)
    branch = {layer.title: layer for layer in list_layers(build_model(CONFIGS["in the branches"]), (64, 64))}
    assert branch["inception_4a.conv_5x5"].kind == "spatial transformer 5×5"
    assert branch["inception_3a.conv_5x5"].kind == "convolution 5×5"


def test_the_semantic_level_by_hand() -> None:
    model = build_model(CONFIGS["semantic level"])
    layers = {layer.title: layer for layer in list_layers(model, (64, 96))}
    assert model.semantic is not None
    last = layers["semantic.inception_4c"]
    # 64 × 96 pixels at strides of 16; as many parameters as its trunk has.
    assert (last.shape, last.stride) == ((512, 4, 6), 16)
    assert last.receptive_field == 2 * model.semantic.trunk.reach + 1
    parts = [layer for title, layer in layers.items() if title.startswith("semantic.")]
    assert sum(layer.parameters for layer in parts) == sum(p.numel() for p in model.semantic.parameters())
    assert layers["semantic.projection"].shape == (24, 4, 6) and layers["semantic.gain"].shape == (1, 4, 6)
    assert layers["semantic.projection"].receptive_field == last.receptive_field + 16
    assert layers["normalise"].shape == (16, 16, 24) and layers["normalise"].receptive_field == 83
    assert layers["join"].shape == (40, 16, 24)
    assert layers["join"].receptive_field == last.receptive_field + 16


def test_a_cell_sees_what_is_said() -> None:
    """A pixel beyond the field changes nothing, one within does: of convolutions alone, by their gradient."""
    model = build_model(CONFIGS["bare trunk"]).eval()
    image = torch.rand(1, 3, 160, 160, generator=torch.Generator().manual_seed(0)).requires_grad_()
    model.trunk(image)[0, :, 20, 20].sum().backward()
    assert image.grad is not None
    columns = image.grad[0].abs().sum(dim=(0, 1)).nonzero()[:, 0]
    field = list_layers(model, (160, 160))[-1].receptive_field
    # Max pools pass the gradient of one pixel each, so the edge of the field is rarely hit.
    assert 0.6 * field < int(columns.max() - columns.min()) + 1 <= field


def test_too_small_an_image() -> None:
    with pytest.raises(ValueError, match="at least 32 px a side"):
        list_layers(build_model(ModelConfig()), (31, 64))
