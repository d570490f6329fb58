from pathlib import Path

import PIL.Image
import pytest

from support.batch_cases import write_images
from ucn.errors import DataError, ImageReadError
from ucn.folders.images import digest_images, list_images, read_reduced


def test_images_are_listed_by_name(tmp_path: Path) -> None:
    names = write_images(tmp_path, 4)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden").mkdir()
    write_images(tmp_path / ".hidden", 1)
    assert list_images(tmp_path) == tuple(names) == ("000.png", "001.png", "003.png", "below/002.png")


def test_no_folder_and_no_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list_images(tmp_path / "no")
    with pytest.raises(DataError, match="holds no image"):
        list_images(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is not a folder"):
        list_images(tmp_path / "file")


def test_digest_changes_with_the_folder(tmp_path: Path) -> None:
    names = write_images(tmp_path, 2)
    before = digest_images(tmp_path, names)
    assert digest_images(tmp_path, names) == before
    assert digest_images(tmp_path, names[:1]) != before
    with (tmp_path / names[0]).open("ab") as file:
        file.write(b"\0")
    assert digest_images(tmp_path, names) != before


def test_size_of_the_file_is_kept(tmp_path: Path) -> None:
    name = write_images(tmp_path, 1, (48, 96))[0]
    found = read_reduced(tmp_path / name, 64)
    assert (found.hw, found.image_hw) == ((32, 64), (48, 96))


def test_small_image_is_refused(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (40, 31)).save(tmp_path / "s.png")
    with pytest.raises(ImageReadError, match=r"s\.png must be at least 32 px a side, got 40 × 31"):
        read_reduced(tmp_path / "s.png", None)
