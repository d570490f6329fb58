"""Caltech-UCSD Birds-200-2011: 200 species of birds, 15 parts on each image.

The origin of the coordinates is not documented; they are used as they are, as in all publications. PCK's
length is the diagonal of image 1 (Choy et al. 2016, figure of CUB).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.descriptions import CUB as INFO
from ucn.data.pairs import Problem, check_choice, limit_problems
from ucn.data.sets.layout import find_root, resolve_inside
from ucn.data.sets.semantic.image_lists import OUTSIDE_SPLIT, read_image_list
from ucn.data.sets.semantic.keypoint_pairs import PAIRINGS, KeypointData
from ucn.data.sets.semantic.parts import Example, Keypoints, mirror_by_names, object_window
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines

_IMAGES, _PARTS, _LOCATIONS = "images.txt", "parts/parts.txt", "parts/part_locs.txt"
_REMEDY = "correct the line, or get the file again"


@dataclass(frozen=True)
class _Line:
    """A line of a text file: its number, and its cells without the first, which is an id."""

    number: int
    cells: list[str]


class _Tables:
    """The text files of the folder; faulty lines go to `problems`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.images = self.read(_IMAGES, 2)
        self.rows = {image_id: row for row, image_id in enumerate(self.images)}

    def read(self, name: str, count: int, of_images: bool = False) -> dict[str, _Line]:
        """Lines by their first cell, an id; a line has `count` cells, of which the last may have blanks."""
        path, lines, problems = self.root / name, dict[str, _Line](), list[Problem]()
        for number, text in read_lines(path, "list"):
            first, *cells = text.split(maxsplit=count - 1)
            if len(cells) != count - 1:
                problems.append(
                    Problem(path, f"expected {count} cells, got {text[:60]!r}; {_REMEDY}", number)
                )
            elif first in lines:
                message = f"id {first[:20]} is repeated, first on line {lines[first].number}; remove one"
                problems.append(Problem(path, f"{message} of them", number))
            elif of_images and first not in self.rows:
                message = f"unknown image {first[:20]!r}: {_IMAGES} does not have it; {_REMEDY}"
                problems.append(Problem(path, message, number))
            else:
                lines[first] = _Line(number, cells)
        self.problems += limit_problems(problems)
        return lines


class CubData(KeypointData):
    """Pairs of birds."""

    def __init__(self, root: Path, split: str, pairing: str, list_file: str, crop: bool) -> None:
        tables = _Tables(root)
        part_names = tables.read(_PARTS, 2)
        if not part_names:
            raise DataError(f"{root / _PARTS} names no parts; expected lines of an id and a name")
        self._points, self._lines = _read_locations(tables, {part: i for i, part in enumerate(part_names)})
        self._boxes = _read_boxes(tables) if crop else None
        self._part_names = [line.cells[0] for line in part_names.values()]
        self._mirror = mirror_by_names(self._part_names)
        examples = _choose_images(tables, split, self._lines)
        pairs, notes = None, list[str]()
        if list_file:
            chosen = read_image_list(root, list_file, _name_images(tables, examples))
            examples, pairs, notes = chosen.choose(examples), chosen.pairs, chosen.notes
            tables.problems += chosen.problems
        lists = (root / _IMAGES, root / _LOCATIONS)
        super().__init__(root, examples, pairing, pairs, lists, tables.problems, notes)

    def keypoints(self, example: Example) -> Keypoints:
        """The parts of an image; in the table, NaN marks those that are not visible."""
        points = self._points[example.key]
        box = None if self._boxes is None else self._boxes[example.key]
        lines = self._lines[example.key].tolist()
        return Keypoints(points, np.isfinite(points[:, 0]), example.annotation, lines, box)

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The diagonal of the image."""
        return math.hypot(*size_hw)

    def mirror_table(self, category: str) -> NDArray[np.int64]:
        """Left and right eye, leg and wing are exchanged."""
        return self._mirror

    def part_names_of(self, category: str) -> Sequence[str]:
        """The names of parts.txt, the same for all classes."""
        return self._part_names

    def window(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> tuple[int, int, int, int] | None:
        """The bird, where `crop` is set."""
        return None if self._boxes is None else object_window(keypoints, size_hw)


def open_folder(
    folder: Path, split: str, *, pairing: str = "class", list_file: str = "", crop: bool = False
) -> CubData:
    """Opens the data set.

    Args:
        folder: CUB_200_2011, or the folder that holds it.
        split: train, test (by train_test_split.txt) or all.
        pairing: "class" pairs images of one species, "any" all images.
        list_file: a text file of the images to use, one id or name per line, or of the pairs to use, two
            names per line, such as the cleaned test images of WarpNet; its path, absolute or in the folder.
        crop: crop to the bird's bounding box, enlarged to contain all its visible parts.
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    check_choice(pairing, PAIRINGS, "pairing")
    data = CubData(root, split, pairing, list_file, crop)
    return data.require_pairs(
        split, f"no two images of a class in images.txt and train_test_split.txt of {root}"
    )


