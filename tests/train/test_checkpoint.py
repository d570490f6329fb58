"""Checkpoints: what they hold, which are refused, and that one is always whole."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from support.train_cases import assert_equal, make_config
from ucn.config import Calibration, TrainConfig
from ucn.errors import ConfigError, OutputError, WeightsError
from ucn.files.writing import write_bytes_atomically
from ucn.nn import build_model
from ucn.train import checkpoint
from ucn.train.checkpoint import (
    BEST,
    LAST,
    StepValidation,
    TrainingState,
    find_best,
    load_average,
    load_run,
    record_config,
    restore,
    save_run,
)
from ucn.train.optim import build_optimiser
from ucn.train.validation import Validation

SOURCES = ["synthetic", "cub"]


def make_state(config: TrainConfig, seed: int = 0, steps: int = 2) -> TrainingState:
    """A run after so many steps on random gradients."""
    generator = torch.Generator().manual_seed(seed)
    model = build_model(config.model, generator).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = build_model(config.model, generator)
    state = TrainingState(model, average, build_optimiser(model, config))
    for _ in range(steps):
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.empty_like(parameter).copy_(drawn)  # in the parameter's memory format
        state.optimiser.step()
        state.step += 1
    return state


def at(step: int, score: float) -> StepValidation:
    return StepValidation(step, Validation({"pck@5": score, "pck@10": float("nan")}, score))


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def rewrite(
    path: Path,
    header: Callable[[dict[str, str]], object] = lambda header: None,
    tensors: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
) -> None:
    """Changes a checkpoint's header or tensors."""
    old_header, old_tensors = read(path)
    header(old_header)
    tensors(old_tensors)
    path.write_bytes(safetensors.torch.save(old_tensors, old_header))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimiser": "sgd"},
        {"optimiser": "sgd", "momentum": 0.0},
        {"model": {"dim": 8, "head_norm": "batch"}},
    ],
)
def test_a_run_comes_back_as_it_was(changes: dict[str, object], tmp_path: Path) -> None:
    config = make_config(**changes)
    state = make_state(config)
    state.validations = [at(1, 0.5), at(2, 0.25)]
    state.start_calibration = Calibration(match_bias=-1.25)
    state.losses, state.gradient_norms = [torch.tensor(1.5)], [torch.tensor(0.25)]
    save_run(tmp_path, replace(state, step=1, validations=[at(1, 0.5)]), config, SOURCES)
    save_run(tmp_path, state, config, SOURCES)
    found = load_run(tmp_path, config, SOURCES)
    assert found is not None and found.step == 2
    assert str(found.validations) == str((at(1, 0.5), at(2, 0.25)))
    fresh = make_state(config, seed=1, steps=0)
    restore(fresh, found)
    assert_equal(fresh.model, state.model)
    assert_equal(fresh.average, state.average)
    assert fresh.start_calibration == Calibration(match_bias=-1.25)
    assert (fresh.step, fresh.losses, fresh.gradient_norms) == (2, [torch.tensor(1.5)], [torch.tensor(0.25)])
    for mine, theirs in zip(fresh.model.parameters(), state.model.parameters(), strict=True):
        new, old = fresh.optimiser.state[mine], state.optimiser.state[theirs]
        assert set(new) == {key for key, value in old.items() if value is not None}
        for key, value in new.items():
            assert torch.equal(value, old[key]), key
            if value.ndim == 4:
                assert value.is_contiguous(memory_format=torch.channels_last), key


def test_the_header_describes_the_run(tmp_path: Path) -> None:
    config = make_config(
        init="/where/it/lay/trunk.npz", sources=[{"name": "cub", "folder": "/where/it/lay/CUB"}], seed=7
    )
    save_run(tmp_path, make_state(config), config, SOURCES)
    header, _ = read(tmp_path / LAST)
    assert header["format"] == "ucn-checkpoint-1" and header["step"] == "2"
    assert json.loads(header["config"]) == record_config(config)
    assert json.loads(header["config"])["seed"] == 7
    assert "where" not in str(header)
    assert set(json.loads(header["versions"])) == {"ucn", "torch", "python"}
    assert json.loads(header["sources"]) == SOURCES


