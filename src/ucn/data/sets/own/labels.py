"""Points per image: ``keypoints.csv``, COCO keypoints, or a labelme or .pts file beside each image.

A row with a fault, and an object without an image, become problems with file and line; the rest is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.checking import to_problem
from ucn.data.io import IMAGE_SUFFIXES
from ucn.data.pairs import Problem, limit_problems
from ucn.data.point_files.files import read_point_table
from ucn.data.point_files.table import PointTable
from ucn.data.sets.own.files import SPLITS, Parts
from ucn.data.sets.own.finder import FileFinder
from ucn.data.sets.semantic.parts import Box
from ucn.errors import DataError, PointsError
from ucn.files.reading import is_number

FILE_SUFFIXES = (".json", ".pts")
"""Suffixes of files with the points of one image, beside it."""

_DEPTH = 2  # of sub-folders that are searched for files of one image


@dataclass(frozen=True, slots=True)
class LabelledObject:
    """The parts of one object in one image.

    Attributes:
        name: unique in the set.
        category: its class; may be empty.
        split: one of `SPLITS`, or empty.
        image: the image file.
        annotation: the file with its points.
        parts: (N,) int64 index of each part.
        points: (N, 2) float64.
        places: file and line of each part.
        box: its bounding box, where the file has one.
        length: its length of PCK, where the file has one.
    """

    name: str
    category: str
    split: str
    image: Path
    annotation: Path
    parts: NDArray[np.int64]
    points: NDArray[np.float64]
    places: tuple[str, ...]
    box: Box | None
    length: float | None


@dataclass
class Labels:
    """All annotated objects of a folder.

    Attributes:
        objects: the objects, in the order of their files.
        part_names: names of all parts.
        problems: faulty rows and files.
        notes: what is left out.
        has_splits: whether images are assigned to splits.
        shared_file: the file with the points of all images; None where each image has its own.
    """

    objects: list[LabelledObject]
    part_names: tuple[str, ...]
    problems: list[Problem]
    notes: list[str]
    has_splits: bool
    shared_file: Path | None


def has_label_files(root: Path) -> bool:
    """Whether a folder has labelme or .pts files that lie beside images."""
    return next(_walk_files(root), None) is not None


def read_labels(
    root: Path, file: Path | None, image_folder: str, parts: Parts | None, use_occluded: bool
) -> Labels:
    """Reads the points of all images.

    Args:
        root: the folder.
        file: the file with the points of all images; None reads a file beside each image.
        image_folder: folder of the images, relative to `root`; if empty, these lie in `root` or in its
            folder ``images``.
        parts: the names of ``parts.csv``; None takes the names as they come.
        use_occluded: use points that COCO marks as occluded (v = 1).

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    reader = _LabelReader(root, image_folder, parts, use_occluded)
    if file is not None:
        try:
            reader.read_file(file)
        except PointsError as error:
            raise DataError(str(error), path=error.path) from error
    else:
        for path, image in _walk_files(root):
            reader.read_image_file(path, image)
    return reader.finish(file)