def _read_locations(tables: _Tables, parts: dict[str, int]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Positions (I, P, 2), NaN where a part is not visible, and lines (I, P), 0 where there is none."""
    path, problems = tables.root / _LOCATIONS, list[Problem]()
    points = np.full((len(tables.images), len(parts), 2), np.nan)
    lines = np.zeros((len(tables.images), len(parts)), np.int32)
    for number, text in read_lines(path, "part locations"):
        cells = text.split()
        row, part = tables.rows.get(cells[0], -1), parts.get(cells[1], -1) if len(cells) > 1 else -1
        try:
            if len(cells) != 5 or cells[4] not in ("0", "1"):
                raise DataError(f"expected image, part, x, y and 0 or 1, got {text[:60]!r}; {_REMEDY}")
            if row < 0 or part < 0:
                what = f"image {cells[0][:20]!r}" if row < 0 else f"part {cells[1][:20]!r}"
                table = _IMAGES if row < 0 else _PARTS
                raise DataError(f"unknown {what}: {table} does not have it; {_REMEDY}")
            if lines[row, part]:
                place = f"on line {lines[row, part]} already"
                raise DataError(f"image {cells[0]} has part {cells[1]} {place}; remove one of them")
            point = parse_numbers(f"{cells[2]} {cells[3]}", 2, "position")
        except DataError as error:
            problems.append(Problem(path, str(error), number))
            continue
        lines[row, part] = number
        if cells[4] == "1":
            points[row, part] = point
    tables.problems += limit_problems(problems)
    return points, lines


def _read_boxes(tables: _Tables) -> list[tuple[float, float, float, float] | None]:
    """Bounding boxes by image row; None where the file has none."""
    name = "bounding_boxes.txt"
    boxes: list[tuple[float, float, float, float] | None] = [None] * len(tables.images)
    for image_id, line in tables.read(name, 5, of_images=True).items():
        where = f"{tables.root / name}:{line.number}"
        try:
            x, y, width, height = parse_numbers(" ".join(line.cells), 4, where)
        except DataError as error:
            tables.problems.append(
                Problem(tables.root / name, str(error).removeprefix(f"{where}: "), line.number)
            )
        else:
            boxes[tables.rows[image_id]] = (x, y, x + width - 1, y + height - 1)
    return boxes


def _choose_images(tables: _Tables, split: str, lines: NDArray[np.int32]) -> list[Example]:
    """The images of a split that have a class, an image file and part positions."""
    labels = tables.read("image_class_labels.txt", 2, of_images=True)
    is_train = tables.read("train_test_split.txt", 2, of_images=True)
    flags = {"train": ("1",), "test": ("0",), "all": ("0", "1")}[split]
    examples, problems = [], list[Problem]()
    for row, (image_id, line) in enumerate(tables.images.items()):
        name = line.cells[0]
        try:
            if image_id not in labels or image_id not in is_train:
                which = "image_class_labels.txt" if image_id not in labels else "train_test_split.txt"
                raise DataError(f"image {image_id[:20]} has no line in {which}; {_REMEDY}")
            if is_train[image_id].cells[0] not in flags:
                continue
            path = resolve_inside(tables.root / "images", name)
            if not path.is_file():
                raise DataError(f"no image file images/{name[:80]}; unpack the images again")
            if not lines[row].any():
                raise DataError(f"image {image_id[:20]} has no line in {_LOCATIONS}; {_REMEDY}")
        except DataError as error:
            problems.append(Problem(tables.root / _IMAGES, str(error), line.number))
            continue
        short = name.rsplit(".", 1)[0]
        category = labels[image_id].cells[0]
        examples.append(Example(short, category, path, tables.root / _LOCATIONS, is_shared=True, key=row))
    tables.problems += limit_problems(problems)
    return examples


def _name_images(tables: _Tables, examples: Sequence[Example]) -> dict[str, int]:
    """All names of an image in a list: id, path, file name, with and without suffix."""
    positions = {example.key: position for position, example in enumerate(examples)}
    names: dict[str, int] = {}
    for row, (image_id, line) in enumerate(tables.images.items()):
        path = line.cells[0]
        file = path.rsplit("/", 1)[-1]
        position = positions.get(row, OUTSIDE_SPLIT)
        for name in (image_id, path, f"images/{path}", path.rsplit(".", 1)[0], file, file.rsplit(".", 1)[0]):
            names.setdefault(name, position)
    return names
