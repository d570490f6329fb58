"""Stage 1 of `reconstruction`: sparse reconstructions of scenes with known cameras, kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.descriptions import STRECHA
from ucn.data.io import read_header_hw
from ucn.data.sets.layout import find_root
from ucn.data.sets.posed.strecha import read_camera_file
from ucn.errors import DataError
from ucn.evaluate.core.cache import PredictionCache, Record, digest_key
from ucn.evaluate.core.predictions import Progress
from ucn.features.method import MethodInfo
from ucn.features.names import COLMAP_SIFT
from ucn.files.scratch import scratch_folder
from ucn.folders.extraction import LocalExecutor, digest_images, list_image_names
from ucn.folders.keypoint_adjustment import ADJUSTMENT_ROUNDS, MAX_RESIDUAL, MAX_SHIFT
from ucn.folders.reconstruction import (
    STRICT_ERROR,
    ReconstructSettings,
    reconstruct_folder,
    use_strict_limits,
)
from ucn.folders.worker import OWN_DETECTOR, ExtractSettings
from ucn.formats.colmap import CameraSettings, MappingSettings, SparseModel, load_pycolmap, quiet
from ucn.formats.colmap_sift import make_sift_model
from ucn.formats.principal_point import DOUBLING_SHARE, MIN_FALL, MIN_IMAGES, MIN_RATIO
from ucn.matching.views import MAX_SCALE

Values = NDArray[np.float64]
PRINCIPAL_POINT_RULE = (MappingSettings().principal_point, MIN_IMAGES, MIN_RATIO, MIN_FALL, DOUBLING_SHARE)
"""When the principal points of guessed cameras are refined."""


@dataclass(frozen=True)
class Scene:
    """Images with their true cameras.

    Attributes:
        name: of the scene.
        folder: of the images.
        images: their names, sorted.
        K: (3, 3) intrinsics of all of them, at their size.
        rotations: (C, 3, 3) from the world to each camera.
        centres: (C, 3).
    """

    name: str
    folder: Path
    images: tuple[str, ...]
    K: Values
    rotations: Values
    centres: Values


@dataclass(frozen=True)
class Variant:
    """A row of a table.

    Attributes:
        method: extracts and matches features.
        are_cameras_known: whether the true intrinsics are given and kept.
        is_adjusted: whether keypoints are adjusted photometrically and 3D points have a stricter limit of
            the reprojection error; of COLMAP's own method only the limit.
    """

    method: MethodInfo
    are_cameras_known: bool
    is_adjusted: bool

    @property
    def cameras(self) -> str:
        """Where intrinsics come from."""
        return "given" if self.are_cameras_known else "guessed"

    @property
    def label(self) -> str:
        """Its row in tables."""
        return label_variant(self.method.name, self.is_adjusted)


def label_variant(method: str, is_adjusted: bool) -> str:
    """The label of a row."""
    if not is_adjusted:
        return method
    return f"{method}, stricter" if method == COLMAP_SIFT else f"{method}, adjusted"


@dataclass(frozen=True)
class SceneModel:
    """The sparse reconstruction of a scene by a variant.

    Attributes:
        is_registered: (C,) bool.
        centres: (C, 3); NaN where not registered.
        rotations: (C, 3, 3) from the model to each camera; NaN where not registered.
        points: number of 3D points.
        track_length: mean number of images of a point.
        reprojection_error: pixels.
        is_refined: whether a principal point is.
    """

    is_registered: NDArray[np.bool_]
    centres: Values
    rotations: Values
    points: int
    track_length: float
    reprojection_error: float
    is_refined: bool = False


def list_scenes(folder: Path) -> list[Scene]:
    """The scenes of a folder in Strecha's layout.

    Raises:
        DataError: it is another data set, or cameras are missing, damaged or of several kinds.
    """
    root = find_root(folder, STRECHA.markers, STRECHA.inside)
    parents = [root] if (root / "gt_dense_cameras").is_dir() else sorted(root.glob("*/gt_dense_cameras"))
    return [_read_scene(path if path == root else path.parent) for path in parents]


def _read_scene(folder: Path) -> Scene:
    images = list_image_names(folder / "images")
    views = []
    for name in images:
        stem = Path(name).stem
        found = sorted((folder / "gt_dense_cameras").glob(f"{stem}.*camera"))
        if not found:
            raise DataError(f"{folder}: image {name} has no camera in gt_dense_cameras; get the whole scene")
        views.append(read_camera_file(found[0]))
    sizes = [read_header_hw(folder / "images" / name) for name in images]
    matrices = [view.matrix(hw) for view, hw in zip(views, sizes, strict=True) if hw is not None]
    if len(matrices) < len(images) or not np.allclose(matrices, matrices[0], atol=1e-6):
        raise DataError(f"{folder}: expected images of one size and one camera; get the whole scene again")
    motions = np.stack([view.T_world_to_camera for view in views])
    rotations, shifts = motions[:, :3, :3], motions[:, :3, 3]
    centres = -np.einsum("cji,cj->ci", rotations, shifts)
    return Scene(folder.name, folder / "images", images, matrices[0], rotations, centres)


def choose_variants(methods: Sequence[MethodInfo], adjustments: Sequence[bool]) -> list[Variant]:
    """Every method with given and with guessed cameras."""
    return [
        Variant(method, are_known, is_adjusted)
        for are_known in (True, False)
        for method in methods
        for is_adjusted in sorted(adjustments)
    ]


def make_models(
    scenes: Sequence[Scene],
    variants: Sequence[Variant],
    cache: Path,
    seed: int,
    device: str,
    progress: Progress | None = None,
) -> dict[tuple[int, int], SceneModel]:
    """Models of all scenes by numbers of variant and scene; those in the cache are read.

    Args:
        scenes: of `list_scenes`.
        variants: of `choose_variants`.
        cache: folder of predictions.
        seed: random seed of COLMAP.
        device: where networks run.
        progress: called with (models done, all models).

    Raises:
        ConfigError: pycolmap is not installed.
    """
    load_pycolmap()
    found: dict[tuple[int, int], SceneModel] = {}
    total = len(variants) * len(scenes)
    for number, variant in enumerate(variants):
        for place, scene in enumerate(scenes):
            name = f"reconstruction-{variant.method.name}"
            own = PredictionCache(cache, name, _key(variant, scene, seed))
            if 0 not in own:
                own.put(0, _to_record(_make(scene, variant, cache, seed, device)))
                own.flush()
            found[number, place] = _from_record(own.get(0))
            if progress is not None:
                progress(len(found), total)
    return found


def build_settings(variant: Variant, K: Values, seed: int) -> ReconstructSettings:
    """The settings of a reconstruction: by default those of `ucn reconstruct`."""
    # All methods get images of the same size, and the same corners unless they have keypoints of their own.
    has_own = variant.method.has_own_keypoints
    extract = ExtractSettings(detector=OWN_DETECTOR) if has_own else ExtractSettings()
    return ReconstructSettings(
        extract=extract,
        cameras=CameraSettings(intrinsics=K if variant.are_cameras_known else None),
        mapping=MappingSettings(seed=seed),
        use_adjustment=variant.is_adjusted,
    )


def _key(variant: Variant, scene: Scene, seed: int) -> dict[str, Any]:
    settings = build_settings(variant, scene.K, seed)
    adjustment = [ADJUSTMENT_ROUNDS, MAX_SHIFT, MAX_RESIDUAL, STRICT_ERROR, MAX_SCALE]
    return {
        "method": variant.method.key,
        "extract": settings.extract.to_key(),
        "consensus": settings.consensus,
        "adjusted": adjustment if variant.is_adjusted else None,
        "K": scene.K.round(9).tolist() if variant.are_cameras_known else None,
        "principal_point": None if variant.are_cameras_known else PRINCIPAL_POINT_RULE,
        "images": digest_images(scene.folder, scene.images),
        "colmap": str(load_pycolmap().COLMAP_version),
        "seed": seed,
    }


def _make(scene: Scene, variant: Variant, cache: Path, seed: int, device: str) -> SceneModel:
    settings = build_settings(variant, scene.K, seed)
    method = variant.method
    try:
        with scratch_folder(cache / "model") as work, quiet():
            if method.name == COLMAP_SIFT:
                mapping = use_strict_limits(settings.mapping) if variant.is_adjusted else settings.mapping
                model = make_sift_model(
                    work,
                    scene.folder,
                    scene.images,
                    settings.cameras,
                    mapping,
                    settings.extract.max_keypoints,
                )
                return _to_scene_model(model, scene)
        # Features and matches are in the cache, so that the variants of a method share them.
        work = cache / f"models-{variant.method.name}-{digest_key(_work_key(variant, scene, settings))}"
        work.mkdir(exist_ok=True)
        executor = LocalExecutor(device)
        made = reconstruct_folder(scene.folder, work, method, settings, executor=executor, overwrite=True)
        return _to_scene_model(made.model, scene)
    except DataError:  # no model, so no camera is registered
        count = len(scene.images)
        nothing = np.full((count, 3, 3), np.nan)
        return SceneModel(np.zeros(count, np.bool_), nothing[:, 0], nothing, 0, np.nan, np.nan)


def _work_key(variant: Variant, scene: Scene, settings: ReconstructSettings) -> dict[str, Any]:
    images = digest_images(scene.folder, scene.images)
    return {"method": variant.method.key, "extract": settings.extract.to_key(), "images": images}


def _to_scene_model(model: SparseModel, scene: Scene) -> SceneModel:
    is_registered = np.array([name in model.registered for name in scene.images])
    centres, rotations = np.full((len(scene.images), 3), np.nan), np.full((len(scene.images), 3, 3), np.nan)
    for row in np.flatnonzero(is_registered):
        centres[row] = model.centre(scene.images[row])
        rotations[row] = model.rotation(scene.images[row])
    return SceneModel(
        is_registered,
        centres,
        rotations,
        model.points,
        model.track_length,
        model.reprojection_error,
        any(point.is_refined for point in model.principal_points),
    )


def _to_record(model: SceneModel) -> Record:
    return {name: np.asarray(value) for name, value in vars(model).items()}


def _from_record(record: Record) -> SceneModel:
    return SceneModel(
        record["is_registered"].astype(np.bool_),
        record["centres"],
        record["rotations"],
        int(record["points"]),
        float(record["track_length"]),
        float(record["reprojection_error"]),
        bool(record["is_refined"]),
    )
