"""The report of a run: tables, protocol, methods, scores and plots, and the files they are written to."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ucn
from ucn.errors import OutputError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair
from ucn.evaluate.core.predictions import RunSettings
from ucn.features.method import MethodInfo
from ucn.features.trained_on import find_overlap
from ucn.files.reading import explain_failure
from ucn.files.scratch import clean_up
from ucn.files.writing import check_output, write_bytes_atomically, write_files
from ucn.matching.cells import CONSENSUS_RADIUS

SHEET = "-sheet.jpg"
"""Ending of the file that shows matches of some pairs."""
QUERIES = "-queries.jpg"
"""Ending of the file that shows query points and where methods find them, in the same colours."""
DRIVING_PLOTS = ("", "-keypoints", "-baselines")
"""Suffixes of the plots of each report on points in driving scenes."""

_TEXTS = (".json", ".csv", ".md", ".tex")
_PACKAGES = (
    *("torch", "numpy", "opencv-contrib-python-headless", "onnxruntime", "poselib", "kornia", "numba"),
    "pycolmap",
)


@dataclass(frozen=True)
class Table:
    """Cells of text.

    Attributes:
        title: what it shows.
        header: names of the columns.
        rows: of cells, as many as the header has.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Plot:
    """A plot in two formats.

    Attributes:
        suffix: of its file names, after the benchmark's; empty for the first.
        caption: what it shows.
        png: for pages.
        svg: for print.
    """

    suffix: str
    caption: str
    png: bytes
    svg: bytes


