"""Settings are read strictly, and every error names the key and the value."""

import dataclasses
import json
import math
from typing import Any

import pytest

from ucn.config import (
    Calibration,
    Config,
    LossConfig,
    MatchConfig,
    ModelConfig,
    SourceConfig,
    SyntheticConfig,
    TeacherConfig,
    TrainConfig,
)
from ucn.config.matching import change_config
from ucn.errors import ConfigError

RUN: dict[str, Any] = {"name": "a", "steps": 1}


def changed_everywhere() -> TrainConfig:
    """A run in which no field, nested ones included, has its default."""
    return TrainConfig(
        name="run",
        steps=7,
        seed=3,
        batch=2,
        init="trunk.npz",
        init_part="trunk",
        max_side=500,
        optimiser="sgd",
        head_learning_rate=0.5,
        trunk_learning_rate=0.25,
        semantic_learning_rate=0.125,
        weight_decay=0.125,
        use_vector_decay=False,
        momentum=0.75,
        use_nesterov=True,
        schedule="step",
        warmup_steps=1,
        milestones=(3, 5),
        milestone_factor=0.5,
        clip_norm=2.0,
        average_decay=0.5,
        coarse_gain=1.5,
        precision="float32",
        freeze_norms=True,
        use_compile=True,
        validate_every=4,
        checkpoint_every=3,
        validation_share=0.5,
        model=ModelConfig((1, 2, 2, 1), None, "none", "in_branch", 5, 2, 3, True, 2),
        loss=LossConfig("triplet", 3.0, 0.5, 2.0, "nearest", "1to0", 2, 3, 0.25, "fine"),
        teacher=TeacherConfig("geometric", 2.0, 0.5, "ab", 0.3, 0.7),
        synthetic=SyntheticConfig(
            *(64, 9, 0.25, 10.0, 1.5, 0.125, (0.5, 0.75), 0.5),
            illumination=0.75,
            recolour=0.5,
            mirror=0.25,
            blend_share=0.125,
            collage_share=0.375,
            collage_zoom=(0.75, 1.5),
            crop_degrees=15.0,
            crop_stretch=1.25,
            border="other",
            affine_share=0.25,
            spline_share=0.5,
            parallax_share=0.125,
            stretch=1.5,
            spline=0.125,
            spline_grid=5,
            parallax=0.25,
            parallax_planes=4,
        ),
        sources=(
            SourceConfig("cub", "birds", crop_hw=(96, 128), options=("pairing=any",), use_warps=True),
            SourceConfig("faces", "helen", loss=LossConfig(radius=3.0), on_device=True, shift=0.25),
            SourceConfig("classes", "cars", teacher="universal", teacher_sha256="cd"),
        ),
    )


def test_round_trip_of_nested_settings_tuples_and_none() -> None:
    config = changed_everywhere()
    assert config.teacher is not None
    for part in (config, config.model, config.loss, config.teacher, config.synthetic):
        for field in dataclasses.fields(part):
            if field.name in ("trunk", "semantic_dim"):
                continue  # others leave no choice of strides
            assert getattr(part, field.name) != field.default, field.name
    plain = config.to_dict()
    assert [source["loss"] for source in plain["sources"]] == [None, LossConfig(radius=3.0).to_dict(), None]
    assert plain["model"]["strides"] == [1, 2, 2, 1]
    assert plain["model"]["dim"] is None
    assert plain["synthetic"]["zoom"] == [0.5, 0.75]
    again = TrainConfig.from_dict(json.loads(json.dumps(plain)))
    assert again == config
    small = ModelConfig(trunk="lite")
    assert ModelConfig.from_dict(small.to_dict()) == small != ModelConfig()
    assert again.synthetic.zoom == (0.5, 0.75)
    assert isinstance(again.model, ModelConfig)


