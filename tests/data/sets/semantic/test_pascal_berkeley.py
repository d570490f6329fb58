from pathlib import Path

import numpy as np
import pytest

from support.remedy_rule import refused
from support.semantic_files import write_flat_image, write_text
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data
from ucn.data.sets.semantic import pascal_berkeley
from ucn.data.sets.semantic.parts import mirror_by_names
from ucn.data.sets.semantic.pascal_berkeley import PART_NAMES, open_folder
from ucn.errors import DataError

Marks = list[tuple[str, float, float, int]]
CAT0: Marks = [("L_Eye", 10.5, 8, 1), ("Nose", 14, 12.25, 1), ("R_Eye", 0, 0, 0)]
CAT1: Marks = [("L_Eye", 5, 6, 1), ("R_Eye", 9, 6, 1), ("Nose", 7, 9, 1)]


def _xml(
    image: str, marks: Marks, bounds: str = 'height="10.00" width="12.00" xmin="8.00" ymin="6.00"'
) -> str:
    points = "".join(
        f'<keypoint name="{name}" visible="{visible}" x="{x:.2f}" y="{y:.2f}" z="0.00" zorder="0"/>'
        for name, x, y, visible in marks
    )
    return (
        f"<annotation><image>{image}</image><voc_id>1</voc_id><category>cat</category>"
        f"<visible_bounds {bounds}/><keypoints>{points}</keypoints></annotation>"
    )


def _write(folder: Path, images: str = "JPEGImages") -> Path:
    for i, marks in enumerate((CAT0, CAT1)):
        name = f"2008_00000{i}"
        write_flat_image(folder / images / f"{name}.jpg", 50, 40 + i)
        write_text(folder / f"annotations/cat/{name}_1.xml", _xml(name, marks))
    return folder


def test_the_object_is_cut_out(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path / "ö ä"), "all")
    assert len(data) == 1 and not data.problems
    sample = data.read(0)
    # Image 0: bounds 8…20 × 6…16 hold all parts. Image 1: parts from (5, 6) widen them to 5…20.
    assert sample.image0.shape == (3, 11, 13) and sample.image1.shape == (3, 11, 16)
    assert sample.points0.tolist() == [[2.5, 2], [6, 6.25]]
    assert sample.points1.tolist() == [[0, 0], [2, 3]]
    assert sample.pck_length == 16
    names = PART_NAMES["cat"].split()
    assert sample.parts is not None and [names[part] for part in sample.parts] == ["L_Eye", "Nose"]
    assert sample.mirror_parts is not None
    assert [names[part] for part in sample.mirror_parts[sample.parts]] == ["R_Eye", "Nose"]
    assert data.part_names_of("cat") == PART_NAMES["cat"].split()
    assert sample.name == "cat/2008_000000_1--cat/2008_000001_1"


def test_whole_images(tmp_path: Path) -> None:
    sample = open_folder(_write(tmp_path), "all", crop=False).read(0)
    assert sample.image0.shape == (3, 40, 50)
    assert sample.points0.tolist() == [[10.5, 8], [14, 12.25]] and sample.pck_length == 50


@pytest.mark.parametrize("images", ["VOC2011/JPEGImages", "TrainVal/VOCdevkit/VOC2011/JPEGImages"])
def test_images_may_lie_where_the_archive_has_them(tmp_path: Path, images: str) -> None:
    assert len(open_folder(_write(tmp_path, images), "all")) == 1


def test_splits_share_no_image(tmp_path: Path) -> None:
    for i in range(60):
        name = f"2008_{i:06}"
        write_flat_image(tmp_path / f"JPEGImages/{name}.jpg", 10, 10)
        for category in ("cat", "dog"):
            for n in (1, 2):
                write_text(tmp_path / f"annotations/{category}/{name}_{n}.xml", _xml(name, []))
    parts = [open_folder(tmp_path, split) for split in ("train", "test", "all")]
    images = [{path for i in range(len(d)) for path in d.image_paths(i)} for d in parts]
    assert not images[0] & images[1] and images[0] | images[1] == images[2] and len(images[2]) == 60
    assert 6 <= len(images[1]) <= 18  # about a fifth
    counts = [2 * len(used) for used in images]  # two objects of each class an image
    assert [len(d) for d in parts] == [count * (count - 1) for count in counts]  # of two classes
    training, validation = parts[2].split_off(0.2)
    held = {path for i in range(len(validation)) for path in validation.image_paths(i)}
    assert held.isdisjoint(path for i in range(len(training)) for path in training.image_paths(i))


