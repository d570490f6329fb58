"""Relative pose from data to report: errors by frame gap, and the matches that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ucn.evaluate.core.benchmark_pairs import ALL, choose_rows, count_pairs
from ucn.evaluate.core.metrics import LEVEL, RESAMPLES
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.predictions import Progress, RunSettings, count_part, require_methods
from ucn.evaluate.core.report import (
    Plot,
    Report,
    Table,
    describe_run,
    describe_trained,
    format_number,
    format_percent,
)
from ucn.evaluate.driving.benchmarks import DRIVING_BENCHMARKS
from ucn.evaluate.motion.predictions import (
    MotionBenchmark,
    MotionPair,
    MotionVariant,
    label_variant,
    predict_frames,
)
from ucn.evaluate.motion.scoring import (
    MIN_BASELINE,
    MotionResults,
    MotionScore,
    score_motions,
)
from ucn.evaluate.points.report import list_paper_values
from ucn.features.method import LoadedMethods, Method
from ucn.geometry.pose import ESTIMATORS
from ucn.paper.results import PAPER_COLUMNS, format_paper_cells, format_sources, list_cited

_REFERENCE = "sift"
_ESTIMATORS = {
    "poselib": "poselib (LO-RANSAC over five points, then a robust non-linear refinement)",
    "opencv": "OpenCV (findEssentialMat with RANSAC over five points, no refinement: the paper's kind)",
}

# Colours and line styles are of methods, so the two variants of a method differ in markers and width.
_ALIGNED: dict[str, Any] = {"linewidth": 1.8}
_AS_FOUND: dict[str, Any] = {"linewidth": 0.8, "markerfacecolor": "white"}


@dataclass(frozen=True)
class _Run:
    benchmark: MotionBenchmark
    loaded: LoadedMethods[Method]
    settings: RunSettings
    variants: tuple[MotionVariant, ...]
    pairs: Sequence[MotionPair]
    pair_count: int
    results: MotionResults


def run_camera_motion(
    benchmark: MotionBenchmark,
    folder: Path,
    loaded: LoadedMethods[Method],
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Matches frames with each method, estimates relative poses from the matches, and scores them.

    Args:
        benchmark: of `MOTION_BENCHMARKS`.
        folder: of its data.
        loaded: of `Registry.load_sparse`.
        settings: of the run; refinement is the photometric refinement of matches here.
        progress: called after each pair, of both stages together.

    Raises:
        DataError: the folder is not that data set, or there is nothing to evaluate.
    """
    require_methods(loaded)
    pairs = benchmark.open(folder)
    chosen = choose_rows(len(pairs), settings.limit)
    variants = tuple(
        MotionVariant(method, is_aligned)
        for method in loaded.methods
        for is_aligned in sorted(settings.refinements)
    )
    part = count_part(progress, 0, 2)
    matched = predict_frames(benchmark, pairs, chosen, variants, settings.cache, part, settings.jobs)
    results = score_motions(
        matched,
        variants,
        ESTIMATORS,
        benchmark.threshold,
        seed=settings.seed,
        reference=_REFERENCE,
        jobs=settings.jobs,
        progress=count_part(progress, 1, 2),
    )
    return _build(_Run(benchmark, loaded, settings, variants, matched, len(pairs), results))


def _build(run: _Run) -> Report:
    columns = PAPER_COLUMNS.get(run.benchmark.name, ())
    return Report(
        name=run.benchmark.name,
        title=run.benchmark.title,
        tables=tuple(_tabulate(run)),
        protocol=tuple(describe_protocol(run)),
        methods=tuple(run.loaded.methods),
        skipped=run.loaded.skipped,
        notes=(
            *run.pairs[0].pair.data.notes,
            *_refer_to_points(run.benchmark.name),
            *format_sources(columns),
            *describe_trained(run.loaded.methods, [pair.pair for pair in run.pairs]),
        ),
        rows=tuple(asdict(score) for score in run.results.scores),
        values={
            "pairs": run.results.pairs,
            "pairs_of_benchmark": run.pair_count,
            "pairs_without_motion": list(run.results.still),
            "seed": run.settings.seed,
            "threshold_px": run.benchmark.threshold,
            "max_matches": run.benchmark.max_matches,
            "differences": [asdict(difference) for difference in run.results.differences],
            "paper": list_paper_values(columns),
            "seconds": _measure_costs(run),
        },
        plots=(_plot(run),),
        **describe_run(run.settings),
    )


