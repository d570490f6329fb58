"""A benchmark of given points from data to report: both stages, then tables of PCK and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair, choose_rows, count_pairs, digest_pairs
from ucn.evaluate.core.metrics import LEVEL, RESAMPLES
from ucn.evaluate.core.plots import PANELS_A_ROW, add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.predictions import Progress, RunSettings, require_methods
from ucn.evaluate.core.report import (
    Plot,
    Report,
    Table,
    describe_consensus,
    describe_run,
    describe_trained,
    find_trained,
    format_number,
    format_percent,
    hash_protocol,
)
from ucn.evaluate.core.update import Page
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.predictions import VERSION, Predictions, predict_points
from ucn.evaluate.points.scoring import (
    Curve,
    Results,
    Score,
    score_predictions,
)
from ucn.evaluate.points.transfer import add_training_images
from ucn.features.method import DenseMethod, LoadedMethods, MethodInfo
from ucn.paper.registry import METHODS, is_nearest
from ucn.paper.results import (
    PAPER_CLASSES,
    PAPER_COLUMNS,
    PaperColumn,
    format_paper_cells,
    format_sources,
    format_value,
    list_cited,
)
from ucn.paper.transfer import UnboundTransfer

_MANY_GROUPS, _TOO_MANY_GROUPS = 4, 8
_MARKERS = "osD^vP*Xh"


@dataclass(frozen=True)
class PointsRun:
    """A run, before it becomes a report.

    Attributes:
        benchmark: what was evaluated on.
        settings: of the run.
        methods: what was evaluated.
        skipped: reasons by name.
        results: the scores.
        predictions: what they were computed from.
        identity: values that identify data and protocol, for the JSON; equal in comparable runs.
    """

    benchmark: Benchmark
    settings: RunSettings
    methods: tuple[MethodInfo, ...]
    skipped: Mapping[str, str]
    results: Results
    predictions: Predictions
    identity: Mapping[str, Any]

    @property
    def pairs(self) -> list[BenchmarkPair]:
        """The pairs that were measured."""
        return [pair.pair for pair in self.predictions.pairs]

    @property
    def point_count(self) -> int:
        """The number of points of all pairs."""
        return sum(len(pair.points1) for pair in self.predictions.pairs)


def run_benchmark(
    benchmark: Benchmark,
    folder: Path,
    loaded: LoadedMethods[DenseMethod],
    settings: RunSettings,
    progress: Progress | None = None,
) -> PointsRun:
    """Predicts what the cache lacks, and scores everything; `build_report` makes a report of it.

    Args:
        benchmark: of `find_benchmark`.
        folder: of its data; bundled benchmarks ignore it.
        loaded: the methods.
        settings: of the run.
        progress: called after each pair, and before them after each training image of NN transfer.

    Raises:
        DataError: the folder is not that data set, there is nothing to evaluate, or the page to update is of
            other data or another protocol.
    """
    require_methods(loaded)
    pairs = benchmark.open(folder)
    if benchmark.adapt is not None:
        benchmark = benchmark.adapt(benchmark, pairs)
    benchmark = _limit_side(benchmark, settings.max_side)
    if any(isinstance(method.matcher, UnboundTransfer) for method in loaded.methods):
        loaded = add_training_images(loaded, benchmark.name, pairs, settings.cache, progress)
        require_methods(loaded)
    chosen = choose_rows(len(pairs), settings.limit)
    identity = {
        "unit": benchmark.unit,
        "headline": f"per_{benchmark.headline}",
        "pairs": len(chosen),
        "pairs_of_benchmark": len(pairs),
        "seed": settings.seed,
        "refinements": list(settings.refinements),
        "data_sha256": digest_pairs([pairs[row] for row in chosen]),
        "protocol_sha256": _hash_protocol(benchmark, settings),
    }
    if settings.page is not None:
        settings.page.check(**identity)
    predictions = predict_points(
        benchmark,
        pairs,
        chosen,
        loaded.methods,
        settings.cache,
        refinements=settings.refinements,
        seed=settings.seed,
        device=settings.device,
        jobs=settings.jobs,
        progress=progress,
    )
    results = score_predictions(benchmark, predictions, settings.seed)
    methods = tuple(loaded.methods)
    run = PointsRun(benchmark, settings, methods, loaded.skipped, results, predictions, identity)
    if not run.point_count:
        raise DataError(f"{folder}: no correspondences in the {len(chosen)} pairs; nothing to evaluate")
    return run


def _limit_side(benchmark: Benchmark, max_side: int | None) -> Benchmark:
    if max_side is None:
        return benchmark
    if benchmark.preparation.canvas_hw is not None:
        raise ConfigError(
            f"max_side must be None: {benchmark.name} puts all images on a canvas of one size, got {max_side}"
        )
    return replace(benchmark, preparation=replace(benchmark.preparation, max_side=max_side))


def _hash_protocol(benchmark: Benchmark, settings: RunSettings) -> str:
    return hash_protocol(
        version=VERSION,
        **benchmark.to_dict(settings.seed),
        limits=benchmark.limits,
        curve_limits=benchmark.curve_limits,
        unit=benchmark.unit,
        headline=benchmark.headline,
        refinements=settings.refinements,
        bootstrap=(LEVEL, RESAMPLES),
    )


def merge_results(page: Page, results: Results, table: str = "", seconds: str = "seconds") -> Results:
    """Results with the rows of a page's other methods; see `Page.merge`.

    Args:
        page: what is updated.
        results: of this run.
        table: where a page has several, the one that they are of.
        seconds: name of the costs in the JSON.
    """
    figures, curves = page.values["figures"], page.values.get("curves")
    if table:
        figures = [row for row in figures if isinstance(row, dict) and row.get("table") == table]
        curves = curves.get(table) if isinstance(curves, dict) else None
    scores = page.merge(results.scores, figures, "figures")
    names = {score.method for score in scores}
    return Results(
        scores,
        page.merge(results.curves, curves, "curves", names),
        page.merge(results.costs, page.values.get(seconds), seconds, names),
    )


def replace_results(run: PointsRun, results: Results, page: Page) -> PointsRun:
    """A run with merged results, and the methods that they are of."""
    return replace(run, results=results, methods=page.merge_methods(run.methods, results.scores))


def build_report(run: PointsRun) -> Report:
    """Tables, curves and protocol of a run; with the other methods of the page that it updates."""
    page = run.settings.page
    if page is not None:
        page.check(points=run.point_count, points_sha256=run.predictions.points_sha256)
        run = replace_results(run, merge_results(page, run.results), page)
    benchmark, results = run.benchmark, run.results
    columns = PAPER_COLUMNS.get(benchmark.name, ())
    return Report(
        name=benchmark.name,
        title=benchmark.title,
        tables=tuple(tabulate(run)),
        protocol=tuple(describe_protocol(run)),
        methods=run.methods,
        skipped=run.skipped,
        notes=(
            *format_sources(columns),
            *describe_rebuilt(run.methods),
            *describe_trained(run.methods, run.pairs),
        ),
        rows=tuple({"unit": benchmark.unit, **asdict(score)} for score in results.scores),
        values={
            **run.identity,
            "points": run.point_count,
            "jobs": run.settings.jobs,
            "points_sha256": run.predictions.points_sha256,
            "paper": list_paper_values(columns),
            "curves": [asdict(curve) for curve in results.curves],
            "seconds": [asdict(cost) for cost in results.costs],
        },
        plots=(plot_curves(benchmark, results),),
        **describe_run(run.settings),
    )


def describe_rebuilt(methods: Sequence[MethodInfo]) -> list[str]:
    """The note on systems rebuilt from their papers; none where none was run."""
    names = [f"`{info.name}`" for info in methods if any(name in info.key for name in METHODS.systems)]
    if not names:
        return []
    return [
        f"{', '.join(names)}: rebuilt from the papers; how each was judged, by its own paper's behaviour, is "
        "in docs/evaluation.md#optimisation-methods"
    ]


def list_paper_values(columns: Sequence[PaperColumn]) -> list[dict[str, Any]]:
    """Columns that quote the paper, for the JSON."""
    return [
        {"label": column.label, "source": column.source, "figures": column.values, "digits": column.digits}
        for column in columns
    ]


def describe_protocol(run: PointsRun) -> list[str]:
    """What was done, line by line; printed under every table."""
    benchmark, settings = run.benchmark, run.settings
    count = count_pairs(run.identity["pairs"], run.identity["pairs_of_benchmark"])
    sampled = (
        f"up to {benchmark.points:,} a pair, sampled by seed {settings.seed} and the pair's name"
        if benchmark.points is not None
        else "all of them"
    )
    sha256 = run.predictions.points_sha256
    others = [method.name for method in run.methods if not is_nearest(method)]
    except_others = f"; {', '.join(others)} instead as described below" if others else ""
    intervals = (
        f"; intervals hold {LEVEL:.0%} of {RESAMPLES:,} bootstrap samples of the pairs (seed {settings.seed})"
        if len(run.predictions.pairs) > 1
        else ""
    )
    headline = {"point": "points", "pair": "pairs", "class": "classes"}[benchmark.headline]
    lines = [
        f"data: {benchmark.title}; {count}, {run.point_count:,} points",
        f"images: {benchmark.preparation.describe()}",
        f"points: {benchmark.ground_truth}; {sampled}; the same for all methods (sha256 {sha256[:16]})",
        *_describe_parts(run),
        "matching: a point's descriptor is interpolated between the cells of image 0, and its match is the "
        "cell of image 1 with the nearest descriptor (exact, over the whole image); with refinement the "
        "match is then refined to a sub-cell position, by the same code for all methods; no "
        f"forward-backward check, no ratio test, no smoothing{except_others}",
        *describe_consensus(run.methods),
        _describe_limits(benchmark),
        f"averages: tables show the mean over {headline} unless they say otherwise{intervals}",
    ]
    if settings.jobs > 1:
        lines.append(f"times: {settings.jobs} processes shared the machine, so seconds are of a busy one")
    return lines


def _describe_parts(run: PointsRun) -> list[str]:
    """Which splits were measured, and the hash of the files."""
    parts = sorted({pair.part for pair in run.pairs if pair.part})
    many = f"{len(parts)} parts" if len(parts) > _TOO_MANY_GROUPS else ", ".join(parts)
    listed = f"{many}; " if parts else ""
    return [f"parts: {listed}names and sizes of the files have sha256 {run.identity['data_sha256'][:16]}"]


def _describe_limits(benchmark: Benchmark) -> str:
    if benchmark.unit == "px":
        return "score: PCK@T, the percentage of points at most T pixels from the ground truth"
    return (
        f"score: PCK@α, the percentage of points at most α·L from the ground truth; L is {benchmark.length}"
    )


def tabulate(run: PointsRun) -> list[Table]:
    """The tables of a run: with refinement and without, each split by axis where groups form curves."""
    scores = run.results.scores
    tables = []
    for use in dict.fromkeys(score.use_refinement for score in scores):
        for axis in dict.fromkeys(score.axis for score in scores):
            chosen = [s for s in scores if s.use_refinement == use and s.axis == axis]
            tables.append(_tabulate_groups(run, chosen, axis, use))
    if not any(score.axis for score in scores):
        use = scores[0].use_refinement
        last = scores[-1].group
        chosen = [s for s in scores if s.use_refinement == use and s.group == last]
        tables.append(_tabulate_averages(run, chosen, use))
    if run.benchmark.name in PAPER_CLASSES:
        tables.append(_tabulate_paper(run.benchmark.name))
    return tables


def _label_methods(run: PointsRun) -> dict[str, str]:
    """Names of methods for the first column of a table."""
    trained = find_trained(run.methods, run.pairs)
    return {
        method.name: f"{method.name} (trained on it)" if method.name in trained else method.name
        for method in run.methods
    }


def _tabulate_groups(run: PointsRun, scores: Sequence[Score], axis: str, use: bool) -> Table:
    groups = list(dict.fromkeys(score.group for score in scores))
    limits = run.benchmark.limits
    title = _title(use)
    if not axis and len(groups) > _TOO_MANY_GROUPS:
        limits = (run.benchmark.main_limit,)
        title = f"PCK{_format_limits(run.benchmark, limits)}, {title}"
    # With many groups all limits of one share a column, or the table would be too wide.
    packs = [limits] if len(groups) > _MANY_GROUPS else [(limit,) for limit in limits]
    columns = [(group, pack) for group in groups for pack in packs]
    shown = {(s.method, s.group, s.limit): format_percent(_headline(run, s)) for s in scores}
    rows = [
        (label, *(" / ".join(shown[name, group, limit] for limit in pack) for group, pack in columns))
        for name, label in _label_methods(run).items()
    ]
    if axis:
        title = f"PCK{_format_limits(run.benchmark, limits)} by {axis}, {title}"
        names = [group.removeprefix(f"{axis} ") for group in groups]
    elif len(groups) > _TOO_MANY_GROUPS:
        names = groups
    else:
        names = [f"{group} {_format_limits(run.benchmark, pack)}" for group, pack in columns]
    return _add_paper(run, Table(title, ("method", *names), tuple(rows)))


def _add_paper(run: PointsRun, table: Table) -> Table:
    """The table with the paper's results at its right, and below it the systems that were not run."""
    columns: tuple[PaperColumn, ...] = PAPER_COLUMNS.get(run.benchmark.name, ())
    if not columns:
        return table
    rows = [
        (*row, *format_paper_cells(columns, method))
        for row, method in zip(table.rows, run.methods, strict=True)
    ]
    blank = ("–",) * (len(table.header) - 1)
    rows += [(name, *blank, *cells) for name, *cells in list_cited(columns, run.methods)]
    return Table(table.title, (*table.header, *(column.label for column in columns)), tuple(rows))


