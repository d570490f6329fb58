"""The semantic level: where its cells lie, how it is joined to the fine descriptors, what it needs."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.network_cases import make_lively
from ucn.config import ModelConfig
from ucn.errors import ConfigError, WeightsError
from ucn.nn import build_model
from ucn.nn.cpu.encoder import CpuEncoder
from ucn.nn.encoder import ReferenceEncoder
from ucn.nn.folding import FoldedEncoder
from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.model import CorrespondenceNetwork, drop_semantic
from ucn.nn.semantic import FACTOR, SemanticLevel
from ucn.nn.tiling import encode_in_tiles
from ucn.nn.trunk_files import load_imagenet_trunk
from ucn.types import FeatureMap
from ucn.weights import load_weights, save_weights

CONFIG = ModelConfig(dim=8, transformer="none", semantic_dim=6)
FIRST, FURTHER = (
    f"googlenet/bvlc_googlenet_{part}.npz" for part in ("conv1_to_inception_4a", "inception_4b_to_4e")
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_level(dimensions: int = 6) -> SemanticLevel:
    level = build_model(ModelConfig(dim=8, transformer="none", semantic_dim=dimensions)).semantic
    assert level is not None
    return level


def upsample_slowly(coarse: Tensor, grid_hw: tuple[int, int]) -> Tensor:
    """One channel (h, w), cell by cell: semantic cell k lies on fine cell 4k + 3, the border is repeated."""
    made = torch.zeros(grid_hw, dtype=coarse.dtype)
    for row in range(grid_hw[0]):
        for column in range(grid_hw[1]):
            for k in range(-1, coarse.shape[0] + 1):
                for j in range(-1, coarse.shape[1] + 1):
                    weight_y = max(0.0, 1 - abs(row - (4 * k + 3)) / 4)
                    weight_x = max(0.0, 1 - abs(column - (4 * j + 3)) / 4)
                    y, x = min(max(k, 0), coarse.shape[0] - 1), min(max(j, 0), coarse.shape[1] - 1)
                    made[row, column] += weight_y * weight_x * coarse[y, x]
    return made


@pytest.mark.parametrize(("coarse_hw", "grid_hw"), [((2, 2), (8, 9)), ((2, 3), (11, 12)), ((1, 2), (7, 10))])
def test_upsampling_equals_a_slow_reference(coarse_hw: tuple[int, int], grid_hw: tuple[int, int]) -> None:
    coarse = torch.randn(2, 3, *coarse_hw, dtype=torch.float64, generator=seeded())
    found = make_level().upsample(coarse, grid_hw)
    assert found.shape == (2, 3, *grid_hw)
    for mine, one in zip(found.flatten(0, 1), coarse.flatten(0, 1), strict=True):
        torch.testing.assert_close(mine, upsample_slowly(one, grid_hw))


def test_upsampling_by_hand() -> None:
    coarse = torch.tensor([1.0, 5.0]).expand(1, 1, 2, 2)
    found = make_level().upsample(coarse, (8, 10))[0, 0, 0]
    # Cells 3 and 7 hold the values themselves; what lies before and after repeats them.
    torch.testing.assert_close(found, torch.tensor([1.0, 1, 1, 1, 2, 3, 4, 5, 5, 5]))


def test_cells_lie_where_the_upsampling_takes_them_for() -> None:
    level, fine = make_level(), build_model(CONFIG)
    assert (level.trunk.stride, level.trunk.offset) == (16, 14.0)
    assert level.trunk.stride == FACTOR * fine.stride
    for k in range(3):
        pixel = level.trunk.stride * k + level.trunk.offset
        assert pixel == fine.stride * (4 * k + 3) + fine.offset


def test_upsampling_has_gradients() -> None:
    level = make_level()
    coarse = torch.randn(1, 2, 2, 3, dtype=torch.float64, generator=seeded()).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: level.upsample(values, (9, 12)), coarse)


def test_upsampling_keeps_the_layout_of_memory() -> None:
    coarse = torch.rand(2, 4, 3, 3, generator=seeded()).contiguous(memory_format=torch.channels_last)
    grown = make_level().upsample(coarse, (12, 12))
    assert grown.stride(1) == 1


def test_every_size_gets_a_whole_map() -> None:
    shadow = build_model(CONFIG).eval().to("meta")
    for side in range(32, 50):  # all remainders of the semantic stride
        image = torch.empty(1, 3, side, 35, device="meta")
        assert shadow.encode(image).features.shape == (1, 14, *shadow.trunk(image).shape[-2:]), side


@pytest.mark.parametrize("size_hw", [(32, 32), (33, 47), (50, 34)])
@torch.no_grad()
def test_joined_descriptors_are_unit_vectors(size_hw: tuple[int, int]) -> None:
    model = make_lively(CONFIG)
    found = model(torch.rand(2, 3, *size_hw, generator=seeded()))
    assert CONFIG.dimensions == found.shape[1] == 14
    torch.testing.assert_close(found.norm(dim=1), torch.ones_like(found[:, 0]))
    alone = model(torch.rand(2, 3, *size_hw, generator=seeded())[1:])
    torch.testing.assert_close(alone, found[1:])


@torch.no_grad()
def test_a_new_network_weights_both_levels_equally() -> None:
    model = build_model(CONFIG).eval()
    assert model.semantic is not None
    images = torch.rand(2, 3, 64, 64, generator=seeded())
    centres = torch.arange(3, 16, FACTOR)

    def at_centres(features: Tensor) -> Tensor:
        return features[:, :, centres][..., centres].flatten(2)  # (2, D, N)

    joined = at_centres(model(images))
    fine, semantic = joined[:, :8], joined[:, 8:]
    for part in (fine, semantic):
        torch.testing.assert_close(part.norm(dim=1), torch.full_like(part[:, 0], 0.5**0.5))
    features = model.semantic.describe_cells(images)
    expected = F.normalize(model.semantic.projection(features), dim=1).flatten(2)
    torch.testing.assert_close(F.normalize(semantic, dim=1), expected)
    cosines = [F.normalize(part[0], dim=0).t() @ F.normalize(part[1], dim=0) for part in (fine, semantic)]
    torch.testing.assert_close(joined[0].t() @ joined[1], (cosines[0] + cosines[1]) / 2)


@torch.no_grad()
def test_the_gain_weights_the_semantic_level() -> None:
    model = build_model(CONFIG).eval()
    assert model.semantic is not None and model.semantic.gain.bias is not None
    image = torch.rand(1, 3, 40, 40, generator=seeded())
    model.semantic.gain.bias.fill_(float(np.log(2)))
    found = model(image)[:, :, 3::FACTOR, 3::FACTOR]
    # A length of 2 beside one of 1: shares of 4 / 5 and 1 / 5 of the squares.
    torch.testing.assert_close(found[:, 8:].square().sum(dim=1), torch.full_like(found[:, 0], 0.8))


def test_all_parts_learn() -> None:
    model = build_model(CONFIG).train()
    assert model.semantic is not None
    wish = torch.randn(1, 14, 12, 12, generator=seeded(1))
    (model(torch.rand(1, 3, 48, 48, generator=seeded())) * wish).sum().backward()
    for name, parameter in model.semantic.named_parameters():
        if name.endswith("weight"):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_the_fine_part_is_that_of_the_network_without() -> None:
    plain = build_model(ModelConfig(dim=8, transformer="none", levels=2)).eval()
    joined = build_model(ModelConfig(dim=8, transformer="none", levels=2, semantic_dim=6)).eval()
    for name, value in plain.state_dict().items():
        joined.state_dict()[name].copy_(value)
    image = torch.rand(1, 3, 40, 56, generator=seeded())
    torch.testing.assert_close(F.normalize(joined(image)[:, :8], dim=1), plain(image))
    fine = joined.encode(image).without_semantic()
    torch.testing.assert_close(fine.features, plain(image))
    assert (fine.semantic_dim, fine.stride, fine.offset, fine.image_hw) == (0, 4, 2.0, (40, 56))
    assert fine.without_semantic() is fine


@torch.no_grad()
def test_every_engine_says_which_dimensions_are_semantic() -> None:
    model = make_lively(CONFIG)
    image = torch.rand(1, 3, 40, 56, generator=seeded())
    for encoder in (model, FoldedEncoder(model), CpuEncoder(model), ReferenceEncoder(model)):
        assert encoder.encode(image).semantic_dim == 6
    assert encode_in_tiles(model, torch.rand(1, 3, 40, 300, generator=seeded()), 64).semantic_dim == 6


def test_fine_descriptors_by_hand() -> None:
    features = torch.tensor([0.36, 0.48, 0.8]).view(1, 3, 1, 1)
    found = FeatureMap(features, 4, 2.0, (4, 4), semantic_dim=1).without_semantic()
    torch.testing.assert_close(found.features.flatten(), torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("size_hw", [(70, 500), (499, 60)])
@torch.no_grad()
def test_tiles_equal_the_whole_image(size_hw: tuple[int, int]) -> None:
    model = make_lively(ModelConfig(dim=8, transformer="none", semantic_dim=6, use_standard_light=True))
    assert model.semantic is not None and model.reach == model.semantic.reach > model.trunk.reach
    image = torch.rand(1, 3, *size_hw, generator=seeded())
    tiles: list[str] = []
    tiled = encode_in_tiles(model, image, 64, tiles.append)
    assert len(tiles) > 1
    torch.testing.assert_close(tiled.features, model.encode(image).features, atol=1e-4, rtol=0)


def test_weights_files_keep_it(tmp_path: Path) -> None:
    model = make_lively(CONFIG).half().float()  # files hold float16
    save_weights(tmp_path / "a.safetensors", model)
    loaded = load_weights(tmp_path / "a.safetensors").model
    assert loaded.config == CONFIG
    image = torch.rand(1, 3, 40, 40, generator=seeded())
    with torch.no_grad():
        assert torch.equal(loaded.eval()(image), model(image))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"semantic_dim": -1}, r"semantic_dim must be in \[0, 512\], got -1"),
        ({"semantic_dim": 513}, r"semantic_dim must be in \[0, 512\]"),
        (
            {"semantic_dim": 8, "strides": [2, 2, 2, 1]},
            "semantic_dim must be 0 unless strides are 2, 2, 1, 1",
        ),
        (
            {"semantic_dim": 8, "trunk": "lite", "transformer": "none"},
            "semantic_dim must be 0 where trunk is",
        ),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict(settings)


def test_dimensions_of_all_levels() -> None:
    assert ModelConfig().dimensions == 128
    assert ModelConfig(dim=None, semantic_dim=64).dimensions == 512 + 64
    assert ModelConfig(dim=None, trunk="lite", transformer="none").dimensions == 64


def test_activations_equal_those_of_another_implementation(data_folder: Path) -> None:
    trunk = GoogLeNetTrunk((2, 2, 2, 2), to_4c=True)
    load_imagenet_trunk(trunk, data_folder / FIRST, data_folder / FURTHER)
    with (
        np.load(data_folder / "googlenet/reference_activations.npz") as reference,
        np.load(data_folder / "googlenet/reference_activations_4c.npz") as further,
        torch.no_grad(),
    ):
        stages = trunk.stages(torch.from_numpy(reference["data"])[None])
        expected = {
            "inception_4a": reference["inception_4a_output"],
            "inception_4c": further["inception_4c_output"],
        }
        for name, values in expected.items():
            assert (stages[name][0] - torch.from_numpy(values)).abs().max() < 2e-3, name


def test_a_file_without_the_further_blocks_is_refused(data_folder: Path) -> None:
    trunk = GoogLeNetTrunk((2, 2, 2, 2), to_4c=True)
    before = trunk.conv1.weight.clone()
    for further in (None, data_folder / FIRST):
        with pytest.raises(WeightsError, match="inception_4b_1x1_w"):
            load_imagenet_trunk(trunk, data_folder / FIRST, further)
    assert torch.equal(trunk.conv1.weight, before)


@torch.no_grad()
def test_the_level_can_be_dropped() -> None:
    joined = make_lively(CONFIG)
    fine = drop_semantic(joined)
    assert fine.semantic is None and fine.config == ModelConfig(dim=8, transformer="none")
    assert fine.training == joined.training and drop_semantic(fine) is fine
    image = torch.rand(1, 3, 40, 56, generator=seeded())
    torch.testing.assert_close(fine(image), joined.encode(image).without_semantic().features)
    assert joined.semantic is not None and joined.semantic_dim == 6


def test_a_changed_network_without_the_level_stays_changed() -> None:
    class Changed(CorrespondenceNetwork):
        """A network with a method of its own."""

    fine = drop_semantic(Changed(CONFIG))
    assert type(fine) is Changed and fine.semantic is None and fine.reach == build_model(CONFIG).trunk.reach
