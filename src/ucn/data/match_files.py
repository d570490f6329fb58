"""Writes and reads matches: .npz, .csv, .h5, .json and COCO keypoints.

In files, too, points are (x, y) in pixels with the centre of the top-left pixel at (0, 0).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ucn.data.point_files.coco import to_coco
from ucn.data.point_files.files import COCO_SUFFIX, is_coco
from ucn.data.point_files.table import PointTable, rename_columns
from ucn.data.points import MAX_POINTS_BYTES, check_shape, check_suffix, read_mapping
from ucn.errors import DataError
from ucn.files.arrays import pack_h5, pack_npz, read_h5, read_npz
from ucn.files.reading import is_number, read_text, shorten
from ucn.files.writing import write_bytes_atomically
from ucn.types import BoolArray, Matches, ViewChange

MATCH_COLUMNS = ("x0", "y0", "x1", "y1", "score", "is_mutual")
"""Header of a CSV of matches."""
MATCH_SUFFIXES = (".npz", ".csv", ".h5", ".json", COCO_SUFFIX)
"""Formats of `write_matches`."""

MAX_MATCH_BYTES = 256 * 2**20
"""Files of matches with more, and those whose arrays declare more, are refused."""

_READ_SUFFIXES = (".npz", ".csv", ".h5")
_MATCH_ARRAYS = ("points0", "points1", "scores", "is_mutual")
_MATCH_VALUES = ("pair_score", "image0_hw", "image1_hw", "meta", "view_change")
_INLIERS = "is_inlier"
_MAX_COORDINATE = 1e9  # beyond any image, and well within float32


def write_matches(
    path: str | Path,
    matches: Matches,
    meta: Mapping[str, Any] | None = None,
    names: tuple[str, str] = ("image0", "image1"),
    overwrite: bool = False,
    is_inlier: BoolArray | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Writes matches as .npz, .csv, .h5, .json or .coco.json, by the path's suffix.

    .npz: arrays points0, points1, scores, is_mutual, pair_score, image0_hw, image1_hw; as JSON text `meta`,
    `columns` and, where known, view_change. .csv: the header `MATCH_COLUMNS`, the names of `columns`, and one
    line per match. .h5: group ``names[0]/names[1]`` (hloc's name of a pair, slashes replaced by dashes) with
    the four arrays and `columns` as data sets and the rest as attributes. .json: ``points``, a list of rows,
    beside the rest. .coco.json: the points of image 1 as COCO keypoints, named by `columns`.

    With `is_inlier`, all but .coco.json hold it as one more array or column.

    Args:
        path: the file to write.
        matches: the matches.
        meta: plain values on how the matches were computed (weights, version, config).
        names: names of the two images, for .h5 and COCO.
        overwrite: replace an existing file.
        is_inlier: (N,) inliers of a geometric verification; None where there was none.
        columns: what is known of each match, as text by name, such as the columns of a `PointTable`; one
            whose name is taken is written as ``input_NAME``.

    Raises:
        OutputError: another suffix, or the file cannot be written.
        ValueError: `is_inlier` is not (N,).
    """
    check_suffix(path, MATCH_SUFFIXES, "matches")
    suffix = Path(path).suffix.lower()
    if suffix in (".csv", ".json"):
        text = _format_text(Path(path), matches, meta, names[1], is_inlier, columns)
        write_bytes_atomically(path, text.encode(), overwrite)
        return
    arrays: dict[str, Any] = {name: getattr(matches, name) for name in _MATCH_ARRAYS}
    if is_inlier is not None:
        arrays[_INLIERS] = _check_inliers(is_inlier, len(matches))
    if columns:
        arrays["columns"] = json.dumps({name: list(cells) for name, cells in columns.items()})
    values = {
        "pair_score": matches.pair_score,
        "image0_hw": np.asarray(matches.image0_hw, np.int64),
        "image1_hw": np.asarray(matches.image1_hw, np.int64),
        "meta": json.dumps(dict(meta or {})),
    }
    if matches.view_change is not None:
        values["view_change"] = json.dumps(asdict(matches.view_change))
    if suffix == ".npz":
        content = pack_npz({**arrays, **values})
    else:
        content = pack_h5("/".join(name.replace("/", "-") for name in names), arrays, values)
    write_bytes_atomically(path, content, overwrite)


