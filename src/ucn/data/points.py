"""Reads points as an array; writes and reads matches and flow as .npz, .csv, .h5 and .flo.

In files, too, points are (x, y) in pixels with the centre of the top-left pixel at (0, 0).
"""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ucn.data.point_files.coco import to_coco
from ucn.data.point_files.files import COCO_SUFFIX, is_coco, read_point_table
from ucn.data.point_files.table import PointTable, rename_columns
from ucn.errors import DataError, OutputError, PointsError
from ucn.files import (
    pack_h5,
    pack_npz,
    read_binary,
    read_h5,
    read_npz,
    write_bytes_atomically,
)
from ucn.types import BoolArray, FloatArray, Flow, Matches

MAX_POINTS_BYTES = 64 * 2**20
"""Larger point files are refused."""
MATCH_COLUMNS = ("x0", "y0", "x1", "y1", "score", "is_mutual")
"""Header of a CSV of matches."""
MATCH_SUFFIXES = (".npz", ".csv", ".h5", ".json", COCO_SUFFIX)
"""Formats of `write_matches`."""
FLOW_SUFFIXES = (".flo", ".npz")
"""Formats of `write_flow`."""

_MATCH_ARRAYS = ("points0", "points1", "scores", "is_mutual")
_FLO_MAGIC = struct.pack("<f", 202021.25)  # reads "PIEH"
_FLO_UNKNOWN = 1e10  # Middlebury: a component above 1e9 marks an unknown vector


def check_points(
    points: ArrayLike | Tensor, image_hw: tuple[int, int], row_names: Sequence[str] | None = None
) -> FloatArray:
    """Checks that points are finite and inside an image.

    Args:
        points: (N, 2) rows of x, y; N may be 0.
        image_hw: (H, W) of the image, which spans [-0.5, W - 0.5] x [-0.5, H - 0.5].
        row_names: names of the rows in errors; by default "row 0", "row 1", ...

    Returns:
        (N, 2) float32.

    Raises:
        PointsError: wrong shape, not numbers, not finite, or outside the image; names the first bad row.
    """
    if isinstance(points, Tensor):
        points = points.detach().cpu().numpy()
    try:
        array = np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PointsError(f"points must be (N, 2) numbers, got {error}") from error
    if array.size == 0 and array.shape in ((0,), (0, 2)):
        return np.zeros((0, 2), np.float32)
    if array.ndim != 2 or array.shape[1] != 2:
        raise PointsError(f"points must be (N, 2), one x, y per row, got {array.shape}")
    height, width = image_hw
    x, y = array.T
    is_finite = np.isfinite(x) & np.isfinite(y)
    is_inside = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    bad = np.flatnonzero(~(is_finite & is_inside))
    if len(bad):
        first = int(bad[0])
        name = row_names[first] if row_names is not None else f"row {first}"
        wrong = "lies outside the image" if is_finite[first] else "is not finite"
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise PointsError(
            f"{name}: point ({x[first]:g}, {y[first]:g}) {wrong}{more}; the image is {width} × {height}, "
            f"so x must be in [-0.5, {width - 0.5:g}] and y in [-0.5, {height - 0.5:g}]"
        )
    return array.astype(np.float32)


def read_points(path: str | Path, image_hw: tuple[int, int] | None = None) -> FloatArray:
    """Reads the points of a file: text with a row per point, COCO keypoints, labelme or .pts.

    `read_point_table` explains the formats, and keeps the other columns. Points that the file marks as
    missing are left out.

    Args:
        path: UTF-8 text, at most `MAX_POINTS_BYTES`.
        image_hw: (H, W) of the image that must contain the points; None skips this check.

    Returns:
        (N, 2) float32, N at least 1, in the file's order.

    Raises:
        PointsError: the file cannot be read, holds no points, or a line is malformed; names file and line.
    """
    table = read_point_table(path, limit=MAX_POINTS_BYTES)
    if not len(table):
        raise PointsError(f"{path} holds no points; expected one x,y per line")
    if image_hw is not None:
        return check_points(table.points, image_hw, table.places)
    return table.points.astype(np.float32)


def read_image_points(path: str | Path, image: str | Path, image_hw: tuple[int, int]) -> PointTable:
    """Reads the points of one image with all columns of their file.

    Args:
        path: as for `read_points`; where it has points of several images, those of this one are taken.
        image: path of the image.
        image_hw: its (H, W).

    Returns:
        The table, N at least 1; all points lie in the image.

    Raises:
        PointsError: as `read_points`, or no point is of this image.
    """
    table = read_point_table(path, limit=MAX_POINTS_BYTES)
    if not len(table):
        raise PointsError(f"{path} holds no points; expected one x,y per line")
    try:
        table = table.of_image(image)
    except PointsError as error:
        raise PointsError(f"{path}: {error}") from error
    check_points(table.points, image_hw, table.places)
    return table


