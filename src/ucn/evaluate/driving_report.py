"""The report of points in driving scenes: curves dense and at keypoints, by camera baseline, by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from ucn.evaluate.driving import LIMITS, DrivingRun
from ucn.evaluate.plots import add_legend, choose_style, draw_curves, lay_out, save_plot
from ucn.evaluate.points_report import PointsRun, describe_protocol, tabulate
from ucn.evaluate.report import Plot, Report, Table, say_percent
from ucn.evaluate.scoring import ALL, Figure, Scores

PLOTS = ("", "-keypoints", "-baselines")
"""Suffixes of the figures that every report has."""
CLASSES_PLOT = "-classes"
"""Suffix of the figure of classes."""

_DENSE, _KEYPOINTS = "all methods dense", "baselines at SIFT keypoints, the others dense"


def build_driving_report(run: DrivingRun) -> Report:
    """Tables, curves and protocol of a run."""
    dense, keypoints = run.dense, run.keypoints
    sections = {"dense": dense.scores, "keypoints": keypoints.scores, "baseline": run.baselines}
    if run.classes is not None:
        sections["class"] = run.classes
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
            "curves": {name: [asdict(curve) for curve in scores.curves] for name, scores in sections.items()},
            "seconds": [asdict(cost) for cost in dense.scores.costs],
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
