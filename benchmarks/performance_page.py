"""Writes the tables and curves of docs/performance.md from the results of `ucn bench`.

ucn bench --device cuda -o benchmarks/results/h200.json
ucn bench --device cpu -o benchmarks/results/cpu.json
python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ucn.bench.machine import say_machine
from ucn.bench.page import fill_page
from ucn.bench.plots import draw_growth
from ucn.bench.run import read_parts
from ucn.data.io import write_bytes_atomically

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "performance.md"
_RESULTS = _ROOT / "benchmarks" / "results"
_IMAGES = "images/performance"


def main() -> None:
    results = read_results()
    folder = _PAGE.parent / _IMAGES
    for name, result in results.items():
        parts = read_parts(result, name)
        if "growth" in parts:
            folder.mkdir(parents=True, exist_ok=True)
            plot = draw_growth(parts["growth"], say_machine(dict(result["machine"])))
            for suffix, content in (("png", plot.png), ("svg", plot.svg)):
                write_bytes_atomically(folder / f"growth-{name}.{suffix}", content, overwrite=True)
    write_bytes_atomically(_PAGE, make_page(results).encode(), overwrite=True)
    print(f"written: {_PAGE.relative_to(_ROOT)}")


def read_results() -> dict[str, dict[str, Any]]:
    """All results, those of GPUs first."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in _RESULTS.glob("*.json")}
    results = {name: values for name, values in found.items() if values.get("command") == "bench"}
    return dict(sorted(results.items(), key=lambda item: (item[1]["machine"]["device"] == "cpu", item[0])))


def make_page(results: dict[str, dict[str, Any]]) -> str:
    """The page as it should be."""
    page = _PAGE.read_text(encoding="utf-8")
    return fill_page(page, results, lambda name: f"{_IMAGES}/growth-{name}.png")


if __name__ == "__main__":
    main()
