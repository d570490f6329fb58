"""The report of a run that asks for points: tables of PCK beside the paper's figures, and the protocol."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.methods import MethodInfo, is_nearest
from ucn.evaluate.core.plots import draw_curves
from ucn.evaluate.core.report import Report, Table, say_number, say_percent
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.faithfulness import judge_systems, mark_name
from ucn.evaluate.points.predictions import Predictions
from ucn.evaluate.points.scoring import LEVEL, RESAMPLES, Cost, Curve, Figure, Scores
from ucn.paper.figures import (
    PAPER_CLASSES,
    PAPER_COLUMNS,
    PaperColumn,
    cite_paper,
    list_cited,
    quote_paper,
    say_figure,
)

_MANY_GROUPS, _TOO_MANY_GROUPS = 4, 8


@dataclass(frozen=True)
class PointsRun:
    """A run, before it becomes a report.

    Attributes:
        benchmark: what was measured on.
        command: that makes it again.
        methods: what was measured.
        skipped: reasons by name.
        scores: the figures.
        predictions: what they were computed from.
        pair_count: of the benchmark; those asked may be fewer.
        point_count: points that were asked.
        seed: of points and resampling.
        versions: of packages.
        device: where networks and matching ran.
        jobs: processes that shared the work.
    """

    benchmark: Benchmark
    command: str
    methods: tuple[MethodInfo, ...]
    skipped: dict[str, str]
    scores: Scores
    predictions: Predictions
    pair_count: int
    point_count: int
    seed: int
    versions: dict[str, str]
    device: str
    jobs: int = 1


def build_report(run: PointsRun) -> Report:
    """Tables, curves and protocol of a run."""
    benchmark, scores = run.benchmark, run.scores
    columns = PAPER_COLUMNS.get(benchmark.name, ())
    return Report(
        name=benchmark.name,
        title=benchmark.title,
        command=run.command,
        tables=tuple(tabulate(run)),
        protocol=tuple(describe_protocol(run)),
        methods=run.methods,
        skipped=run.skipped,
        notes=(*cite_paper(columns), *(v.describe() for v in judge_systems(scores.figures).values())),
        rows=tuple({"unit": benchmark.unit, **asdict(figure)} for figure in scores.figures),
        values={
            "unit": benchmark.unit,
            "headline": f"per_{benchmark.headline}",
            "pairs": len(run.predictions.pairs),
            "points": run.point_count,
            "pairs_of_benchmark": run.pair_count,
            "seed": run.seed,
            "jobs": run.jobs,
            "points_sha256": run.predictions.points_sha256,
            "paper": [asdict(column) for column in columns],
            "curves": [asdict(curve) for curve in scores.curves],
            "seconds": [asdict(cost) for cost in scores.costs],
        },
        plots=(draw_curves(benchmark, scores),),
        versions=run.versions,
        device=run.device,
    )


def check_earlier(
    earlier: Earlier,
    benchmark: Benchmark,
    counts: tuple[int, int],
    seed: int,
    refinements: Sequence[bool],
) -> None:
    """Refuses, before the work, an earlier report that this run cannot be added to.

    Args:
        earlier: the report.
        benchmark: what is measured on now.
        counts: pairs that are asked, and pairs of the benchmark.
        seed: of points and resampling.
        refinements: that are measured.

    Raises:
        DataError: it is of other data or another protocol, or damaged.
    """
    asked, total = counts
    headline = f"per_{benchmark.headline}"
    earlier.require(seed=seed, pairs=asked, pairs_of_benchmark=total, unit=benchmark.unit, headline=headline)
    earlier.check_protocol([_describe_images(benchmark)])
    figures = read_figures(earlier, earlier.get("figures"), "figures")
    limits = sorted({figure.limit for figure in figures})
    earlier.compare("the list of limits", limits, sorted(benchmark.limits))
    then = {figure.use_refinement for figure in figures}
    earlier.compare("what was measured", _say_refinements(then), _say_refinements(set(refinements)))


def _say_refinements(uses: set[bool]) -> str:
    return " and ".join(map(_title, sorted(uses, reverse=True)))


def add_earlier(run: PointsRun, earlier: Earlier) -> PointsRun:
    """The run together with the methods of an earlier report that it did not measure.

    Raises:
        DataError: the points were others, or the report is damaged.
    """
    earlier.require(points=run.point_count, points_sha256=run.predictions.points_sha256)
    scores = Scores(
        read_figures(earlier, earlier.get("figures"), "figures"),
        earlier.read_rows(Curve, earlier.get("curves"), "curves"),
        earlier.read_rows(Cost, earlier.get("seconds"), "seconds"),
    )
    return merge_run(run, earlier, scores)


def read_figures(earlier: Earlier, rows: object, where: str) -> tuple[Figure, ...]:
    """The figures of an earlier report; JSON has no infinite medians."""
    return tuple(
        replace(figure, median_error=math.inf)
        if figure.points and math.isnan(figure.median_error)
        else figure
        for figure in earlier.read_rows(Figure, rows, where)
    )


def merge_run(run: PointsRun, earlier: Earlier, scores: Scores) -> PointsRun:
    """A run with the methods of earlier scores that it did not measure."""
    merged = merge_scores(run.scores, earlier, scores, [figure.method for figure in scores.figures])
    names = dict.fromkeys(figure.method for figure in merged.figures)
    return replace(run, methods=earlier.merge_methods(run.methods, names), scores=merged)


def merge_scores(now: Scores, earlier: Earlier, then: Scores, names: Iterable[str]) -> Scores:
    """Figures, curves and seconds of both runs; of the earlier one those of the methods of names."""
    names = list(dict.fromkeys(names))
    return Scores(
        earlier.merge(then.figures, now.figures, _place_figure, "a figure", names),
        earlier.merge(then.curves, now.curves, _place_curve, "a curve", names if now.curves else ()),
        earlier.merge(then.costs, now.costs, lambda _: (), "the seconds", names),
    )


def _place_figure(figure: Figure) -> tuple[object, ...]:
    use, value, limit = _title(figure.use_refinement), round(figure.value, 6), round(figure.limit, 6)
    counts = (f"{figure.pairs} pairs", f"{figure.points} points")
    return (use, figure.group, figure.axis, value, limit, *counts)


def _place_curve(curve: Curve) -> tuple[object, ...]:
    limits = tuple(round(limit, 6) for limit in curve.limits)
    return (_title(curve.use_refinement), curve.group, len(curve.shares), *limits)


def _describe_images(benchmark: Benchmark) -> str:
    return f"images: {benchmark.preparation.describe()}"


def describe_protocol(run: PointsRun) -> list[str]:
    """What was done, line by line; printed under every table."""
    benchmark, asked_count = run.benchmark, len(run.predictions.pairs)
    asked = "1 pair" if asked_count == 1 else f"{asked_count:,} pairs"
    if asked_count < run.pair_count:
        asked += f" of {run.pair_count:,}, evenly spread (--limit)"
    drawn = (
        f"up to {benchmark.points:,} a pair, drawn at random by seed {run.seed} and the pair's name"
        if benchmark.points is not None
        else "all of them"
    )
    sha256 = run.predictions.points_sha256
    lines = [
        f"data: {benchmark.title}; {asked}, {run.point_count:,} points",
        _describe_images(benchmark),
        f"points: {benchmark.truth}; {drawn}; the same for all methods (sha256 {sha256[:16]})",
        "matching: a point's descriptor is interpolated between the cells of image 0, and its match is the "
        "cell of image 1 with the nearest descriptor (exact, over the whole picture); with refinement the "
        "match is then placed between cells, by the same code for all methods; no mutual check, no ratio "
        f"test, no smoothing{_except_optimisers(run.methods)}",
        _describe_limits(benchmark),
        f"averages: tables show the mean over {_say_average(benchmark)} unless they say otherwise"
        f"{_describe_intervals(run)}",
    ]
    if run.jobs > 1:
        lines.append(f"times: {run.jobs} processes shared the machine, so seconds are those of a busy one")
    return lines


def _describe_intervals(run: PointsRun) -> str:
    """What intervals are; one pair has none."""
    if len(run.predictions.pairs) < 2:
        return ""
    return f"; intervals hold {LEVEL:.0%} of {RESAMPLES:,} resamplings of the pairs (seed {run.seed})"


def _except_optimisers(methods: Sequence[MethodInfo]) -> str:
    """That some methods match in another way, where there are such."""
    names = [method.name for method in methods if not is_nearest(method)]
    return f"; {', '.join(names)} instead as described below" if names else ""


def _say_average(benchmark: Benchmark) -> str:
    return {"point": "points", "pair": "pairs", "class": "classes"}[benchmark.headline]


def _describe_limits(benchmark: Benchmark) -> str:
    if benchmark.unit == "px":
        return "score: PCK@T, the percentage of points at most T pixels from the truth"
    return f"score: PCK@α, the percentage of points at most α·L from the truth; L is {benchmark.length}"


def tabulate(run: PointsRun) -> list[Table]:
    """The tables of a run: with refinement and without, each split by axis where groups make curves."""
    figures = run.scores.figures
    tables = []
    for use in dict.fromkeys(figure.use_refinement for figure in figures):
        for axis in dict.fromkeys(figure.axis for figure in figures):
            chosen = [f for f in figures if f.use_refinement == use and f.axis == axis]
            tables.append(_tabulate_groups(run, chosen, axis, use))
    if not any(figure.axis for figure in figures):
        use = figures[0].use_refinement
        last = figures[-1].group
        chosen = [f for f in figures if f.use_refinement == use and f.group == last]
        tables.append(_tabulate_averages(run, chosen, use))
    if run.benchmark.name in PAPER_CLASSES:
        tables.append(_tabulate_paper(run.benchmark.name))
    return tables


def _tabulate_groups(run: PointsRun, figures: Sequence[Figure], axis: str, use: bool) -> Table:
    groups = list(dict.fromkeys(figure.group for figure in figures))
    limits = run.benchmark.limits
    title = _title(use)
    if not axis and len(groups) > _TOO_MANY_GROUPS:
        limits = (run.benchmark.main_limit,)
        title = f"PCK{_say_limits(run.benchmark, limits)}, {title}"
    # With many groups all limits of one share a column, lest the table become too wide.
    packs = [limits] if len(groups) > _MANY_GROUPS else [(limit,) for limit in limits]
    columns = [(group, pack) for group in groups for pack in packs]
    found = {(f.method, f.group, f.limit): say_percent(_headline(run, f)) for f in figures}
    verdicts = judge_systems(run.scores.figures)
    rows = [
        (
            mark_name(method.name, verdicts),
            *(" / ".join(found[method.name, group, limit] for limit in pack) for group, pack in columns),
        )
        for method in run.methods
    ]
    if axis:
        title = f"PCK{_say_limits(run.benchmark, limits)} by {axis}, {title}"
        names = [group.removeprefix(f"{axis} ") for group in groups]
    elif len(groups) > _TOO_MANY_GROUPS:
        names = groups
    else:
        names = [f"{group} {_say_limits(run.benchmark, pack)}" for group, pack in columns]
    return _add_paper(run, Table(title, ("method", *names), tuple(rows)))


def _add_paper(run: PointsRun, table: Table) -> Table:
    """The table with the paper's figures at its right, and below it the systems that were not run."""
    columns: tuple[PaperColumn, ...] = PAPER_COLUMNS.get(run.benchmark.name, ())
    if not columns:
        return table
    rows = [
        (*row, *quote_paper(columns, method)) for row, method in zip(table.rows, run.methods, strict=True)
    ]
    blank = ("–",) * (len(table.header) - 1)
    rows += [(name, *blank, *cells) for name, *cells in list_cited(columns, run.methods)]
    return Table(table.title, (*table.header, *(column.label for column in columns)), tuple(rows))