def test_later_people_are_excluded(tmp_path: Path) -> None:
    for year in (2007, 2008, 2009):
        name = f"{year}_000001"
        write_flat_image(tmp_path / f"JPEGImages/{name}.jpg", 10, 10)
        write_text(tmp_path / f"annotations/person/{name}_1.xml", _xml(name, []))
    data = open_folder(tmp_path, "all")
    assert len(data) == 1
    assert data.notes == ["1 people in images after 2008, which are not cleaned, excluded"]
    assert len(open_folder(tmp_path, "all", uncleaned=True)) == 3


def test_a_list_chooses_objects(tmp_path: Path) -> None:
    _write(tmp_path)
    write_text(tmp_path / "pairs.txt", "cat/2008_000001_1.xml cat/2008_000000_1", "cat/2008_000009_1")
    data = open_folder(tmp_path, "all", list_file="pairs.txt")
    assert data.pair_name(0) == "cat/2008_000001_1--cat/2008_000000_1" and len(data) == 1
    assert [problem.line for problem in data.problems] == [2]


def test_names_of_all_classes_have_mirrors() -> None:
    assert len(PART_NAMES) == 20
    for names in PART_NAMES.values():
        table = mirror_by_names(names.split())
        assert (table[table] == np.arange(len(table))).all() and (table != np.arange(len(table))).any()
    aeroplane = PART_NAMES["aeroplane"].split()
    mirrored = mirror_by_names(aeroplane)[aeroplane.index("Left_Engine_Back")]
    assert aeroplane[mirrored] == "Right_Engine_Back"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<annotation>", r"_1\.xml:\d: expected XML"),
        ("", r"_1\.xml:\d: expected XML"),
        ("<note/>", "expected <annotation>, got <note>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "expected plain XML without a document type"),
        ('<?xml version="1.0" encoding="none"?><annotation/>', "expected XML"),
        (_xml("2008_000009", CAT0), "expected <image> 2008_000000, as in its name, got '2008_000009'"),
        (_xml("2008_000000", CAT0, 'xmin="1"'), "expected a number as ymin of visible_bounds, got ''"),
        (_xml("2008_000000", CAT0, 'height="0" width="1" xmin="1" ymin="1"'), "with an area, got 1 × 0"),
        (_xml("2008_000000", [("Nose", float("nan"), 1, 1)]), "expected a number as x of Nose, got 'nan'"),
        (
            _xml("2008_000000", [("Nose", 90, 1, 1)]),
            r"at \(90, 1\) lies 40.5 px outside its image of 50 × 40",
        ),
        ("<annotation><image>2008_000000</image></annotation>", "expected <visible_bounds>"),
    ],
)
def test_wrong_annotations(tmp_path: Path, content: str, message: str) -> None:
    write_text(_write(tmp_path) / "annotations/cat/2008_000000_1.xml", content)
    data = open_folder(tmp_path, "all")
    with refused(message):
        data.read(0)
    assert [problem.path.name for problem in check_data(data).problems] == ["2008_000000_1.xml"]


def test_hidden_document_types_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path) / "annotations/cat/2008_000000_1.xml"
    path.write_bytes('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>'.encode("utf-16"))
    data = open_folder(tmp_path, "all")
    with pytest.raises(DataError, match="expected plain XML without a document type"):
        data.read(0)
    monkeypatch.setattr(pascal_berkeley, "_MAX_XML_BYTES", 10)
    with pytest.raises(DataError, match="the limit for annotation is 10"):
        data.read(0)


def test_unknown_names_are_noted(tmp_path: Path) -> None:
    path = _write(tmp_path) / "annotations/cat/2008_000000_1.xml"
    write_text(path, _xml("2008_000000", [*CAT0, ("Horn", 1, 1, 1)]))
    data = open_folder(tmp_path, "all")
    assert len(data.read(0)) == 2
    assert data.notes == [f"{path}: a cat has no part 'Horn'; ignored"]


def test_entries_without_image_or_class(tmp_path: Path) -> None:
    _write(tmp_path)
    write_text(tmp_path / "annotations/cat/2008_000007_1.xml", _xml("2008_000007", []))
    write_text(tmp_path / "annotations/unicorn/2008_000000_1.xml", _xml("2008_000000", []))
    data = open_folder(tmp_path, "all")
    assert len(data) == 1
    assert [problem.message for problem in data.problems] == [
        "no image JPEGImages/2008_000007.jpg; get it, or remove this file",
        "'unicorn' is none of the 20 classes of PASCAL VOC; remove the file",
    ]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    write_text(tmp_path / "annotations/cat/2008_000000_1.xml", _xml("2008_000000", []))
    with pytest.raises(DataError, match="has no images: expected PASCAL VOC 2011 in JPEGImages or"):
        open_folder(tmp_path, "all")
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(tmp_path / "annotations", "all")
    write_flat_image(tmp_path / "JPEGImages/2008_000000.jpg", 10, 10)
    with pytest.raises(DataError, match="split 'all' is empty: no two objects of a class"):
        open_data("pascal-berkeley", tmp_path, "all")
