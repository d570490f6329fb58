"""The folder of unfinished shards: only what carries the key of ucn is touched, and no link is followed."""

from pathlib import Path

import pytest

from support.batch_cases import SETTINGS, make_method, read_diary, write_images
from ucn.errors import DataError, OutputError
from ucn.folders.extraction import extract_folder
from ucn.folders.shards import ShardFolder

KEY = {"test": 1}
NAMES = ("a.png", "b.png")


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder with its bytes, and every link with its target."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def start(output: Path, overwrite: bool = False, key: dict[str, int] | None = None) -> ShardFolder:
    folder = ShardFolder(output, NAMES, 1, key or KEY)
    folder.open(start_over=overwrite)
    return folder


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {},
        {"mine.txt": "x"},
        {"00000000.h5": "x"},
        {"key.json": "{}"},
        {"key.json": "[1]"},
        {"key.json": "no JSON", "deep/photo.raw": "x"},
        {"key.json": '{"format": "another-1", "shard": 1}', "00000000.h5": "x"},
    ],
    ids=["empty", "file", "named as a shard", "empty key", "list", "no JSON", "another format"],
)
def test_foreign_folder_is_refused_untouched(tmp_path: Path, files: dict[str, str], overwrite: bool) -> None:
    write_images(tmp_path / "images", 1)
    parts = tmp_path / "f.h5.parts"
    parts.mkdir()
    for name, text in files.items():
        (parts / name).parent.mkdir(exist_ok=True)
        (parts / name).write_text(text)
    before = snapshot(tmp_path)
    method = make_method(tmp_path / "diary")
    with pytest.raises(DataError, match=r"f\.h5\.parts .*not made by ucn.*; move it away or choose"):
        extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, overwrite=overwrite)
    assert snapshot(tmp_path) == before
    assert parts.is_dir()


@pytest.mark.parametrize("overwrite", [False, True])
def test_file_in_the_place_of_the_folder(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "f.h5.parts").write_text("mine")
    with pytest.raises(DataError, match="is not a folder"):
        start(tmp_path / "f.h5", overwrite)
    assert (tmp_path / "f.h5.parts").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_link_to_another_folder_is_not_followed(tmp_path: Path, overwrite: bool) -> None:
    other = start(tmp_path / "other.h5", key={"test": 2}).folder  # even to one of our own
    (other / "00000000.h5").write_text("x")
    (tmp_path / "f.h5.parts").symlink_to(other, target_is_directory=True)
    before = snapshot(tmp_path)
    with pytest.raises(DataError, match=r"f\.h5\.parts is a link; .*move it away"):
        start(tmp_path / "f.h5", overwrite)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_linked_key_is_not_a_key(tmp_path: Path, overwrite: bool) -> None:
    key = start(tmp_path / "other.h5").folder / "key.json"
    (tmp_path / "f.h5.parts").mkdir()
    (tmp_path / "f.h5.parts" / "key.json").symlink_to(key)
    (tmp_path / "f.h5.parts" / "00000000.h5").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(DataError, match="was not made by ucn"):
        start(tmp_path / "f.h5", overwrite)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "link to a folder", "linked shard"])
def test_foreign_entries_of_our_folder_stay(tmp_path: Path, kind: str, overwrite: bool) -> None:
    parts = start(tmp_path / "f.h5", key={"test": 2}).folder
    (parts / "00000000.h5").write_text("ours")
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "photo.raw").write_text("x")
    name = "00000001.h5" if kind == "linked shard" else "mine"
    if kind == "file":
        (parts / name).write_text("x")
    elif kind == "folder":
        (parts / name).mkdir()
    else:
        (parts / name).symlink_to(treasure if kind == "link to a folder" else treasure / "photo.raw")
    before = snapshot(tmp_path)
    for key in ({"test": 2}, KEY):  # the same run again, and another one
        with pytest.raises(DataError, match=rf"{name}.*which ucn did not write; move"):
            start(tmp_path / "f.h5", overwrite, key)
    assert snapshot(tmp_path) == before


def test_own_files_are_removed_when_starting_over(tmp_path: Path) -> None:
    parts = start(tmp_path / "f.h5", key={"test": 2}).folder
    (parts / "00000000.h5").write_text("ours")
    (parts / ".ucn-0123456789ab.part").write_text("half a shard")
    with pytest.raises(DataError, match="unfinished run with other images or settings"):
        start(tmp_path / "f.h5")
    folder = start(tmp_path / "f.h5", overwrite=True)
    assert [path.name for path in parts.iterdir()] == ["key.json"]
    assert len(folder.list_open()) == 2


def test_abandoned_folder_with_foreign_files_stays(tmp_path: Path) -> None:
    folder = start(tmp_path / "f.h5")
    (folder.folder / "mine.txt").write_text("x")
    folder.remove_if_empty()
    assert (folder.folder / "mine.txt").read_text() == "x"
    (folder.folder / "mine.txt").unlink()
    folder.remove_if_empty()
    assert not folder.folder.exists()


def test_finished_run_leaves_foreign_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images", 2)
    parts, method = tmp_path / "f.h5.parts", make_method(tmp_path / "diary")

    def add_file(done: int, _total: int) -> None:
        if done:
            (parts / "mine.txt").write_text("x")

    with pytest.raises(OutputError, match=r"f\.h5 is complete, but .*f\.h5\.parts.*mine\.txt"):
        extract_folder(
            tmp_path / "images",
            tmp_path / "f.h5",
            method,
            SETTINGS,
            progress=add_file,
        )
    assert (tmp_path / "f.h5").is_file()
    assert [path.name for path in parts.iterdir()] == ["mine.txt"]


def test_two_runs_at_once(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 2)
    method = make_method(tmp_path / "diary")

    def start_another(_done: int, _total: int) -> None:
        with pytest.raises(OutputError, match=r"another run is writing .*f\.h5; wait"):
            extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, overwrite=True)

    extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, progress=start_another)
    assert len(read_diary(tmp_path / "diary")) == 2


def test_folder_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = start(tmp_path / "f.h5")
    treasure = tmp_path / "treasure"
    folder.folder.rename(treasure)
    folder.folder.symlink_to(treasure, target_is_directory=True)
    folder.remove_if_empty()
    assert (treasure / "key.json").is_file()
