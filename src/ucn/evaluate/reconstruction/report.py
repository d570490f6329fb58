"""Stage 2 of the benchmark `reconstruction`: how right the cameras of models are, and the report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.merge import Earlier
from ucn.evaluate.core.method_types import MethodInfo, list_wanted, refuse_repeated
from ucn.evaluate.core.methods import MethodFiles, list_features
from ucn.evaluate.core.outputs import find_versions, name_device
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.report import Plot, Report, Table, say_number
from ucn.evaluate.points.predictions import Progress
from ucn.evaluate.points.run import RunSettings
from ucn.evaluate.reconstruction.methods import check_folder_name, load_folder_method
from ucn.evaluate.reconstruction.metrics import centre_errors, direction_errors, fit_similarity
from ucn.evaluate.reconstruction.prediction import (
    COLMAP_SIFT,
    ReconstructionMethod,
    Scene,
    SceneModel,
    Variant,
    choose_variants,
    list_scenes,
    make_models,
    name_variant,
)
from ucn.folders.detectors import SPACING
from ucn.folders.image_features import ExtractSettings
from ucn.folders.keypoint_adjustment import ALIGNMENTS, MAX_MISS, MAX_SHIFT
from ucn.folders.reconstruction import STRICT_PIXELS
from ucn.formats.colmap import MappingSettings, load_pycolmap
from ucn.weights import list_weights

TITLE = "sparse models of Strecha's scenes, camera centres against those measured with a laser scanner"

_SIFT_TITLE = (
    "COLMAP's own SIFT (8,192 features at most, first octave −1, ratio 0.8, cross check), all pairs, as "
    "pycolmap does it by default"
)


@dataclass(frozen=True)
class ReconstructionFigure:
    """How a variant did on a scene.

    Attributes:
        scene: its name.
        method: its name.
        cameras: "given" or "guessed".
        is_adjusted: keypoints were moved.
        images: of the scene.
        registered: of them.
        points: in space.
        track_length: images a point.
        reprojection_error: pixels.
        centre_mean: mm, over registered images.
        centre_median: mm.
        centre_max: mm.
        direction_mean: degrees.
    """

    scene: str
    method: str
    cameras: str
    is_adjusted: bool
    images: int
    registered: int
    points: int
    track_length: float
    reprojection_error: float
    centre_mean: float
    centre_median: float
    centre_max: float
    direction_mean: float


@dataclass(frozen=True)
class CameraErrors:
    """How far the camera centres of a variant on a scene are from the truth.

    Attributes:
        scene: its name.
        method: its name.
        cameras: "given" or "guessed".
        is_adjusted: keypoints were moved.
        images: numbers of the registered ones; none where too few are to be compared with the truth.
        errors: mm, of each of them.
    """

    scene: str
    method: str
    cameras: str
    is_adjusted: bool
    images: tuple[int, ...]
    errors: tuple[float, ...]


@dataclass(frozen=True)
class _Measured:
    """What a report is made of."""

    methods: tuple[MethodInfo, ...]
    figures: tuple[ReconstructionFigure, ...]
    errors: tuple[CameraErrors, ...]


def load_reconstruction_methods(
    names: Sequence[str] | None, files: MethodFiles
) -> tuple[list[ReconstructionMethod], dict[str, str]]:
    """Methods by name, and why others cannot run; None takes all geometric weights and COLMAP's SIFT.

    Raises:
        ConfigError: a name is unknown.
    """
    if names is None:
        names = [*(info.name for info in list_weights() if info.task != "semantic"), COLMAP_SIFT]
    legal = (*list_features(), COLMAP_SIFT)
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        check_folder_name(name, (*legal, *(path.stem for path in files.weights)))
    found: list[ReconstructionMethod] = []
    skipped: dict[str, str] = {}
    for name in map(str, list_wanted(chosen, files.weights, legal)):
        if name == COLMAP_SIFT:
            key = {"colmap-sift": str(load_pycolmap().COLMAP_version)}
            found.append(ReconstructionMethod(name, _SIFT_TITLE, key))
            continue
        try:
            loaded = load_folder_method(name, files)
        except ConfigError as error:
            if "cannot run here" not in str(error):
                raise
            skipped[name] = str(error)
            continue
        found.append(ReconstructionMethod(loaded.method.name, loaded.title, dict(loaded.method.key), loaded))
    if not found:
        reasons = "; ".join(skipped.values()) or "none was asked for"
        raise DataError(f"no method can be measured: {reasons}")
    refuse_repeated([method.name for method in found])
    return found, skipped


def score_models(
    scenes: Sequence[Scene],
    variants: Sequence[Variant],
    models: Mapping[tuple[int, int], SceneModel],
) -> list[ReconstructionFigure]:
    """The figures of all variants on all scenes."""
    return [
        score_model(scene, variant, models[number, place])
        for place, scene in enumerate(scenes)
        for number, variant in enumerate(variants)
    ]


def score_model(scene: Scene, variant: Variant, model: SceneModel) -> ReconstructionFigure:
    """The figures of a model; errors are not numbers where fewer than three cameras are found."""
    rows = model.is_registered
    truth = scene.centres[rows]
    errors = 1000 * centre_errors(model.centres[rows], truth)
    turns = direction_errors(model.centres[rows], truth, model.rotations[rows], scene.rotations[rows])
    is_scored = len(errors) > 0 and bool(np.isfinite(errors).all())
    nothing = float("nan")
    return ReconstructionFigure(
        scene=scene.name,
        method=variant.method.name,
        cameras="given" if variant.are_cameras_known else "guessed",
        is_adjusted=variant.is_adjusted,
        images=len(scene.images),
        registered=int(rows.sum()),
        points=model.points,
        track_length=model.track_length,
        reprojection_error=model.reprojection_error,
        centre_mean=float(errors.mean()) if is_scored else nothing,
        centre_median=float(np.median(errors)) if is_scored else nothing,
        centre_max=float(errors.max()) if is_scored else nothing,
        direction_mean=float(turns.mean()) if is_scored else nothing,
    )


def list_errors(
    scenes: Sequence[Scene],
    variants: Sequence[Variant],
    models: Mapping[tuple[int, int], SceneModel],
) -> list[CameraErrors]:
    """The errors of each camera of all variants on all scenes."""
    return [
        _list_errors(scene, variant, models[number, place])
        for place, scene in enumerate(scenes)
        for number, variant in enumerate(variants)
    ]


def _list_errors(scene: Scene, variant: Variant, model: SceneModel) -> CameraErrors:
    rows = np.flatnonzero(model.is_registered)
    if fit_similarity(model.centres[rows], scene.centres[rows]) is None:
        rows = rows[:0]
    return CameraErrors(
        scene=scene.name,
        method=variant.method.name,
        cameras="given" if variant.are_cameras_known else "guessed",
        is_adjusted=variant.is_adjusted,
        images=tuple(rows.tolist()),
        errors=tuple((1000 * centre_errors(model.centres[rows], scene.centres[rows])).tolist()),
    )


def run_reconstruction(
    folder: Path,
    methods: Sequence[ReconstructionMethod],
    skipped: Mapping[str, str],
    settings: RunSettings,
    progress: Progress | None = None,
    earlier: Earlier | None = None,
) -> Report:
    """Makes models with each method and measures their cameras.

    Args:
        folder: of Strecha's scenes, or of one.
        methods: of `load_reconstruction_methods`.
        skipped: reasons by name.
        settings: the user's choices; refinement is the adjustment of keypoints here.
        progress: called after each model.
        earlier: a report whose other methods are taken over.

    Raises:
        DataError: the folder is not that data set, nothing could be reconstructed, or the earlier report is
            of another run.
    """
    scenes = list_scenes(folder)[: settings.limit]
    then = None if earlier is None else _read_earlier(earlier, scenes, settings)
    variants = choose_variants(methods, settings.refinements)
    try:
        settings.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {settings.cache}: {error.strerror or error}") from error
    models = make_models(scenes, variants, settings.cache, settings.seed, settings.device, progress)
    figures = score_models(scenes, variants, models)
    if not any(figure.registered for figure in figures):
        raise DataError(f"{folder}: no method registered an image; nothing to measure")
    measured = _Measured(tuple(methods), tuple(figures), tuple(list_errors(scenes, variants, models)))
    if earlier is not None and then is not None:
        measured = _merge(measured, earlier, then)
    return _build_report(scenes, measured, skipped, settings)


def _read_earlier(earlier: Earlier, scenes: Sequence[Scene], settings: RunSettings) -> _Measured:
    """What an earlier report holds; raises `DataError` where it is of another run."""
    earlier.require(
        scenes=[scene.name for scene in scenes], cameras_sha256=_digest_truth(scenes), seed=settings.seed
    )
    figures = earlier.read_rows(ReconstructionFigure, earlier.get("figures"), "figures")
    then, now = {figure.is_adjusted for figure in figures}, set(settings.refinements)
    earlier.compare("what was measured", _say_adjustments(then), _say_adjustments(now))
    errors = earlier.read_rows(CameraErrors, earlier.get("camera_errors"), "camera_errors")
    for number, row in enumerate(errors):
        if len(row.images) != len(row.errors):
            raise earlier.refuse(f"camera_errors[{number}] must have as many 'errors' as 'images'")
    return _Measured(tuple(earlier.methods.values()), figures, errors)


def _say_adjustments(are_adjusted: set[bool]) -> str:
    return " and ".join("adjusted" if one else "as matched" for one in sorted(are_adjusted))


def _digest_truth(scenes: Sequence[Scene]) -> str:
    """Of the names of images and of their true cameras."""
    digest = hashlib.sha256()
    for scene in scenes:
        digest.update("\n".join((scene.name, *scene.images)).encode())
        for values in (scene.K, scene.rotations, scene.centres):
            digest.update(np.ascontiguousarray(values, np.float64).tobytes())
    return digest.hexdigest()


def _merge(now: _Measured, earlier: Earlier, then: _Measured) -> _Measured:
    """Both runs, in the order of a whole one: scenes and kinds of cameras first, then methods."""

    def place(row: ReconstructionFigure | CameraErrors) -> tuple[object, ...]:
        return (row.scene, f"cameras {row.cameras}", _say_adjustments({row.is_adjusted}))

    def place_figure(figure: ReconstructionFigure) -> tuple[object, ...]:
        return (*place(figure), f"{figure.images} images")

    kinds = list(dict.fromkeys((figure.scene, figure.cameras) for figure in now.figures))
    figures = earlier.merge(then.figures, now.figures, place_figure, "a figure")
    names = dict.fromkeys(figure.method for figure in then.figures)
    errors = earlier.merge(then.errors, now.errors, place, "the errors of cameras", names)
    return _Measured(
        earlier.merge_methods(now.methods, dict.fromkeys(figure.method for figure in figures)),
        tuple(sorted(figures, key=lambda row: kinds.index((row.scene, row.cameras)))),
        tuple(sorted(errors, key=lambda row: kinds.index((row.scene, row.cameras)))),
    )


def _build_report(
    scenes: Sequence[Scene], measured: _Measured, skipped: Mapping[str, str], settings: RunSettings
) -> Report:
    return Report(
        name="reconstruction",
        title=TITLE,
        command=settings.command,
        tables=tuple(
            _tabulate(measured.figures, scene, cameras)
            for scene in scenes
            for cameras in ("given", "guessed")
        ),
        protocol=tuple(_describe_protocol(scenes, settings)),
        methods=measured.methods,
        skipped=skipped,
        rows=tuple(asdict(figure) for figure in measured.figures),
        values={
            "scenes": [scene.name for scene in scenes],
            "seed": settings.seed,
            "cameras_sha256": _digest_truth(scenes),
            "camera_errors": [asdict(row) for row in measured.errors],
        },
        plots=(_draw(measured.errors),),
        versions=find_versions(),
        device=name_device(settings.device),
    )


def _describe_protocol(scenes: Sequence[Scene], settings: RunSettings) -> list[str]:
    extract, mapping = ExtractSettings(), MappingSettings()
    images = ", ".join(f"{scene.name} ({len(scene.images)} images)" for scene in scenes)
    return [
        f"data: {images}; longest side at most {extract.max_side} px",
        f"keypoints: the {extract.max_keypoints:,} strongest corners of an image (Shi and Tomasi), at least "
        f"{SPACING:g} px apart, placed between pixels; DISK has its own",
        "matches: mutual nearest neighbours of all pairs of images",
        f"adjusted: keypoints are moved, {ALIGNMENTS} times by at most {MAX_SHIFT:g} px, to where the pixels "
        f"of all their verified matches agree best; matches that then miss by over {MAX_MISS:g} px are "
        f"dropped, and so are observations that miss a point in space by over {STRICT_PIXELS:g} px instead "
        "of COLMAP's 4. `ucn reconstruct` does so unless told otherwise",
        f"stricter: COLMAP's SIFT with that limit of {STRICT_PIXELS:g} px",
        f"verification and mapping: COLMAP's, threshold {mapping.max_error:g} px, seed {settings.seed}, one "
        "thread, otherwise pycolmap's defaults, the same for all methods",
        "cameras given: the true matrix, held; cameras guessed: one SIMPLE_RADIAL camera of all images, from "
        "EXIF or 1.2 times the longer side, refined",
        "centre errors: distances of camera centres from the truth, in mm, after the similarity (scale, "
        "turn, shift) that fits all registered ones best (Umeyama 1991)",
        "directions: degrees by which cameras are turned away from the truth, after the same similarity",
    ]


def _tabulate(figures: Sequence[ReconstructionFigure], scene: Scene, cameras: str) -> Table:
    rows = [
        (
            name_variant(figure.method, figure.is_adjusted),
            f"{figure.registered} of {figure.images}",
            f"{figure.points:,}",
            say_number(figure.track_length, 2),
            say_number(figure.reprojection_error, 3),
            f"{say_number(figure.centre_mean, 2)} / {say_number(figure.centre_median, 2)}",
            say_number(figure.centre_max, 2),
            say_number(figure.direction_mean, 4),
        )
        for figure in figures
        if (figure.scene, figure.cameras) == (scene.name, cameras)
    ]
    header = (
        "method",
        "registered",
        "points",
        "track length",
        "reprojection, px",
        "centre error, mm: mean / median",
        "max",
        "direction, °",
    )
    return Table(f"{scene.name}, cameras {cameras}", header, tuple(rows))


def _draw(errors: Sequence[CameraErrors]) -> Plot:
    """Error of each camera, a panel a scene and kind of cameras."""
    kinds = list(dict.fromkeys((row.scene, row.cameras) for row in errors))
    canvas, panels = lay_out(len(kinds), (3.3, 4.4))
    for panel, (scene, cameras) in zip(panels, kinds, strict=True):
        shown = [row for row in errors if (row.scene, row.cameras) == (scene, cameras)]
        for number, row in enumerate(shown):
            label = name_variant(row.method, row.is_adjusted)
            style = choose_style(number)
            if row.images:
                panel.plot(row.images, row.errors, label=label, marker="o", markersize=3, **style)
        panel.set_title(f"{scene}, cameras {cameras}", fontsize=10)
        panel.set_xlabel("image")
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("distance of the camera's centre from the truth, mm")
    add_legend(canvas, panels)
    return save_plot(canvas, "error of each camera centre after the best similarity")
