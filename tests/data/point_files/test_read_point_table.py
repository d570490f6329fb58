"""Points files of all formats give one table that keeps every column."""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.point_cases import coco_values, labelme_values, write_json, write_text
from ucn.data.point_files.files import read_point_table
from ucn.data.point_files.table import PointTable
from ucn.errors import PointsError

NOT_A_NUMBER = float("nan")


def read(path: Path, text: str, keep_missing: bool = False) -> PointTable:
    return read_point_table(write_text(path, text), keep_missing=keep_missing)


class TestDelimited:
    @pytest.mark.parametrize(
        "text",
        [
            "x,y,name\n1,2,left eye\n3.5,4,beak\n",
            "x;y;name\n1;2;left eye\n3,5;4,0;beak\n",
            "x\ty\tname\n1\t2\tleft eye\n3.5\t4\tbeak\n",
            'x y name\n 1  2 "left eye"\n3.5 4 beak\n',
            "# clicked by hand\r\n\r\n X , Y ,name,,\r\n1,2,left eye,,\r\n,,,,\r\n3.5,4,beak,,\r\n",
            "\ufeffu,V,name\n1,2,left eye\n3.5,4,beak\n",
            '"x","y","name"\n"1","2","left eye"\n3.5,4,beak',
        ],
    )
    def test_separators_and_headers(self, tmp_path: Path, text: str) -> None:
        table = read(tmp_path / "p.csv", text)
        assert table.points.tolist() == [[1, 2], [3.5, 4]]
        assert table.columns == {"name": ("left eye", "beak")}
        assert table.parts == ("left eye", "beak")
        assert [name.lower() for name in table.header[:2]] in (["x", "y"], ["u", "v"])
        assert table.places[0].startswith(f"{tmp_path / 'p.csv'}:")

    @pytest.mark.parametrize("text", ["1,2\n3.5,4\n", "1;2\n3,5;4\n", "1\t2\n3.5\t4\n", "1 2\n3.5   4\n"])
    def test_without_a_header_there_are_two_numbers(self, tmp_path: Path, text: str) -> None:
        table = read(tmp_path / "p.txt", text)
        assert table.points.tolist() == [[1, 2], [3.5, 4]]
        assert (table.columns, table.header) == ({}, ("x", "y"))

    def test_words_beside_them_are_kept(self, tmp_path: Path) -> None:
        table = read(tmp_path / "p.csv", "left eye,1,2\nbeak,3.5,4\n")
        assert table.points.tolist() == [[1, 2], [3.5, 4]]
        assert table.columns == {"column 1": ("left eye", "beak")}

    def test_all_columns_are_kept_in_order(self, tmp_path: Path) -> None:
        table = read(tmp_path / "p.csv", "id,y,note,x,u\n007,2,,1,9\n8,4,a b,3,9\n")
        assert table.points.tolist() == [[1, 2], [3, 4]]
        assert table.columns == {"id": ("007", "8"), "note": ("", "a b"), "u": ("9", "9")}
        assert table.header == ("id", "y", "note", "x", "u")
        assert table.images is None

    def test_missing_points(self, tmp_path: Path) -> None:
        text = "image,part,x,y,visible\na.png,eye,1,2,1\na.png,beak,,,\na.png,tail,7,8,0\n"
        path = tmp_path / "p.csv"
        table = read(path, text, keep_missing=True)
        np.testing.assert_array_equal(table.points, [[1, 2], [np.nan, np.nan], [np.nan, np.nan]])
        assert table.is_missing.tolist() == [False, True, True]
        with pytest.raises(PointsError, match=r"p\.csv:3: expected a number, got ''"):
            read_point_table(path)
        assert read(path, text.replace("a.png,beak,,,\n", "")).parts == ("eye",)

    @pytest.mark.parametrize("text", ["", "\n# nothing\n", "x,y\n", "name;x;y\n"])
    def test_no_points(self, tmp_path: Path, text: str) -> None:
        table = read(tmp_path / "p.csv", text)
        assert table.points.shape == (0, 2)
        assert len(table) == len(table.places) == 0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a,b\n1,2\n", r"p\.csv:1: expected two numbers x and y, or a header .* got 'a,b'"),
            ("1,2,3\n", r"p\.csv:1: expected two numbers x and y, or a header"),
            ("x0,y0\n1,2\n", r"p\.csv:1: expected two numbers x and y, or a header"),
            ("x,X,y\n1,2,3\n", r"p\.csv:1: column 'x' is repeated"),
            ("x,y,n,N\n1,2,3,4\n", r"p\.csv:1: column 'n' is repeated"),
            ("x;y\n1;2;3\n", r"p\.csv:2: expected 2 columns separated by semicolons, got 3: '1;2;3'"),
            ("x y n\n1 2\n", r"p\.csv:2: expected 3 columns separated by spaces, got 2"),
            ("x,y\n1,two\n", r"p\.csv:2: expected a number, got 'two'"),
            ("x,y\n1,nan\n", r"p\.csv:2: expected a finite number, got 'nan'"),
            ("x,y\n1,-1e10\n", r"p\.csv:2: expected a finite number, got '-1e10'"),
            ('x,y\n1,"1,5"\n', r"p\.csv:2: expected a number, got '1,5'"),
            ("x,y\n1," + 200_000 * "2", r"p\.csv:2: expected short cells separated by commas"),
        ],
    )
    def test_wrong_lines(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(PointsError, match=message):
            read(tmp_path / "p.csv", text)

    @given(st.text("0123456789.,-+xyuvnaife_#\"';\t \n\r\0", max_size=40), st.booleans())
    def test_any_text_gives_a_table_or_an_error(self, text: str, keep_missing: bool) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(PointsError):
            table = read(Path(folder) / "p.csv", text, keep_missing)
            assert keep_missing or np.isfinite(table.points).all()
            assert all(len(cells) == len(table) for cells in table.columns.values())


class TestCoco:
    def test_a_row_for_each_keypoint(self, tmp_path: Path) -> None:
        table = read_point_table(write_json(tmp_path / "p.json", coco_values()))
        assert table.points.tolist() == [[1, 2], [5, 6], [7, 8]]
        assert table.columns == {
            "image": ("a.png", "a.png", "sub/b.png"),
            "class": ("bird",) * 3,
            "object": ("11", "11", "12"),
            "part": ("left eye", "beak", "left eye"),
            "visible": ("2", "1", "2"),
            "box": ("0 1 10 12", "0 1 10 12", ""),
        }
        assert "annotations[0]: keypoint 'beak'" in table.places[1]

    def test_missing_points_are_kept_where_asked_for(self, tmp_path: Path) -> None:
        table = read_point_table(write_json(tmp_path / "p.json", coco_values()), keep_missing=True)
        assert table.parts == ("left eye", "right eye", "beak") * 2
        assert table.is_missing.tolist() == [False, True, False, False, True, True]

    def test_points_of_one_image(self, tmp_path: Path) -> None:
        table = read_point_table(write_json(tmp_path / "p.json", coco_values()))
        assert table.of_image("/data/sub/b.png").points.tolist() == [[7, 8]]
        assert table.of_image(Path("b.png")).points.tolist() == [[7, 8]]
        with pytest.raises(PointsError, match=r"of 2 images, and none is 'aa\.png'; did you mean 'a\.png'"):
            table.of_image("aa.png")
        with pytest.raises(PointsError, match=r"none is 'new\.jpg'; give the file with the points of this"):
            table.of_image("new.jpg")

    def test_without_categories_parts_have_numbers(self, tmp_path: Path) -> None:
        values = coco_values()
        del values["categories"]
        table = read_point_table(write_json(tmp_path / "p.json", values))
        assert table.parts == ("1", "3", "1")
        assert "class" not in table.columns

    def test_boxes_without_keypoints_are_left_out_with_a_note(self, tmp_path: Path) -> None:
        values = coco_values()
        del values["annotations"][1]["keypoints"]
        table = read_point_table(write_json(tmp_path / "p.json", values))
        assert len(table) == 2
        assert table.notes == (f"{tmp_path / 'p.json'}: 1 annotations without keypoints are left out",)

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (("images",), {}, "expected images to be a list of objects"),
            (("images", 0), 3, r"images\[0\] must be an object"),
            (("images", 0, "file_name"), 3, r"images\[0\]: file_name must be text"),
            (("images", 0, "id"), [], r"images\[0\]: id must be a whole number or text"),
            (("annotations", 0, "image_id"), 9, r"annotations\[0\]: image_id 9 is none of 'images'"),
            (("annotations", 0, "category_id"), 9, "category_id 9 is none of 'categories'"),
            (("annotations", 0, "keypoints"), [1, 2, 2], r"annotations\[0\]: keypoints must be x, y, v"),
            (("annotations", 0, "keypoints"), "abc", "keypoints must be x, y, v of each point: 3 × 3"),
            (
                ("annotations", 0, "keypoints", 1),
                None,
                r"keypoint 'left eye': expected a finite number, got ''",
            ),
            (("annotations", 0, "keypoints", 1), NOT_A_NUMBER, "expected a finite number, got 'nan'"),
            (("annotations", 0, "keypoints", 1), 10**400, "expected a finite number, got 'a number of many"),
            (("annotations", 0, "keypoints", 2), 3, "v must be 0, 1 or 2, got 3"),
            (("annotations", 0, "bbox"), [1], "bbox must be a list of 4"),
            (("categories", 0, "keypoints"), ["a", "a", "b"], "keypoints has a name twice"),
            (("categories", 0, "keypoints"), [1], "keypoints must be a list of names"),
        ],
    )
    def test_wrong_values(self, tmp_path: Path, place: tuple[Any, ...], value: Any, message: str) -> None:
        values: Any = coco_values()
        inner = values
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with pytest.raises(PointsError, match=message):
            read_point_table(write_json(tmp_path / "p.json", values))


