"""Folders, listed paths and numbered files of data sets."""

import tarfile
import zipfile
from pathlib import Path

import PIL.Image
import pytest

from ucn.data.image_formats import EXIF_ORIENTATION
from ucn.data.io import read_header_hw, read_image
from ucn.data.sets.layout import find_image, find_root, list_numbered, resolve_inside
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


def test_numbered_files(tmp_path: Path) -> None:
    for name in ("frame_0010.png", "frame_0002.jpg", "frame_3.png", "frame_0004.txt", "xframe_0005.png"):
        (tmp_path / name).touch()
    found = list_numbered(tmp_path, r"frame_([0-9]{4})\.(?:png|jpg)")
    assert list(found.items()) == [(2, tmp_path / "frame_0002.jpg"), (10, tmp_path / "frame_0010.png")]
    assert list_numbered(tmp_path / "gone", "(.)") == {}
