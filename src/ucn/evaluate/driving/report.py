"""Points of driving scenes from data to report: dense and at keypoints, by camera baseline, by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ucn.errors import DataError
from ucn.evaluate.core.benchmark_pairs import ALL
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.predictions import Progress, RunSettings, count_part
from ucn.evaluate.core.report import (
    DRIVING_PLOTS,
    Plot,
    Report,
    Table,
    describe_run,
    describe_trained,
    format_percent,
)
from ucn.evaluate.core.update import Page
from ucn.evaluate.driving.benchmarks import LIMITS, at_keypoints
from ucn.evaluate.driving.groups import group_by_baseline, group_by_class, measure_baselines
from ucn.evaluate.driving.sift_queries import move_to_keypoints
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.report import (
    PointsRun,
    describe_protocol,
    describe_rebuilt,
    merge_results,
    plot_curves,
    replace_results,
    run_benchmark,
    tabulate,
)
from ucn.evaluate.points.scoring import Results, Score, score_predictions
from ucn.features.method import DenseMethod, LoadedMethods

CLASSES_PLOT = "-classes"
"""Suffix of the plot of classes."""

_DENSE, _KEYPOINTS = "all methods dense", "baselines at SIFT keypoints, the others dense"


@dataclass(frozen=True)
class DrivingRun:
    """A run, before it becomes a report.

    Attributes:
        dense: with all methods dense.
        keypoints: with SIFT keypoints as query points, classical features at keypoints only.
        baselines: results of `dense` by camera baseline.
        classes: results of `dense` by semantic class; None without masks.
        unmasked: number of pairs without a mask.
    """

    dense: PointsRun
    keypoints: PointsRun
    baselines: Results
    classes: Results | None
    unmasked: int


def run_driving(
    benchmark: Benchmark,
    folder: Path,
    loaded: LoadedMethods[DenseMethod],
    settings: RunSettings,
    masks: Path | None = None,
    progress: Progress | None = None,
) -> DrivingRun:
    """Predicts what the cache lacks, for both kinds of query points, and scores everything.

    Args:
        benchmark: of `DRIVING_BENCHMARKS`.
        folder: of its data.
        loaded: the methods.
        settings: of the run.
        masks: folder of semantic classes, ``SEQUENCE/FRAME.png``: 8-bit grey images of class numbers.
        progress: called after each pair, of both kinds together.

    Raises:
        DataError: the folder is not that data set, there is nothing to evaluate, the settings have a
            `max_side`, or the page to update is of other data or another protocol.
    """
    if settings.max_side is not None:
        side = settings.max_side
        raise DataError(
            f"max_side must be None: keypoints and masks are of images at their own size, got {side}"
        )
    if settings.page is not None:
        settings.page.check(class_masks=masks is not None)
    dense = run_benchmark(benchmark, folder, loaded, settings, count_part(progress, 0, 2))
    moved = replace(loaded, methods=move_to_keypoints(loaded.methods))
    keypoints = run_benchmark(
        at_keypoints(benchmark), folder, moved, replace(settings, page=None), count_part(progress, 1, 2)
    )
    metres = measure_baselines([p.pair for p in dense.predictions.pairs], settings.cache / benchmark.name)
    grouped = group_by_baseline(dense.predictions, metres)
    baselines = score_predictions(benchmark, grouped, settings.seed)
    if masks is None:
        return DrivingRun(dense, keypoints, baselines, None, 0)
    classes, unmasked = group_by_class(dense.predictions, masks)
    return DrivingRun(
        dense, keypoints, baselines, score_predictions(benchmark, classes, settings.seed), unmasked
    )


def _list_sections(run: DrivingRun) -> dict[str, Results]:
    sections = {"dense": run.dense.results, "keypoints": run.keypoints.results, "baseline": run.baselines}
    return sections if run.classes is None else {**sections, "class": run.classes}


def _merge_page(run: DrivingRun, page: Page) -> DrivingRun:
    """The run with the rows of the page's other methods; groups have the seconds of the dense predictions."""
    page.check(
        points=run.dense.point_count,
        points_sha256=run.dense.predictions.points_sha256,
        points_at_keypoints=run.keypoints.point_count,
    )
    seconds = {"keypoints": "seconds_at_keypoints"}
    merged = {
        name: merge_results(page, results, name, seconds.get(name, "seconds"))
        for name, results in _list_sections(run).items()
    }
    return DrivingRun(
        replace_results(run.dense, merged["dense"], page),
        replace_results(run.keypoints, merged["keypoints"], page),
        merged["baseline"],
        merged.get("class"),
        run.unmasked,
    )


