"""Runs with a teacher: who it is, what it costs, and that nothing else depends on it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from support.train_cases import CPU, assert_equal, continue_run, make_config, train_on
from ucn.cli.app import app
from ucn.config import LossConfig, ModelConfig, TeacherConfig, TrainConfig
from ucn.errors import ConfigError, WeightsError
from ucn.losses import descriptor_loss, distillation_loss
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.checkpoint import load_run, record_config
from ucn.train.recipe import read_recipe
from ucn.train.step import Teacher, compare_with_teacher, compute_loss, encode_pair, training_step
from ucn.train.teacher import load_teacher, record_teacher_hash
from ucn.types import PairBatch
from ucn.weights import load_weights, save_weights

pytestmark = pytest.mark.usefixtures("few_pairs")

STUDENT = {"trunk": "lite", "dim": 8, "head_norm": "none", "transformer": "none"}


@pytest.fixture
def teacher_path(tmp_path: Path) -> Path:
    path = tmp_path / "teacher.safetensors"
    config = ModelConfig(dim=12, transformer="none", use_standard_light=True)
    save_weights(path, build_model(config, torch.Generator().manual_seed(7)))
    return path


def make_run(teacher_path: Path, **changes: object) -> TrainConfig:
    entry = {"weights": str(teacher_path), "weight": 2.0, "temperature": 0.2}
    return make_config(**({"model": STUDENT, "teacher": entry, "steps": 4} | changes))


def make_batch(B: int = 2, N: int = 20, side: int = 64) -> PairBatch:
    generator = torch.Generator().manual_seed(0)
    image0, image1 = torch.rand(2, B, 3, side, side, generator=generator)
    points0, points1 = torch.rand(2, B, N, 2, generator=generator) * (side - 1)
    is_valid = torch.ones(B, N, dtype=torch.bool)
    is_valid[0, -3:] = False
    return PairBatch(image0, image1, points0, points1, is_valid, tuple("ab"[:B]))


def test_the_step_adds_what_the_teacher_costs(teacher_path: Path) -> None:
    config, batch = make_run(teacher_path), make_batch()
    student = build_model(config.model).train()
    teacher = load_teacher(config, student, CPU)
    assert teacher is not None and (teacher.weight, teacher.temperature) == (2.0, 0.2)
    assert isinstance(teacher.model, CorrespondenceNetwork)
    assert not teacher.model.training and not any(p.requires_grad for p in teacher.model.parameters())
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    loss, generator = LossConfig(), torch.Generator()
    with torch.no_grad():
        maps = encode_pair(student, batch)
        truth = compute_loss(*maps, batch, loss, generator)
        network = load_weights(teacher_path).model
        expected = distillation_loss(
            maps,
            (network.encode(batch.image0), network.encode(batch.image1)),
            batch.points0,
            batch.points1,
            batch.is_valid,
            temperature=0.2,
        )
        torch.testing.assert_close(compare_with_teacher(*maps, batch, teacher), 2 * expected)
    student = build_model(config.model).train()  # whose norms have not yet seen the batch
    optimiser = torch.optim.SGD(student.parameters(), lr=0.0)
    result = training_step(student, batch, loss, optimiser, 1.0, generator, teacher=teacher)
    torch.testing.assert_close(result.loss, truth + 2 * expected)
    for name, value in teacher.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_descriptors_cost_where_asked_for(teacher_path: Path) -> None:
    entry = {"weights": str(teacher_path), "weight": 2.0, "temperature": 0.2}
    config, batch = make_run(teacher_path, teacher=entry | {"descriptor_weight": 3.0}), make_batch()
    student = build_model(config.model).eval()
    teacher = load_teacher(config, student, CPU)
    assert teacher is not None and teacher.descriptor_weight == 3
    with torch.no_grad():
        maps = encode_pair(student, batch)
        without = compare_with_teacher(*maps, batch, replace(teacher, descriptor_weight=0.0))
        expected = without + 3 * descriptor_loss(maps, encode_pair(teacher.model, batch))
        torch.testing.assert_close(compare_with_teacher(*maps, batch, teacher), expected)
        assert expected > without + 0.01


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_weight_of_the_ground_truth(teacher_path: Path, weight: float) -> None:
    entry = {"weights": str(teacher_path), "weight": 2.0, "temperature": 0.2, "ground_truth_weight": weight}
    config, batch = make_run(teacher_path, teacher=entry), make_batch()
    results = []
    for has_teacher in (True, False):
        student = build_model(config.model).train()
        teacher = load_teacher(config, student, CPU) if has_teacher else None
        optimiser = torch.optim.SGD(student.parameters(), lr=0.0)
        results.append(
            training_step(
                student, batch, LossConfig(), optimiser, 1.0, torch.Generator(), teacher=teacher
            ).loss
        )
        if teacher is not None:
            with torch.no_grad():
                cost = compare_with_teacher(
                    *encode_pair(build_model(config.model).train(), batch), batch, teacher
                )
    torch.testing.assert_close(results[0], cost + weight * results[1])


@pytest.mark.slow
def test_a_student_learns_what_its_teacher_finds(teacher_path: Path) -> None:
    config, batch = make_run(teacher_path), make_batch(N=60)
    student = build_model(config.model).train()
    teacher = load_teacher(config, student, CPU)
    assert teacher is not None
    optimiser = torch.optim.AdamW(student.parameters(), lr=2e-3)
    costs = []
    for _ in range(12):
        cost = compare_with_teacher(*encode_pair(student, batch), batch, teacher)
        optimiser.zero_grad()
        cost.backward()
        optimiser.step()
        costs.append(cost.item())
    assert costs[-1] < 0.6 * costs[0]


@pytest.mark.gpu
def test_a_teacher_in_bfloat16_costs_as_the_network_itself(teacher_path: Path) -> None:
    device, config = torch.device("cuda"), make_run(teacher_path)
    student = build_model(config.model).to(device).train()
    fast, plain = (
        load_teacher(replace(config, precision=precision), student, device)
        for precision in ("bf16", "float32")
    )
    assert fast is not None and plain is not None
    if isinstance(fast.model, CorrespondenceNetwork):
        pytest.skip("this device has no units for bfloat16")
    with torch.no_grad():
        for side in (64, 96, 64):  # each size has a graph of its own
            batch = make_batch(side=side).to(device)
            maps = encode_pair(student, batch, "float32")
            costs = (
                compare_with_teacher(*maps, batch, fast, "bf16"),
                compare_with_teacher(*maps, batch, plain, "float32"),
            )
            torch.testing.assert_close(*costs, rtol=2e-2, atol=1e-2)


def test_a_run_without_a_teacher_has_none() -> None:
    config = make_config()
    assert load_teacher(config, build_model(config.model), CPU) is None
    assert record_teacher_hash(config) is config


def test_another_grid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "coarse.safetensors"
    save_weights(path, build_model(ModelConfig(dim=4, strides=(2, 2, 2, 1), transformer="none")))
    config = make_run(path)
    with pytest.raises(ConfigError, match=r"stride 4 and offset 2, got 8 and"):
        load_teacher(config, build_model(config.model), CPU)


def test_the_file_is_noted_and_another_one_refused(teacher_path: Path) -> None:
    config = record_teacher_hash(make_run(teacher_path))
    assert config.teacher is not None and config.teacher.sha256 == load_weights(teacher_path).info.sha256
    record = record_config(config)
    assert record["teacher"]["weights"] == "teacher.safetensors"
    assert record["teacher"]["sha256"] == config.teacher.sha256
    assert record_teacher_hash(config) is config
    other = replace(config, teacher=replace(config.teacher, sha256="0" * 64))
    with pytest.raises(ConfigError, match=r"teacher.weights .* one is 0000000000000000…: give the file"):
        load_teacher(other, build_model(config.model), CPU)
    teacher_path.unlink()
    with pytest.raises(WeightsError, match="no weights"):
        load_teacher(config, build_model(config.model), CPU)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "teacher lacks the key 'weights'"),
        ({"weights": " "}, "teacher.weights must not be empty"),
        ({"weights": "geometric", "weight": -1}, r"teacher.weight must be in \[0, 1000\]"),
        (
            {"weights": "geometric", "ground_truth_weight": -1},
            r"teacher.ground_truth_weight must be in \[0, 1000\]",
        ),
        (
            {"weights": "geometric", "weight": 0, "ground_truth_weight": 0},
            "teacher.weight, descriptor_weight or ground_truth_weight must be above 0",
        ),
        (
            {"weights": "geometric", "descriptor_weight": 1001},
            r"teacher.descriptor_weight must be in \[0, 1000\]",
        ),
        ({"weights": "geometric", "temperature": 0}, r"teacher.temperature must be in \(0, 10\]"),
        ({"weights": "geometric", "wieght": 1}, "did you mean 'weight'"),
    ],
)
def test_settings_are_checked(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(teacher=values)


def test_recipes_fill_in_variables_and_the_hash(
    tmp_path: Path, teacher_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "run.yaml"
    recipe.write_text("name: a\nsteps: 1\nteacher:\n  weights: ${TAUGHT}/teacher.safetensors\n")
    with pytest.raises(ConfigError, match="TAUGHT is not set"):
        read_recipe(recipe)
    monkeypatch.setenv("TAUGHT", str(tmp_path))
    config = read_recipe(recipe, ["teacher.weight=3"])
    sha256 = load_weights(teacher_path).info.sha256
    assert config.teacher == TeacherConfig(str(teacher_path), 3.0, 0.05, sha256)
    assert TrainConfig.from_dict(config.to_dict()) == config


@pytest.mark.slow
def test_a_resumed_run_equals_an_unbroken_one(photos: Path, teacher_path: Path, tmp_path: Path) -> None:
    config = record_teacher_hash(make_run(teacher_path))
    unbroken = train_on(photos, config)
    folder = tmp_path / "broken"
    folder.mkdir()
    assert continue_run(config, photos, folder, asked_before=2)[0] is None
    last = load_run(folder, config, ["synthetic"])
    assert last is not None and last.config["teacher"]["sha256"]
    assert not any("teacher" in name for name in last.tensors)
    # Another teacher means another run.
    assert config.teacher is not None
    other = replace(config, teacher=replace(config.teacher, sha256="0" * 64))
    with pytest.raises(ConfigError, match=r"teacher\.sha256"):
        load_run(folder, other, ["synthetic"])
    resumed, _ = continue_run(config, photos, folder)
    assert resumed is not None
    assert_equal(resumed.model, unbroken.model)
    alone = train_on(photos, replace(config, teacher=None))
    with pytest.raises(AssertionError):
        assert_equal(alone.model, unbroken.model)


@pytest.mark.slow
def test_the_command_trains_with_a_teacher(photos: Path, teacher_path: Path, tmp_path: Path) -> None:
    recipe, output = tmp_path / "run.yaml", tmp_path / "small.safetensors"
    recipe.write_text(
        f"name: small\nsteps: 2\nbatch: 2\nmodel: {{trunk: lite, dim: 8, transformer: none}}\n"
        f"teacher: {{weights: {teacher_path}}}\nsynthetic: {{side: 64, points: 50}}\n"
    )
    arguments = ["train", str(recipe), "-o", str(output), "--images", str(photos), "--device", "cpu"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    loaded = load_weights(output)
    assert loaded.model.config.trunk == "lite"
    expected = {"weights": "teacher.safetensors", "sha256": load_weights(teacher_path).info.sha256}
    assert expected.items() <= loaded.training["teacher"].items()


def test_a_network_that_is_its_own_teacher_costs_nothing() -> None:
    teacher = Teacher(build_model(ModelConfig(dim=4, transformer="none")).eval(), 1.0, 0.1)
    batch = make_batch(B=1, N=5)
    with torch.no_grad():
        maps = encode_pair(teacher.model, batch)
        assert compare_with_teacher(*maps, batch, teacher).item() == pytest.approx(0, abs=1e-6)
