"""The value that points files become."""

import numpy as np
import pytest

from ucn.data.point_files.table import PointTable, rename_columns
from ucn.errors import PointsError

POINTS = np.array([[1.0, 2], [3, 4], [5, 6]])


def test_defaults() -> None:
    table = PointTable(POINTS, {"name": ("a", "b", "c")})
    assert table.places == ("row 0", "row 1", "row 2")
    assert table.header == ("name", "x", "y")
    assert len(PointTable(np.zeros((0, 2)), {})) == 0


def test_select() -> None:
    table = PointTable(POINTS, {"name": ("a", "b", "c")})
    for rows in ([2, 0], np.array([2, 0])):
        assert table.select(rows).columns == {"name": ("c", "a")}
    chosen = table.select(np.array([False, True, False]))
    assert (chosen.points.tolist(), chosen.places) == ([[3, 4]], ("row 1",))
    assert len(table.select([])) == 0


def test_other_points_and_columns() -> None:
    table = PointTable(POINTS, {"name": ("a", "b", "c")})
    moved = table.with_points(POINTS + 1).with_column("score", ["1", "2", "3"])
    assert moved.points[0].tolist() == [2, 3]
    assert moved.header == ("name", "x", "y", "score")
    assert moved.with_column("name", ["d"] * 3).header == moved.header
    assert table.columns == {"name": ("a", "b", "c")}


def test_roles_of_columns() -> None:
    table = PointTable(POINTS, {"Label": ("a", "b", "c"), "part": ("d", "e", "f"), "File_Name": ("g",) * 3})
    assert (table.column_of("part"), table.column_of("image")) == ("part", "File_Name")
    assert table.images == ("g",) * 3
    assert table.cells_of("visible") is None


def test_of_image_takes_the_longest_path() -> None:
    table = PointTable(POINTS, {"image": ("a.png", "x/a.png", r"y\b.png")})
    assert table.of_image("/data/x/a.png").points.tolist() == [[3, 4]]
    assert table.of_image("a.png").points.tolist() == [[1, 2]]
    assert table.of_image("z/b.png").points.tolist() == [[5, 6]]
    assert len(PointTable(POINTS, {}).of_image("q.png")) == 3
    assert len(PointTable(POINTS, {"image": ("a",) * 3}).of_image("q.png")) == 3


def test_of_image_that_is_ambiguous() -> None:
    table = PointTable(POINTS, {"image": ("x/a.png", "y/a.png", "y/b.png")})
    with pytest.raises(PointsError, match=r"2 images named 'a\.png', such as 'x/a\.png' and 'y/a\.png'"):
        table.of_image("a.png")


def test_columns_beside_those_of_an_output() -> None:
    columns = {"score": ["a"], "input_score": ["b"], "name": ["c"]}
    assert rename_columns(columns, ("score",)) == {
        "input_score": ["a"],
        "input_input_score": ["b"],
        "name": ["c"],
    }
    assert rename_columns(None, ("score",)) == {}


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match=r"points must be \(N, 2\), got \(3,\)"):
        PointTable(np.zeros(3), {})
    with pytest.raises(ValueError, match="column 'a' must have 3 cells, one per point, got 1"):
        PointTable(POINTS, {"a": ("b",)})
