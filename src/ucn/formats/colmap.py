"""Keypoints and matches to a COLMAP database, and from there a sparse reconstruction, through pycolmap.

COLMAP puts the centre of the top-left pixel at (0.5, 0.5). The half pixel is added to keypoints and principal
points here, and nowhere else in the package. It reads images as stored, without the rotation that EXIF
demands: cameras and keypoints of turned photographs are turned back here, too.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.errors import ConfigError, DataError, OutputError
from ucn.files import check_output, scratch_folder
from ucn.formats.colmap_colours import UNREAD_SUFFIXES, colour_points
from ucn.formats.hloc import turn_keypoints
from ucn.formats.principal_point import (
    PRINCIPAL_POINT,
    PrincipalPoint,
    find_principal_points,
    refine_principal_points,
)
from ucn.geometry.coords import invert_orientation, is_sideways, orient_size, to_corner_origin
from ucn.geometry.pose import orient_intrinsics
from ucn.types import FloatArray

if TYPE_CHECKING:
    import pycolmap

CAMERA_MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
"""Camera models to choose from, by increasing number of parameters."""

_FOCAL_FACTOR = 1.2  # of the longer side: COLMAP's default without EXIF
_MIN_MODEL_IMAGES = 3
_MODEL_FILES = ("cameras", "images", "points3D", "rigs", "frames", "project")
_log = logging.getLogger(__name__)
Rows = NDArray[np.int64]
Values = NDArray[np.float64]
Pairs = Mapping[tuple[int, int], Rows]


@dataclass(frozen=True)
class CameraSettings:
    """What is known of the cameras.

    Attributes:
        model: one of `CAMERA_MODELS`.
        intrinsics: (3, 3) of all images, for pixels with centres at integers; they are then fixed, and the
            model is PINHOLE. Of photographs that EXIF turns by a quarter, they are for the stored or for the
            upright image, whichever their principal point fits. None takes EXIF or a default, and refines
            them.
        is_shared: images stored with one size share a camera; otherwise each has its own.
    """

    model: str = "SIMPLE_RADIAL"
    intrinsics: Values | None = None
    is_shared: bool = True

    def __post_init__(self) -> None:
        """Checks the model."""
        if self.model not in CAMERA_MODELS:
            raise ConfigError(f"no camera model '{self.model[:80]}' (there are {', '.join(CAMERA_MODELS)})")


@dataclass(frozen=True)
class DatabaseImage:
    """An image of a database.

    Attributes:
        name: its path below the folder of images.
        keypoints: (N, 2) pixels of the upright image, with centres at integers.
        image_hw: (H, W), upright.
        orientation: 1 to 8, with which EXIF turns the stored image upright.
    """

    name: str
    keypoints: FloatArray
    image_hw: tuple[int, int]
    orientation: int = 1

    @property
    def stored_hw(self) -> tuple[int, int]:
        """(H, W) of the stored image, which COLMAP reads."""
        return orient_size(self.image_hw, self.orientation)

    def find_colmap_keypoints(self) -> FloatArray:
        """Keypoints (N, 2) of the stored image in COLMAP's convention."""
        return to_colmap(turn_keypoints(self.keypoints, self.image_hw, invert_orientation(self.orientation)))


@dataclass(frozen=True)
class SparseModel:
    """A sparse model with its statistics.

    Attributes:
        reconstruction: of pycolmap.
        registered: names of the registered images, sorted.
        points: number of 3D points.
        observations: number of observations of them.
        track_length: mean number of observations of a point.
        reprojection_error: mean, in pixels.
        models: number of separate models; this is the one with most images.
        principal_points: of each guessed camera, with the reason why it was refined or not.
    """

    reconstruction: pycolmap.Reconstruction
    registered: tuple[str, ...]
    points: int
    observations: int
    track_length: float
    reprojection_error: float
    models: int
    principal_points: tuple[PrincipalPoint, ...] = ()

    def centre(self, name: str) -> Values:
        """The projection centre (3,) of an image."""
        image = self.reconstruction.find_image_with_name(name)
        return np.asarray(image.projection_center(), np.float64)

    def rotation(self, name: str) -> Values:
        """The rotation (3, 3) from the world to the camera of an image."""
        image = self.reconstruction.find_image_with_name(name)
        return np.asarray(image.cam_from_world().rotation.matrix(), np.float64)


