"""Prints what `geometric` reaches on the benchmark `mini`; with --write, keeps it for the tests.

    python tests/support/mini_figures.py           # prints the figures
    python tests/support/mini_figures.py --write   # and replaces tests/support/mini_figures.json

tests/evaluate/core/test_mini.py compares with the file, so it must be written again for new weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.report import run_benchmark
from ucn.paper.registry import METHODS

FILE = Path(__file__).with_suffix(".json")


def measure(cache: Path) -> dict[str, Any]:
    """Shares of points found by the shipped weights `geometric`, in per cent: group, then limit in pixels."""
    loaded = METHODS.load_dense(["geometric"])
    run = run_benchmark(
        find_benchmark("mini"), Path(), loaded, RunSettings(cache, refinements=(True,), device="cpu")
    )
    figures: dict[str, dict[str, float]] = {}
    for figure in run.results.scores:
        figures.setdefault(figure.group, {})[f"{figure.limit:g}"] = round(100 * figure.per_point, 1)
    (method,) = loaded.methods
    return {"sha256": method.key["ucn"], "figures": figures}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(measure(Path(folder)), indent=1)
    print(text)
    if "--write" in sys.argv[1:]:
        FILE.write_text(f"{text}\n", encoding="utf-8")
