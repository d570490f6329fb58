"""Reads points from JSON: COCO keypoints, labelme, and rows as `ucn` writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ucn.data.point_files.delimited import MAX_COORDINATE
from ucn.data.point_files.table import OnError, PointTable
from ucn.errors import PointsError
from ucn.files.reading import MAX_TEXT_BYTES, read_text

LABELME_ORIGIN = 0.5
"""labelme counts from the corner of the image, so that the centre of its first pixel is (0.5, 0.5)."""

_FORMATS = (
    "COCO keypoints (images, annotations, categories), a labelme file (shapes), or points: "
    '[{"x": 1, "y": 2}, …]'
)


@dataclass
class _Rows:
    """Collects rows; a cell that a row does not have is empty."""

    keep_missing: bool
    on_error: OnError | None
    points: list[tuple[float, float]] = field(default_factory=list)
    cells: list[Mapping[str, str]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add(self, point: tuple[float, float], cells: Mapping[str, str], place: str) -> None:
        if self.keep_missing or not math.isnan(point[0]):
            self.points.append(point)
            self.cells.append(cells)
            self.places.append(place)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Rows are added together, or not at all: then an error is passed on."""
        count = len(self.points)
        try:
            yield
        except PointsError as error:
            for each in (self.points, self.cells, self.places):
                del each[count:]
            if self.on_error is None:
                raise
            self.on_error(error)

    def finish(self, notes: Iterable[str] = (), names: Iterable[str] = ()) -> PointTable:
        """The table; `names` are columns that come first."""
        order = dict.fromkeys([*names, *(name for cells in self.cells for name in cells)])
        columns = {name: tuple(_clean(cells.get(name, "")) for cells in self.cells) for name in order}
        used = {name: cells for name, cells in columns.items() if any(cells)}
        array = np.array(self.points, np.float64).reshape(-1, 2)
        return PointTable(array, used, tuple(self.places), notes=tuple(notes))


def read_json(
    path: Path, keep_missing: bool, limit: int = MAX_TEXT_BYTES, on_error: OnError | None = None
) -> PointTable:
    """Reads a JSON file of points; `ucn.data.point_files.files.read_point_table` explains it.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
        PointsError: it is not JSON, or none of the formats.
    """
    values = parse_json(path, limit)
    rows = _Rows(keep_missing, on_error)
    if isinstance(values, dict) and "annotations" in values:
        return _read_coco(path, values, rows)
    if isinstance(values, dict) and "shapes" in values:
        return _read_labelme(path, values, rows)
    if isinstance(values, dict):
        values = values.get("points")
    if not isinstance(values, list):
        raise PointsError(f"{path}: expected {_FORMATS}", path=path)
    return _read_rows(path, values, rows)


def parse_json(path: Path, limit: int = MAX_TEXT_BYTES) -> Any:
    """The content of a JSON file; raises `DataError` where it is none."""
    text = read_text(path, "points", limit)
    try:
        return json.loads(text)
    except RecursionError:
        raise PointsError(f"{path}: it is nested too deeply; expected {_FORMATS}", path=path) from None
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}"
        raise PointsError(f"{where}: expected JSON, got an error: {error.msg}; write it again") from error
    except ValueError as error:  # a whole number of thousands of digits
        raise PointsError(f"{path}: expected JSON, got {str(error)[:80]}; write it again") from error


def _read_coco(path: Path, values: Mapping[str, Any], rows: _Rows) -> PointTable:
    """One row for each keypoint of each annotation; v = 0 means that it is missing."""
    images = {
        _read_id(image, "id", where): _read_name(image, "file_name", where)
        for image, where in _read_objects(values, "images", path)
    }
    categories = {
        _read_id(category, "id", where): (_read_name(category, "name", where), _read_parts(category, where))
        for category, where in _read_objects(values, "categories", path, is_required=False)
    }
    without = 0
    for number, (annotation, where) in enumerate(_read_objects(values, "annotations", path), start=1):
        if "keypoints" not in annotation:
            without += 1
            continue
        with rows.checked():
            image = _read_id(annotation, "image_id", where)
            if image not in images:
                raise PointsError(f"{where}: image_id {image} is none of 'images'; add the image")
            key = _read_id(annotation, "category_id", where) if categories else ""
            if categories and key not in categories:
                raise PointsError(f"{where}: category_id {key} is none of 'categories'; add it")
            category, names = categories.get(key, ("", ()))
            object_id = _read_id(annotation, "id", where) if "id" in annotation else str(number)
            cells = {"image": images[image], "class": category, "object": object_id}
            _add_keypoints(rows, annotation, where, cells, names)
    notes = [f"{path}: {without:,} annotations without keypoints are left out"] if without else []
    return rows.finish(notes, ("image", "class", "object", "part", "visible"))


def _add_keypoints(
    rows: _Rows, annotation: Mapping[str, Any], where: str, cells: Mapping[str, str], names: tuple[str, ...]
) -> None:
    """Adds the keypoints of an annotation."""
    values = annotation["keypoints"]
    count = len(values) // 3 if isinstance(values, list) else -1
    if count < 0 or len(values) != 3 * (len(names) or count):
        expected = f"{len(names)} × 3 numbers" if names else "three numbers for each point"
        raise PointsError(f"{where}: keypoints must be x, y, v of each point: {expected}; correct it")
    names = names or tuple(str(part) for part in range(1, count + 1))
    if "bbox" in annotation:
        box = [_read_number(value, f"{where}: bbox") for value in _read_list(annotation, "bbox", 4, where)]
        cells = {**cells, "box": " ".join(f"{value:g}" for value in box)}
    attributes = _read_attributes(annotation, count)
    for part, name in enumerate(names):
        place = f"{where}: keypoint {name[:40]!r}"
        x, y, visible = (_read_number(value, place) for value in values[3 * part : 3 * part + 3])
        if visible not in (0, 1, 2):
            raise PointsError(f"{place}: v must be 0, 1 or 2, got {visible:g}; correct it")
        point = (x, y) if visible else (math.nan, math.nan)
        extra = {key: texts[part] for key, texts in attributes.items() if key not in cells}
        rows.add(point, {**cells, "part": name, "visible": f"{visible:g}", **extra}, place)


