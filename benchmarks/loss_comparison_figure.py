"""Page and plot of the results of loss_comparison.py.

python benchmarks/loss_comparison_figure.py training-claim.json
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from command_line import make_parser
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from page_text import join_cells, start_table, wrap

from ucn.files.writing import write_bytes_atomically

HARD = "correspondence contrastive, hard negatives"
# Colour-blind safe palette of Okabe and Ito.
COLOURS = ("#E69F00", "#56B4E9", "#CC79A7", "#D55E00", "#0072B2")
SERIES = ("#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#000000")

Run = dict[str, Any]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("results", type=Path, help="training-claim.json")
    print(write_report(parser.parse_args().results))


def write_report(path: Path) -> str:
    """Writes page and plot beside the results; returns the page."""
    results = json.loads(path.read_text(encoding="utf-8"))
    page = make_page(results)
    draw(results, path.with_suffix(".png"))
    write_bytes_atomically(path.with_suffix(".md"), page.encode(), overwrite=True)
    return page


def choose_best(results: dict[str, Any]) -> list[Run]:
    """The run with the best learning rate of each method, in the order of the methods."""
    best: dict[str, Run] = {}
    for run in sorted(results["runs"], key=lambda run: float(run["curve"][-1]["pck@10"])):
        best[run["method"]] = run
    return [best[method] for method in dict.fromkeys(run["method"] for run in results["runs"])]


def split_runs(results: dict[str, Any]) -> tuple[list[Run], list[Run]]:
    """The runs that compare losses, and those that compare numbers of points."""
    runs = choose_best(results)
    series = [run for run in runs if run["method"].startswith(HARD)]
    others = [run for run in runs if run not in series]
    many = others[-1]["points"] if others else 0  # that of the method with random negatives
    return [*others, *(run for run in series if run["points"] == many)], series


def make_page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    settings = results["settings"]
    plan = settings["plan"]
    methods, series = split_runs(results)
    rates = " ".join(f"{rate:g}" for rate in plan["rates"])
    command = (
        "python benchmarks/loss_comparison.py --images PHOTOGRAPHS --trunk GOOGLENET -o FOLDER "
        f"--seconds {plan['seconds']:g} --rates {rates} --batch {plan['batch']} --side {plan['side']} "
        f"--points {' '.join(map(str, plan['points']))}"
    )
    return "\n".join(
        [
            "# Many correspondences per pair, or one example",
            "",
            "```bash",
            command,
            "```",
            "",
            *wrap(describe(settings)),
            "",
            "![validation against time, and variance of the gradient](training-claim.png)",
            "",
            "## Which loss",
            "",
            *make_table(results, methods),
            "",
            *wrap(
                "*Siamese*: one example of each pair of images, cut out as two patches as large as the "
                "network's receptive field. *Triplet* and *one-example contrastive*: one example of each "
                "pair, read from whole images. *Time to match* is when a run first reaches the final result "
                "of the best of these three."
            ),
            "",
            "## How many correspondences per pair",
            "",
            *make_table(results, series),
            "",
        ]
    )


def describe(settings: dict[str, Any]) -> str:
    """What was compared, and how."""
    plan, photographs = settings["plan"], settings["photographs"]
    rates = " ".join(f"{rate:g}" for rate in plan["rates"])
    return (
        "The paper claims that many correspondences of an image pair, in one pass, give an accurate gradient "
        "and so train faster than one example per pair. Here each loss trains the same network (the paper's, "
        f"without a transformer, trunk {settings['trunk']}) for the same {plan['seconds']:g} s of "
        f"{settings['device']}, torch {settings['torch']}; validation is not counted. Each step has "
        f"{plan['batch']} pairs of {plan['side']} × {plan['side']} px, synthesised from "
        f"{photographs['training']:,} photographs; AdamW, gradients clipped at {plan['clip_norm']:g}, "
        f"learning rate along a cosine to 0{', the best of ' + rates if len(plan['rates']) > 1 else ''}; "
        f"seed {plan['seed']}. PCK in percent: held-out points ({plan['validation_pairs']} pairs of "
        f"{photographs['held_out']:,} other photographs) found within 5 or 10 px by dense nearest neighbour "
        "with sub-cell refinement. Variance of the gradient: trace of its covariance over "
        f"{plan['draws']} batches, divided by the squared length of its mean, both without bias, measured "
        "before training."
    )


def make_table(results: dict[str, Any], runs: list[Run]) -> list[str]:
    """A Markdown table with a row for each run."""
    plan = results["settings"]["plan"]
    marks = sorted({max(1, plan["checkpoints"] // 4), plan["checkpoints"]})
    times = [f"PCK@10 after {plan['seconds'] * mark / plan['checkpoints']:g} s" for mark in marks]
    heads = ["method", "N", "learning rate", "steps/s", "variance of the gradient"]
    heads += ["PCK@10 at the start", *times, "PCK@5 at the end", "time to match"]
    lines = start_table(heads)
    goal = max((run["curve"][-1]["pck@10"] for run in choose_best(results)[:3]), default=1.0)
    for run in runs:
        curve = run["curve"]
        cells = [run["method"].split(", N =")[0], f"{run['points']:,}", f"{run['rate']:g}"]
        cells += [f"{run['steps_per_second']:.1f}", format_variance(results, run)]
        cells += [f"{100 * curve[mark]['pck@10']:.1f}" for mark in (0, *marks)]
        reached = find_time(curve, goal)
        cells += [f"{100 * curve[-1]['pck@5']:.1f}", "never" if reached is None else f"{reached:.1f} s"]
        lines.append(join_cells(cells))
    return lines


def format_variance(results: dict[str, Any], run: Run) -> str:
    found = results["gradients"][run["method"]]["relative_variance"]
    return "mean not found" if found is None else f"{found:.3g}"


def find_time(curve: list[dict[str, float]], goal: float) -> float | None:
    """Seconds at which a curve first reaches a PCK@10, by linear interpolation; None where it does not."""
    for before, after in pairwise(curve):
        if before["pck@10"] >= goal:
            return before["seconds"]
        if after["pck@10"] >= goal:
            share = (goal - before["pck@10"]) / (after["pck@10"] - before["pck@10"])
            return before["seconds"] + share * (after["seconds"] - before["seconds"])
    return None


def draw(results: dict[str, Any], path: Path) -> None:
    canvas = Figure(figsize=(14, 4.4), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(1, 3)
    methods, series = split_runs(results)
    draw_curves(axes[0], {name_method(run): run for run in methods}, COLOURS, "which loss")
    named = {f"N = {run['points']:,}": run for run in series}
    draw_curves(axes[1], named, SERIES, "hard negatives, N points of each pair")
    axes[1].sharey(axes[0])
    draw_variance(axes[2], results["gradients"], series, methods)
    canvas.savefig(path, dpi=120, metadata={"Software": None})


def name_method(run: Run) -> str:
    """A short name for a legend."""
    name = run["method"].replace("correspondence contrastive", "correspondence c.")
    return str(name.replace(" negatives", "").replace(", patches", " (patches)"))


def draw_curves(axis: Axes, runs: dict[str, Run], colours: tuple[str, ...], title: str) -> None:
    for number, (label, run) in enumerate(runs.items()):
        seconds = [point["seconds"] for point in run["curve"]]
        shares = [100 * point["pck@10"] for point in run["curve"]]
        axis.plot(seconds, shares, marker=".", label=label, color=colours[number % len(colours)])
    axis.set(xlabel="seconds of training", ylabel="held-out points within 10 px, %")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3, linewidth=0.6)
    axis.legend(fontsize=8, frameon=False)


def draw_variance(axis: Axes, gradients: dict[str, Any], series: list[Run], methods: list[Run]) -> None:
    measured = [
        (run["points"], value)
        for run in series
        if (value := gradients[run["method"]]["relative_variance"]) is not None
    ]
    if measured:
        points, values = zip(*measured, strict=True)
        axis.loglog(points, values, marker="o", color=COLOURS[-1], label="hard negatives")
        expected = [values[0] * points[0] / count for count in points]
        axis.loglog(points, expected, "k:", label="1 / N, were points independent")
    for number, run in enumerate(methods):
        value = gradients[run["method"]]["relative_variance"]
        if value is not None and run not in series:
            axis.loglog(
                [run["points"]], [value], "s", color=COLOURS[number % len(COLOURS)], label=name_method(run)
            )
    axis.set(xlabel="N, points of each pair of images", ylabel="variance / squared mean")
    axis.set_title("variance of the gradient before training", fontsize=10)
    axis.grid(alpha=0.3, linewidth=0.6)
    axis.legend(fontsize=8, frameon=False)


if __name__ == "__main__":
    main()