@dataclass(frozen=True)
class Report:
    """Everything about a run.

    Attributes:
        name: of the benchmark, and of the files.
        title: its data.
        command: that repeats the run; of an updated report one a line.
        tables: what people read first.
        protocol: what was done, line by line.
        methods: what was evaluated.
        skipped: reasons by name.
        notes: lines after the protocol, such as the source of quoted results.
        rows: the scores, one a line of CSV, all with the same keys; "figures" in JSON.
        values: further content of the JSON, as plain values; what is not finite becomes null.
        plots: of the scores.
        images: of the data, by the endings of their file names.
        versions: of packages.
        device: where networks and matching ran.
        main_table: which of the tables shows the result as a whole; the command line prints it alone.
    """

    name: str
    title: str
    command: str
    tables: tuple[Table, ...]
    protocol: tuple[str, ...]
    methods: tuple[MethodInfo, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    plots: tuple[Plot, ...] = ()
    images: Mapping[str, bytes] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    main_table: int = 0


def describe_run(settings: RunSettings) -> dict[str, Any]:
    """The command, versions and device of a `Report`."""
    return {
        "command": settings.command,
        "versions": find_versions(),
        "device": name_device(settings.device),
    }


def describe_consensus(methods: Sequence[MethodInfo]) -> list[str]:
    """The line of a protocol about methods with neighbourhood consensus; none without such methods."""
    guided = [method.name for method in methods if method.uses_consensus]
    if not guided:
        return []
    return [
        f"neighbourhood consensus: {', '.join(guided)}; where a second candidate, more than "
        f"{CONSENSUS_RADIUS:g} px from the best, is about as similar, the matches around the point decide: "
        "their support, and where local affine maps say that the point should land"
    ]


def find_trained(methods: Sequence[MethodInfo], pairs: Iterable[BenchmarkPair]) -> dict[str, list[str]]:
    """Parts of the measured data that methods were trained on, by the method's name."""
    parts = {pair.part for pair in pairs if pair.part}
    found = {method.name: find_overlap(method.trained_on, parts) for method in methods}
    return {name: own for name, own in found.items() if own}


def describe_trained(methods: Sequence[MethodInfo], pairs: Iterable[BenchmarkPair]) -> list[str]:
    """Notes on methods whose weights were trained on what is measured."""
    return [
        f"`{name}` was trained on {', '.join(parts)}, as the header of its weights says, so its results are "
        "not of unseen data"
        for name, parts in find_trained(methods, pairs).items()
    ]


def find_versions() -> dict[str, str]:
    """Versions of this package, and of the installed packages that results may depend on."""
    found = {"ucn": ucn.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def name_device(device: str) -> str:
    """A readable name of a device."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores" if device == "cpu" else device


def hash_protocol(**protocol: Any) -> str:
    """A hash of everything that scores depend on beside data and methods, given as plain values."""
    return hashlib.sha256(json.dumps(to_plain(protocol), sort_keys=True).encode()).hexdigest()


def list_outputs(
    folder: Path, name: str, plots: Sequence[str] = ("",), images: Sequence[str] = ()
) -> list[Path]:
    """The files that a report is written to.

    Args:
        folder: of the results.
        name: of the benchmark.
        plots: suffixes of its plots.
        images: endings of its other images.
    """
    plots = [f"{suffix}{end}" for suffix in plots for end in (".png", ".svg")]
    return [folder / f"{name}{end}" for end in (*_TEXTS, *plots, *images)]


def check_outputs(paths: Sequence[Path], overwrite: bool) -> None:
    """Makes the folder and checks, before the work, that the files can be written; raises `OutputError`."""
    for folder in {path.parent for path in paths}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {folder}: {explain_failure(error)}") from error
    for path in paths:
        clean_up(path)
    for path in paths:
        check_output(path, overwrite)


def write_report(report: Report, folder: Path, overwrite: bool) -> list[Path]:
    """Writes a report as JSON, CSV, Markdown, LaTeX, plots and images.

    Args:
        report: of the run.
        folder: where to, existing.
        overwrite: whether files may be replaced.
    """
    content = json.dumps(to_dict(report), indent=1, ensure_ascii=False, allow_nan=False)
    texts = (f"{content}\n", write_csv(report), write_markdown(report), write_latex(report))
    contents = [text.encode() for text in texts]
    for plot in report.plots:
        contents += [plot.png, plot.svg]
    contents += report.images.values()
    paths = list_outputs(folder, report.name, [plot.suffix for plot in report.plots], list(report.images))
    return write_files(
        {
            path: partial(write_bytes_atomically, content=each)
            for path, each in zip(paths, contents, strict=True)
        },
        overwrite,
    )


def write_markdown(report: Report) -> str:
    """The page of a run: command, tables, plots, protocol, methods."""
    lines = [f"# {report.name}", "", *_wrap(f"{_capital(report.title)}."), ""]
    lines += ["```bash", report.command, "```", ""]
    for table in report.tables:
        lines += [*_wrap(f"{_capital(table.title)}:"), "", _row(table.header)]
        lines += [_row(["---"] * len(table.header)), *map(_row, table.rows), ""]
    for plot in report.plots:
        lines += [f"![{_capital(plot.caption)}]({report.name}{plot.suffix}.png)", ""]
    lines += ["Protocol:", "", *_list(report.protocol), ""]
    if report.notes:
        lines += ["Notes:", "", *_list(report.notes), ""]
    lines += ["Methods:", "", *_list(f"`{method.name}`: {method.title}" for method in report.methods)]
    lines += _list(f"`{name}` was skipped: {reason}" for name, reason in report.skipped.items())
    lines += ["", *_wrap(f"Run with {list_versions(report.versions)} on {report.device}."), ""]
    return "\n".join(lines)


def _list(items: Iterable[str]) -> list[str]:
    return [line for item in items for line in _wrap(f"- {item}", indent="  ")]


def _wrap(text: str, indent: str = "") -> list[str]:
    """Lines of Markdown, of at most 100 characters."""
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def list_versions(versions: Mapping[str, str]) -> str:
    """Packages with their versions, for a sentence."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "–": "--",
    "α": "$\\alpha$",
    "×": "$\\times$",
    "°": "$^\\circ$",
    "·": "$\\cdot$",
    "≤": "$\\leq$",
    "²": "$^2$",
    "…": "\\ldots{}",
}


def write_latex(report: Report) -> str:
    """The tables for a paper, in the style of booktabs; the protocol is in comments above them."""
    lines = [f"% {line}" for line in (*report.command.splitlines(), *report.protocol, *report.notes)]
    lines += ["% needs \\usepackage{booktabs}", ""]
    for table in report.tables:
        columns = "l" + "r" * (len(table.header) - 1)
        lines += ["\\begin{table}", "  \\centering", f"  \\caption{{{_escape(_capital(table.title))}.}}"]
        lines += [f"  \\begin{{tabular}}{{{columns}}}", "    \\toprule", _latex_row(table.header)]
        lines += ["    \\midrule", *map(_latex_row, table.rows), "    \\bottomrule"]
        lines += ["  \\end{tabular}", "\\end{table}", ""]
    return "\n".join(lines)


def _latex_row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(map(_escape, cells))} \\\\"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def write_csv(report: Report) -> str:
    """All scores, one a line; what is not finite is left empty."""
    text = io.StringIO()
    names = list(report.rows[0]) if report.rows else []
    writer = csv.DictWriter(text, ["benchmark", *names], lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        short = {name: _shorten(value) for name, value in row.items()}
        writer.writerow({"benchmark": report.name, **short})
    return text.getvalue()


def _shorten(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if math.isfinite(value) else ""


def to_dict(report: Report) -> dict[str, Any]:
    """All of it as plain values for JSON; what is not finite becomes None."""
    return {
        "benchmark": report.name,
        "title": report.title,
        "command": report.command,
        "protocol": list(report.protocol),
        "notes": list(report.notes),
        "versions": dict(report.versions),
        "device": report.device,
        "methods": [_describe_method(method) for method in report.methods],
        "skipped": dict(report.skipped),
        "figures": [to_plain(row) for row in report.rows],
        **to_plain(report.values),
    }


def _describe_method(method: MethodInfo) -> dict[str, Any]:
    described = {"name": method.name, "title": method.title, "key": method.key}
    return {**described, "trained_on": list(method.trained_on)} if method.trained_on else described


def to_plain(value: Any) -> Any:
    """A value as JSON can hold it: rounded, and None for what is not finite."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def from_plain(value: Any, like: Any) -> Any:
    """The inverse of `to_plain`: a value of JSON in the type of `like`; raises `TypeError` for another."""
    if isinstance(like, tuple) and isinstance(value, list):
        return tuple(from_plain(item, item if type(item) is int else 0.0) for item in value)
    if isinstance(like, float) and type(value) in (int, float, type(None)):
        return math.nan if value is None else float(value)
    if type(value) is not type(like):
        raise TypeError(summarise(value))
    return value


def summarise(value: object) -> str:
    """A value of JSON as a short text, for errors."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return f"{text[:160]}…" if len(text) > 160 else text or "empty"


def format_percent(share: float) -> str:
    """A share in [0, 1] as a percentage for a table; a dash where it is NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def format_number(value: float, digits: int = 1) -> str:
    """A number for a table; a dash where it is not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"