def _tabulate_paper(name: str) -> Table:
    paper = PAPER_CLASSES[name]
    rows = tuple((system, *(say_figure(value) for value in row)) for system, row in paper.figures.items())
    return Table(paper.title, ("system (cited)", *paper.classes), rows)


def _tabulate_averages(run: PointsRun, figures: Sequence[Figure], use: bool) -> Table:
    """All three averages of one group, with the interval of the mean over points."""
    rows, verdicts = [], judge_systems(run.scores.figures)
    for method in run.methods:
        cells = [mark_name(method.name, verdicts)]
        own = [figure for figure in figures if figure.method == method.name]
        for figure in own:
            bounds = f" ({say_percent(figure.low)}–{say_percent(figure.high)})" if figure.pairs > 1 else ""
            means = " / ".join(map(say_percent, (figure.per_point, figure.per_pair, figure.per_class)))
            cells.append(f"{means}{bounds}")
        cost = next(cost for cost in run.scores.costs if cost.method == method.name)
        errors = (say_number(own[0].mean_error), say_number(own[0].median_error))
        rows.append((*cells, *errors, say_number(cost.per_image, 2), say_number(cost.per_pair, 2)))
    limits = run.benchmark.limits
    names = [f"{figures[0].group} {_say_limits(run.benchmark, (limit,))}" for limit in limits]
    interval = " (interval of the first)" if any(figure.pairs > 1 for figure in figures) else ""
    title = f"mean over points / pairs / classes{interval}, {_title(use)}"
    ends = ("mean error, px", "median error, px", "s an image", "s a pair")
    return Table(title, ("method", *names, *ends), tuple(rows))


def _headline(run: PointsRun, figure: Figure) -> float:
    averages = {"point": figure.per_point, "pair": figure.per_pair, "class": figure.per_class}
    return averages[run.benchmark.headline]


def _title(use_refinement: bool) -> str:
    return "matches placed between cells" if use_refinement else "matches on cell centres"


def _say_limits(benchmark: Benchmark, limits: Sequence[float]) -> str:
    text = "/".join(f"{limit:g}" for limit in limits)
    return f"@{text}" if benchmark.unit == "px" else f"@α={text}"