def _tabulate_paper(name: str) -> Table:
    paper = PAPER_CLASSES[name]
    rows = tuple((system, *(format_value(value) for value in row)) for system, row in paper.values.items())
    return Table(paper.title, ("system (cited)", *paper.classes), rows)


def _tabulate_averages(run: PointsRun, scores: Sequence[Score], use: bool) -> Table:
    """All three averages of one group, with the interval of the mean over points."""
    rows, costs = [], {cost.method: cost for cost in run.results.costs}
    for name, label in _label_methods(run).items():
        cells = [label]
        own = [score for score in scores if score.method == name]
        for score in own:
            bounds = f" ({format_percent(score.low)}–{format_percent(score.high)})" if score.pairs > 1 else ""
            means = " / ".join(map(format_percent, (score.per_point, score.per_pair, score.per_class)))
            cells.append(f"{means}{bounds}")
        errors = (format_number(own[0].mean_error), format_number(own[0].median_error))
        seconds = (format_number(costs[name].per_image, 2), format_number(costs[name].per_pair, 2))
        rows.append((*cells, *errors, *seconds))
    names = [f"{scores[0].group} {_format_limits(run.benchmark, (limit,))}" for limit in run.benchmark.limits]
    interval = " (interval of the first)" if any(score.pairs > 1 for score in scores) else ""
    title = f"mean over points / pairs / classes{interval}, {_title(use)}"
    ends = ("mean error, px", "median error, px", "s an image", "s a pair")
    return Table(title, ("method", *names, *ends), tuple(rows))