def _walk_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Files of one image, sorted, each with the name of the image beside it; empty where there is none."""
    for folder, folders, names in os.walk(root):
        place = Path(folder)
        folders.sort()
        if len(place.relative_to(root).parts) >= _DEPTH:
            folders.clear()
        names.sort()
        images = {Path(name).stem: name for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES}
        for name in names if images else ():
            if Path(name).suffix.lower() in FILE_SUFFIXES and not name.startswith("."):
                yield place / name, images.get(Path(name).stem, "")


@dataclass
class _LabelReader:
    """Collects objects from tables of points."""

    root: Path
    image_folder: str
    parts: Parts | None
    use_occluded: bool
    objects: list[LabelledObject] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_splits: bool = False

    def __post_init__(self) -> None:
        self._finder = FileFinder(self.root)
        self._part_index: dict[str, int] = {}
        self._images: dict[str, Path | None] = {}
        self._names: set[str] = set()

    def read_file(self, path: Path) -> None:
        """Reads the file with the points of all images; raises `UcnError`."""
        found: list[Problem] = []
        table = read_point_table(
            path, keep_missing=True, on_error=lambda error: found.append(_to_problem(error, path))
        )
        self.problems += limit_problems(found)
        for role in ("image", "part"):
            if len(table) and table.cells_of(role) is None:
                raise DataError(
                    f"{path}: expected a column {role}, got {', '.join(table.header)[:80]}; the header is "
                    "image,part,x,y",
                    path=path,
                )
        self._add_table(path, table)

    def read_image_file(self, path: Path, image: str) -> None:
        """Reads the file of one image; a fault becomes a problem."""
        found: list[Problem] = []
        try:
            table = read_point_table(
                path, keep_missing=True, on_error=lambda error: found.append(_to_problem(error, path))
            )
            if table.parts is None and len(table):
                raise DataError(f"{path}: its points have no names; expected a labelme or .pts file")
            if path.suffix.lower() == ".pts":
                table = self._name_landmarks(path, table)
                names = {image or f"{path.stem}{IMAGE_SUFFIXES[0]}"}
            else:
                names = set(table.images or (image,))
            if len(names) > 1:
                raise DataError(f"{path}: it has the points of {len(names)} images; name it by option file")
            folder = path.parent.relative_to(self.root)
            table = table.with_column("image", [(folder / name).as_posix() for name in names] * len(table))
        except (DataError, PointsError) as error:
            found.append(replace(to_problem(error, path), is_excluded=True))
        else:
            self._add_table(path, table)
        self.problems += found

    def _name_landmarks(self, path: Path, table: PointTable) -> PointTable:
        """The landmarks of a .pts file have the names of parts.csv, in its order, if there is one."""
        if self.parts is None:
            return table
        if len(self.parts.names) != len(table):
            expected = f"expected {len(self.parts.names)} landmarks as in parts.csv"
            raise DataError(f"{path}: {expected}, got {len(table)}; correct one of the two")
        return table.with_column("part", self.parts.names)

    def _add_table(self, path: Path, table: PointTable) -> None:
        """Adds the objects of a table: rows of one image, class and object."""
        self.notes += table.notes
        self.has_splits |= table.column_of("split") is not None
        cells = _Cells(table)
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row in range(len(table)):
            key = (cells.of("image", row), cells.of("class", row), cells.of("object", row))
            groups.setdefault(key, []).append(row)
        found: list[Problem] = []
        for (image, category, name), rows in groups.items():
            try:
                file = self._find_image(image, table.places[rows[0]])
                if file is not None:
                    self._add_object(path, cells, rows, (image, category, name), file, found)
            except DataError as error:
                found.append(_to_problem(error, path))
        self.problems += limit_problems(found)

    def _find_image(self, name: str, place: str) -> Path | None:
        """The file of an image; None where its absence is reported already."""
        if name not in self._images:
            self._images[name] = None
            try:
                self._images[name] = self._find_file(name)
            except DataError as error:
                raise DataError(f"{place}: {error}") from error
        return self._images[name]

    def _find_file(self, name: str) -> Path:
        if self.image_folder:
            return self._finder.find(f"{self.image_folder}/{name}", "image")
        try:
            return self._finder.find(name, "image")
        except DataError:
            if not (self.root / "images").is_dir():
                raise
            return self._finder.find(f"images/{name}", "image")

    def _add_object(
        self,
        path: Path,
        cells: _Cells,
        rows: Sequence[int],
        key: tuple[str, str, str],
        image: Path,
        found: list[Problem],
    ) -> None:
        """Adds an object; faulty rows are left out and added to `found`."""
        parts: dict[int, int] = {}  # the row of each part
        for row in rows:
            place = cells.table.places[row]
            try:
                part = self._find_part(cells.of("part", row))
                if part in parts:
                    raise DataError(
                        f"part {cells.of('part', row)[:40]!r} of this object is there twice; remove one, or "
                        "tell objects apart by a column object"
                    )
            except DataError as error:
                found.append(_to_problem(DataError(f"{place}: {error}"), path))
                continue
            parts[part] = row
        first = cells.table.places[rows[0]]
        chosen = [row for row in parts.values() if self._is_used(cells, row)]
        index = {row: part for part, row in parts.items()}
        self.objects.append(
            LabelledObject(
                self._make_name(key),
                key[1],
                _read_split(cells.of("split", rows[0]), first),
                image,
                path,
                np.array([index[row] for row in chosen], np.int64),
                cells.table.points[chosen].reshape(-1, 2),
                tuple(cells.table.places[row] for row in chosen),
                _read_box(cells.of("box", rows[0]), first),
                _read_length(cells.of("pck_length", rows[0]), first),
            )
        )

    def _find_part(self, name: str) -> int:
        if self.parts is not None:
            return self.parts.find(name)
        if not name:
            raise DataError("the part has no name; give it one")
        return self._part_index.setdefault(name, len(self._part_index))

    def _is_used(self, cells: _Cells, row: int) -> bool:
        if not np.isfinite(cells.table.points[row]).all():
            return False
        return self.use_occluded or not cells.has_occluded or cells.of("visible", row) != "1"

    def _make_name(self, key: tuple[str, str, str]) -> str:
        """The image, with what tells its objects apart where it has several."""
        image, category, name = key
        names = (image, f"{image}#{name}", f"{image}#{category}", f"{image}#{category}#{name}")
        free = next((each for each in names if each not in self._names), f"{image}#{len(self._names)}")
        self._names.add(free)
        return free

    def finish(self, shared_file: Path | None) -> Labels:
        """All that was read."""
        names = tuple(self._part_index) if self.parts is None else self.parts.names
        return Labels(self.objects, names, self.problems, self.notes, self.has_splits, shared_file)


class _Cells:
    """Cells of a table by their meaning; those of a column that it lacks are empty."""

    def __init__(self, table: PointTable) -> None:
        self.table = table
        roles = ("image", "part", "class", "object", "visible", "box", "split", "pck_length")
        self._columns: Mapping[str, Sequence[str] | None] = {role: table.cells_of(role) for role in roles}
        self.has_occluded = "2" in (self._columns["visible"] or ())

    def of(self, role: str, row: int) -> str:
        column = self._columns[role]
        return "" if column is None else column[row]


def _to_problem(error: DataError | PointsError, path: Path) -> Problem:
    return replace(to_problem(error, path), is_excluded=True)


def _read_split(text: str, place: str) -> str:
    if text not in ("", *SPLITS):
        raise DataError(f"{place}: split must be {', '.join(SPLITS)} or empty, got {text[:40]!r}; correct it")
    return text


def _read_box(text: str, place: str) -> Box | None:
    """The box (left, top, right, bottom) of a cell ``x y width height``."""
    if not text:
        return None
    values = [float(value) if is_number(value) else math.nan for value in text.split()]
    if len(values) != 4 or not all(math.isfinite(value) for value in values) or min(values[2:]) < 0:
        raise DataError(f"{place}: box must be x y width height, got {text[:40]!r}; correct it")
    x, y, width, height = values
    return x, y, x + width, y + height


def _read_length(text: str, place: str) -> float | None:
    if not text:
        return None
    length = float(text) if is_number(text) else math.nan
    if not 0 < length < math.inf:
        raise DataError(
            f"{place}: pck_length must be a number of pixels above 0 or empty, got {text[:40]!r}; correct it"
        )
    return length
