"""What a part of the measurements found: tables of numbers with units, and targets beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ucn.errors import DataError

Unit = Literal["text", "ms", "s", "ratio", "MB", "share", "count", "error", "rate", "number"]
Cell = str | float | int | None
"""A text, a number, or None where nothing was measured."""

UNITS: dict[str, str] = {
    "text": "",
    "ms": "ms",
    "s": "s",
    "ratio": "",
    "MB": "MB",
    "share": "%",
    "count": "",
    "error": "",
    "rate": "/s",
    "number": "",
}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        unit: of its numbers; a share is in [0, 1] and shown as per cent.
    """

    name: str
    unit: Unit = "text"

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name}, {UNITS[self.unit]}" if UNITS[self.unit] else self.name


@dataclass(frozen=True)
class Table:
    """Numbers as they were measured, unrounded.

    Attributes:
        title: what was measured, with its sizes.
        columns: one per cell of a row.
        rows: of cells.
        notes: sentences on how it was measured, and what is missing.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that all rows are whole."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of '{self.title}' must have {len(self.columns)} cells, got {row}")

    def format_rows(self) -> list[list[str]]:
        """All cells as texts."""
        return [
            [format_cell(cell, column.unit) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Target:
    """A figure that was asked for, and what was found.

    Attributes:
        name: what the figure is.
        machine: which the figure was asked for.
        value: measured.
        wanted: asked for.
        unit: of both.
        is_least: whether `wanted` is the least that will do; else the most.
    """

    name: str
    machine: str
    value: float
    wanted: float
    unit: Unit = "ratio"
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the figure was reached."""
        return self.value >= self.wanted if self.is_least else self.value <= self.wanted

    def format_wanted(self) -> str:
        """What was asked for, as a text."""
        sign = "at least" if self.is_least else "at most"
        return f"{sign} {format_with_unit(self.wanted, self.unit)}"


@dataclass(frozen=True)
class Part:
    """Everything that one part measured.

    Attributes:
        tables: what was found.
        targets: figures that were asked for.
        seconds: that the measuring took.
    """

    tables: tuple[Table, ...]
    targets: tuple[Target, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        found = asdict(self)
        for values, target in zip(found["targets"], self.targets, strict=True):
            values["is_met"] = target.is_met
        return found


def read_part(values: Any) -> Part:
    """A part from what `Part.to_dict` gives, after JSON.

    Raises:
        DataError: it is something else.
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
        targets = tuple(
            Target(
                str(each["name"]),
                str(each["machine"]),
                math.nan if each["value"] is None else float(each["value"]),
                float(each["wanted"]),
                _check_unit(each["unit"]),
                bool(each["is_least"]),
            )
            for each in values["targets"]
        )
        return Part(tables, targets, float(values["seconds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a result of `ucn bench`: {error!r}; measure again with `ucn bench`") from error


def tabulate_targets(targets: Sequence[Target]) -> Table:
    """Targets as a table."""
    rows = tuple(
        (
            target.name,
            target.machine,
            target.format_wanted(),
            format_with_unit(target.value, target.unit),
            "yes" if target.is_met else "no",
        )
        for target in targets
    )
    names = ("figure", "asked on", "asked for", "found here", "met")
    return Table("Figures asked for", tuple(Column(name) for name in names), rows)


def tabulate_failures(failures: Mapping[str, str]) -> Table:
    """Parts that failed, with the reasons, as a table."""
    return Table("Parts that failed", (Column("part"), Column("reason")), tuple(failures.items()))


def format_cell(value: Cell, unit: Unit) -> str:
    """A cell as text, without its unit; – where nothing was measured."""
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


def format_with_unit(value: Cell, unit: Unit) -> str:
    """A cell as text, with its unit."""
    text, name = format_cell(value, unit), UNITS[unit]
    return f"{text} {name}" if name else text


def _format_significant(value: float, digits: int = 3) -> str:
    """So many significant digits, never as a power of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1  # 9.996 became 10.0
    return f"{rounded:,.{max(0, decimals)}f}"


def _check_unit(name: Any) -> Unit:
    if name not in UNITS:
        raise ValueError(f"no unit '{name}'")
    return name  # type: ignore[no-any-return]


def _check_cell(value: Any) -> Cell:
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError(f"a cell is a text, a number or null, got {type(value).__name__}")
    return value
