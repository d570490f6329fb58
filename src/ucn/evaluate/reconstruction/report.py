"""The benchmark `reconstruction` from data to report: registered cameras and their errors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ucn.errors import DataError
from ucn.evaluate.core.plots import add_legend, choose_style, lay_out, save_plot
from ucn.evaluate.core.predictions import Progress, RunSettings, count_part
from ucn.evaluate.core.report import Plot, Report, Table, describe_run, format_number, hash_protocol
from ucn.evaluate.reconstruction.predictions import (
    PRINCIPAL_POINT_RULE,
    Scene,
    choose_variants,
    label_variant,
    list_scenes,
    make_models,
)
from ucn.evaluate.reconstruction.scoring import (
    CameraErrors,
    ReconstructionScore,
    average_scores,
    list_camera_errors,
    score_model,
)
from ucn.features.lightglue import LIGHTGLUE, find_lightglue
from ucn.features.method import MethodFiles, MethodInfo, UnavailableError
from ucn.features.names import COLMAP_SIFT
from ucn.features.registry import order_methods, require_unique
from ucn.files.reading import explain_failure
from ucn.folders.detectors import MIN_DISTANCE
from ucn.folders.keypoint_adjustment import ADJUSTMENT_ROUNDS, MAX_RESIDUAL, MAX_SHIFT
from ucn.folders.reconstruction import STRICT_ERROR, ReconstructSettings
from ucn.folders.worker import ExtractSettings
from ucn.formats.colmap import MappingSettings, load_pycolmap
from ucn.paper.registry import METHODS
from ucn.weights import list_weights

TITLE = "sparse reconstructions of Strecha's scenes, camera centres against laser-scanned ground truth"

_SIFT_TITLE = (
    "COLMAP's own SIFT (first octave −1, ratio 0.8, cross check), all pairs, with pycolmap's defaults but "
    "for the number of keypoints"
)


def load_reconstruction_methods(
    names: Sequence[str] | None, files: MethodFiles
) -> tuple[list[MethodInfo], dict[str, str]]:
    """Methods by name, and why others cannot run; None takes all geometric weights and COLMAP's SIFT.

    Raises:
        ConfigError: a name is unknown.
    """
    if names is None:
        names = [*(info.name for info in list_weights() if info.task != "semantic"), COLMAP_SIFT]
    legal = (*METHODS.list_features(), *LIGHTGLUE, COLMAP_SIFT)
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        others = (*LIGHTGLUE, COLMAP_SIFT, *(path.stem for path in files.weights))
        METHODS.check_name(name, needs_features=True, others=others)
    found: list[MethodInfo] = []
    skipped: dict[str, str] = {}
    for name in map(str, order_methods(chosen, files.weights, legal)):
        if name == COLMAP_SIFT:
            key = {"colmap-sift": str(load_pycolmap().COLMAP_version)}
            found.append(MethodInfo(name, _SIFT_TITLE, key))
            continue
        try:
            is_sparse = name in LIGHTGLUE
            found.append(
                find_lightglue(name, ExtractSettings().max_keypoints)
                if is_sparse
                else METHODS.find_features(name, files)
            )
        except UnavailableError as error:
            skipped[name] = str(error)
    if not found:
        reasons = "; ".join(skipped.values()) or "none was given"
        raise DataError(f"no method can be evaluated: {reasons}")
    require_unique([method.name for method in found])
    return found, skipped


def run_reconstruction(
    folder: Path,
    methods: Sequence[MethodInfo],
    skipped: Mapping[str, str],
    settings: RunSettings,
    progress: Progress | None = None,
) -> Report:
    """Reconstructs scenes with each method and scores the cameras.

    Args:
        folder: of Strecha's scenes, or of one.
        methods: of `load_reconstruction_methods`.
        skipped: reasons by name.
        settings: of the run; refinement is the adjustment of keypoints here.
        progress: called after each model.

    Raises:
        DataError: the folder is not that data set, nothing could be reconstructed, or the page to update is
            of other data or another protocol.
    """
    scenes = list_scenes(folder)[: settings.limit]
    identity = {
        "scenes": [scene.name for scene in scenes],
        "seed": settings.seed,
        "seeds": settings.seeds,
        "refinements": list(settings.refinements),
        "cameras_sha256": _digest_cameras(scenes),
        "protocol_sha256": hash_protocol(
            adjustment=(ADJUSTMENT_ROUNDS, MAX_SHIFT, MAX_RESIDUAL, STRICT_ERROR),
            extract=ExtractSettings().to_key(),
            consensus=ReconstructSettings().consensus,
            mapping=asdict(MappingSettings(seed=settings.seed)),
            principal_point=PRINCIPAL_POINT_RULE,
            refinements=settings.refinements,
        ),
    }
    page = settings.page
    if page is not None:
        page.check(**identity)
    try:
        settings.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {settings.cache}: {explain_failure(error)}") from error
    variants = choose_variants(methods, settings.refinements)
    models = [
        make_models(
            scenes,
            variants,
            settings.cache,
            seed,
            settings.device,
            count_part(progress, part, settings.seeds),
        )
        for part, seed in enumerate(range(settings.seed, settings.seed + settings.seeds))
    ]
    made = [
        (scene, variant, [found[number, place] for found in models])
        for place, scene in enumerate(scenes)
        for number, variant in enumerate(variants)
    ]
    scores: Sequence[ReconstructionScore] = [
        average_scores([score_model(scene, variant, model) for model in found])
        for scene, variant, found in made
    ]
    errors: Sequence[CameraErrors] = [
        list_camera_errors(scene, variant, found[0]) for scene, variant, found in made
    ]
    if not any(score.registered for score in scores):
        raise DataError(f"{folder}: no method registered an image; nothing to evaluate")
    if page is not None:
        scores = page.merge(scores, page.values["figures"], "figures")
        names = {score.method for score in scores}
        errors = page.merge(errors, page.values.get("camera_errors"), "camera_errors", names)
        methods = page.merge_methods(methods, scores)
    # Scenes and cameras first, then methods, also where rows of a page were added.
    kinds = [(scene.name, cameras) for scene in scenes for cameras in ("given", "guessed")]
    scores = sorted(scores, key=lambda row: kinds.index((row.scene, row.cameras)))
    errors = sorted(errors, key=lambda row: kinds.index((row.scene, row.cameras)))
    return Report(
        name="reconstruction",
        title=TITLE,
        tables=tuple(_tabulate(scores, *kind) for kind in kinds),
        protocol=tuple(_describe_protocol(scenes, settings)),
        methods=tuple(methods),
        skipped=skipped,
        rows=tuple(asdict(score) for score in scores),
        values={**identity, "camera_errors": [asdict(row) for row in errors]},
        plots=(_plot(errors),),
        **describe_run(settings),
    )


def _digest_cameras(scenes: Sequence[Scene]) -> str:
    """A hash of the names of images and of their true cameras."""
    digest = hashlib.sha256()
    for scene in scenes:
        digest.update("\n".join((scene.name, *scene.images)).encode())
        for values in (scene.K, scene.rotations, scene.centres):
            digest.update(np.ascontiguousarray(values, np.float64).tobytes())
    return digest.hexdigest()


def _describe_protocol(scenes: Sequence[Scene], settings: RunSettings) -> list[str]:
    extract, mapping = ExtractSettings(), MappingSettings()
    first, last = settings.seed, settings.seed + settings.seeds - 1
    seeds = f"seed {first}" if first == last else f"means over seeds {first} to {last}"
    images = ", ".join(f"{scene.name} ({len(scene.images)} images)" for scene in scenes)
    return [
        f"data: {images}; longest side at most {extract.max_side} px",
        f"keypoints: the {extract.max_keypoints:,} strongest corners of an image (Shi and Tomasi), at least "
        f"{MIN_DISTANCE:g} px apart, at sub-pixel positions; DISK, LightGlue's methods and COLMAP's SIFT "
        "have their own, as many at most",
        "matches: mutual nearest neighbours of all pairs of images, guided by neighbourhood consensus; "
        "LightGlue matches by itself",
        f"adjusted: keypoints are refined photometrically over all their verified matches, "
        f"{ADJUSTMENT_ROUNDS} times by at most {MAX_SHIFT:g} px; matches with a residual over "
        f"{MAX_RESIDUAL:g} px are dropped, and so are observations with a reprojection error over "
        f"{STRICT_ERROR:g} px instead of COLMAP's 4. `ucn reconstruct` does so by default",
        f"stricter: COLMAP's SIFT with that limit of {STRICT_ERROR:g} px",
        f"verification and mapping: COLMAP's, threshold {mapping.max_error:g} px, {seeds}, one thread, "
        "otherwise pycolmap's defaults, the same for all methods",
        "given intrinsics: the true ones, fixed; guessed intrinsics: one SIMPLE_RADIAL camera of all images, "
        "from EXIF or 1.2 times the longer side, refined; its principal point is refined after mapping where "
        "a jackknife over images shows that they determine it, for every method, as `ucn reconstruct` does",
        "centre errors: distances of camera centres from the ground truth, in mm, after the similarity "
        "(scale, rotation, translation) that fits all registered ones best (Umeyama 1991)",
        "directions: rotation errors of cameras in degrees, after the same similarity",
    ]


def _tabulate(scores: Sequence[ReconstructionScore], scene: str, cameras: str) -> Table:
    rows = [
        (
            label_variant(score.method, score.is_adjusted),
            f"{score.registered} of {score.images}",
            f"{score.points:,}",
            format_number(score.track_length, 2),
            format_number(score.reprojection_error, 3),
            f"{format_number(score.centre_mean, 2)} / {format_number(score.centre_median, 2)}",
            _format_range(score),
            format_number(score.centre_max, 2),
            format_number(score.direction_mean, 4),
            f"{score.refined} of {score.seeds}",
        )
        for score in scores
        if (score.scene, score.cameras) == (scene, cameras)
    ]
    header = (
        "method",
        "registered",
        "points",
        "track length",
        "reprojection, px",
        "centre error, mm: mean / median",
        "range of means",
        "max",
        "direction, °",
        "principal point refined",
    )
    return Table(f"{scene}, {cameras} intrinsics", header, tuple(rows))


def _format_range(score: ReconstructionScore) -> str:
    low, high = (format_number(value, 2) for value in score.centre_range)
    return "–" if score.seeds == 1 else f"{low}–{high}"


def _plot(errors: Sequence[CameraErrors]) -> Plot:
    """Error of each camera, one panel a scene and kind of cameras."""
    kinds = list(dict.fromkeys((row.scene, row.cameras) for row in errors))
    figure, panels = lay_out(len(kinds), (3.3, 4.4))
    for panel, (scene, cameras) in zip(panels, kinds, strict=True):
        shown = [row for row in errors if (row.scene, row.cameras) == (scene, cameras)]
        for number, row in enumerate(shown):
            label = label_variant(row.method, row.is_adjusted)
            style = choose_style(number)
            if row.images:
                panel.plot(row.images, row.errors, label=label, marker="o", markersize=3, **style)
        panel.set_title(f"{scene}, {cameras} intrinsics", fontsize=10)
        panel.set_xlabel("image")
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("error of the camera centre, mm")
    add_legend(figure, panels)
    return save_plot(figure, "error of each camera centre after the best similarity")