@dataclass(frozen=True)
class MappingSettings:
    """Settings of verification and incremental mapping.

    Attributes:
        seed: random seed of RANSAC and mapping.
        threads: of bundle adjustment; with more than one the last digits vary.
        max_error: inlier threshold of two-view geometry, in pixels.
        principal_point: when that of guessed cameras is refined, one of `PRINCIPAL_POINT`.
        options: of pycolmap's IncrementalPipelineOptions, by dotted name.
    """

    seed: int = 0
    threads: int = 1
    max_error: float = 4.0
    principal_point: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the choice of principal points."""
        if self.principal_point not in PRINCIPAL_POINT:
            raise ConfigError(
                f"principal_point must be one of {', '.join(PRINCIPAL_POINT)}, "
                f"got '{self.principal_point[:80]}'"
            )


def find_obstacle() -> str:
    """Why reconstruction cannot run here; empty where it can."""
    if importlib.util.find_spec("pycolmap") is None:
        return "it needs pycolmap, which is not installed: pip install 'ucn[reconstruct]'"
    return ""


def load_pycolmap() -> Any:
    """Imports pycolmap; raises `ConfigError` where it is not installed."""
    reason = find_obstacle()
    if reason:
        raise ConfigError(f"reconstruction: {reason}")
    import pycolmap

    return pycolmap


@contextmanager
def quiet(level: str = "ERROR") -> Iterator[None]:
    """Raises the level below which COLMAP logs nothing to the terminal, to ERROR or FATAL."""
    colmap = load_pycolmap()
    before = colmap.logging.minloglevel
    colmap.logging.minloglevel = int(getattr(colmap.logging, level).value)
    try:
        yield
    finally:
        colmap.logging.minloglevel = before


def build_cameras(
    images: Sequence[DatabaseImage], folder: Path, settings: CameraSettings
) -> list[pycolmap.Camera]:
    """Builds a camera for each image, as stored; images that share one get the same object."""
    colmap = load_pycolmap()
    shared: dict[Hashable, pycolmap.Camera] = {}
    cameras = []
    for image in images:
        K = _find_intrinsics(image, settings.intrinsics)
        key = (image.stored_hw, None if K is None else K.tobytes())
        if not settings.is_shared or key not in shared:
            shared[key] = _build_camera(colmap, image, folder, settings.model, K)
        cameras.append(shared[key])
    return cameras


def _find_intrinsics(image: DatabaseImage, K: Values | None) -> Values | None:
    """The camera matrix of an image as stored, if one is given."""
    height, width = image.stored_hw
    if K is None or not is_sideways(image.orientation) or (K[0, 2] >= K[1, 2]) == (width >= height):
        return K
    return orient_intrinsics(K, image.image_hw, invert_orientation(image.orientation))


def _build_camera(
    colmap: Any, image: DatabaseImage, folder: Path, model: str, K: Values | None
) -> pycolmap.Camera:
    height, width = image.stored_hw
    if K is not None:
        centre = to_corner_origin(torch.from_numpy(K[:2, 2].copy())).tolist()
        camera: pycolmap.Camera = colmap.Camera(
            model="PINHOLE", width=width, height=height, params=[K[0, 0], K[1, 1], *centre]
        )
        camera.has_prior_focal_length = True
        return camera
    focal, is_known = _FOCAL_FACTOR * max(height, width), False
    try:
        guess = colmap.infer_camera_from_image(folder / image.name)
        focal, is_known = guess.mean_focal_length(), guess.has_prior_focal_length
    except (RuntimeError, ValueError) as error:  # an image format that COLMAP does not read
        _log.info("%s: no camera from the file (%s)", image.name, error)
    model_id = getattr(colmap.CameraModelId, model)
    created: pycolmap.Camera = colmap.Camera.create_from_model_id(
        colmap.INVALID_CAMERA_ID, model_id, focal, width, height
    )
    created.has_prior_focal_length = is_known
    return created


def verify_matches(
    images: Sequence[DatabaseImage],
    cameras: Sequence[pycolmap.Camera],
    matches: Pairs,
    settings: MappingSettings,
    progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[int, int], pycolmap.TwoViewGeometry]:
    """Estimates the two-view geometry of each pair, with its ``inlier_matches``.

    Args:
        images: with keypoints.
        cameras: of each image.
        matches: (M, 2) rows of keypoints, by the indices of the two images.
        settings: threshold and seed.
        progress: called with (pairs done, all pairs).
    """
    colmap = load_pycolmap()
    options = colmap.TwoViewGeometryOptions()
    options.ransac.random_seed = settings.seed
    options.ransac.max_error = settings.max_error
    found = {}
    for done, ((first, second), rows) in enumerate(matches.items(), 1):
        found[first, second] = colmap.estimate_two_view_geometry(
            cameras[first],
            images[first].find_colmap_keypoints().astype(np.float64),
            cameras[second],
            images[second].find_colmap_keypoints().astype(np.float64),
            rows.astype(np.uint32),
            options,
        )
        if progress is not None:
            progress(done, len(matches))
    return found


def to_colmap(keypoints: FloatArray) -> FloatArray:
    """Keypoints (N, 2) in COLMAP's convention: the corner of the top-left pixel is at (0, 0)."""
    return to_corner_origin(torch.from_numpy(keypoints)).numpy()


