"""Stage 1 of the benchmark `reconstruction`: models of scenes whose cameras are known, kept on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.headers import read_header_hw
from ucn.data.sets.layout import find_root
from ucn.data.sets.posed.strecha import INFO, read_camera
from ucn.errors import DataError
from ucn.evaluate.core.cache import Record, RecordStore, digest_key
from ucn.evaluate.core.methods import MethodInfo
from ucn.evaluate.reconstruction.methods import FolderMethod
from ucn.folders.extraction import LocalEngine
from ucn.folders.image_features import OWN, ExtractSettings
from ucn.folders.images import digest_images, list_images
from ucn.folders.keypoint_adjustment import ALIGNMENTS, MAX_MISS, MAX_SHIFT
from ucn.folders.reconstruction import STRICT_PIXELS, ReconstructSettings, be_strict, reconstruct_folder
from ucn.formats.colmap import CameraSettings, MappingSettings, Model, load_pycolmap, quiet
from ucn.formats.colmap_sift import make_sift_model

Values = NDArray[np.float64]
COLMAP_SIFT = "colmap-sift"
"""The method that is COLMAP's own, from keypoints to matches."""


@dataclass(frozen=True)
class Scene:
    """Images with their true cameras.

    Attributes:
        name: of the scene.
        folder: of the images.
        images: their names, sorted.
        K: (3, 3) of all of them, for the size that they have.
        rotations: (C, 3, 3) from the world to each camera.
        centres: (C, 3).
    """

    name: str
    folder: Path
    images: tuple[str, ...]
    K: Values
    rotations: Values
    centres: Values


@dataclass(frozen=True, eq=False)
class ReconstructionMethod(MethodInfo):
    """What is measured.

    Attributes:
        folder_method: how images are described; None for COLMAP's own.
    """

    folder_method: FolderMethod | None = None


@dataclass(frozen=True)
class Variant:
    """A row of a table.

    Attributes:
        method: what describes and matches.
        are_cameras_known: their intrinsics are given and held.
        is_adjusted: keypoints are moved to where pixels agree, and points in space are held to a stricter
            limit; of COLMAP's own method the limit alone.
    """

    method: ReconstructionMethod
    are_cameras_known: bool
    is_adjusted: bool

    @property
    def label(self) -> str:
        """Of a row."""
        return name_variant(self.method.name, self.is_adjusted)


def name_variant(method: str, is_adjusted: bool) -> str:
    """The label of a row."""
    if not is_adjusted:
        return method
    return f"{method}, stricter" if method == COLMAP_SIFT else f"{method}, adjusted"


@dataclass(frozen=True)
class SceneModel:
    """What a variant made of a scene.

    Attributes:
        is_registered: (C,) bool.
        centres: (C, 3); NaN where not registered.
        rotations: (C, 3, 3) from the model to each camera; NaN where not registered.
        points: in space.
        track_length: images that see a point.
        reprojection_error: pixels.
    """

    is_registered: NDArray[np.bool_]
    centres: Values
    rotations: Values
    points: int
    track_length: float
    reprojection_error: float


