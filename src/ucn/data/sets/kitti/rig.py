"""KITTI's sensor rig: calibration of scanner, cameras and GPS/IMU unit, and poses of the unit.

The formulas are those of KITTI's development kit. Cameras have x right, y down, z forward; scanner and unit
have x forward, y left, z up. The unit's angles are roll (left side up), pitch (front down) and yaw
(counter-clockwise from east).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ucn.data.sets.posed.posed_pairs import Array, check_rotation, read_keyed_file, require_intrinsics, rigid
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines

CAMERA_FILE, SCANNER_FILE, UNIT_FILE = (
    "calib_cam_to_cam.txt",
    "calib_velo_to_cam.txt",
    "calib_imu_to_velo.txt",
)
"""The calibration files of a day."""

_EARTH_RADIUS = 6378137.0  # metres
_OXTS_VALUES = 30
_REMEDY = "unpack the drive again"


@dataclass(frozen=True)
class Rig:
    """A rectified camera and its scanner.

    Attributes:
        K: (3, 3) of the rectified camera.
        T_scan_to_camera: (4, 4).
    """

    K: Array
    T_scan_to_camera: Array


def read_rig(day: Path, camera: int) -> Rig:
    """Reads a camera's calibration from the folder of a day; raises `DataError` with file and line.

    A point X of the scanner projects to P_rect · R_rect_00 · T_velo_to_cam · X. P_rect is K (I | b): the
    rectified camera is at -b from the rectified camera 0.
    """
    K, T_rectified = read_rectified_camera(day, camera)
    return Rig(K, T_rectified @ read_scanner(day))


def read_rectified_camera(day: Path, camera: int) -> tuple[Array, Array]:
    """Reads a rectified camera: K (3, 3), and the motion (4, 4) from the unrectified camera 0 to it."""
    cameras = read_keyed_file(day / CAMERA_FILE, "calibration")
    P = cameras.matrix(f"P_rect_{camera:02d}", 3, 4)
    rectify = cameras.matrix("R_rect_00", 3, 3)
    check_rotation(rectify, f"{cameras.path}, line 'R_rect_00:'")
    K = P[:, :3]
    require_intrinsics(K, f"{cameras.path}, line 'P_rect_{camera:02d}:'")
    offset: Array = np.linalg.inv(K) @ P[:, 3]
    return K, rigid(rectify, offset)


def read_scanner(day: Path) -> Array:
    """Reads T_velo_to_cam (4, 4), from the scanner to camera 0; raises `DataError`."""
    return read_keyed_file(day / SCANNER_FILE, "calibration").motion()


def read_unit(day: Path) -> Array:
    """Reads T_imu_to_velo (4, 4), from the GPS/IMU unit to the scanner; raises `DataError`."""
    return read_keyed_file(day / UNIT_FILE, "calibration").motion()


def read_packet(path: Path) -> list[float]:
    """Reads the 30 values of a GPS/IMU packet: latitude, longitude, altitude, roll, pitch, yaw, ...

    Raises:
        DataError: the file is missing, not one line of 30 numbers, or has an impossible position.
    """
    lines = list(read_lines(path, "GPS/IMU packet"))
    if len(lines) != 1:
        raise DataError(
            f"{path}: expected one line of {_OXTS_VALUES} numbers, got {len(lines)} lines; {_REMEDY}"
        )
    values = parse_numbers(lines[0][1], _OXTS_VALUES, f"{path}:{lines[0][0]}")
    if not (abs(values[0]) < 89 and abs(values[1]) <= 180):
        raise DataError(
            f"{path}:{lines[0][0]}: expected latitude and longitude in degrees, got {values[0]:g} and "
            f"{values[1]:g}; {_REMEDY}"
        )
    return values


def pose_of(packet: list[float], first_latitude: float) -> Array:
    """The pose (4, 4) of the unit, unit to world: east, north, up in metres by the Mercator projection.

    Args:
        packet: the values of `read_packet`.
        first_latitude: latitude in degrees of the drive's first packet, which scales the projection.
    """
    latitude, longitude, altitude, roll, pitch, yaw = packet[:6]
    scale = math.cos(math.radians(first_latitude)) * _EARTH_RADIUS
    east = scale * math.radians(longitude)
    north = scale * math.log(math.tan(math.radians(90 + latitude) / 2))
    return rigid(
        _rotate_about(2, yaw) @ _rotate_about(1, pitch) @ _rotate_about(0, roll), [east, north, altitude]
    )


def _rotate_about(axis: int, angle: float) -> Array:
    """The rotation (3, 3) about an axis by an angle in radians."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    R = np.eye(3)
    R[i, i] = R[j, j] = math.cos(angle)
    R[j, i] = math.sin(angle)
    R[i, j] = -math.sin(angle)
    return R
