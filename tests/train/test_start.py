"""What a run begins with: all of it from one place, or one error that says what to do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.trunk_cases import Arrays, make_arrays, make_graph, write_npz, write_onnx
from ucn.config import Calibration, ModelConfig, TrainConfig
from ucn.errors import ConfigError, WeightsError
from ucn.nn import build_model
from ucn.train.recipe import read_recipe
from ucn.train.start import start_calibration, start_model
from ucn.weights import list_weights, load_weights, save_weights

SMALL = ModelConfig(dim=16, transformer="none", head_norm="batch")
SHIPPED = [info.name for info in list_weights()]


def make_config(init: str, model: ModelConfig = SMALL, seed: int = 0) -> TrainConfig:
    return TrainConfig("test", 1, seed=seed, init=init, model=model)


def assert_equal(first: torch.nn.Module, second: torch.nn.Module) -> None:
    states = first.state_dict(), second.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return make_arrays()


def test_random_weights_follow_from_the_seed() -> None:
    model = start_model(make_config("random", seed=3))
    assert_equal(model, build_model(SMALL, torch.Generator().manual_seed(3)))
    assert model.training
    other = start_model(make_config("random", seed=4))
    assert not torch.equal(next(model.parameters()), next(other.parameters()))


@pytest.mark.parametrize("suffix", [".npz", ".onnx", ".NPZ"])
def test_a_trunk_from_a_file_and_the_rest_drawn(tmp_path: Path, arrays: Arrays, suffix: str) -> None:
    path = tmp_path / f"trunk{suffix}"
    if suffix == ".onnx":
        write_onnx(path, make_graph(arrays))
    else:
        write_npz(tmp_path / "trunk.npz", arrays).replace(path)
    model = start_model(make_config(str(path), seed=5))
    drawn = build_model(SMALL, torch.Generator().manual_seed(5))
    state = model.state_dict()
    assert torch.equal(state["trunk.conv1.weight"], torch.from_numpy(arrays["conv1_7x7_s2_w"]))
    last = torch.from_numpy(arrays["inception_4a_pool_proj_b"])
    assert torch.equal(state["trunk.inception_4a.pool_projection.bias"], last)
    for name, value in state.items():
        is_drawn = torch.equal(value, drawn.state_dict()[name])
        assert is_drawn != name.startswith("trunk."), name
    assert model.training


def test_a_caffemodel_has_to_be_converted(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"convert it with examples/convert_caffemodel\.py"):
        start_model(make_config(str(tmp_path / "bvlc.caffemodel")))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_by_name(name: str) -> None:
    loaded = load_weights(name).model
    model = start_model(make_config(name, loaded.config))
    assert_equal(model, loaded)
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_own_weights_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine ö.safetensors"
    save_weights(path, build_model(SMALL, torch.Generator().manual_seed(7)))
    assert_equal(start_model(make_config(str(path))), load_weights(path).model)


def test_the_calibration_of_the_start(tmp_path: Path) -> None:
    path, fitted = tmp_path / "mine.safetensors", Calibration(match_bias=-1.5)
    save_weights(path, build_model(SMALL), calibration=fitted)
    config = make_config(str(path))
    assert start_calibration(config) == fitted
    assert start_calibration(make_config("geometric")) == load_weights("geometric").calibration
    assert start_calibration(replace(config, init_part="trunk")) == Calibration()
    assert start_calibration(make_config("random")) == Calibration()


def test_the_trunk_alone_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_weights(path, build_model(SMALL, torch.Generator().manual_seed(7)))
    other = ModelConfig(dim=32, transformer="after_trunk", head_norm="channel", levels=2)
    config = replace(make_config(str(path), other, seed=5), init_part="trunk")
    model, drawn = start_model(config), build_model(other, torch.Generator().manual_seed(5))
    assert_equal(model.trunk, load_weights(path).model.trunk)
    for name, value in model.state_dict().items():
        if not name.startswith("trunk."):
            assert torch.equal(value, drawn.state_dict()[name]), name
    assert model.training
    with pytest.raises(ConfigError, match=r"set model\.trunk to googlenet and .* none or after_trunk"):
        start_model(replace(config, model=ModelConfig(transformer="in_branch")))
    with pytest.raises(ConfigError, match=r"init_part trunk needs .* got 'random'; leave"):
        start_model(replace(config, init="random"))
    recipe = write_recipe(tmp_path, f"init: {path}\ninit_part: trunk\nmodel: {{dim: 24}}")
    assert read_recipe(recipe).model == ModelConfig(dim=24)


def test_a_whole_network_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_weights(path, build_model(SMALL))
    other = ModelConfig(dim=32, transformer="none", head_norm="none")
    message = (
        r"init '.*mine\.safetensors' is a different network from the recipe's: model\.dim is 16 there and 32 "
        r"here, model\.head_norm is batch there and none here\. Leave these keys out of the recipe"
    )
    with pytest.raises(ConfigError, match=message):
        start_model(make_config(str(path), other))
    # The same tensors, read at other strides, are another network too.
    strided = ModelConfig(strides=(2, 2, 2, 1), dim=16, transformer="none", head_norm="batch")
    with pytest.raises(ConfigError, match=r"model\.strides is \[2, 2, 1, 1\] there and \[2, 2, 2, 1\] here"):
        start_model(make_config(str(path), strided))


@pytest.mark.parametrize("init", ["geometrical", "", "weights.pth", "folder/random"])
def test_what_init_can_be(init: str) -> None:
    with pytest.raises(ConfigError, match=rf"init must be random, .*geometric.* got '{init}'"):
        start_model(make_config(init))


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no trunk weights at .*none\.onnx: expected a file of BVLC"):
        start_model(make_config(str(tmp_path / "none.onnx")))
    with pytest.raises(
        WeightsError, match=r"no weights file .*none\.safetensors: it is missing; .* geometric"
    ):
        start_model(make_config(str(tmp_path / "none.safetensors")))


def write_recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(f"name: a\nsteps: 1\n{text}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_without_model_takes_that_of_the_weights(tmp_path: Path, name: str) -> None:
    config = read_recipe(write_recipe(tmp_path, f"init: {name}"))
    assert config.model == load_weights(name).model.config
    assert_equal(start_model(config), load_weights(name).model)


def test_keys_that_a_recipe_gives_stay(tmp_path: Path) -> None:
    save_weights(tmp_path / "mine.safetensors", build_model(SMALL))
    path = write_recipe(tmp_path, f"init: {tmp_path}/mine.safetensors\nmodel: {{head_norm: batch}}")
    assert read_recipe(path).model == SMALL
    changed = read_recipe(path, ["model.dim=8"])
    assert changed.model == ModelConfig(dim=8, transformer="none", head_norm="batch")
    with pytest.raises(ConfigError, match=r"model\.dim is 16 there and 8 here\. Leave"):
        start_model(changed)
    assert read_recipe(path, ["init=random"]).model == ModelConfig(head_norm="batch")
    with pytest.raises(ConfigError, match=r"unknown key 'model\.dmi'"):
        read_recipe(path, ["model.dmi=8"])
    with pytest.raises(ConfigError, match="model must be a mapping, got int"):
        read_recipe(path, ["model=8"])


def test_recipes_with_weights_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*none\.safetensors: it is missing"):
        read_recipe(write_recipe(tmp_path, f"init: {tmp_path}/none.safetensors"))
    with pytest.raises(ConfigError, match="init must be str, got 3"):
        read_recipe(write_recipe(tmp_path, "init: 3"))
