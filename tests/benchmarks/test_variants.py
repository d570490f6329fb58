"""The comparison of the paper's variants: its page by hand, its measure against the matcher, a tiny run."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from support.benchmark_scripts import load_script, run_script
from support.bird_cases import write_birds
from ucn.config import MatchConfig, ModelConfig
from ucn.data.sets.semantic.cub import open_folder
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.matching.cells import match_points
from ucn.matching.matcher import Matcher
from ucn.matching.views import to_caller, to_encoded
from ucn.nn import build_model
from ucn.weights import load_weights, save_weights


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("variants")


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return load_script("variants_report")


def make_results(**shares: list[float]) -> dict[str, Any]:
    """Results of runs with the same PCK at each α; the untrained network has 0.2."""

    def pck(share: float) -> dict[str, Any]:
        alphas = [0.025, 0.05, 0.1]
        return {"listed test pairs": {"pairs": 3, "points": 9, "alphas": alphas, "shares": [share] * 3}}

    run = {"steps": 5, "pairs_per_second": 1.0, "loss": 0.1, "window_change": [], "memory_bytes": None}
    settings = {"seconds": 1.0, "batch": 4, "changes": ["clip_norm=2.0"], "limit": None, "device": "cpu"}
    settings |= {"is_held_out_only": False, "torch": "2", "recipes": {"rn": {"validation_share": 0.1}}}
    runs = [
        {"variant": variant.replace("_", "-"), "seed": seed, **run, **pck(share)}
        for variant, values in shares.items()
        for seed, share in enumerate(values)
    ]
    return {"settings": settings, "untrained": pck(0.2), "runs": runs}


def test_steps_are_compared_with_the_spread_of_the_seeds(report: ModuleType) -> None:
    results = make_results(rn=[0.50, 0.52], hn=[0.60, 0.61], hn_st=[0.60, 0.63])
    lines = report.table_of_steps(results, "listed test pairs")
    # 60.5 against 51, whose seeds are 2 apart; 61.5 against 60.5, whose seeds are 3 apart.
    assert lines[2] == "| RN → HN | " + " | ".join(["+9.5, spread 2.0"] * 3) + " |"
    assert lines[3] == "| HN → HN-ST | " + " | ".join(["+1.0, spread 3.0: **not larger**"] * 3) + " |"
    assert len(lines) == 4  # no control was run


def test_page_names_means_ranges_and_the_command(report: ModuleType, tmp_path: Path) -> None:
    page = report.make_page(make_results(hn_st=[0.7, 0.8], hn_conv=[0.6, 0.6], rn=[0.3, 0.5]))
    assert "| untrained trunk | 20.0 | 20.0 | 20.0 |" in page
    assert "| RN | 40.0 (30.0 to 50.0) |" in page and "| HN-ST | 75.0 (70.0 to 80.0) |" in page
    assert page.index("| RN |") < page.index("| HN, fixed θ |") < page.index("| HN-ST |")
    command = "--seconds 1 --batch 4 --seeds 0 1 --variants rn hn-st --set clip_norm=2.0 --control\n"
    assert command in page
    report.draw(make_results(rn=[0.3]), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_measure_is_that_of_matching(script: ModuleType, tmp_path: Path) -> None:
    data = open_folder(write_birds(tmp_path, (60, 84)), "train")
    config = ModelConfig(dim=8, head_norm="none", transformer="none")
    save_weights(tmp_path / "w.safetensors", build_model(config, torch.Generator().manual_seed(3)))
    loaded = load_weights(tmp_path / "w.safetensors")
    chosen = [(data, index) for index in (0, 4, 20)]
    set_name = script.make_evaluation_set(chosen, find_benchmark("cub"), torch.device("cpu"))
    assert len(set_name.images) == 5  # pair 4 begins with the image that pair 0 begins with
    found = script.score(loaded.model, set_name)

    matcher, errors = Matcher(loaded, config=MatchConfig(consensus=False), device="cpu"), []
    for _, index in chosen:
        sample = data.read(index)
        first, second = (matcher.extract(image) for image in (sample.image0, sample.image1))
        encoded0 = to_encoded(sample.points0, first)
        points = match_points(first.map, second.map, encoded0, second_best_radius=4.0).points1
        distances = (to_caller(points, second) - sample.points1).norm(dim=1)
        errors += (distances / (60**2 + 84**2) ** 0.5).tolist()
    assert found["pairs"] == 3 and found["points"] == len(errors) == 9
    expected = [sum(error <= alpha for error in errors) / 9 for alpha in found["alphas"]]
    assert found["shares"] == pytest.approx(expected, abs=1e-4)
    assert expected[-1] > 0 and expected[0] < 1  # else any answer would do


def test_windows_that_do_not_move_have_no_change(script: ModuleType) -> None:
    source = script.PairBatch(
        torch.rand(1, 3, 32, 32),
        torch.rand(1, 3, 32, 32),
        *torch.zeros(2, 1, 1, 2),
        torch.ones(1, 1) > 0,
        ("a",),
    )
    model = build_model(ModelConfig(dim=8))
    (layer,) = script.list_transformers(model)
    assert script.measure_theta(model, source) == [0.0]
    with torch.no_grad():
        layer.localiser[2].bias[:] = torch.tensor([0.4, 0.0, 0.0, -0.4])
    assert script.measure_theta(model, source) == pytest.approx([0.2])


@pytest.mark.slow
def test_a_tiny_run_writes_everything_and_resumes(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    options = ["-o", str(folder), "--seconds", "0.2", "--batch", "2", "--device", "cpu", "--held-out-only"]
    options += ["--data", str(write_birds(tmp_path / "birds")), "--set", "init=random", "--limit", "2"]
    options += ["--set", "sources.0.crop_hw=[48, 64]", "--seeds", "0"]
    run_script(script, *options, "--variants", "rn")
    before = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in before["runs"]] == ["rn"]
    capsys.readouterr()
    run_script(script, *options, "--control", "--keep-weights")
    assert "plan: 3 of 4 runs" in capsys.readouterr().out
    results = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    assert results["runs"][0] == before["runs"][0]
    assert [run["variant"] for run in results["runs"]] == ["rn", "hn", "hn-st", "hn-conv"]
    for run in results["runs"]:
        assert run["seconds"] >= 0.2 and run["steps"] >= 1
        assert run["held-out training images"]["points"] > 0
        assert any(run["window_change"]) == (run["variant"] == "hn-st")
    assert load_weights(folder / "semantic-hn-st-0.safetensors").model.config.transformer != "none"
    assert "| HN-ST |" in (folder / "variants.md").read_text(encoding="utf-8")
    (folder / "variants.png").unlink()
    run_script(script, "-o", str(folder), "--figure-only")
    assert (folder / "variants.png").is_file()
    with pytest.raises(SystemExit, match="holds results of another changes"):
        run_script(script, *options, "--set", "clip_norm=2.0")