def write_database(
    path: Path,
    images: Sequence[DatabaseImage],
    cameras: Sequence[pycolmap.Camera],
    geometries: Mapping[tuple[int, int], pycolmap.TwoViewGeometry],
    matches: Pairs,
) -> None:
    """Writes a COLMAP database: cameras, images, keypoints, matches and two-view geometries.

    It is written to a temporary file, which then replaces an existing database.

    Args:
        path: of the database.
        images: in the order of their indices; COLMAP's ids begin at 1.
        cameras: of each image.
        geometries: of `verify_matches`.
        matches: that were verified.
    """
    colmap = load_pycolmap()
    check_output(path, overwrite=True)
    with scratch_folder(path) as work:
        database = colmap.Database.open(work / path.name)
        try:
            with colmap.DatabaseTransaction(database):
                rigs = _write_cameras(colmap, database, cameras)
                for image, camera in zip(images, cameras, strict=True):
                    _write_image(colmap, database, image, camera, rigs[camera.camera_id])
                for (first, second), geometry in geometries.items():
                    database.write_matches(first + 1, second + 1, matches[first, second].astype(np.uint32))
                    database.write_two_view_geometry(first + 1, second + 1, geometry)
        finally:
            database.close()
        (work / path.name).replace(path)


def _write_cameras(colmap: Any, database: Any, cameras: Sequence[Any]) -> dict[int, int]:
    """Writes each camera once, sets its id, and returns the rigs by camera id."""
    rigs = {}
    for camera in {id(camera): camera for camera in cameras}.values():
        camera.camera_id = colmap.INVALID_CAMERA_ID
        camera.camera_id = database.write_camera(camera)
        rig = colmap.Rig()
        rig.add_ref_sensor(camera.sensor_id)
        rigs[camera.camera_id] = database.write_rig(rig)
    return rigs


def _write_image(colmap: Any, database: Any, image: DatabaseImage, camera: Any, rig: int) -> None:
    entry = colmap.Image(name=image.name, camera_id=camera.camera_id)
    entry.image_id = database.write_image(entry)
    frame = colmap.Frame()
    frame.rig_id = rig
    frame.add_data_id(entry.data_id)
    database.write_frame(frame)
    database.write_keypoints(entry.image_id, image.find_colmap_keypoints())


