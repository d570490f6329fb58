"""The loop around the step, in a few small steps on the CPU."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from support.numbered_data import NumberedData
from support.train_cases import CPU, MODEL, ignore, make_config, train_on
from ucn.config import Calibration, LossConfig, SyntheticConfig, TrainConfig
from ucn.data.bundled import MINI_IMAGES
from ucn.data.io import read_image
from ucn.errors import DataError, NonFiniteLossError, WeightsError
from ucn.matching.matcher import Matcher
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train import calibration, loop, validation
from ucn.train.log import Progress
from ucn.train.loop import Trained, train
from ucn.train.sources import batches as sources
from ucn.train.sources.batches import open_sources
from ucn.train.step import StepResult
from ucn.train.validation import Validation
from ucn.types import PairBatch, PairSample
from ucn.weights import load_weights, save_weights

pytestmark = pytest.mark.usefixtures("few_pairs")


def run(config: TrainConfig, photos: Path) -> tuple[dict[str, Tensor], list[Progress]]:
    reports: list[Progress] = []
    trained = train_on(photos, config, reports.append)
    return dict(trained.model.named_parameters()), reports


class FakeStep:
    """A training step that trains nothing and says given losses; remembers samples, rates, kinds of loss."""

    def __init__(self, losses: list[float]) -> None:
        self.names: list[str] = []
        self.kinds: list[tuple[tuple[str, ...], LossConfig]] = []
        self.rates: list[list[float]] = []
        self._losses = iter(losses)

    def __call__(
        self, model: Module, batch: PairBatch, loss: LossConfig, optimiser: Optimizer, *_: object
    ) -> StepResult:
        self.names.extend(batch.names)
        self.kinds.append((tuple(batch.names), loss))
        self.rates.append([group["lr"] for group in optimiser.param_groups])
        optimiser.step()
        return StepResult(torch.tensor(next(self._losses)), torch.tensor(0.5), batch.is_valid.sum())


def largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.slow
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


def test_slow_steps_are_reported_after_a_minute(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "training_step", FakeStep([1.0, 2.0, 3.0]))
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    reports: list[Progress] = []
    train_on(photos, make_config(steps=3), reports.append)
    assert [report.step for report in reports] == [3]
    monkeypatch.setattr(loop, "training_step", FakeStep([1.0, 2.0, 3.0]))
    monkeypatch.setattr(loop, "_REPORT_SECONDS", -1.0)
    train_on(photos, make_config(steps=3), reports.append)
    assert [(report.step, report.loss) for report in reports[1:]] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_steps_follow_the_learning_rates(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = FakeStep([1.0] * 4)
    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    train_on(photos, make_config(steps=4, warmup_steps=2, trunk_learning_rate=0.5, head_learning_rate=2.0))
    assert [rate for rates in step.rates for rate in rates] == [0.25, 1, 0.5, 2, 0.5, 2, 0.25, 1]


def test_a_broken_loss_stops_the_run(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "training_step", FakeStep([1.0, torch.nan]))
    with pytest.raises(NonFiniteLossError, match=r"became nan on the samples 01\.png, 01\.png"):
        train_on(photos, make_config())


@pytest.mark.slow
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


def test_the_trunk_has_its_own_learning_rate(photos: Path) -> None:
    config = make_config(trunk_learning_rate=0.0, average_decay=0.0)
    weights, _ = run(config, photos)
    start = build_model(MODEL, torch.Generator().manual_seed(config.seed))
    for name, parameter in start.named_parameters():
        assert torch.equal(parameter, weights[name]) == name.startswith("trunk."), name


def test_training_never_sees_a_held_out_image(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[str] = []
    step = FakeStep([1.0, 1.0])

    def record_errors(model: CorrespondenceNetwork, pair: PairBatch, precision: str, levels: str) -> Tensor:
        validated.extend(pair.names)
        return torch.zeros(1)

    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(validation, "match_errors", record_errors)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    train_on(photos, make_config())
    assert (step.names, validated) == (["01.png"] * 4, ["00.png"] * 4)


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


def test_training_on_a_data_set_alone(numbered: NumberedData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MIN_POINTS", 20)
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


def test_steps_take_the_loss_of_their_source(
    numbered: NumberedData, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FakeStep([1.0] * 20)
    monkeypatch.setattr(loop, "training_step", step)
    monkeypatch.setattr(loop, "fit_calibration", lambda *_: Calibration())
    own = {"kind": "contrastive", "radius": 3.0}
    train_on(photos, make_config(steps=20, loss={"radius": 7.0}, sources=[SET | {"loss": own}]))
    radii = {"pair" in names[0]: set[tuple[str, float]]() for names, _ in step.kinds}
    for names, loss in step.kinds:
        radii["pair" in names[0]].add((loss.kind, loss.radius))
    assert radii == {True: {("contrastive", 3.0)}, False: {("infonce", 7.0)}}


@pytest.mark.slow
def test_a_loss_of_a_source_changes_what_is_learnt(photos: Path) -> None:
    plain, _ = run(make_config(sources=[{"name": "synthetic"}]), photos)
    own = {"name": "synthetic", "loss": {"temperature": 0.5}}
    other, _ = run(make_config(sources=[own]), photos)
    as_of_the_run, _ = run(make_config(sources=[{"name": "synthetic"}], loss={"temperature": 0.5}), photos)
    assert largest_difference(plain, other) > 1e-5
    assert largest_difference(other, as_of_the_run) == 0


@pytest.mark.slow
def test_frozen_norms_keep_their_statistics(photos: Path, tmp_path: Path) -> None:
    model = build_model(replace(MODEL, head_norm="batch", context_layers=1))
    generator = torch.Generator().manual_seed(1)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    start = tmp_path / "start.safetensors"
    save_weights(start, model)
    buffers, parameters = dict(model.named_buffers()), dict(model.named_parameters())
    assert len(buffers) == 6  # mean, variance and count of two norms

    for is_frozen in (True, False):
        config = make_config(init=str(start), model=model.config, freeze_norms=is_frozen, average_decay=0.0)
        trained = train_on(photos, config).model
        for name, buffer in trained.named_buffers():
            assert torch.equal(buffer, buffers[name]) == is_frozen, name
        for name in ("head_norm.weight", "head_norm.bias", "trunk.conv1.weight", "context.exit.weight"):
            moved = (dict(trained.named_parameters())[name] - parameters[name]).abs().max()
            assert moved > 5e-4, name  # rounding to float16 moves a weight of the file by less


@pytest.mark.slow
def test_smaller_copies_count_for_more_in_the_kept_network(photos: Path) -> None:
    model = replace(MODEL, levels=3)
    plain = train_on(photos, make_config(model=model)).model
    weighed = train_on(photos, make_config(model=model, coarse_gain=2.0)).model
    expected = dict(plain.named_parameters())
    changed = {
        name: value for name, value in weighed.named_parameters() if not torch.equal(value, expected[name])
    }
    parts = ("weight", "bias")
    assert set(changed) == {f"coarse_levels.{level}.projection.{part}" for level in (0, 1) for part in parts}
    assert all(torch.equal(value, 2 * expected[name]) for name, value in changed.items())


@pytest.mark.slow
def test_coarser_cells_of_the_small_trunk_count_for_more(photos: Path) -> None:
    model = replace(MODEL, trunk="lite")
    plain = dict(train_on(photos, make_config(model=model)).model.named_parameters())
    weighed = dict(train_on(photos, make_config(model=model, coarse_gain=2.0)).model.named_parameters())
    changed = {name for name, value in weighed.items() if not torch.equal(value, plain[name])}
    assert changed <= {"trunk.laterals.0.norm.weight", "trunk.laterals.0.norm.bias"}
    assert "trunk.laterals.0.norm.weight" in changed
    assert all(torch.equal(weighed[name], 2 * plain[name]) for name in changed)


def test_calibration_is_of_the_network_that_is_kept(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CorrespondenceNetwork] = []

    def look(model: CorrespondenceNetwork, *_: object) -> Calibration:
        seen.append(model)
        return Calibration()

    monkeypatch.setattr(loop, "_calibrate", look)
    kept = train_on(photos, make_config(model=replace(MODEL, levels=2), coarse_gain=3.0)).model
    assert len(seen) == 1 and seen[0] is kept


def test_calibration_sees_whole_homographies_of_one_photograph(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SyntheticConfig] = []

    def fit(model: object, bank: object, synthetic: SyntheticConfig, *_: object) -> Calibration:
        seen.append(synthetic)
        return Calibration()

    monkeypatch.setattr(loop, "fit_calibration", fit)
    kinds = {"spline_share": 0.3, "parallax_share": 0.3, "blend_share": 0.5, "border": "other"}
    config = make_config(steps=1, synthetic={"side": 64, "points": 50, "illumination": 0.5} | kinds)
    train_on(photos, config)
    expected = {"spline_share": 0.0, "parallax_share": 0.0, "blend_share": 0.0, "border": "mirror"}
    assert seen == [SyntheticConfig.from_dict(config.synthetic.to_dict() | expected)]


def test_few_held_out_points_keep_the_scores_of_the_start(
    numbered: NumberedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, path = (
        Calibration(match_bias=-1.0, pair_bias=-3.0, pair_support=70.0),
        tmp_path / "mine.safetensors",
    )
    save_weights(path, build_model(MODEL), calibration=start)
    kept: list[Trained] = []
    train_on(None, make_config(init=str(path), sources=[SET]), ignore, kept.append)
    assert [trained.calibration for trained in kept] == [start] * len(kept) and kept
    assert "calibration kept from the start: 20 held-out points, at least 200 needed" in caplog.text


def test_scores_are_not_fitted_to_training_pairs(
    numbered: NumberedData, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where pairs connect all images, none is held out, and validation uses those that were trained on."""
    monkeypatch.setattr(calibration, "MIN_POINTS", 20)
    monkeypatch.setattr(numbered, "split_off", lambda _: (numbered, numbered))
    trained = train_on(None, make_config(steps=1, sources=[SET]))
    assert trained.calibration == Calibration()
    assert "calibration kept from the start: 0 held-out points, at least 20 needed" in caplog.text


