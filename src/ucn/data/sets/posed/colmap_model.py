"""Reads COLMAP's sparse reconstructions, text and binary ("Output Format" of its documentation).

Binary files are little-endian. Their counts are compared with the size of the file before anything is
allocated.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.pairs import Problem, ProblemList
from ucn.errors import DataError
from ucn.files.reading import open_data

MAX_MODEL_BYTES = 16 * 2**30
"""Larger files are refused; 40,000 images with 10,000 keypoints each fit. Files are not held in memory."""

# Number of parameters of each camera model, by model id (colmap/sensor/models.h).
_PARAMETER_COUNTS = (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12, 16, 4, 5, 3, 4, 6, 2)
_REMEDY = "export the reconstruction again"
_MAX_LINE = 64 * 2**20  # bytes of a line of text
_MAX_SIDE = 10**7  # pixels
_MAX_NAME = 4096  # bytes of an image's name
_OBSERVATION = np.dtype([("x", "<f8"), ("y", "<f8"), ("point_id", "<i8")])


@dataclass(frozen=True)
class ModelImage:
    """An image of a model.

    Attributes:
        name: path relative to the folder of images.
        camera_hw: (H, W) of its camera.
        quaternion: (w, x, y, z), unit quaternion of the rotation from world to camera.
        translation: (3,) from world to camera.
        points: (M, 2) float32, its observations of 3D points, as in the file: the centre of the top-left
            pixel is (0.5, 0.5).
        point_ids: (M,) int64, sorted, without repeats: the 3D points of the observations.
        line: line of the image in a text file.
    """

    name: str
    camera_hw: tuple[int, int]
    quaternion: NDArray[np.float64]
    translation: NDArray[np.float64]
    points: NDArray[np.float32]
    point_ids: NDArray[np.int64]
    line: int | None


@dataclass(frozen=True)
class Model:
    """A sparse reconstruction.

    Attributes:
        images: sorted by name.
        point_ids: (P,) int64, sorted ids of the 3D points.
        point_positions: (P, 3) float64, in the unit of length of the reconstruction.
        point_errors: (P,) float64, mean reprojection error of each in pixels; -1 where COLMAP has not
            computed it.
        list_path: the file of images.
        problems: faulty entries, which are excluded.
    """

    images: list[ModelImage]
    point_ids: NDArray[np.int64]
    point_positions: NDArray[np.float64]
    point_errors: NDArray[np.float64]
    list_path: Path
    problems: list[Problem]


def read_model(folder: Path) -> Model:
    """Reads a sparse reconstruction; where a folder has both formats, the binary one, as COLMAP does.

    Raises:
        DataError: a file is missing, truncated, too large, or malformed.
    """
    suffix = "bin" if (folder / "images.bin").is_file() else "txt"
    paths = tuple(folder / f"{name}.{suffix}" for name in ("cameras", "images", "points3D"))
    for path in paths:
        if not path.is_file():
            raise DataError(
                f"no file {path}; a reconstruction has cameras, images and points3D, all .bin or all .txt"
            )
        if path.stat().st_size > MAX_MODEL_BYTES:
            size = path.stat().st_size
            raise DataError(
                f"{path} has {size:,} bytes, the limit for a reconstruction is {MAX_MODEL_BYTES:,}"
            )
    problems = ProblemList(_REMEDY)
    if suffix == "bin":
        images = _ImageList(paths[1], _read_cameras_bin(paths[0]), problems)
        _read_images_bin(paths[1], images)
        ids, values = _read_points_bin(paths[2])
    else:
        images = _ImageList(paths[1], _read_cameras_txt(paths[0]), problems)
        _read_images_txt(paths[1], images)
        ids, values = _read_points_txt(paths[2], problems)
    ids, first = np.unique(ids, return_index=True)
    by_name = sorted(images.images.values(), key=attrgetter("name"))
    values = values[first]
    return Model(by_name, ids, values[:, :3], values[:, 3], paths[1], problems.finish())


class _ImageList:
    """Collects images; faulty ones become problems."""

    def __init__(self, path: Path, cameras: dict[int, tuple[int, int]], problems: ProblemList) -> None:
        self.images: dict[int, ModelImage] = {}
        self._path, self._cameras, self._problems = path, cameras, problems

    def add_problem(self, message: str, line: int | None) -> None:
        """Records a faulty entry."""
        self._problems.add(self._path, f"{message}; {_REMEDY}", line)

    def add(
        self,
        image_id: int,
        pose: list[float],
        camera_id: int,
        name: str,
        points: NDArray[np.float64],
        point_ids: NDArray[np.int64],
        line: int | None = None,
    ) -> None:
        """Adds an image with its valid observations."""
        camera_hw = self._cameras.get(camera_id)
        vector = np.array(pose, np.float64)
        if image_id in self.images:
            return self.add_problem(f"image {name[:80]!r} has the id {image_id} of another", line)
        if camera_hw is None:
            return self.add_problem(f"image {name[:80]!r} has the unknown camera {camera_id}", line)
        if not np.isfinite(vector).all() or not vector[:4].any():
            return self.add_problem(f"image {name[:80]!r} has an invalid pose: {pose}", line)
        is_visible = ((points >= 0) & (points <= camera_hw[::-1])).all(axis=1)
        if not is_visible.all():
            outside = len(points) - int(is_visible.sum())
            size = f"{camera_hw[1]} × {camera_hw[0]}"
            self.add_problem(f"{outside} observations of {name[:80]!r} lie outside its {size} pixels", line)
        # Of an image with two observations of one 3D point, neither is used.
        kept, first, counts = np.unique(point_ids[is_visible], return_index=True, return_counts=True)
        rows = first[counts == 1]
        self.images[image_id] = ModelImage(
            name,
            camera_hw,
            vector[:4] / np.linalg.norm(vector[:4]),
            vector[4:],
            points[is_visible][rows].astype(np.float32),
            kept[counts == 1],
            line,
        )
        return None


class _Cursor:
    """Reads a binary file sequentially; raises `DataError` where it is truncated."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path, self._content, self._place = path, content, 0

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        """The next values, in the format of `struct`."""
        size = struct.calcsize(layout)
        self.require(size, what)
        values = struct.unpack_from(layout, self._content, self._place)
        self._place += size
        return values

    def read_count(self, smallest: int, what: str) -> int:
        """The number of records, each of which takes at least `smallest` bytes."""
        count = int(self.unpack("<Q", f"the number of {what}")[0])
        self.require(count * smallest, f"{count:,} {what}")
        return count

    def read_name(self) -> str:
        """A zero-terminated string."""
        end = self._content.find(b"\0", self._place, self._place + _MAX_NAME)
        if end < 0:
            got = f"one without an end; {_REMEDY}"
            raise DataError(f"{self._path}: expected a name at byte {self._place:,}, got {got}")
        if end == self._place:  # otherwise a file of zeros would pass for millions of images
            got = f"an empty one; {_REMEDY}"
            raise DataError(f"{self._path}: expected a name at byte {self._place:,}, got {got}")
        try:
            name = self._content[self._place : end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._path}: the name at byte {self._place:,} is not UTF-8; {_REMEDY}"
            ) from error
        self._place = end + 1
        return name

    def read_observations(self, count: int) -> NDArray[Any]:
        """The observations of 3D points among the next `count` keypoints, as a copy."""
        if count == 0:
            return np.zeros(0, _OBSERVATION)
        found: NDArray[Any] = np.frombuffer(self._content, _OBSERVATION, count, self._place)
        self._place += count * _OBSERVATION.itemsize
        observed: NDArray[Any] = found[found["point_id"] != -1]  # a copy: the file will be closed
        return observed

    def skip(self, size: int, what: str) -> None:
        """Skips bytes."""
        self.require(size, what)
        self._place += size

    def require(self, size: int, what: str) -> None:
        """Raises `DataError` where fewer bytes remain."""
        left = len(self._content) - self._place
        if size > left:
            raise DataError(
                f"{self._path} ends too early: expected {what}, {size:,} bytes from byte {self._place:,} on, "
                f"got {left:,}; {_REMEDY}"
            )

    def finish(self) -> None:
        """Raises `DataError` where bytes remain."""
        left = len(self._content) - self._place
        if left:
            raise DataError(f"{self._path}: {left:,} bytes follow what its counts announce; {_REMEDY}")