def _refer_to_points(name: str) -> tuple[str, ...]:
    """The benchmark of points on the same data."""
    other = f"{name}-points"
    if other not in DRIVING_BENCHMARKS:
        return ()
    return (f"PCK by limit, camera baseline and semantic class: ucn evaluate {other}",)


def describe_protocol(run: _Run) -> list[str]:
    """What was done, line by line; printed under every table."""
    benchmark, results, seed = run.benchmark, run.results, run.settings.seed
    count = count_pairs(results.pairs, run.pair_count - len(results.still))
    if results.still:
        count += f"; {len(results.still)} skipped, with a baseline under {MIN_BASELINE:g} m"
    return [
        f"data: {benchmark.title}; {count}; images at their own size",
        f"ground truth: {benchmark.ground_truth}",
        f"matches: the best {benchmark.max_matches:,} of each method by its own order, or all where it has "
        "fewer",
        "aligned: photometric refinement of all matches to sub-pixel positions, where patches of 15 × 15 px "
        "correlate best, by the same code for all methods, before the best are taken; `ucn.Matcher` does so "
        "by default",
        *(f"estimator: {_ESTIMATORS[name]}" for name in ESTIMATORS),
        f"both: threshold {benchmark.threshold:g} px from the epipolar line, seed {seed}, at most 10,000 "
        "iterations, confidence 0.9999; of the four poses of an essential matrix, the one with most inliers "
        "in front of both cameras",
        "rotation error: arccos((tr(RᵀR_true) − 1) / 2)",
        "translation error: the angle between t and t_true of X1 = R X0 + t, from 0° (same direction) "
        "to 180° (opposite); line_mean in JSON and CSV ignores the sign, as some papers do",
        "failures: no pose (fewer than five matches or inliers, or a pure rotation explains them); each "
        "counts 180° in both means and medians",
        "AUC: of the larger of both errors, as in SuperGlue",
        *_describe_intervals(run),
    ]


def _describe_intervals(run: _Run) -> list[str]:
    """What intervals are; one pair has none."""
    if run.results.pairs < 2:
        return []
    seed = run.settings.seed
    return [
        f"intervals hold {LEVEL:.0%} of {RESAMPLES:,} bootstrap samples of the pairs (seed {seed}); pairs "
        "share frames, so they are somewhat too narrow"
    ]


def _tabulate(run: _Run) -> list[Table]:
    tables = [_tabulate_all(run, estimator) for estimator in ESTIMATORS]
    tables[1:1] = [
        _tabulate_groups(run, quantity) for quantity in ("rotation", "translation")
    ] + _tabulate_differences(run)
    return tables


def _find(run: _Run, estimator: str, variant: MotionVariant, group: str) -> MotionScore:
    return next(
        score
        for score in run.results.scores
        if (score.estimator, score.group) == (estimator, group)
        and (score.method, score.is_aligned) == (variant.method.name, variant.is_aligned)
    )


