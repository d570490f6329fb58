import contextlib
import csv
import json
import struct
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.point_cases import write_text
from ucn.data import points as points_module
from ucn.data.example import disparity_errors, example_pair, score_against_disparity
from ucn.data.io import read_image
from ucn.data.match_files import read_matches, write_matches
from ucn.data.points import check_points, read_flo, read_flow, read_image_points, read_points, write_flow
from ucn.errors import DataError, OutputError, PointsError
from ucn.files.arrays import read_h5, read_npz
from ucn.types import Flow, Matches

META = {"weights": {"name": "w", "sha256": "00"}, "ucn": "1"}


def make_matches(count: int = 3) -> Matches:
    rng = np.random.default_rng(0)
    points0, points1 = (rng.uniform(0, 40, (count, 2)).astype(np.float32) for _ in range(2))
    if count > 1:
        points1[1] = np.nan
    scores = rng.uniform(0, 1, count).astype(np.float32)
    return Matches(points0, points1, scores, np.arange(count) % 2 == 0, 0.75, (40, 50), (60, 70))


def assert_same_matches(found: Matches, expected: Matches) -> None:
    for name in ("points0", "points1", "scores", "is_mutual"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    assert (found.pair_score, found.image0_hw, found.image1_hw) == (0.75, (40, 50), (60, 70))


class TestCheckPoints:
    def test_accepts_lists_arrays_and_tensors(self) -> None:
        kinds: list[Any] = [[[1, 2.5]], np.array([[1, 2.5]]), torch.tensor([[1, 2.5]])]
        for points in kinds:
            result = check_points(points, (10, 10))
            assert result.dtype == np.float32
            assert result.tolist() == [[1, 2.5]]

    def test_tensors_of_any_type(self) -> None:
        half = torch.tensor([[1, 2.5]], dtype=torch.bfloat16, requires_grad=True)
        assert check_points(half, (10, 10)).tolist() == [[1, 2.5]]
        for points in (torch.ones(1, 2, device="meta"), torch.ones(1, 2).to_sparse()):
            with pytest.raises(PointsError, match=r"points must be \(N, 2\) numbers, got"):
                check_points(points, (10, 10))

    def test_empty_is_normal(self) -> None:
        assert check_points([], (10, 10)).shape == (0, 2)
        assert check_points(np.zeros((0, 2)), (10, 10)).shape == (0, 2)

    def test_convention_the_image_ends_half_a_pixel_beyond_its_centres(self) -> None:
        check_points([[-0.5, -0.5], [19.5, 9.5]], (10, 20))

    @pytest.mark.parametrize("point", [(-0.6, 0), (0, -0.6), (19.6, 0), (0, 9.6), (9.6, 19.5)])
    def test_outside_names_row_and_size(self, point: tuple[float, float]) -> None:
        with pytest.raises(
            PointsError, match=r"row 1: point .* lies outside the image; the image is 20 × 10"
        ):
            check_points([(0, 0), point], (10, 20))

    def test_counts_the_others(self) -> None:
        with pytest.raises(PointsError, match=r"row 0: .*\(and 2 more\)"):
            check_points([[99, 0], [99, 0], [0, 99]], (10, 20))

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_not_finite(self, value: float) -> None:
        with pytest.raises(PointsError, match=r"row 2: point .* is not finite"):
            check_points([(0, 0), (1, 1), (0, value)], (10, 20))

    @pytest.mark.parametrize("points", [[1, 2], [[1, 2, 3]], np.zeros((1, 4, 2)), np.zeros((0, 3))])
    def test_wrong_shape(self, points: Any) -> None:
        with pytest.raises(PointsError, match=r"points must be \(N, 2\)"):
            check_points(points, (10, 20))

    @pytest.mark.parametrize("points", [[["a", "b"]], [[1, 2], [3]], "text"])
    def test_not_numbers(self, points: Any) -> None:
        with pytest.raises(PointsError, match=r"points must be \(N, 2\) numbers"):
            check_points(points, (10, 20))


class TestReadPoints:
    @pytest.mark.parametrize(
        "text",
        [
            "1,2\n3.5,4\n",
            "x,y\n1,2\n3.5,4",
            "\ufeffX, Y\r\n1, 2\r\n\r\n3.5,4\r\n",
            "# mine\ny,name,x\n2,a,1\n4,b,3.5\n",
            '"x","y"\n"1","2"\n3.5,4e0\n',
            "u;v\n1;2\n3,5;4\n",
        ],
    )
    def test_reads(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "p.csv").write_text(text, encoding="utf-8", newline="")
        result = read_points(tmp_path / "p.csv")
        assert result.dtype == np.float32
        assert result.tolist() == [[1, 2], [3.5, 4]]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"p\.csv holds no points; expected one x,y per line"),
            ("\n\n", "holds no points"),
            ("x,y\n", "holds no points"),
            ("1,2\n3,abc\n", r"p\.csv:2: expected a number, got 'abc'"),
            ("abc,2\n", r"p\.csv:1: expected two numbers x and y, or a header that names x and y"),
            ("x,y\n\n1,nan\n", r"p\.csv:3: expected a finite number, got 'nan'"),
            ("1,1e300\n", r"p\.csv:1: expected a finite number"),
            ("1," + 200_000 * "2", r"p\.csv:1: expected short cells separated by commas"),
            ("1,-inf\n", r"p\.csv:1: expected a finite number"),
            ("1,2,3\n", r"p\.csv:1: expected two numbers x and y"),
            ("x,y\n1\n", r"p\.csv:2: expected 2 columns separated by commas, got 1"),
            ("x,y,id\n1,2\n", r"p\.csv:2: expected 3 columns"),
            ("x0,y0\n1,2\n", r"p\.csv:1: expected two numbers x and y, or a header"),
            ("x,y\n1_0,2\n", r"p\.csv:2: expected a number, got '1_0'"),
            ("x,y\n1,\n", r"p\.csv:2: expected a number, got ''"),
            ("x,y\nx,y\n", r"p\.csv:2: expected a number, got 'x'"),
        ],
    )
    def test_wrong_lines(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "p.csv").write_text(text)
        with pytest.raises(PointsError, match=message):
            read_points(tmp_path / "p.csv")

    def test_outside_the_image_names_the_line(self, tmp_path: Path) -> None:
        (tmp_path / "p.csv").write_text("x,y\n1,2\n50,2\n")
        with pytest.raises(PointsError, match=r"p\.csv:3: point \(50, 2\) lies outside.* 20 × 10"):
            read_points(tmp_path / "p.csv", (10, 20))

    def test_missing_binary_folder_and_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(PointsError, match=r"cannot read points .*no\.csv: no such file"):
            read_points(tmp_path / "no.csv")
        with pytest.raises(PointsError, match="it is a folder"):
            read_points(tmp_path)
        (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x80\x00" * 5)
        with pytest.raises(PointsError, match="not UTF-8 text"):
            read_points(tmp_path / "p.csv")
        monkeypatch.setattr(points_module, "MAX_POINTS_BYTES", 10)
        with pytest.raises(PointsError, match="the limit for points is 10"):
            read_points(tmp_path / "p.csv")

    @given(st.text("0123456789.,-+exyinfa_#\"' \n\r\0", max_size=40))
    def test_any_text_gives_points_or_a_points_error(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(PointsError):
            path = Path(folder) / "p.csv"
            path.write_text(text, newline="")
            points = read_points(path)
            assert points.shape == (len(points), 2)
            assert np.isfinite(points).all()


class TestReadImagePoints:
    def test_keeps_the_columns_of_one_image(self, tmp_path: Path) -> None:
        path = write_text(tmp_path / "p.csv", "image,name,x,y\na.png,eye,1,2\nb.png,beak,3,4\n")
        table = read_image_points(path, "in/b.png", (10, 20))
        assert table.points.tolist() == [[3, 4]]
        assert table.columns == {"image": ("b.png",), "name": ("beak",)}
        with pytest.raises(PointsError, match=r"p\.csv: the points are of 2 images, and none is 'c\.jpg'"):
            read_image_points(path, "c.jpg", (10, 20))
        with pytest.raises(PointsError, match=r"p\.csv:3: point \(3, 4\) lies outside the image"):
            read_image_points(path, "b.png", (3, 3))

    def test_no_points(self, tmp_path: Path) -> None:
        with pytest.raises(PointsError, match="holds no points"):
            read_image_points(write_text(tmp_path / "p.csv", "x,y\n"), "a.png", (10, 20))


class TestColumns:
    """What a points file says of each point stands beside its match."""

    COLUMNS: ClassVar = {"name": ("eye", "beak", "ü, 1"), "score": ("a", "b", "c")}

    @pytest.mark.parametrize("suffix", [".npz", ".h5"])
    def test_binary_files(self, tmp_path: Path, suffix: str) -> None:
        write_matches(tmp_path / f"m{suffix}", make_matches(), META, columns=self.COLUMNS)
        found, meta = read_matches(tmp_path / f"m{suffix}")
        assert_same_matches(found, make_matches())
        assert meta == {**META, "columns": {name: list(cells) for name, cells in self.COLUMNS.items()}}

    def test_csv(self, tmp_path: Path) -> None:
        write_matches(tmp_path / "m.csv", make_matches(), columns=self.COLUMNS)
        with (tmp_path / "m.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["x0", "y0", "x1", "y1", "score", "is_mutual", "name", "input_score"]
        assert [row["name"] for row in rows] == ["eye", "beak", "ü, 1"]
        assert [row["input_score"] for row in rows] == ["a", "b", "c"]

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_json(self, tmp_path: Path, count: int) -> None:
        matches = make_matches(count)
        columns = {name: cells[:count] for name, cells in self.COLUMNS.items()}
        write_matches(tmp_path / "m.json", matches, META, columns=columns)
        values = json.loads((tmp_path / "m.json").read_text())
        assert (values["pair_score"], values["image1_hw"], values["meta"]) == (0.75, [60, 70], META)
        assert len(values["points"]) == count
        if count == 3:
            assert values["points"][1]["x1"] is None
            assert values["points"][2]["name"] == "ü, 1"
            assert values["points"][2]["x0"] == matches.points0[2, 0]

    def test_json_of_matches_from_csv(self, tmp_path: Path) -> None:
        write_matches(tmp_path / "m.csv", make_matches())
        write_matches(tmp_path / "m.json", read_matches(tmp_path / "m.csv")[0])
        assert json.loads((tmp_path / "m.json").read_text())["pair_score"] is None

    def test_coco_has_the_points_of_image_1(self, tmp_path: Path) -> None:
        columns = {**self.COLUMNS, "image": ("a.jpg",) * 3, "box": ("1 2 3 4",) * 3}
        matches = make_matches()
        write_matches(tmp_path / "m.coco.json", matches, META, ("a.jpg", "b.jpg"), columns=columns)
        values = json.loads((tmp_path / "m.coco.json").read_text())
        assert values["images"] == [{"id": 1, "file_name": "b.jpg", "width": 70, "height": 60}]
        (annotation,) = values["annotations"]
        assert values["categories"][0]["keypoints"] == ["eye", "beak", "ü, 1"]
        np.testing.assert_allclose(annotation["keypoints"][6:8], matches.points1[2], atol=1e-3)
        assert annotation["keypoints"][2::3] == [2, 0, 2]  # the second one is NaN
        assert annotation["attributes"]["input_score"] == ["a", "b", "c"]
        assert annotation["attributes"]["is_mutual"] == ["1", "0", "1"]

    def test_coco_without_names_has_numbers(self, tmp_path: Path) -> None:
        write_matches(tmp_path / "m.coco.json", make_matches())
        values = json.loads((tmp_path / "m.coco.json").read_text())
        assert values["categories"][0]["keypoints"] == ["1", "2", "3"]


class TestMatchesFiles:
    @pytest.mark.parametrize("suffix", [".npz", ".h5"])
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_round_trip(self, tmp_path: Path, suffix: str, count: int) -> None:
        path = tmp_path / f"m{suffix}"
        write_matches(path, make_matches(count), META, ("a/1.jpg", "b.jpg"))
        found, meta = read_matches(path)
        assert_same_matches(found, make_matches(count))
        assert meta == META

    def test_npz_needs_no_pickle(self, tmp_path: Path) -> None:
        write_matches(tmp_path / "m.npz", make_matches(), META)
        with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
            assert sorted(archive) == [
                "image0_hw", "image1_hw", "is_mutual", "meta", "pair_score", "points0", "points1", "scores",
            ]  # fmt: skip
            assert json.loads(str(archive["meta"])) == META

    def test_h5_group_is_named_as_hloc_names_pairs(self, tmp_path: Path) -> None:
        write_matches(tmp_path / "m.h5", make_matches(), META, ("a/1.jpg", "b.jpg"))
        with h5py.File(tmp_path / "m.h5") as file:
            group = file["a-1.jpg"]["b.jpg"]
            assert group["points0"].shape == (3, 2)
            assert group.attrs["pair_score"] == 0.75

    def test_csv(self, tmp_path: Path) -> None:
        matches = make_matches()
        write_matches(tmp_path / "m.csv", matches)
        with (tmp_path / "m.csv").open(newline="") as file:
            header, *rows = list(csv.reader(file))
        assert header == ["x0", "y0", "x1", "y1", "score", "is_mutual"]
        assert len(rows) == 3
        values = np.array(rows, np.float64)
        np.testing.assert_allclose(values[:, :2], matches.points0, atol=5e-4)
        np.testing.assert_allclose(values[:, 2:4], matches.points1, atol=5e-4)
        np.testing.assert_allclose(values[:, 4], matches.scores, atol=5e-5)
        assert [row[5] for row in rows] == ["1", "0", "1"]

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_csv_comes_back(self, tmp_path: Path, count: int) -> None:
        matches = make_matches(count)
        write_matches(tmp_path / "m.csv", matches, META)
        found, meta = read_matches(tmp_path / "m.csv")
        assert meta == {}
        assert found.points0.shape == (count, 2)
        np.testing.assert_allclose(found.points0, matches.points0, atol=5e-4)
        np.testing.assert_allclose(found.points1, matches.points1, atol=5e-4)
        np.testing.assert_allclose(found.scores, matches.scores, atol=5e-5)
        np.testing.assert_array_equal(found.is_mutual, matches.is_mutual)
        assert np.isnan(found.pair_score)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"m\.csv:1: expected the header x0,y0,x1,y1,score,is_mutual, got ''"),
            ("x,y\n1,2\n", r"m\.csv:1: expected the header .*got 'x,y'"),
            ("HEADER\n1,2,3\n", r"m\.csv:2: expected x0,.*got '1,2,3'; correct it"),
            ("HEADER\n1,2,3,4,0.5,1\n1,2,3,4,a,1\n", r"m\.csv:3: expected x0"),
            ("HEADER\n1,2,3,4,0.5,1\n1,2,3,4,2,1\n", r"m\.csv:3: value out of range in '1,2,3,4,2,1'"),
            ("HEADER\nnan,2,3,4,0.5,1\n", r"m\.csv:2: value out of range"),
            ("HEADER\n1,2,inf,4,0.5,1\n", r"m\.csv:2: value out of range"),
            ("HEADER\n1,2,3,4,0.5,nan\n", r"m\.csv:2: value out of range"),
            ("HEADER\n1,2,3,1e300,0.5,1\n", r"m\.csv:2: value out of range"),
            ("HEADER\n\n1,2,3,4,0.5,1\n", r"m\.csv:2: expected x0"),
        ],
    )
    def test_csv_with_wrong_lines(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "m.csv").write_text(text.replace("HEADER", "x0,y0,x1,y1,score,is_mutual"))
        with pytest.raises(DataError, match=message):
            read_matches(tmp_path / "m.csv")

    @pytest.mark.parametrize("change", ["3", "{}", "[" * 100_000, '{"scale": "x"}'])
    def test_a_view_change_that_is_none(self, tmp_path: Path, change: str) -> None:
        write_matches(tmp_path / "m.npz", make_matches(), META)
        with np.load(tmp_path / "m.npz") as archive:
            values = dict(archive)
        np.savez(tmp_path / "m.npz", **values, view_change=change)
        with pytest.raises(DataError, match="does not hold matches"):
            read_matches(tmp_path / "m.npz")

    @pytest.mark.parametrize("count", [0, 3])
    def test_inliers(self, tmp_path: Path, count: int) -> None:
        is_inlier = np.array([True, False, True])[:count]
        for suffix in (".npz", ".csv", ".h5"):
            write_matches(tmp_path / f"m{suffix}", make_matches(count), is_inlier=is_inlier)
        np.testing.assert_array_equal(read_npz(tmp_path / "m.npz")["is_inlier"], is_inlier)
        found = read_h5(tmp_path / "m.h5", ("points0", "is_inlier"), "matches")["is_inlier"]
        np.testing.assert_array_equal(found, is_inlier)
        assert_same_matches(read_matches(tmp_path / "m.h5")[0], make_matches(count))
        header, *rows = (tmp_path / "m.csv").read_text().splitlines()
        assert header == "x0,y0,x1,y1,score,is_mutual,is_inlier"
        assert [row.split(",")[-1] for row in rows] == ["1", "0", "1"][:count]
        found = read_matches(tmp_path / "m.csv")[0]
        np.testing.assert_allclose(found.points0, make_matches(count).points0, atol=5e-4)
        np.testing.assert_array_equal(found.is_mutual, make_matches(count).is_mutual)

    @pytest.mark.parametrize("is_inlier", [np.ones(2, np.bool_), np.ones(3)])
    def test_inliers_of_other_matches(self, tmp_path: Path, is_inlier: Any) -> None:
        for suffix in (".npz", ".csv", ".h5"):
            with pytest.raises(ValueError, match=r"is_inlier must be bool \(3,\) as the matches, got"):
                write_matches(tmp_path / f"m{suffix}", make_matches(), is_inlier=is_inlier)
        assert list(tmp_path.iterdir()) == []

    def test_unknown_suffix_and_existing_file(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"must end in \.npz, \.csv, \.h5"):
            write_matches(tmp_path / "m.txt", make_matches())
        (tmp_path / "m.csv").touch()
        with pytest.raises(OutputError, match="exists already"):
            write_matches(tmp_path / "m.csv", make_matches())
        assert (tmp_path / "m.csv").read_bytes() == b""

    @pytest.mark.parametrize("suffix", [".npz", ".h5"])
    def test_damaged_file(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"m{suffix}"
        with pytest.raises(DataError, match=r"cannot read|no file of matches"):
            read_matches(path)
        path.write_bytes(b"nonsense")
        with pytest.raises(DataError, match="cannot read"):
            read_matches(path)

    @pytest.mark.parametrize("name", ["m.json", "m.coco.json", "m.txt"])
    def test_formats_that_are_only_written(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=r"its name must end in \.npz, \.csv, \.h5"):
            read_matches(tmp_path / name)

    def test_other_content(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "m.npz", other=1)
        with pytest.raises(DataError, match="does not hold matches"):
            read_matches(tmp_path / "m.npz")
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file.create_group("empty")
        with pytest.raises(DataError, match="does not hold matches"):
            read_matches(tmp_path / "m.h5")

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("points1", np.zeros((2, 2), np.float32), r"points1 must be \(3, 2\), got \(2, 2\)"),
            ("points0", np.zeros((3, 3), np.float32), r"points0 must be \(3, 2\), got \(3, 3\)"),
            ("scores", np.zeros(4, np.float32), r"points0 must be \(4, 2\), got \(3, 2\)"),
            ("scores", np.float32(1), r"points0 must be \(0, 2\), got \(3, 2\)"),
            ("is_mutual", np.ones((3, 1), np.bool_), r"is_mutual must be \(3,\), got \(3, 1\)"),
            ("image0_hw", np.array([np.inf, 1]), "cannot convert float infinity"),
            ("meta", "[" * 100_000, "its meta is nested too deeply"),
            ("meta", "3", "does not hold matches"),
        ],
    )
    def test_parts_that_do_not_fit(self, tmp_path: Path, name: str, value: Any, message: str) -> None:
        path = tmp_path / "m.npz"
        write_matches(path, make_matches(), META)
        with np.load(path) as archive:
            values = dict(archive)
        np.savez(path, **{**values, name: value})
        with pytest.raises(DataError, match=f"m.npz does not hold matches: .*{message.split('matches')[-1]}"):
            read_matches(path)

    def test_h5_with_a_group_for_an_array(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file.create_group("a/b/points0")
        with pytest.raises(DataError, match="points0 is a group or a link, not a data set"):
            read_matches(tmp_path / "m.h5")

    def test_h5_with_fewer_rows(self, tmp_path: Path) -> None:
        write_matches(tmp_path / "m.h5", make_matches(), META)
        with h5py.File(tmp_path / "m.h5", "a") as file:
            group = file["image0/image1"]
            del group["points1"]
            group.create_dataset("points1", data=np.zeros((2, 2)))
        with pytest.raises(DataError, match=r"points1 must be \(3, 2\), got \(2, 2\)"):
            read_matches(tmp_path / "m.h5")

    def test_flipped_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "m.npz"
        write_matches(path, make_matches(300), META)
        content = bytearray(path.read_bytes())
        content[100:110] = bytes(byte ^ 0xFF for byte in content[100:110])
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot read"):
            read_matches(path)


class TestFlowFiles:
    def make_flow(self) -> Flow:
        vectors = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
        vectors[1, 2] = np.nan
        return Flow(vectors, np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3))

    def test_flo_bytes(self, tmp_path: Path) -> None:
        write_flow(tmp_path / "f.flo", self.make_flow())
        content = (tmp_path / "f.flo").read_bytes()
        assert content[:4] == b"PIEH"
        assert struct.unpack("<f", content[:4]) == (202021.25,)
        assert struct.unpack("<ii", content[4:12]) == (3, 2)
        values = struct.unpack("<12f", content[12:])
        assert values[:10] == tuple(range(10))
        assert min(values[10:]) > 1e9

    def test_flo_round_trip(self, tmp_path: Path) -> None:
        write_flow(tmp_path / "f.flo", self.make_flow())
        np.testing.assert_array_equal(read_flo(tmp_path / "f.flo"), self.make_flow().flow_0to1)

    def test_npz_round_trip(self, tmp_path: Path) -> None:
        write_flow(tmp_path / "f.npz", self.make_flow(), META)
        flow, meta = read_flow(tmp_path / "f.npz")
        np.testing.assert_array_equal(flow.flow_0to1, self.make_flow().flow_0to1)
        np.testing.assert_array_equal(flow.confidence, self.make_flow().confidence)
        assert meta == META

    def test_parts_that_do_not_fit(self, tmp_path: Path) -> None:
        path, vectors, confidence = tmp_path / "f.npz", np.zeros((2, 3, 2)), np.zeros((2, 3))
        np.savez(path, flow_0to1=vectors, confidence=np.zeros((3, 3)), meta="{}")
        with pytest.raises(DataError, match=r"flow_0to1 must be \(3, 3, 2\), got \(2, 3, 2\)"):
            read_flow(path)
        np.savez(path, flow_0to1=vectors, confidence=np.zeros(3), meta="{}")
        with pytest.raises(DataError, match=r"confidence must be \(H, W\), got \(3,\)"):
            read_flow(path)
        np.savez(path, flow_0to1=vectors, confidence=confidence, meta="[" * 100_000)
        with pytest.raises(DataError, match="does not hold flow: its meta is nested too deeply"):
            read_flow(path)

    def test_unknown_suffix(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"must end in \.flo, \.npz"):
            write_flow(tmp_path / "f.csv", self.make_flow())

    @pytest.mark.parametrize(
        "content", [b"", b"PIEH", b"nope" + bytes(20), b"PIEH" + struct.pack("<ii", 3, 2) + bytes(5)]
    )
    def test_damaged_flo(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "f.flo").write_bytes(content)
        with pytest.raises(DataError, match=r"f\.flo.*; get it again") as caught:
            read_flo(tmp_path / "f.flo")
        assert caught.value.path == tmp_path / "f.flo"
        with pytest.raises(DataError, match=r"no\.flo"):
            read_flo(tmp_path / "no.flo")


