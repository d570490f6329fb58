"""Training of the Siamese network: its loss by hand, one batch learnt by heart, a tiny run of the whole."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import safetensors
import torch

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.paper.siamese import SiameseConfig, load_siamese
from ucn.types import PairBatch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("siamese_training")


def make_batch(points0: list[list[float]], points1: list[list[float]], is_valid: list[bool]) -> PairBatch:
    images = torch.stack([make_photo(64, 64, seed=0, grain=4), make_photo(64, 64, seed=0, grain=4)])
    valid = torch.tensor([is_valid])
    return PairBatch(
        images[:1], images[1:], torch.tensor([points0]), torch.tensor([points1]), valid, names=("a",)
    )


def test_the_loss_by_hand(script: ModuleType) -> None:
    # In view 1 points 0 and 1 lie 5 px apart, in view 0 everything is far; the last point is not valid.
    points0, nan = [[0.0, 0.0], [40.0, 0.0], [0.0, 40.0], [9.0, 9.0]], math.nan
    points1 = [[0.0, 0.0], [5.0, 0.0], [50.0, 50.0], [nan, nan]]
    batch = make_batch(points0, points1, [True, True, True, False])
    values = torch.tensor([[2.0, 1.0, 0.0, 9.0], [0.5, 3.0, 1.0, 9.0], [1.0, 0.0, 2.5, 9.0], [9.0] * 4])[None]

    def share(own: float, *others: float) -> float:
        return -math.log(math.exp(own) / sum(map(math.exp, (own, *others))))

    rows = [share(2, 0), share(3, 1), share(2.5, 1, 0)]  # neighbours 0 and 1 do not count against each other
    columns = [share(2, 0.5, 1), share(3, 1, 0), share(2.5, 0, 1)]
    assert script.compute_loss(values, batch, 10.0).item() == pytest.approx(
        (sum(rows) + sum(columns)) / 6, rel=1e-5
    )


def test_no_valid_point_gives_zero_with_a_gradient(script: ModuleType) -> None:
    batch = make_batch([[math.nan] * 2] * 2, [[math.nan] * 2] * 2, [False, False])
    values = torch.randn(1, 2, 2, requires_grad=True)
    loss = script.compute_loss(values, batch, 10.0)
    loss.backward()
    assert loss.item() == 0 and values.grad is not None and values.grad.isfinite().all()
    assert script.validate(script.start_model(SiameseConfig(patch=32), None, 0, CPU).eval(), [batch]) == {
        "accuracy": 0.0,
        "pck@10": 0.0,
    }


def test_accuracy_by_hand(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [[0.0, 0.0], [8.0, 0.0], [40.0, 0.0], [0.0, 0.0]]
    batch = make_batch(points, points, [True, True, True, False])
    # Point 0 takes its neighbour, 8 px off, point 1 itself, point 2 another; what is not valid is not taken.
    chosen = torch.eye(4)[[1, 1, 0, 3]][None] + torch.tensor([0.0, 0.0, 0.0, 5.0])
    monkeypatch.setattr(script, "compare", lambda *_: chosen)
    assert script.validate(None, [batch]) == {"accuracy": 0.3333, "pck@10": 0.6667}


def test_points_move_by_at_most_the_jitter(script: ModuleType) -> None:
    points = torch.zeros(1, 500, 2)
    moved = script.jitter_points(points, 3.0, torch.Generator().manual_seed(0))
    assert 2.8 < moved.abs().max() <= 3 and moved.mean().abs() < 0.3
    assert torch.equal(script.jitter_points(points, 0.0, torch.Generator()), points)


def test_similarities_are_those_of_pairs_of_patches(script: ModuleType) -> None:
    model = script.start_model(SiameseConfig(patch=32, dim=6), None, 0, CPU).eval()
    points1 = [[20.0, 21.0], [40.0, 12.0], [9.0, 50.0]]
    batch = make_batch([[5.0, 6.0], [30.0, 31.0], [50.0, 8.0]], points1, [True] * 3)
    with torch.no_grad():
        found = script.compare(model, batch, batch.points1)
        for row in range(3):
            for column in range(3):
                own = script.cut_patches(batch.image0, batch.points0[:, row : row + 1], 32)[0]
                other = script.cut_patches(batch.image1, batch.points1[:, column : column + 1], 32)[0]
                assert found[0, row, column].item() == pytest.approx(model(own, other).item(), abs=1e-4)


def test_the_recipe_is_that_of_the_shipped_weights(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)
    synthetic = script.read_synthetic(script.RECIPE, 24, None)
    assert synthetic.points == 24 and synthetic.border == "other" and synthetic.illumination > 0
    assert script.read_synthetic(script.RECIPE, 24, 96) == replace(synthetic, side=96)


def test_one_batch_is_overfitted(script: ModuleType) -> None:
    model = script.start_model(SiameseConfig(patch=32, dim=16, hidden=(32, 16)), None, 0, CPU).train()
    points = [[16.0, 16.0], [48.0, 16.0], [16.0, 48.0], [48.0, 48.0], [32.0, 32.0]]
    batch = make_batch(points, points, [True] * 5)
    plan = script.Plan(1.0, 1, 5, 1e-3, 1e-3, 0.0, 10.0, 0.0, 1.0, 1, 0)
    optimiser, generator = script.build_optimiser(model, plan), torch.Generator().manual_seed(0)
    losses = [script.take_step(model, batch, optimiser, plan, generator).item() for _ in range(12)]
    assert losses[-1] < 0.3 * losses[0] and losses[0] > 0.8


@pytest.mark.slow
def test_a_tiny_run_writes_a_network(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "siamese.safetensors"
    tiny = "--seconds 0.2 --report 0.1 --batch 2 --points 4 --side 64 --patch 32 --validation-pairs 2"
    run_script(script, "-o", str(path), "--device", "cpu", *tiny.split())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("seconds ") and "pck@10" in line for line in lines)
    with safetensors.safe_open(path, "pt") as file:
        record = json.loads(file.metadata()["training"])
    assert record["plan"]["points"] == 4 and record["synthetic"]["side"] == 64
    assert record["steps"] == record["curve"][-1]["steps"] >= 4
    assert load_siamese(path).config == SiameseConfig(patch=32)
