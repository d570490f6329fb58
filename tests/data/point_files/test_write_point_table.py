"""Tables are written as CSV, JSON and COCO, and come back as they were."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.point_cases import coco_values, write_json
from ucn.data.point_files.coco import to_coco
from ucn.data.point_files.files import format_point_table, read_point_table, write_point_table
from ucn.data.point_files.table import PointTable
from ucn.errors import OutputError, PointsError


@pytest.fixture
def table() -> PointTable:
    """Three parts of two images; one is missing."""
    points = np.array([[1, 2.25], [np.nan, np.nan], [3, 4]])
    columns = {
        "image": ("a.png", "a.png", "b.png"),
        "part": ("eye", "beak", "eye"),
        "who": ("me", "", "ü, 1"),
    }
    return PointTable(points, columns, header=("image", "part", "x", "y", "who"))


def assert_same(found: PointTable, expected: PointTable) -> None:
    np.testing.assert_array_equal(found.points, expected.points)
    assert found.columns == expected.columns


def test_csv(table: PointTable, tmp_path: Path) -> None:
    text = 'image,part,x,y,who\na.png,eye,1,2.25,me\na.png,beak,,,\nb.png,eye,3,4,"ü, 1"\n'
    assert format_point_table(table) == text
    write_point_table(tmp_path / "p.csv", table)
    assert_same(read_point_table(tmp_path / "p.csv", keep_missing=True), table)


def test_names_of_the_coordinates_are_kept(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id;v;u\n1;2;3\n")
    assert format_point_table(read_point_table(tmp_path / "p.csv")) == "id,v,u\n1,2,3\n"


def test_json(table: PointTable, tmp_path: Path) -> None:
    write_point_table(tmp_path / "p.json", table)
    rows = json.loads((tmp_path / "p.json").read_text())["points"]
    assert rows[0] == {"image": "a.png", "part": "eye", "who": "me", "x": 1, "y": 2.25}
    assert (rows[1]["x"], rows[1]["y"]) == (None, None)
    assert_same(read_point_table(tmp_path / "p.json", keep_missing=True), table)


def test_coco(table: PointTable, tmp_path: Path) -> None:
    write_point_table(tmp_path / "p.coco.json", table, sizes_hw={"a.png": (10, 20)})
    values = json.loads((tmp_path / "p.coco.json").read_text())
    assert values["images"] == [
        {"id": 1, "file_name": "a.png", "width": 20, "height": 10},
        {"id": 2, "file_name": "b.png"},
    ]
    assert values["categories"] == [{"id": 1, "name": "object", "keypoints": ["eye", "beak"], "skeleton": []}]
    assert values["annotations"] == [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 1,
            "keypoints": [1, 2.25, 2, 0, 0, 0],
            "num_keypoints": 1,
            "bbox": [1, 2.25, 0, 0],
            "area": 0,
            "iscrowd": 0,
            "attributes": {"who": ["me", ""]},
        },
        {
            "id": 2,
            "image_id": 2,
            "category_id": 1,
            "keypoints": [3, 4, 2, 0, 0, 0],
            "num_keypoints": 1,
            "bbox": [3, 4, 0, 0],
            "area": 0,
            "iscrowd": 0,
            "attributes": {"who": ["ü, 1", None]},
        },
    ]
    found = read_point_table(tmp_path / "p.coco.json")
    assert found.columns["who"] == ("me", "ü, 1")
    assert found.points.tolist() == [[1, 2.25], [3, 4]]


def test_coco_comes_back_as_it_was(tmp_path: Path) -> None:
    table = read_point_table(write_json(tmp_path / "p.json", coco_values()), keep_missing=True)
    write_point_table(tmp_path / "q.coco.json", table)
    found = read_point_table(tmp_path / "q.coco.json", keep_missing=True)
    np.testing.assert_array_equal(found.points, table.points)
    for name in ("image", "class", "object", "part", "visible"):
        assert found.columns[name] == table.columns[name]


def test_coco_of_points_without_names_numbers_them() -> None:
    table = PointTable(np.array([[1.0, 2], [3, 4], [5, 6]]), {"image": ("a", "a", "b")})
    values: Any = to_coco(table, {})
    assert values["categories"][0]["keypoints"] == ["1", "2"]
    assert [each["keypoints"][:2] for each in values["annotations"]] == [[1, 2], [5, 6]]


def test_visible_1_is_occluded_only_where_there_is_a_2() -> None:
    points = np.array([[1.0, 2], [3, 4]])
    for cells, states in ((("1", "1"), [2, 2]), (("1", "2"), [1, 2])):
        table = PointTable(points, {"image": ("a", "a"), "part": ("p", "q"), "visible": cells})
        assert to_coco(table, {})["annotations"][0]["keypoints"][2::3] == states


def test_nothing() -> None:
    empty = PointTable(np.zeros((0, 2)), {"image": (), "part": ()})
    assert format_point_table(empty) == "image,part,x,y\n"
    assert to_coco(empty, {}) == {"images": [], "categories": [], "annotations": []}


def test_coco_needs_images_and_one_row_for_a_part(tmp_path: Path) -> None:
    points = np.array([[1.0, 2], [3, 4]])
    with pytest.raises(PointsError, match="add a column image"):
        write_point_table(tmp_path / "p.coco.json", PointTable(points, {}))
    twice = PointTable(points, {"image": ("a", "a"), "part": ("eye", "eye")})
    with pytest.raises(PointsError, match="row 1: part 'eye' of this object is there twice"):
        write_point_table(tmp_path / "p.coco.json", twice)
    assert not list(tmp_path.iterdir())


def test_outputs_that_cannot_be_written(table: PointTable, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"must end in \.csv, \.json or \.coco\.json"):
        write_point_table(tmp_path / "p.txt", table)
    (tmp_path / "p.csv").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        write_point_table(tmp_path / "p.csv", table)
    write_point_table(tmp_path / "p.csv", table, overwrite=True)
    assert len(read_point_table(tmp_path / "p.csv", keep_missing=True)) == 3