def format_matches(
    matches: Matches, is_inlier: BoolArray | None = None, columns: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Formats matches as CSV: the header `MATCH_COLUMNS`, then one line per match, in order.

    Args:
        matches: the matches.
        is_inlier: (N,) a column of that name, of 0 and 1.
        columns: more columns, as for `write_matches`.
    """
    more = _more_columns(matches, is_inlier, columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*MATCH_COLUMNS, *more])
    for (x0, y0), (x1, y1), score, is_mutual, *cells in _zip_rows(matches, more):
        numbers = [f"{value:.3f}" for value in (x0, y0, x1, y1)]
        last = [int(cell) if isinstance(cell, bool) else cell for cell in cells]
        writer.writerow([*numbers, f"{score:.4f}", int(is_mutual), *last])
    return text.getvalue()


def list_matches(
    matches: Matches, is_inlier: BoolArray | None = None, columns: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """The rows of `format_matches` as JSON objects; positions may be NaN."""
    more = _more_columns(matches, is_inlier, columns)
    names = (*MATCH_COLUMNS, *more)
    return [
        dict(zip(names, (*point0, *point1, score, is_mutual, *cells), strict=True))
        for point0, point1, score, is_mutual, *cells in _zip_rows(matches, more)
    ]


def _more_columns(
    matches: Matches, is_inlier: BoolArray | None, columns: Mapping[str, Sequence[str]] | None
) -> dict[str, Sequence[Any]]:
    """The columns behind `MATCH_COLUMNS`."""
    own = {} if is_inlier is None else {_INLIERS: _check_inliers(is_inlier, len(matches)).tolist()}
    return {**own, **rename_columns(columns, (*MATCH_COLUMNS, *own))}


def _check_inliers(is_inlier: BoolArray, count: int) -> BoolArray:
    if is_inlier.shape != (count,) or is_inlier.dtype != np.bool_:
        raise ValueError(
            f"is_inlier must be bool ({count},) as the matches, got {is_inlier.dtype} {is_inlier.shape}"
        )
    return is_inlier


def _zip_rows(matches: Matches, columns: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    arrays = (getattr(matches, name).tolist() for name in _MATCH_ARRAYS)
    return zip(*arrays, *columns.values(), strict=True)


def _format_text(
    path: Path,
    matches: Matches,
    meta: Mapping[str, Any] | None,
    image1: str,
    is_inlier: BoolArray | None,
    columns: Mapping[str, Sequence[str]] | None,
) -> str:
    if path.suffix.lower() == ".csv":
        return format_matches(matches, is_inlier, columns)
    values: dict[str, Any]
    if is_coco(path):
        values = to_coco(_to_table(matches, image1, columns), {image1: matches.image1_hw})
    else:
        values = {
            "pair_score": _without_nan(float(matches.pair_score)),
            "image0_hw": list(matches.image0_hw),
            "image1_hw": list(matches.image1_hw),
            "meta": dict(meta or {}),
            "points": [
                {name: _without_nan(value) for name, value in row.items()}
                for row in list_matches(matches, is_inlier, columns)
            ],
        }
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _without_nan(value: Any) -> Any:
    return None if value != value else value


def _to_table(matches: Matches, image1: str, columns: Mapping[str, Sequence[str]] | None) -> PointTable:
    """The points of image 1, rounded as in CSV, with what is known of each."""
    points = np.asarray(np.round(matches.points1.astype(np.float64), 3), np.float64)
    found: dict[str, Sequence[str]] = {
        "image": [image1] * len(matches),
        "score": [f"{score:.4f}" for score in matches.scores.tolist()],
        "is_mutual": [str(int(is_mutual)) for is_mutual in matches.is_mutual.tolist()],
    }
    given = PointTable(points, {name: tuple(cells) for name, cells in (columns or {}).items()})
    of_image0 = {given.column_of(role) for role in ("image", "visible", "box")}
    kept = {name: cells for name, cells in given.columns.items() if name not in of_image0}
    every = {**rename_columns(kept, found), **found}
    return PointTable(points, {name: tuple(cells) for name, cells in every.items()})


def read_matches(path: str | Path) -> tuple[Matches, dict[str, Any]]:
    """Reads matches and their meta from a file of `write_matches`: .npz, .csv, or .h5 (its first pair).

    A .csv has coordinates to 0.001 px and scores to 0.0001: the score of the pair is NaN, the sizes of the
    images are (0, 0). Where the file has columns of the user, the meta has them as ``columns``.

    Raises:
        DataError: the file is missing, damaged, or has another layout.
    """
    path = Path(path)
    if path.suffix.lower() not in _READ_SUFFIXES:
        raise DataError(
            f"cannot read matches from {path}: its name must end in {', '.join(_READ_SUFFIXES)}", path=path
        )
    if path.suffix.lower() == ".csv":
        return _read_match_rows(path)
    names = (*_MATCH_ARRAYS, "columns")
    is_h5 = path.suffix.lower() == ".h5"
    values = (
        read_h5(path, names, "matches", MAX_MATCH_BYTES)
        if is_h5
        else read_npz(path, MAX_MATCH_BYTES, (*names, *_MATCH_VALUES))
    )
    try:
        hw0, hw1 = ((int(hw[0]), int(hw[1])) for hw in (values["image0_hw"], values["image1_hw"]))
        points0, points1, scores = (
            np.asarray(values[name], np.float32) for name in ("points0", "points1", "scores")
        )
        is_mutual: BoolArray = np.asarray(values["is_mutual"], np.bool_)
        count = len(scores) if scores.ndim else 0
        for name, array in zip(_MATCH_ARRAYS, (points0, points1, scores, is_mutual), strict=True):
            check_shape(name, array, (count, 2) if name.startswith("points") else (count,))
        meta = read_mapping(values, "meta")
        if "columns" in values:
            meta["columns"] = read_mapping(values, "columns")
        pair_score, change = float(values["pair_score"]), _read_view_change(values)
        return Matches(points0, points1, scores, is_mutual, pair_score, hw0, hw1, change), meta
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise DataError(f"{path} does not hold matches: {shorten(error)}") from error


def _read_view_change(values: Mapping[str, Any]) -> ViewChange | None:
    if "view_change" not in values:
        return None
    found = read_mapping(values, "view_change")
    scale, degrees, encodings = float(found["scale"]), float(found["degrees"]), int(found["encodings"])
    return ViewChange(scale, degrees, encodings, bool(found["is_searched"]))


def _read_match_rows(path: Path) -> tuple[Matches, dict[str, Any]]:
    """Reads the CSV of `format_matches`; the meta holds the columns of the user, if there are any."""
    reader = csv.reader(io.StringIO(read_text(path, "matches", MAX_POINTS_BYTES)))
    try:
        return _parse_match_rows(path, reader)
    except csv.Error as error:
        expected = "expected short cells separated by commas"
        raise DataError(f"{path}:{reader.line_num}: {expected} ({error}); correct it", path=path) from error


def _parse_match_rows(path: Path, reader: Any) -> tuple[Matches, dict[str, Any]]:
    header: list[str] = next(reader, [])
    width = len(MATCH_COLUMNS)
    if tuple(header[:width]) != MATCH_COLUMNS:
        expected = f"expected the header {','.join(MATCH_COLUMNS)}, got {','.join(header)[:60]!r}"
        raise DataError(f"{path}:1: {expected}; write it again", path=path)
    rows, texts, places = [], [], []
    for cells in reader:
        given = ",".join(cells)[:60]
        if len(cells) != len(header) or not all(is_number(cell) for cell in cells[:width]):
            expected = f"expected {','.join(header)}, got {given!r}; correct it"
            raise DataError(f"{path}:{reader.line_num}: {expected}", path=path)
        rows.append([float(cell) for cell in cells[:width]])
        texts.append(cells[width:])
        places.append(f"{path}:{reader.line_num}: value out of range in {given!r}; correct it")
    values = np.array(rows, np.float64).reshape(-1, width)
    lowest, highest = np.array([[-_MAX_COORDINATE] * 4 + [0, 0], [_MAX_COORDINATE] * 4 + [1, 1]])
    is_legal = (values >= lowest) & (values <= highest)
    is_legal[:, 2:4] |= np.isnan(values[:, 2:4])  # a point without a match
    wrong = np.flatnonzero(~is_legal.all(axis=1))
    if len(wrong):
        raise DataError(places[wrong[0]], path=path)
    points0, points1, scores = (values[:, columns].astype(np.float32) for columns in ([0, 1], [2, 3], 4))
    found = Matches(points0, points1, scores, values[:, 5] == 1, float("nan"), (0, 0), (0, 0))
    named = {name: [row[i] for row in texts] for i, name in enumerate(header[width:]) if name != _INLIERS}
    return found, {"columns": named} if named else {}
