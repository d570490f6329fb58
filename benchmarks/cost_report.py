"""Page and plot of cost_figure.py: forward passes and seconds against the number of keypoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from page_text import join_cells, start_table, wrap, wrap_items

from ucn.evaluate.core.plots import lay_out, save_plot
from ucn.files.writing import write_bytes_atomically

UCN, CACHED, WHOLE = "UCN", "Siamese, branches cached", "Siamese, without a cache"
COLOURS = {UCN: "#0072B2", CACHED: "#E69F00", WHOLE: "#D55E00"}

Results = dict[str, Any]


def write_report(results: Results, path: Path) -> str:
    """Writes JSON, Markdown, PNG and SVG beside each other; returns the page."""
    plot = draw(results)
    page = make_page(results)
    contents = {
        ".json": (json.dumps(results, indent=1) + "\n").encode(),
        ".md": page.encode(),
        ".png": plot.png,
        ".svg": plot.svg,
    }
    for suffix, content in contents.items():
        write_bytes_atomically(path.with_suffix(suffix), content, overwrite=True)
    return page


def make_page(results: Results) -> str:
    """The page as Markdown."""
    settings = results["settings"]
    height, width = settings["image_hw"]
    patch = settings["patch"]
    lines = [
        "# What n keypoints cost",
        "",
        "```bash",
        settings["command"],
        "```",
        "",
        *wrap(
            f"n keypoints in each of two images of {width} × {height} are matched. UCN runs once per image, "
            "whatever n is, and compares descriptors. A Siamese network takes two patches of "
            f"{patch} × {patch} px at a time, so n² pairs are n² forward passes of the whole network. If "
            "descriptors of patches are cached, the branch runs 2n times, but the decision layers still n² "
            "times."
        ),
        "",
        *wrap_items(compare_methods(results)),
        "",
        "![Forward passes and seconds against n](cost.png)",
        "",
        *make_table(results),
        "",
        *wrap_items(list_notes(settings)),
    ]
    return "\n".join(lines) + "\n"


def list_notes(settings: dict[str, Any]) -> list[str]:
    """How the table was measured."""
    threads = "one CPU thread" if settings["threads"] == 1 else f"{settings['threads']} CPU threads"
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    return [
        f"seconds: {threads}, one run each. Runs over {settings['limit']:g} s were stopped; they and larger "
        "n are extrapolated (`~`, dashed in the plot) from the last complete run: the branch grows with n, "
        "the decision layers with n²",
        "forward passes: counted while the networks ran; an image, a patch or a pair counts once, whatever "
        "the batch size. A pass of the whole network is two of the branch and one of the decision layers",
        "accuracy: PCK@10 in percent, the keypoints whose match lies within 10 px of the ground truth. The "
        "keypoints of image 1 are the true matches of those of image 0, so the fewer there are, the easier "
        f"it is. `stereo` is the bundled pair ({settings['pairs']['stereo']}), `warped` a photograph under a "
        f"known homography ({settings['pairs']['warped']}), which has 500 keypoints. Both Siamese variants "
        "give the same matches",
        f"UCN: weights {settings['weights']}",
        f"Siamese: {settings['siamese']}; GoogLeNet's conv1 to inception_4a, as in UCN, and decision layers "
        "over two descriptors; trained by [siamese_training.py](../../benchmarks/siamese_training.py)",
        f"seed {settings['seed']}; {versions}",
    ]


def compare_methods(results: Results) -> list[str]:
    """Speed-up at the largest n, and the smallest n at which UCN is faster."""
    runs = results["runs"]
    ours, last = runs[UCN], runs[UCN][-1]
    lines = []
    for name in (WHOLE, CACHED):
        rows = list(zip(ours, runs[name], strict=True))
        faster = [row["n"] for row, other in rows if row["seconds"] < other["seconds"]]
        begun = f"faster from n = {faster[0]:,} on" if faster else "never faster"
        factor = runs[name][-1]["seconds"] / last["seconds"]
        lines.append(f"against {name}: UCN is {begun}; at n = {last['n']:,} by a factor of {factor:,.1f}")
    return lines


def make_table(results: Results) -> list[str]:
    """A Markdown table with a row for each n."""
    runs = results["runs"]
    heads = ["n", "UCN, images", "UCN, s", "cached: branch", "cached: decisions", "cached, s"]
    heads += ["no cache: whole network", "no cache, s", "UCN, stereo", "Siamese, stereo"]
    heads += ["UCN, warped", "Siamese, warped"]
    lines = start_table(heads, "---:")
    for ours, cached, whole in zip(runs[UCN], runs[CACHED], runs[WHOLE], strict=True):
        cells = [f"{ours['n']:,}", f"{ours['passes']['images']:,}", format_seconds(ours)]
        cells += [
            f"{cached['passes']['patches']:,}",
            f"{cached['passes']['pairs']:,}",
            format_seconds(cached),
        ]
        cells += [f"{whole['passes']['pairs']:,}", format_seconds(whole)]
        for key in ("accuracy", "accuracy_warped"):
            cells += [format_share(run.get(key)) for run in (ours, cached)]
        lines.append(join_cells(cells))
    return lines


def format_seconds(run: dict[str, Any]) -> str:
    return f"{'' if run['is_measured'] else '~'}{run['seconds']:,.2f}"


def format_share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def draw(results: Results) -> Any:
    """Two log-log panels."""
    runs = results["runs"]
    canvas, (left, right) = lay_out(2, (3.8, 5.2))
    counts = [run["n"] for run in runs[UCN]]
    left.plot(counts, [run["passes"]["images"] for run in runs[UCN]], "-o", color=COLOURS[UCN], label=UCN)
    branch = [run["passes"]["patches"] for run in runs[CACHED]]
    left.plot(counts, branch, "-s", color=COLOURS[CACHED], label="Siamese, cached: branch")
    decisions = [run["passes"]["pairs"] for run in runs[CACHED]]
    left.plot(counts, decisions, ":D", color=COLOURS[CACHED], label="Siamese, cached: decision layers")
    whole = [run["passes"]["pairs"] for run in runs[WHOLE]]
    left.plot(counts, whole, "-^", color=COLOURS[WHOLE], label="Siamese, no cache: whole network", alpha=0.6)
    left.set(xlabel="n, keypoints in each image", ylabel="forward passes")
    for name, rows in runs.items():
        draw_seconds(right, name, rows)
    right.axhline(results["settings"]["limit"], color="#999999", linewidth=0.8, linestyle=":")
    threads = results["settings"]["threads"]
    right.set(xlabel="n, keypoints in each image", ylabel=f"seconds, {threads} CPU thread")
    for panel in (left, right):
        panel.set(xscale="log", yscale="log")
        panel.legend(fontsize=8, frameon=False)
    return save_plot(canvas, "Forward passes and seconds against the number of keypoints")


def draw_seconds(axis: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    """Measured runs as a solid line, extrapolated ones dashed."""
    measured = [row for row in rows if row["is_measured"]]
    beyond = [*measured[-1:], *(row for row in rows if not row["is_measured"])]
    points = [[(row["n"], row["seconds"]) for row in part] for part in (measured, beyond)]
    axis.plot(*zip(*points[0], strict=True), "-o", color=COLOURS[name], label=name)
    if len(beyond) > 1:
        axis.plot(*zip(*points[1], strict=True), "--", color=COLOURS[name], label=f"{name}, extrapolated")
