"""Camera matrices that users give: as a file, or as four numbers; and camera motions as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.archives import pack_npz
from ucn.data.io import write_bytes_atomically
from ucn.data.sets.layout import is_number, parse_numbers, read_lines
from ucn.errors import DataError
from ucn.geometry.pose import PoseEstimate, check_intrinsics
from ucn.types import Matches

POSE_SUFFIXES = (".json", ".npz")
"""Endings of the files that `write_pose` writes."""

_FORMS = "3 × 3 numbers fx s cx, 0 fy cy, 0 0 1, or the four numbers fx,fy,cx,cy"

Array = NDArray[np.float64]


def read_intrinsics(given: str) -> Array:
    """A camera matrix, for pixels whose centres are at integers.

    Args:
        given: ``fx,fy,cx,cy``, or the name of a text file with these four numbers or with 3 × 3; numbers are
            separated by blanks, commas or ends of lines, and what follows a # is left out.

    Returns:
        (3, 3).

    Raises:
        DataError: the file cannot be read, or holds something else.
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
    """Writes a camera motion.

    Args:
        path: .json holds the summary alone, .npz also the matches and which of them are inliers.
        pose: that was found.
        matches: that it was found from.
        cameras: both matrices (3, 3).
        summary: plain values that say what was found and how.
        overwrite: whether a file may be replaced.

    Raises:
        OutputError: it cannot be written.
        ValueError: nothing was found.
    """
    text = json.dumps(summary, indent=2, allow_nan=False)
    if path.suffix.lower() == ".json":
        write_bytes_atomically(path, f"{text}\n".encode(), overwrite)
        return
    if pose.R is None or pose.t is None:
        raise ValueError(f"there is no motion to write: {pose.failure}")
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
