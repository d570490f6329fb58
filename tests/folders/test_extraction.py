"""Extraction of folders: resumable after a kill, atomic, and independent of the executor."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from support.batch_cases import SETTINGS, make_method, read_diary, write_images
from support.scene_cases import turn_photograph
from ucn.errors import ConfigError, DataError, OutputError
from ucn.folders.extraction import digest_images, extract_folder, list_image_names
from ucn.formats.colmap import quiet
from ucn.formats.hloc import open_features

_RUN = """
import sys
from pathlib import Path
from support.batch_cases import SETTINGS, make_method
from ucn.folders.extraction import extract_folder
images, output, diary = map(Path, sys.argv[1:])
extract_folder(images, output, make_method(diary, delay=0.05), SETTINGS, shard=2)
"""


@contextmanager
def interrupted_at_merging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, a run is stopped when all its shards are there."""

    def stop(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ucn.folders.shards.merge_features", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_every_image_once(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images", 5)
    seen: list[tuple[int, int]] = []
    result = extract_folder(
        tmp_path / "images",
        tmp_path / "f.h5",
        make_method(tmp_path / "diary"),
        SETTINGS,
        shard=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (result.images, result.resumed, result.failures) == (5, 0, {})
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]
    assert sorted(read_diary(tmp_path / "diary")) == list(range(5))
    with open_features(tmp_path / "f.h5") as file:
        assert list(file.names) == names
        assert file.meta["name"] == "diary"
        found = file.read("below/002.png")
    assert found.image_hw == (48, 64)
    assert 10 < len(found) <= 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diary", "f.h5", "images"]


