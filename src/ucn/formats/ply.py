"""Sparse reconstructions as PLY files, which MeshLab, Open3D, CloudCompare and Blender read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.files.writing import write_bytes_atomically
from ucn.geometry.scene import SparseScene

CAMERA_COLOUR = (213, 94, 0)
"""RGB of cameras."""

_MAX_COMMENT = 900
_TYPES = {"f4": "float", "i4": "int", "u1": "uchar"}
_POSITION = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]
_COLOUR = [("red", "u1"), ("green", "u1"), ("blue", "u1")]
_POINT = np.dtype([*_POSITION, *_COLOUR, ("error", "<f4"), ("track_length", "<i4")])
_VERTEX = np.dtype([*_POSITION, *_COLOUR])
_EDGE = np.dtype([("vertex1", "<i4"), ("vertex2", "<i4"), *_COLOUR])
# From the centre, vertex 0, to the image corners, vertices 1 to 4, and around the image.
_FRUSTUM_EDGES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1)], np.int32)


def write_points_ply(path: str | Path, scene: SparseScene, overwrite: bool = False) -> None:
    """Writes the points of a scene: position, colour, reprojection error in pixels, and track length.

    Raises:
        OutputError: the file cannot be written.
    """
    rows = np.zeros(len(scene.points), _POINT)
    _fill(rows, scene.points, scene.colours)
    rows["error"], rows["track_length"] = scene.errors, scene.track_lengths
    write_bytes_atomically(path, _pack({"vertex": rows}), overwrite)


def write_cameras_ply(path: str | Path, scene: SparseScene, overwrite: bool = False) -> None:
    """Writes the cameras of a scene as frusta: five vertices and eight edges each.

    Vertices 5 i to 5 i + 4 belong to camera i: its centre, then the corners of its image from the top left,
    clockwise. The header names the image of each camera in a comment, as JSON.

    Raises:
        OutputError: the file cannot be written.
    """
    frusta = scene.frusta()
    vertices = np.zeros(5 * len(frusta), _VERTEX)
    _fill(vertices, frusta.reshape(-1, 3), CAMERA_COLOUR)
    edges = np.zeros(len(_FRUSTUM_EDGES) * len(frusta), _EDGE)
    ends = (5 * np.arange(len(frusta), dtype=np.int32)[:, None, None] + _FRUSTUM_EDGES).reshape(-1, 2)
    edges["vertex1"], edges["vertex2"] = ends.T
    for name, value in zip(("red", "green", "blue"), CAMERA_COLOUR, strict=True):
        edges[name] = value
    comments = [f"camera {index} {_quote(name)}" for index, name in enumerate(scene.names)]
    write_bytes_atomically(path, _pack({"vertex": vertices, "edge": edges}, comments), overwrite)


def _fill(
    rows: NDArray[np.void], points: NDArray[np.float64], colours: NDArray[np.uint8] | tuple[int, ...]
) -> None:
    for column, name in enumerate("xyz"):
        rows[name] = points[:, column]
    for column, name in enumerate(("red", "green", "blue")):
        rows[name] = np.asarray(colours, np.uint8)[..., column]


def _quote(name: str) -> str:
    """A name in one line of ASCII, cut where readers would refuse the line (1,024 characters)."""
    quoted = json.dumps(name)
    return quoted if len(quoted) <= _MAX_COMMENT else json.dumps(name[: _MAX_COMMENT // 6])


def _pack(elements: dict[str, NDArray[np.void]], comments: Sequence[str] = ()) -> bytes:
    """The bytes of a binary little-endian PLY file."""
    lines = ["ply", "format binary_little_endian 1.0", "comment written by ucn"]
    lines += [f"comment {comment}" for comment in comments]
    for element, rows in elements.items():
        lines.append(f"element {element} {len(rows)}")
        for name in rows.dtype.names or ():
            lines.append(f"property {_TYPES[rows.dtype[name].str.lstrip('<|')]} {name}")
    header = "\n".join([*lines, "end_header", ""]).encode("ascii")
    return header + b"".join(rows.tobytes() for rows in elements.values())