@pytest.mark.parametrize("kind", [ModelConfig, Calibration, MatchConfig, SyntheticConfig, LossConfig])
def test_round_trip_of_defaults(kind: type[Config]) -> None:
    assert kind.from_dict({}) == kind()
    assert kind.from_dict(kind().to_dict()) == kind()


def test_nested_configs_are_accepted_as_they_are() -> None:
    loss = LossConfig(radius=5)
    assert TrainConfig.from_dict(RUN | {"loss": loss}).loss is loss


def test_values_keep_or_gain_the_type_of_their_field() -> None:
    config = TrainConfig.from_dict(RUN | {"clip_norm": 2, "model": {"dim": None, "strides": (2, 2, 2, 2)}})
    assert config.clip_norm == 2.0 and isinstance(config.clip_norm, float)
    assert config.model.dim is None
    assert config.model.strides == (2, 2, 2, 2)
    for side in ("auto", 64, None):
        assert MatchConfig.from_dict({"max_side": side}).max_side == side
    assert MatchConfig.from_dict({"max_side": None, "use_mutual": False}) == MatchConfig(
        max_side=None, use_mutual=False
    )


def test_settings_change_a_configuration() -> None:
    base = MatchConfig(ratio=0.9)
    assert change_config(base, {}) == base
    assert change_config(base, {"min_score": 1}) == MatchConfig(ratio=0.9, min_score=1.0)
    with pytest.raises(ConfigError, match=r"unknown setting 'ratoi'; did you mean 'ratio'"):
        change_config(base, {"ratoi": 1.0})
    with pytest.raises(ConfigError, match=r"min_score must be in \[0, 1\], got 2"):
        change_config(base, {"min_score": 2})


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().dim = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelConfig, {"dims": 3}, r"unknown key 'dims'; did you mean 'dim'\? \(legal: strides, dim, "),
        (ModelConfig, {"zzzz": 3}, r"unknown key 'zzzz' \(legal: strides, "),
        (ModelConfig, {3: 3}, r"unknown key '3' \(legal"),
        (TrainConfig, RUN | {"loss": {"temprature": 1}}, "unknown key 'loss.temprature'; .*'temperature'"),
        (TrainConfig, {"name": "a"}, "TrainConfig lacks the key 'steps'"),
        (TrainConfig, {}, "TrainConfig lacks the key 'name'"),
        # A wrong spelling of a needed key is the more helpful thing to say.
        (TrainConfig, {"name": "a", "stesp": 1}, "unknown key 'stesp'; did you mean 'steps'"),
        (TrainConfig, RUN | {"model": 3}, "model must be a mapping, got int"),
        (TrainConfig, [], "TrainConfig must be a mapping, got list"),
    ],
)
def test_wrong_keys(kind: type[Config], values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind.from_dict(values)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ModelConfig, {"dim": "128"}, "^dim must be int, got '128'"),
        (ModelConfig, {"dim": 128.0}, "^dim must be int, got 128.0"),
        (ModelConfig, {"dim": True}, "^dim must be int, got True"),
        (MatchConfig, {"use_mutual": 1}, "^use_mutual must be bool, got 1"),
        (MatchConfig, {"ratio": True}, "^ratio must be float, got True"),
        (MatchConfig, {"ratio": "0.8"}, "^ratio must be float, got '0.8'"),
        (MatchConfig, {"ratio": None}, "^ratio must be float, got None"),
        (Calibration, {"match_bias": math.nan}, "^match_bias must be a finite number, got nan"),
        (SyntheticConfig, {"max_scale": math.inf}, "^max_scale must be a finite number, got inf"),
        (ModelConfig, {"strides": 2}, "^strides must be a list, got 2"),
        (ModelConfig, {"strides": [2, 2, 1]}, "^strides must have 4 values, got 3"),
        (ModelConfig, {"strides": [2, 2, 1, "1"]}, r"^strides\[3\] must be int, got '1'"),
        (SyntheticConfig, {"border": "black"}, "^border must be one of mirror, other, got 'black'"),
        (ModelConfig, {"head_norm": "layer"}, "^head_norm must be one of none, batch, channel, got 'layer'"),
        (LossConfig, {"direction": ["both"]}, r"^direction must be one of 0to1, 1to0, both, got \['both'\]"),
        (TrainConfig, RUN | {"name": 3}, "^name must be str, got 3"),
        (TrainConfig, RUN | {"model": {"dim": "x"}}, "^model.dim must be int, got 'x'"),
        (TrainConfig, RUN | {"freeze_norms": 1}, "^freeze_norms must be bool, got 1"),
        (SourceConfig, {"name": "cub", "use_warps": "yes"}, "^use_warps must be bool, got 'yes'"),
        (SourceConfig, {"name": "cub", "loss": "infonce"}, "^loss must be a mapping, got str"),
    ],
)
def test_wrong_types(kind: type[Config], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind.from_dict(values)


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (ModelConfig, "strides", [(2, 2, 1, 3), (0, 2, 1, 1)]),
        (ModelConfig, "dim", [0, 4097]),
        (ModelConfig, "transformer_kernel", [2, -1, 17]),
        (ModelConfig, "context_layers", [-1, 9]),
        (ModelConfig, "context_dilation", [0, 5]),
        (ModelConfig, "levels", [0, 5]),
        (MatchConfig, "max_side", [31, 0, -1, 1_000_001]),
        (MatchConfig, "tile_side", [224, 260, 32 * 100_000]),
        (MatchConfig, "max_keypoints", [0, 1_000_001, 3_000_000_000]),
        (MatchConfig, "grid_step", [0, 3_000_000_000]),
        (MatchConfig, "mutual_tolerance", [0.0]),
        (MatchConfig, "ratio", [0.0, 1.01]),
        (MatchConfig, "second_best_radius", [-1.0]),
        (MatchConfig, "min_score", [-0.1, 1.1]),
        (MatchConfig, "memory_bytes", [2**20 - 1, 2**40 + 1]),
        (Calibration, "match_bias", [-10000.5, 1e308]),
        (Calibration, "pair_support", [-1e308, 10000.5]),
        (SyntheticConfig, "side", [32, 100, 8224]),
        (SyntheticConfig, "points", [0, 1_000_001]),
        (SyntheticConfig, "upright_share", [-0.1, 1.1]),
        (SyntheticConfig, "upright_degrees", [-1.0, 181.0]),
        (SyntheticConfig, "max_scale", [0.9]),
        (SyntheticConfig, "perspective", [-0.1, 0.41]),
        (SyntheticConfig, "zoom", [(0.0, 1.0), (2.0, 1.0)]),
        (SyntheticConfig, "photometric", [-0.1]),
        (SyntheticConfig, "collage_share", [-0.1, 1.1]),
        (SyntheticConfig, "collage_zoom", [(0.0, 1.0), (2.0, 1.0)]),
        (SyntheticConfig, "illumination", [-0.1, 2.1]),
        (SyntheticConfig, "recolour", [-0.1, 1.1]),
        (SyntheticConfig, "mirror", [-0.1, 1.1]),
        (SyntheticConfig, "blend_share", [-0.1, 1.1]),
        (SyntheticConfig, "crop_degrees", [-1.0, 181.0]),
        (SyntheticConfig, "crop_stretch", [0.9, 2.1]),
        (SyntheticConfig, "affine_share", [-0.1, 1.1]),
        (SyntheticConfig, "spline_share", [-0.1, 1.1]),
        (SyntheticConfig, "parallax_share", [-0.1, 1.1]),
        (SyntheticConfig, "stretch", [0.99, 4.1]),
        (SyntheticConfig, "spline", [-0.01, 0.2]),
        (SyntheticConfig, "spline_grid", [2, 9]),
        (SyntheticConfig, "parallax", [-0.1, 0.51]),
        (SyntheticConfig, "parallax_planes", [1, 6]),
        (LossConfig, "radius", [-1.0]),
        (LossConfig, "temperature", [0.0]),
        (LossConfig, "margin", [0.0]),
        (LossConfig, "negatives", [0, 1001]),
        (LossConfig, "random_negatives", [-1, 1001]),
        (LossConfig, "positive_share", [-0.1, 1.1]),
        (TrainConfig, "name", ["", " "]),
        (TrainConfig, "steps", [0, 10**9 + 1]),
        (TrainConfig, "seed", [-1, 2**63]),
        (TrainConfig, "batch", [0, 65_537]),
        (TrainConfig, "head_learning_rate", [-1.0]),
        (TrainConfig, "trunk_learning_rate", [-1.0]),
        (TrainConfig, "weight_decay", [-1.0]),
        (TrainConfig, "warmup_steps", [-1]),
        (TrainConfig, "clip_norm", [0.0]),
        (TrainConfig, "average_decay", [-0.1, 1.0]),
        (TrainConfig, "coarse_gain", [0.0, 8.1, 2.0]),  # the last for a network of one level
        (TrainConfig, "momentum", [-0.1, 1.0]),
        (TrainConfig, "milestones", [(5,)]),
        (TrainConfig, "milestone_factor", [0.0, 1.1]),
        (TrainConfig, "validate_every", [0, 10**9 + 1]),
        (TrainConfig, "checkpoint_every", [0, 10**9 + 1]),
        (TrainConfig, "validation_share", [0.0, 0.51]),
    ],
)
def test_values_out_of_range_are_named(kind: type[Config], name: str, values: list[Any]) -> None:
    needed = RUN if kind is TrainConfig else {}
    for value in values:
        with pytest.raises(ConfigError) as caught:
            kind(**{**needed, name: value})
        message = str(caught.value)
        assert message.startswith(f"{name} must ")
        assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ModelConfig, {"dim": 1, "transformer_kernel": 15}),
        (Calibration, {"match_bias": -1e4, "pair_bias": 1e4}),
        (MatchConfig, {"max_keypoints": 1_000_000}),
        (ModelConfig, {"dim": 4096, "transformer_kernel": 1}),
        (MatchConfig, {"max_side": 32, "tile_side": 256, "ratio": 1.0, "min_score": 1.0}),
        (SyntheticConfig, {"side": 64, "max_scale": 1.0, "perspective": 0.4, "zoom": (1.0, 1.0)}),
        (SyntheticConfig, {"upright_share": 1.0, "upright_degrees": 180.0, "photometric": 0.0}),
        (SyntheticConfig, {"illumination": 2.0, "recolour": 1.0, "mirror": 1.0, "blend_share": 1.0}),
        (SyntheticConfig, {"crop_degrees": 180.0, "crop_stretch": 2.0, "border": "other"}),
        (ModelConfig, {"context_layers": 8, "context_dilation": 1}),
        (ModelConfig, {"context_layers": 3, "context_dilation": 4}),
        (ModelConfig, {"levels": 4, "use_standard_light": True}),
        (ModelConfig, {"levels": 2, "strides": (2, 2, 2, 2)}),
        (LossConfig, {"radius": 0.0, "negatives": 1000, "random_negatives": 0, "positive_share": 0.0}),
        (
            TrainConfig,
            RUN | {"schedule": "step", "milestones": (1, 2), "milestone_factor": 1.0, "momentum": 0.0},
        ),
        (TrainConfig, RUN | {"warmup_steps": 0, "average_decay": 0.0, "trunk_learning_rate": 0.0, "seed": 0}),
        (TrainConfig, RUN | {"validation_share": 0.5, "seed": 2**63 - 1}),
    ],
)
def test_the_ends_of_the_ranges_are_legal(kind: type[Config], values: dict[str, Any]) -> None:
    config = kind.from_dict(values)
    for name, value in values.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"schedule": "step"},
            r"^milestones must be given with schedule 'step', and only with it, got \(\)$",
        ),
        (
            {"schedule": "step", "milestones": [3, 3]},
            r"^milestones must increase and be at least 1, got \(3, 3\)$",
        ),
        (
            {"schedule": "step", "milestones": [0]},
            r"^milestones must increase and be at least 1, got \(0,\)$",
        ),
        ({"momentum": 0, "use_nesterov": True}, "^use_nesterov must be false where momentum is 0, got True$"),
        ({"optimiser": "adam"}, "^optimiser must be one of adamw, sgd, got 'adam'$"),
        ({"schedule": "poly"}, "^schedule must be one of cosine, step, constant, got 'poly'$"),
        ({"precision": "fp16"}, "^precision must be one of bf16, float32, got 'fp16'$"),
    ],
)
def test_optimisers_and_schedules_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict(RUN | values)