class ShiftedData(NumberedData):
    """Pairs of a part of a photograph and its shifted copy."""

    def read(self, index: int) -> PairSample:
        corner = 40 * (index // len(MINI_IMAGES))
        whole = read_image(MINI_IMAGES[index % len(MINI_IMAGES)])[:, corner:, 80 + corner :]
        sample = super().read(index)
        images = whole[:, :128, :128].clone(), whole[:, 4 : 4 + 128, 8 : 8 + 128].clone()
        points = sample.points0 * 0.9 + torch.tensor([8.0, 4.0])
        return replace(
            sample,
            image0=images[0],
            image1=images[1],
            points0=points,
            points1=points - torch.tensor([8.0, 4.0]),
            pck_length=None,
        )


def test_a_short_fine_tuning_keeps_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six pairs, of which one is held out: scores stay close, and what does not match stays apart."""
    data = ShiftedData(6, points=(250,), size_hw=(120, 120))
    monkeypatch.setattr(sources, "open_data", lambda *_: data)
    start = load_weights("geometric-lite")
    source = SET | {"crop_hw": [96, 96], "points": 250}
    rates = {"head_learning_rate": 2e-4, "trunk_learning_rate": 1e-4}  # as the recipe `own` has them
    changes = {"init": "geometric-lite", "model": start.model.config, "sources": [source]}
    trained = train_on(None, make_config(steps=3, **changes, **rates))
    found = trained.calibration
    assert found.match_bias != start.calibration.match_bias
    assert (found.pair_bias, found.pair_support) == (
        start.calibration.pair_bias,
        start.calibration.pair_support,
    )
    assert min(found.match_similarity, found.match_margin, found.match_support) >= 0
    assert max(found.match_round_trip, found.match_uniformity) <= 0
    before = Matcher(start, device="cpu")
    after = Matcher(replace(start, model=trained.model, calibration=found), device="cpu")
    pair, other = data.read(0), data.read(1).image1
    queries = pair.points0[:50]
    old, new = (m.match(pair.image0, pair.image1, points=queries) for m in (before, after))
    assert min(old.pair_score, new.pair_score) > 0.9
    assert abs(float(old.scores.mean() - new.scores.mean())) < 0.1 and float(new.scores.mean()) > 0.7
    assert after.match(pair.image0, other).pair_score < 0.2


@pytest.mark.slow
def test_a_mixture_is_the_same_each_time(numbered: NumberedData, photos: Path) -> None:
    config = make_config(steps=3, sources=[SET | {"photometric": 1.0}])
    weights = [run(config, photos)[0] for _ in range(2)]
    with_workers = make_config(steps=3, sources=[SET | {"photometric": 1.0, "workers": 1}])
    weights.append(run(with_workers, photos)[0])
    assert largest_difference(weights[0], weights[1]) == largest_difference(weights[0], weights[2]) == 0


def test_images_are_drawn_after_each_validation(photos: Path) -> None:
    looked: list[tuple[int, str]] = []

    def look(step: int, model: CorrespondenceNetwork, given: object) -> None:
        assert not model.training and given is mixture.sources
        looked.append((step, type(model).__name__))

    config = make_config(steps=3, validate_every=2)
    with open_sources(config, photos, CPU) as mixture:
        train(config, mixture, CPU, ignore, ignore, on_validation=look)
    assert looked == [(2, "CorrespondenceNetwork"), (3, "CorrespondenceNetwork")]


def test_the_report_has_learning_rates_speed_and_gradient(photos: Path) -> None:
    reports: list[Progress] = []
    train_on(photos, make_config(steps=2, trunk_learning_rate=0.25, head_learning_rate=0.5), reports.append)
    (progress,) = reports
    assert progress.learning_rates == pytest.approx({"trunk": 0.125, "head": 0.25})
    assert progress.gradient_norm > 0 and progress.memory_bytes is None
    assert progress.correspondences_per_second == pytest.approx(50 * progress.pairs_per_second, rel=0.5)
    assert progress.seconds_per_step == pytest.approx(2 / progress.pairs_per_second)  # steps of two pairs
    assert progress.score == (progress.pck or {})["pck@5"]
