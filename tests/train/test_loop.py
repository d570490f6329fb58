"""The loop round the step, in a few small steps on the CPU."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from numbered_data import NumberedData
from photo_cases import write_photos
from ucn.config import Calibration, LossConfig, ModelConfig, TrainConfig
from ucn.errors import DataError, NonFiniteLossError, WeightsError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train import loop, sources
from ucn.train.loop import Progress, Trained, Validation, train, validate
from ucn.train.sources import Source, open_sources
from ucn.train.step import StepResult
from ucn.types import PairBatch

CPU = torch.device("cpu")
MODEL = ModelConfig(dim=8, transformer="none")


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_VALIDATION_PAIRS", 4)
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


def train_on(
    photos: Path | None,
    config: TrainConfig,
    report: Callable[[Progress], None] = ignore,
    keep: Callable[[Trained], None] = ignore,
) -> Trained:
    """Opens what the run trains on, as the command does, and trains."""
    with open_sources(config, photos, CPU) as mixture:
        return train(config, mixture, CPU, report, keep)


def run(config: TrainConfig, photos: Path) -> tuple[dict[str, Tensor], list[Progress]]:
    reports: list[Progress] = []
    trained = train_on(photos, config, reports.append)
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


class FakeSource(Source):
    """A source with a label and nothing else."""

    def __init__(self, label: str) -> None:
        super().__init__(label, 1.0)

    def draw(self, number: int, generator: torch.Generator) -> PairBatch:
        raise NotImplementedError

    def validation(self) -> Iterator[PairBatch]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


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
    trained = train_on(photos, make_config(steps=3, validate_every=2), reports.append)
    assert [report.step for report in reports] == [1, 2, 3]
    assert [report.pck is not None for report in reports] == [False, True, True]
    assert trained.pck == reports[trained.step - 1].pck
    assert list(trained.pck) == ["pck@1", "pck@3", "pck@5", "pck@10"]
    assert all(0 < report.loss < 100 and report.pairs_per_second > 0 for report in reports)
    assert not trained.model.training
    assert not any(parameter.requires_grad for parameter in trained.model.parameters())


def test_the_best_network_is_kept_as_it_was(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([0.25, 0.5, 0.5, 0.375])
    monkeypatch.setattr(loop, "validate", lambda *_: Validation({"pck@3": 0.9}, next(figures)))
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration(pair_bias=1.5))
    kept: list[Trained] = []
    config = make_config(steps=4, validate_every=1, average_decay=0.0)
    best = train_on(photos, config, ignore, kept.append)
    # Two steps that were better than all before (the third only equalled the second), and the calibrated end.
    assert [(trained.step, trained.score) for trained in kept] == [(1, 0.25), (2, 0.5), (2, 0.5)]
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
    train_on(photos, make_config(steps=5), reports.append)
    assert [(report.step, report.loss) for report in reports] == [(3, 3.0), (5, 4.5)]


def test_steps_follow_the_rates(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = FakeStep([1.0] * 4)
    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    train_on(photos, make_config(steps=4, warmup_steps=2, trunk_rate=0.5, head_rate=2.0))
    assert [rate for rates in step.rates for rate in rates] == [0.25, 1, 0.5, 2, 0.5, 2, 0.25, 1]


def test_a_broken_loss_stops_the_run(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "training_step", FakeStep([1.0, torch.nan]))
    with pytest.raises(NonFiniteLossError, match=r"became nan on the samples 01\.png, 01\.png"):
        train_on(photos, make_config())


def test_a_seed_fixes_the_run(photos: Path) -> None:
    first, reports = run(make_config(seed=1), photos)
    again, repeated = run(make_config(seed=1), photos)
    other, _ = run(make_config(seed=2), photos)
    assert largest_difference(first, again) == 0
    assert [(r.loss, r.pck) for r in reports] == [(r.loss, r.pck) for r in repeated]
    assert largest_difference(first, other) > 1e-3


def test_a_run_does_not_touch_the_global_generator(photos: Path) -> None:
    before = torch.random.get_rng_state()
    train_on(photos, make_config(steps=1))
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


def test_training_never_sees_a_held_out_image(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[str] = []
    step = FakeStep([1.0, 1.0])

    def record_errors(model: CorrespondenceNetwork, pair: PairBatch) -> Tensor:
        validated.extend(pair.names)
        return torch.zeros(1)

    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "_match_errors", record_errors)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    train_on(photos, make_config())
    assert (step.names, validated) == (["01.png"] * 4, ["00.png"] * 4)


def test_validation_counts_errors_within_thresholds(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(MODEL).eval()
    monkeypatch.setattr(loop, "_match_errors", lambda *_: torch.tensor([0.5, 3.0, 4.0, 20.0, torch.nan]))
    with open_sources(make_config(), photos, CPU) as mixture:
        found = validate(model, mixture.sources)
    assert found.pck == pytest.approx({"pck@1": 0.2, "pck@3": 0.4, "pck@5": 0.6, "pck@10": 0.6})
    assert found.score == pytest.approx(0.6)


def test_validation_is_the_same_each_time(photos: Path) -> None:
    model = build_model(MODEL).eval()
    with open_sources(make_config(), photos, CPU) as mixture:
        found = validate(model, mixture.sources)
        assert validate(model, mixture.sources) == found
    pck = found.pck
    assert 0 < pck["pck@10"] < 1
    assert pck["pck@1"] <= pck["pck@3"] <= pck["pck@5"] <= pck["pck@10"]


def test_errors_are_pixels_or_shares_of_a_length(photos: Path) -> None:
    model = build_model(MODEL).eval()
    with open_sources(make_config(), photos, CPU) as mixture:
        batch = next(mixture.sources[0].validation())
    (pair, _) = batch
    pixels = loop._match_errors(model, pair)
    assert len(pixels) == int(pair.is_valid.sum())
    shares = loop._match_errors(model, replace(pair, pck_length=torch.tensor([20.0])))
    assert torch.allclose(shares, pixels / 20)


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
        train_on(photos, make_config(init=str(tmp_path / "missing.npz")))
    with pytest.raises(DataError, match=r"no folder .*missing"):
        train_on(tmp_path / "missing", make_config())


SET = {"name": "numbered", "folder": "anywhere", "crop_hw": [64, 64], "points": 20, "workers": 0}


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> NumberedData:
    """A data set of six pairs with lengths, which `open_data` gives whatever it is asked for."""
    data = NumberedData(6, size_hw=(70, 80))
    monkeypatch.setattr(sources, "open_data", lambda *_: data)
    return data


def test_training_on_a_data_set_alone(numbered: NumberedData) -> None:
    config = make_config(sources=[SET | {"photometric": 0.5, "mirror": 0.5, "rotation": 20, "scale": 1.2}])
    kept: list[Trained] = []
    trained = train_on(None, config, ignore, kept.append)
    assert list(trained.pck) == ["pck@0.1", "pck@0.05"]
    assert trained.score == trained.pck["pck@0.1"]
    assert trained.calibration.match_bias != Calibration.match_bias
    assert trained.calibration.pair_bias == Calibration.pair_bias
    start = dict(build_model(MODEL, torch.Generator().manual_seed(0)).named_parameters())
    assert largest_difference(start, dict(trained.model.named_parameters())) > 1e-5


def test_a_mixture_of_photographs_and_a_data_set(
    numbered: NumberedData, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FakeStep([1.0] * 30)
    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration(pair_bias=1.5))
    reports: list[Progress] = []
    config = make_config(steps=30, sources=[SET | {"weight": 2.0, "batch": 3}])
    trained = train_on(photos, config, reports.append)
    photo_count, pair_count = step.names.count("01.png"), sum("pair" in name for name in step.names)
    assert photo_count + pair_count == len(step.names)
    assert photo_count % 2 == 0 and pair_count % 3 == 0
    assert photo_count // 2 + pair_count // 3 == 30
    assert 12 <= pair_count // 3 <= 27  # two thirds of the steps are meant
    assert list(trained.pck) == [
        *(f"numbered pck@{t}" for t in ("0.1", "0.05")),
        *(f"synthetic pck@{t}" for t in (1, 3, 5, 10)),
    ]
    expected = (trained.pck["numbered pck@0.1"] + trained.pck["synthetic pck@5"]) / 2
    assert trained.score == pytest.approx(expected)
    assert trained.calibration.pair_bias == 1.5  # of the photographs


def test_a_mixture_is_the_same_each_time(numbered: NumberedData, photos: Path) -> None:
    config = make_config(steps=3, sources=[SET | {"photometric": 1.0}])
    weights = [run(config, photos)[0] for _ in range(2)]
    with_workers = make_config(steps=3, sources=[SET | {"photometric": 1.0, "workers": 1}])
    weights.append(run(with_workers, photos)[0])
    assert largest_difference(weights[0], weights[1]) == largest_difference(weights[0], weights[2]) == 0


def test_a_source_without_points_to_validate_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([{"pck@5": torch.nan}, {"pck@0.1": 0.5, "pck@0.05": 0.25}])
    monkeypatch.setattr(loop, "_measure", lambda *_: next(figures))
    pair = [FakeSource("a"), FakeSource("b")]
    found = validate(build_model(MODEL), pair)
    assert list(found.pck) == ["a pck@5", "b pck@0.1", "b pck@0.05"] and found.score == 0.5