def _headline(run: PointsRun, score: Score) -> float:
    averages = {"point": score.per_point, "pair": score.per_pair, "class": score.per_class}
    return averages[run.benchmark.headline]


def _title(use_refinement: bool) -> str:
    return "with sub-cell refinement" if use_refinement else "matches at cell centres"


def _format_limits(benchmark: Benchmark, limits: Sequence[float]) -> str:
    text = "/".join(f"{limit:g}" for limit in limits)
    return f"@{text}" if benchmark.unit == "px" else f"@α={text}"


def plot_curves(benchmark: Benchmark, results: Results) -> Plot:
    """PCK against the limit, or against rotation and scale, one panel a group.

    Where a run has both variants, the refined ones are shown.
    """
    scores = results.scores
    use = any(score.use_refinement for score in scores)
    axes = [axis for axis in dict.fromkeys(score.axis for score in scores) if axis]
    if axes:
        figure, panels = lay_out(len(axes))
        for panel, axis in zip(panels, axes, strict=True):
            shown = [s for s in scores if s.axis == axis and s.use_refinement == use]
            _plot_axis(panel, benchmark, shown, axis)
    else:
        groups = list(dict.fromkeys(curve.group for curve in results.curves))
        figure, panels = lay_out(len(groups))
        for panel, group in zip(panels, groups, strict=True):
            lines = [c for c in results.curves if c.group == group and c.use_refinement == use]
            _plot_limits(panel, benchmark, lines, group)
    for number, panel in enumerate(panels):
        panel.set_ylim(0, 100)
        if number % PANELS_A_ROW == 0:
            panel.set_ylabel("points found, %")
    add_legend(figure, panels)
    return save_plot(figure, "PCK against the threshold")


def _plot_limits(panel: Axes, benchmark: Benchmark, curves: Sequence[Curve], group: str) -> None:
    for number, curve in enumerate(curves):
        shares = [100 * share for share in curve.shares]
        panel.plot(curve.limits, shares, label=curve.method, **choose_style(number))
    panel.set_title(group, fontsize=10)
    unit = "px" if benchmark.unit == "px" else "α (of L)"
    panel.set_xlabel(f"distance from the ground truth, {unit}")


def _plot_axis(panel: Axes, benchmark: Benchmark, scores: Sequence[Score], axis: str) -> None:
    for number, method in enumerate(dict.fromkeys(score.method for score in scores)):
        own = [score for score in scores if score.method == method]
        panel.plot(
            [score.value for score in own],
            [100 * score.per_point for score in own],
            label=method,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=3.5,
            **choose_style(number),
        )
    panel.set_title(f"within {benchmark.limits[0]:g} px", fontsize=10)
    panel.set_xlabel("rotation, degrees" if axis == "rotation" else axis)
