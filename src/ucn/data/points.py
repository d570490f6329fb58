"""Reads point lists from CSV; writes and reads matches and flow as .npz, .csv, .h5 and .flo.

In files, too, points are (x, y) in pixels with the centre of the top-left pixel at (0, 0).
"""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.errors import DataError, OutputError, PointsError
from ucn.files import (
    is_number,
    pack_h5,
    pack_npz,
    read_binary,
    read_h5,
    read_npz,
    read_text,
    write_bytes_atomically,
)
from ucn.types import BoolArray, FloatArray, Flow, Matches

if TYPE_CHECKING:
    from torch import Tensor

MAX_POINTS_BYTES = 64 * 2**20
"""Larger point files are refused."""
MATCH_COLUMNS = ("x0", "y0", "x1", "y1", "score", "is_mutual")
"""Header of a CSV of matches."""
MATCH_SUFFIXES = (".npz", ".csv", ".h5")
"""Formats of `write_matches`."""
FLOW_SUFFIXES = (".flo", ".npz")
"""Formats of `write_flow`."""

_MATCH_ARRAYS = ("points0", "points1", "scores", "is_mutual")
_MAX_COORDINATE = 1e9  # beyond any image, and well within float32
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
    from torch import Tensor

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
    """Reads points from a CSV file of two columns x, y, with or without a header.

    With a header, the columns x and y are read, in any order, and others ignored; without one, there must be
    two columns. Blank lines and lines that begin with ``#`` are skipped.

    Args:
        path: UTF-8 text, comma-separated, at most `MAX_POINTS_BYTES`.
        image_hw: (H, W) of the image that must contain the points; None skips this check.

    Returns:
        (N, 2) float32, N at least 1, in the file's order.

    Raises:
        PointsError: the file cannot be read, holds no points, or a line is malformed; names file and line.
    """
    columns, column_count = (0, 1), 2
    points: list[tuple[float, float]] = []
    names: list[str] = []
    is_first = True
    for number, line in enumerate(_read_text(Path(path)).splitlines(), start=1):
        where = f"{path}:{number}"
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        cells = split_cells(line, where)
        if is_first and not any(is_number(cell) for cell in cells):
            columns, column_count = _find_columns(cells, where), len(cells)
        elif len(cells) != column_count:
            raise PointsError(
                f"{where}: expected {column_count} columns separated by commas, got {len(cells)}: "
                f"{line[:60]!r}"
            )
        else:
            points.append((_read_number(cells[columns[0]], where), _read_number(cells[columns[1]], where)))
            names.append(where)
        is_first = False
    if not points:
        raise PointsError(f"{path} holds no points; expected one x,y per line")
    if image_hw is not None:
        return check_points(points, image_hw, names)
    return np.asarray(points, dtype=np.float32)


def _read_text(path: Path) -> str:
    try:
        return read_text(path, "points", MAX_POINTS_BYTES)
    except DataError as error:
        raise PointsError(str(error), path=path) from error


def split_cells(line: str, where: str) -> list[str]:
    """Splits one line of CSV into stripped cells; `where` is file and line, for errors."""
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        raise PointsError(f"{where}: expected short comma-separated cells, got {line[:60]!r}…") from error


def _find_columns(cells: list[str], where: str) -> tuple[int, int]:
    """The columns of x and y, from a file's header."""
    header = [cell.lower() for cell in cells]
    if header.count("x") != 1 or header.count("y") != 1:
        got = ",".join(cells)[:60]
        raise PointsError(f"{where}: expected numbers, or a header that names x and y, got {got!r}")
    return header.index("x"), header.index("y")


def _read_number(text: str, where: str) -> float:
    if not is_number(text):
        raise PointsError(f"{where}: expected a number, got {text!r}")
    value = float(text)
    if not abs(value) <= _MAX_COORDINATE:
        raise PointsError(f"{where}: expected a finite number, got {text!r}")
    return value


def check_suffix(path: str | Path, suffixes: Sequence[str], what: str) -> None:
    """Raises `OutputError` where the suffix of an output is none of the supported ones."""
    suffix = Path(path).suffix.lower()
    if suffix not in suffixes:
        raise OutputError(f"cannot write {what} to {path}: its name must end in {', '.join(suffixes)}")


def write_matches(
    path: str | Path,
    matches: Matches,
    meta: Mapping[str, Any] | None = None,
    names: tuple[str, str] = ("image0", "image1"),
    overwrite: bool = False,
) -> None:
    """Writes matches as .npz, .csv or .h5, by the path's suffix.

    .npz: arrays points0, points1, scores, is_mutual, pair_score, image0_hw, image1_hw, and `meta` as JSON
    text. .csv: the header `MATCH_COLUMNS` and one line per match. .h5: group ``names[0]/names[1]`` (hloc's
    name of a pair, slashes replaced by dashes) with the four arrays as data sets and the rest as attributes.

    Args:
        path: the file to write.
        matches: the matches.
        meta: plain values on how the matches were computed (weights, version, config).
        names: names of the two images, for .h5.
        overwrite: replace an existing file.

    Raises:
        OutputError: another suffix, or the file cannot be written.
    """
    check_suffix(path, MATCH_SUFFIXES, "matches")
    meta_text = json.dumps(dict(meta or {}))
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        write_bytes_atomically(path, format_matches(matches).encode(), overwrite)
        return
    arrays = {name: getattr(matches, name) for name in _MATCH_ARRAYS}
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


def format_matches(matches: Matches) -> str:
    """Formats matches as CSV: the header `MATCH_COLUMNS`, then one line per match, in order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(MATCH_COLUMNS)
    for (x0, y0), (x1, y1), score, is_mutual in zip(
        matches.points0.tolist(),
        matches.points1.tolist(),
        matches.scores.tolist(),
        matches.is_mutual.tolist(),
        strict=True,
    ):
        numbers = [f"{value:.3f}" for value in (x0, y0, x1, y1)]
        writer.writerow([*numbers, f"{score:.4f}", int(is_mutual)])
    return text.getvalue()


def read_matches(path: str | Path) -> tuple[Matches, dict[str, Any]]:
    """Reads matches and their meta from a file of `write_matches`: .npz, or .h5 (its first pair).

    Raises:
        DataError: the file is missing, damaged, or has another layout.
    """
    path = Path(path)
    values = read_h5(path, _MATCH_ARRAYS, "matches") if path.suffix.lower() == ".h5" else read_npz(path)
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
        return dict(json.loads(str(values["meta"])))
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