class TestLabelme:
    def test_convention_labelme_counts_from_the_corner(self, tmp_path: Path) -> None:
        table = read_point_table(write_json(tmp_path / "a.json", labelme_values()))
        assert table.points.tolist() == [[1, 2], [3, 4]]
        assert table.columns == {
            "image": ("a.png", "a.png"),
            "object": ("", "3"),
            "part": ("left eye", "beak"),
            "description": ("", "worn"),
        }
        assert table.notes == (f"{tmp_path / 'a.json'}: 1 shapes that are no points are left out",)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"imagePath": None}, "imagePath must be text"),
            ({"shapes": 3}, "expected shapes to be a list"),
            ({"shapes": [{"shape_type": "point", "points": []}]}, "points must be a list of 1"),
            (
                {"shapes": [{"shape_type": "point", "points": [3]}]},
                r"0\]: points must be \[\[x, y\]\]",
            ),
            (
                {"shapes": [{"shape_type": "point", "points": [[1, "2"]]}]},
                "expected a finite number, got '2'",
            ),
        ],
    )
    def test_wrong_values(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(PointsError, match=message):
            read_point_table(write_json(tmp_path / "a.json", labelme_values() | changes))


class TestRows:
    def test_objects_and_lists(self, tmp_path: Path) -> None:
        rows = [{"x": 1, "name": "eye", "y": 2.5}, [3, 4], {"x": None, "y": None, "n": 7}]
        path = write_json(tmp_path / "p.json", {"points": rows})
        assert read_point_table(path).points.tolist() == [[1, 2.5], [3, 4]]
        table = read_point_table(path, keep_missing=True)
        assert table.columns == {"name": ("eye", "", ""), "n": ("", "", "7")}
        assert table.is_missing.tolist() == [False, False, True]
        assert read_point_table(write_json(tmp_path / "q.json", [[3, 4]])).points.tolist() == [[3, 4]]
        assert len(read_point_table(write_json(tmp_path / "q.json", []))) == 0

    def test_half_a_surrogate_pair_and_line_ends_become_text(self, tmp_path: Path) -> None:
        path = write_text(tmp_path / "p.json", '[{"x": 1, "y": 2, "n": "a\\ud800\\nb"}]')
        assert read_point_table(path).columns == {"n": ("a? b",)}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{}", "expected COCO keypoints"),
            ("3", "expected COCO keypoints"),
            ('[{"x": 1}]', r"points\[0\]: expected x and y, got 'an object of length 1'"),
            ('[{"x": 1, "y": true}]', r"points\[0\]: expected a finite number, got '1'"),
            ('[{"x": 1, "y": null}]', r"points\[0\]: expected a finite number, got ''"),
            ('{\n"points": [1,]}', r"p\.json:2: expected JSON"),
            ("[" * 100_000, "nested too deeply"),
            ("[" + "9" * 5000 + "]", "expected JSON"),
        ],
    )
    def test_wrong_text(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(PointsError, match=message):
            read(tmp_path / "p.json", text)

    @given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda e: st.lists(e, max_size=4)))
    def test_any_json_gives_a_table_or_an_error(self, values: Any) -> None:
        for content in (
            values,
            coco_values() | {"annotations": values},
            labelme_values() | {"shapes": values},
        ):
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(PointsError):
                table = read_point_table(write_json(Path(folder) / "p.json", content))
                assert np.isfinite(table.points).all()