def map_incrementally(
    database: Path,
    folder: Path,
    output: Path,
    settings: MappingSettings,
    are_cameras_known: bool = False,
    on_image: Callable[[], None] | None = None,
) -> SparseModel:
    """Reconstructs sparse models from a database and writes them as COLMAP does: ``output/0`` and so on.

    Args:
        database: of `write_database`, or of COLMAP itself.
        folder: of the images, for the colours of points.
        output: folder of the models; an existing one is replaced if it holds nothing else.
        settings: seed, threads and options.
        are_cameras_known: keep their intrinsics fixed.
        on_image: called whenever an image is registered.

    Returns:
        The model with most images; its principal points are refined as the settings say.

    Raises:
        DataError: no model could be reconstructed; the message says what to try.
        OutputError: as `check_models`.
    """
    colmap = load_pycolmap()
    check_models(output)
    with scratch_folder(output) as work:
        part = work / output.name
        part.mkdir()
        with quiet("FATAL"):  # the error below reports a failure
            found = colmap.incremental_mapping(
                database,
                folder,
                part,
                _build_options(colmap, settings, are_cameras_known),
                next_image_callback=on_image,
            )
        if not found:
            raise DataError(
                "no model: no two images share enough verified matches at a wide enough angle; take images "
                "that overlap more, from viewpoints further apart, or match more pairs"
            )
        best = max(
            found, key=lambda index: (found[index].num_reg_images(), found[index].num_points3D(), -index)
        )
        model, principal_points = _choose_principal_points(colmap, found[best], settings, are_cameras_known)
        models = {**found, best: model}
        for index, each in models.items():
            names = (each.image(image_id).name for image_id in each.reg_image_ids())
            has_unread = any(name.lower().endswith(UNREAD_SUFFIXES) for name in names)
            if has_unread:
                colour_points(each, folder)
            if has_unread or each is not found[index]:
                each.write(part / str(index))
        check_models(output)
        if output.exists():
            output.rename(work / "before")
        part.replace(output)
    return replace(summarise(model, len(found)), principal_points=tuple(principal_points))


def check_models(folder: Path) -> None:
    """Checks that what `map_incrementally` would replace are COLMAP's models and nothing else.

    Raises:
        OutputError: it is a file or a link, or holds something else.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise OutputError(
            f"{folder} was kept: expected a folder of models; move it away or give another folder"
        )
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        is_model = len(inner) == 1 and inner[0].isdigit() and path.is_dir()
        is_file = path.stem in _MODEL_FILES and path.is_file() and all(map(str.isdigit, inner[:-1]))
        if path.is_symlink() or not (is_model or is_file):
            raise OutputError(
                f"{folder} was kept: it holds {'/'.join(inner)}, which is no part of a COLMAP model; move "
                "that away or give another folder"
            )


def _choose_principal_points(
    colmap: Any, model: pycolmap.Reconstruction, settings: MappingSettings, are_cameras_known: bool
) -> tuple[pycolmap.Reconstruction, list[PrincipalPoint]]:
    if are_cameras_known:
        return model, []
    if settings.principal_point == "auto":
        return refine_principal_points(colmap, model, settings.threads)
    return model, find_principal_points(model, f"{settings.principal_point} refined")


def _build_options(colmap: Any, settings: MappingSettings, are_cameras_known: bool) -> Any:
    options = colmap.IncrementalPipelineOptions()
    options.min_model_size = _MIN_MODEL_IMAGES
    if are_cameras_known:
        options.ba_refine_focal_length = options.ba_refine_extra_params = False
        options.mapper.abs_pose_refine_focal_length = options.mapper.abs_pose_refine_extra_params = False
    options.ba_refine_principal_point = settings.principal_point == "always" and not are_cameras_known
    for part in (options, options.mapper, options.triangulation):
        part.random_seed = settings.seed
    options.num_threads = options.mapper.num_threads = settings.threads
    for name, value in settings.options.items():
        *parents, last = name.split(".")
        target = options
        for parent in parents:
            target = getattr(target, parent, None)
        if not hasattr(target, last):
            raise ConfigError(f"pycolmap's incremental mapping has no option '{name[:80]}'")
        setattr(target, last, value)
    return options


def summarise(reconstruction: pycolmap.Reconstruction, models: int = 1) -> SparseModel:
    """Statistics of a model."""
    registered = sorted(reconstruction.image(image_id).name for image_id in reconstruction.reg_image_ids())
    return SparseModel(
        reconstruction=reconstruction,
        registered=tuple(registered),
        points=reconstruction.num_points3D(),
        observations=reconstruction.compute_num_observations(),
        track_length=reconstruction.compute_mean_track_length(),
        reprojection_error=reconstruction.compute_mean_reprojection_error(),
        models=models,
    )
