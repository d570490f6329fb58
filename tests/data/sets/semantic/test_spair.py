import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.remedy_rule import refused
from support.semantic_files import write_flat_image, write_text
from ucn.data.checking import check_data
from ucn.data.sets.semantic.spair import mirror_table, open_folder
from ucn.errors import DataError

PAIR = "000001-2008_01-2008_02:dog"
VALUES: dict[str, Any] = {
    "pair_id": 1,
    "filename": PAIR,
    "src_imname": "2008_01.jpg",
    "trg_imname": "2008_02.jpg",
    "src_imsize": [40, 30, 3],
    "trg_imsize": [20, 50, 3],
    "src_bndbox": [0, 0, 39, 29],
    "trg_bndbox": [2, 4, 12, 19],
    "category": "dog",
    "src_kps": [[1, 2], [30, 20], [5, 6]],
    "trg_kps": [[3, 4], [10, 40], [7, 8]],
    "kps_ids": ["0", "4", "15"],
    "mirror": 0,
    "viewpoint_variation": 1,
}


def _write(folder: Path, values: dict[str, Any] | str | None = None, separator: str = ":") -> Path:
    root = folder / "SPair-71k"
    write_flat_image(root / "JPEGImages/dog/2008_01.jpg", 40, 30)
    write_flat_image(root / "JPEGImages/dog/2008_02.jpg", 20, 50)
    write_text(root / "Layout/large/trn.txt", PAIR)
    text = values if isinstance(values, str) else json.dumps(VALUES | (values or {}))
    write_text(root / f"PairAnnotation/trn/{PAIR.replace(':', separator)}.json", text)
    return folder


@pytest.mark.parametrize("separator", [":", "_"])
def test_a_listed_pair(tmp_path: Path, separator: str) -> None:
    data = open_folder(_write(tmp_path / "ö ä", separator=separator), "train")
    assert len(data) == 1 and not data.problems
    sample = data.read(0)
    assert sample.name == PAIR
    assert sample.points0.tolist() == VALUES["src_kps"] and sample.points1.tolist() == VALUES["trg_kps"]
    assert sample.parts is not None and sample.parts.tolist() == [0, 4, 15]
    assert sample.mirror_parts is not None and sample.mirror_parts[sample.parts].tolist() == [1, 5, 15]
    assert sample.pck_length == 15  # of a box 10 wide and 15 high
    assert open_folder(tmp_path / "ö ä", "train", length="image").read(0).pck_length == 50
    assert sample.image0.shape == (3, 30, 40) and sample.image1.shape == (3, 50, 20)
    assert [path.suffix for path in data.pair_files(0)] == [".jpg", ".jpg", ".json"]
    assert [file.kind for file in data.files()] == ["image", "image", "points"]
    assert check_data(data).is_good


def test_mirrors_are_their_own_inverse() -> None:
    categories = [
        "aeroplane",
        "bicycle",
        "bird",
        "boat",
        "bottle",
        "bus",
        "car",
        "cat",
        "chair",
        "cow",
        "dog",
        "horse",
        "motorbike",
        "person",
        "pottedplant",
        "sheep",
        "train",
        "tvmonitor",
    ]
    assert len(categories) == 18
    for category in categories:
        table = mirror_table(category)
        assert table is not None and (table[table] == np.arange(30)).all() and (table != np.arange(30)).any()
    car = mirror_table("car")
    assert car is not None and car[[0, 6, 4, 10, 15, 25, 28]].tolist() == [1, 7, 4, 20, 25, 15, 29]
    assert mirror_table("unicorn") is None


def test_points_at_the_border(tmp_path: Path) -> None:
    sample = open_folder(_write(tmp_path, {"src_kps": [[40, 30], [41.5, 20], [5, 6]]}), "train").read(0)
    assert sample.points0.tolist() == [[39.5, 29.5], [5, 6]]  # the second lies 2 of at most 2 px outside
    assert sample.points1.tolist() == [[3, 4], [7, 8]] and sample.parts is not None
    assert sample.parts.tolist() == [0, 15]


