"""Reads points as an array; writes and reads flow as .npz and .flo.

In files, too, points are (x, y) in pixels with the centre of the top-left pixel at (0, 0).
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.data.point_files.files import read_point_table
from ucn.data.point_files.table import PointTable
from ucn.errors import DataError, OutputError, PointsError
from ucn.files.arrays import pack_npz, read_npz
from ucn.files.reading import read_binary
from ucn.files.writing import write_bytes_atomically
from ucn.types import FloatArray, Flow

if TYPE_CHECKING:
    from torch import Tensor

MAX_POINTS_BYTES = 64 * 2**20
"""Larger point files are refused."""
FLOW_SUFFIXES = (".flo", ".npz")
"""Formats of `write_flow`."""

_FLO_MAGIC = struct.pack("<f", 202021.25)  # reads "PIEH"
_FLO_UNKNOWN = 1e10  # Middlebury: a component above 1e9 marks an unknown vector


def to_numbers(points: ArrayLike | Tensor, name: str = "points") -> NDArray[np.float64]:
    """Points as float64 of any shape; raises `PointsError` under a name where they are not numbers."""
    try:
        # torch takes seconds to import; without it there are no tensors.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(
            points, torch.Tensor
        ):  # float64 also takes types that numpy lacks, such as bfloat16
            points = points.detach().to("cpu", torch.float64).numpy()
        return np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # sparse and meta tensors raise the last
        raise PointsError(f"{name} must be (N, 2) numbers, got {error}") from error


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
    array = to_numbers(points)
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


def check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raises ValueError unless an array has this shape."""
    if array.shape != shape:
        raise ValueError(f"{name} must be {shape}, got {array.shape}")


def read_mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Reads a mapping from JSON text."""
    try:
        text = values[name]
        return dict(json.loads(text if isinstance(text, bytes) else str(text)))
    except RecursionError:
        raise ValueError(f"its {name} is nested too deeply") from None


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
        check_shape("flow_0to1", flow.flow_0to1, (*flow.confidence.shape, 2))
        return flow, read_mapping(values, "meta")
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
