import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.remedy_rule import refused
from support.semantic_files import write_flat_image, write_mat
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data
from ucn.data.sets.semantic.flowweb import PART_NAMES, open_folder
from ucn.data.sets.semantic.parts import mirror_by_names
from ucn.errors import DataError


def _keypoints(x: float, status: list[int]) -> dict[str, Any]:
    """Twelve parts on a line, the k-th at (x + k, 2 k)."""
    k = np.arange(12.0)
    return {"keypts": np.stack([x + k, 2 * k]), "keypts_status": np.array([status], np.uint8)}


STATUS0 = [1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
STATUS1 = [0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0]


def _write(folder: Path, count: int = 2, **replaced: Any) -> Path:
    root = folder / "data/car_set_1"
    for i in range(count):
        write_flat_image(root / f"{i:03}.jpg", 30, 25)
        values = _keypoints(1.5 * i, STATUS1 if i else STATUS0) | (replaced if i == 0 else {})
        write_mat(root / f"{i:03}.mat", values | {"mask": np.ones((25, 30), np.uint8)}, is_packed=True)
    return folder


def test_parts_visible_in_both(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path / "ö ä"), "all")
    assert len(data) == 1 and not data.problems
    sample = data.read(0)
    assert sample.points0.tolist() == [[1, 2], [5, 10], [8, 16], [9, 18]]
    assert sample.points1.tolist() == [[2.5, 2], [6.5, 10], [9.5, 16], [10.5, 18]]
    assert sample.parts is not None and sample.parts.tolist() == [1, 5, 8, 9]
    assert sample.mirror_parts is not None
    assert sample.mirror_parts.tolist() == [2, 3, 0, 1, 5, 4, 7, 6, 9, 8, 11, 10]
    assert sample.pck_length == 30
    assert sample.name == "car_set_1/000--car_set_1/001"
    assert data.part_names_of("car_set_1") == PART_NAMES["car"].split()
    assert data.part_names_of("dragon") == []


def test_parts_outside_the_crop_are_excluded(tmp_path: Path) -> None:
    keypoints = _keypoints(0, STATUS0)["keypts"]
    keypoints[:, 1], keypoints[:, 5] = (-40, 3), (30.4, 24.5)
    data = open_folder(_write(tmp_path, keypts=keypoints), "all")
    sample = data.read(0)
    assert sample.points0.tolist() == [[29.5, 24.5], [8, 16], [9, 18]]
    assert check_data(data).is_good and not data.notes


def test_classes_have_twelve_kinds_of_parts() -> None:
    counts = {name: len(parts.split()) for name, parts in PART_NAMES.items()}
    assert counts == {
        **{"aeroplane": 8, "bicycle": 11, "boat": 7, "bottle": 7, "bus": 12, "car": 12, "chair": 10},
        **{"diningtable": 12, "motorbike": 10, "sofa": 10, "train": 17, "tvmonitor": 8},
    }
    for parts in PART_NAMES.values():
        table = mirror_by_names(parts.split())
        assert (table[table] == np.arange(len(table))).all()


def test_an_unknown_class_or_number_of_parts_has_no_names(tmp_path: Path) -> None:
    root = _write(tmp_path) / "data"
    (root / "car_set_1").rename(root / "boat_set_2")
    assert open_folder(tmp_path, "all").read(0).parts is None  # 12 parts, where a boat has 7
    (root / "boat_set_2").rename(root / "unicorn_set_2")
    sample = open_folder(tmp_path, "all").read(0)
    assert sample.parts is None and sample.mirror_parts is None and len(sample) == 4


def test_splits_are_within_sets(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    assert [len(open_folder(tmp_path, split)) for split in ("all", "train", "test")] == [45, 28, 1]
    assert open_folder(tmp_path, "test").pair_name(0) == "car_set_1/008--car_set_1/009"
    with pytest.raises(DataError, match="split 'test' is empty: no two "):
        open_folder(_write(tmp_path / "two"), "test")


def test_no_parts_at_all_is_no_problem(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path, keypts=np.zeros((0, 0)), keypts_status=np.zeros((0, 0))), "all")
    assert len(data.read(0)) == 0 and check_data(data).is_good


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keypts": np.zeros((12, 2))}, r"000\.mat: expected keypts of 2 × K and keypts_status of 1 × K"),
        ({"keypts": np.zeros((2, 11))}, r"got \(2, 11\) and \(1, 12\)"),
        ({"keypts": np.full((2, 12), math.nan)}, "expected finite keypts where keypts_status is 1"),
        ({"keypts_status": "word"}, "expected numbers in 'keypts_status'"),
    ],
)
def test_wrong_files(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    data = open_folder(_write(tmp_path, **values), "all")
    with refused(message):
        data.read(0)
    assert [problem.path.name for problem in check_data(data).problems] == ["000.mat"]


def test_missing_images(tmp_path: Path) -> None:
    (_write(tmp_path, 3) / "data/car_set_1/001.jpg").unlink()
    data = open_folder(tmp_path, "all")
    assert len(data) == 1
    assert [problem.message for problem in data.problems] == [
        "no image car_set_1/001.jpg or .png; copy it there, or remove this file"
    ]
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(tmp_path / "data/car_set_1", "all")


def test_real_cars(data_folder: Path) -> None:
    data = open_data("flowweb", data_folder / "flowweb_toy")
    assert len(data) == 190 and not data.problems
    report = check_data(data, max_pairs=20)
    assert report.is_good and not report.notes
    # Cars from the front: headlights (8, 9) below the upper corners of the windscreen (4, 5), left of right.
    for index in (0, 50, 189):
        sample = data.read(index)
        assert sample.parts is not None and sample.pck_length == 150
        where = dict(zip(sample.parts.tolist(), sample.points0.tolist(), strict=True))
        assert where[4][0] < where[5][0] and where[8][0] < where[9][0]
        assert where[8][1] > where[4][1] and where[9][1] > where[5][1]
