"""Camera motion from beginning to end, and its report: errors by gap, and what matches they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ucn.data.checking import spread
from ucn.errors import DataError
from ucn.evaluate.core.outputs import find_versions, name_device
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.report import Plot, Report, Table, say_number, say_percent
from ucn.evaluate.driving.prediction import DRIVING_BENCHMARKS
from ucn.evaluate.motion.methods import LoadedMotionMethods
from ucn.evaluate.motion.prediction import MotionBenchmark, MotionPair, MotionVariant, match_frames
from ucn.evaluate.motion.scoring import (
    ALL,
    LEVEL,
    MIN_BASELINE,
    RESAMPLES,
    MotionFigure,
    MotionScores,
    score_motions,
)
from ucn.evaluate.points.predictions import Progress
from ucn.evaluate.points.run import RunSettings
from ucn.geometry.pose import ESTIMATORS
from ucn.paper.figures import PAPER_COLUMNS, cite_paper, list_cited, quote_paper

_REFERENCE = "sift"
_ESTIMATORS = {
    "poselib": "poselib (LO-RANSAC over five points, then a robust non-linear refinement)",
    "opencv": "OpenCV (findEssentialMat with RANSAC over five points, no refinement: the paper's kind)",
}

# Colour and kind of line tell methods apart, so a method's two curves differ in marks and width.
_ALIGNED: dict[str, Any] = {"linewidth": 1.8}
_AS_FOUND: dict[str, Any] = {"linewidth": 0.8, "markerfacecolor": "white"}


@dataclass(frozen=True)
class _Run:
    benchmark: MotionBenchmark
    loaded: LoadedMotionMethods
    settings: RunSettings
    variants: tuple[MotionVariant, ...]
    pairs: Sequence[MotionPair]
    pair_count: int
    scores: MotionScores
    notes: tuple[str, ...]


def run_camera_motion(
    benchmark: MotionBenchmark,
    folder: Path,
    loaded: LoadedMotionMethods,
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Matches frames with each method, estimates the camera's motion from the matches, and scores it.

    Args:
        benchmark: of `MOTION_BENCHMARKS`.
        folder: of its data.
        loaded: of `load_motion_methods`.
        settings: the user's choices; refinement is the alignment of matches here.
        progress: called after each pair, of both stages together.

    Raises:
        DataError: the folder is not that data set, or there is nothing to measure.
    """
    if not loaded.methods:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in loaded.skipped.items())
        raise DataError(f"no method can be measured: {reasons or 'none was asked for'}")
    entries = benchmark.open(folder)
    chosen = list(range(len(entries)))
    if settings.limit is not None:
        chosen = spread(len(entries), settings.limit)
    variants = tuple(
        MotionVariant(method, is_aligned)
        for method in loaded.methods
        for is_aligned in sorted(settings.refinements)
    )

    def count(offset: int) -> Progress | None:
        if progress is None:
            return None
        return lambda done, _: progress(offset + done, 2 * len(chosen))

    jobs = settings.jobs if settings.device == "cpu" else 1
    pairs = match_frames(benchmark, entries, chosen, variants, settings.cache, count(0), jobs)
    scores = score_motions(
        pairs,
        variants,
        ESTIMATORS,
        benchmark.threshold,
        seed=settings.seed,
        reference=_REFERENCE,
        jobs=settings.jobs,
        progress=count(len(chosen)),
    )
    notes = tuple(entries[0].data.notes)
    return _build(_Run(benchmark, loaded, settings, variants, pairs, len(entries), scores, notes))


def _build(run: _Run) -> Report:
    columns = PAPER_COLUMNS.get(run.benchmark.name, ())
    return Report(
        name=run.benchmark.name,
        title=run.benchmark.title,
        command=run.settings.command,
        tables=tuple(_tabulate(run)),
        protocol=tuple(describe_protocol(run)),
        methods=tuple(run.loaded.methods),
        skipped=run.loaded.skipped,
        notes=(*run.notes, *_point_on(run.benchmark.name), *cite_paper(columns)),
        rows=tuple(asdict(figure) for figure in run.scores.figures),
        values={
            "pairs": run.scores.pairs,
            "pairs_of_benchmark": run.pair_count,
            "pairs_without_motion": list(run.scores.still),
            "seed": run.settings.seed,
            "threshold_px": run.benchmark.threshold,
            "max_matches": run.benchmark.max_matches,
            "differences": [asdict(difference) for difference in run.scores.differences],
            "paper": [asdict(column) for column in columns],
            "seconds": _measure_costs(run),
        },
        plots=(_draw(run),),
        versions=find_versions(),
        device=name_device(run.settings.device),
    )


