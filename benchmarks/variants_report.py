"""Page and figure of what variants.py measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

VARIANTS = ("rn", "hn", "hn-st")
CONTROL = "hn-conv"
UNTRAINED = "untrained"
TITLES = {
    "rn": "RN",
    "hn": "HN",
    "hn-st": "HN-ST",
    CONTROL: "HN, windows fixed",
    UNTRAINED: "untrained trunk",
}
COLOURS = {"rn": "#D55E00", "hn": "#0072B2", "hn-st": "#009E73", CONTROL: "#CC79A7", UNTRAINED: "#999999"}
SHOWN = (0.1, 0.05, 0.025)
HELD_OUT, TEST = "held-out training images", "listed test pairs"


def say_shares(exam: dict[str, Any]) -> str:
    return " / ".join(f"{100 * share_at(exam, alpha):.1f}" for alpha in SHOWN)


def share_at(exam: dict[str, Any], alpha: float) -> float:
    return float(exam["shares"][exam["alphas"].index(alpha)])


def list_exams(results: dict[str, Any]) -> list[str]:
    return [name for name in (TEST, HELD_OUT) if name in results[UNTRAINED]]


def list_variants(results: dict[str, Any]) -> list[str]:
    """Those that were run, as the paper orders them, the control before the last."""
    found = {run["variant"] for run in results["runs"]}
    return [variant for variant in ("rn", "hn", CONTROL, "hn-st") if variant in found]


def collect(results: dict[str, Any], variant: str, exam: str, alpha: float) -> list[float]:
    """PCK in percent of each seed of a variant."""
    return [100 * share_at(run[exam], alpha) for run in results["runs"] if run["variant"] == variant]


def make_page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    settings, runs = results["settings"], results["runs"]
    recipe = next(iter(settings["recipes"].values()))
    changes = ", ".join([f"batch={settings['batch']}", *settings["changes"]])
    lines = ["# The paper's variants on birds", "", "```bash", say_command(results), "```", ""]
    seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
    lines += [
        f"Each recipe of `recipes/paper/semantic-*.yaml` for {settings['seconds']:g} s of "
        f"{settings['device']}, torch {settings['torch']}, with {changes}; seeds {seeds}; "
        f"{recipe['validation_share']:.0%} of the training images held out. PCK is the share, in percent, of "
        "points found within α of image 1's diagonal, by dense nearest neighbour placed between cells: mean "
        "over the seeds (smallest to largest). A step is the difference of two means; the spread is the "
        "larger of the two ranges of seeds.",
        "",
        "![share of points found against α](variants.png)",
        "",
    ]
    for exam in list_exams(results):
        lines += [*table_of_variants(results, exam), "", *table_of_steps(results, exam), ""]
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


def say_command(results: dict[str, Any]) -> str:
    """The command that makes the results again, without places on a machine."""
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


def table_of_variants(results: dict[str, Any], exam: str) -> list[str]:
    """PCK of each variant; the untrained trunk beside them."""
    asked = results[UNTRAINED][exam]
    heads = [f"α = {alpha:g}" for alpha in SHOWN]
    lines = [f"**{exam}** ({asked['pairs']:,} pairs, {asked['points']:,} points)", ""]
    lines += [f"| variant | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    lines.append(
        f"| {TITLES[UNTRAINED]} | {' | '.join(f'{100 * share_at(asked, alpha):.1f}' for alpha in SHOWN)} |"
    )
    for variant in list_variants(results):
        cells = []
        for alpha in SHOWN:
            found = collect(results, variant, exam, alpha)
            cells.append(f"{np.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
        lines.append(f"| {TITLES[variant]} | {' | '.join(cells)} |")
    return lines


def table_of_steps(results: dict[str, Any], exam: str) -> list[str]:
    """By how much each variant is ahead of the one before, against the spread of their seeds."""
    variants = list_variants(results)
    steps = [pair for pair in (("rn", "hn"), ("hn", "hn-st"), (CONTROL, "hn-st")) if set(pair) <= {*variants}]
    lines = [f"| step | {' | '.join(f'α = {alpha:g}' for alpha in SHOWN)} |", "|---" * (1 + len(SHOWN)) + "|"]
    for before, after in steps:
        cells = []
        for alpha in SHOWN:
            low, high = (collect(results, variant, exam, alpha) for variant in (before, after))
            step, spread = np.mean(high) - np.mean(low), max(np.ptp(low), np.ptp(high))
            cells.append(f"{step:+.1f}, spread {spread:.1f}{'' if step > spread else ': **not larger**'}")
        lines.append(f"| {TITLES[before]} → {TITLES[after]} | {' | '.join(cells)} |")
    return lines


def draw(results: dict[str, Any], path: Path) -> None:
    """Share of points found against α, as in the paper's Figure 8: mean and range of the seeds."""
    exams = list_exams(results)
    canvas = Figure(figsize=(0.6 + 4.6 * len(exams), 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, len(exams), sharey=True, squeeze=False)[0]
    for panel, exam in zip(panels, exams, strict=True):
        alphas = results[UNTRAINED][exam]["alphas"]
        for variant in reversed(list_variants(results)):
            rows = [run[exam]["shares"] for run in results["runs"] if run["variant"] == variant]
            shares = 100 * np.array(rows)
            panel.plot(alphas, shares.mean(0), color=COLOURS[variant], label=TITLES[variant])
            panel.fill_between(alphas, shares.min(0), shares.max(0), color=COLOURS[variant], alpha=0.25, lw=0)
        shares = 100 * np.array(results[UNTRAINED][exam]["shares"])
        panel.plot(alphas, shares, ":", color=COLOURS[UNTRAINED], label=TITLES[UNTRAINED])
        panel.set(xlabel="α (of the diagonal of image 1)", xlim=(0, max(alphas)), ylim=(0, 100))
        panel.set_title(exam, fontsize=10)
        panel.grid(alpha=0.3, linewidth=0.6)
    panels[0].set_ylabel("points found, %")
    panels[0].legend(fontsize=9, frameon=False, loc="lower right")
    canvas.savefig(path, dpi=130, metadata={"Software": None})
