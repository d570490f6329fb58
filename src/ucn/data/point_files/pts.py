"""Reads .pts files: landmarks of one image, as ibug's 300-W has them.

ibug's format counts pixels from 1, as MATLAB does (its own loader, menpo, subtracts 1 for this reason: menpo
issue 160), so that 1 is subtracted here. A file of bare lines ``x y`` counts from 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.point_files.table import PointTable
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines

IBUG_ORIGIN = 1.0
"""Where ibug's format has the centre of the first pixel."""


def read_landmarks(path: Path, count: int | None = None) -> tuple[NDArray[np.float64], list[int]]:
    """Reads the landmarks of a .pts file.

    Args:
        path: the file.
        count: how many landmarks it must have; None accepts any number that agrees with its `n_points`.

    Returns:
        (N, 2) points in this package's coordinates, and the line of each.

    Raises:
        DataError: the file cannot be read, or is malformed.
    """
    lines = list(read_lines(path, "points"))
    origin, stated = 0.0, count
    if lines and lines[0][1].lower().startswith("version"):
        lines, stated = _strip_frame(path, lines, count)
        origin = IBUG_ORIGIN
    if stated is not None and len(lines) != stated:
        raise DataError(
            f"{path}: expected {stated} lines of x and y, got {len(lines)}; get the file again, or remove it"
        )
    points = [parse_numbers(text, 2, f"{path}:{number}") for number, text in lines]
    return np.array(points, np.float64).reshape(-1, 2) - origin, [number for number, _ in lines]


def read_pts(path: Path) -> PointTable:
    """Reads a .pts file; the parts are numbered from 1, and the image has the name of the file."""
    points, lines = read_landmarks(path)
    columns = {
        "image": (path.stem,) * len(points),
        "part": tuple(str(part) for part in range(1, len(points) + 1)),
    }
    return PointTable(points, columns, tuple(f"{path}:{line}" for line in lines))


def _strip_frame(
    path: Path, lines: list[tuple[int, str]], count: int | None
) -> tuple[list[tuple[int, str]], int | None]:
    """The lines between the braces of ibug's format, and their number by its `n_points`."""
    texts = [text for _, text in lines]
    if "{" not in texts[:10] or texts[-1] != "}":
        raise DataError(
            f"{path}:{lines[-1][0]}: expected lines of x and y between '{{' and a last '}}'; get the file "
            "again, or remove it"
        )
    opening = texts.index("{")
    stated = count
    for number, text in lines[1:opening]:
        key, _, value = (cell.strip() for cell in text.partition(":"))
        if key != "n_points":
            continue
        if count is not None and value != f"{count}":
            raise DataError(
                f"{path}:{number}: expected n_points: {count}, got {value[:20]!r}; give files of 300-W's "
                "scheme"
            )
        if not value.isdecimal() or len(value) > 9:
            raise DataError(f"{path}:{number}: expected a number as n_points, got {value[:20]!r}; correct it")
        stated = int(value)
    return lines[opening + 1 : -1], stated