def _point_on(name: str) -> tuple[str, ...]:
    """Where the same data is measured in another way."""
    other = f"{name}-points"
    if other not in DRIVING_BENCHMARKS:
        return ()
    return (f"how many points are found, by limit, camera baseline and class of thing: ucn evaluate {other}",)


def describe_protocol(run: _Run) -> list[str]:
    """What was done, line by line; printed under every table."""
    benchmark, scores, seed = run.benchmark, run.scores, run.settings.seed
    asked = f"{scores.pairs:,} pairs" if scores.pairs > 1 else "1 pair"
    if len(run.pairs) < run.pair_count:
        asked += f" of {run.pair_count:,}, evenly spread (--limit)"
    if scores.still:
        asked += f"; {len(scores.still)} left out, in which the camera moved by less than {MIN_BASELINE:g} m"
    return [
        f"data: {benchmark.title}; {asked}; images at their own size",
        f"truth: {benchmark.truth}",
        f"matches: the best {benchmark.max_matches:,} of each method by its own order, or all where it has "
        "fewer",
        "aligned: all matches of a pair are moved by parts of a pixel to where patches of 15 × 15 px "
        "correlate best, by the same code for all methods, before the best are taken; `ucn.Matcher` does so "
        "unless told otherwise",
        *(f"estimator: {_ESTIMATORS[name]}" for name in ESTIMATORS),
        f"both: threshold {benchmark.threshold:g} px from the epipolar line, seed {seed}, at most 10,000 "
        "iterations, confidence 0.9999; of the four motions that an essential matrix allows, the one with "
        "most inliers in front of both cameras",
        "rotation error: arccos((tr(RᵀR_true) − 1) / 2)",
        "translation error: the angle between t and t_true of X1 = R X0 + t, from 0° (the same way) to 180° "
        "(the opposite way); line_mean in JSON and CSV ignores the sign, as some papers do",
        "failures: no motion (fewer than five matches or inliers, or a rotation alone explains them); each "
        "counts 180° in both means and medians",
        "AUC: of the larger of both errors, as in SuperGlue",
        *_describe_intervals(run),
    ]


def _describe_intervals(run: _Run) -> list[str]:
    """What intervals are; one pair has none."""
    if run.scores.pairs < 2:
        return []
    return [
        f"intervals hold {LEVEL:.0%} of {RESAMPLES:,} resamplings of the pairs (seed {run.settings.seed}); "
        "pairs share frames, so they are somewhat too narrow"
    ]


def _tabulate(run: _Run) -> list[Table]:
    tables = [_tabulate_all(run, estimator) for estimator in ESTIMATORS]
    tables[1:1] = [
        _tabulate_groups(run, quantity) for quantity in ("rotation", "translation")
    ] + _tabulate_differences(run)
    return tables


def _find(run: _Run, estimator: str, variant: MotionVariant, group: str) -> MotionFigure:
    return next(
        figure
        for figure in run.scores.figures
        if (figure.estimator, figure.group) == (estimator, group)
        and (figure.method, figure.is_aligned) == (variant.method.name, variant.is_aligned)
    )


def _tabulate_all(run: _Run, estimator: str) -> Table:
    """Everything about all pairs together, beside the paper's figures."""
    columns = PAPER_COLUMNS.get(run.benchmark.name, ())
    rows = []
    for variant in run.variants:
        figure = _find(run, estimator, variant, ALL)
        auc = (figure.auc_5, figure.auc_10, figure.auc_20)
        rows.append(
            (
                variant.label,
                f"{figure.rotation_mean:.4f} / {figure.rotation_median:.4f}",
                f"{figure.translation_mean:.3f} / {figure.translation_median:.3f}",
                f"{figure.failures}",
                " / ".join(map(say_percent, auc)),
                f"{figure.matches:.0f} of {figure.found:.0f}",
                f"{figure.inliers:.0f}",
                *quote_paper(columns, variant.method),
            )
        )
    for name, *cells in list_cited(columns, run.loaded.methods):
        rows.append((name, *["–"] * 6, *cells))
    header = (
        "method",
        "rotation, °: mean / median",
        "translation, °: mean / median",
        "failures",
        "AUC @5° / 10° / 20°, %",
        "matches",
        "inliers",
        *(column.label for column in columns),
    )
    count = run.scores.pairs
    asked = f"all {count} pairs" if count > 1 else "the one pair"
    return Table(f"{asked}, {estimator}", header, tuple(rows))