def list_scenes(folder: Path) -> list[Scene]:
    """The scenes of a folder in Strecha's layout.

    Raises:
        DataError: it is another data set, or cameras are missing, damaged or of several kinds.
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    parents = [root] if (root / "gt_dense_cameras").is_dir() else sorted(root.glob("*/gt_dense_cameras"))
    return [_read_scene(path if path == root else path.parent) for path in parents]


def _read_scene(folder: Path) -> Scene:
    images = list_images(folder / "images")
    views = []
    for name in images:
        stem = Path(name).stem
        found = sorted((folder / "gt_dense_cameras").glob(f"{stem}.*camera"))
        if not found:
            raise DataError(f"{folder}: image {name} has no camera in gt_dense_cameras; get the whole scene")
        views.append(read_camera(found[0]))
    sizes = [read_header_hw(folder / "images" / name) for name in images]
    matrices = [view.matrix(hw) for view, hw in zip(views, sizes, strict=True) if hw is not None]
    if len(matrices) < len(images) or not np.allclose(matrices, matrices[0], atol=1e-6):
        raise DataError(f"{folder}: expected images of one size and one camera; get the whole scene again")
    motions = np.stack([view.T_world_to_camera for view in views])
    rotations, shifts = motions[:, :3, :3], motions[:, :3, 3]
    centres = -np.einsum("cji,cj->ci", rotations, shifts)
    return Scene(folder.name, folder / "images", images, matrices[0], rotations, centres)


def choose_variants(methods: Sequence[ReconstructionMethod], adjustments: Sequence[bool]) -> list[Variant]:
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
    progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[int, int], SceneModel]:
    """Models of all scenes by numbers of variant and scene; those of an earlier run are read.

    Args:
        scenes: of `list_scenes`.
        variants: of `choose_variants`.
        cache: folder of predictions.
        seed: of COLMAP.
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
            store = RecordStore(cache, f"reconstruction-{variant.method.name}", _key(variant, scene, seed))
            if 0 not in store:
                store.put(0, _to_record(_make(scene, variant, cache, seed, device)))
                store.flush()
            found[number, place] = _from_record(store.get(0))
            if progress is not None:
                progress(len(found), total)
    return found


def build_settings(variant: Variant, K: Values, seed: int) -> ReconstructSettings:
    """How a model is made: by default as `ucn reconstruct` makes it."""
    # All methods see images at the same size, and the same corners unless they have keypoints of their own.
    extract = ExtractSettings(detector=OWN) if variant.method.name == "disk" else ExtractSettings()
    return ReconstructSettings(
        extract=extract,
        cameras=CameraSettings(intrinsics=K if variant.are_cameras_known else None),
        mapping=MappingSettings(seed=seed),
        use_adjustment=variant.is_adjusted,
    )


def _key(variant: Variant, scene: Scene, seed: int) -> dict[str, Any]:
    settings = build_settings(variant, scene.K, seed)
    return {
        "method": variant.method.key,
        "extract": asdict(settings.extract),
        "adjusted": [ALIGNMENTS, MAX_SHIFT, MAX_MISS, STRICT_PIXELS] if variant.is_adjusted else None,
        "K": scene.K.round(9).tolist() if variant.are_cameras_known else None,
        "images": digest_images(scene.folder, scene.images),
        "colmap": str(load_pycolmap().COLMAP_version),
        "seed": seed,
    }


def _make(scene: Scene, variant: Variant, cache: Path, seed: int, device: str) -> SceneModel:
    settings = build_settings(variant, scene.K, seed)
    method = variant.method.folder_method
    try:
        with tempfile.TemporaryDirectory(dir=cache) as folder, quiet():
            if method is None:
                mapping = be_strict(settings.mapping) if variant.is_adjusted else settings.mapping
                sizes = (settings.cameras, mapping)
                return _to_scene_model(
                    make_sift_model(Path(folder), scene.folder, scene.images, *sizes), scene
                )
        # Features and matches lie in the cache, so that the variants of a method share them.
        work = cache / f"models-{variant.method.name}-{digest_key(_work_key(variant, scene, settings))}"
        work.mkdir(exist_ok=True)
        engine = LocalEngine(device)
        made = reconstruct_folder(scene.folder, work, method.method, settings, engine=engine, overwrite=True)
        return _to_scene_model(made.model, scene)
    except DataError:  # no model: no camera is found
        count = len(scene.images)
        nothing = np.full((count, 3, 3), np.nan)
        return SceneModel(np.zeros(count, np.bool_), nothing[:, 0], nothing, 0, np.nan, np.nan)


def _work_key(variant: Variant, scene: Scene, settings: ReconstructSettings) -> dict[str, Any]:
    images = digest_images(scene.folder, scene.images)
    return {"method": variant.method.key, "extract": asdict(settings.extract), "images": images}


def _to_scene_model(model: Model, scene: Scene) -> SceneModel:
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
    )
