"""A run as people and programs read it: the same pages for every benchmark, whatever it measures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ucn.evaluate.core.methods import MethodInfo


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
    """A figure, twice.

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
        name: of the benchmark; files are called so.
        title: its data.
        command: that makes the run again.
        tables: what people read first.
        protocol: what was done, line by line.
        methods: what was measured.
        skipped: reasons by name.
        notes: lines after the protocol, such as where quoted figures come from.
        rows: the figures, one a line of CSV, all with the same keys.
        values: what JSON holds beside all this, as plain values; what is not finite becomes null.
        plots: figures.
        versions: of packages.
        device: where networks and matching ran.
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
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""


def write_markdown(report: Report) -> str:
    """The page of a run: command, tables, figures, protocol, methods."""
    lines = [f"# {report.name}", "", f"{_capital(report.title)}.", ""]
    lines += ["```bash", report.command, "```", ""]
    for table in report.tables:
        lines += [f"{_capital(table.title)}:", "", _row(table.header)]
        lines += [_row(["---"] * len(table.header)), *map(_row, table.rows), ""]
    for plot in report.plots:
        lines += [f"![{_capital(plot.caption)}]({report.name}{plot.suffix}.png)", ""]
    lines += ["Protocol:", "", *(f"- {line}" for line in report.protocol), ""]
    if report.notes:
        lines += ["Notes:", "", *(f"- {line}" for line in report.notes), ""]
    lines += ["Methods:", "", *(f"- `{method.name}`: {method.title}" for method in report.methods)]
    lines += [f"- `{name}` was skipped: {reason}" for name, reason in report.skipped.items()]
    lines += ["", f"{_describe_run(report)}", ""]
    return "\n".join(lines)


def _describe_run(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"Run with {versions} on {report.device}."


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
    """The tables for a paper, in the style of booktabs; the protocol stands in comments above them."""
    lines = [f"% {line}" for line in (report.command, *report.protocol, *report.notes)]
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
    """All figures, one a line."""
    text = io.StringIO()
    names = list(report.rows[0]) if report.rows else []
    writer = csv.DictWriter(text, ["benchmark", *names], lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        short = {name: _shorten(value) for name, value in row.items()}
        writer.writerow({"benchmark": report.name, **short})
    return text.getvalue()


def _shorten(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


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
        "methods": [{"name": m.name, "title": m.title, "key": m.key} for m in report.methods],
        "skipped": dict(report.skipped),
        "figures": [to_plain(row) for row in report.rows],
        **to_plain(report.values),
    }


def to_plain(value: Any) -> Any:
    """A value as JSON can hold it: rounded, and None for what is not finite."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def say_percent(share: float) -> str:
    """A share in [0, 1] as a percentage for a table; a dash where there is none."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def say_number(value: float, digits: int = 1) -> str:
    """A number for a table; a dash where it is not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"
