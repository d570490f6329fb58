"""Validation figures, by hand and on pairs of photographs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.train_cases import CPU, MODEL, make_config
from ucn.config import LossConfig
from ucn.nn import build_model
from ucn.train import validation
from ucn.train.sources.batches import Source, open_sources
from ucn.train.validation import match_batch_points, match_errors, validate
from ucn.types import PairBatch

pytestmark = pytest.mark.usefixtures("few_pairs")


class FakeSource(Source):
    """A source with a label and nothing else."""

    def __init__(self, label: str, loss: LossConfig | None = None) -> None:
        super().__init__(label, 1.0, loss)

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        raise NotImplementedError

    def validation_batches(self) -> Iterator[PairBatch]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def test_errors_within_thresholds_are_counted(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(MODEL).eval()
    errors = torch.tensor([0.5, 3.0, 4.0, 20.0, torch.nan])
    monkeypatch.setattr(validation, "match_errors", lambda *_: errors)
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
        batch = next(mixture.sources[0].validation_batches())
    (pair, _) = batch
    pixels = match_errors(model, pair)
    assert len(pixels) == int(pair.is_valid.sum())
    points = match_batch_points(model, pair, pair.points0[0])
    assert torch.equal((points - pair.points1[0]).norm(dim=-1)[pair.is_valid[0]], pixels)
    shares = match_errors(model, replace(pair, pck_length=torch.tensor([20.0])))
    assert torch.allclose(shares, pixels / 20)


def test_a_source_without_points_to_validate_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([{"pck@5": torch.nan}, {"pck@0.1": 0.5, "pck@0.05": 0.25}])
    monkeypatch.setattr(validation, "_measure", lambda *_: next(figures))
    found = validate(build_model(MODEL), [FakeSource("a"), FakeSource("b")])
    assert list(found.pck) == ["a pck@5", "b pck@0.1", "b pck@0.05"] and found.score == 0.5


def test_each_source_is_measured_by_the_levels_that_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(*arguments: object) -> dict[str, float]:
        asked.append(str(arguments[-1]))
        return {"pck@5": 0.5}

    monkeypatch.setattr(validation, "_measure", measure)
    sources = [FakeSource("a"), FakeSource("b", LossConfig(levels="all"))]
    validate(build_model(MODEL), sources, loss=LossConfig(levels="fine"))
    assert asked == ["fine", "all"]
