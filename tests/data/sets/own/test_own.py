"""Your own data: both formats give the same pairs, and errors name file, line and remedy."""

import contextlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, skip_bad
from ucn.data.pairs import PairData
from ucn.data.sets.own.folder import OwnData, open_folder
from ucn.errors import DataError, ImageReadError, PointsError, UcnError

POINTS = "x0,y0,x1,y1\n1,2,3,4\n10.5,0,0.25,7\n"


def write_image(path: Path, width: int = 20, height: int = 10, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pairs, 20 × 10 against 16 × 12 pixels, in a folder whose name has blanks and other letters."""
    root = tmp_path / "eigene Daten ü"
    for seed, name in enumerate(("a.png", "b.png")):
        write_image(root / "images" / name, 20, 10, seed)
    for seed, name in enumerate(("c.png", "d é.png")):
        write_image(root / "images" / name, 16, 12, seed + 2)
    (root / "points").mkdir()
    write(root / "pairs.csv", "image0,image1\nimages/a.png,images/c.png\nimages/b.png,images/d é.png\n")
    write(root / "points" / "a__c.csv", POINTS)
    write(root / "points" / "b__d é.csv", "y1,x1,y0,x0\n11.5,15.5,9.5,-0.5\n")
    return root


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def write_json(root: Path, *records: Any) -> None:
    (root / "pairs.csv").unlink(missing_ok=True)
    write(root / "pairs.jsonl", "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records))


def record(**changes: Any) -> dict[str, Any]:
    whole = {
        "image0": "images/a.png",
        "image1": "images/c.png",
        "points0": [[1, 2], [10.5, 0]],
        "points1": [[3, 4], [0.25, 7]],
    }
    return {key: value for key, value in (whole | changes).items() if value is not ...}


def open_own(root: Path, split: str = "all") -> OwnData:
    data = open_folder(root, split)
    assert isinstance(data, OwnData)
    return data


def only_problem(data: PairData) -> str:
    assert len(data.problems) == 1, [str(problem) for problem in data.problems]
    return str(data.problems[0])


class TestReading:
    def test_csv(self, folder: Path) -> None:
        data = open_data("own", folder)
        assert len(data) == 2
        assert data.problems == []
        assert data.image_paths(1) == (folder / "images" / "b.png", folder / "images" / "d é.png")
        assert data.pair_files(1)[-1] == folder / "points" / "b__d é.csv"
        sample = data.read(0)
        assert sample.name == data.pair_name(0) == "images/a.png--images/c.png"
        assert sample.image0.shape == (3, 10, 20)
        assert sample.image1.shape == (3, 12, 16)
        assert sample.points0.tolist() == [[1, 2], [10.5, 0]]
        assert sample.points1.tolist() == [[3, 4], [0.25, 7]]
        assert sample.points0.dtype == torch.float32
        assert (sample.pck_length, sample.parts, sample.mirror_parts) == (None, None, None)

    def test_columns_may_be_in_any_order_and_points_on_the_very_edge(self, folder: Path) -> None:
        sample = open_own(folder).read(1)
        assert sample.points0.tolist() == [[-0.5, 9.5]]
        assert sample.points1.tolist() == [[15.5, 11.5]]

    def test_json_lines_give_the_same(self, folder: Path) -> None:
        expected = open_own(folder).read(0)
        write_json(folder, record())
        data = open_own(folder)
        sample = data.read(0)
        assert torch.equal(sample.points0, expected.points0)
        assert torch.equal(sample.points1, expected.points1)
        assert torch.equal(sample.image1, expected.image1)
        assert sample.name == expected.name
        assert data.pair_files(0)[-1] == folder / "pairs.jsonl:1"

    def test_no_such_pair(self, folder: Path) -> None:
        data = open_own(folder)
        for index in (-1, 2):
            with pytest.raises(IndexError, match="the set has 2"):
                data.read(index)

    @pytest.mark.parametrize(
        "text",
        [
            "1,2,3,4\n10.5,0,0.25,7",
            "\ufeffx0,y0,x1,y1\r\n1,2,3,4\r\n10.5,0,0.25,7\r\n",
            "# clicked by hand\n\nX0, Y0 ,x1,y1,who\n1,2,3,4,me\n,,,,\n# later\n 10.5 ,0,2.5e-1,+7,\n",
            '"x0","y0","x1","y1"\n"1","2","3","4"\n10.5,0,.25,7\n',
            "who,y1,x1,part,y0,x0\nme,4,3,eye,2,1\nme,7,0.25,,0,10.5\n",
        ],
    )
    def test_forms_of_points(self, folder: Path, text: str) -> None:
        write(folder / "points" / "a__c.csv", text)
        sample = open_own(folder).read(0)
        assert sample.points0.tolist() == [[1, 2], [10.5, 0]]
        assert sample.points1.tolist() == [[3, 4], [0.25, 7]]

    def test_a_header_alone_is_a_pair_without_points(self, folder: Path) -> None:
        write(folder / "points" / "a__c.csv", "x0,y0,x1,y1\n")
        sample = open_own(folder).read(0)
        assert sample.points0.shape == sample.points1.shape == (0, 2)
        report = check_data(open_own(folder))
        assert report.is_good
        assert report.empty_names == ("images/a.png--images/c.png",)

    def test_optional_columns(self, folder: Path) -> None:
        write(folder / "mine.csv", "0,0,1,1\n")
        write(
            folder / "pairs.csv",
            "\ufeffsplit,image0,class,image1,points,pck_length\r\n"
            "train,images/a.png,bird,images/c.png,mine.csv,12.5\r\n"
            "test,images/b.png,,images/d é.png,,\r\n",
        )
        data = open_own(folder)
        assert [data.read(i).pck_length for i in range(2)] == [12.5, None]
        assert data.read(0).points1.tolist() == [[1, 1]]
        assert data.pair_files(1)[-1] == folder / "points" / "b__d é.csv"
        assert data.pair_class(0) == "bird"
        assert [len(open_own(folder, split)) for split in ("all", "train", "test")] == [2, 1, 1]
        assert open_own(folder, "test").pair_name(0) == "images/b.png--images/d é.png"

    def test_the_same_images_twice_have_two_names(self, folder: Path) -> None:
        write(folder / "mine.csv", "0,0,1,1\n")
        images = "images/a.png,images/c.png"
        write(folder / "pairs.csv", f"image0,image1,points\n{images},points/a__c.csv\n{images},mine.csv\n")
        data = open_own(folder)
        names = [data.pair_name(i) for i in range(2)]
        assert names == ["images/a.png--images/c.png#2", "images/a.png--images/c.png#3"]

    def test_files_are_listed_once_and_really_read(self, folder: Path) -> None:
        data = open_own(folder)
        assert len(data.files()) == 6
        assert len({file.path for file in data.files()}) == 6
        report = check_data(data)
        assert report.is_good
        assert report.file_counts == {"image": 4, "points": 2}
        assert report.point_count == 3
        (folder / "images" / "a.png").write_bytes(b"no image")
        bad = next(file for file in data.files() if file.path.name == "a.png")
        with pytest.raises(ImageReadError, match="not an image"):
            bad.check()
        report = check_data(data)
        assert [problem.path.name for problem in report.problems] == ["a.png"], (
            "the points file is not to blame"
        )


class TestParts:
    def write_parts(self, folder: Path, text: str) -> None:
        write(folder / "parts.csv", text)
        write(
            folder / "points" / "a__c.csv", "x0,y0,x1,y1,part\n1,2,3,4,right eye\n5,5,6,6,beak\n7,7,8,8,0\n"
        )

    def test_names_and_numbers(self, folder: Path) -> None:
        self.write_parts(folder, "name,mirror\nleft eye,right eye\nright eye,left eye\nbeak,\n")
        data = open_own(folder)
        sample = data.read(0)
        assert sample.parts is not None and sample.mirror_parts is not None
        assert sample.parts.tolist() == [1, 2, 0]
        assert sample.mirror_parts.tolist() == [1, 0, 2]
        assert data.part_names == ("left eye", "right eye", "beak")
        assert data.read(1).parts is None

    def test_json(self, folder: Path) -> None:
        self.write_parts(folder, "name,mirror\nleft eye,right eye\nright eye,left eye\n")
        write_json(folder, record(parts=["left eye", 1]))
        parts = open_own(folder).read(0).parts
        assert parts is not None and parts.tolist() == [0, 1]

    def test_without_the_table_they_are_ignored(self, folder: Path) -> None:
        write(folder / "points" / "a__c.csv", "x0,y0,x1,y1,part\n1,2,3,4,eye\n")
        assert open_own(folder).read(0).parts is None
        write_json(folder, record(parts=["eye", "beak"]))
        data = open_own(folder)
        assert data.read(0).parts is None
        assert any("no parts.csv" in note for note in data.notes)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "parts.csv is empty; expected a header with name,mirror"),
            ("part,mirror\n", "parts.csv:1: expected a header with name,mirror, got 'part,mirror'"),
            ("name,mirror\nl,r\nr,\n", "parts.csv:2: 'l' has the mirror 'r', whose own mirror is 'r'"),
            ("name,mirror\nleft,rihgt\nright,\n", "parts.csv:2: no part 'rihgt'; did you mean 'right'"),
            ("name,mirror\nl,\nl,\n", "parts.csv:3: expected a name that no other part has, got 'l'"),
            ("name,mirror\nl\n", "parts.csv:2: expected 2 columns separated by commas, got 1"),
            ("name;mirror\nl;r\n", "parts.csv:1: .*separate by commas, not semicolons"),
        ],
    )
    def test_a_wrong_table(self, folder: Path, text: str, message: str) -> None:
        self.write_parts(folder, text)
        with pytest.raises(DataError, match=message):
            open_own(folder)

    def test_an_unknown_part(self, folder: Path) -> None:
        self.write_parts(folder, "name,mirror\nright eye,\nbeack,\n")
        with pytest.raises(
            DataError, match=r"a__c.csv:3: parts.csv has no part 'beak'; did you mean 'beack'"
        ):
            open_own(folder).read(0)


class TestBadPoints:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "a__c.csv is empty; expected the header x0,y0,x1,y1"),
            ("x0,y0,x1\n1,2,3\n", "a__c.csv:1: expected a header with x0,y0,x1,y1, got 'x0,y0,x1'"),
            ("x0,y0,x1,y1,x0\n", "a__c.csv:1: column 'x0' is repeated"),
            ("x0;y0;x1;y1\n1;2;3;4\n", "a__c.csv:1: .*separate by commas, not semicolons"),
            ("x0\ty0\tx1\ty1\n", "a__c.csv:1: .*separate by commas, not tabs"),
            ("x0,y0,x1,y1\n1,5;2;3;4\n", "a__c.csv:2: .*decimals with a point"),
            ("1,2,3\n", "a__c.csv:1: expected 4 columns separated by commas, got 3: '1,2,3'"),
            ("x0,y0,x1,y1\n1,2,3,4\n1,2,3\n", "a__c.csv:3: expected 4 columns separated by commas, got 3"),
            ("1,2,3,4,5\n", "a__c.csv:1: expected 4 columns separated by commas, got 5"),
            ("x0,y0,x1,y1\n1,2,3,four\n", "a__c.csv:2: expected a number, got 'four'"),
            ('x0,y0,x1,y1\n"1,5",2,3,4\n', "a__c.csv:2: .*got '1,5'; write decimals with a point"),
            ("x0,y0,x1,y1\n1,2,,4\n", "a__c.csv:2: expected a number, got ''"),
            ("x0,y0,x1,y1\n1,1_0,3,4\n", "a__c.csv:2: expected a number, got '1_0'"),
            (
                "x0,y0,x1,y1\n1,2,3,4\n\n1,2,nan,4\n",
                r"a__c.csv:4: x1,y1 in images/c.png: point \(nan, 4\) is not finite; the image is 16 × 12",
            ),
            (
                "x0,y0,x1,y1\n19.6,2,3,4\n-1,2,3,4\n",
                r"a__c.csv:2: x0,y0 in images/a.png: point \(19.6, 2\) lies outside the image \(and 1 more\)"
                "; the image is 20 × 10",
            ),
            ("x0,y0,x1,y1\n1,2,1e999,4\n", "a__c.csv:2: x1,y1 in images/c.png: .*not finite"),
        ],
    )
    def test_reading_and_checking_say_it(self, folder: Path, text: str, message: str) -> None:
        write(folder / "points" / "a__c.csv", text)
        data = open_own(folder)
        with pytest.raises(UcnError, match=message):
            data.read(0)
        report = check_data(data)
        assert [problem.path.name for problem in report.problems] == ["a__c.csv"]
        assert len(skip_bad(data, report)) == 1

    def test_swapped_images_are_found_by_their_size(self, folder: Path) -> None:
        write(folder / "points" / "a__c.csv", "x0,y0,x1,y1\n3,11,19,4\n")
        with pytest.raises(PointsError, match=r"x0,y0 in images/a.png: point \(3, 11\) lies outside"):
            open_own(folder).read(0)

    def test_a_file_shared_by_pairs_is_checked_against_all_images(self, folder: Path) -> None:
        write(folder / "mine.csv", "0,0,17,1\n")
        rows = "images/c.png,images/a.png,mine.csv\nimages/a.png,images/c.png,mine.csv\n"
        write(folder / "pairs.csv", f"image0,image1,points\n{rows}")
        report = check_data(open_own(folder))
        assert ["mine.csv:1: x1,y1 in images/c.png" in str(problem) for problem in report.problems] == [True]

    def test_not_utf8(self, folder: Path) -> None:
        (folder / "points" / "a__c.csv").write_bytes("größe,x0".encode("latin-1"))
        with pytest.raises(DataError, match="not UTF-8 text; save it as UTF-8"):
            open_own(folder).read(0)


class TestBadLists:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "pairs.csv is empty; expected a header with image0,image1"),
            ("a.png,b.png\n", "pairs.csv:1: expected a header with image0,image1, got 'a.png,b.png'"),
            ("image0;image1\n", "pairs.csv:1: .*separate by commas, not semicolons"),
            ("image0,image1,image1\n", "pairs.csv:1: column 'image1' is repeated"),
            ("image0,image1,pck_lenght\n", "no column 'pck_lenght'; did you mean 'pck_length'"),
            ("image0,image1\n", "split 'all' is empty: .*pairs.csv has no pairs"),
        ],
    )
    def test_the_whole(self, folder: Path, text: str, message: str) -> None:
        write(folder / "pairs.csv", text)
        with pytest.raises(DataError, match=message):
            open_own(folder)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("images/a.png", "pairs.csv:3: expected 5 columns separated by commas, got 1"),
            (",images/c.png,,,", "pairs.csv:3: image0 is missing; give the path of an image"),
            ("images/a.png,,,,", "pairs.csv:3: image1 is missing"),
            (
                "images/a.png,images/C.png,,,",
                "pairs.csv:3: image1: no file 'images/C.png' in .*; did you mean 'c.png'",
            ),
            ("images/a.png,elsewhere/c.png,,,", "pairs.csv:3: image1: no file .*; check name and folder"),
            ("images/a.png,images,,,", "pairs.csv:3: image1: no file 'images'"),
            ("images/a.png,../c.png,,,", "pairs.csv:3: expected a path inside .*, got '../c.png'"),
            ("/etc/passwd,images/c.png,,,", "pairs.csv:3: expected a path inside .*, got '/etc/passwd'"),
            (".,images/c.png,,,", "pairs.csv:3: expected a path inside .*, got '.'"),
            (f"{'x' * 5000},images/c.png,,,", "pairs.csv:3: image0: "),
            ("images/a.png,images/c.png,../../p.csv,,", "pairs.csv:3: expected a path inside"),
            ("images/a.png,images/c.png,points/a_c.csv,,", "points: no file .*; did you mean 'a__c.csv'"),
            ("images/a.png,images/d é.png,,,", "points: no file 'points/a__d é.csv'"),
            ("images/a.png,images/c.png,,0,", "pairs.csv:3: pck_length must be a number of pixels above 0"),
            ("images/a.png,images/c.png,,nan,", "pairs.csv:3: pck_length must be .*, got 'nan'"),
            ("images/a.png,images/c.png,,,training", "pairs.csv:3: split must be train, val, test or empty"),
        ],
    )
    def test_a_row(self, folder: Path, row: str, message: str) -> None:
        good = "images/b.png,images/d é.png,,,"
        last = "images/b.png,images/d é.png,points/b__d é.csv,,"
        write(folder / "pairs.csv", f"image0,image1,points,pck_length,split\n{good}\n{row}\n{last}\n")
        data = open_own(folder)
        assert len(data) == 2
        assert data.read(0).points0.tolist() == [[-0.5, 9.5]]
        assert re.search(message, only_problem(data))

    def test_a_broken_link(self, folder: Path) -> None:
        (folder / "images" / "e.png").symlink_to(folder / "nowhere.png")
        write(folder / "pairs.csv", "image0,image1\nimages/a.png,images/e.png\n")
        message = "image1: 'images/e.png' is a link to a missing file; copy it, or correct the link"
        assert message in only_problem(open_own(folder))

    def test_ambiguous_stems_ask_for_the_column(self, folder: Path) -> None:
        write_image(folder / "more" / "a.jpg")
        write(folder / "pairs.csv", "image0,image1\nimages/a.png,images/c.png\nmore/a.jpg,images/c.png\n")
        data = open_own(folder)
        assert len(data) == 0
        assert [problem.line for problem in data.problems] == [2, 3]
        expected = "points/a__c.csv would hold the points of 2 pairs; add a column points"
        assert all(expected in str(problem) for problem in data.problems)

    def test_other_columns_are_noted(self, folder: Path) -> None:
        write(folder / "pairs.csv", "image0,image1,weather\nimages/a.png,images/c.png,rain\n")
        data = open_own(folder)
        assert len(data) == 1
        assert data.notes == ["pairs.csv: column 'weather' is ignored"]

    def test_splits(self, folder: Path) -> None:
        with pytest.raises(DataError, match="does not assign pairs to split 'val'; add a column split"):
            open_own(folder, "val")
        write(folder / "pairs.csv", "image0,image1,split\nimages/a.png,images/c.png,train\n")
        with pytest.raises(DataError, match=r"split 'val' is empty: .*pairs.csv has 1 of split train"):
            open_own(folder, "val")

    def test_both_lists(self, folder: Path) -> None:
        write(folder / "pairs.jsonl", "{}")
        with pytest.raises(DataError, match=r"both pairs.csv and pairs.jsonl; keep one"):
            open_own(folder)

    def test_neither(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"no pairs\.csv or pairs\.jsonl or keypoints\.csv or keypoints\.json in it"
        ):
            open_own(tmp_path)


class TestBadJson:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "expected a JSON object on one line, got an error at column 2"),
            ("[1, 2]", "expected a JSON object, got"),
            ('{"image0": "a", "image0": "b"}', "key 'image0' is repeated"),
            (record(point0=[]), "there is no key 'point0'; did you mean 'points0'"),
            (record(points1=...), r"key 'points1' is missing; expected points1: \[\[x, y\]"),
            (record(image1=...), "image1 is missing"),
            (record(image1=3), "image1 must be text, got 3"),
            (record(points1=[[3, 4]]), "points0 and points1 must be of one length, got 2 and 1"),
            (record(points0="1,2"), "points0 must be a list .*, got '1,2'"),
            (
                record(points0=[[1, 2], [3]]),
                r"points0\[1\] must be \[x, y\], two numbers, got a list of length 1",
            ),
            (record(points0=[[1, 2], ["3", 4]]), r"points0\[1\] must be \[x, y\], two numbers"),
            (record(points0=[[1, 2], [True, 4]]), r"points0\[1\] must be"),
            (record(points0=[[1, 2], [10**400, 4]]), r"points0\[1\] must be"),
            (record(parts=["a"]), "parts must be a list of 2 names or numbers"),
            (record(pck_length=-1), "pck_length must be a number of pixels above 0 or empty, got -1"),
            (record(pck_length=[[]]), "pck_length must be .*, got a list of length 1"),
            (record(split="all"), "split must be train, val, test or empty, got 'all'"),
            (record(image0="images/A.png"), "image0: no file 'images/A.png'"),
            (record(image0="\ud800.png"), "image0: no file"),
            ("[" * 100_000, "nested too deeply"),
            (f'{{"points0": {"1" * 5000}}}', "expected a JSON object"),
            (f'{{"image0": "{"x" * (16 * 2**20)}"}}', "the limit for a line is 16,777,216"),
        ],
    )
    def test_a_line(self, folder: Path, line: Any, message: str) -> None:
        write_json(folder, record(), line)
        data = open_own(folder)
        assert len(data) == 1
        assert re.search(rf"pairs\.jsonl:2: .*{message}", only_problem(data))

    @pytest.mark.parametrize("x", [16, float("nan")])
    def test_a_point_off_the_image(self, folder: Path, x: float) -> None:
        write_json(folder, record(), record(image0="images/b.png", points1=[[1, 1], [x, 2]]))
        data = open_own(folder)
        message = r"pairs\.jsonl:2: points1\[1\] in images/c.png: point .*; the image is 16 × 12"
        with pytest.raises(PointsError, match=message):
            data.read(1)
        report = check_data(data)
        assert len(report.problems) == 1
        assert len(skip_bad(data, report)) == 1, "the other line is not to blame"


def test_it_travels_to_other_processes(folder: Path) -> None:
    for form in ("csv", "jsonl"):
        if form == "jsonl":
            write_json(folder, record())
        data = open_own(folder)
        copy = pickle.loads(pickle.dumps(data))
        assert torch.equal(copy.read(0).points1, data.read(0).points1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.sampled_from("x0y1,;\"'\t\n\r\0 .-eE9{}[]:naimgpoitsü#\u2028"), max_size=200))
@example(text="x0,y0,x1,y1\n\0,1,2,3")
@example(text='x0,y0,x1,y1\n"1')
@example(text="x" * 200_000)
def test_any_text_is_read_or_refused_with_words(folder: Path, text: str) -> None:
    write(folder / "points" / "a__c.csv", text)
    for name in ("pairs.csv", "parts.csv", "pairs.jsonl"):
        (folder / name).unlink(missing_ok=True)
    write(folder / "pairs.csv", "image0,image1\nimages/a.png,images/c.png\n")
    with contextlib.suppress(UcnError):
        open_own(folder).read(0)
    for name in ("parts.csv", "pairs.csv"):
        write(folder / name, text)
        with contextlib.suppress(UcnError):
            open_own(folder)
    for content in (text, json.dumps(record())[:-1] + text):
        write_json(folder, content)
        (folder / "parts.csv").unlink(missing_ok=True)
        with contextlib.suppress(UcnError):
            data = open_own(folder)
            if len(data):
                data.read(0)