class TestExample:
    def test_pair(self) -> None:
        pair = example_pair()
        assert read_image(pair.image0_path).shape == read_image(pair.image1_path).shape == (3, 500, 741)
        assert pair.disparity.shape == (500, 741)
        assert pair.disparity.dtype == np.float32
        known = np.isfinite(pair.disparity)
        assert not np.isinf(pair.disparity).any()
        assert 0.92 < known.mean() < 0.93
        assert 7 < pair.disparity[known].min() < pair.disparity[known].max() < 60

    def test_disparity_aligns_the_views(self) -> None:
        pair = example_pair()
        left, right = (read_image(path).numpy() for path in (pair.image0_path, pair.image1_path))
        rows, columns = np.nonzero(np.isfinite(pair.disparity))
        shift = np.rint(pair.disparity[rows, columns]).astype(int)

        def difference(sign: int) -> float:
            target = columns - sign * shift
            kept = (target >= 0) & (target < left.shape[2])
            there = right[:, rows[kept], target[kept]]
            return float(np.abs(left[:, rows[kept], columns[kept]] - there).mean())

        assert difference(1) < 0.4 * difference(-1)

    def test_errors_by_hand(self) -> None:
        disparity = np.full((3, 10), 2.0, np.float32)
        disparity[1, 5] = np.nan
        points0 = np.array([[4, 0], [4, 0], [4, 0], [5.4, 1.4], [9.5, 2.5], [4, 2], [20, 2]], np.float32)
        points1 = np.array(
            [[2, 0], [2, 3], [5, 4], [0, 0], [7.5, 2.5], [np.nan, np.nan], [18, 2]], np.float32
        )
        errors = disparity_errors(points0, points1, disparity)
        np.testing.assert_allclose(errors, [0, 3, 5, np.nan, 0, np.inf, np.nan])

    def test_score_by_hand(self) -> None:
        disparity = np.full((3, 10), 2.0, np.float32)
        disparity[1] = np.nan
        points0 = np.array([[4, 0], [4, 0], [4, 2], [4, 2], [4, 1]], np.float32)
        points1 = np.array([[2, 0.5], [2, 3], [5, 6], [np.nan, np.nan], [2, 1]], np.float32)
        score = score_against_disparity(points0, points1, disparity)
        assert (score.count, score.known_count) == (5, 4)
        assert score.share_within == {1.0: 0.25, 3.0: 0.5, 5.0: 0.75}
        assert score.median_error == 4.0

    def test_no_matches(self) -> None:
        none = np.zeros((0, 2), np.float32)
        score = score_against_disparity(none, none, np.ones((3, 3), np.float32))
        assert (score.count, score.known_count) == (0, 0)
        assert np.isnan(score.share_within[3.0])
        assert np.isnan(score.median_error)

    def test_wrong_shapes(self) -> None:
        with pytest.raises(ValueError, match=r"must both be \(N, 2\), got \(1, 2\) and \(2, 2\)"):
            disparity_errors(
                np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32), np.ones((3, 3), np.float32)
            )
