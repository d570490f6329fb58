"""The table of everything that `ucn evaluate` can evaluate, by name, and how each is run.

A run imports only its own evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ucn.errors import ConfigError
from ucn.evaluate.core.predictions import Progress, RunSettings
from ucn.evaluate.core.report import DRIVING_PLOTS, QUERIES, SHEET, Report
from ucn.evaluate.core.update import update_report
from ucn.evaluate.points.benchmarks import BENCHMARKS
from ucn.features.lightglue import LIGHTGLUE
from ucn.features.method import DenseMethod, LoadedMethods, Method, MethodFiles
from ucn.files.suggestions import suggest
from ucn.paper.registry import METHODS


@dataclass(frozen=True)
class Request:
    """What to evaluate.

    Attributes:
        folder: of the data; bundled benchmarks ignore it.
        settings: device, seed, cache and the like.
        methods: names of methods; None means all.
        files: that methods need beside the package.
        sheet_pairs: how many pairs a sheet of matches shows; 0 makes none.
        class_masks: folder of masks of semantic classes; None where there is none.
        scenes: names of the scenes of the folder to use; all where empty.
        split: of the data; empty takes the benchmark's own.
        subset: list file of the images or pairs to use; None takes the benchmark's own.
        classes: names of the classes of the folder to use; all where empty.
        on_skip: called with name and reason of each method that is skipped.
        progress: called with (pairs done, all pairs).
    """

    folder: Path
    settings: RunSettings
    methods: Sequence[str] | None = None
    files: MethodFiles = field(default_factory=MethodFiles)
    sheet_pairs: int = 0
    class_masks: Path | None = None
    scenes: Sequence[str] = ()
    split: str = ""
    subset: Path | None = None
    classes: Sequence[str] = ()
    on_skip: Callable[[str, str], None] | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Evaluation:
    """Something that can be evaluated.

    Attributes:
        name: what the command line calls it.
        evaluate: makes the report; `run` also updates a page.
        needs_folder: whether the user must give a folder of data.
        plots: suffixes of the plots of its report.
        images: endings of the images of the data that it can draw.
        has_classes: whether it takes masks of semantic classes.
        has_scenes: whether it takes names of scenes.
        has_splits: whether it takes a split.
        has_subset: whether it takes a list of its images or pairs.
        has_class_names: whether it takes names of classes of objects.
        has_seeds: whether it averages over seeds.
        update_obstacle: why its reports cannot be updated; empty where they can.
    """

    name: str
    evaluate: Callable[[Request], Report]
    needs_folder: bool = True
    plots: tuple[str, ...] = ("",)
    images: tuple[str, ...] = ()
    has_classes: bool = False
    has_scenes: bool = False
    has_splits: bool = False
    has_subset: bool = False
    has_class_names: bool = False
    has_seeds: bool = False
    update_obstacle: str = ""

    def run(self, request: Request) -> Report:
        """Evaluates methods; an update of a page keeps its other methods."""
        report = self.evaluate(request)
        return report if request.settings.page is None else update_report(report, request.settings.page)


def _report_skipped(
    request: Request, skipped: Mapping[str, str], known: Mapping[str, str] | None = None
) -> None:
    if request.on_skip is not None:
        for name, reason in skipped.items():
            if known is None or name not in known:
                request.on_skip(name, reason)


def _load(request: Request) -> LoadedMethods[DenseMethod]:
    loaded = METHODS.load_dense(request.methods, request.files, request.settings.device)
    _report_skipped(request, loaded.skipped)
    return loaded


def _evaluate_points(name: str, request: Request) -> Report:
    from ucn.evaluate.points.report import build_report, run_benchmark

    benchmark = BENCHMARKS[name].select(request.scenes) if request.scenes else BENCHMARKS[name]
    if request.split:
        benchmark = benchmark.with_split(request.split)
    if request.subset is not None:
        benchmark = benchmark.with_subset(request.subset)
    loaded = _load(request)
    run = run_benchmark(benchmark, request.folder, loaded, request.settings, request.progress)
    _report_skipped(request, run.skipped, loaded.skipped)  # some methods only the data rules out
    images = {}
    if request.sheet_pairs:
        from ucn.evaluate.points.sheet import draw_sheet

        images = {SHEET: draw_sheet(run, request.sheet_pairs)}
    return replace(build_report(run), images=images)


def _evaluate_driving(name: str, request: Request) -> Report:
    from ucn.evaluate.driving.benchmarks import DRIVING_BENCHMARKS
    from ucn.evaluate.driving.query_sheet import draw_queries
    from ucn.evaluate.driving.report import build_driving_report, run_driving
    from ucn.evaluate.points.sheet import draw_sheet

    loaded, benchmark, pairs = _load(request), DRIVING_BENCHMARKS[name], request.sheet_pairs
    masks = request.class_masks
    run = run_driving(benchmark, request.folder, loaded, request.settings, masks, request.progress)
    images = {}
    if pairs:
        images = {SHEET: draw_sheet(run.dense, pairs), QUERIES: draw_queries(run.dense, pairs)}
    return replace(build_driving_report(run), images=images)


def _evaluate_matches(request: Request) -> Report:
    """Dense methods, and those of LightGlue where they are named."""
    from ucn.evaluate.matches.report import run_matches

    names, stems = request.methods, [path.stem for path in request.files.weights]
    for name in names or ():
        METHODS.check_name(name, others=[*LIGHTGLUE, *stems])
    own = [name for name in names or () if name in LIGHTGLUE]
    dense = None if names is None else [name for name in names if name not in LIGHTGLUE]
    loaded = _load(replace(request, methods=dense))
    sparse = METHODS.load_sparse(own, device=request.settings.device)
    _report_skipped(request, sparse.skipped)
    both = LoadedMethods[Method]([*loaded.methods, *sparse.methods], {**loaded.skipped, **sparse.skipped})
    return run_matches(request.folder, both, request.settings, request.progress)


def _evaluate_pair_score(request: Request) -> Report:
    from ucn.evaluate.pair_score.report import run_pair_score

    return run_pair_score(request.folder, _load(request), request.settings, request.progress)


def _evaluate_transfer(request: Request) -> Report:
    from ucn.evaluate.label_transfer.report import run_transfer

    return run_transfer(request.folder, _load(request), request.settings, request.progress)


def _evaluate_objects(request: Request) -> Report:
    from ucn.evaluate.objects.report import run_objects

    loaded = _load(request)
    return run_objects(request.folder, loaded, request.settings, request.classes, request.progress)


def _evaluate_motion(name: str, request: Request) -> Report:
    from ucn.evaluate.motion.predictions import MOTION_BENCHMARKS
    from ucn.evaluate.motion.report import run_camera_motion

    loaded = METHODS.load_sparse(request.methods, request.files, request.settings.device)
    _report_skipped(request, loaded.skipped)
    benchmark = MOTION_BENCHMARKS[name]
    return run_camera_motion(benchmark, request.folder, loaded, request.settings, request.progress)


def _evaluate_reconstruction(request: Request) -> Report:
    from ucn.evaluate.reconstruction.report import load_reconstruction_methods, run_reconstruction

    methods, skipped = load_reconstruction_methods(request.methods, request.files)
    _report_skipped(request, skipped)
    return run_reconstruction(request.folder, methods, skipped, request.settings, request.progress)


_PAIR_BY_PAIR = (
    "its report compares each method with `sift` pair by pair, and does not hold the pairs; evaluate all "
    "methods: cached predictions are not made again"
)

_CACHED = "its tables are made anew from cached predictions in seconds; evaluate all methods"

_LIST = (
    *(
        Evaluation(
            name,
            partial(_evaluate_points, name),
            benchmark.needs_folder,
            images=(SHEET,),
            has_scenes=benchmark.open_scenes is not None,
            has_splits=benchmark.open_split is not None,
            has_subset=benchmark.open_subset is not None,
        )
        for name, benchmark in BENCHMARKS.items()
    ),
    *(
        Evaluation(
            name,
            partial(_evaluate_driving, name),
            plots=DRIVING_PLOTS,
            images=(SHEET, QUERIES),
            has_classes=True,
        )
        for name in ("kitti-raw-points", "kitti-odometry-points")
    ),
    Evaluation("hpatches-matches", _evaluate_matches),
    Evaluation("pair-score", _evaluate_pair_score),
    Evaluation("transfer", _evaluate_transfer, plots=(), update_obstacle=_CACHED),
    Evaluation("objects", _evaluate_objects, plots=(), has_class_names=True),
    Evaluation("reconstruction", _evaluate_reconstruction, has_seeds=True),
    *(
        Evaluation(name, partial(_evaluate_motion, name), update_obstacle=_PAIR_BY_PAIR)
        for name in ("kitti-raw", "kitti-odometry", "kitti-odometry-train")
    ),
)

EVALUATIONS: dict[str, Evaluation] = {evaluation.name: evaluation for evaluation in _LIST}
"""Every evaluation by name."""


def find_evaluation(name: str) -> Evaluation:
    """The evaluation of a name; raises `ConfigError`, naming all, where there is none."""
    if name not in EVALUATIONS:
        hint = suggest(name, EVALUATIONS)
        raise ConfigError(f"no benchmark '{name[:80]}'{hint} (there are {', '.join(EVALUATIONS)})")
    return EVALUATIONS[name]