@pytest.mark.slow
def test_killed_run_resumes_without_losing_or_repeating(tmp_path: Path) -> None:
    """SIGKILL, which no program can answer, in the middle of twelve images."""
    write_images(tmp_path / "images", 12)
    output, diary = tmp_path / "f.h5", tmp_path / "diary"
    extract_folder(tmp_path / "images", tmp_path / "whole.h5", make_method(tmp_path / "d"), SETTINGS, shard=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", _RUN, str(tmp_path / "images"), str(output), str(diary)]
    process = subprocess.Popen(arguments, env=environment)
    parts = tmp_path / "f.h5.parts"
    begin = time.monotonic()
    while len(list(parts.glob("*.h5"))) < 2 and time.monotonic() - begin < 300:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()
    done = {path.name for path in parts.glob("*.h5")}
    assert 2 <= len(done) < 6, "killed too early or too late to show anything"
    finished = [number for name in sorted(done) for number in _images_of(parts / name)]
    before = read_diary(diary)

    result = extract_folder(tmp_path / "images", output, make_method(diary), SETTINGS, shard=2)
    after = read_diary(diary)[len(before) :]
    assert result.resumed == len(finished)
    assert not set(after) & set(finished), "an image that was done was done again"
    assert sorted(finished + after) == list(range(12)), "an image was lost"
    assert output.read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert not parts.exists()


def _images_of(path: Path) -> list[int]:
    with open_features(path) as file:
        return [int(Path(name).stem) for name in file.names]


def test_killed_while_merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards stay until the file is there; nothing is extracted again."""
    write_images(tmp_path / "images", 3)
    output, diary = tmp_path / "f.h5", tmp_path / "diary"

    with interrupted_at_merging(monkeypatch):
        extract_folder(tmp_path / "images", output, make_method(diary), SETTINGS, shard=1)
    assert not output.exists()
    result = extract_folder(tmp_path / "images", output, make_method(diary), SETTINGS, shard=1)
    assert (result.images, result.resumed) == (3, 3)
    assert len(read_diary(diary)) == 3


def test_other_settings_or_images_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images", 3)
    output, method = tmp_path / "f.h5", make_method(tmp_path / "diary")

    with interrupted_at_merging(monkeypatch):
        extract_folder(tmp_path / "images", output, method, SETTINGS)
    other = replace(SETTINGS, max_keypoints=7)
    with pytest.raises(DataError, match=r"f\.h5\.parts is from an unfinished run with other"):
        extract_folder(tmp_path / "images", output, method, other)
    with pytest.raises(DataError, match="unfinished run"):
        extract_folder(tmp_path / "images", output, method, SETTINGS, shard=2)
    with pytest.raises(DataError, match="unfinished run"):
        extract_folder(tmp_path / "images", output, method, replace(SETTINGS, scales=(1.0, 0.5)))
    result = extract_folder(tmp_path / "images", output, method, other, overwrite=True)
    assert result.resumed == 0
    with open_features(output) as file:
        assert all(len(file.read(name)) <= 7 for name in file.names)


def test_a_damaged_shard_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images", 4)
    output, diary = tmp_path / "f.h5", tmp_path / "diary"
    extract_folder(tmp_path / "images", tmp_path / "whole.h5", make_method(tmp_path / "d"), SETTINGS, shard=2)

    with interrupted_at_merging(monkeypatch):
        extract_folder(tmp_path / "images", output, make_method(diary), SETTINGS, shard=2)
    first = min((tmp_path / "f.h5.parts").glob("*.h5"))
    first.write_bytes(first.read_bytes()[:100])
    result = extract_folder(tmp_path / "images", output, make_method(diary), SETTINGS, shard=2)
    assert (result.images, result.resumed) == (4, 2)
    assert len(read_diary(diary)) == 6
    assert output.read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_existing_file_is_kept(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 1)
    (tmp_path / "f.h5").write_bytes(b"mine")
    method = make_method(tmp_path / "diary")
    with pytest.raises(OutputError, match="exists already"):
        extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS)
    assert (tmp_path / "f.h5").read_bytes() == b"mine"
    assert not (tmp_path / "diary").exists()
    assert (
        extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, overwrite=True).images == 1
    )


def test_bad_images_are_left_out_and_named(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 4)
    (tmp_path / "images" / "001.png").write_bytes(b"no image")
    write_images(tmp_path / "tiny", 1, (20, 20))
    (tmp_path / "tiny" / "000.png").rename(tmp_path / "images" / "tiny.png")
    method = make_method(tmp_path / "diary")
    result = extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, shard=2)
    assert result.images == 3
    assert sorted(result.failures) == ["001.png", "tiny.png"]
    assert "damaged or not an image" in result.failures["001.png"]
    assert "at least 32 px" in result.failures["tiny.png"]
    with open_features(tmp_path / "f.h5") as file:
        assert file.meta["failures"] == result.failures


def test_bad_images_change_nothing_for_another_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons name images below the folder, so that the way to it leaves no trace in the file."""
    write_images(tmp_path / "images", 3)
    (tmp_path / "images" / "001.png").write_bytes(b"no image")
    method = make_method(tmp_path / "diary")
    far = extract_folder(tmp_path / "images", tmp_path / "far.h5", method, SETTINGS)
    monkeypatch.chdir(tmp_path)
    near = extract_folder(Path("images"), tmp_path / "near.h5", method, SETTINGS)
    assert near.failures == far.failures
    assert far.failures["001.png"].startswith("cannot read image 001.png: ")
    assert (tmp_path / "near.h5").read_bytes() == (tmp_path / "far.h5").read_bytes()


def test_bad_images_of_an_earlier_run_do_not_count_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "images", 3)
    (tmp_path / "images" / "001.png").write_bytes(b"no image")
    method = make_method(tmp_path / "diary")

    with interrupted_at_merging(monkeypatch):
        extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS)
    result = extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS)
    assert (result.images, result.resumed, list(result.failures)) == (2, 2, ["001.png"])


def test_no_readable_image(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    method = make_method(tmp_path / "diary")
    with pytest.raises(DataError, match="no image could be read; the first: cannot read image"):
        extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS)
    assert not (tmp_path / "f.h5").exists()
    assert not (tmp_path / "f.h5.parts").exists()


def test_limit_and_shard(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 4)
    method = make_method(tmp_path / "diary")
    assert extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, limit=2).images == 2
    with pytest.raises(ConfigError, match="shard must be at least 1"):
        extract_folder(tmp_path / "images", tmp_path / "g.h5", method, SETTINGS, shard=0)