def _tabulate_all(run: _Run, estimator: str) -> Table:
    """Everything about all pairs together, beside the paper's results."""
    columns = PAPER_COLUMNS.get(run.benchmark.name, ())
    rows = []
    for variant in run.variants:
        score = _find(run, estimator, variant, ALL)
        auc = (score.auc_5, score.auc_10, score.auc_20)
        rows.append(
            (
                variant.label,
                f"{score.rotation_mean:.4f} / {score.rotation_median:.4f}",
                f"{score.translation_mean:.3f} / {score.translation_median:.3f}",
                f"{score.failures}",
                " / ".join(map(format_percent, auc)),
                f"{score.matches:.0f} of {score.found:.0f}",
                f"{score.inliers:.0f}",
                *format_paper_cells(columns, variant.method),
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
    count = run.results.pairs
    shown = f"all {count} pairs" if count > 1 else "the one pair"
    return Table(f"{shown}, {estimator}", header, tuple(rows))


def _tabulate_groups(run: _Run, quantity: str) -> Table:
    """Mean, median and failures of an error by gap."""
    groups = list(dict.fromkeys(score.group for score in run.results.scores))
    digits = 4 if quantity == "rotation" else 3
    rows = []
    for variant in run.variants:
        scores = [_find(run, ESTIMATORS[0], variant, group) for group in groups]
        cells = [
            f"{format_number(getattr(score, f'{quantity}_mean'), digits)} / "
            f"{format_number(getattr(score, f'{quantity}_median'), digits)} ({score.failures})"
            for score in scores
        ]
        rows.append((variant.label, *cells))
    title = f"{quantity} error in degrees by frames apart, mean / median (failures), {ESTIMATORS[0]}"
    return Table(title, ("method", *groups), tuple(rows))


def _tabulate_differences(run: _Run) -> list[Table]:
    chosen = [item for item in run.results.differences if item.estimator == ESTIMATORS[0]]
    if not chosen:
        return []
    has_interval = run.results.pairs > 1

    def show(mean: float, low: float, high: float, digits: int) -> str:
        bounds = f" ({low:+.{digits}f} to {high:+.{digits}f})" if has_interval else ""
        return f"{mean:+.{digits}f}{bounds}"

    rows = tuple(
        (
            label_variant(item.method, item.is_aligned),
            show(item.rotation, item.rotation_low, item.rotation_high, 4),
            show(item.translation, item.translation_low, item.translation_high, 3),
        )
        for item in chosen
    )
    shown = f"pairs, mean and {LEVEL:.0%} interval" if has_interval else "pair"
    title = f"difference from `{_REFERENCE}` on the same {shown}, less is better, {ESTIMATORS[0]}"
    return [Table(title, ("method", "rotation, °", "translation, °"), rows)]


def _measure_costs(run: _Run) -> list[dict[str, str | float | None]]:
    """Seconds of each variant: features of an image, matching a pair, refining a pair."""
    costs: list[dict[str, str | float | None]] = []
    for place, variant in enumerate(run.variants):
        spent = [pair.matches[place].seconds for pair in run.pairs]
        extracting, images, matching, refining = (sum(column) for column in zip(*spent, strict=True))
        costs.append(
            {
                "method": variant.label,
                "per_image": extracting / images if images else None,
                "matching_a_pair": matching / len(spent),
                "aligning_a_pair": refining / len(spent),
            }
        )
    return costs


def _plot(run: _Run) -> Plot:
    """Mean errors against the frame gap, a panel each for rotation and translation."""
    groups = [group for group in dict.fromkeys(score.group for score in run.results.scores) if group != ALL]
    figure, panels = lay_out(2)
    for panel, quantity in zip(panels, ("rotation", "translation"), strict=True):
        for number, method in enumerate(run.loaded.methods):
            for variant in (variant for variant in run.variants if variant.method is method):
                values = [
                    getattr(_find(run, ESTIMATORS[0], variant, group), f"{quantity}_mean") for group in groups
                ]
                style = choose_style(number) | (_ALIGNED if variant.is_aligned else _AS_FOUND)
                panel.plot(groups, values, label=variant.label, marker="o", markersize=4, **style)
        panel.set_title(f"{quantity} error, °, mean", fontsize=10)
        panel.set_yscale("log")  # errors without refinement are many times larger
        panel.set_xlabel("frames apart")
    add_legend(figure, panels, fontsize=7)
    return save_plot(figure, "mean errors of rotation and translation against the gap between frames")