def _tabulate_groups(run: _Run, quantity: str) -> Table:
    """Mean, median and failures of an error by gap."""
    groups = list(dict.fromkeys(figure.group for figure in run.scores.figures))
    digits = 4 if quantity == "rotation" else 3
    rows = []
    for variant in run.variants:
        figures = [_find(run, ESTIMATORS[0], variant, group) for group in groups]
        cells = [
            f"{say_number(getattr(figure, f'{quantity}_mean'), digits)} / "
            f"{say_number(getattr(figure, f'{quantity}_median'), digits)} ({figure.failures})"
            for figure in figures
        ]
        rows.append((variant.label, *cells))
    title = f"{quantity} error in degrees by frames apart, mean / median (failures), {ESTIMATORS[0]}"
    return Table(title, ("method", *groups), tuple(rows))


def _tabulate_differences(run: _Run) -> list[Table]:
    chosen = [item for item in run.scores.differences if item.estimator == ESTIMATORS[0]]
    if not chosen:
        return []
    has_interval = run.scores.pairs > 1

    def say(mean: float, low: float, high: float, digits: int) -> str:
        bounds = f" ({low:+.{digits}f} to {high:+.{digits}f})" if has_interval else ""
        return f"{mean:+.{digits}f}{bounds}"

    rows = tuple(
        (
            f"{item.method}, aligned" if item.is_aligned else item.method,
            say(item.rotation, item.rotation_low, item.rotation_high, 4),
            say(item.translation, item.translation_low, item.translation_high, 3),
        )
        for item in chosen
    )
    shown = f"pairs, mean and {LEVEL:.0%} interval" if has_interval else "pair"
    title = f"difference from `{_REFERENCE}` on the same {shown}, less is better, {ESTIMATORS[0]}"
    return [Table(title, ("method", "rotation, °", "translation, °"), rows)]


def _measure_costs(run: _Run) -> list[dict[str, str | float | None]]:
    """Seconds of each variant: an image, matching a pair, aligning a pair."""
    costs: list[dict[str, str | float | None]] = []
    for place, variant in enumerate(run.variants):
        spent = [pair.matches[place].seconds for pair in run.pairs]
        describing, images, matching, aligning = (sum(column) for column in zip(*spent, strict=True))
        costs.append(
            {
                "method": variant.label,
                "per_image": describing / images if images else None,
                "matching_a_pair": matching / len(spent),
                "aligning_a_pair": aligning / len(spent),
            }
        )
    return costs


def _draw(run: _Run) -> Plot:
    """Mean errors against the gap, a panel each for rotation and translation."""
    groups = [group for group in dict.fromkeys(figure.group for figure in run.scores.figures) if group != ALL]
    canvas, panels = lay_out(2)
    for panel, quantity in zip(panels, ("rotation", "translation"), strict=True):
        for number, method in enumerate(run.loaded.methods):
            for variant in (variant for variant in run.variants if variant.method is method):
                values = [
                    getattr(_find(run, ESTIMATORS[0], variant, group), f"{quantity}_mean") for group in groups
                ]
                style = choose_style(number) | (_ALIGNED if variant.is_aligned else _AS_FOUND)
                panel.plot(groups, values, label=variant.label, marker="o", markersize=4, **style)
        panel.set_title(f"{quantity} error, °, mean", fontsize=10)
        panel.set_yscale("log")  # features alone err by many times what aligned ones do
        panel.set_xlabel("frames apart")
    add_legend(canvas, panels, fontsize=7)
    return save_plot(canvas, "mean errors of rotation and translation against the gap between frames")