def test_features_do_not_depend_on_shards(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images", 5)
    method = make_method(tmp_path / "diary")
    for shard in (1, 3):
        extract_folder(tmp_path / "images", tmp_path / f"{shard}.h5", method, SETTINGS, shard=shard)
    with open_features(tmp_path / "1.h5") as one, open_features(tmp_path / "3.h5") as three:
        for name in names:
            first, second = one.read(name), three.read(name)
            np.testing.assert_array_equal(first.keypoints, second.keypoints)
            np.testing.assert_array_equal(first.descriptors, second.descriptors)


def test_a_run_without_shards_does_not_block_the_next(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 2)
    output, method = tmp_path / "f.h5", make_method(tmp_path / "diary")
    with pytest.raises(ConfigError, match="no keypoints of its own"):
        extract_folder(tmp_path / "images", output, method, replace(SETTINGS, detector="own"))
    assert not (tmp_path / "f.h5.parts").exists()
    (tmp_path / "f.h5.parts").mkdir()  # as a kill leaves it before the first shard
    (tmp_path / "f.h5.parts" / "key.json").write_text('{"format": "ucn-shards-1"}')
    assert extract_folder(tmp_path / "images", output, method, SETTINGS).images == 2


def test_images_are_listed_by_name(tmp_path: Path) -> None:
    names = write_images(tmp_path, 4)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden").mkdir()
    write_images(tmp_path / ".hidden", 1)
    assert list_image_names(tmp_path) == tuple(names) == ("000.png", "001.png", "003.png", "below/002.png")


def test_natural_order(tmp_path: Path) -> None:
    """img2 before img10: in the list, in what --limit takes, and in the pairs of a sequence."""
    names = [f"img{number}.png" for number in (1, 2, 10)]
    for name, source in zip(names, write_images(tmp_path / "made", 3), strict=True):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "made" / source).rename(tmp_path / "images" / name)
    assert list_image_names(tmp_path / "images") == tuple(names)
    assert digest_images(tmp_path / "images", names) == digest_images(tmp_path / "images", sorted(names))
    method = make_method(tmp_path / "diary")
    extract_folder(tmp_path / "images", tmp_path / "f.h5", method, SETTINGS, shard=1)
    with open_features(tmp_path / "f.h5") as file:
        assert file.names == tuple(names)
    extract_folder(tmp_path / "images", tmp_path / "two.h5", method, SETTINGS, limit=2)
    with open_features(tmp_path / "two.h5") as file:
        assert file.names == tuple(names[:2])


def test_no_folder_and_no_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list_image_names(tmp_path / "no")
    with pytest.raises(DataError, match="holds no image"):
        list_image_names(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is not a folder"):
        list_image_names(tmp_path / "file")


def test_digest_changes_with_the_folder(tmp_path: Path) -> None:
    names = write_images(tmp_path, 2)
    before = digest_images(tmp_path, names)
    assert digest_images(tmp_path, names) == before
    assert digest_images(tmp_path, names[:1]) != before
    with (tmp_path / names[0]).open("ab") as file:
        file.write(b"\0")
    assert digest_images(tmp_path, names) != before


def test_turned_photographs(tmp_path: Path) -> None:
    """In the file, keypoints are where hloc and COLMAP see them; ucn reads them upright."""
    folder = tmp_path / "images"
    write_images(folder, 1)
    for orientation in (3, 6, 8):
        turn_photograph(folder / "000.png", orientation, folder / f"{orientation}.png")
    extract_folder(folder, tmp_path / "f.h5", make_method(tmp_path / "diary"), SETTINGS)
    with open_features(tmp_path / "f.h5") as file:
        found = {name: file.read(name) for name in file.names}
        for name, features in found.items():
            stored = np.asarray(file.file[name]["keypoints"]).round().astype(int)
            with PIL.Image.open(folder / name) as image:
                pixels = np.asarray(image)
                assert tuple(file.file[name]["image_size"]) == image.size
            upright = (np.asarray(PIL.Image.open(folder / "000.png")), found["000.png"].keypoints)
            x, y = upright[1].round().astype(int).T
            assert (pixels[stored[:, 1], stored[:, 0]] == upright[0][y, x]).all()
            np.testing.assert_allclose(features.keypoints, upright[1], atol=1e-4)
            assert features.image_hw == (48, 64)
            assert features.orientation == (1 if name == "000.png" else int(name[0]))
        assert "orientation" not in file.file["000.png"]["keypoints"].attrs


def test_cameras_of_colmap_have_the_sizes_of_the_file(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
    write_images(tmp_path / "images", 2)
    turn_photograph(tmp_path / "images" / "001.png", 6)
    extract_folder(tmp_path / "images", tmp_path / "f.h5", make_method(tmp_path / "diary"), SETTINGS)
    pycolmap.Database.open(tmp_path / "d.db").close()
    with quiet():  # as hloc imports them
        pycolmap.import_images(tmp_path / "d.db", tmp_path / "images", pycolmap.CameraMode.PER_IMAGE)
    database = pycolmap.Database.open(tmp_path / "d.db")
    cameras = {image.name: database.read_camera(image.camera_id) for image in database.read_all_images()}
    database.close()
    with open_features(tmp_path / "f.h5") as file:
        for name, camera in cameras.items():
            assert tuple(file.file[name]["image_size"]) == (camera.width, camera.height)
    assert cameras["001.png"].width == 48
