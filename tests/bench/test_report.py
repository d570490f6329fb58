import json
import math

import pytest

from ucn.bench.report import (
    Column,
    Part,
    Table,
    Target,
    Unit,
    format_cell,
    format_with_unit,
    read_part,
    tabulate_targets,
)
from ucn.errors import DataError

TABLE = Table(
    "speed",
    (Column("way"), Column("time", "ms"), Column("ratio", "ratio")),
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
def test_cells_have_three_digits(value: float | None, unit: Unit, text: str) -> None:
    assert format_cell(value, unit) == text


def test_units_follow_numbers() -> None:
    assert format_with_unit(2.98, "ms") == "2.98 ms"
    assert format_with_unit(0.9999, "share") == "99.99 %"
    assert format_with_unit(15.0, "ratio") == "15.0×"
    assert [column.heading for column in TABLE.columns] == ["way", "time, ms", "ratio"]


def test_rows_must_be_whole() -> None:
    with pytest.raises(ValueError, match="a row of 'short' must have 2 cells, got"):
        Table("short", (Column("a"), Column("b")), (("only one",),))


def test_part_survives_json() -> None:
    part = Part((TABLE,), (Target("ratio", "an H200", 9.85, 15.0),), 1.5)
    values = json.loads(json.dumps(part.to_dict()))
    assert values["targets"][0]["is_met"] is False
    assert read_part(values) == part
    assert read_part(values).seconds == 1.5


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"tables": [{}]},
        {"tables": [], "targets": [{"name": "x"}]},
        {
            "tables": [{"title": "t", "columns": [{"name": "a", "unit": "mile"}], "rows": [], "notes": []}],
            "targets": [],
            "seconds": 0,
        },
        {
            "tables": [{"title": "t", "columns": [{"name": "a", "unit": "ms"}], "rows": [[[]]], "notes": []}],
            "targets": [],
            "seconds": 0,
        },
    ],
)
def test_other_json_is_refused(values: object) -> None:
    with pytest.raises(DataError, match="not a result of `ucn bench`"):
        read_part(values)


def test_targets_are_met_on_their_own_side() -> None:
    assert Target("ratio", "here", 15.0, 15.0).is_met
    assert not Target("ratio", "here", 14.9, 15.0).is_met
    assert Target("time", "here", 2.9, 3.0, "ms", is_least=False).is_met
    assert not Target("time", "here", math.nan, 3.0, "ms", is_least=False).is_met
    table = tabulate_targets([Target("time", "an H200", 3.1, 3.0, "ms", is_least=False)])
    assert table.format_rows() == [["time", "an H200", "at most 3.00 ms", "3.10 ms", "no"]]