def test_a_value_out_of_range_in_the_loss_of_a_source_is_named_with_its_path() -> None:
    source = {"name": "cub", "loss": {"radius": -1}}
    with pytest.raises(ConfigError, match=r"^sources\[0\]\.loss\.radius must be at least 0, got -1\.0$"):
        TrainConfig.from_dict(RUN | {"sources": [source]})
    source = {"name": "cub", "loss": {"margn": 1}}
    with pytest.raises(ConfigError, match=r"unknown key 'sources\[0\]\.loss\.margn'; did you mean 'margin'"):
        TrainConfig.from_dict(RUN | {"sources": [source]})


def test_a_nested_value_out_of_range_is_named_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"^loss\.radius must be at least 0, got -1\.0$"):
        TrainConfig.from_dict(RUN | {"loss": {"radius": -1}})


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (MatchConfig, {"keypoints": "sift"}, "^keypoints must be one of corners, grid, got 'sift'$"),
        (MatchConfig, {"max_keypoints": 2.5}, r"^max_keypoints must be int, got 2\.5$"),
        (MatchConfig, {"max_side": "x"}, "^max_side must be int, 'auto' or None, got 'x'$"),
        (MatchConfig, {"ratio": 10**400}, r"^ratio must be a finite number, got 10+\.\.\.0+$"),
        (MatchConfig, {"ratio": 10**5000}, "^ratio must be a finite number, got int of over 4300 digits$"),
        (
            ModelConfig,
            {"transformer": "foo"},
            "^transformer must be one of none, after_trunk, in_branch, got",
        ),
        (ModelConfig, {"strides": (2, 2)}, "^strides must have 4 values, got 2$"),
        (ModelConfig, {"dim": "y" * 1000}, r"^dim must be int, got 'y+\.\.\.y+'$"),
        (TrainConfig, RUN | {"model": 3}, "^model must be a mapping, got int$"),
        (
            TrainConfig,
            RUN | {"seed": 10**5000},
            r"^seed must be in \[0, 2\^63\), got int of over 4300 digits$",
        ),
    ],
)
def test_direct_construction_is_as_strict(kind: type[Config], values: dict[str, Any], message: str) -> None:
    for build in (kind, lambda **given: kind.from_dict(given)):
        with pytest.raises(ConfigError, match=message) as caught:
            build(**values)
        assert len(str(caught.value)) < 150


def test_direct_construction_makes_floats_of_ints_and_tuples_of_lists() -> None:
    config = SyntheticConfig(max_scale=2, zoom=[1, 2])  # type: ignore[arg-type]
    assert isinstance(config.max_scale, float)
    assert config.zoom == (1.0, 2.0) and isinstance(config.zoom[0], float)
    assert hash(config) == hash(SyntheticConfig(max_scale=2.0, zoom=(1.0, 2.0)))


def test_unknown_keys_are_cut_short() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict({"k" * 10_000: 1})
    assert len(str(caught.value)) < 250
