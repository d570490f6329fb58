"""Reads camera intrinsics that users give, and writes relative poses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.camera_files import CameraIntrinsics, build_camera, read_camera_file, read_exif_camera
from ucn.data.io import read_header_hw, read_orientation
from ucn.errors import DataError
from ucn.files import is_number, pack_npz, parse_numbers, write_bytes_atomically
from ucn.geometry.pose import PoseEstimate, orient_intrinsics
from ucn.types import Matches

POSE_SUFFIXES = (".json", ".npz")
"""Formats of `write_pose`."""

EXIF = "exif"
"""Given in place of a file, it takes the focal length from the EXIF data of the image."""

Array = NDArray[np.float64]


def read_camera(given: str, image: Path | None = None) -> CameraIntrinsics:
    """Reads camera intrinsics that a user gives.

    Args:
        given: four numbers fx, fy, cx, cy, or nine or twelve of a matrix, with blanks or commas between them;
            `EXIF`; or the path of a file: such numbers (a # starts a comment), KITTI's calibration, OpenCV's
            YAML, or COLMAP's cameras.txt. Of several cameras in a file one is named, as in ``calib.txt:P2``.
        image: the upright image that they are for: its size is compared with that in the file, and cameras of
            COLMAP, which are for images as stored, are turned with it. `EXIF` needs it.

    Returns:
        The camera of the upright image.

    Raises:
        DataError: the file cannot be read, has other content, or is for images of another size.
    """
    if given.strip().lower() == EXIF:
        if image is None:
            raise DataError(f"{EXIF} takes the focal length of a single image; give numbers or a file")
        return read_exif_camera(image)
    cells = given.replace(",", " ").split()
    if len(cells) > 1 and all(map(is_number, cells)):
        return build_camera(parse_numbers(given, None, given[:80]), given[:80])
    camera = read_camera_file(given)
    return camera if image is None else _fit(camera, image, given)


def _fit(camera: CameraIntrinsics, image: Path, given: str) -> CameraIntrinsics:
    """A camera of an image file, upright; raises `DataError` where it is for images of another size."""
    upright_hw = read_header_hw(image)
    if camera.image_hw is None or upright_hw is None:  # reading the image itself reports what is wrong
        return camera
    from ucn.geometry.coords import orient_size  # imports torch

    orientation = read_orientation(image) if camera.is_stored else 1
    image_hw = orient_size(upright_hw, orientation)
    if camera.image_hw != image_hw:
        (height, width), (expected_height, expected_width) = image_hw, camera.image_hw
        raise DataError(
            f"{given[:80]} is for images of {expected_width} × {expected_height} pixels, {image.name} has "
            f"{width} × {height}; scale the image, or the four numbers fx,fy,cx,cy"
        )
    K = orient_intrinsics(camera.K, image_hw, orientation)
    return replace(camera, K=K, image_hw=upright_hw, is_stored=False)


def write_pose(
    path: Path,
    pose: PoseEstimate,
    matches: Matches,
    cameras: tuple[Array, Array],
    summary: Mapping[str, Any],
) -> None:
    """Writes a relative pose.

    Args:
        path: .json gets the summary only, .npz also the pose, the matches and their inlier mask.
        pose: the estimated relative pose.
        matches: the matches that it was estimated from.
        cameras: the camera matrices K0 and K1, (3, 3) each.
        summary: plain values on the result and how it was computed.

    Raises:
        OutputError: the file exists, or cannot be written.
        ValueError: no pose was found, and `path` ends in .npz.
    """
    text = json.dumps(summary, indent=2, allow_nan=False)
    if path.suffix.lower() == ".json":
        write_bytes_atomically(path, f"{text}\n".encode(), overwrite=False)
        return
    if pose.R is None or pose.t is None:
        raise ValueError(f"there is no pose to write: {pose.failure}")
    arrays = {
        "R": pose.R,
        "t": pose.t,
        "K0": cameras[0],
        "K1": cameras[1],
        "points0": matches.points0,
        "points1": matches.points1,
        "scores": matches.scores,
        "is_inlier": pose.is_inlier,
        "meta": np.array(text),
    }
    write_bytes_atomically(path, pack_npz(arrays), overwrite=False)