@contextmanager
def _open_binary(path: Path) -> Iterator[_Cursor]:
    with open_data(path, "model", None) as file:
        if file.seek(0, os.SEEK_END) < 8:
            raise DataError(f"{path} ends too early: expected a count of 8 bytes; {_REMEDY}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            cursor = _Cursor(path, content)
            yield cursor
            cursor.finish()


def _read_cameras_bin(path: Path) -> dict[int, tuple[int, int]]:
    """Reads (H, W) by camera.

    uint64 count; each: uint32 id, int32 model, uint64 width, height, a double per parameter.
    """
    cameras: dict[int, tuple[int, int]] = {}
    with _open_binary(path) as cursor:
        for _ in range(cursor.read_count(24, "cameras")):
            camera_id, model, width, height = cursor.unpack("<IiQQ", "a camera")
            if not 0 <= model < len(_PARAMETER_COUNTS):
                raise DataError(
                    f"{path}: camera {camera_id} has the unknown model {model}; export as text instead"
                )
            cursor.skip(8 * _PARAMETER_COUNTS[model], "the parameters of a camera")
            cameras[camera_id] = _check_size(width, height, f"{path}: camera {camera_id}")
    return cameras


def _check_size(width: int, height: int, where: str) -> tuple[int, int]:
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        sides = f"expected width and height in 1 … {_MAX_SIDE:,}, got {width} and {height}"
        raise DataError(f"{where}: {sides}; {_REMEDY}")
    return height, width


def _read_images_bin(path: Path, images: _ImageList) -> None:
    """Reads the images.

    uint64 count; each: uint32 id, 7 doubles (quaternion wxyz, translation), uint32 camera, name ending in 0,
    uint64 count of keypoints, each: double x, y, int64 3D point, -1 for none.
    """
    with _open_binary(path) as cursor:
        for _ in range(cursor.read_count(73, "images")):
            image_id, *pose, camera_id = cursor.unpack("<I7dI", "an image")
            name = cursor.read_name()
            count = cursor.read_count(_OBSERVATION.itemsize, f"keypoints of {name}")
            found = cursor.read_observations(count)
            points = np.stack([found["x"], found["y"]], axis=-1)
            images.add(image_id, pose, camera_id, name, points, found["point_id"].astype(np.int64))


def _read_points_bin(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Reads ids (P,) of the 3D points, and x, y, z and error (P, 4).

    uint64 count; each: uint64 id, 3 doubles, 3 bytes of colour, double error, uint64 length of the track,
    each: uint32 image, uint32 keypoint.
    """
    with _open_binary(path) as cursor:
        count = cursor.read_count(51, "3D points")  # bounded by the size of the file
        ids, values = np.empty(count, np.int64), np.empty((count, 4), np.float64)
        for row in range(count):
            point_id, *position, _, _, _, error, length = cursor.unpack("<q3d3BdQ", "a 3D point")
            cursor.skip(8 * length, f"the track of 3D point {point_id}")
            ids[row], values[row] = point_id, (*position, error)
    return ids, values


def _read_text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields all lines with their numbers, also blank ones, without holding the file in memory."""
    try:
        number = 0
        with open_data(path, "model", None) as file:
            while line := file.readline(_MAX_LINE + 1):
                number += 1
                if len(line) > _MAX_LINE:
                    raise DataError(f"{path}:{number}: the line has more than {_MAX_LINE:,} bytes; {_REMEDY}")
                yield number, line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: it is not UTF-8 text; expected COLMAP's text format; {_REMEDY}"
        ) from error


def _is_content(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def _read_cameras_txt(path: Path) -> dict[int, tuple[int, int]]:
    """Reads (H, W) by camera. One line each: CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]."""
    cameras = {}
    for number, line in _read_text_lines(path):
        if _is_content(line):
            cells = line.split()
            try:
                camera_id, width, height = int(cells[0]), int(cells[2]), int(cells[3])
            except (ValueError, IndexError):
                raise DataError(
                    f"{path}:{number}: expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS, got {line[:60]!r}; "
                    f"{_REMEDY}"
                ) from None
            cameras[camera_id] = _check_size(width, height, f"{path}:{number}")
    return cameras


def _read_images_txt(path: Path, images: _ImageList) -> None:
    """Reads the images: two lines each; the second is blank where an image has no keypoints.

    IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME; then X, Y, POINT3D_ID for each keypoint.
    """
    lines = _read_text_lines(path)
    for number, line in lines:
        if not _is_content(line):
            continue
        points_number, points_line = next(lines, (number + 1, ""))
        cells = line.split(maxsplit=9)
        try:
            image_id, camera_id, name = int(cells[0]), int(cells[8]), cells[9]
            pose = [float(cell) for cell in cells[1:8]]
        except (ValueError, IndexError):
            expected = "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME"
            images.add_problem(f"expected {expected}, got {line[:60]!r}", number)
            continue
        try:
            points, ids = _parse_keypoints(points_line)
        except ValueError:
            expected = "X Y POINT3D_ID"
            message = f"expected {expected} for each keypoint of {name[:80]!r}, got {points_line[:60]!r}"
            images.add_problem(message, points_number)
            continue
        images.add(image_id, pose, camera_id, name, points, ids, number)


def _parse_keypoints(line: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The keypoints that observe a 3D point."""
    values = np.array(line.split(), np.float64).reshape(-1, 3)
    values = values[values[:, 2] != -1]
    ids = values[:, 2]
    if not (np.abs(ids) < 2**53).all() or (ids != np.floor(ids)).any():
        raise ValueError("POINT3D_ID must be a whole number")
    return values[:, :2], ids.astype(np.int64)


def _read_points_txt(path: Path, problems: ProblemList) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """As `_read_points_bin`. One line each: POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[]."""
    ids, values = array("q"), array("d")  # a tenth of the memory of a list
    for number, line in _read_text_lines(path):
        if not _is_content(line):
            continue
        cells = line.split(maxsplit=8)
        try:
            point_id, *others = int(cells[0]), *(float(cells[column]) for column in (1, 2, 3, 7))
            if abs(point_id) >= 2**63:
                raise ValueError
        except (ValueError, IndexError):
            expected = "POINT3D_ID X Y Z R G B ERROR TRACK"
            problems.add(path, f"expected {expected}, got {line[:60]!r}; {_REMEDY}", number)
            continue
        ids.append(point_id)
        values.extend(others)
    return np.array(ids, np.int64), np.array(values, np.float64).reshape(-1, 4)
