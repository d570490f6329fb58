"""The report of points in driving scenes: curves dense and at keypoints, by camera baseline, by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.plots import add_legend, choose_style, draw_curves, lay_out, save_plot
from ucn.evaluate.core.report import Plot, Report, Table, say_percent
from ucn.evaluate.driving.prediction import LIMITS, DrivingRun
from ucn.evaluate.points.report import (
    PointsRun,
    describe_protocol,
    merge_run,
    merge_scores,
    read_figures,
    tabulate,
)
from ucn.evaluate.points.scoring import ALL, Cost, Curve, Figure, Scores

PLOTS = ("", "-keypoints", "-baselines")
"""Suffixes of the figures that every report has."""
CLASSES_PLOT = "-classes"
"""Suffix of the figure of classes."""

_DENSE, _KEYPOINTS = "all methods dense", "baselines at SIFT keypoints, the others dense"


def _list_sections(run: DrivingRun) -> dict[str, Scores]:
    sections = {"dense": run.dense.scores, "keypoints": run.keypoints.scores, "baseline": run.baselines}
    return sections if run.classes is None else {**sections, "class": run.classes}


def add_earlier(run: DrivingRun, earlier: Earlier) -> DrivingRun:
    """The run together with the methods of an earlier report that it did not measure.

    Raises:
        DataError: the points were others, or the report is damaged.
    """
    dense, keypoints = run.dense, run.keypoints
    earlier.require(points=dense.point_count, points_sha256=dense.predictions.points_sha256)
    earlier.require(points_at_keypoints=keypoints.point_count)
    then = {name: _read_section(earlier, name) for name in _list_sections(run)}
    names = [figure.method for figure in then["dense"].figures]
    costs = then["dense"].costs
    return replace(
        run,
        dense=merge_run(dense, earlier, then["dense"]),
        keypoints=merge_run(keypoints, earlier, then["keypoints"]),
        baselines=merge_scores(run.baselines, earlier, replace(then["baseline"], costs=costs), names),
        classes=None
        if run.classes is None
        else merge_scores(run.classes, earlier, replace(then["class"], costs=costs), names),
    )


def _read_section(earlier: Earlier, name: str) -> Scores:
    """Figures, curves and seconds of a table; what is grouped otherwise has the seconds of the dense one."""
    curves = earlier.get("curves")
    if not isinstance(curves, dict):
        raise earlier.refuse("'curves' must be an object")
    seconds = {"dense": "seconds", "keypoints": "seconds_at_keypoints"}.get(name)
    rows = [row for row in earlier.get("figures") if row.get("table") == name]
    return Scores(
        read_figures(earlier, rows, f"figures of '{name}'"),
        earlier.read_rows(Curve, curves.get(name), f"curves.{name}"),
        () if seconds is None else earlier.read_rows(Cost, earlier.get(seconds), seconds),
    )


def build_driving_report(run: DrivingRun) -> Report:
    """Tables, curves and protocol of a run."""
    dense, keypoints = run.dense, run.keypoints
    sections = _list_sections(run)
    known = {method.name for method in dense.methods}
    return Report(
        name=dense.benchmark.name,
        title=dense.benchmark.title,
        command=dense.command,
        tables=tuple(_tabulate(run)),
        protocol=tuple(_describe(run)),
        methods=(*dense.methods, *(method for method in keypoints.methods if method.name not in known)),
        skipped=dense.skipped,
        notes=tuple(dense.predictions.pairs[0].entry.data.notes),
        rows=tuple(
            {"table": name, "unit": "px", **asdict(figure)}
            for name, scores in sections.items()
            for figure in scores.figures
        ),
        values={
            "unit": "px",
            "headline": f"per_{dense.benchmark.headline}",
            "pairs": len(dense.predictions.pairs),
            "pairs_of_benchmark": dense.pair_count,
            "points": dense.point_count,
            "points_at_keypoints": keypoints.point_count,
            "points_sha256": dense.predictions.points_sha256,
            "seed": dense.seed,
            "jobs": dense.jobs,
            "curves": {name: [asdict(curve) for curve in scores.curves] for name, scores in sections.items()},
            "seconds": [asdict(cost) for cost in dense.scores.costs],
            "seconds_at_keypoints": [asdict(cost) for cost in keypoints.scores.costs],
        },
        plots=tuple(_draw(run)),
        versions=dense.versions,
        device=dense.device,
    )


def _tabulate(run: DrivingRun) -> Iterator[Table]:
    for part, name in ((run.dense, _DENSE), (run.keypoints, _KEYPOINTS)):
        for table in tabulate(part):
            yield replace(table, title=f"{name}: {table.title}")
    yield _tabulate_groups(run.dense, run.baselines, "camera baseline")
    if run.classes is not None:
        yield _tabulate_groups(run.dense, run.classes, "class of thing")


def _tabulate_groups(run: PointsRun, scores: Scores, what: str) -> Table:
    """PCK at the paper's limit, a column a group, with its number of points."""
    figures = _choose(scores.figures)
    groups = {figure.group: figure for figure in figures}
    found = {(figure.method, figure.group): say_percent(figure.per_point) for figure in figures}
    header = ("method", *(f"{name} ({figure.points:,} points)" for name, figure in groups.items()))
    rows = tuple((method.name, *(found[method.name, name] for name in groups)) for method in run.methods)
    return Table(f"PCK@{LIMITS[-1]:g} px by {what}, {_DENSE}", header, rows)


