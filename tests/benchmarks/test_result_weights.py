"""The script that lists the weights of published reports."""

import json
from pathlib import Path

import pytest

from support.benchmark_scripts import load_script, run_script
from ucn.weights.table import SHIPPED

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_rows_of_earlier_weights_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = load_script("result_weights")
    methods = [
        {"name": "geometric", "key": {"ucn": SHIPPED["geometric"].sha256}},
        {"name": "birds+flow", "key": {"system": 3, "features": {"ucn": "ab12cd34ef"}}},
        {"name": "sift", "key": {"sift": {"bin_pixels": 9.0}}},
    ]
    (tmp_path / "scenes.json").write_text(json.dumps({"methods": methods}), encoding="utf-8")
    (tmp_path / "cost.json").write_text(json.dumps({"runs": []}), encoding="utf-8")
    run_script(script, str(tmp_path))
    assert capsys.readouterr().out == "scenes: birds+flow ab12cd34\n"
    run_script(script, str(tmp_path), "--all")
    assert "geometric" in capsys.readouterr().out


def test_published_reports_name_their_weights() -> None:
    reports = load_script("result_weights").find_rows(RESULTS)
    assert {"hpatches", "cub", "reconstruction", "pair-score"} <= reports.keys()
    for report, rows in reports.items():
        page = (RESULTS / f"{report}.md").read_text(encoding="utf-8")
        assert all(sha256[:16] in page for _, sha256, _ in rows), report
