"""A benchmark of points from beginning to end: both stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ucn.data.checking import spread
from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.methods import LoadedMethods
from ucn.evaluate.core.outputs import find_versions, name_device
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.predictions import Progress, predict_pairs
from ucn.evaluate.points.report import PointsRun, check_earlier
from ucn.evaluate.points.scoring import score_predictions
from ucn.evaluate.points.transfer import bind_transfers


@dataclass(frozen=True)
class RunSettings:
    """What a user chooses beside benchmark and methods.

    Attributes:
        cache: folder of predictions.
        limit: at most so many pairs, evenly spread; None takes all.
        seed: of points, resampling and estimators.
        refinements: whether matches are placed between cells; both are measured by default.
        max_side: longest side of images in pixels, in place of the benchmark's own; None keeps that.
        device: where networks of torch and matching run.
        jobs: processes that share the methods of the CPU.
        command: that makes the run again, for the report.
    """

    cache: Path
    limit: int | None = None
    seed: int = 0
    refinements: Sequence[bool] = (True, False)
    max_side: int | None = None
    device: str = "cpu"
    jobs: int = 1
    command: str = ""


def run_benchmark(
    benchmark: Benchmark,
    folder: Path,
    loaded: LoadedMethods,
    settings: RunSettings,
    progress: Progress | None = None,
    earlier: Earlier | None = None,
) -> PointsRun:
    """Predicts what is not yet cached, and scores everything; `build_report` makes it a report.

    Args:
        benchmark: of `find_benchmark`.
        folder: of its data; bundled benchmarks ignore it.
        loaded: of `load_methods`.
        settings: the user's choices.
        progress: called after each pair, and before them after each training image that is described.
        earlier: a report to which this run is to be added (`add_earlier`); what can be told before the work
            about whether it can be is told then.

    Raises:
        DataError: the folder is not that data set, there is nothing to measure, or the earlier report is of
            another run.
    """
    require_methods(loaded)
    entries = benchmark.open(folder)
    if benchmark.adapt is not None:
        benchmark = benchmark.adapt(benchmark, entries)
    benchmark = _limit_side(benchmark, settings.max_side)
    loaded = bind_transfers(loaded, benchmark.name, entries, settings.cache, progress)
    require_methods(loaded)
    chosen = list(range(len(entries)))
    if settings.limit is not None:
        chosen = spread(len(entries), settings.limit)
    if earlier is not None:
        counts = (len(chosen), len(entries))
        check_earlier(earlier, benchmark, counts, settings.seed, settings.refinements)
    predictions = predict_pairs(
        benchmark,
        entries,
        chosen,
        loaded.methods,
        settings.cache,
        refinements=settings.refinements,
        seed=settings.seed,
        device=settings.device,
        jobs=settings.jobs,
        progress=progress,
    )
    point_count = sum(len(pair.points1) for pair in predictions.pairs)
    if not point_count:
        raise DataError(f"{folder}: no correspondences in the {len(chosen)} pairs asked; nothing to measure")
    return PointsRun(
        benchmark=benchmark,
        command=settings.command,
        methods=tuple(loaded.methods),
        skipped=loaded.skipped,
        scores=score_predictions(benchmark, predictions, settings.seed),
        predictions=predictions,
        pair_count=len(entries),
        point_count=point_count,
        seed=settings.seed,
        versions=find_versions(),
        device=name_device(settings.device),
        jobs=settings.jobs,
    )


def _limit_side(benchmark: Benchmark, max_side: int | None) -> Benchmark:
    if max_side is None:
        return benchmark
    if benchmark.preparation.canvas_hw is not None:
        raise ConfigError(
            f"--max-side: {benchmark.name} shows all images on a canvas of one size; leave it out"
        )
    preparation = replace(benchmark.preparation, max_side=max_side)
    return replace(benchmark, preparation=preparation)


def require_methods(loaded: LoadedMethods) -> None:
    """Raises `DataError`, with the reasons, where no method is left to measure."""
    if not loaded.methods:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in loaded.skipped.items())
        raise DataError(f"no method can be measured: {reasons or 'none was asked for'}")
