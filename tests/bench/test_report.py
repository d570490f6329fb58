import json
import math

import pytest

from ucn.bench.report import (
    Column,
    Part,
    Table,
    Unit,
    format_cell,
    read_part,
)
from ucn.errors import DataError

TABLE = Table(
    "speed",
    (Column("method"), Column("time", "ms"), Column("ratio", "ratio")),
    (("ours", 0.08974, 1.0), ("theirs", 0.8836, 9.846)),
    ("A note.",),
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.08974, "ms", "0.0897"),
        (13.93, "ms", "13.9"),
        (884.4, "ms", "884"),
        (1080.4, "ms", "1,080"),
        (9.996, "ms", "10.0"),
        (0, "ms", "0"),
        (9.846, "ratio", "9.85×"),
        (0.99994, "share", "99.99"),
        (2.9e-8, "error", "2.9e-08"),
        (19200, "count", "19,200"),
        (None, "ms", "–"),
        (math.nan, "MB", "–"),
        ("text", "ms", "text"),
    ],
)
def test_cells_have_three_significant_digits(value: float | None, unit: Unit, text: str) -> None:
    assert format_cell(value, unit) == text


def test_headings_have_units() -> None:
    assert [column.heading for column in TABLE.columns] == ["method", "time, ms", "ratio"]


def test_rows_must_be_whole() -> None:
    with pytest.raises(ValueError, match="a row of 'short' must have 2 cells, got"):
        Table("short", (Column("a"), Column("b")), (("only one",),))


def test_part_survives_json() -> None:
    part = Part((TABLE,), 1.5)
    values = json.loads(json.dumps(part.to_dict()))
    assert read_part(values) == part
    assert read_part(values).seconds == 1.5
    assert read_part({**values, "targets": []}) == part  # files of earlier versions have more keys


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"tables": [{}]},
        {"tables": []},
        {
            "tables": [{"title": "t", "columns": [{"name": "a", "unit": "mile"}], "rows": [], "notes": []}],
            "seconds": 0,
        },
        {
            "tables": [{"title": "t", "columns": [{"name": "a", "unit": "ms"}], "rows": [[[]]], "notes": []}],
            "seconds": 0,
        },
    ],
)
def test_other_json_is_refused(values: object) -> None:
    with pytest.raises(DataError, match="not a result of `ucn bench`"):
        read_part(values)
