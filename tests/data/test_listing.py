"""Natural order of names, and which files of a folder are images."""

from pathlib import Path

import PIL.Image
import pytest

from ucn.data.listing import list_images, natural_key
from ucn.errors import DataError


def test_numbers_count_by_value() -> None:
    names = ["img10.png", "img2.png", "img1.png", "b10/1.png", "b9/1.png", "img02.png", "img.png", "img0.png"]
    assert sorted(names, key=natural_key) == [
        *("b9/1.png", "b10/1.png", "img.png", "img0.png", "img1.png", "img02.png", "img2.png", "img10.png"),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["000.png", "001.png", "below/002.png"],
        ["a-1/x.jpg", "a.jpg", "a/x.jpg", "a1.jpg", "aB.jpg", "a_1.jpg", "ab.jpg", "é.jpg"],
        ["IMG_0001.JPG", "IMG_0010.JPG", "IMG_0100.JPG", "img_0001.jpg"],
        ["2011_09_26/0000000001.png", "2011_09_26/0000000011.png", "2011_10_03/0000000000.png"],
        ["٣.png", "٤.png"],
    ],
)
def test_otherwise_the_order_is_the_plain_one(names: list[str]) -> None:
    assert sorted(names, key=natural_key) == sorted(names) == names


def test_long_numbers() -> None:
    names = [f"{10**300 + 1}.png", f"{10**300}.png", "9.png"]
    assert sorted(names, key=natural_key) == names[::-1]


def test_images_of_a_folder(tmp_path: Path) -> None:
    for name in ("img10.png", "img9.PNG", "below/img2.png", ".hidden.png", ".trash/img1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        PIL.Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder.png").mkdir()
    assert list_images(tmp_path) == ["img9.PNG", "img10.png"]
    assert list_images(tmp_path, is_recursive=True) == ["below/img2.png", "img9.PNG", "img10.png"]
    with pytest.raises(DataError, match=r"cannot list .*absent: no such file; check the path"):
        list_images(tmp_path / "absent")
