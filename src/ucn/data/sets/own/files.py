"""Reads the CSV files of your own data: pairs, points and parts.

Spreadsheets write these files, so that a byte-order mark, CRLF and empty rows are allowed; blank lines and
lines that begin with ``#`` are skipped. Errors name file, line and remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.data.pairs import Problem
from ucn.data.point_files.delimited import split_cells
from ucn.data.points import check_points
from ucn.errors import DataError, PointsError
from ucn.files.reading import is_number, read_lines
from ucn.files.suggestions import suggest
from ucn.types import FloatArray

LABEL_FILES = ("keypoints.csv", "keypoints.json")
"""Names of files with the points of all images."""
SPLITS = ("train", "val", "test")
"""Values of the column `split`; a pair with an empty cell belongs to the split `all` only."""
POINT_COLUMNS = ("x0", "y0", "x1", "y1")
"""The columns of a file of points, in the order of files without a header."""

_PAIR_COLUMNS = ("image0", "image1", "points", "pck_length", "class", "split")


@dataclass(frozen=True)
class Parts:
    """The named parts of an object, from ``parts.csv``.

    Attributes:
        names: the names; a part's index is its number.
        mirror: (P,) int64, the part that each part becomes in a mirrored image.
    """

    names: tuple[str, ...]
    mirror: NDArray[np.int64]

    def find(self, part: str | int) -> int:
        """The number of a part given by name or number; raises `DataError`."""
        if isinstance(part, str) and part in self.names:
            return self.names.index(part)
        text = str(part)
        if text.isdecimal() and len(text) < 10 and int(text) < len(self.names):
            return int(text)
        raise DataError(f"parts.csv has no part {text[:40]!r}{suggest(text, self.names)}")


@dataclass(frozen=True)
class PairPoints:
    """Corresponding points of a file, not yet checked against the images.

    Attributes:
        points0: (N, 2) float64.
        points1: (N, 2) float64.
        parts: (N,) int64, the part of each point; None where points have none.
        path: the file.
        lines: the line of each point in a file of points; the line of the pair in JSON Lines.
    """

    points0: NDArray[np.float64]
    points1: NDArray[np.float64]
    parts: NDArray[np.int64] | None
    path: Path
    lines: tuple[int, ...] | int

    def check_inside(self, view: int, image_hw: tuple[int, int], image: str) -> FloatArray:
        """The points of a view as float32; raises `PointsError`, with the line, where one is outside."""
        points = self.points1 if view else self.points0
        try:
            return check_points(points, image_hw)
        except PointsError:
            names = [f"{self._place(view, row)} in {image}" for row in range(len(points))]
            return check_points(points, image_hw, names)

    def _place(self, view: int, row: int) -> str:
        if isinstance(self.lines, int):
            return f"{self.path}:{self.lines}: points{view}[{row}]"
        return f"{self.path}:{self.lines[row]}: x{view},y{view}"


@dataclass(frozen=True, slots=True)
class PairEntry:
    """A pair of a list.

    Attributes:
        line: its line.
        image0: path relative to the folder.
        image1: path relative to the folder.
        points: path of its points, relative to the folder; empty where the list does not name it.
        pck_length: as `PairSample.pck_length`.
        class_name: class of the object; may be empty.
        split: one of `SPLITS`, or empty.
        inline_points: its points, where the list itself holds them.
    """

    line: int
    image0: str
    image1: str
    points: str
    pck_length: float | None
    class_name: str
    split: str
    inline_points: PairPoints | None = None


@dataclass(frozen=True)
class PairList:
    """A list of pairs.

    Attributes:
        entries: the valid pairs.
        problems: the faulty lines.
        notes: what is ignored.
        has_splits: whether the list assigns pairs to splits.
    """

    entries: list[PairEntry]
    problems: list[Problem]
    notes: list[str]
    has_splits: bool


def read_pair_csv(path: Path) -> PairList:
    """Reads ``pairs.csv``; raises `DataError` where its header is malformed."""
    rows = _read_rows(path, "list of pairs")
    header, columns = _read_header(next(rows, None), path, _PAIR_COLUMNS[:2], "image0,image1")
    notes = []
    for name in sorted(set(header) - set(_PAIR_COLUMNS)):
        if hint := suggest(name, _PAIR_COLUMNS):
            raise DataError(f"{path}: there is no column {name[:40]!r}{hint}")
        notes.append(f"{path.name}: column {name[:40]!r} is ignored")
    entries, problems = [], []
    for number, cells, line in rows:
        try:
            _check_count(cells, len(header), line)
            entries.append(make_entry(number, {name: cells[place] for name, place in columns.items()}))
        except DataError as error:
            problems.append(Problem(path, str(error), number, is_excluded=True))
    return PairList(entries, problems, notes, "split" in columns)


def read_parts(path: Path) -> Parts:
    """Reads ``parts.csv``: columns name and mirror; an empty mirror means the part itself.

    Raises:
        DataError: a line is malformed, a name is repeated, or a is the mirror of b but not b of a.
    """
    rows = _read_rows(path, "list of parts")
    header, columns = _read_header(next(rows, None), path, ("name",), "name,mirror")
    mirrors: dict[str, tuple[str, str]] = {}
    for number, cells, line in rows:
        where = f"{path}:{number}"
        try:
            _check_count(cells, len(header), line)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        name = cells[columns["name"]]
        if not name or name in mirrors:
            raise DataError(f"{where}: expected a name that no other part has, got {name[:40]!r}")
        mirrors[name] = (cells[columns["mirror"]] if "mirror" in columns else "") or name, where
    names = tuple(mirrors)
    for name, (mirror, where) in mirrors.items():
        if mirror not in mirrors:
            raise DataError(f"{where}: no part {mirror[:40]!r}{suggest(mirror, names)}")
        if mirrors[mirror][0] != name:
            back = mirrors[mirror][0][:40]
            raise DataError(
                f"{where}: {name[:40]!r} has the mirror {mirror[:40]!r}, whose own mirror is {back!r}; "
                "correct one of them"
            )
    numbers = {name: number for number, name in enumerate(names)}
    return Parts(names, np.array([numbers[mirror] for mirror, _ in mirrors.values()], np.int64))


def read_pair_points(path: Path, parts: Parts | None) -> PairPoints:
    """Reads a file of points: columns x0, y0, x1, y1 in any order with a header, or in this order without.

    The column `part` is used where there is a ``parts.csv``; other columns are ignored. A header without
    points means a pair without correspondences.

    Raises:
        DataError: the file cannot be read or is empty, or a line is malformed.
        PointsError: a cell is not a number.
    """
    header: Sequence[str] = ()
    columns: dict[str, int] = {}
    points, part_numbers, lines = [], [], []
    for number, cells, line in _read_rows(path, "points"):
        where = f"{path}:{number}"
        if not columns:
            has_header = not any(is_number(cell) for cell in cells)
            first = (number, cells if has_header else list(POINT_COLUMNS), line)
            header, columns = _read_header(first, path, POINT_COLUMNS, "x0,y0,x1,y1")
            if has_header:
                continue
        try:
            _check_count(cells, len(header), line)
            if parts is not None and "part" in columns:
                part_numbers.append(parts.find(cells[columns["part"]]))
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        points.append([_to_number(cells[columns[name]], where) for name in POINT_COLUMNS])
        lines.append(number)
    if not columns:
        raise DataError(f"{path} is empty; expected the header x0,y0,x1,y1 and a line for each point")
    array = np.array(points, np.float64).reshape(-1, 4)
    has_parts = parts is not None and "part" in columns
    numbers = np.array(part_numbers, np.int64) if has_parts else None
    return PairPoints(array[:, :2], array[:, 2:], numbers, path, tuple(lines))


def _read_rows(path: Path, what: str) -> Iterator[tuple[int, list[str], str]]:
    """Yields line number, cells and text of each row that is neither empty nor a comment."""
    for number, line in read_lines(path, what):
        if line.startswith("#"):
            continue
        try:
            cells = split_cells(line, f"{path}:{number}")
        except PointsError as error:
            raise DataError(str(error)) from error
        if any(cells):
            yield number, cells, line


def _read_header(
    row: tuple[int, Sequence[str], str] | None, path: Path, required: Iterable[str], expected: str
) -> tuple[list[str], dict[str, int]]:
    """Names of the columns, and the index of each."""
    if row is None:
        raise DataError(f"{path} is empty; expected a header with {expected}")
    number, cells, line = row
    header = [cell.lower() for cell in cells]
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"{path}:{number}: expected a header with {expected}, got {line[:60]!r}{_separator_hint(line)}"
        )
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path}:{number}: column {twice[:40]!r} is repeated; remove one")
    return header, {name: place for place, name in enumerate(header)}


def _check_count(cells: Sequence[str], count: int, line: str) -> None:
    if len(cells) != count:
        raise DataError(
            f"expected {count} columns separated by commas, got {len(cells)}: {line[:60]!r}"
            f"{_separator_hint(line)}"
        )


def _separator_hint(line: str) -> str:
    for sign, name in ((";", "semicolons"), ("\t", "tabs")):
        if sign in line:
            return f"; separate by commas, not {name}, and write decimals with a point"
    return ""


def _to_number(cell: str, where: str) -> float:
    """A number, perhaps not finite: that error is raised later, with the size of the image."""
    if is_number(cell):
        return float(cell)
    hint = "; write decimals with a point" if is_number(cell.replace(",", ".")) else ""
    raise PointsError(f"{where}: expected a number, got {cell[:40]!r}{hint}")


def make_entry(number: int, values: Mapping[str, Any], inline_points: PairPoints | None = None) -> PairEntry:
    """Makes a pair from the cells or keys of a line; raises `DataError` where one is malformed."""
    texts = {}
    for name in ("image0", "image1", "points", "class", "split"):
        texts[name] = values.get(name, "")
        if not isinstance(texts[name], str):
            raise DataError(f"{name} must be text, got {format_value(texts[name])}")
    for name in ("image0", "image1"):
        if not texts[name]:
            raise DataError(f"{name} is missing; give the path of an image, relative to the folder")
    if texts["split"] not in ("", *SPLITS):
        got = texts["split"][:40]
        raise DataError(f"split must be {', '.join(SPLITS)} or empty, got {got!r}")
    return PairEntry(
        number,
        texts["image0"],
        texts["image1"],
        texts["points"],
        _read_length(values.get("pck_length", "")),
        texts["class"],
        texts["split"],
        inline_points,
    )


def _read_length(value: Any) -> float | None:
    if value is None or value == "":
        return None
    is_legal = is_number(value) if isinstance(value, str) else is_json_number(value)
    length = float(value) if is_legal else math.nan
    if not 0 < length < math.inf:
        raise DataError(f"pck_length must be a number of pixels above 0 or empty, got {format_value(value)}")
    return length


def is_json_number(value: Any) -> bool:
    """Whether a JSON value can be a coordinate; JSON integers have no limit."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def format_value(value: Any) -> str:
    """Formats a JSON value briefly; nested values are not formatted, since they may be deep."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of length {len(value)}"
    return repr(value)[:40]
