"""Page and figure of cost_figure.py: forward passes and seconds against the number of keypoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from ucn.data.io import write_bytes_atomically
from ucn.evaluate.core.plots import lay_out, save_plot

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
    patch, threads = settings["patch"], settings["threads"]
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    lines = [
        "# What n keypoints cost",
        "",
        "```bash",
        settings["command"],
        "```",
        "",
        f"There are n keypoints in each of two images of {width} × {height}: which of image 1 is which of "
        "image 0? UCN runs once an image, whatever n is, and compares descriptors. A Siamese network sees "
        f"two patches of {patch} × {patch} px at a time, so n² pairs are n² forward passes of the whole "
        "network. Where descriptors of patches are kept (branches cached), the branch runs 2n times, but the "
        "decision layers still n² times.",
        "",
        *say_ratios(results),
        "",
        "![Forward passes and seconds against n](cost.png)",
        "",
        *make_table(results),
        "",
        f"- seconds: of {threads} CPU thread{'s' if threads > 1 else ''}, a run each. A run was stopped when "
        f"it passed {settings['limit']:g} s; that one and larger n are extrapolated (`~`, dashed in the "
        "figure) from the last whole run: describing patches grows with n, comparing pairs with n²",
        "- forward passes: counted while the networks ran; an image, a patch or a pair counts once, however "
        "many go through together. A pass of the whole network is two of the branch and one of the decision "
        "layers",
        "- accuracy: PCK@10 in percent, the keypoints whose answer lies within 10 px of the truth. The "
        "keypoints of image 1 are the true matches of those of image 0, so the fewer there are, the easier "
        "it is. "
        f"`stereo` is the shipped pair ({settings['pairs']['stereo']}), `warped` a photograph under a known "
        f"homography ({settings['pairs']['warped']}), which has 500 keypoints. Both Siamese ways give the "
        "same answers",
        f"- UCN: weights {settings['weights']}",
        f"- Siamese: {settings['siamese']}; GoogLeNet's conv1 to inception_4a, as in UCN, and decision "
        "layers over two descriptors; trained by [siamese_training.py](../../benchmarks/siamese_training.py)",
        f"- seed {settings['seed']}; {versions}",
    ]
    return "\n".join(lines) + "\n"


def say_ratios(results: Results) -> list[str]:
    """How the ways compare at the largest n, and from which n on UCN is the fastest."""
    runs = results["runs"]
    ours, last = runs[UCN], runs[UCN][-1]
    lines = []
    for name in (WHOLE, CACHED):
        rows = list(zip(ours, runs[name], strict=True))
        faster = [row["n"] for row, other in rows if row["seconds"] < other["seconds"]]
        begun = f"faster from n = {faster[0]:,} on" if faster else "never faster"
        factor = runs[name][-1]["seconds"] / last["seconds"]
        lines.append(f"- against {name}: UCN is {begun}; at n = {last['n']:,} by a factor of {factor:,.1f}")
    return lines


def make_table(results: Results) -> list[str]:
    """A Markdown table, a line for each n."""
    runs = results["runs"]
    heads = ["n", "UCN, images", "UCN, s", "cached: branch", "cached: decisions", "cached, s"]
    heads += ["no cache: whole network", "no cache, s", "UCN, stereo", "Siamese, stereo"]
    heads += ["UCN, warped", "Siamese, warped"]
    lines = [f"| {' | '.join(heads)} |", "|---:" * len(heads) + "|"]
    for ours, cached, whole in zip(runs[UCN], runs[CACHED], runs[WHOLE], strict=True):
        cells = [f"{ours['n']:,}", f"{ours['passes']['images']:,}", say_seconds(ours)]
        cells += [f"{cached['passes']['patches']:,}", f"{cached['passes']['pairs']:,}", say_seconds(cached)]
        cells += [f"{whole['passes']['pairs']:,}", say_seconds(whole)]
        for key in ("accuracy", "accuracy_warped"):
            cells += [say_share(run.get(key)) for run in (ours, cached)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def say_seconds(run: dict[str, Any]) -> str:
    return f"{'' if run['is_measured'] else '~'}{run['seconds']:,.2f}"


def say_share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def draw(results: Results) -> Any:
    """Two panels, both logarithmic both ways."""
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
    """Measured runs with a line, what is extrapolated dashed on from the last of them."""
    measured = [row for row in rows if row["is_measured"]]
    beyond = [*measured[-1:], *(row for row in rows if not row["is_measured"])]
    points = [[(row["n"], row["seconds"]) for row in part] for part in (measured, beyond)]
    axis.plot(*zip(*points[0], strict=True), "-o", color=COLOURS[name], label=name)
    if len(beyond) > 1:
        axis.plot(*zip(*points[1], strict=True), "--", color=COLOURS[name], label=f"{name}, extrapolated")
