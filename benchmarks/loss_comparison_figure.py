"""Draws what loss_comparison.py measured; needs matplotlib, which the package does not.

python benchmarks/loss_comparison_figure.py loss_comparison.json -o loss_comparison.svg
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

HARD = "correspondence contrastive, hard negatives"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="loss_comparison.json")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the figure: .svg, .png or .pdf")
    given = parser.parse_args()
    draw(json.loads(given.results.read_text(encoding="utf-8")), given.output)


def draw(results: dict[str, Any], output: Path) -> None:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    runs = choose_best(results)
    series = [run for run in runs if run["method"].startswith(HARD)]
    others = [run for run in runs if run not in series]
    many = others[-1]["points"]  # that of the method with random negatives
    named = {run["method"]: run for run in [*others, *(run for run in series if run["points"] == many)]}
    draw_curves(axes[0], named, "methods")
    draw_curves(axes[1], {f"N = {run['points']:,}": run for run in series}, HARD)
    draw_variance(axes[2], results["gradients"], series, others)
    figure.savefig(output, dpi=150)


def choose_best(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each method the run whose learning rate ended highest."""
    best: dict[str, dict[str, Any]] = {}
    for run in sorted(results["runs"], key=lambda run: float(run["curve"][-1]["pck@10"])):
        best[run["method"]] = run
    return [best[method] for method in dict.fromkeys(run["method"] for run in results["runs"])]


def draw_curves(axis: Any, runs: dict[str, dict[str, Any]], title: str) -> None:
    for label, run in runs.items():
        seconds = [point["seconds"] for point in run["curve"]]
        axis.plot(seconds, [100 * point["pck@10"] for point in run["curve"]], marker=".", label=label)
    axis.set(xlabel="seconds of training", ylabel="held-out points within 10 px (%)")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def draw_variance(
    axis: Any, gradients: dict[str, Any], series: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    measured = [
        (run["points"], value)
        for run in series
        if (value := gradients[run["method"]]["relative_variance"]) is not None
    ]
    if measured:
        points, values = zip(*measured, strict=True)
        axis.loglog(points, values, marker="o", label=HARD)
        axis.loglog(points, [values[0] * points[0] / count for count in points], "k:", label="1 / N")
    for run in others:
        value = gradients[run["method"]]["relative_variance"]
        if value is not None:
            axis.loglog([run["points"]], [value], marker="s", linestyle="", label=run["method"])
    axis.set_xlabel("N, points of each pair of images")
    axis.set_title("variance of the gradient / squared mean, at the start", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


if __name__ == "__main__":
    main()