def _read_attributes(annotation: Mapping[str, Any], count: int) -> dict[str, list[str]]:
    """The columns that `ucn` writes beside the keypoints of an annotation: a value for each."""
    attributes = annotation.get("attributes")
    if not isinstance(attributes, dict):
        return {}
    return {
        name: [to_cell(value) for value in values]
        for name, values in attributes.items()
        if isinstance(values, list) and len(values) == count
    }


def _read_labelme(path: Path, values: Mapping[str, Any], rows: _Rows) -> PointTable:
    """One row for each point; shapes of other kinds are left out."""
    image = Path(_read_name(values, "imagePath", f"{path}").replace("\\", "/")).name
    others = 0
    for shape, where in _read_objects(values, "shapes", path):
        if shape.get("shape_type") != "point":
            others += 1
            continue
        with rows.checked():
            (spot,) = _read_list(shape, "points", 1, where)
            if not isinstance(spot, list) or len(spot) != 2:
                raise PointsError(f"{where}: points must be [[x, y]]; correct it")
            x, y = (_read_number(value, where) - LABELME_ORIGIN for value in spot)
            cells = {"image": image, "part": to_cell(shape.get("label"))}
            cells["object"] = to_cell(shape.get("group_id"))
            cells["description"] = to_cell(shape.get("description"))
            rows.add((x, y), cells, where)
    notes = [f"{path}: {others:,} shapes that are no points are left out"] if others else []
    return rows.finish(notes, ("image", "object", "part"))


def _read_rows(path: Path, values: list[Any], rows: _Rows) -> PointTable:
    """Rows [x, y], or objects with x and y; null means that the point is missing."""
    for number, value in enumerate(values):
        where = f"{path}: points[{number}]"
        with rows.checked():
            _add_row(rows, value, where)
    return rows.finish()


def _add_row(rows: _Rows, value: Any, where: str) -> None:
    if isinstance(value, list) and len(value) == 2:
        value = {"x": value[0], "y": value[1]}
    if not isinstance(value, dict) or not {"x", "y"} <= set(value):
        raise PointsError(f"{where}: expected x and y, got {to_cell(value)[:60]!r}; correct it")
    spot = (value["x"], value["y"])
    is_missing = spot == (None, None)
    x, y = (math.nan, math.nan) if is_missing else (_read_number(each, where) for each in spot)
    cells = {name: to_cell(cell) for name, cell in value.items() if name not in ("x", "y")}
    rows.add((x, y), cells, where)


def _read_objects(
    values: Mapping[str, Any], key: str, path: Path, is_required: bool = True
) -> list[tuple[dict[str, Any], str]]:
    """The objects of a list, each with its place."""
    found = values.get(key, None if is_required else [])
    if not isinstance(found, list):
        raise PointsError(f"{path}: expected {key} to be a list of objects; correct it", path=path)
    for number, value in enumerate(found):
        if not isinstance(value, dict):
            raise PointsError(f"{path}: {key}[{number}] must be an object; correct it", path=path)
    return [(value, f"{path}: {key}[{number}]") for number, value in enumerate(found)]


def _read_id(values: Mapping[str, Any], key: str, where: str) -> str:
    value = values.get(key)
    if type(value) not in (int, str) or value == "" or len(str(value)) > 100:
        raise PointsError(f"{where}: {key} must be a whole number or text; correct it")
    return str(value)


def _read_name(values: Mapping[str, Any], key: str, where: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise PointsError(f"{where}: {key} must be text that is not empty; correct it")
    return value


def _read_parts(category: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The names of the keypoints of a category; empty where it has none."""
    names = category.get("keypoints", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise PointsError(f"{where}: keypoints must be a list of names; correct it")
    if len(set(names)) < len(names):
        raise PointsError(f"{where}: keypoints has a name twice; rename one")
    return tuple(names)


def _read_list(values: Mapping[str, Any], key: str, count: int, where: str) -> list[Any]:
    value = values.get(key)
    if not isinstance(value, list) or len(value) != count:
        raise PointsError(f"{where}: {key} must be a list of {count}; correct it")
    return value


def _read_number(value: Any, where: str) -> float:
    is_number = type(value) in (int, float) and abs(value) <= MAX_COORDINATE
    if not is_number:  # NaN fails too
        raise PointsError(f"{where}: expected a finite number, got {to_cell(value)[:40]!r}; correct it")
    return float(value)


def _clean(cell: str) -> str:
    """A cell that UTF-8 and one line of text can hold; JSON may have half of a surrogate pair."""
    if cell.isascii() and cell.isprintable():
        return cell
    return " ".join(cell.encode("utf-8", "replace").decode("utf-8").split())


def to_cell(value: Any) -> str:
    """A JSON value as the cell of a column; nested values are not formatted, since they may be deep."""
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of length {len(value)}"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of many digits"
    return str(value)
