"""Everything that `ucn evaluate` can measure, by name, whatever its kind: one table, one way to run it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ucn.errors import ConfigError
from ucn.evaluate.core.merge import Earlier, complete_report
from ucn.evaluate.core.methods import LoadedMethods, MethodFiles, load_methods
from ucn.evaluate.core.outputs import QUERIES, SHEET
from ucn.evaluate.core.report import Report
from ucn.evaluate.driving.pictures import draw_queries
from ucn.evaluate.driving.prediction import DRIVING_BENCHMARKS, run_driving
from ucn.evaluate.driving.report import PLOTS, build_driving_report
from ucn.evaluate.driving.report import add_earlier as add_earlier_driving
from ucn.evaluate.matches.report import TITLE as MATCHES_TITLE
from ucn.evaluate.matches.report import run_matches
from ucn.evaluate.motion.methods import load_motion_methods
from ucn.evaluate.motion.prediction import MOTION_BENCHMARKS, MotionBenchmark
from ucn.evaluate.motion.report import run_camera_motion
from ucn.evaluate.pair_score.report import TITLE as PAIR_SCORE_TITLE
from ucn.evaluate.pair_score.report import run_pair_score
from ucn.evaluate.points.benchmarks import BENCHMARKS, Benchmark
from ucn.evaluate.points.predictions import Progress
from ucn.evaluate.points.report import add_earlier, build_report
from ucn.evaluate.points.run import RunSettings, run_benchmark
from ucn.evaluate.points.sheet import draw_sheet
from ucn.evaluate.reconstruction.report import TITLE as RECONSTRUCTION_TITLE
from ucn.evaluate.reconstruction.report import load_reconstruction_methods, run_reconstruction


@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Attributes:
        folder: of the data; bundled benchmarks ignore it.
        settings: device, seed, cache and the like.
        methods: names of methods; None means all.
        files: that methods need beside the package.
        sheet_pairs: how many pairs a sheet of matches shows; 0 makes none.
        class_masks: folder of masks that tell classes of things; None where there is none.
        on_skip: called with name and reason of each method that is left out, before the work begins where
            that is known then.
        progress: called with (pairs done, all pairs).
        earlier: a report whose other methods are taken over; not for evaluations with an `update_obstacle`.
    """

    folder: Path
    settings: RunSettings
    methods: Sequence[str] | None = None
    files: MethodFiles = field(default_factory=MethodFiles)
    sheet_pairs: int = 0
    class_masks: Path | None = None
    on_skip: Callable[[str, str], None] | None = None
    progress: Progress | None = None
    earlier: Earlier | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run gives.

    Attributes:
        report: tables, figures, protocol.
        pictures: of the data, by the endings of their file names.
    """

    report: Report
    pictures: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Something that can be measured.

    Attributes:
        name: how the command line calls it.
        title: its data, in a line.
        run: does it.
        needs_folder: whether the user must give a folder of data.
        plots: suffixes of the figures that its report has.
        pictures: endings of the pictures of the data that it can draw.
        has_classes: whether it takes masks of classes.
        update_obstacle: why methods of an earlier report cannot stand beside new ones; empty where they can.
    """

    name: str
    title: str
    run: Callable[[Request], Outcome]
    needs_folder: bool = True
    plots: tuple[str, ...] = ("",)
    pictures: tuple[str, ...] = ()
    has_classes: bool = False
    update_obstacle: str = ""


def _load(request: Request) -> LoadedMethods:
    loaded = load_methods(request.methods, request.files, request.settings.device)
    if request.on_skip is not None:
        for name, reason in loaded.skipped.items():
            request.on_skip(name, reason)
    return loaded


def _complete(report: Report, request: Request, names: Sequence[str] | None = None) -> Report:
    return report if request.earlier is None else complete_report(report, request.earlier, names)


def _run_matches(request: Request) -> Outcome:
    loaded = _load(request)
    report = run_matches(request.folder, loaded, request.settings, request.progress, request.earlier)
    return Outcome(_complete(report, request))


