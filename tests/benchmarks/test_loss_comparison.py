"""The comparison of losses: its estimates by hand, and a tiny run of the whole."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.geometry.sampling import sample_descriptors
from ucn.nn import build_model
from ucn.train.step import encode_pair
from ucn.types import PairBatch


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("loss_comparison")


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return load_script("loss_comparison_figure")


def test_variance_and_mean_by_hand(script: ModuleType) -> None:
    # Mean (2, 1), deviations (∓1, 0): variance 2, squared mean 5 - 2 / 2.
    vectors = [torch.tensor([1.0, 1.0]), torch.tensor([3.0, 1.0])]
    assert script.estimate_variance(vectors) == pytest.approx((2.0, 4.0))


def test_estimates_have_no_bias(script: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([0.3, 0.0, -0.4])  # squared length 0.25, lost in a variance of 3
    estimates = [
        script.estimate_variance(mean + torch.randn(8, 3, generator=generator).double()) for _ in range(4000)
    ]
    variance, squared_mean = torch.tensor(estimates).mean(dim=0).tolist()
    assert variance == pytest.approx(3.0, rel=0.02)
    assert squared_mean == pytest.approx(0.25, abs=0.03)


def test_the_receptive_field_of_a_point_is_its_patch(script: ModuleType) -> None:
    model = build_model(script.MODEL)
    image = make_photo(160, 160)[None]
    point = torch.tensor([[[82.0, 74.0]]])  # the centre of a cell
    cut = script.cut_patches(image, point, 42.0)
    assert cut.shape == (1, 3, 84, 84)
    torch.testing.assert_close(cut[0, :, 42, 42], image[0, :, 74, 82])
    none = torch.zeros(1, 1, dtype=torch.bool)
    with torch.no_grad():
        whole, _ = encode_pair(model, PairBatch(image, image, point, point, none, ("a",)))
        patch, _ = encode_pair(model, PairBatch(cut, cut, point, point, none, ("a",)))
        expected = sample_descriptors(whole, point)
        seen = sample_descriptors(patch, torch.full((1, 1, 2), 42.0))
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-3)


def make_run(method: str, points: int, rate: float, *shares: float) -> dict[str, Any]:
    curve = [
        {"seconds": 2.0 * place, "pck@5": share / 2, "pck@10": share} for place, share in enumerate(shares)
    ]
    return {"method": method, "points": points, "rate": rate, "steps_per_second": 3.0, "curve": curve}


def test_time_to_match_is_on_straight_lines(report: ModuleType) -> None:
    curve = make_run("", 1, 1.0, 0.1, 0.3, 0.2, 0.6)["curve"]
    assert report.find_time(curve, 0.05) == 0.0
    assert report.find_time(curve, 0.2) == pytest.approx(1.0)
    assert report.find_time(curve, 0.4) == pytest.approx(5.0)  # a half of the way from 4 s to 6 s
    assert report.find_time(curve, 0.7) is None


def test_each_method_counts_at_its_best_learning_rate(report: ModuleType, tmp_path: Path) -> None:
    hard = "correspondence contrastive, hard negatives, N = "
    runs = [
        make_run("Siamese, patches", 1, 1e-4, 0.1, 0.1, 0.2),
        make_run("triplet", 1, 1e-4, 0.1, 0.1, 0.1),
        make_run("one-example contrastive", 1, 1e-4, 0.1, 0.1, 0.1),
        make_run("correspondence contrastive, random negatives, N = 10", 10, 1e-4, 0.1, 0.1, 0.1),
        make_run(f"{hard}1", 1, 1e-4, 0.1, 0.1, 0.1),
        make_run(f"{hard}10", 10, 1e-4, 0.1, 0.1, 0.3),
        make_run(f"{hard}10", 10, 5e-4, 0.1, 0.2, 0.5),
    ]
    plan = {"seconds": 4.0, "rates": [1e-4, 5e-4], "points": [1, 10], "batch": 2, "side": 64, "seed": 0}
    plan |= {"checkpoints": 2, "validation_pairs": 2, "draws": 3, "clip_norm": 1.0}
    settings = {"plan": plan, "device": "cpu", "torch": "2", "trunk": "random"}
    settings["photographs"] = {"training": 3, "held_out": 1}
    gradients: dict[str, dict[str, float | None]]
    gradients = {run["method"]: {"relative_variance": 2.5} for run in runs}
    gradients["triplet"] = {"relative_variance": None}
    path = tmp_path / "training-claim.json"
    path.write_text(json.dumps({"settings": settings, "runs": runs, "gradients": gradients}))
    page = report.write_report(path)
    assert page == path.with_suffix(".md").read_text(encoding="utf-8")
    best = (
        "| correspondence contrastive, hard negatives | 10 | 0.0005 | 3.0 | 2.5 | 10.0 | 20.0 | 50.0 | 25.0 |"
    )
    assert page.count(f"{best} 2.0 s |") == 2  # among the methods, and among the numbers of points
    assert "| triplet | 1 | 0.0001 | 3.0 | mean not found | 10.0 | 10.0 | 10.0 | 5.0 | never |" in page
    assert path.with_suffix(".png").stat().st_size > 5000


@pytest.mark.slow
def test_a_tiny_run_writes_everything_and_resumes(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    run_script(script, "--tiny", "--device", "cpu", "-o", str(folder))
    assert "plan: 6 runs of 0.1 s" in capsys.readouterr().out
    path = folder / "training-claim.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    methods = [run["method"] for run in results["runs"]]
    assert [name.split(",")[0] for name in methods[:3]] == ["Siamese", "triplet", "one-example contrastive"]
    assert [run["points"] for run in results["runs"]] == [1, 1, 1, 10, 1, 10]
    assert set(results["gradients"]) == set(methods)
    for run in results["runs"]:
        assert len(run["curve"]) == 3 and run["curve"][0]["seconds"] == 0
        assert run["curve"][-1]["seconds"] >= 0.1 and run["curve"][-1]["steps"] >= 1
        assert results["gradients"][run["method"]]["variance"] > 0
    assert path.with_suffix(".png").is_file() and path.with_suffix(".md").is_file()

    lost = results["runs"].pop()
    path.write_text(json.dumps(results), encoding="utf-8")
    run_script(script, "--tiny", "--device", "cpu", "-o", str(folder))
    assert "plan: 1 runs of 0.1 s" in capsys.readouterr().out
    again = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert again[:-1] == results["runs"] and again[-1]["method"] == lost["method"]
