import math
from pathlib import Path

import numpy as np
import pytest

from support.remedy_rule import assert_remedy
from support.semantic_files import write_flat_image, write_text
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data
from ucn.data.sets.semantic.faces import mirror_points, open_folder, read_pts
from ucn.errors import DataError


def _lines(offset: float) -> list[str]:
    """68 points in rows of ten, each moved right by an offset."""
    return [f"{2 * (i % 10) + offset} {3 * (i // 10)}.5" for i in range(68)]


def _write(folder: Path, count: int = 2) -> Path:
    for i in range(count):
        write_flat_image(folder / f"face {i}.png", 40 + i, 30)
        write_text(folder / f"face {i}.pts", *_lines(i))
    return folder


def _official(lines: list[str], count: int = 68) -> list[str]:
    return ["version: 1", f"n_points:  {count}", "{", *lines, "}"]


def test_bare_points_count_from_0(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path / "ö"), "all")
    assert len(data) == 1 and not data.problems
    sample = data.read(0)
    assert sample.points0[13].tolist() == [6, 3.5] and sample.points1[13].tolist() == [7, 3.5]
    assert len(sample) == 68 and sample.parts is not None and sample.parts.tolist() == list(range(68))
    assert sample.name == "face 0--face 1"
    # Points 36 and 45 of image 1: (2 * 6 + 1, 9.5) and (2 * 5 + 1, 12.5).
    assert sample.pck_length == pytest.approx(math.hypot(2, 3))
    assert open_folder(tmp_path / "ö", "all", length="image").read(0).pck_length == 41
    with pytest.raises(DataError, match="length must be one of eyes, image"):
        open_folder(tmp_path / "ö", "all", length="nose")


def test_points_of_ibug_count_from_1(tmp_path: Path) -> None:
    _write(tmp_path)
    write_text(tmp_path / "face 0.pts", *_official(_lines(1)))
    sample = open_folder(tmp_path, "all").read(0)
    assert sample.points0[13].tolist() == [6, 2.5]
    keypoints = read_pts(tmp_path / "face 0.pts")
    assert keypoints.place(0).endswith("face 0.pts:4")


def test_mirror_is_that_of_the_scheme() -> None:
    table = mirror_points()
    assert (table[table] == np.arange(68)).all()
    known = {0: 16, 8: 8, 17: 26, 21: 22, 30: 30, 31: 35, 33: 33, 36: 45, 39: 42, 37: 44, 40: 47, 41: 46}
    known |= {48: 54, 51: 51, 57: 57, 55: 59, 60: 64, 62: 62, 65: 67, 66: 66}
    assert {part: int(table[part]) for part in known} == known


def test_splits_are_by_name(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    train, test = open_folder(tmp_path, "train"), open_folder(tmp_path, "test")
    assert (len(train), len(test)) == (28, 1)
    assert test.pair_name(0) == "face 8--face 9"
    assert len(open_folder(tmp_path, "all")) == 45


def test_folders_below_are_searched(tmp_path: Path) -> None:
    _write(tmp_path / "lfpw/trainset")
    _write(tmp_path / "too/deep/for/us")
    data = open_folder(tmp_path, "all")
    assert len(data) == 1 and data.pair_name(0) == "lfpw/trainset/face 0--lfpw/trainset/face 1"


def test_missing_partners(tmp_path: Path) -> None:
    _write(tmp_path, 3)
    (tmp_path / "face 1.png").unlink()
    (tmp_path / "face 2.pts").unlink()
    data = open_folder(tmp_path, "all")
    assert len(data) == 0
    assert [str(problem) for problem in data.problems] == [
        f"{tmp_path / 'face 1.pts'}: no image face 1.jpg or face 1.png beside it; copy it there, or remove "
        "this file"
    ]
    assert data.notes == ["1 images have no .pts file; excluded"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (_lines(0)[:67], r"face 0\.pts: expected 68 lines of x and y, got 67"),
        ([*_lines(0)[:67], "1 2 3"], r"face 0\.pts:68: expected 2 numbers, got 3"),
        ([*_lines(0)[:67], "1 nan"], r"face 0\.pts:68: expected a finite number"),
        ([], r"expected 68 lines of x and y, got 0"),
        (_official(_lines(1), 49), r"face 0\.pts:2: expected n_points: 68, got '49'"),
        (
            _official(_lines(1))[:-1],
            r"face 0\.pts:71: expected lines of x and y between '\{' and a last '\}'",
        ),
        (_official(_lines(1)[:60]), r"expected 68 lines of x and y, got 60"),
        (["version: 1"], r"face 0\.pts:1: expected lines of x and y between"),
        ([*_lines(0)[:67], "70 2"], r"face 0\.pts:68: part 67 at \(70, 2\) lies 30.5 px outside its image"),
    ],
)
def test_wrong_files(tmp_path: Path, lines: list[str], message: str) -> None:
    write_text(_write(tmp_path) / "face 0.pts", *lines)
    data = open_folder(tmp_path, "all")
    with pytest.raises(DataError, match=message):
        data.read(0)
    (problem,) = check_data(data).problems
    assert problem.path.name == "face 0.pts"
    assert_remedy(problem.message)


def test_a_damaged_image_is_not_its_points_problem(tmp_path: Path) -> None:
    (_write(tmp_path) / "face 1.png").write_bytes(b"no image")
    report = check_data(open_folder(tmp_path, "all"))
    assert [problem.path.name for problem in report.problems] == ["face 1.png"]


def test_text_that_is_none(tmp_path: Path) -> None:
    (_write(tmp_path) / "face 0.pts").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        open_folder(tmp_path, "all").read(0)
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(write_text(tmp_path / "x/a.txt").parent, "all")


def test_a_split_without_pairs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"split 'test' is empty: no two images with \.pts"):
        open_folder(_write(tmp_path), "test")


def test_real_faces(data_folder: Path) -> None:
    train, test = (open_data("faces", data_folder / "helen_faces", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (400 * 399 // 2, 100 * 99 // 2)
    images = [{path for i in (0, 5, len(d) - 1) for path in d.image_paths(i)} for d in (train, test)]
    assert not images[0] & images[1] and max(images[0]) < min(images[1])
    report = check_data(test, max_pairs=20)
    assert report.is_good and not report.notes and report.point_count == 20 * 68


def test_real_faces_are_symmetric_by_the_mirror(data_folder: Path) -> None:
    shapes = []
    for path in sorted((data_folder / "helen_faces").glob("*.pts"))[:200]:
        points = read_pts(path).points
        shapes.append((points - points.mean(axis=0)) / points.std())
    mean = np.mean(shapes, axis=0)
    mirrored = (mean * (-1, 1))[mirror_points()]
    assert np.abs(mirrored - mean).max() < 0.15  # faces are about 3 units wide