class TestPts:
    def test_convention_ibug_counts_from_1_and_bare_lines_from_0(self, tmp_path: Path) -> None:
        table = read(tmp_path / "face 1.pts", "version: 1\nn_points:  2\n{\n1 2\n3.5 4\n}\n")
        assert table.points.tolist() == [[0, 1], [2.5, 3]]
        assert table.columns == {"image": ("face 1", "face 1"), "part": ("1", "2")}
        assert table.places[0].endswith("face 1.pts:4")
        assert read(tmp_path / "b.pts", "1 2\n3.5 4\n").points.tolist() == [[1, 2], [3.5, 4]]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("version: 1\nn_points: 3\n{\n1 2\n}\n", "expected 3 lines of x and y, got 1"),
            ("version: 1\nn_points: x\n{\n1 2\n}\n", r"p\.pts:2: expected a number as n_points, got 'x'"),
            ("version: 1\n{\n1 2\n", r"p\.pts:3: expected lines of x and y between"),
            ("1 2 3\n", r"p\.pts:1: expected 2 numbers, got 3"),
            ("1 nan\n", r"p\.pts:1: expected a finite number"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(PointsError, match=message):
            read(tmp_path / "p.pts", text)


@pytest.mark.parametrize("name", ["p.csv", "p.json", "p.pts"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(PointsError, match=r"cannot read points .*: no such file"):
        read_point_table(path)
    path.write_bytes(b"\xff\xfe\x80")
    with pytest.raises(PointsError, match="not UTF-8 text"):
        read_point_table(path)


@pytest.mark.parametrize("name", ["p.csv", "p.json"])
def test_large_files_are_refused(tmp_path: Path, name: str) -> None:
    path = write_text(tmp_path / name, json.dumps([[1, 2]] * 10))
    with pytest.raises(PointsError, match="the limit for points is 20"):
        read_point_table(path, limit=20)


def test_short_rows_are_limited(tmp_path: Path) -> None:
    """A file of 8 MB took 829 MB and nine seconds."""
    path = tmp_path / "points.csv"
    path.write_text("x,y\n" + "1,2\n" * 33)
    assert len(read_point_table(path, limit=33 * 128)) == 33
    with pytest.raises(PointsError, match=r"points\.csv:34: the limit is 32 points; split the file"):
        read_point_table(path, limit=32 * 128)
