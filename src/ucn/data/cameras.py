"""Reads camera intrinsics that users give, and writes relative poses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.errors import DataError
from ucn.files import is_number, pack_npz, parse_numbers, read_lines, write_bytes_atomically
from ucn.geometry.pose import PoseEstimate, check_intrinsics
from ucn.types import Matches

POSE_SUFFIXES = (".json", ".npz")
"""Formats of `write_pose`."""

_FORMS = "3 × 3 numbers fx s cx, 0 fy cy, 0 0 1, or the four numbers fx,fy,cx,cy"

Array = NDArray[np.float64]


def read_intrinsics(given: str) -> Array:
    """Reads a camera matrix K, for pixel centres at integer coordinates.

    Args:
        given: ``fx,fy,cx,cy``, or the path of a text file with these four numbers or with a 3 × 3 matrix;
            blanks, commas or newlines separate numbers, and a # starts a comment.

    Returns:
        (3, 3).

    Raises:
        DataError: the file cannot be read, or has other content.
    """
    cells = given.split(",")
    if len(cells) > 1 and all(is_number(cell.strip()) for cell in cells):
        return _build(parse_numbers(given, None, given[:80]), given[:80])
    path = Path(given)
    numbers: list[float] = []
    for line, text in read_lines(path, "camera matrix"):
        numbers += parse_numbers(text.partition("#")[0], None, f"{path}:{line}")
    return _build(numbers, str(path))


def _build(numbers: list[float], where: str) -> Array:
    if len(numbers) == 4:
        fx, fy, cx, cy = numbers
        numbers = [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0]
    if len(numbers) != 9:
        raise DataError(f"{where}: expected {_FORMS}, got {len(numbers)} numbers; correct it")
    try:
        return check_intrinsics(np.reshape(numbers, (3, 3)), "it")
    except ValueError as error:
        raise DataError(f"{where}: expected {_FORMS}: {error}; correct it") from error


def write_pose(
    path: Path,
    pose: PoseEstimate,
    matches: Matches,
    cameras: tuple[Array, Array],
    summary: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Writes a relative pose.

    Args:
        path: .json gets the summary only, .npz also the pose, the matches and their inlier mask.
        pose: the estimated relative pose.
        matches: the matches that it was estimated from.
        cameras: the camera matrices K0 and K1, (3, 3) each.
        summary: plain values on the result and how it was computed.
        overwrite: replace an existing file.

    Raises:
        OutputError: the file cannot be written.
        ValueError: no pose was found, and `path` ends in .npz.
    """
    text = json.dumps(summary, indent=2, allow_nan=False)
    if path.suffix.lower() == ".json":
        write_bytes_atomically(path, f"{text}\n".encode(), overwrite)
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
    write_bytes_atomically(path, pack_npz(arrays), overwrite)
