"""Results of a benchmark part: tables of measured values with units, to and from JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ucn.errors import DataError

Unit = Literal["text", "ms", "s", "ratio", "MB", "share", "count", "error", "rate", "number"]
Cell = str | float | int | None
"""A text, a value, or None where nothing was measured."""

_SYMBOLS = {"ms": "ms", "s": "s", "MB": "MB", "share": "%", "rate": "/s"}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        unit: of its values; a share is in [0, 1] and printed in per cent.
    """

    name: str
    unit: Unit = "text"

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name}, {_SYMBOLS[self.unit]}" if self.unit in _SYMBOLS else self.name


@dataclass(frozen=True)
class Table:
    """Unrounded measurements.

    Attributes:
        title: what was measured, with its sizes.
        columns: one per cell of a row.
        rows: of cells.
        notes: sentences on the method, and on what was not measured.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks the length of every row."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of '{self.title}' must have {len(self.columns)} cells, got {row}")

    def format_rows(self) -> list[list[str]]:
        """All cells as text."""
        return [
            [format_cell(cell, column.unit) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Part:
    """The result of one part of the benchmark.

    Attributes:
        tables: the measurements.
        seconds: duration of the measurement.
    """

    tables: tuple[Table, ...]
    seconds: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The part as plain values for JSON."""
        return asdict(self)


def read_part(values: Any) -> Part:
    """Reads what `Part.to_dict` wrote; other keys are ignored.

    Raises:
        DataError: the values do not describe a part.
    """
    try:
        tables = tuple(
            Table(
                str(table["title"]),
                tuple(Column(str(each["name"]), _check_unit(each["unit"])) for each in table["columns"]),
                tuple(tuple(_check_cell(cell) for cell in row) for row in table["rows"]),
                tuple(str(note) for note in table["notes"]),
            )
            for table in values["tables"]
        )
        return Part(tables, float(values["seconds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a result of `ucn bench`: {error!r}; measure again with `ucn bench`") from error


def tabulate_failures(failures: Mapping[str, str]) -> Table:
    """Failed parts and their errors as a table."""
    return Table("Parts that failed", (Column("part"), Column("error")), tuple(failures.items()))


def format_cell(value: Cell, unit: Unit) -> str:
    """A cell as text without its unit; – where nothing was measured."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, str):
        return value
    if unit == "share":
        return f"{100 * value:.2f}"
    if unit == "error":
        return f"{value:.1e}"
    if unit == "count":
        return f"{value:,.0f}"
    text = _format_significant(value)
    return f"{text}×" if unit == "ratio" else text


def _format_significant(value: float) -> str:
    """A value with three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1  # 9.996 became 10.0
    return f"{rounded:,.{max(0, decimals)}f}"


def _check_unit(name: Any) -> Unit:
    if name not in get_args(Unit):
        raise ValueError(f"no unit '{name}'")
    return name  # type: ignore[no-any-return]


def _check_cell(value: Any) -> Cell:
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError(f"a cell is a text, a number or null, got {type(value).__name__}")
    return value