def _choose(figures: Sequence[Figure]) -> list[Figure]:
    """Those of the paper's limit; of matches placed between cells where a run has such."""
    use = any(figure.use_refinement for figure in figures)
    return [figure for figure in figures if figure.limit == LIMITS[-1] and figure.use_refinement == use]


def _describe(run: DrivingRun) -> list[str]:
    keypoints = run.keypoints
    lines = describe_protocol(run.dense)
    lines.append(
        f"at keypoints: {keypoints.benchmark.truth}; up to {keypoints.benchmark.points:,} a pair, "
        f"{keypoints.point_count:,} in all; a baseline's answer is the keypoint of image 1 with the nearest "
        "descriptor, the other methods search the whole image as before"
    )
    lines.append("baseline: metres between the two cameras")
    if run.classes is not None:
        without = f"; pairs without a mask, which are left out: {run.unmasked}" if run.unmasked else ""
        lines.append(f"classes: the user's mask of image 0 at the point (--class-masks){without}")
    return lines


def _draw(run: DrivingRun) -> Iterator[Plot]:
    caption = "share of correct points against the limit"
    yield replace(draw_curves(run.dense.benchmark, run.dense.scores), caption=f"{caption}, {_DENSE}")
    yield replace(
        draw_curves(run.keypoints.benchmark, run.keypoints.scores),
        caption=f"{caption}, {_KEYPOINTS}",
        suffix=PLOTS[1],
    )
    yield _draw_baselines(run)
    if run.classes is not None:
        yield replace(
            draw_curves(run.dense.benchmark, run.classes),
            caption=f"{caption}, by class of thing",
            suffix=CLASSES_PLOT,
        )


def _draw_baselines(run: DrivingRun) -> Plot:
    figures = [figure for figure in _choose(run.baselines.figures) if figure.group != ALL]
    canvas, panels = lay_out(1)
    for number, method in enumerate(run.dense.methods):
        own = [figure for figure in figures if figure.method == method.name]
        style: dict[str, Any] = choose_style(number)
        shares = [100 * figure.per_point for figure in own]
        panels[0].plot([figure.group for figure in own], shares, label=method.name, marker="o", **style)
    panels[0].set_ylim(0, 102)
    panels[0].set_xlabel("camera baseline")
    panels[0].set_ylabel(f"points within {LIMITS[-1]:g} px, %")
    add_legend(canvas, panels)
    return save_plot(canvas, f"PCK@{LIMITS[-1]:g} px against the camera baseline", PLOTS[2])
