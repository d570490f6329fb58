"""Labelled images, whose points are carried to other images: from points files of all kinds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.config import MIN_SIDE
from ucn.data.io import check_image_file, read_header_hw
from ucn.data.point_files.files import read_point_table
from ucn.data.point_files.table import PointTable
from ucn.data.points import MAX_POINTS_BYTES, check_points
from ucn.data.sets.own.finder import FileFinder
from ucn.errors import DataError, PointsError
from ucn.folders.journal import stamp_files
from ucn.types import BoolArray

_OWN = ("image", "part", "object", "visible", "box", "split", "pck_length")  # columns of one labelled image


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """An object with its points in an image.

    Attributes:
        path: of the image.
        points: (N, 2) in pixels, a row for each part of all labelled images; NaN where it is not labelled, or
            hidden.
        is_hidden: (N,) bool, whether a part is labelled as not visible.
    """

    path: Path
    points: NDArray[np.float64]
    is_hidden: BoolArray


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Labelled images with the same N parts.

    Attributes:
        parts: their names; numbers from 1 where the points have none.
        columns: further columns of the files, from the first row of each part.
        images: at least one; an image with several objects is there several times.
        notes: what the readers left out.
    """

    parts: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    images: tuple[LabelledImage, ...]
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """A hash of images and points, which tells whether labels have changed."""
        images = [
            (each.path.name, stamp_files([each.path]), each.points.tolist(), each.is_hidden.tolist())
            for each in self.images
        ]
        return hashlib.sha256(json.dumps([self.parts, images]).encode()).hexdigest()


def read_labelled_images(
    files: Sequence[Path], images: Sequence[Path] = (), folder: Path | None = None
) -> LabelledImages:
    """Reads the points of labelled images.

    Args:
        files: one with the points of all images, or one for each: whatever `read_point_table` reads.
        images: the labelled images; if empty, those that the files name, beside the file or in `folder`.
        folder: of images.

    Raises:
        PointsError: a file cannot be read, has no points of an image, a part of an object is there twice, or
            a point lies outside its image.
        DataError: the number of files does not fit, or an image that a file names is missing.
        ImageReadError: an image cannot be read.
    """
    if not files or (images and len(files) not in (1, len(images))):
        expected = f"one, or one for each of the {len(images)} labelled images" if images else "at least one"
        raise DataError(f"expected points files: {expected}; got {len(files)}")
    tables = [read_point_table(path, keep_missing=True, limit=MAX_POINTS_BYTES) for path in files]
    if not images:
        pairs = [
            pair for file, table in zip(files, tables, strict=True) for pair in _split(file, table, folder)
        ]
    else:
        shared = len(files) == 1 < len(images)
        if shared and len(set(tables[0].images or ())) < 2:
            raise PointsError(
                f"{files[0]} does not tell which of the {len(images)} labelled images its points are of; add "
                "a column image, or give a file for each"
            )
        owners = zip(images, tables * len(images) if shared else tables, strict=True)
        pairs = [(image, table.of_image(image)) for image, table in owners]
    groups = [group for image, table in pairs for group in _group(image, table)]
    return _collect(groups, tuple(note for table in tables for note in table.notes))


def _split(file: Path, table: PointTable, folder: Path | None) -> Iterator[tuple[Path, PointTable]]:
    """Each image that a file names, and its points."""
    if table.images is None:
        raise PointsError(f"{file} does not name the labelled image; give the image, too, or a column image")
    for name in dict.fromkeys(table.images):
        for root in (file.parent, file.parent / "images", folder):
            try:
                path = None if root is None else FileFinder(root).find(name, f"image of {file}")
            except DataError:
                continue
            if path is not None:
                break
        else:
            also = "" if folder is None else f" or in {folder}"
            raise DataError(
                f"no image {name[:200]!r} of {file} beside it{also}; copy it there, or give its path"
            )
        yield path, table.select(np.array([each == name for each in table.images], np.bool_))


def _group(image: Path, table: PointTable) -> Iterator[tuple[Path, dict[str, int], PointTable]]:
    """Each object of an image: the row of each part."""
    check_image_file(image, MIN_SIDE)
    rows = np.flatnonzero(~table.is_missing).tolist()
    if not rows:
        raise PointsError(f"there is no point of the labelled image {image}; give the file with its points")
    image_hw = read_header_hw(image)
    if image_hw is not None:
        check_points(table.points[rows], image_hw, [table.places[row] for row in rows])
    nothing = ("",) * len(table)
    keys = list(zip(table.cells_of("class") or nothing, table.cells_of("object") or nothing, strict=True))
    for key in dict.fromkeys(keys):
        own = [row for row in range(len(table)) if keys[row] == key]
        found: dict[str, int] = {}
        for number, row in enumerate(own, 1):
            name = str(number) if table.parts is None else table.parts[row]
            if name in found:
                raise PointsError(
                    f"{table.places[row]}: part {name[:40]!r} of this object is there twice; remove one, or "
                    "tell objects apart by a column object"
                )
            found[name] = row
        yield image, found, table


def _collect(
    groups: Sequence[tuple[Path, dict[str, int], PointTable]], notes: tuple[str, ...]
) -> LabelledImages:
    """Objects with their points in the order of all parts."""
    first: dict[str, tuple[PointTable, int]] = {}
    for _, rows, table in groups:
        for part, row in rows.items():
            first.setdefault(part, (table, row))
    columns: dict[str, list[str]] = {}
    for number, (table, row) in enumerate(first.values()):
        own = {table.column_of(role) for role in _OWN}
        for name in table.columns:
            if name not in own:
                columns.setdefault(name, [""] * len(first))[number] = table.columns[name][row]
    images = []
    for image, rows, table in groups:
        places = [table.points[rows[part]] if part in rows else (np.nan, np.nan) for part in first]
        points = np.array(places, np.float64).reshape(-1, 2)
        is_given = np.array([part in rows for part in first], np.bool_)
        images.append(LabelledImage(image, points, is_given & np.isnan(points).any(axis=1)))
    kept = {name: tuple(cells) for name, cells in columns.items()}
    return LabelledImages(tuple(first), kept, tuple(images), notes)
