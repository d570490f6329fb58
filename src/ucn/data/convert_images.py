"""Converts images with named points to your own data: one row per point, or COCO keypoints.

Any two images of a class are a pair, so that n images need no list of pairs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Literal

import numpy as np

from ucn.data.catalogue import Option
from ucn.data.checking import spread
from ucn.data.convert import ConvertSummary
from ucn.data.convert_folder import ImageWriter, PartTable, format_csv, new_folder, write_record, write_text
from ucn.data.point_files.coco import to_coco
from ucn.data.point_files.files import format_point_table
from ucn.data.point_files.table import PointTable
from ucn.data.sets.semantic.keypoint_pairs import KeypointData, PartView
from ucn.data.sets.semantic.parts import Example
from ucn.errors import DataError

ImageLayout = Literal["images", "coco"]
"""How points are written: a row per point in ``keypoints.csv``, or COCO keypoints in ``keypoints.json``."""

_COLUMNS = ("image", "class", "object", "split", "part", "x", "y", "box", "pck_length")


@dataclass
class _Rows:
    """The rows of all points, and the sizes of images."""

    cells: list[dict[str, str]] = field(default_factory=list)
    sizes_hw: dict[str, tuple[int, int]] = field(default_factory=dict)

    def finish(self) -> PointTable:
        """The table, without columns that are empty."""
        objects = {(row["image"], row["object"]) for row in self.cells}
        if len(objects) == len({image for image, _ in objects}):  # each image has one
            for row in self.cells:
                row["object"] = ""
        used = [name for name in _COLUMNS if name in "xy" or any(row[name] for row in self.cells)]
        columns = {name: tuple(row[name] for row in self.cells) for name in used if name not in "xy"}
        points = np.array([[row["x"], row["y"]] for row in self.cells], np.float64).reshape(-1, 2)
        return PointTable(points, columns, header=tuple(used))


def convert_images(
    data: KeypointData,
    output: str | Path,
    *,
    layout: ImageLayout = "images",
    source: str = "",
    split: str | None = None,
    options: Mapping[str, Option] | None = None,
    max_images: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertSummary:
    """Writes annotated images as a folder that the reader `own` reads: images, points and parts.

    Reading it back gives the same pairs with bit-identical points, except for images without a visible part.

    Args:
        data: the images; listed pairs are not kept.
        output: the folder to write.
        layout: one of `ImageLayout`.
        source: name of the data set, recorded in ``source.json``.
        split: its split, recorded likewise.
        options: options of its reader, recorded likewise.
        max_images: the most images, in couples of one class that are evenly spaced; None converts all.
        overwrite: replace a folder that an earlier conversion wrote.
        progress: called with (done, total) after each image.

    Returns:
        The counts; the pairs are those of two images of one class, the points those of the images.

    Raises:
        OutputError: the folder exists or cannot be written; nothing is left behind.
        UcnError: an image cannot be read, or there is none.
    """
    chosen = _choose_images(data.examples, max_images)
    if not chosen:
        raise DataError(f"{data.root} has no images to convert")
    with new_folder(output, data.root, overwrite) as part:
        rows, images, parts = _Rows(), ImageWriter(part, data.root), PartTable()
        has_mirror = True
        for done, example in enumerate(chosen, start=1):
            has_mirror &= _add_image(rows, images, parts, data, example)
            if progress is not None:
                progress(done, len(chosen))
        _write_points(part, rows, layout)
        if has_mirror and parts.names:
            write_text(part / "parts.csv", format_csv(["name", "mirror"], parts.rows()))
        classes = Counter(example.category for example in chosen)
        pairs = sum(comb(number, 2) for number in classes.values())
        summary = ConvertSummary(pairs, len(images), images.copied_count, len(rows.cells))
        values = {"options": dict(options or {}), "layout": layout, "max_images": max_images}
        write_record(part, source, split, {**values, **asdict(summary)})
    return summary


def _choose_images(examples: Sequence[Example], limit: int | None) -> Sequence[Example]:
    """At most `limit` images, in couples of one class: single ones might make no pair."""
    if limit is None or limit >= len(examples):
        return examples
    ordered = sorted(range(len(examples)), key=lambda row: examples[row].category)
    couples = [
        couple for couple in pairwise(ordered) if examples[couple[0]].category == examples[couple[1]].category
    ]
    apart: list[tuple[int, int]] = []  # couples that share no image
    for couple in couples:
        if not apart or apart[-1][1] != couple[0]:
            apart.append(couple)
    rows = {row for index in spread(len(apart), limit // 2) for row in apart[index]}
    return [examples[row] for row in sorted(rows)]


def _add_image(
    rows: _Rows, images: ImageWriter, parts: PartTable, data: KeypointData, example: Example
) -> bool:
    """Writes an image and adds its points; whether its parts have mirror parts."""
    view = data.read_view(example)
    name = images.write(example.image, view.image)
    rows.sizes_hw[name] = view.size_hw
    count = len(view.keypoints.points)
    mirror = data.mirror_table(example.category)
    has_mirror = mirror is not None and len(mirror) == count
    table = mirror.tolist() if has_mirror and mirror is not None else list(range(count))
    first = parts.place(tuple(table), tuple(data.part_names_of(example.category)), example.category)
    shared = {
        "image": name,
        "class": example.category,
        "object": example.name,
        "split": data.example_split(example),
        "box": _format_box(view),
        "pck_length": repr(float(data.pck_length(view.keypoints, view.size_hw))),
    }
    visible = np.flatnonzero(view.keypoints.is_visible).tolist()
    texts = view.keypoints.points.astype(np.float32).astype(str)  # the fewest digits that give the same
    for part in visible:
        x, y = texts[part].tolist()
        rows.cells.append({**shared, "part": parts.names[first + part], "x": x, "y": y})
    return has_mirror


def _format_box(view: PartView) -> str:
    """The box as ``x y width height``; empty where there is none."""
    if view.keypoints.box is None:
        return ""
    left, top, right, bottom = view.keypoints.box
    return " ".join(f"{value:.10g}" for value in (left, top, right - left, bottom - top))


def _write_points(folder: Path, rows: _Rows, layout: ImageLayout) -> None:
    table = rows.finish()
    if layout == "images":
        write_text(folder / "keypoints.csv", format_point_table(table))
    else:
        values = to_coco(table, rows.sizes_hw)
        write_text(folder / "keypoints.json", json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def choose_layout(data: object, layout: str | None) -> Literal["pairs", "images", "coco"]:
    """The layout to convert a data set to.

    Args:
        data: the data set.
        layout: "pairs", "images" or "coco"; None takes images where any two of them are a pair.

    Raises:
        DataError: the layout needs images with named points, and the data set has none.
    """
    has_points = isinstance(data, KeypointData)
    if layout is None:
        return "images" if isinstance(data, KeypointData) and not data.has_listed_pairs else "pairs"
    if layout in ("images", "coco") and not has_points:
        raise DataError("only images with named points can be written per image; choose the layout pairs")
    layouts: Sequence[Literal["pairs", "images", "coco"]] = ("pairs", "images", "coco")
    return next(each for each in layouts if each == layout)
