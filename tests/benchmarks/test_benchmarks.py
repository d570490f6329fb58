"""Results quoted in the documentation, from the scripts it names."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ucn.data.example import example_pair

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _run(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / script), "--json", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_refined_matches_have_sub_cell_accuracy(tmp_path: Path) -> None:
    """On a part of the example, which is quicker than the whole."""
    with Image.open(example_pair().image0_path) as image:
        image.crop((160, 100, 480, 340)).save(tmp_path / "part.png")
    medians = _run("subcell_shifts.py", str(tmp_path / "part.png"))["median_error_px"]
    assert medians["refined"] < 0.7
    assert medians["refined"] < 0.5 * medians["unrefined"]


@pytest.mark.slow
def test_matching_two_images_stays_under_two_gigabytes() -> None:
    cost = _run("match_cost.py", "--repeats", "1")
    assert cost["matches"] > 1000
    assert cost["peak_memory_gb"] < 2.0
