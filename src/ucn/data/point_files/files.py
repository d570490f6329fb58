"""The two doors of points files: `read_point_table` and `write_point_table`, by the suffix of the name."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ucn.data.point_files.coco import to_coco
from ucn.data.point_files.delimited import read_delimited
from ucn.data.point_files.json_files import read_json
from ucn.data.point_files.pts import read_pts
from ucn.data.point_files.table import OnError, PointTable
from ucn.errors import DataError, OutputError, PointsError
from ucn.files.reading import MAX_TEXT_BYTES
from ucn.files.writing import write_bytes_atomically

COCO_SUFFIX = ".coco.json"
"""How names of COCO keypoints end; another .json holds rows."""
POINT_TABLE_SUFFIXES = (".csv", ".json")
"""Formats of `write_point_table`."""


def read_point_table(
    path: str | Path,
    *,
    keep_missing: bool = False,
    limit: int = MAX_TEXT_BYTES,
    on_error: OnError | None = None,
) -> PointTable:
    """Reads points with all other columns of their file.

    By the suffix: ``.json`` is COCO keypoints, a labelme file, or rows as `write_point_table` writes them;
    ``.pts`` is 300-W's format; any other is text with a row per point, whose cells commas, semicolons, tabs
    or spaces separate. With a header, the columns x and y (or u and v) hold the point, and all others are
    kept; without one, the two columns of numbers do. Where semicolons or tabs separate, decimals may have a
    comma. Blank lines and lines that begin with ``#`` are skipped.

    Coordinates of labelme (which counts from the corner of the image) and of 300-W (which counts from 1) are
    converted; those of COCO and of text files are used as they are.

    Args:
        path: UTF-8 text.
        keep_missing: keep points that the file marks as missing: v = 0 in COCO, ``visible`` 0 or empty
            coordinates in text, null in rows of JSON. Otherwise those are left out, and empty coordinates
            of a text file are an error.
        limit: the largest size in bytes.
        on_error: called with the error of each row, COCO annotation or labelme shape that is malformed, and
            left out; None raises the first.

    Returns:
        The table; N may be 0.

    Raises:
        PointsError: the file cannot be read, or is malformed; names file and line.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        if suffix == ".json":
            return read_json(path, keep_missing, limit, on_error)
        if suffix == ".pts":
            return read_pts(path)
        return read_delimited(path, keep_missing, limit, on_error)
    except DataError as error:
        raise PointsError(str(error), path=path) from error


def write_point_table(
    path: str | Path,
    table: PointTable,
    *,
    sizes_hw: Mapping[str, tuple[int, int]] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes points with all their columns.

    ``.csv``: a header and a row per point, in the order of the table; missing points have empty coordinates.
    ``.coco.json``: COCO keypoints, an annotation for each image and object, where columns that COCO does not
    know are lists in the annotation's ``attributes``. Another ``.json``: ``{"points": [{...}, ...]}``.

    Args:
        path: the file to write.
        table: the points; for COCO with a column ``image``.
        sizes_hw: (H, W) of images by name, for COCO.
        overwrite: replace an existing file.

    Raises:
        OutputError: another suffix, or the file cannot be written.
        PointsError: COCO cannot hold the points: no image is named, or a part of an object is there twice.
    """
    path = Path(path)
    if path.suffix.lower() not in POINT_TABLE_SUFFIXES:
        expected = f"its name must end in {', '.join(POINT_TABLE_SUFFIXES)} or {COCO_SUFFIX}"
        raise OutputError(f"cannot write points to {path}: {expected}")
    if path.suffix.lower() == ".csv":
        text = format_point_table(table)
    elif is_coco(path):
        text = json.dumps(to_coco(table, sizes_hw or {}), indent=1, ensure_ascii=False) + "\n"
    else:
        text = json.dumps({"points": list_rows(table)}, indent=1, ensure_ascii=False) + "\n"
    write_bytes_atomically(path, text.encode(), overwrite)


def is_coco(path: str | Path) -> bool:
    """Whether a name ends in `COCO_SUFFIX`."""
    return Path(path).name.lower().endswith(COCO_SUFFIX)


def format_point_table(table: PointTable) -> str:
    """Formats a table as CSV: the header, then a row per point; coordinates have the digits they need."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.header)
    names = dict(zip(table.point_names, table.points.T, strict=True))
    columns: list[Any] = [
        map(_format_number, names[name]) if name in names else table.columns[name] for name in table.header
    ]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def list_rows(table: PointTable) -> list[dict[str, Any]]:
    """The rows as JSON objects: columns by `PointTable.kinds`, x and y as numbers or null."""
    rows: list[dict[str, Any]] = []
    columns = {name: table.list_values(name) for name in table.columns}
    for row, (x, y) in enumerate(table.points.tolist()):
        cells: dict[str, Any] = {name: values[row] for name, values in columns.items()}
        point = (None, None) if np.isnan([x, y]).any() else (x, y)
        rows.append({**cells, "x": point[0], "y": point[1]})
    return rows


def _format_number(value: float) -> str:
    """The fewest digits that give the same number; nothing for NaN."""
    return "" if np.isnan(value) else np.format_float_positional(value, trim="-")