def test_a_pair_without_points(tmp_path: Path) -> None:
    sample = open_folder(_write(tmp_path, {"src_kps": [], "trg_kps": [], "kps_ids": []}), "train").read(0)
    assert sample.points0.shape == (0, 2) and sample.parts is not None and sample.parts.shape == (0,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[1]", "expected a JSON object, got list"),
        ({"src_imname": "2008_02.jpg"}, "expected src_imname '2008_01.jpg', got '2008_02.jpg'"),
        ({"category": "cat"}, "expected category 'dog', got 'cat'"),
        ({"src_kps": [[1, 2]]}, "src_kps: expected 3 × 2 finite numbers"),
        ({"trg_kps": None}, "trg_kps: expected 3 × 2 finite numbers, got None"),
        ({"trg_kps": [[1, 2], [3], [5, 6]]}, "trg_kps: expected 3 × 2 finite numbers"),
        ({"trg_kps": [[1, 2], [3, float("nan")], [5, 6]]}, "trg_kps: expected 3 × 2 finite numbers"),
        ({"kps_ids": ["0", "0", "1"]}, "expected kps_ids, different ids below 30"),
        ({"kps_ids": ["0", "1", "30"]}, "expected kps_ids, different ids below 30"),
        ({"kps_ids": "012"}, "expected kps_ids"),
        ({"trg_bndbox": [1, 2, 3]}, "trg_bndbox: expected 4 finite numbers"),
        ({"mirror": 1}, "unmirrored pair, got a mirrored one"),
        ({"src_kps": [[1, 2], [300, 20], [5, 6]]}, r"part 1 at \(300, 20\) lies 260.5 px outside its image"),
    ],
)
def test_wrong_annotations(tmp_path: Path, values: dict[str, Any] | str, message: str) -> None:
    data = open_folder(_write(tmp_path, values), "train")
    with refused(message):
        data.read(0)
    assert [problem.path.suffix for problem in check_data(data).problems] == [".json"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2008_01-2008_02:dog", "expected NUMBER-NAME0-NAME1:CLASS, got '2008_01-2008_02:dog'"),
        ("1-../x-2008_02:dog", "expected NUMBER-NAME0-NAME1:CLASS"),
        ("000002-2008_01-2008_03:dog", "there is no JPEGImages/dog/2008_03.jpg"),
        ("000002-2008_01-2008_02:dog", "there is no PairAnnotation/trn/000002-2008_01-2008_02:dog.json"),
        (PAIR, "repeats the pair of line 1"),
    ],
)
def test_wrong_lines_of_a_list(tmp_path: Path, line: str, message: str) -> None:
    write_text(_write(tmp_path) / "SPair-71k/Layout/large/trn.txt", PAIR, line)
    data = open_folder(tmp_path, "train")
    assert len(data) == 1
    (problem,) = data.problems
    assert problem.path.name == "trn.txt" and problem.line == 2 and message in problem.message


def test_splits_and_layouts(tmp_path: Path) -> None:
    root = _write(tmp_path) / "SPair-71k"
    with pytest.raises(DataError, match=r"cannot read list of pairs .*val\.txt: no such file"):
        open_folder(root, "val")
    write_text(root / "Layout/small/trn.txt")
    with pytest.raises(DataError, match="split 'train' is empty: so is its list in Layout/small"):
        open_folder(root, "train", layout="small")
    with pytest.raises(DataError, match="layout must be one of large, small"):
        open_folder(root, "train", layout="tiny")
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(root / "Layout", "train")
    with pytest.raises(IndexError, match="there is no pair 1"):
        open_folder(root, "train").read(1)


def test_a_damaged_image_is_not_its_annotations_problem(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path), "train")
    (tmp_path / "SPair-71k/JPEGImages/dog/2008_02.jpg").write_bytes(b"no image")
    assert [problem.path.name for problem in check_data(data).problems] == ["2008_02.jpg"]
