"""Runs that are stopped, broken or killed, and go on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.bird_cases import write_birds
from support.train_cases import CPU, assert_equal, continue_run, ignore, make_config
from ucn.config import TrainConfig
from ucn.data.loading import WorkerExitedError
from ucn.errors import ConfigError, NonFiniteLossError, UcnError
from ucn.nn import CorrespondenceNetwork
from ucn.train import loop
from ucn.train.checkpoint import load_run
from ucn.train.log import Progress
from ucn.train.loop import train
from ucn.train.signals import StoppedError
from ucn.train.sources import photographs
from ucn.train.sources.batches import Mixture, Source, open_sources
from ucn.train.step import StepResult, training_step
from ucn.train.validation import Validation
from ucn.types import PairBatch

pytestmark = pytest.mark.usefixtures("few_pairs")


def without_speed(reports: list[Progress]) -> list[Progress]:
    return [
        replace(each, pairs_per_second=0.0, correspondences_per_second=0.0, seconds_per_step=0.0)
        for each in reports
    ]


RUNS = {
    "adamw": {"validate_every": 2},
    "the best lies before": {"validate_every": 1},
    "sgd": {"optimiser": "sgd", "use_nesterov": True, "validate_every": 4},
    "sgd without momentum": {"optimiser": "sgd", "momentum": 0.0, "schedule": "constant"},
    "semantic level": {
        "model": {"dim": 8, "transformer": "none", "semantic_dim": 6},
        "semantic_learning_rate": 1e-3,
        "validate_every": 2,
    },
    "batch norm": {"model": {"dim": 8, "head_norm": "batch"}, "use_vector_decay": False, "warmup_steps": 2},
    "frozen norms, a loss of the source's own, dilated context": {
        "model": {
            "dim": 8,
            "head_norm": "batch",
            "transformer": "none",
            "context_layers": 2,
            "context_dilation": 2,
        },
        "freeze_norms": True,
        "sources": [{"name": "synthetic", "loss": {"kind": "contrastive", "mining": "random"}}],
    },
    "hard light, other colours, poses, blends and borders": {
        "synthetic": {
            "side": 64,
            "points": 50,
            "illumination": 0.7,
            "recolour": 0.5,
            "mirror": 0.5,
            "blend_share": 0.5,
            "crop_degrees": 15.0,
            "crop_stretch": 1.2,
            "border": "other",
            "parallax_share": 0.5,
        }
    },
    "random mining": {
        "loss": {"kind": "contrastive", "mining": "random"},
        "schedule": "step",
        "milestones": [2],
    },
}


def check_resuming(config: TrainConfig, photos: Path, tmp_path: Path, label: str = "synthetic") -> None:
    """Stops a run after two steps and goes on; that must be the same as not to stop."""
    folders = tmp_path / "unbroken", tmp_path / "broken"
    for folder in folders:
        folder.mkdir()
    unbroken, expected = continue_run(config, photos, folders[0])
    nothing, first = continue_run(config, photos, folders[1], asked_before=2)
    resumed, second = continue_run(config, photos, folders[1])
    assert nothing is None and unbroken is not None and resumed is not None
    assert_equal(resumed.model, unbroken.model)
    assert (resumed.step, resumed.score) == (unbroken.step, unbroken.score)
    assert resumed.calibration == unbroken.calibration
    assert str(without_speed(first + second)) == str(without_speed(expected))  # NaN is not equal to itself
    ends = [load_run(folder, config, [label]) for folder in folders]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    for name, value in ends[0].tensors.items():
        assert torch.equal(value, ends[1].tensors[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS.keys())
def test_a_resumed_run_equals_an_unbroken_one(
    changes: dict[str, object], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_CHECK_EVERY", 2)
    if changes.get("validate_every") == 1:
        scores = iter([0.1, 0.9, 0.2, 0.3, 0.4, 0.5] * 2)
        monkeypatch.setattr(loop, "validate", lambda *_: Validation({"pck@5": torch.nan}, next(scores)))
    check_resuming(make_config(**{"steps": 6} | changes), photos, tmp_path)


@pytest.mark.slow
def test_a_resumed_run_on_mixed_photographs_equals_an_unbroken_one(photos: Path, tmp_path: Path) -> None:
    write_birds(tmp_path / "birds", size_hw=(70, 80))
    entries = [
        {"name": "synthetic", "weight": 0.7},
        {"name": "cub", "folder": str(tmp_path / "birds"), "use_warps": True, "weight": 0.3},
    ]
    config = make_config(steps=4, validate_every=4, sources=entries)
    check_resuming(config, photos, tmp_path, "synthetic + cub")
    # Other shares of the entries, or other pairs, are another run.
    for changes in ({"weight": 0.5}, {"use_warps": False}, {"loss": {"radius": 3.0}}):
        other = make_config(steps=4, validate_every=4, sources=[entries[0], entries[1] | changes])
        with pytest.raises(ConfigError, match=rf"sources\S*{next(iter(changes))}"):
            load_run(tmp_path / "broken", other, ["synthetic + cub"])


@pytest.mark.slow
def test_a_run_that_goes_on_amid_batches_made_at_once_equals_an_unbroken_one(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photographs, "_count_ahead", lambda *_: 3)  # the run is stopped after two steps
    check_resuming(make_config(steps=5, validate_every=5), photos, tmp_path)


@pytest.mark.slow
def test_checkpoints_come_at_their_steps_and_at_validations(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(loop, "save_run", lambda folder, state, *_: written.append(state.step))
    config = make_config(steps=7, checkpoint_every=3, validate_every=4)
    with open_sources(config, photos, CPU) as mixture:
        train(config, mixture, CPU, ignore, ignore, folder=tmp_path)
        assert written == [3, 4, 6, 7]
        train(config, mixture, CPU, ignore, ignore)
    assert written == [3, 4, 6, 7]  # nothing without a folder


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_broken_run_leaves_the_last_good_checkpoint(
    what: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(model: CorrespondenceNetwork, *rest: object) -> StepResult:
        result: StepResult = training_step(model, *rest)  # type: ignore[arg-type]
        steps.append(1)
        if len(steps) < 4:
            return result
        broken = torch.tensor(torch.inf)
        return replace(result, loss=broken) if what == "loss" else replace(result, gradient_norm=broken)

    steps: list[int] = []
    monkeypatch.setattr(loop, "training_step", step)
    config = make_config(steps=9, checkpoint_every=2)
    with (
        open_sources(config, photos, CPU) as mixture,
        pytest.raises(NonFiniteLossError, match=rf"the {what} became inf on the samples 01\.png, 01\.png"),
    ):
        train(config, mixture, CPU, ignore, ignore, folder=tmp_path)
    left = load_run(tmp_path, config, ["synthetic"])
    assert left is not None and left.step == 2


class Failing(Source):
    """A source of photographs whose readers fail at a step."""

    def __init__(self, inner: Source, at: int) -> None:
        super().__init__(inner.label, 1.0)
        self._inner, self._at = inner, at

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        if number + 1 == self._at:
            raise WorkerExitedError("a process that reads data ended")
        return self._inner.sample_batch(number, generator)

    def validation_batches(self) -> Iterator[PairBatch]:
        return self._inner.validation_batches()

    def close(self) -> None:
        self._inner.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "is_asked"), [([True], True), ([False] * 5 + [True], True), ([False] * 10_000, False)]
)
def test_readers_that_a_signal_ended_do_not_cost_the_checkpoint(
    answers: list[bool], is_asked: bool, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_asked:
        monkeypatch.setattr(loop, "_SIGNAL_DELAY_S", 60)
    config = make_config(steps=5)
    with open_sources(config, photos, CPU) as opened:
        mixture = Mixture([Failing(opened.sources[0], at=3)], config.seed)
        asked = iter([False, False, *answers])  # after two steps and, perhaps later, after the error
        with pytest.raises(StoppedError if is_asked else UcnError, match=None if is_asked else "data ended"):
            train(config, mixture, CPU, ignore, ignore, folder=tmp_path, should_stop=lambda: next(asked))
    left = load_run(tmp_path, config, ["synthetic"])
    assert (left.step if left else None) == (2 if is_asked else None)


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_validation(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_CHECK_EVERY", 1)
    config = make_config(steps=4, validate_every=2)
    folders = tmp_path / "unbroken", tmp_path / "broken"
    for folder in folders:
        folder.mkdir()
    unbroken, expected = continue_run(config, photos, folders[0])
    reports: list[Progress] = []
    for asked_before, steps in ((1, [1]), (2, [2, 3])):  # stopped before the validations of steps 2 and 4
        nothing, part = continue_run(config, photos, folders[1], asked_before)
        assert nothing is None and [report.step for report in part] == steps
        reports += part
    resumed, part = continue_run(config, photos, folders[1])
    assert resumed is not None and unbroken is not None
    assert_equal(resumed.model, unbroken.model)
    assert without_speed(reports + part) == without_speed(expected)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["pictures", "calibration"])
def test_a_signal_after_a_validation_loses_nothing(
    part: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise WorkerExitedError("a process that reads data ended")

    config = make_config(steps=3)
    folders = tmp_path / "unbroken", tmp_path / "broken"
    for folder in folders:
        folder.mkdir()
    unbroken, _ = continue_run(config, photos, folders[0])
    asked = iter([False] * 3 + [True])
    with open_sources(config, photos, CPU) as mixture, monkeypatch.context() as broken:
        look = fail if part == "pictures" else None
        if part == "calibration":
            broken.setattr(loop, "_calibrate", fail)
        with pytest.raises(StoppedError, match="step 3"):
            train(
                config, mixture, CPU, ignore, ignore, folder=folders[1], on_validation=look,
                should_stop=lambda: next(asked),
            )  # fmt: skip
    resumed, reports = continue_run(config, photos, folders[1])
    assert reports == []  # the validation is not made twice
    assert resumed is not None and unbroken is not None
    assert_equal(resumed.model, unbroken.model)
    assert (resumed.pck, resumed.calibration) == (unbroken.pck, unbroken.calibration)


def test_a_validation_that_a_signal_broke_is_made_later(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Validation:
        raise UcnError("a process that reads data ended")

    config = make_config(steps=2)
    asked = iter([False, False, True])
    with open_sources(config, photos, CPU) as mixture, monkeypatch.context() as broken:
        broken.setattr(loop, "validate", fail)
        with pytest.raises(StoppedError, match="step 2"):
            train(config, mixture, CPU, ignore, ignore, folder=tmp_path, should_stop=lambda: next(asked))
    resumed, reports = continue_run(config, photos, tmp_path)
    assert [report.step for report in reports] == [2] and 0 < reports[0].loss < 100
    assert resumed is not None and resumed.step == 2
