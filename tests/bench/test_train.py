from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.bench_cases import CPU, check_part, make_fake_cuda, make_settings, replace_timings
from ucn.bench import train
from ucn.bench.train import list_runs, make_bank, make_stepper, resolve_teacher
from ucn.config import ModelConfig, TeacherConfig, TrainConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.step import Teacher
from ucn.weights import WeightsInfo, list_weights, load_weights


def test_photographs_depend_on_the_seed_alone() -> None:
    first, same, other = (make_bank(CPU, seed, count=6).canvases for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_runs_are_the_papers_and_the_shipped_one() -> None:
    paper, shipped = list_runs(make_settings()).values()
    assert paper.loss.kind == "contrastive"
    assert shipped.loss.kind == "infonce"
    assert shipped.model.levels >= 1
    assert paper.batch == shipped.batch
    assert paper.synthetic.points == shipped.synthetic.points


@pytest.mark.parametrize("info", list_weights(), ids=lambda info: info.name)
def test_recipes_of_all_shipped_weights_are_read(info: WeightsInfo) -> None:
    assert TrainConfig.from_record(load_weights(info.name).training).steps > 0


def test_steps_move_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CorrespondenceNetwork] = []

    def build(config: ModelConfig) -> CorrespondenceNetwork:
        made.append(build_model(config))
        return made[-1]

    monkeypatch.setattr(train, "build_model", build)
    config = next(iter(list_runs(make_settings()).values()))
    stepper = make_stepper(config, make_bank(CPU, 0, count=2), make_settings(), is_compiled=False)
    weight = next(made[0].trunk.parameters())
    before = weight.detach().clone()
    precision = torch.get_float32_matmul_precision()
    stepper.advance()
    assert not torch.equal(weight, before)
    assert torch.get_float32_matmul_precision() == precision


def _teach(weights: str) -> TrainConfig:
    config = next(iter(list_runs(make_settings()).values()))
    return replace(config, name="student", teacher=TeacherConfig(weights, sha256="0" * 64))


def test_a_step_includes_its_teacher_whichever_file_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config, note = resolve_teacher(_teach("geometric"))
    assert note == "The steps of student include its teacher, geometric."
    assert config.teacher is not None
    teachers: list[object] = []

    def step(*_: object, teacher: object) -> None:
        teachers.append(teacher)

    monkeypatch.setattr(train, "training_step", step)
    make_stepper(config, make_bank(CPU, 0, count=2), make_settings(), is_compiled=False).advance()
    assert len(teachers) == 1
    assert isinstance(teachers[0], Teacher)


def test_a_missing_teacher_is_left_out(tmp_path: Path) -> None:
    config, note = resolve_teacher(_teach(str(tmp_path / "missing.safetensors")))
    assert config.teacher is None
    assert "Without the teacher" in note
    assert "missing.safetensors" in note
    plain = next(iter(list_runs(make_settings()).values()))
    assert resolve_teacher(plain) == (plain, "")


@pytest.mark.slow
def test_a_run_with_a_teacher_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(train, monkeypatch)
    monkeypatch.setattr(train, "list_runs", lambda _: {"student's recipe": _teach("geometric")})
    (table,) = train.measure(make_settings()).tables
    assert [row[0] for row in table.rows] == ["student's recipe"]
    assert any("include its teacher" in note for note in table.notes)


@pytest.mark.slow
@pytest.mark.parametrize("is_cuda", [False, True])
def test_table(is_cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(train, monkeypatch)
    part = train.measure(make_fake_cuda() if is_cuda else make_settings())
    check_part(part)
    (table,) = part.tables
    assert len(table.rows) == 2
    assert table.rows[0][2:4] == (500.0, 1000.0)  # two pairs a step of 2 ms
