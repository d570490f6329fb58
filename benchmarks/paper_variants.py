"""The paper's variants beside each other: means and ranges over seeds, from networks of paper_runs.py.

UCN_DATA=DIR python benchmarks/paper_runs.py -o runs/paper --seeds 0 1 2
UCN_DATA=DIR python benchmarks/paper_variants.py runs/paper -o runs/variants --measure
python benchmarks/paper_variants.py runs/paper -o runs/variants --page docs/results

--measure runs `ucn evaluate` on the networks of a folder, with raw nearest neighbours as in the paper: cub
for semantic networks; flow, kitti-odometry-points and kitti-odometry for geometric ones; `trunk`, the network
without training, beside them. --only chooses some of the four, --limit some of the pairs. Predictions are
cached, so a stopped call resumes.
--page writes paper-variants.md, .json and .png: Figure 8, Table 3, Figure 5 and Table 6 of the paper, for the
networks that are there. A step is the difference of two means over seeds; the spread is the larger of the two
ranges.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from command_line import make_parser
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from page_text import wrap

from ucn.files.writing import write_bytes_atomically

VARIANTS = ("rn", "hn", "hn-st", "hn-st-branch")
UNTRAINED = "trunk"
TITLES = {
    "rn": "RN",
    "hn": "HN",
    "hn-st": "HN-ST",
    "hn-st-branch": "HN-ST, in branches",
    UNTRAINED: "ImageNet trunk, no training",
}
COLOURS = {"rn": "#D55E00", "hn": "#0072B2", "hn-st": "#009E73", "hn-st-branch": "#CC79A7"}
COLOURS[UNTRAINED] = "#999999"
HELD_OUT = {
    "own": "KITTI odometry",
    "own-2": "KITTI raw, trained on",
    "own-3": "7-Scenes",
    "multiview": "multi-view scenes",
}
"""Names of the sources of paper/geometric-*, in the recipe's order; three frames leave none to hold out."""
STEPS = (("rn", "hn"), ("hn", "hn-st"), ("hn", "hn-st-branch"))
_NAME = re.compile(r"(geometric|semantic)-(rn|hn|hn-st|hn-st-branch)-(\d+)(?:\+nearest)?")

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table: which rows of a report it takes, and their value.

    Attributes:
        title: its header.
        wanted: keys of rows and their values.
        value: the key of the result.
        is_error: whether lower is better; else it is a share, shown in per cent.
    """

    title: str
    wanted: Row
    value: str = "per_point"
    is_error: bool = False


@dataclass(frozen=True)
class Section:
    """A benchmark of the page.

    Attributes:
        name: of `ucn evaluate`.
        task: whose networks are measured.
        folder: of the data in $UCN_DATA.
        title: heading, with the table or figure of the paper.
        columns: of its table.
        options: of `ucn evaluate`.
    """

    name: str
    task: str
    folder: str
    title: str
    columns: tuple[Column, ...]
    options: tuple[str, ...] = ()


def _pck(title: str, limit: float, **wanted: Any) -> Column:
    return Column(title, {"use_refinement": True, "limit": limit, **wanted})


def _pose(title: str, value: str, estimator: str) -> Column:
    wanted = {"is_aligned": False, "group": "all", "estimator": estimator}
    return Column(title, wanted, value, is_error=True)


SECTIONS = (
    Section(
        "cub",
        "semantic",
        "cub",
        "Birds (Figure 8)",
        tuple(_pck(f"α = {limit:g}", limit, group="birds") for limit in (0.1, 0.05, 0.025)),
    ),
    Section(
        "flow",
        "geometric",
        "",
        "Flow, PCK@10 (Table 3)",
        tuple(
            _pck(group, 10.0, group=group)
            for group in ("Sintel clean", "Sintel final", "KITTI flow", "Middlebury flow", "motorcycle")
        ),
    ),
    Section(
        "kitti-odometry-points",
        "geometric",
        "kitti_odometry",
        "KITTI, dense (Figure 5)",
        (
            *(_pck(f"@{limit:g}", limit, table="dense", group="all") for limit in (5.0, 10.0, 30.0)),
            *(
                _pck(f"{group}, @30", 30.0, table="baseline", group=group)
                for group in ("0 to 1 m", "1 to 2 m", "2 to 4 m", "4 to 8 m", "8 to 16 m")
            ),
        ),
    ),
    Section(
        "kitti-odometry",
        "geometric",
        "kitti_odometry",
        "Relative pose, degrees (Table 6)",
        (
            _pose("rotation, OpenCV", "rotation_mean", "opencv"),
            _pose("translation, OpenCV", "translation_mean", "opencv"),
            _pose("rotation, poselib", "rotation_mean", "poselib"),
            _pose("translation, poselib", "translation_mean", "poselib"),
        ),
        ("--no-refinement",),
    ),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("networks", type=Path, help="folder of paper_runs.py")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the reports")
    parser.add_argument("--measure", action="store_true", help="run ucn evaluate")
    parser.add_argument("--only", nargs="+", choices=[section.name for section in SECTIONS])
    parser.add_argument("--limit", type=int, help="largest number of pairs of each benchmark")
    parser.add_argument("--seeds", type=int, nargs="+", help="measure the networks of these seeds alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes of ucn evaluate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--page", type=Path, help="folder of the page")
    given = parser.parse_args()
    chosen = [section for section in SECTIONS if given.only is None or section.name in given.only]
    if given.measure:
        for section in chosen:
            subprocess.run(make_command(section, given), check=True)
    if given.page is not None:
        runs = json.loads((given.networks / "runs.json").read_text(encoding="utf-8"))
        write_page(given.output, runs, given.page)


def make_command(section: Section, given: argparse.Namespace) -> list[str]:
    """The `ucn evaluate` that measures the networks of a section."""
    files = sorted(given.networks.glob(f"{section.task}-*.safetensors"), key=lambda path: sort_key(path.stem))
    if given.seeds is not None:
        files = [path for path in files if sort_key(path.stem)[1] in given.seeds]
    methods = [f"{path.stem}+nearest" for path in files] + [UNTRAINED]
    data = Path(os.environ["UCN_DATA"]) / section.folder
    command = [sys.executable, "-m", "ucn", "evaluate", section.name, "--data", str(data), "--overwrite"]
    command += ["-o", str(given.output), "--device", given.device, "--jobs", str(given.jobs)]
    command += ["--methods", ",".join(methods)]
    for path in files:
        command += ["--weights-file", str(path)]
    if given.limit is not None:
        command += ["--limit", str(given.limit)]
    return command + list(section.options)


def sort_key(name: str) -> tuple[int, int]:
    """Seeds of a variant together, variants in the paper's order."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise SystemExit(f"{name} is no network of paper_runs.py; expected a name such as semantic-hn-0")
    return VARIANTS.index(found[2]), int(found[3])


