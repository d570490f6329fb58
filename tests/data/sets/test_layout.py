"""Paths and numbers from strangers' lists, and the files they stand in."""

import os
import tarfile
import zipfile
from pathlib import Path

import PIL.Image
import pytest

from ucn.data.headers import EXIF_ORIENTATION, read_header_hw
from ucn.data.io import read_image
from ucn.data.sets.layout import find_image, find_root, parse_numbers, read_binary, read_lines, resolve_inside
from ucn.errors import DataError


class TestFindRoot:
    def test_the_folder_itself_comes_before_a_folder_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "Set").mkdir()
        (tmp_path / "Set/list.txt").touch()
        assert find_root(tmp_path, ["no.txt", "*.txt"], ["Set"]) == tmp_path / "Set"
        (tmp_path / "list.txt").touch()
        assert find_root(tmp_path, ["*.txt"], ["Set"]) == tmp_path

    def test_another_layout(self, tmp_path: Path) -> None:
        expected = r"layout: no a\.txt or b/\*\.png in it or in its Set, Other; `ucn data list NAME` shows"
        with pytest.raises(DataError, match=expected):
            find_root(tmp_path, ["a.txt", "b/*.png"], ["Set", "Other"])

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no folder .*gone: check the path"):
            find_root(tmp_path / "gone", ["*"])
        (tmp_path / "a.txt").write_text("a")
        with pytest.raises(DataError, match=r"a\.txt is a file; expected the folder of the data set"):
            find_root(tmp_path / "a.txt", ["*"])

    @pytest.mark.parametrize("name", ["a.zip", "a.tar"])
    def test_archives(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        if name == "a.zip":
            zipfile.ZipFile(path, "w").close()
        else:
            tarfile.open(path, "w").close()
        with pytest.raises(DataError, match="is an archive; unpack it and give the folder"):
            find_root(path, ["*"])


class TestResolveInside:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("a.png", ["a.png"]),
            ("über uns/b c.png", ["über uns", "b c.png"]),
            ("a\\b.png", ["a", "b.png"]),
            ("./a//b.png", ["a", "b.png"]),
            ("a/..b/c..png", ["a", "..b", "c..png"]),
            ("a/b:c.png", ["a", "b:c.png"]),
        ],
    )
    def test_good_names(self, name: str, parts: list[str]) -> None:
        root = Path("root")
        assert resolve_inside(root, name) == root.joinpath(*parts)

    @pytest.mark.parametrize(
        "name",
        ["", "  ", ".", "/etc/passwd", "../a", "a/../../b", "a\\..\\b", "C:/a", "c:a", "\\\\host\\a", "a\0b"],
    )
    def test_names_that_lead_out(self, name: str) -> None:
        with pytest.raises(DataError, match="expected a path inside root, got"):
            resolve_inside(Path("root"), name)


class TestParseNumbers:
    def test_blanks_and_commas_separate(self) -> None:
        assert parse_numbers("1 -2.5,\t3e2", 3, "a:1") == [1.0, -2.5, 300.0]
        assert parse_numbers("", None, "a:1") == []

    def test_another_count(self) -> None:
        with pytest.raises(DataError, match="a:1: expected 3 numbers, got 2: '1 2'"):
            parse_numbers("1 2", 3, "a:1")

    @pytest.mark.parametrize("cell", ["x", "1_0", "0x10", "1;2"])
    def test_not_a_number(self, cell: str) -> None:
        with pytest.raises(DataError, match=f"a:1: expected a number, got '{cell}'"):
            parse_numbers(f"1 {cell}", None, "a:1")

    @pytest.mark.parametrize("cell", ["nan", "inf", "-Infinity", "1e999"])
    def test_not_finite(self, cell: str) -> None:
        with pytest.raises(DataError, match=f"a:1: expected a finite number, got '{cell}'"):
            parse_numbers(f"{cell} 1", 2, "a:1")


class TestReadLines:
    def test_numbers_from_one_blank_ones_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "l.txt"
        path.write_bytes("\ufeff a \r\n\r\nb\n \nc".encode())
        assert list(read_lines(path, "list")) == [(1, "a"), (3, "b"), (5, "c")]

    def test_only_newlines_end_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "l.txt"
        texts = ["a\u2028b", "c\x0bd", "e\x85f", "g\x1ch"]
        path.write_bytes("\n".join(texts).encode())
        assert list(read_lines(path, "list")) == list(enumerate(texts, start=1))

    def test_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "l.txt").write_bytes(b"\xff\xfe")
        with pytest.raises(DataError, match=r"cannot read list .*l\.txt: it is not UTF-8 text") as caught:
            list(read_lines(tmp_path / "l.txt", "list"))
        assert caught.value.path == tmp_path / "l.txt"


class TestReadBinary:
    def test_within_the_limit(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"12345")
        assert read_binary(tmp_path / "a", "scan", limit=5) == b"12345"
        with pytest.raises(DataError, match=r"a has 5 bytes, the limit for scan is 4; "):
            read_binary(tmp_path / "a", "scan", limit=4)

    def test_missing_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"cannot read scan .*gone: no such file; check the path"):
            read_binary(tmp_path / "gone", "scan")
        with pytest.raises(DataError, match="it is not a regular file; put the file itself in its place"):
            read_binary(tmp_path, "scan")

    @pytest.mark.timeout(10)
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
    def test_pipes_and_devices_are_not_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pairs.csv")
        (tmp_path / "zero.csv").symlink_to("/dev/zero")
        for name in ("pairs.csv", "zero.csv"):
            with pytest.raises(DataError, match=rf"{name}: it is not a regular file; put the file") as caught:
                read_binary(tmp_path / name, "list")
            assert caught.value.path == tmp_path / name


class TestHeaders:
    @pytest.mark.parametrize("orientation", range(9))
    def test_size_as_the_image_is_read(self, tmp_path: Path, orientation: int) -> None:
        image = PIL.Image.new("RGB", (7, 4))
        exif = image.getexif()
        exif[EXIF_ORIENTATION] = orientation
        image.save(tmp_path / "a.jpg", exif=exif)
        assert read_header_hw(tmp_path / "a.jpg") == tuple(read_image(tmp_path / "a.jpg").shape[1:])

    def test_no_image(self, tmp_path: Path) -> None:
        assert read_header_hw(tmp_path / "gone.png") is None
        (tmp_path / "a.png").write_text("no image")
        assert read_header_hw(tmp_path / "a.png") is None

    def test_image_of_a_stem(self, tmp_path: Path) -> None:
        assert find_image(tmp_path / "a.b") is None
        for name in ("a.b.jpg", "a.png"):
            (tmp_path / name).touch()
        assert find_image(tmp_path / "a.b") == tmp_path / "a.b.jpg"
        (tmp_path / "a.b.png").touch()
        assert find_image(tmp_path / "a.b") == tmp_path / "a.b.png"
        assert find_image(tmp_path / "a.b", (".ppm",)) is None
