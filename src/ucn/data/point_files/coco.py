"""Writes points as COCO keypoints: an annotation for each object of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ucn.data.point_files.table import PointTable
from ucn.errors import PointsError

_KNOWN = ("image", "part", "class", "object", "visible", "box")
_CATEGORY = "object"  # where the table names no class


def to_coco(table: PointTable, sizes_hw: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Converts a table with a column ``image`` to the values of a COCO keypoints file.

    Rows of one image, class and object make one annotation. Its keypoints are the parts of the class, in the
    order of their first rows; those that it does not have are 0, 0, 0. Without a column of parts, the rows of
    an object are numbered from 1. Columns that COCO does not know are lists in ``attributes``.

    Args:
        table: the points.
        sizes_hw: (H, W) of images by name; other images have no width and height.

    Raises:
        PointsError: no image is named, or a part of an object is there twice.
    """
    if table.images is None:
        raise PointsError("COCO keypoints need the image of each point; add a column image")
    groups = _group_rows(table)
    parts = _name_parts(table, groups)
    categories: dict[str, dict[str, int]] = {}  # the parts of a class, and their places
    for (_, category, _), rows in groups.items():
        places = categories.setdefault(category, {})
        for row in rows:
            places.setdefault(parts[row], len(places))
    images = {name: number for number, name in enumerate(dict.fromkeys(table.images), start=1)}
    category_ids = {name: number for number, name in enumerate(categories, start=1)}
    ids = _choose_ids([key[2] for key in groups])
    annotations = [
        {
            "id": ids[number],
            "image_id": images[image],
            "category_id": category_ids[category],
            **_format_object(table, rows, [parts[row] for row in rows], categories[category]),
        }
        for number, ((image, category, _), rows) in enumerate(groups.items())
    ]
    return {
        "images": [
            {"id": number, "file_name": name, **_size(name, sizes_hw)} for name, number in images.items()
        ],
        "categories": [
            {"id": category_ids[name], "name": name or _CATEGORY, "keypoints": list(places), "skeleton": []}
            for name, places in categories.items()
        ],
        "annotations": annotations,
    }


def _group_rows(table: PointTable) -> dict[tuple[str, str, str], list[int]]:
    """Rows by image, class and object."""
    nothing = ("",) * len(table)
    keys = zip(
        table.images or nothing,
        table.cells_of("class") or nothing,
        table.cells_of("object") or nothing,
        strict=True,
    )
    groups: dict[tuple[str, str, str], list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return groups


def _name_parts(table: PointTable, groups: Mapping[Any, Sequence[int]]) -> Sequence[str]:
    """The part of each row; its number in its object where the table names none."""
    if table.parts is not None:
        return table.parts
    names = [""] * len(table)
    for rows in groups.values():
        for number, row in enumerate(rows, start=1):
            names[row] = str(number)
    return names


def _choose_ids(objects: Sequence[str]) -> list[int]:
    """The ids of annotations: those of the objects where these are different numbers, or 1, 2, ..."""
    is_kept = all(name.isdecimal() and len(name) < 19 for name in objects) and len(set(objects)) == len(
        objects
    )
    return [int(name) for name in objects] if is_kept else list(range(1, len(objects) + 1))


def _size(name: str, sizes_hw: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    return {"width": sizes_hw[name][1], "height": sizes_hw[name][0]} if name in sizes_hw else {}


def _format_object(
    table: PointTable, rows: Sequence[int], parts: Sequence[str], places: Mapping[str, int]
) -> dict[str, Any]:
    """The part of an annotation that its keypoints determine."""
    by_place: dict[int, int] = {}
    for row, part in zip(rows, parts, strict=True):
        if places[part] in by_place:
            raise PointsError(
                f"{table.places[row]}: part {part[:40]!r} of this object is there twice; COCO has one place "
                "for it: give it another name, or add a column object"
            )
        by_place[places[part]] = row
    visible = table.cells_of("visible") or ()
    has_occluded = "2" in visible  # elsewhere 1 means visible
    keypoints: list[float] = []
    for place in range(len(places)):
        row = by_place.get(place, -1)
        x, y = table.points[row].tolist() if row >= 0 else (np.nan, np.nan)
        state = 1 if has_occluded and row >= 0 and visible[row] == "1" else 2
        keypoints += (0, 0, 0) if np.isnan(x) or np.isnan(y) else (x, y, state)
    count = sum(1 for state in keypoints[2::3] if state)
    order = [by_place.get(place, -1) for place in range(len(places))]
    box = _find_box(table, rows)
    return {
        "keypoints": keypoints,
        "num_keypoints": count,
        **({} if box is None else {"bbox": box, "area": box[2] * box[3]}),
        "iscrowd": 0,
        **_list_attributes(table, order),
    }


def _find_box(table: PointTable, rows: Sequence[int]) -> list[float] | None:
    """The box x, y, width, height: that of the table, or of the points; None where there is neither."""
    boxes = table.cells_of("box") or ()
    for row in rows if boxes else ():
        try:
            values = [float(value) for value in boxes[row].split()]
        except ValueError:
            continue
        if len(values) == 4 and np.isfinite(values).all():
            return values
    points = table.points[list(rows)]
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return None
    low, high = points.min(axis=0), points.max(axis=0)
    return [*low.tolist(), *(high - low).tolist()]


def _list_attributes(table: PointTable, order: Sequence[int]) -> dict[str, Any]:
    """The columns that COCO does not know, a value for each keypoint."""
    known = {table.column_of(role) for role in _KNOWN}
    columns = {
        name: [values[row] if row >= 0 else None for row in order]
        for name in table.columns
        if name not in known
        for values in [table.list_values(name)]
    }
    return {"attributes": columns} if columns else {}
