"""A sparse reconstruction as one HTML file to look at from all sides; it loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.files.writing import write_bytes_atomically
from ucn.geometry.scene import SparseScene
from ucn.viz.reconstruction import view_from_above

MAX_POINTS = 300_000
"""Default of the largest number of points of a page."""

_EXPORT = "export{"


def write_scene_page(
    path: str | Path,
    scene: SparseScene,
    *,
    title: str = "Sparse reconstruction",
    max_points: int = MAX_POINTS,
    overwrite: bool = False,
) -> None:
    """Writes a page with the points and the cameras of a scene, drawn with three.js, which it contains.

    The page works from the disk, without a network. Dragging rotates the view, a click on a camera names its
    image.

    Args:
        path: of the HTML file.
        scene: with at least one camera.
        title: heading of the page.
        max_points: of more points, evenly chosen ones are shown; at least 1.
        overwrite: replace an existing file.

    Raises:
        OutputError: the file cannot be written.
        ValueError: the scene has no camera, or `max_points` is below 1.
    """
    if not len(scene.centres):
        raise ValueError("scene must have at least one camera, got none")
    if max_points < 1:
        raise ValueError(f"max_points must be at least 1, got {max_points}")
    style = _read("viewer.css")
    script = "\n".join([_wrap_three(), _read("viewer.js"), _read("viewer_input.js")])
    parts = {
        "POLICY": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "STYLE": style,
        "SCRIPT": script,
        "SCENE": _to_json(_describe(scene, title, max_points)),
    }
    page = _read("viewer.html")
    for name, text in parts.items():
        before, _, after = page.partition(f"{{{{{name}}}}}")
        page = before + text + after
    write_bytes_atomically(path, page.encode(), overwrite)


def _read(name: str) -> str:
    return (resources.files("ucn.viz") / "page" / name).read_text(encoding="utf-8")


def _wrap_three() -> str:
    """three.js as a constant `THREE`: the exports of the module become properties of an object."""
    code, _, exports = _read("three.module.min.js").rpartition(_EXPORT)
    names = [item.split(" as ") for item in exports.rstrip().removesuffix("};").split(",")]
    members = ",".join(f"{name[-1]}:{name[0]}" for name in names)
    return f"const THREE = (() => {{\n{code}return {{{members}}};\n}})();"


def _hash(text: str) -> str:
    """The source of a content security policy that allows this inline text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _to_json(values: dict[str, Any]) -> str:
    """JSON in ASCII without characters that mean something in HTML: names of files may hold anything."""
    text = json.dumps(values, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _describe(scene: SparseScene, title: str, max_points: int) -> dict[str, Any]:
    count = len(scene.points)
    rows = np.arange(count) if count <= max_points else np.linspace(0, count - 1, max_points).astype(np.int64)
    middle = scene.middle()  # subtracted in double precision: coordinates may be far from 0
    rays = scene.frusta() - scene.centres[:, None]
    rays[:, 0] = scene.centres - middle
    errors = np.nan_to_num(scene.errors[rows], nan=0.0, posinf=1e9, neginf=0.0)
    return {
        "title": title,
        "point_count": count,
        "radius": scene.radius(),
        "axes": view_from_above(scene.rotations, scene.centres).tolist(),
        "positions": _encode(scene.points[rows] - middle, "<f4"),
        "colours": _encode(scene.colours[rows], "u1"),
        "errors": _encode(errors, "<f4"),
        "names": list(scene.names),
        "observations": scene.observations.tolist(),
        "rays": _encode(rays, "<f4"),
        "fields_of_view": _find_fields_of_view(scene).tolist(),
    }


def _find_fields_of_view(scene: SparseScene) -> NDArray[np.float64]:
    """Vertical fields of view (C,) in degrees."""
    top, bottom = scene.corners[:, 0, 1], scene.corners[:, 3, 1]
    return np.asarray(np.degrees(np.arctan(np.abs(top)) + np.arctan(np.abs(bottom))))


def _encode(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