def check_suffix(path: str | Path, suffixes: Sequence[str], what: str) -> None:
    """Raises `OutputError` where the suffix of an output is none of the supported ones."""
    if Path(path).suffix.lower() not in suffixes:
        raise OutputError(f"cannot write {what} to {path}: its name must end in {', '.join(suffixes)}")


def write_matches(
    path: str | Path,
    matches: Matches,
    meta: Mapping[str, Any] | None = None,
    names: tuple[str, str] = ("image0", "image1"),
    overwrite: bool = False,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Writes matches as .npz, .csv, .h5, .json or .coco.json, by the path's suffix.

    .npz: arrays points0, points1, scores, is_mutual, pair_score, image0_hw, image1_hw, and `meta` and
    `columns` as JSON text. .csv: the header `MATCH_COLUMNS`, the names of `columns`, and one line per match.
    .h5: group ``names[0]/names[1]`` (hloc's name of a pair, slashes replaced by dashes) with the four arrays
    and `columns` as data sets and the rest as attributes. .json: ``points``, a list of rows, beside the rest.
    .coco.json: the points of image 1 as COCO keypoints, named by `columns`.

    Args:
        path: the file to write.
        matches: the matches.
        meta: plain values on how the matches were computed (weights, version, config).
        names: names of the two images, for .h5 and COCO.
        overwrite: replace an existing file.
        columns: what is known of each match, as text by name, such as the columns of a `PointTable`; one
            whose name is in `MATCH_COLUMNS` is written as ``input_NAME``.

    Raises:
        OutputError: another suffix, or the file cannot be written.
    """
    check_suffix(path, MATCH_SUFFIXES, "matches")
    suffix = Path(path).suffix.lower()
    if suffix in (".csv", ".json"):
        text = _format_text(Path(path), matches, meta, names[1], columns)
        write_bytes_atomically(path, text.encode(), overwrite)
        return
    meta_text = json.dumps(dict(meta or {}))
    arrays: dict[str, Any] = {name: getattr(matches, name) for name in _MATCH_ARRAYS}
    if columns:
        arrays["columns"] = json.dumps({name: list(cells) for name, cells in columns.items()})
    values = {
        "pair_score": matches.pair_score,
        "image0_hw": np.asarray(matches.image0_hw, np.int64),
        "image1_hw": np.asarray(matches.image1_hw, np.int64),
        "meta": meta_text,
    }
    if suffix == ".npz":
        content = pack_npz({**arrays, **values})
    else:
        content = pack_h5("/".join(name.replace("/", "-") for name in names), arrays, values)
    write_bytes_atomically(path, content, overwrite)


def _format_text(
    path: Path,
    matches: Matches,
    meta: Mapping[str, Any] | None,
    image1: str,
    columns: Mapping[str, Sequence[str]] | None,
) -> str:
    if path.suffix.lower() == ".csv":
        return format_matches(matches, columns)
    values: dict[str, Any]
    if is_coco(path):
        values = to_coco(_to_table(matches, image1, columns), {image1: matches.image1_hw})
    else:
        values = {
            "pair_score": float(matches.pair_score),
            "image0_hw": list(matches.image0_hw),
            "image1_hw": list(matches.image1_hw),
            "meta": dict(meta or {}),
            "points": [
                {name: _without_nan(value) for name, value in row.items()}
                for row in list_matches(matches, columns)
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


def format_matches(matches: Matches, columns: Mapping[str, Sequence[str]] | None = None) -> str:
    """Formats matches as CSV: the header `MATCH_COLUMNS`, then one line per match, in order.

    Args:
        matches: the matches.
        columns: more columns, as for `write_matches`.
    """
    more = rename_columns(columns, MATCH_COLUMNS)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*MATCH_COLUMNS, *more])
    for (x0, y0), (x1, y1), score, is_mutual, *cells in _zip_rows(matches, more):
        numbers = [f"{value:.3f}" for value in (x0, y0, x1, y1)]
        writer.writerow([*numbers, f"{score:.4f}", int(is_mutual), *cells])
    return text.getvalue()


def list_matches(
    matches: Matches, columns: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """The rows of `format_matches` as JSON objects; positions may be NaN."""
    more = rename_columns(columns, MATCH_COLUMNS)
    names = (*MATCH_COLUMNS, *more)
    return [
        dict(zip(names, (*point0, *point1, score, is_mutual, *cells), strict=True))
        for point0, point1, score, is_mutual, *cells in _zip_rows(matches, more)
    ]


def _zip_rows(matches: Matches, columns: Mapping[str, Sequence[str]]) -> Iterator[tuple[Any, ...]]:
    arrays = (getattr(matches, name).tolist() for name in _MATCH_ARRAYS)
    return zip(*arrays, *columns.values(), strict=True)


def read_matches(path: str | Path) -> tuple[Matches, dict[str, Any]]:
    """Reads matches and their meta from a file of `write_matches`: .npz, or .h5 (its first pair).

    Where the file has more columns, the meta has them as ``columns``.

    Raises:
        DataError: the file is missing, damaged, or has another layout.
    """
    path = Path(path)
    values = (
        read_h5(path, (*_MATCH_ARRAYS, "columns"), "matches")
        if path.suffix.lower() == ".h5"
        else read_npz(path)
    )
    try:
        hw0, hw1 = ((int(hw[0]), int(hw[1])) for hw in (values["image0_hw"], values["image1_hw"]))
        points0, points1, scores = (
            np.asarray(values[name], np.float32) for name in ("points0", "points1", "scores")
        )
        is_mutual: BoolArray = np.asarray(values["is_mutual"], np.bool_)
        count = len(scores) if scores.ndim else 0
        for name, array in zip(_MATCH_ARRAYS, (points0, points1, scores, is_mutual), strict=True):
            _check_shape(name, array, (count, 2) if name.startswith("points") else (count,))
        meta = _read_meta(values)
        return Matches(points0, points1, scores, is_mutual, float(values["pair_score"]), hw0, hw1), meta
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise DataError(f"{path} does not hold matches: {error}") from error


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} must be {shape}, got {array.shape}")


def _read_meta(values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        meta = dict(json.loads(str(values["meta"])))
        if "columns" in values:
            text = values["columns"]
            meta["columns"] = dict(json.loads(text if isinstance(text, bytes) else str(text)))
        return meta
    except RecursionError:
        raise ValueError("its meta is nested too deeply") from None


def write_flow(
    path: str | Path, flow: Flow, meta: Mapping[str, Any] | None = None, overwrite: bool = False
) -> None:
    """Writes flow as .flo (Middlebury's format, without confidence) or .npz (flow_0to1, confidence, meta).

    Args:
        path: the file to write.
        flow: the flow; in .flo, NaN becomes 1e10, the format's mark of an unknown vector.
        meta: plain values on how the flow was computed; .flo cannot hold them.
        overwrite: replace an existing file.

    Raises:
        OutputError: another suffix, or the file cannot be written.
    """
    check_suffix(path, FLOW_SUFFIXES, "flow")
    if Path(path).suffix.lower() == ".flo":
        height, width = flow.flow_0to1.shape[:2]
        vectors = np.where(np.isfinite(flow.flow_0to1), flow.flow_0to1, _FLO_UNKNOWN).astype("<f4")
        content = _FLO_MAGIC + struct.pack("<ii", width, height) + vectors.tobytes()
    else:
        meta_text = json.dumps(dict(meta or {}))
        content = pack_npz({"flow_0to1": flow.flow_0to1, "confidence": flow.confidence, "meta": meta_text})
    write_bytes_atomically(path, content, overwrite)


def read_flow(path: str | Path) -> tuple[Flow, dict[str, Any]]:
    """Reads flow and its meta from an .npz of `write_flow`; raises `DataError` for other files."""
    values = read_npz(Path(path))
    try:
        flow = Flow(np.asarray(values["flow_0to1"], np.float32), np.asarray(values["confidence"], np.float32))
        if flow.confidence.ndim != 2:
            raise ValueError(f"confidence must be (H, W), got {flow.confidence.shape}")
        _check_shape("flow_0to1", flow.flow_0to1, (*flow.confidence.shape, 2))
        return flow, _read_meta(values)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} does not hold flow: {error}") from error


def read_flo(path: str | Path) -> FloatArray:
    """Reads a Middlebury .flo file.

    Returns:
        (H, W, 2) float32; NaN where the vector is unknown.

    Raises:
        DataError: the file is missing, not .flo, or its length does not match its header.
    """
    path = Path(path)
    content = read_binary(path, "flow")
    if len(content) < 12 or content[:4] != _FLO_MAGIC:
        expected = f"{path} is not a .flo file: expected it to begin with 'PIEH', got {content[:4]!r}"
        raise DataError(f"{expected}; get it again", path=path)
    width, height = struct.unpack("<ii", content[4:12])
    if width < 1 or height < 1 or len(content) != 12 + 8 * width * height:
        raise DataError(
            f"{path}: expected 12 header bytes and 8 for each of {width} × {height} vectors, "
            f"got {len(content):,} in all; get it again",
            path=path,
        )
    flow = np.frombuffer(content, "<f4", offset=12).reshape(height, width, 2).astype(np.float32)
    flow[(np.abs(flow) > 1e9).any(axis=-1)] = np.nan
    return flow
