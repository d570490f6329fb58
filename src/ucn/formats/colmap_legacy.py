"""A COLMAP database as COLMAP 3 writes it, which COLMAP 3.9 to 4.2 open.

COLMAP 4 writes tables with other columns (``pose_priors`` and ``descriptors``), and COLMAP 3 then refuses the
whole file with an SQL logic error. Every version adds the tables that are missing when it opens an older
database. The columns ``prior_…`` of images are of versions before 3.10, which need them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ucn.errors import OutputError
from ucn.files import check_output, scratch_folder

if TYPE_CHECKING:
    import pycolmap

    from ucn.formats.colmap import DatabaseImage, Pairs

_MAX_IMAGES = 2**31 - 1  # a pair's id is first * this + second
_PRIORS = " ".join(f"prior_{name} REAL," for name in ("qw", "qx", "qy", "qz", "tx", "ty", "tz"))
_ARRAY = "rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB"
_OF_IMAGE = "FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE"
_SCHEMA = f"""
CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, model INTEGER NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, prior_focal_length INTEGER NOT NULL);
CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL UNIQUE,
    camera_id INTEGER NOT NULL, {_PRIORS}
    CONSTRAINT image_id_check CHECK(image_id >= 0 and image_id < {_MAX_IMAGES}),
    FOREIGN KEY(camera_id) REFERENCES cameras(camera_id));
CREATE UNIQUE INDEX index_name ON images(name);
CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY NOT NULL, {_ARRAY}, {_OF_IMAGE});
CREATE TABLE descriptors (image_id INTEGER PRIMARY KEY NOT NULL, {_ARRAY}, {_OF_IMAGE});
CREATE TABLE matches (pair_id INTEGER PRIMARY KEY NOT NULL, {_ARRAY});
CREATE TABLE two_view_geometries (pair_id INTEGER PRIMARY KEY NOT NULL, {_ARRAY},
    config INTEGER NOT NULL, F BLOB, E BLOB, H BLOB, qvec BLOB, tvec BLOB);
"""


def write_legacy_database(
    path: Path,
    images: Sequence[DatabaseImage],
    cameras: Sequence[pycolmap.Camera],
    geometries: Mapping[tuple[int, int], pycolmap.TwoViewGeometry],
    matches: Pairs,
) -> None:
    """Writes what `ucn.formats.colmap.write_database` writes, for COLMAP 3.

    It is written to a temporary file, which then replaces an existing database.

    Raises:
        OutputError: the file cannot be written.
    """
    check_output(path, overwrite=True)
    try:
        with scratch_folder(path) as work:
            with closing(sqlite3.connect(work / path.name)) as database, database:
                database.executescript(_SCHEMA)
                _write_images(database, images, cameras)
                for (first, second), geometry in geometries.items():
                    pair = (first + 1) * _MAX_IMAGES + second + 1
                    values = (pair, *_pack(matches[first, second], np.uint32))
                    database.execute("INSERT INTO matches VALUES (?, ?, ?, ?)", values)
                    _write_geometry(database, pair, geometry)
            (work / path.name).replace(path)
    except (OSError, sqlite3.Error) as error:
        raise OutputError(f"cannot write {path}: {error}") from error


def _write_images(
    database: sqlite3.Connection, images: Sequence[DatabaseImage], cameras: Sequence[Any]
) -> None:
    numbers: dict[int, int] = {}
    for row, (image, camera) in enumerate(zip(images, cameras, strict=True), start=1):
        if id(camera) not in numbers:
            number = numbers[id(camera)] = len(numbers) + 1
            params = np.asarray(camera.params, np.float64).tobytes()
            values = (int(camera.model.value), camera.width, camera.height, params)
            database.execute(
                "INSERT INTO cameras VALUES (?, ?, ?, ?, ?, ?)",
                (number, *values, int(camera.has_prior_focal_length)),
            )
        database.execute(
            "INSERT INTO images(image_id, name, camera_id) VALUES (?, ?, ?)",
            (row, image.name, numbers[id(camera)]),
        )
        keypoints = _pack(image.find_colmap_keypoints(), np.float32)
        database.execute("INSERT INTO keypoints VALUES (?, ?, ?, ?)", (row, *keypoints))


def _write_geometry(database: sqlite3.Connection, pair: int, geometry: Any) -> None:
    motion = geometry.cam2_from_cam1
    x, y, z, w = (0.0, 0.0, 0.0, 1.0) if motion is None else motion.rotation.quat
    translation = np.zeros(3) if motion is None else motion.translation
    matrices = [np.zeros((3, 3)) if each is None else each for each in (geometry.F, geometry.E, geometry.H)]
    blobs = [
        np.ascontiguousarray(each, np.float64).tobytes() for each in (*matrices, (w, x, y, z), translation)
    ]
    inliers = np.asarray(geometry.inlier_matches).reshape(-1, 2)
    values = (pair, *_pack(inliers, np.uint32), int(geometry.config), *blobs)
    database.execute("INSERT INTO two_view_geometries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def _pack(values: ArrayLike, dtype: type[np.generic]) -> tuple[int, int, bytes]:
    """Rows, columns and bytes of an array (N, 2)."""
    packed = np.ascontiguousarray(values, dtype)
    return packed.shape[0], packed.shape[1], packed.tobytes()