def collect(rows: Iterable[Row], column: Column) -> dict[str, list[float]]:
    """Values of each variant over its seeds, and of the untrained trunk."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if any(row.get(key) != value for key, value in column.wanted.items()):
            continue
        name = _NAME.fullmatch(row["method"])
        variant, seed = (row["method"], 0) if name is None else (name[2], int(name[3]))
        if variant in TITLES:
            found.setdefault(variant, {})[seed] = row[column.value] * (1 if column.is_error else 100)
    return {variant: [values[seed] for seed in sorted(values)] for variant, values in found.items()}


def format_range(values: Sequence[float], is_error: bool) -> str:
    """The mean, and the range of several values."""
    digits = 3 if is_error else 1
    if not values:
        return "–"
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def format_step(before: Sequence[float], after: Sequence[float], is_error: bool) -> str:
    """The difference of two means, and whether it is larger than the spread of the seeds."""
    if not before or not after:
        return "–"
    digits = 3 if is_error else 1
    step, spread = np.mean(after) - np.mean(before), max(np.ptp(before), np.ptp(after))
    if min(len(before), len(after)) == 1:
        return f"{step:+.{digits}f}"
    within = "" if abs(step) > spread else ": within it"
    return f"{step:+.{digits}f}, spread {spread:.{digits}f}{within}"


def tabulate(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """A table of means and ranges, and one of steps."""
    values = [collect(rows, column) for column in columns]
    kept = [(column, found) for column, found in zip(columns, values, strict=True) if found]
    heads = [column.title for column, _ in kept]
    lines = [f"| variant | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    present = [name for name in (UNTRAINED, *VARIANTS) if any(name in found for _, found in kept)]
    for name in present:
        cells = [format_range(found.get(name, []), column.is_error) for column, found in kept]
        lines.append(f"| {TITLES[name]} | {' | '.join(cells)} |")
    lines += ["", f"| step | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for before, after in STEPS:
        if {before, after} <= {*present}:
            cells = [
                format_step(found.get(before, []), found.get(after, []), column.is_error)
                for column, found in kept
            ]
            lines.append(f"| {TITLES[before]} → {TITLES[after]} | {' | '.join(cells)} |")
    return lines


def describe_runs(runs: Row) -> list[str]:
    """Steps, time and loss of the runs of each recipe; a run whose machine was lost has no log."""
    lines = ["| recipe | seeds | steps | s of a run | loss at the end | GPU memory |", "|---" * 6 + "|"]
    done = [run for run in runs["runs"] if run["code"] == 0]
    for recipe in dict.fromkeys(run["recipe"] for run in done):
        own = sorted((run for run in done if run["recipe"] == recipe), key=lambda run: run["seed"])
        seeds, logged = ", ".join(str(run["seed"]) for run in own), [run for run in own if run["losses"]]
        cells = ["–"] * 4
        if logged:
            losses = [run["losses"][-1][1] for run in logged]
            seconds, memory = (np.mean([run[key] for run in logged]) for key in ("seconds", "memory_bytes"))
            steps = logged[0]["losses"][-1][0]
            cells = [str(steps), f"{seconds:.0f}", f"{np.mean(losses):.4f}", f"{memory / 1e9:.1f} GB"]
        lines.append(f"| `paper/{recipe}` | {seeds} | {' | '.join(cells)} |")
    return lines


def describe_held_out(runs: Row) -> list[str]:
    """PCK on held-out pairs of the training sets, as `ucn train` validates; mean over seeds."""
    lines: list[str] = []
    for task in ("geometric", "semantic"):
        done = [run for run in runs["runs"] if run["code"] == 0 and run["validation"]]
        own = [run for run in done if run["recipe"].startswith(task)]
        keys = [
            key for key in (own[0]["validation"] if own else ()) if key.endswith(("@10", "@0.1", "@0.05"))
        ]
        if not keys:
            continue
        heads = [HELD_OUT.get(key.rpartition(" ")[0], key.rpartition(" ")[0]) for key in keys]
        heads = [f"{head} {key.rpartition(' ')[2]}".strip() for head, key in zip(heads, keys, strict=True)]
        lines += [f"| variant | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
        for recipe in dict.fromkeys(run["recipe"] for run in own):
            values = [[run["validation"][key] for run in own if run["recipe"] == recipe] for key in keys]
            cells = [format_range([100 * value for value in row], False) for row in values]
            lines.append(f"| {TITLES[recipe.removeprefix(f'{task}-')]} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def write_page(reports: Path, runs: Row, folder: Path) -> None:
    """Writes the page, its figure, and the values behind it."""
    read = {
        section.name: json.loads((reports / f"{section.name}.json").read_text(encoding="utf-8"))
        for section in SECTIONS
        if (reports / f"{section.name}.json").is_file()
    }
    versions = next(run["versions"] for run in runs["runs"] if run["code"] == 0)
    lines = ["# The paper's variants", "", "```bash"]
    lines += [line for line in (__doc__ or "").splitlines() if "python benchmarks/" in line]
    lines += ["```", ""]
    lines += wrap(
        "Each recipe of `paper/` as it stands: equal batches, learning rates and steps for the variants of a "
        f"task, trained with ucn {versions['ucn']}, torch {versions['torch']} on one GPU that the runs "
        "shared. Matches are raw nearest neighbours with sub-cell refinement, without consensus, as in the "
        "paper. Cells are means over seeds (smallest to largest). A step is the difference of two means; the "
        "spread is the larger of the two ranges of seeds. A variant with one seed has no range."
    )
    lines += ["", *(["![PCK against the threshold](paper-variants.png)", ""] if read else [])]
    for section in SECTIONS:
        if section.name in read:
            report = read[section.name]
            lines += [f"## {section.title}", ""]
            lines += wrap(next(line for line in report["protocol"] if line.startswith("data: ")) + ".")
            lines += ["", *tabulate(report["figures"], section.columns), ""]
    held_out = describe_held_out(runs)
    if held_out:
        lines += ["## Held-out pairs of the training sets", "", *held_out]
    lines += ["## Runs", "", *describe_runs(runs), ""]
    write_bytes_atomically(folder / "paper-variants.md", "\n".join(lines).encode(), overwrite=True)
    kept = [
        {key: run[key] for key in ("recipe", "seed", "seconds", "sha256", "losses", "validation", "versions")}
        for run in runs["runs"]
        if run["code"] == 0
    ]
    values = {"runs": kept, "reports": {name: _reduce(report) for name, report in read.items()}}
    content = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    write_bytes_atomically(folder / "paper-variants.json", content.encode(), overwrite=True)
    if read:
        draw(read, folder / "paper-variants.png")


def _reduce(report: Row) -> Row:
    """What the page shows of a report."""
    keys = ("command", "protocol", "versions", "device", "data_sha256", "points_sha256", "figures")
    return {key: report[key] for key in keys if key in report}


def draw(reports: dict[str, Row], path: Path) -> None:
    """PCK against the limit, mean and range over seeds, as in Figures 5 and 8."""
    choices: list[tuple[str, str, Callable[[Row], list[Row]], str]] = [
        ("cub", "birds", lambda report: report["curves"], "birds"),
        ("kitti-odometry-points", "all", lambda report: report["curves"]["dense"], "KITTI, dense"),
        ("flow", "KITTI flow", lambda report: report["curves"], "KITTI flow"),
    ]
    shown = [choice for choice in choices if choice[0] in reports]
    canvas = Figure(figsize=(0.6 + 4.2 * len(shown), 4.0), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for panel, (name, group, read, title) in zip(panels, shown, strict=True):
        curves = [c for c in read(reports[name]) if c["use_refinement"] and c["group"] == group]
        for variant in (UNTRAINED, *VARIANTS):
            own = [
                c
                for c in curves
                if ((found := _NAME.fullmatch(c["method"])) and found[2] == variant) or c["method"] == variant
            ]
            if not own:
                continue
            shares = 100 * np.array([curve["shares"] for curve in own])
            limits, colour = own[0]["limits"], COLOURS[variant]
            style = ":" if variant == UNTRAINED else "-"
            panel.plot(limits, shares.mean(0), style, color=colour, label=TITLES[variant])
            panel.fill_between(limits, shares.min(0), shares.max(0), color=colour, alpha=0.25, lw=0)
        panel.set(xlabel="α (of L)" if name == "cub" else "px", ylim=(0, 100), title=title)
        panel.grid(alpha=0.3, linewidth=0.6)
        panel.legend(fontsize=8, frameon=False, loc="lower right")
    panels[0].set_ylabel("PCK, %")
    canvas.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
