"""Reads points from text: rows whose cells commas, semicolons, tabs or spaces separate."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ucn.data.point_files.table import ROLES, OnError, PointTable
from ucn.errors import PointsError
from ucn.files.reading import MAX_TEXT_BYTES, is_number, read_text

MAX_COORDINATE = 1e9
"""Larger coordinates are refused: beyond any image, and well within float32."""

_ROW_BYTES = 128  # a row takes about 400 in memory, so that short ones must not fill a file

# Semicolons and tabs come before commas: where the comma is the decimal sign, these separate.
_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", " ": "spaces"}
_POINT_NAMES = (("x", "y"), ("u", "v"))
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_NO = ("0", "false", "no")
_EXPECTED = "two numbers x and y, or a header that names x and y (or u and v)"


@dataclass(frozen=True)
class _Layout:
    """How the cells of a file are separated, and what its columns are.

    Attributes:
        separator: between cells.
        names: of all columns.
        point_columns: indices of x and y.
        has_header: whether the first row holds names.
    """

    separator: str
    names: tuple[str, ...]
    point_columns: tuple[int, int]
    has_header: bool

    @cached_property
    def visible(self) -> int:
        """Index of the column that says which points are visible; -1 where there is none."""
        names = [name.lower() for name in self.names]
        return next((names.index(name) for name in ROLES["visible"] if name in names), -1)


def read_delimited(
    path: Path, keep_missing: bool, limit: int = MAX_TEXT_BYTES, on_error: OnError | None = None
) -> PointTable:
    """Reads a text file of points; `ucn.data.point_files.files.read_point_table` explains it.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
        PointsError: a line is malformed.
    """
    layout: _Layout | None = None
    points: list[tuple[float, float]] = []
    rows: list[list[str]] = []
    places: list[str] = []
    for where, line in _read_lines(path, limit):
        if layout is None:
            layout = _read_layout(line, where)
            if layout.has_header:
                continue
        try:
            cells = _split_row(line, where, layout)
            if not any(cells):
                continue
            point = _read_point(cells, layout, where, keep_missing)
        except PointsError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        if point is not None:
            if len(rows) >= limit // _ROW_BYTES:
                raise PointsError(f"{where}: the limit is {limit // _ROW_BYTES:,} points; split the file")
            points.append(point)
            rows.append(cells)
            places.append(where)
    return _make_table(layout, points, rows, places)


def _read_lines(path: Path, limit: int) -> Iterator[tuple[str, str]]:
    """Place and text of lines that are neither blank nor a comment."""
    for number, line in enumerate(read_text(path, "points", limit).split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{path}:{number}", line.rstrip("\r")


def split_cells(line: str, where: str, separator: str = ",") -> list[str]:
    """Splits one line into stripped cells; `where` is file and line, for errors."""
    try:
        if separator == " ":
            line = " ".join(line.split())
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error as error:
        name = _SEPARATORS[separator]
        raise PointsError(f"{where}: expected short cells separated by {name}, got {line[:60]!r}…") from error


def _read_layout(line: str, where: str) -> _Layout:
    """Finds separator and columns from the first row."""
    for separator in _SEPARATORS:
        if separator not in line.strip(" "):
            continue
        cells = split_cells(line, where, separator)
        lower = [cell.lower() for cell in cells]
        for names in _POINT_NAMES:
            if set(names) <= set(lower):
                return _read_header(cells, names, separator, where)
        numbers = [place for place, cell in enumerate(cells) if _is_number(cell, separator)]
        if len(numbers) == 2:
            header = [f"column {place}" for place in range(1, len(cells) + 1)]
            header[numbers[0]], header[numbers[1]] = "x", "y"
            return _Layout(separator, tuple(header), (numbers[0], numbers[1]), False)
    raise PointsError(f"{where}: expected {_EXPECTED}, got {line.strip()[:60]!r}")


def _read_header(cells: Sequence[str], points: tuple[str, str], separator: str, where: str) -> _Layout:
    names = [cell or f"column {place}" for place, cell in enumerate(cells, start=1)]
    lower = [name.lower() for name in names]
    for name in lower:
        if lower.count(name) > 1:
            raise PointsError(f"{where}: column {name[:40]!r} is repeated; rename or remove one")
    return _Layout(separator, tuple(names), (lower.index(points[0]), lower.index(points[1])), True)


def _split_row(line: str, where: str, layout: _Layout) -> list[str]:
    cells, count = split_cells(line, where, layout.separator), len(layout.names)
    while len(cells) > count and not cells[-1]:  # spreadsheets write empty columns
        cells.pop()
    if len(cells) != count and any(cells):
        raise PointsError(
            f"{where}: expected {count} columns separated by {_SEPARATORS[layout.separator]}, got "
            f"{len(cells)}: {line.strip()[:60]!r}"
        )
    return cells


def _read_point(
    cells: Sequence[str], layout: _Layout, where: str, keep_missing: bool
) -> tuple[float, float] | None:
    """A point; NaN where it is missing, or None where missing points are left out."""
    missing = (np.nan, np.nan) if keep_missing else None
    if layout.visible >= 0 and cells[layout.visible].lower() in _NO:
        return missing
    texts = [cells[column] for column in layout.point_columns]
    if keep_missing and all(text.lower() in ("", "nan") for text in texts):
        return missing
    x, y = (_read_number(text, layout.separator, where) for text in texts)
    return x, y


def _is_number(text: str, separator: str) -> bool:
    return is_number(_with_point(text, separator))


def _with_point(text: str, separator: str) -> str:
    """A decimal comma becomes a point where commas do not separate."""
    is_comma = separator in ";\t" and _DECIMAL_COMMA.fullmatch(text)
    return text.replace(",", ".") if is_comma else text


def _read_number(text: str, separator: str, where: str) -> float:
    number = _with_point(text, separator)
    if not is_number(number):
        raise PointsError(f"{where}: expected a number, got {text[:40]!r}; correct it")
    value = float(number)
    if not abs(value) <= MAX_COORDINATE:
        raise PointsError(f"{where}: expected a finite number, got {text[:40]!r}; correct it")
    return value


def _make_table(
    layout: _Layout | None,
    points: Sequence[tuple[float, float]],
    rows: Sequence[Sequence[str]],
    places: Sequence[str],
) -> PointTable:
    array = np.array(points, np.float64).reshape(-1, 2)
    if layout is None:
        return PointTable(array, {})
    columns, header = {}, []
    for place, name in enumerate(layout.names):
        cells = tuple(row[place] for row in rows)
        if place not in layout.point_columns:
            if name == f"column {place + 1}" and not any(cells):
                continue  # an empty column that a spreadsheet left
            columns[name] = cells
        header.append(name)
    x, y = (layout.names[column] for column in layout.point_columns)
    return PointTable(array, columns, tuple(places), tuple(header), (x, y))
