"""A run as people and programs read it: tables, protocol, JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ucn.evaluate.benchmarks import Benchmark
from ucn.evaluate.methods import Method
from ucn.evaluate.scoring import LEVEL, RESAMPLES, Figure, Scores

_MANY_GROUPS = 4


@dataclass(frozen=True)
class Report:
    """Everything about a run.

    Attributes:
        benchmark: what was measured on.
        command: that makes it again.
        methods: what was measured.
        skipped: reasons by name.
        scores: the figures.
        pair_count: of the benchmark; those asked may be fewer.
        asked_count: pairs that were asked.
        point_count: points that were asked.
        seed: of points and resampling.
        points_sha256: of the true points.
        versions: of packages.
        device: where networks and matching ran.
    """

    benchmark: Benchmark
    command: str
    methods: tuple[Method, ...]
    skipped: dict[str, str]
    scores: Scores
    pair_count: int
    asked_count: int
    point_count: int
    seed: int
    points_sha256: str
    versions: dict[str, str]
    device: str


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


def describe_protocol(report: Report) -> list[str]:
    """What was done, line by line; printed under every table."""
    benchmark = report.benchmark
    asked = f"{report.asked_count:,} pairs"
    if report.asked_count < report.pair_count:
        asked += f" of {report.pair_count:,}, evenly spread (--limit)"
    drawn = (
        f"up to {benchmark.points:,} a pair, drawn at random by seed {report.seed} and the pair's name"
        if benchmark.points is not None
        else "all of them"
    )
    return [
        f"data: {benchmark.title}; {asked}, {report.point_count:,} points",
        f"images: {benchmark.preparation.describe()}",
        f"points: {benchmark.truth}; {drawn}; the same for all methods (sha256 {report.points_sha256[:16]})",
        "matching: a point's descriptor is interpolated between the cells of image 0, and its match is the "
        "cell of image 1 with the nearest descriptor (exact, over the whole picture); with refinement the "
        "match is then placed between cells, by the same code for all methods; no mutual check, no ratio "
        "test, no smoothing",
        _describe_limits(benchmark),
        f"averages: tables show the mean over {benchmark.headline}s unless they say otherwise; intervals "
        f"hold {LEVEL:.0%} of {RESAMPLES:,} resamplings of the pairs (seed {report.seed})",
    ]


def _describe_limits(benchmark: Benchmark) -> str:
    if benchmark.unit == "px":
        return "score: PCK@T, the percentage of points at most T pixels from the truth"
    return f"score: PCK@α, the percentage of points at most α·L from the truth; L is {benchmark.length}"


def tabulate(report: Report) -> list[Table]:
    """The tables of a run: with refinement and without, each split by axis where groups make curves."""
    figures = report.scores.figures
    tables = []
    for use in dict.fromkeys(figure.use_refinement for figure in figures):
        for axis in dict.fromkeys(figure.axis for figure in figures):
            chosen = [f for f in figures if f.use_refinement == use and f.axis == axis]
            tables.append(_tabulate_groups(report, chosen, axis, use))
    if not any(figure.axis for figure in figures):
        use = figures[0].use_refinement
        last = figures[-1].group
        chosen = [f for f in figures if f.use_refinement == use and f.group == last]
        tables.append(_tabulate_averages(report, chosen, use))
    return tables


def _tabulate_groups(report: Report, figures: Sequence[Figure], axis: str, use: bool) -> Table:
    groups = list(dict.fromkeys(figure.group for figure in figures))
    limits = report.benchmark.limits
    # With many groups all limits of one share a column, lest the table become too wide.
    packs = [limits] if len(groups) > _MANY_GROUPS else [(limit,) for limit in limits]
    columns = [(group, pack) for group in groups for pack in packs]
    found = {(f.method, f.group, f.limit): _say(_headline(report, f)) for f in figures}
    rows = [
        (
            method.name,
            *(" / ".join(found[method.name, group, limit] for limit in pack) for group, pack in columns),
        )
        for method in report.methods
    ]
    title = _title(use)
    if axis:
        title = f"PCK{_say_limits(report.benchmark, limits)} by {axis}, {title}"
        names = [group.removeprefix(f"{axis} ") for group in groups]
    else:
        names = [f"{group} {_say_limits(report.benchmark, pack)}" for group, pack in columns]
    return Table(title, ("method", *names), tuple(rows))


def _tabulate_averages(report: Report, figures: Sequence[Figure], use: bool) -> Table:
    """All three averages of one group, with the interval of the mean over points."""
    rows = []
    for method in report.methods:
        cells = [method.name]
        for figure in (figure for figure in figures if figure.method == method.name):
            bounds = f"{_say(figure.low)}–{_say(figure.high)}"
            means = " / ".join(map(_say, (figure.per_point, figure.per_pair, figure.per_class)))
            cells.append(f"{means} ({bounds})")
        cost = next(cost for cost in report.scores.costs if cost.method == method.name)
        rows.append((*cells, _say_pixels(figures, method.name), _say_seconds(cost.per_image)))
    limits = report.benchmark.limits
    names = [f"{figures[0].group} {_say_limits(report.benchmark, (limit,))}" for limit in limits]
    title = f"mean over points / pairs / classes (interval of the first), {_title(use)}"
    return Table(title, ("method", *names, "median error, px", "s an image"), tuple(rows))


def _headline(report: Report, figure: Figure) -> float:
    averages = {"point": figure.per_point, "pair": figure.per_pair, "class": figure.per_class}
    return averages[report.benchmark.headline]


def _title(use_refinement: bool) -> str:
    return "matches placed between cells" if use_refinement else "matches on cell centres"


def _say_limits(benchmark: Benchmark, limits: Sequence[float]) -> str:
    text = "/".join(f"{limit:g}" for limit in limits)
    return f"@{text}" if benchmark.unit == "px" else f"@α={text}"


def _say(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def _say_pixels(figures: Sequence[Figure], method: str) -> str:
    value = next(figure.median_error for figure in figures if figure.method == method)
    return f"{value:.1f}" if math.isfinite(value) else "–"


def _say_seconds(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{seconds:.2f}"


def write_markdown(report: Report, picture: str | None = None) -> str:
    """The page of a run: command, tables, protocol, methods."""
    lines = [f"# {report.benchmark.name}", "", f"{_capital(report.benchmark.title)}.", ""]
    lines += ["```bash", report.command, "```", ""]
    for table in tabulate(report):
        lines += [f"{_capital(table.title)}:", "", _row(table.header)]
        lines += [_row(["---"] * len(table.header)), *map(_row, table.rows), ""]
    if picture is not None:
        lines += [f"![Share of correct points against the limit]({picture})", ""]
    lines += ["Protocol:", "", *(f"- {line}" for line in describe_protocol(report)), ""]
    lines += ["Methods:", "", *(f"- `{method.name}`: {method.title}" for method in report.methods)]
    lines += [f"- `{name}` was skipped: {reason}" for name, reason in report.skipped.items()]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines += ["", f"Run with {versions} on {report.device}.", ""]
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_csv(report: Report) -> str:
    """All figures, one a line."""
    text = io.StringIO()
    names = list(asdict(report.scores.figures[0]))
    writer = csv.DictWriter(text, ["benchmark", "unit", *names], lineterminator="\n")
    writer.writeheader()
    for figure in report.scores.figures:
        row = {name: _shorten(value) for name, value in asdict(figure).items()}
        writer.writerow({"benchmark": report.benchmark.name, "unit": report.benchmark.unit, **row})
    return text.getvalue()


def _shorten(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def to_dict(report: Report) -> dict[str, Any]:
    """All of it as plain values for JSON; what is not finite becomes None."""
    scores = report.scores
    return {
        "benchmark": report.benchmark.name,
        "title": report.benchmark.title,
        "unit": report.benchmark.unit,
        "headline": f"per_{report.benchmark.headline}",
        "command": report.command,
        "protocol": describe_protocol(report),
        "pairs": report.asked_count,
        "points": report.point_count,
        "pairs_of_benchmark": report.pair_count,
        "seed": report.seed,
        "points_sha256": report.points_sha256,
        "versions": report.versions,
        "device": report.device,
        "methods": [{"name": m.name, "title": m.title, "key": m.key} for m in report.methods],
        "skipped": report.skipped,
        "figures": [_plain(asdict(figure)) for figure in scores.figures],
        "curves": [_plain(asdict(curve)) for curve in scores.curves],
        "seconds": [_plain(asdict(cost)) for cost in scores.costs],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
