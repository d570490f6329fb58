"""Page and plot of the results of variants.py."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from page_text import wrap

VARIANTS = ("rn", "hn", "hn-st")
CONTROL = "hn-conv"
UNTRAINED = "untrained"
TITLES = {
    "rn": "RN",
    "hn": "HN",
    "hn-st": "HN-ST",
    CONTROL: "HN, fixed θ",
    UNTRAINED: "untrained trunk",
}
COLOURS = {"rn": "#D55E00", "hn": "#0072B2", "hn-st": "#009E73", CONTROL: "#CC79A7", UNTRAINED: "#999999"}
SHOWN = (0.1, 0.05, 0.025)
HELD_OUT, TEST = "held-out training images", "listed test pairs"


def format_shares(scores: dict[str, Any]) -> str:
    return " / ".join(f"{100 * share_at(scores, alpha):.1f}" for alpha in SHOWN)


def share_at(scores: dict[str, Any], alpha: float) -> float:
    return float(scores["shares"][scores["alphas"].index(alpha)])


def list_sets(results: dict[str, Any]) -> list[str]:
    return [name for name in (TEST, HELD_OUT) if name in results[UNTRAINED]]


def list_variants(results: dict[str, Any]) -> list[str]:
    """The variants that were run, in the order of the paper, with the control before the last."""
    found = {run["variant"] for run in results["runs"]}
    return [variant for variant in ("rn", "hn", CONTROL, "hn-st") if variant in found]


def collect(results: dict[str, Any], variant: str, set_name: str, alpha: float) -> list[float]:
    """PCK in percent for each seed of a variant."""
    return [100 * share_at(run[set_name], alpha) for run in results["runs"] if run["variant"] == variant]


def make_page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    settings, runs = results["settings"], results["runs"]
    recipe = next(iter(settings["recipes"].values()))
    changes = ", ".join([f"batch={settings['batch']}", *settings["changes"]])
    lines = ["# The paper's variants on birds", "", "```bash", format_command(results), "```", ""]
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    lines += [
        *wrap(
            f"Each recipe of `paper/semantic-*` for {settings['seconds']:g} s of "
            f"{settings['device']}, torch {settings['torch']}, with {changes}; seeds {seeds}; "
            f"{recipe['validation_share']:.0%} of the training images held out. PCK is the share, in "
            "percent, of points found within α of image 1's diagonal, by dense nearest neighbour with "
            "sub-cell refinement: mean over the seeds (smallest to largest). A step is the difference of two "
            "means; the spread is the larger of the two ranges of seeds."
        ),
        "",
        "![PCK against α](variants.png)",
        "",
    ]
    for set_name in list_sets(results):
        lines += [*table_of_variants(results, set_name), "", *table_of_steps(results, set_name), ""]
    lines += [
        "| variant | steps | pairs/s | loss at the end | change of windows | GPU memory |",
        "|---" * 6 + "|",
    ]
    for variant in list_variants(results):
        own = [run for run in runs if run["variant"] == variant]
        mean = {
            key: float(np.mean([run[key] for run in own])) for key in ("steps", "pairs_per_second", "loss")
        }
        windows = ", ".join(
            f"{value:.3f}" for value in np.mean([run["window_change"] for run in own], axis=0)
        )
        memory = max((run["memory_bytes"] or 0) for run in own) / 1e9
        lines.append(
            f"| {TITLES[variant]} | {mean['steps']:.0f} | {mean['pairs_per_second']:.0f} | "
            f"{mean['loss']:.3f} | {windows or '–'} | {f'{memory:.1f} GB' if memory else '–'} |"
        )
    return "\n".join(lines) + "\n"


def format_command(results: dict[str, Any]) -> str:
    """The command that repeats the results, without local paths."""
    settings, variants = results["settings"], list_variants(results)
    words = ["UCN_DATA=DIR", "python", "benchmarks/variants.py", "-o", "FOLDER"]
    words += ["--seconds", f"{settings['seconds']:g}", "--batch", str(settings["batch"])]
    words += ["--seeds", *map(str, sorted({run["seed"] for run in results["runs"]}))]
    if {*variants} - {CONTROL} != {*VARIANTS}:
        words += ["--variants", *(variant for variant in variants if variant != CONTROL)]
    words += [word for change in settings["changes"] for word in ("--set", shlex.quote(change))]
    words += [] if settings["limit"] is None else ["--limit", str(settings["limit"])]
    words += ["--control"] if CONTROL in variants else []
    return " ".join([*words, *(["--held-out-only"] if settings["is_held_out_only"] else [])])


def table_of_variants(results: dict[str, Any], set_name: str) -> list[str]:
    """PCK of each variant and of the untrained trunk."""
    untrained = results[UNTRAINED][set_name]
    heads = [f"α = {alpha:g}" for alpha in SHOWN]
    lines = [f"**{set_name}** ({untrained['pairs']:,} pairs, {untrained['points']:,} points)", ""]
    lines += [f"| variant | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    shares = " | ".join(f"{100 * share_at(untrained, alpha):.1f}" for alpha in SHOWN)
    lines.append(f"| {TITLES[UNTRAINED]} | {shares} |")
    for variant in list_variants(results):
        cells = []
        for alpha in SHOWN:
            found = collect(results, variant, set_name, alpha)
            cells.append(f"{np.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
        lines.append(f"| {TITLES[variant]} | {' | '.join(cells)} |")
    return lines


def table_of_steps(results: dict[str, Any], set_name: str) -> list[str]:
    """Gain of each variant over the one before, and the spread over seeds."""
    variants = list_variants(results)
    steps = [pair for pair in (("rn", "hn"), ("hn", "hn-st"), (CONTROL, "hn-st")) if set(pair) <= {*variants}]
    lines = [f"| step | {' | '.join(f'α = {alpha:g}' for alpha in SHOWN)} |", "|---" * (1 + len(SHOWN)) + "|"]
    for before, after in steps:
        cells = []
        for alpha in SHOWN:
            low, high = (collect(results, variant, set_name, alpha) for variant in (before, after))
            step, spread = np.mean(high) - np.mean(low), max(np.ptp(low), np.ptp(high))
            cells.append(f"{step:+.1f}, spread {spread:.1f}{'' if step > spread else ': **not larger**'}")
        lines.append(f"| {TITLES[before]} → {TITLES[after]} | {' | '.join(cells)} |")
    return lines


def draw(results: dict[str, Any], path: Path) -> None:
    """PCK against α, as in the paper's Figure 8: mean and range over seeds."""
    sets = list_sets(results)
    canvas = Figure(figsize=(0.6 + 4.6 * len(sets), 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for panel, set_name in zip(panels, sets, strict=True):
        alphas = results[UNTRAINED][set_name]["alphas"]
        for variant in reversed(list_variants(results)):
            rows = [run[set_name]["shares"] for run in results["runs"] if run["variant"] == variant]
            shares = 100 * np.array(rows)
            panel.plot(alphas, shares.mean(0), color=COLOURS[variant], label=TITLES[variant])
            panel.fill_between(alphas, shares.min(0), shares.max(0), color=COLOURS[variant], alpha=0.25, lw=0)
        shares = 100 * np.array(results[UNTRAINED][set_name]["shares"])
        panel.plot(alphas, shares, ":", color=COLOURS[UNTRAINED], label=TITLES[UNTRAINED])
        panel.set(xlabel="α (of the diagonal of image 1)", xlim=(0, max(alphas)), ylim=(0, 100))
        panel.set_title(set_name, fontsize=10)
        panel.grid(alpha=0.3, linewidth=0.6)
    panels[0].set_ylabel("PCK, %")
    panels[0].legend(fontsize=9, frameon=False, loc="lower right")
    canvas.savefig(path, dpi=130, metadata={"Software": None})
