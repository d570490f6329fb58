"""The loop round the step, in a few small steps on the CPU."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from photo_cases import write_photos
from ucn.config import Calibration, LossConfig, ModelConfig, TrainConfig
from ucn.data.synthetic import ImageBank
from ucn.errors import DataError, NonFiniteLossError, WeightsError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train import loop
from ucn.train.loop import Progress, Trained, train, validate
from ucn.train.step import StepResult
from ucn.types import PairBatch

CPU = torch.device("cpu")
MODEL = ModelConfig(dim=8, transformer="none")


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_VALIDATION_PAIRS", 4)
    monkeypatch.setattr(loop, "_CALIBRATION_PAIRS", 2)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    return tmp_path / "photos"


def make_config(**changes: object) -> TrainConfig:
    base = {
        "name": "tiny",
        "steps": 2,
        "batch": 2,
        "warmup_steps": 0,
        "head_rate": 1e-3,
        "trunk_rate": 1e-3,
        "model": MODEL,
        "synthetic": {"side": 64, "points": 50},
    }
    return TrainConfig.from_dict(base | changes)


def ignore(_: object) -> None:
    """Takes reports and networks that a test does not look at."""


def run(config: TrainConfig, photos: Path) -> tuple[dict[str, Tensor], list[Progress]]:
    reports: list[Progress] = []
    trained = train(config, photos, CPU, reports.append, ignore)
    return dict(trained.model.named_parameters()), reports


class FakeStep:
    """A training step that trains nothing and says given losses; remembers its samples and learning rates."""

    def __init__(self, losses: list[float]) -> None:
        self.names: list[str] = []
        self.rates: list[list[float]] = []
        self._losses = iter(losses)

    def __call__(
        self, model: Module, batch: PairBatch, loss: LossConfig, optimiser: Optimizer, *_: object
    ) -> StepResult:
        self.names.extend(batch.names)
        self.rates.append([group["lr"] for group in optimiser.param_groups])
        optimiser.step()
        return StepResult(torch.tensor(next(self._losses)), torch.tensor(0.0))


def largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def test_rates_rise_and_fall_along_a_cosine() -> None:
    config = make_config(steps=10, warmup_steps=4)
    factors = [loop._rate_factor(step, config) for step in range(12)]
    # From step 4 on, 6 steps of half a cosine: 1, 0.933, 0.75, 0.5, 0.25, 0.067, 0.
    expected = [0.25, 0.5, 0.75, 1, 1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0, 0]
    assert factors == pytest.approx(expected, abs=1e-6)


def test_rates_without_warmup_and_with_nothing_else() -> None:
    assert loop._rate_factor(0, make_config(steps=4, warmup_steps=0)) == 1
    assert loop._rate_factor(2, make_config(steps=4, warmup_steps=0)) == pytest.approx(0.5)
    config = make_config(steps=4, warmup_steps=4)
    assert [loop._rate_factor(step, config) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]


def test_the_moving_average_by_hand() -> None:
    config = ModelConfig(dim=8, head_norm="batch")
    average, model = build_model(config), build_model(config)
    with torch.no_grad():
        for kept, current in zip(average.parameters(), model.parameters(), strict=True):
            kept.fill_(1)
            current.fill_(3)
        for buffer in model.buffers():
            buffer.fill_(7)
    loop._update_average(average, model, 0.75)
    assert all((parameter == 1.5).all() for parameter in average.parameters())  # 0.75 * 1 + 0.25 * 3
    assert all((parameter == 3).all() for parameter in model.parameters())
    buffers = list(average.buffers())
    assert len(buffers) == 3 and all((buffer == 7).all() for buffer in buffers)


def test_the_average_trusts_early_weights_little(photos: Path) -> None:
    # The decay of step 1 is 1 / 11 at most, so the average is a tenth of a step away from the weights.
    start = dict(build_model(MODEL, torch.Generator().manual_seed(0)).named_parameters())
    end, _ = run(make_config(steps=1, average_decay=0.0), photos)
    average, _ = run(make_config(steps=1, average_decay=0.999), photos)
    assert largest_difference(start, end) > 1e-4
    expected = {name: start[name] / 11 + end[name] * 10 / 11 for name in start}
    assert largest_difference(average, expected) < 1e-6
    half, _ = run(make_config(steps=1, average_decay=0.05), photos)
    expected = {name: 0.05 * start[name] + 0.95 * end[name] for name in start}
    assert largest_difference(half, expected) < 1e-6


def test_reports(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_CHECK_EVERY", 1)
    reports: list[Progress] = []
    trained = train(make_config(steps=3, validate_every=2), photos, CPU, reports.append, ignore)
    assert [report.step for report in reports] == [1, 2, 3]
    assert [report.pck is not None for report in reports] == [False, True, True]
    assert trained.pck == reports[trained.step - 1].pck
    assert list(trained.pck) == ["pck@1", "pck@3", "pck@5", "pck@10"]
    assert all(0 < report.loss < 100 and report.pairs_per_second > 0 for report in reports)
    assert not trained.model.training
    assert not any(parameter.requires_grad for parameter in trained.model.parameters())


def test_the_best_network_is_kept_as_it_was(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([0.25, 0.5, 0.5, 0.375])
    monkeypatch.setattr(loop, "validate", lambda *_: {"pck@5": next(figures)})
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration(pair_bias=1.5))
    kept: list[Trained] = []
    config = make_config(steps=4, validate_every=1, average_decay=0.0)
    best = train(config, photos, CPU, ignore, kept.append)
    # Two steps that were better than all before (the third only equalled the second), and the calibrated end.
    assert [(trained.step, trained.pck["pck@5"]) for trained in kept] == [(1, 0.25), (2, 0.5), (2, 0.5)]
    assert [trained.calibration.pair_bias for trained in kept] == [Calibration.pair_bias] * 2 + [1.5]
    assert best is kept[-1]
    weights = [dict(trained.model.named_parameters()) for trained in kept]
    assert largest_difference(weights[0], weights[1]) > 1e-4
    assert largest_difference(weights[1], weights[2]) == 0


def test_a_report_averages_the_losses_since_the_last(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "training_step", FakeStep([1.0, 2.0, 6.0, 4.0, 5.0]))
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    monkeypatch.setattr(loop, "_CHECK_EVERY", 3)
    reports: list[Progress] = []
    train(make_config(steps=5), photos, CPU, reports.append, ignore)
    assert [(report.step, report.loss) for report in reports] == [(3, 3.0), (5, 4.5)]


def test_steps_follow_the_rates(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = FakeStep([1.0] * 4)
    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    train(make_config(steps=4, warmup_steps=2, trunk_rate=0.5, head_rate=2.0), photos, CPU, ignore, ignore)
    assert [rate for rates in step.rates for rate in rates] == [0.25, 1, 0.5, 2, 0.5, 2, 0.25, 1]


def test_a_broken_loss_stops_the_run(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "training_step", FakeStep([1.0, torch.nan]))
    with pytest.raises(NonFiniteLossError, match=r"became nan on the samples 01\.png, 01\.png"):
        train(make_config(), photos, CPU, ignore, ignore)


def test_a_seed_fixes_the_run(photos: Path) -> None:
    first, reports = run(make_config(seed=1), photos)
    again, repeated = run(make_config(seed=1), photos)
    other, _ = run(make_config(seed=2), photos)
    assert largest_difference(first, again) == 0
    assert [(r.loss, r.pck) for r in reports] == [(r.loss, r.pck) for r in repeated]
    assert largest_difference(first, other) > 1e-3


def test_a_run_does_not_touch_the_global_generator(photos: Path) -> None:
    before = torch.random.get_rng_state()
    train(make_config(steps=1), photos, CPU, ignore, ignore)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_trunk_has_its_own_rate(photos: Path) -> None:
    config = make_config(trunk_rate=0.0, average_decay=0.0)
    weights, _ = run(config, photos)
    start = build_model(MODEL, torch.Generator().manual_seed(config.seed))
    for name, parameter in start.named_parameters():
        assert torch.equal(parameter, weights[name]) == name.startswith("trunk."), name
    groups = loop._parameter_groups(start, make_config(trunk_rate=0.25, head_rate=0.5))
    assert [group["lr"] for group in groups] == [0.25, 0.5]
    grouped = [id(parameter) for group in groups for parameter in group["params"]]  # type: ignore[attr-defined]
    assert sorted(grouped) == sorted(map(id, start.parameters()))


@pytest.mark.parametrize(
    ("count", "share", "held_out"),
    [(5, 0.05, [0]), (5, 0.5, [0, 2, 4]), (7, 0.34, [0, 3, 6]), (2, 0.1, [0])],
)
def test_images_are_held_out(tmp_path: Path, count: int, share: float, held_out: list[int]) -> None:
    write_photos(tmp_path / "photos", [(40, 40)] * count)
    training, validation = loop._split(tmp_path / "photos", make_config(validation_share=share), CPU)
    assert validation.names == [f"{index:02}.png" for index in held_out]
    assert training.names == [f"{index:02}.png" for index in range(count) if index not in held_out]


def test_a_lone_image_serves_training_and_validation(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(40, 40)])
    training, validation = loop._split(tmp_path / "photos", make_config(), CPU)
    assert training.names == validation.names == ["00.png"]


def test_training_never_sees_a_held_out_image(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[str] = []
    step = FakeStep([1.0, 1.0])

    def record_errors(model: CorrespondenceNetwork, pair: PairBatch) -> Tensor:
        validated.extend(pair.names)
        return torch.zeros(1)

    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "_match_errors", record_errors)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    train(make_config(), photos, CPU, ignore, ignore)
    assert (step.names, validated) == (["01.png"] * 4, ["00.png"] * 4)


def test_validation_counts_errors_within_thresholds(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = ImageBank(sorted(photos.iterdir()), 128, CPU)
    model = build_model(MODEL).eval()
    monkeypatch.setattr(loop, "_match_errors", lambda *_: torch.tensor([0.5, 3.0, 4.0, 20.0, torch.nan]))
    found = validate(model, bank, make_config())
    assert found == pytest.approx({"pck@1": 0.2, "pck@3": 0.4, "pck@5": 0.6, "pck@10": 0.6})


def test_validation_is_the_same_each_time(photos: Path) -> None:
    bank = ImageBank(sorted(photos.iterdir()), 128, CPU)
    model = build_model(MODEL).eval()
    config = make_config()
    found = validate(model, bank, config)
    assert validate(model, bank, config) == found
    assert 0 < found["pck@10"] < 1
    assert found["pck@1"] <= found["pck@3"] <= found["pck@5"] <= found["pck@10"]


def test_a_run_can_start_from_the_imagenet_trunk(data_folder: Path) -> None:
    path = data_folder / "googlenet" / "bvlc_googlenet_conv1_to_inception_4a.npz"
    model = loop._start_model(make_config(init=str(path)))
    with np.load(path) as arrays:
        weight = arrays["inception_3a_3x3_w"]
    assert np.array_equal(
        dict(model.named_parameters())["trunk.inception_3a.conv_3x3.weight"].detach(), weight
    )


def test_missing_trunk_and_missing_images(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no trunk weights at .*missing\.npz"):
        train(make_config(init=str(tmp_path / "missing.npz")), photos, CPU, ignore, ignore)
    with pytest.raises(DataError, match=r"no folder .*missing"):
        train(make_config(), tmp_path / "missing", CPU, ignore, ignore)
