from pathlib import Path

import numpy as np
import pytest

from support.semantic_files import write_flat_image, write_mat, write_text
from ucn.data.catalogue import guess_data, open_data
from ucn.data.checking import check_data
from ucn.data.sets.semantic.pf_willow import open_folder
from ucn.errors import DataError


def _points(offset: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """2 × 10: x from 1 + offset to 10 + offset, y twice that of the first."""
    x = np.arange(1.0, 11) + offset
    return np.stack([x, 2 * x])


def _write(folder: Path) -> Path:
    root = folder / "PF-dataset-WILLOW"
    for name, offset in (
        ("car(S)/a ö", 0.0),
        ("car(S)/b", 0.5),
        ("car(S)/c", 1),
        ("duck(S)/a", 2),
        ("duck(S)/d", 0),
    ):
        write_flat_image(root / f"{name}.png", 60, 40)
        write_mat(root / f"{name}.mat", {"pts_coord": _points(offset)})
    return folder


def test_points_are_taken_as_they_are(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path), "all")
    assert len(data) == 3 + 1 and not data.problems
    sample = data.read(0)
    assert sample.name == "car(S)/a ö--car(S)/b"
    assert sample.points0[:2].tolist() == [[1, 2], [2, 4]] and sample.points1[9].tolist() == [10.5, 21]
    assert sample.pck_length == 18  # y spans 18, x spans 9
    assert sample.parts is None and sample.mirror_parts is None
    assert data.pair_name(3) == "duck(S)/a--duck(S)/d"
    assert [path.suffix for path in data.pair_files(0)] == [".png", ".png", ".mat", ".mat"]


def test_pairs_of_a_table(tmp_path: Path) -> None:
    _write(tmp_path)
    numbers = ",".join(["1"] * 40)
    write_text(
        tmp_path / "test_pairs_pf.csv",
        "imageA,imageB," + ",".join(f"X{i}" for i in range(40)),
        f"PF-dataset/car(S)/c.png,PF-dataset/car(S)/b.png,{numbers}",
        f"PF-dataset/duck(S)/a.png,PF-dataset/duck(S)/nobody.png,{numbers}",
        "PF-dataset/duck(S)/a.png",
        f"PF-dataset/duck(S)/a.png,PF-dataset/duck(S)/d.png,{numbers}",
    )
    data = open_folder(tmp_path, "pairs")
    assert [data.pair_name(i) for i in range(len(data))] == ["car(S)/c--car(S)/b", "duck(S)/a--duck(S)/d"]
    assert [(problem.line, problem.message) for problem in data.problems] == [
        (3, "expected an image of the set, got 'PF-dataset/duck(S)/nobody.png'; correct the line"),
        (4, "expected two images; correct the line"),
    ]
    assert data.read(0).points0[0].tolist() == [2, 4]
    assert len(data.files()) == 8  # image c, b, a, d and theirs


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no table of pairs: expected test_pairs_pf\.csv or test_pairs"):
        open_folder(_write(tmp_path), "pairs")


def test_wrong_files(tmp_path: Path) -> None:
    root = _write(tmp_path) / "PF-dataset-WILLOW"
    (root / "duck(S)/d.png").unlink()
    write_mat(root / "car(S)/b.mat", {"pts_coord": np.zeros((3, 10))})
    write_mat(root / "car(S)/c.mat", {"points": np.zeros((2, 10))})
    data = open_folder(tmp_path, "all")
    assert [str(problem) for problem in data.problems] == [
        f"{root / 'duck(S)/d.mat'}: no image duck(S)/d.jpg or .png; copy it there, or remove this file"
    ]
    with pytest.raises(DataError, match=r"b\.mat: expected pts_coord of 2 × N numbers, got \(3, 10\)"):
        data.read(0)
    with pytest.raises(DataError, match=r"c\.mat has no variable 'pts_coord'"):
        data.read(1)
    assert sorted(problem.path.name for problem in check_data(data).problems) == ["b.mat", "c.mat", "d.mat"]


def test_an_empty_split(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "car(S)/a.png", 60, 40)
    write_mat(tmp_path / "car(S)/a.mat", {"pts_coord": _points(0)})
    with pytest.raises(DataError, match="split 'all' is empty: no two "):
        open_folder(tmp_path, "all")


def test_real_objects(data_folder: Path) -> None:
    data = open_data("pf-willow", data_folder / "pf_willow")
    assert guess_data(data_folder / "pf_willow") == ["pf-willow"]
    assert len(data) == 3 * 45 and not data.problems
    report = check_data(data, max_pairs=10)
    assert report.is_good and report.point_count == 100 and not report.notes
    assert all(20 < (data.read(i).pck_length or 0) < 300 for i in (0, 60, 134))