def _run_pair_score(request: Request) -> Outcome:
    loaded = _load(request)
    report = run_pair_score(request.folder, loaded, request.settings, request.progress, request.earlier)
    return Outcome(_complete(report, request))


def _run_motion(benchmark: MotionBenchmark, request: Request) -> Outcome:
    loaded = load_motion_methods(request.methods, request.files, request.settings.device)
    if request.on_skip is not None:
        for name, reason in loaded.skipped.items():
            request.on_skip(name, reason)
    return Outcome(run_camera_motion(benchmark, request.folder, loaded, request.settings, request.progress))


def _run_reconstruction(request: Request) -> Outcome:
    methods, skipped = load_reconstruction_methods(request.methods, request.files)
    if request.on_skip is not None:
        for name, reason in skipped.items():
            request.on_skip(name, reason)
    report = run_reconstruction(
        request.folder, methods, skipped, request.settings, request.progress, request.earlier
    )
    return Outcome(_complete(report, request))


def _run_points(benchmark: Benchmark, request: Request) -> Outcome:
    loaded = _load(request)
    earlier = request.earlier
    run = run_benchmark(benchmark, request.folder, loaded, request.settings, request.progress, earlier)
    if request.on_skip is not None:  # what the data itself rules out is known only now
        for name in run.skipped.keys() - loaded.skipped.keys():
            request.on_skip(name, run.skipped[name])
    pictures = {SHEET: draw_sheet(run, request.sheet_pairs)} if request.sheet_pairs else {}
    if earlier is not None:
        run = add_earlier(run, earlier)
    return Outcome(_complete(build_report(run), request), pictures)


def _run_driving(benchmark: Benchmark, request: Request) -> Outcome:
    loaded = _load(request)
    earlier = request.earlier
    run = run_driving(
        benchmark, request.folder, loaded, request.settings, request.class_masks, request.progress, earlier
    )
    pictures = {}
    if request.sheet_pairs:
        pictures = {
            SHEET: draw_sheet(run.dense, request.sheet_pairs),
            QUERIES: draw_queries(run.dense, request.sheet_pairs),
        }
    if earlier is not None:
        run = add_earlier_driving(run, earlier)
    names = [method.name for method in run.dense.methods]
    return Outcome(_complete(build_driving_report(run), request, names), pictures)


_PAIR_BY_PAIR = (
    "its report compares each method with `sift` pair by pair, and does not hold the pairs; leave --update "
    "out and name all methods: predictions that are kept are not made again"
)

_LIST = (
    *(
        Evaluation(
            benchmark.name,
            benchmark.title,
            partial(_run_points, benchmark),
            benchmark.needs_folder,
            pictures=(SHEET,),
        )
        for benchmark in BENCHMARKS.values()
    ),
    *(
        Evaluation(
            benchmark.name,
            benchmark.title,
            partial(_run_driving, benchmark),
            plots=PLOTS,
            pictures=(SHEET, QUERIES),
            has_classes=True,
        )
        for benchmark in DRIVING_BENCHMARKS.values()
    ),
    Evaluation("hpatches-matches", MATCHES_TITLE, _run_matches),
    Evaluation("pair-score", PAIR_SCORE_TITLE, _run_pair_score),
    Evaluation("reconstruction", RECONSTRUCTION_TITLE, _run_reconstruction),
    *(
        Evaluation(
            benchmark.name,
            benchmark.title,
            partial(_run_motion, benchmark),
            update_obstacle=_PAIR_BY_PAIR,
        )
        for benchmark in MOTION_BENCHMARKS.values()
    ),
)

EVALUATIONS: dict[str, Evaluation] = {evaluation.name: evaluation for evaluation in _LIST}
"""Every evaluation by name."""


def find_evaluation(name: str) -> Evaluation:
    """The evaluation of a name; raises `ConfigError`, naming all, where there is none."""
    if name not in EVALUATIONS:
        close = difflib.get_close_matches(name, EVALUATIONS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ConfigError(f"no benchmark '{name[:80]}'{hint} (there are {', '.join(EVALUATIONS)})")
    return EVALUATIONS[name]
