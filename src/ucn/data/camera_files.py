"""Camera intrinsics in the files of others: KITTI, OpenCV, ROS, COLMAP, and the EXIF data of photographs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ucn.config.strict_yaml import load_yaml
from ucn.data.io import read_exif, read_header_hw, read_orientation
from ucn.errors import DataError
from ucn.files.reading import is_number, parse_numbers, read_text
from ucn.geometry.pose import check_intrinsics

MAX_CAMERA_BYTES = 16 * 2**20
"""Larger files of camera matrices are refused unread."""
MAX_YAML_BYTES = 2**20
"""Larger YAML files are refused unread."""

_FORMS = "3 × 3 numbers fx s cx, 0 fy cy, 0 0 1, KITTI's 3 × 4 numbers, or the four numbers fx,fy,cx,cy"
_FILM_DIAGONAL = math.hypot(36, 24)  # millimetres: equivalent focal lengths are defined by the diagonal
_EXIF_IFD, _FOCAL_LENGTH, _FOCAL_LENGTH_35, _PIXEL_WIDTH = 0x8769, 0x920A, 0xA405, 0xA002
_PLANE_RESOLUTION, _PLANE_UNIT = 0xA20E, 0xA210
_UNIT_MILLIMETRES = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
_KEYED_LINE = re.compile(r"([A-Za-z_]\w*)\s*[:=]\s*(.*)")
_COLMAP_LINE = re.compile(r"\d+\s+[A-Z][A-Z_]+\s+\d+\s+\d+\s")
# Of COLMAP's models: numbers of focal lengths and of all parameters; the rest but the centre is distortion.
_COLMAP_MODELS = {
    "SIMPLE_PINHOLE": (1, 3),
    "PINHOLE": (2, 4),
    "SIMPLE_RADIAL": (1, 4),
    "RADIAL": (1, 5),
    "OPENCV": (2, 8),
    "FULL_OPENCV": (2, 12),
}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CameraIntrinsics:
    """What is known of a camera.

    Attributes:
        K: (3, 3), for pixel centres at integer coordinates.
        image_hw: (H, W) of the images that it is for; None where unknown.
        is_distorted: whether there is lens distortion, which `K` leaves out.
        is_stored: whether it is for images as stored, before EXIF turns them upright.
    """

    K: Array
    image_hw: tuple[int, int] | None = None
    is_distorted: bool = False
    is_stored: bool = False


def build_camera(numbers: list[float], where: str) -> CameraIntrinsics:
    """A camera of 4, 9 or 12 numbers; raises `DataError` where they are none."""
    if len(numbers) == 4:
        fx, fy, cx, cy = numbers
        numbers = [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0]
    if len(numbers) not in (9, 12):
        raise DataError(f"{where}: expected {_FORMS}, got {len(numbers)} numbers; correct it")
    try:
        return CameraIntrinsics(check_intrinsics(np.reshape(numbers, (3, -1))[:, :3], "it"))
    except ValueError as error:
        raise DataError(f"{where}: expected {_FORMS}: {error}; correct it") from error


def read_camera_file(given: str) -> CameraIntrinsics:
    """Reads a file of `ucn.data.cameras.read_camera`, or one camera of it by name: ``calib.txt:P2``.

    Raises:
        DataError: the file cannot be read, has other content, or has several cameras.
    """
    path, name = _split_name(given)
    if path.suffix.lower() in (".yml", ".yaml"):
        return _choose(_parse_yaml(read_text(path, "camera matrix", MAX_YAML_BYTES), path), name, path)
    lines = []
    text = read_text(path, "camera matrix", MAX_CAMERA_BYTES)
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.partition("#")[0].strip()
        if content:
            lines.append((number, content))
    if lines and _COLMAP_LINE.match(lines[0][1]):
        return _choose(_parse_colmap(lines, path), name, path)
    if any(_KEYED_LINE.fullmatch(content) for _, content in lines):
        return _choose(_parse_keyed(lines), name, path)
    if name is not None:
        raise DataError(f"{path} has no named cameras, so that there is no '{name[:40]}'; leave the name out")
    numbers: list[float] = []
    for number, content in lines:
        numbers += parse_numbers(content, None, f"{path}:{number}")
    return build_camera(numbers, str(path))


def read_exif_camera(image: Path) -> CameraIntrinsics:
    """Intrinsics by the focal length in a photograph's EXIF data, with the principal point at its centre.

    The focal length is the 35 mm equivalent one where the file has it, which is rounded to a millimetre, else
    the real one with the resolution of the sensor.

    Raises:
        DataError: the data are missing; the message says which.
        ImageReadError: the image cannot be read.
    """
    from ucn.geometry.coords import orient_size  # imports torch

    values = read_exif(image, _EXIF_IFD)
    size_hw = read_header_hw(image)
    if size_hw is None:
        raise DataError(f"cannot read the size of {image}; get the file again")
    focal = _find_focal(values, orient_size(size_hw, read_orientation(image)))
    if focal is None:
        got = "FocalLength alone" if _positive(values.get(_FOCAL_LENGTH)) else "neither"
        raise DataError(
            f"{image}: expected EXIF data with FocalLengthIn35mmFilm, or with FocalLength and "
            f"FocalPlaneXResolution, got {got}; give the four numbers fx,fy,cx,cy"
        )
    height, width = size_hw
    camera = build_camera([focal, focal, (width - 1) / 2, (height - 1) / 2], str(image))
    return CameraIntrinsics(camera.K, size_hw)


def _find_focal(values: Mapping[int, Any], stored_hw: tuple[int, int]) -> float | None:
    """The focal length in pixels; None where it cannot be found."""
    equivalent = _positive(values.get(_FOCAL_LENGTH_35))
    if equivalent is not None:
        return equivalent * math.hypot(*stored_hw) / _FILM_DIAGONAL
    focal, resolution = _positive(values.get(_FOCAL_LENGTH)), _positive(values.get(_PLANE_RESOLUTION))
    millimetres = _UNIT_MILLIMETRES.get(values.get(_PLANE_UNIT, 2))
    if focal is None or resolution is None or millimetres is None:
        return None
    width = float(stored_hw[1])
    # The resolution is of the photograph as taken; smaller copies keep it, and its width.
    return focal * resolution / millimetres * width / (_positive(values.get(_PIXEL_WIDTH)) or width)


def _positive(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return found if math.isfinite(found) and found > 0 else None


def _split_name(given: str) -> tuple[Path, str | None]:
    """The path of a file, and the name of a camera in it, if one is given."""
    start, colon, name = given.rpartition(":")
    if colon and not Path(given).exists() and Path(start).is_file():
        return Path(start), name
    return Path(given), None


def _choose(cameras: Mapping[str, CameraIntrinsics], name: str | None, path: Path) -> CameraIntrinsics:
    """The camera of a name, or the only one; several with equal matrices are one."""
    if name is not None:
        if name not in cameras:
            known = ", ".join(list(cameras)[:10]) or "none"
            raise DataError(f"{path} has no camera '{name[:40]}'; it has {known}: name one of them")
        return cameras[name]
    if not cameras:
        raise DataError(f"{path}: found no camera matrix: expected {_FORMS}; correct it")
    first = next(iter(cameras.values()))
    if any(not np.array_equal(camera.K, first.K) for camera in cameras.values()):
        names = list(cameras)
        raise DataError(
            f"{path} has {len(names)} cameras ({', '.join(names[:10])}{', …' if len(names) > 10 else ''}); "
            f"name one of them, such as {path.name}:{names[-1]}"
        )
    return first


def _parse_keyed(lines: list[tuple[int, str]]) -> dict[str, CameraIntrinsics]:
    """The cameras of lines such as ``P2: 12 numbers``, as KITTI writes them; other lines are left out."""
    cameras = {}
    for _, content in lines:
        match = _KEYED_LINE.fullmatch(content)
        cells = match[2].replace(",", " ").split() if match else []
        if match and len(cells) in (9, 12) and all(map(is_number, cells)):
            camera = _build_or_none([float(cell) for cell in cells])
            if camera is not None:
                cameras[match[1]] = camera
    return cameras


def _build_or_none(numbers: list[float]) -> CameraIntrinsics | None:
    """A camera; None where the numbers are something else, such as a rotation."""
    try:
        camera = build_camera(numbers, "")
    except DataError:
        return None
    return None if np.array_equal(camera.K, np.eye(3)) else camera


def _parse_colmap(lines: list[tuple[int, str]], path: Path) -> dict[str, CameraIntrinsics]:
    """The cameras of a cameras.txt by id: CAMERA_ID MODEL WIDTH HEIGHT PARAMS, centre of a pixel at 0.5."""
    import torch

    from ucn.geometry.coords import from_corner_origin

    cameras = {}
    for number, content in lines:
        where = f"{path}:{number}"
        cells = content.split()
        if not _COLMAP_LINE.match(content):
            raise DataError(f"{where}: expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS, got {content[:60]!r}")
        if cells[1] not in _COLMAP_MODELS:
            raise DataError(
                f"{where}: expected a camera model of {', '.join(_COLMAP_MODELS)}, got {cells[1][:40]}; "
                "undistort the images with `colmap image_undistorter` and give its cameras"
            )
        focals, count = _COLMAP_MODELS[cells[1]]
        values = parse_numbers(" ".join(cells[4:]), count, where)
        centre = from_corner_origin(torch.tensor(values[focals : focals + 2], dtype=torch.float64)).tolist()
        K = build_camera([values[0], values[focals - 1], *centre], where).K
        is_distorted = any(values[focals + 2 :])
        size_hw = int(cells[3]), int(cells[2])
        cameras[cells[0]] = CameraIntrinsics(K, size_hw, is_distorted, is_stored=True)
    return cameras


def _parse_yaml(text: str, path: Path) -> dict[str, CameraIntrinsics]:
    """The cameras of a file of OpenCV's FileStorage, or of ROS's camera_info."""
    try:
        # OpenCV's header, %YAML:1.0, is no YAML.
        found = load_yaml(re.sub(r"\A%YAML[^\n]*\n", "", text), ("opencv-matrix",))
    except yaml.YAMLError as error:
        raise DataError(
            f"cannot read camera matrix {path}: {error}; write it with cv2.FileStorage"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected names with values, such as camera_matrix; correct it")
    values = {str(key): value for key, value in found.items()}
    matrices = {}
    for key, value in values.items():
        numbers = _to_numbers(value)
        camera = _build_or_none(numbers) if len(numbers) in (9, 12) else None
        if camera is not None:
            is_distorted = any(_find_distortion(values, key))
            matrices[key] = CameraIntrinsics(camera.K, _find_size(values), is_distorted)
    known = {key: camera for key, camera in matrices.items() if _KNOWN_NAMES.fullmatch(_plain(key))}
    return known or matrices


_KNOWN_NAMES = re.compile(r"(cameramatrix|intrinsicmatrix|intrinsics|mtx|k|m)\d*")


def _plain(key: str) -> str:
    return key.lower().replace("_", "")


def _to_numbers(value: Any) -> list[float]:
    """The numbers of a matrix: OpenCV's with rows, cols and data, or lists; empty for everything else."""
    data = value.get("data") if isinstance(value, dict) else value
    try:
        numbers = np.asarray(data, np.float64)
    except (TypeError, ValueError):
        return []
    return [float(number) for number in numbers.ravel()] if numbers.ndim else []


def _find_distortion(values: Mapping[str, Any], key: str) -> list[float]:
    """The distortion coefficients of a camera: those with the number of its matrix, as D1 belongs to M1."""
    digits = re.search(r"\d*\Z", key)
    number = digits[0] if digits else ""
    pattern = re.compile(rf"(d|dist[a-z]*){number}")
    return [
        coefficient
        for name, value in values.items()
        if pattern.fullmatch(_plain(name))
        for coefficient in _to_numbers(value)
    ]


def _find_size(values: Mapping[str, Any]) -> tuple[int, int] | None:
    sizes = {_plain(key): value for key, value in values.items()}
    height, width = sizes.get("imageheight"), sizes.get("imagewidth")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None
