"""The page of the paper's variants, by hand, and what paper_runs.py collects."""

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.benchmark_scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("paper_variants")


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    return load_script("paper_runs")


def make_rows(**shares: list[float]) -> list[dict[str, Any]]:
    """Scores of seeds; the untrained trunk has 0.2."""
    common = {"use_refinement": True, "limit": 0.1, "group": "birds"}
    rows = [{"method": "trunk", "per_point": 0.2, **common}]
    for variant, values in shares.items():
        for seed, share in enumerate(values):
            name = f"semantic-{variant.replace('_', '-')}-{seed}+nearest"
            rows.append({"method": name, "per_point": share, **common})
            rows.append({"method": name, "per_point": 0.9, **common, "use_refinement": False})
    return rows


def test_steps_are_compared_with_the_spread_of_the_seeds(script: ModuleType) -> None:
    rows = make_rows(rn=[0.50, 0.52], hn=[0.60, 0.61], hn_st=[0.60, 0.63])
    columns = [script._pck("α = 0.1", 0.1, group="birds"), script._pck("α = 0.05", 0.05, group="birds")]
    lines = script.tabulate(rows, columns)
    assert lines[0] == "| variant | α = 0.1 |"  # nothing was measured at 0.05
    assert lines[2:6] == [
        "| ImageNet trunk, no training | 20.0 |",
        "| RN | 51.0 (50.0 to 52.0) |",
        "| HN | 60.5 (60.0 to 61.0) |",
        "| HN-ST | 61.5 (60.0 to 63.0) |",
    ]
    assert "| RN → HN | +9.5, spread 2.0 |" in lines
    assert "| HN → HN-ST | +1.0, spread 3.0: within it |" in lines
    assert script.format_step([50.0], [61.0, 62.0], is_error=False) == "+11.5"  # one seed has no spread


def test_errors_keep_three_digits(script: ModuleType) -> None:
    column = script._pose("rotation", "rotation_mean", "opencv")
    row = {"is_aligned": False, "group": "all", "estimator": "opencv", "rotation_mean": 0.3174}
    found = script.collect([{"method": "geometric-hn-1+nearest", **row}], column)
    assert found == {"hn": [0.3174]} and script.format_range(found["hn"], True) == "0.317"


def test_names_of_networks(script: ModuleType) -> None:
    names = ["geometric-hn-st-10", "geometric-hn-st-2", "geometric-hn-0", "geometric-rn-1"]
    ordered = sorted(names, key=script.sort_key)
    assert ordered == ["geometric-rn-1", "geometric-hn-0", "geometric-hn-st-2", "geometric-hn-st-10"]
    with pytest.raises(SystemExit, match="no network of paper_runs"):
        script.sort_key("universal")


def test_a_page_is_written(script: ModuleType, tmp_path: Path) -> None:
    curve = {"use_refinement": True, "group": "birds", "limits": [0.05, 0.1], "shares": [0.3, 0.6]}
    names = ["trunk", "semantic-rn-0+nearest", "semantic-rn-1+nearest"]
    report = {
        "protocol": ["data: some birds; 3 pairs", "images: small"],
        "figures": make_rows(rn=[0.5, 0.6]),
        "curves": [{"method": name, **curve} for name in names],
    }
    (tmp_path / "cub.json").write_text(json.dumps(report), encoding="utf-8")
    run = {"recipe": "semantic-rn", "seed": 0, "code": 0, "seconds": 9.0, "sha256": "ab", "validation": {}}
    run |= {"losses": [[700, 0.05]], "memory_bytes": 2e9, "versions": {"ucn": "1", "torch": "2"}}
    lost = {**run, "recipe": "semantic-hn", "losses": [], "seconds": None, "memory_bytes": None}
    script.write_page(tmp_path, {"runs": [run, {**run, "code": 1}, lost]}, tmp_path)
    page = (tmp_path / "paper-variants.md").read_text(encoding="utf-8")
    assert "data: some birds; 3 pairs." in page and "| RN | 55.0 (50.0 to 60.0) |" in page
    assert "| `paper/semantic-rn` | 0 | 700 | 9 | 0.0500 | 2.0 GB |" in page
    assert "| `paper/semantic-hn` | 0 | – | – | – | – |" in page
    assert (tmp_path / "paper-variants.png").stat().st_size > 5000
    assert len(json.loads((tmp_path / "paper-variants.json").read_text(encoding="utf-8"))["runs"]) == 2


def test_runs_are_collected_and_packed(trainer: ModuleType, tmp_path: Path) -> None:
    given = argparse.Namespace(
        **{"output": tmp_path, "archives": tmp_path / "out", "recipes": ["semantic-rn", "geometric-rn"]}
    )
    name = tmp_path / "semantic-rn-0"
    printed = {"sha256": "ab", "validation": {"pck@0.1": 0.5}, "best_step": 2, "ucn": "1", "config": {}}
    Path(f"{name}.out").write_text(json.dumps(printed), encoding="utf-8")
    Path(f"{name}.safetensors").write_bytes(b"weights")
    Path(f"{name}.train").mkdir()
    events: list[dict[str, object]] = [
        {"event": "start", "versions": {"ucn": "1"}},
        {"event": "progress", "step": 2, "loss": 0.25},
    ]
    log = "\n".join(json.dumps({"memory_bytes": None, **event}) for event in events)
    Path(f"{name}.train/log.jsonl").write_text(log, encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    run = trainer.Run("semantic-rn", 0, process, 0.0)
    results = {"runs": [trainer.collect(tmp_path, run)]}
    assert results["runs"][0]["losses"] == [(2, 0.25)] and results["runs"][0]["sha256"] == "ab"
    assert "semantic-rn, seed 0" in trainer.format_run(results["runs"][0])
    trainer.save_results(tmp_path / "runs.json", results)
    trainer.archive(given, tmp_path / "runs.json", results, run)
    with tarfile.open(tmp_path / "out" / "semantic-0.tar.gz") as packed:
        assert packed.getnames() == ["semantic-rn-0.safetensors"]
    assert (tmp_path / "out" / "runs.json").is_file()
