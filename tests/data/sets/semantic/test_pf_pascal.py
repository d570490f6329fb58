import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.remedy_rule import refused
from support.semantic_files import write_flat_image, write_mat, write_text
from ucn.data.checking import check_data
from ucn.data.sets.semantic.pf_pascal import open_folder
from ucn.errors import DataError

NAN = math.nan


def _write(folder: Path) -> Path:
    root = folder / "PF-dataset-PASCAL"
    objects: dict[str, tuple[list[tuple[float, float]], list[int]]] = {
        "bird/2008_01": ([(1, 2), (NAN, NAN), (5, 6)], [1, 2, 11, 7]),
        "bird/2008_02": ([(3, 4), (5, 5), (7, 8.5)], [3, 4, 13, 24]),
        "bird/2008_03": ([(NAN, NAN), (5, 5), (7, 9)], [3, 4, 13, 24]),
        "cat/2008_02": ([(9, 9)], [8, 8, 9, 9]),
    }
    for i, (name, (points, box)) in enumerate(objects.items()):
        write_flat_image(root / "JPEGImages" / f"{name.split('/')[1]}.jpg", 30 + i, 50)
        write_mat(root / "Annotations" / f"{name}.mat", {"kps": np.array(points), "bbox": np.array([box])})
    return folder


def _replace(folder: Path, **values: Any) -> None:
    path = folder / "PF-dataset-PASCAL/Annotations/bird/2008_01.mat"
    write_mat(path, {"kps": np.array([[1.0, 2], [3, 4], [5, 6]]), "bbox": np.array([[1, 2, 11, 7]])} | values)


def test_all_pairs_of_a_class(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path / "ä b"), "all")
    assert len(data) == 3 and not data.problems
    sample = data.read(0)
    assert sample.points0.tolist() == [[1, 2], [5, 6]] and sample.points1.tolist() == [[3, 4], [7, 8.5]]
    assert sample.pck_length == 50  # the longest side of image 1
    assert sample.parts is None
    box = open_folder(tmp_path / "ä b", "all", length="box").read(0)
    assert box.pck_length == 20  # of a box from (3, 4) to (13, 24)
    with pytest.raises(DataError, match="length must be one of image, box"):
        open_folder(tmp_path / "ä b", "all", length="eyes")


def test_pairs_of_tables(tmp_path: Path) -> None:
    _write(tmp_path)
    write_text(
        tmp_path / "PF-dataset-PASCAL/test_pairs.csv",
        "source_image,target_image,class,XA,YA,XB,YB",
        "PF-dataset-PASCAL/JPEGImages/2008_03.jpg,PF-dataset-PASCAL/JPEGImages/2008_02.jpg,3,7;5,9;5,1;2,3;4",
        "JPEGImages/2008_01.jpg,JPEGImages/2008_02.jpg,bird,1,1,1,1",
        "JPEGImages/2008_01.jpg,JPEGImages/2008_02.jpg,8,1,1,1,1",
        "JPEGImages/2008_01.jpg,JPEGImages/2008_02.jpg,21,1,1,1,1",
        "JPEGImages/2008_01.jpg",
    )
    data = open_folder(tmp_path, "test")
    names = ["bird/2008_03--bird/2008_02", "bird/2008_01--bird/2008_02"]
    assert [data.pair_name(i) for i in range(len(data))] == names
    assert data.read(0).points0.tolist() == [[5, 5], [7, 9]]  # from the annotations, in their order
    assert [(problem.line, re.split("[,;]", problem.message)[0]) for problem in data.problems] == [
        (4, "the set has no annotated image '2008_01' of cat"),
        (5, "expected image 0"),
        (6, "expected image 0"),
    ]


def test_training_pairs_to_be_mirrored_are_taken_once(tmp_path: Path) -> None:
    _write(tmp_path)
    row = "JPEGImages/2008_01.jpg,JPEGImages/2008_02.jpg,3"
    path = write_text(
        tmp_path / "trn_pairs.csv", "source_image,target_image,class,flip", f"{row},0", f"{row},1"
    )
    data = open_folder(tmp_path, "train")
    assert len(data) == 1 and not data.problems
    assert data.notes == [f"{path}: 1 lines repeat a pair (to be mirrored); excluded"]
    with pytest.raises(DataError, match=r"no table of pairs for split 'val': expected val_pairs\.csv"):
        open_folder(tmp_path, "val")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kps": np.zeros((2, 3))}, r"2008_01\.mat: expected kps of N × 2 numbers, got \(2, 3\)"),
        ({"kps": np.full((3, 2), math.inf)}, "expected kps of N × 2 numbers"),
        ({"bbox": np.zeros((1, 3))}, "expected bbox of left, top, right, bottom"),
        ({"bbox": np.array([[5, 5, 1, 1]])}, "expected bbox of left, top, right, bottom"),
        ({"kps": "text"}, "expected numbers in 'kps'"),
        ({"kps": np.zeros((2, 2))}, r"2008_02\.mat: expected 2 parts as in .*2008_01\.mat, got 3"),
        (
            {"kps": np.array([[1.0, 90], [1, 1], [1, 1]])},
            r"2008_01\.mat: part 0 at \(1, 90\) lies 40.5 px outside",
        ),
    ],
)
def test_wrong_annotations(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    _write(tmp_path)
    _replace(tmp_path, **values)
    data = open_folder(tmp_path, "all")
    with refused(message):
        data.read(0)
    assert not check_data(data).is_good


@pytest.mark.parametrize("point", [(NAN, 4.0), (3.0, NAN), (NAN, NAN)])
def test_a_point_without_one_coordinate_is_not_visible(tmp_path: Path, point: tuple[float, float]) -> None:
    _replace(_write(tmp_path), kps=np.array([(1.0, 2.0), point, (5.0, 6.0)]))
    sample = open_folder(tmp_path, "all").read(0)
    assert sample.points0.tolist() == [[1, 2], [5, 6]]


def test_missing_images_and_empty_splits(tmp_path: Path) -> None:
    root = _write(tmp_path) / "PF-dataset-PASCAL"
    (root / "JPEGImages/2008_01.jpg").unlink()
    data = open_folder(root, "all")
    assert [str(f) for f in data.problems] == [
        f"{root}/Annotations/bird/2008_01.mat: no image JPEGImages/2008_01.jpg or .png; "
        "copy it there, or remove this file"
    ]
    write_text(root / "test_pairs.csv", "source_image,target_image,class")
    (root / "Annotations/bird/2008_01.mat").unlink()
    with pytest.raises(DataError, match="split 'test' is empty: no two "):
        open_folder(root, "test")
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(root / "JPEGImages", "all")
