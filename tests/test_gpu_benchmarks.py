"""The scripts that measure a GPU: without one they say so; with fake timings their tables come out whole."""

import json
from typing import Any

import pytest
import torch

from benchmark_scripts import load_script, run_script

SCRIPTS = ["knn_speed", "transformer_sweep"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_machine_without_a_gpu_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="this script measures a CUDA device, and this machine has none"):
        run_script(load_script(name))


def test_report_is_a_table_and_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report: dict[str, Any] = {"milliseconds": {"fused": 1.5}}
    load_script("gpu_timing").print_report("title", [("way", "ms"), ("fused", "1.5")], report)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[:3] == ["title", "way    ms", "fused  1.5"]
    assert json.loads(lines[-1]) == report