def test_the_best_is_the_first_of_the_highest_score() -> None:
    assert find_best([]) is None
    best = find_best([at(1, 0.5), at(2, 0.75), at(3, 0.75), at(4, 0.1)])
    assert best is not None and best.step == 2


def test_the_best_weights_come_back(tmp_path: Path) -> None:
    config = make_config()
    states = [make_state(config, seed) for seed in range(3)]
    history: list[StepValidation] = []
    for step, (state, score) in enumerate(zip(states, (0.25, 0.75, 0.5), strict=True), start=1):
        history.append(at(step, score))
        state.step, state.validations = step, list(history)
        save_run(tmp_path, state, config, SOURCES)
        found = load_run(tmp_path, config, SOURCES)
        assert found is not None
        model = build_model(config.model)
        load_average(model, found)
        assert_equal(model, states[min(step, 2) - 1].average)


def test_a_kill_between_the_two_files_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    first, second = make_state(config, 1), make_state(config, 2)
    first.validations, second.validations, second.step = [at(2, 0.5)], [at(2, 0.5), at(3, 0.75)], 3
    save_run(tmp_path, first, config, SOURCES)

    def killed(path: Path, *rest: object, **options: object) -> None:
        if path.name == BEST:
            raise KeyboardInterrupt
        write_bytes_atomically(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_bytes_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        save_run(tmp_path, second, config, SOURCES)
    monkeypatch.undo()
    found = load_run(tmp_path, config, SOURCES)
    assert found is not None and found.step == 3
    second.step, second.validations = 4, [*second.validations, at(4, 0.25)]
    save_run(tmp_path, second, config, SOURCES)  # the run goes on, and is killed again
    found = load_run(tmp_path, config, SOURCES)
    assert found is not None and found.step == 4
    model = build_model(config.model)
    load_average(model, found)
    assert_equal(model, second.average)


def test_a_failed_write_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    save_run(tmp_path, make_state(config), config, SOURCES)
    before = (tmp_path / LAST).read_bytes()

    def fill(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fill)
    with pytest.raises(OutputError, match=r"last\.safetensors: no space left"):
        save_run(tmp_path, make_state(config, seed=3), config, SOURCES)
    assert (tmp_path / LAST).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [LAST]


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert load_run(tmp_path, make_config(), SOURCES) is None
    assert load_run(tmp_path / "missing", make_config(), SOURCES) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 4}, r"batch \(there 2, here 4\)\."),
        ({"steps": 9}, r"steps \(there 2, here 9\)"),
        ({"loss": {"radius": 3}}, r"loss\.radius \(there 16\.0, here 3\.0\)"),
        ({"init": "other.npz"}, r"init \(there 'random', here 'other\.npz'\)"),
        ({"seed": 1, "clip_norm": 3.0}, r"seed \(there 0, here 1\), clip_norm \(there 1\.0, here 3\.0\)"),
        (
            {"sources": [{"name": "cub"}]},
            r"sources\.0\.name \(there None, here 'cub'\).* and \d+ more",
        ),
    ],
)
def test_another_run_is_refused_by_the_keys_that_differ(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    config = make_config()
    save_run(tmp_path, make_state(config), config, SOURCES)
    with pytest.raises(
        ConfigError, match=f"last.safetensors is of another run; these differ: .*{says}.*overwrite=True"
    ):
        load_run(tmp_path, make_config(**changes), SOURCES)


def test_other_data_are_refused(tmp_path: Path) -> None:
    config = make_config()
    save_run(tmp_path, make_state(config), config, SOURCES)
    with pytest.raises(ConfigError, match=r"training data \(there 'synthetic, cub', here 'one batch'\)"):
        load_run(tmp_path, config, ["one batch"])


def test_settings_that_change_nothing_may_change(tmp_path: Path) -> None:
    source = {"name": "cub", "folder": "/here/cub"}
    config = make_config(sources=[source])
    save_run(tmp_path, make_state(config), config, SOURCES)
    moved = {"sources": [source | {"folder": "/there/cub", "workers": 7}]}
    other = make_config(validate_every=3, checkpoint_every=4, use_compile=True, **moved)
    assert load_run(tmp_path, other, SOURCES) is not None
    constant = make_config(schedule="constant")
    save_run(tmp_path, make_state(constant), constant, SOURCES)
    assert load_run(tmp_path, make_config(schedule="constant", steps=99), SOURCES) is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is not a readable checkpoint"),
        (lambda path: path.write_bytes(b""), "is not a readable checkpoint"),
        (lambda path: path.write_bytes(b"\x80\x04pickle" * 9), "is not a readable checkpoint"),
        (
            lambda path: rewrite(path, lambda h: h.update(format="pt")),
            "expected format 'ucn-checkpoint-1'.*'pt'",
        ),
        (lambda path: rewrite(path, lambda h: h.pop("format")), "is not a checkpoint of ucn"),
        (lambda path: rewrite(path, lambda h: h.update(step="0")), "header of .* is damaged: step must be"),
        (lambda path: rewrite(path, lambda h: h.update(step="many")), "header of .* is damaged"),
        (lambda path: rewrite(path, lambda h: h.pop("sources")), "header of .* is damaged"),
        (lambda path: rewrite(path, lambda h: h.update(validations="[3]")), "header of .* is damaged"),
        (lambda path: rewrite(path, lambda h: h.update(validations='[{"pck": 3}]')), "is damaged"),
        (lambda path: rewrite(path, lambda h: h.update(config="{")), "header of .* is damaged"),
        (lambda path: rewrite(path, lambda h: h.update(config="[" * 100_000)), "header of .* is damaged"),
        (
            lambda path: rewrite(path, lambda h: h.update(config='{"x": 1}')),
            "not of this version.*unknown key 'x'",
        ),
        (lambda path: path.unlink() or path.mkdir(), "cannot read checkpoint|not a readable checkpoint"),
    ],
)
def test_damaged_files_are_refused(change: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    config = make_config()
    save_run(tmp_path, make_state(config), config, SOURCES)
    change(tmp_path / LAST)
    with pytest.raises(WeightsError, match=says):
        load_run(tmp_path, config, SOURCES)


NAME = "model.trunk.conv1.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(NAME), f"does not fit this run: 1 tensors differ, first '{NAME}'"),
        (lambda t: t.update(more=torch.zeros(1)), "1 tensors differ, first 'more'"),
        (lambda t: t.pop("optimiser.exp_avg.projection.bias"), "'optimiser.exp_avg.projection.bias'"),
        (lambda t: t.pop("window.loss"), "first 'window.loss'"),
        (lambda t: t.update({NAME: torch.zeros(3)}), r"must be torch.float32 \(64, 3, 7, 7\), got .* \(3,\)"),
        (lambda t: t.update({NAME: t[NAME].half()}), "must be torch.float32 .*, got torch.float16"),
        (lambda t: t[NAME].fill_(torch.nan), f"'{NAME}' of .* holds values that are not finite"),
        (lambda t: t.update({"window.loss": torch.zeros(3)}), "window.gradient_norm.*must be"),
        (lambda t: t.update({"window.loss": torch.zeros(2, 2)}), "window.loss.*must be"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Tensor]], object], says: str, tmp_path: Path
) -> None:
    config = make_config()
    save_run(tmp_path, make_state(config), config, SOURCES)
    assert NAME in read(tmp_path / LAST)[1]
    rewrite(tmp_path / LAST, tensors=change)
    found = load_run(tmp_path, config, SOURCES)
    assert found is not None
    with pytest.raises(WeightsError, match=says):
        restore(make_state(config, steps=0), found)


def test_a_best_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    config = make_config()
    state = make_state(config)
    state.validations = [at(1, 0.5), at(2, 0.25)]
    save_run(tmp_path, state, config, SOURCES)
    with pytest.raises(WeightsError, match=r"cannot read checkpoint .*best\.safetensors: No such file"):
        load_run(tmp_path, config, SOURCES)
    (tmp_path / BEST).write_bytes((tmp_path / LAST).read_bytes())
    with pytest.raises(WeightsError, match=r"best\.safetensors is of step 2, but .* best step of .* is 1"):
        load_run(tmp_path, config, SOURCES)


def test_a_file_too_large_to_be_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    save_run(tmp_path, make_state(config), config, SOURCES)
    monkeypatch.setattr(checkpoint, "_MAX_FILE_BYTES", 1000)
    with pytest.raises(WeightsError, match="bytes; checkpoints have at most 1000"):
        load_run(tmp_path, config, SOURCES)