def build_driving_report(run: DrivingRun) -> Report:
    """Tables, curves and protocol of a run; with the other methods of the page that it updates."""
    settings = run.dense.settings
    if settings.page is not None:
        run = _merge_page(run, settings.page)
    dense, keypoints = run.dense, run.keypoints
    sections = _list_sections(run)
    known = {method.name for method in dense.methods}
    return Report(
        name=dense.benchmark.name,
        title=dense.benchmark.title,
        tables=tuple(_tabulate(run)),
        protocol=tuple(_describe_protocol(run)),
        methods=(*dense.methods, *(method for method in keypoints.methods if method.name not in known)),
        skipped=dense.skipped,
        notes=(
            *dense.predictions.pairs[0].pair.data.notes,
            *describe_rebuilt(dense.methods),
            *describe_trained(dense.methods, dense.pairs),
        ),
        rows=tuple(
            {"table": name, "unit": "px", **asdict(score)}
            for name, results in sections.items()
            for score in results.scores
        ),
        values={
            **dense.identity,
            "points": dense.point_count,
            "points_at_keypoints": keypoints.point_count,
            "points_sha256": dense.predictions.points_sha256,
            "class_masks": run.classes is not None,
            "jobs": settings.jobs,
            "curves": {name: [asdict(curve) for curve in own.curves] for name, own in sections.items()},
            "seconds": [asdict(cost) for cost in dense.results.costs],
            "seconds_at_keypoints": [asdict(cost) for cost in keypoints.results.costs],
        },
        plots=tuple(_plot(run)),
        **describe_run(settings),
    )


def _tabulate(run: DrivingRun) -> Iterator[Table]:
    for part, name in ((run.dense, _DENSE), (run.keypoints, _KEYPOINTS)):
        for table in tabulate(part):
            yield replace(table, title=f"{name}: {table.title}")
    yield _tabulate_groups(run.dense, run.baselines, "camera baseline")
    if run.classes is not None:
        yield _tabulate_groups(run.dense, run.classes, "semantic class")


def _tabulate_groups(run: PointsRun, results: Results, axis: str) -> Table:
    """PCK at the paper's limit, a column a group, with its number of points."""
    scores = _choose(results.scores)
    groups = {score.group: score for score in scores}
    shown = {(score.method, score.group): format_percent(score.per_point) for score in scores}
    header = ("method", *(f"{name} ({score.points:,} points)" for name, score in groups.items()))
    rows = tuple((method.name, *(shown[method.name, name] for name in groups)) for method in run.methods)
    return Table(f"PCK@{LIMITS[-1]:g} px by {axis}, {_DENSE}", header, rows)


def _choose(scores: Sequence[Score]) -> list[Score]:
    """Those at the paper's limit; refined ones where a run has both variants."""
    use = any(score.use_refinement for score in scores)
    return [score for score in scores if score.limit == LIMITS[-1] and score.use_refinement == use]


def _describe_protocol(run: DrivingRun) -> list[str]:
    keypoints = run.keypoints
    lines = describe_protocol(run.dense)
    lines.append(
        f"at keypoints: {keypoints.benchmark.ground_truth}; up to {keypoints.benchmark.points:,} a pair, "
        f"{keypoints.point_count:,} in all; the match of a baseline is the keypoint of image 1 with the "
        "nearest descriptor, the other methods search the whole image as before"
    )
    lines.append("baseline: metres between the two cameras")
    if run.classes is not None:
        without = f"; pairs without a mask, which are left out: {run.unmasked}" if run.unmasked else ""
        lines.append(f"classes: the user's mask of image 0 at the point (--class-masks){without}")
    return lines


def _plot(run: DrivingRun) -> Iterator[Plot]:
    yield replace(plot_curves(run.dense.benchmark, run.dense.results), caption=f"PCK, {_DENSE}")
    yield replace(
        plot_curves(run.keypoints.benchmark, run.keypoints.results),
        caption=f"PCK, {_KEYPOINTS}",
        suffix=DRIVING_PLOTS[1],
    )
    yield _plot_baselines(run)
    if run.classes is not None:
        yield replace(
            plot_curves(run.dense.benchmark, run.classes),
            caption="PCK, by semantic class",
            suffix=CLASSES_PLOT,
        )


def _plot_baselines(run: DrivingRun) -> Plot:
    scores = [score for score in _choose(run.baselines.scores) if score.group != ALL]
    figure, (panel,) = lay_out(1)
    for number, method in enumerate(run.dense.methods):
        own = [score for score in scores if score.method == method.name]
        shares = [100 * score.per_point for score in own]
        panel.plot(
            [score.group for score in own], shares, label=method.name, marker="o", **choose_style(number)
        )
    panel.set_ylim(0, 102)
    panel.set_xlabel("camera baseline")
    panel.set_ylabel(f"points within {LIMITS[-1]:g} px, %")
    add_legend(figure, [panel])
    return save_plot(figure, f"PCK@{LIMITS[-1]:g} px against the camera baseline", DRIVING_PLOTS[2])
