import math
import time
from pathlib import Path

import pytest

from support.remedy_rule import assert_remedy
from support.semantic_files import write_flat_image, write_text
from ucn.data.catalogue import guess_data, open_data
from ucn.data.checking import check_data
from ucn.data.descriptions import CUB
from ucn.data.sets.semantic.cub import open_folder
from ucn.errors import DataError

PARTS = ("back", "left eye", "right eye")
LOCATIONS = (
    "7 1 10.5 20.25 1",
    "7 2 30.0 8.0 1",
    "7 3 0.0 0.0 0",
    "9 1 12.0 3.0 1",
    "9 2 5.0 6.0 1",
    "9 3 7.0 6.5 1",
    "11 1 1.0 2.0 1",
    "11 2 0.0 0.0 0",
    "11 3 3.0 4.0 1",
    "12 1 1.0 1.0 1",
    "12 2 2.0 2.0 1",
    "12 3 3.0 3.0 1",
)


def _write(folder: Path, **replaced: tuple[str, ...]) -> Path:
    """Three training images, two of one class and one of another, and a test image of the first."""
    root = folder / "CUB_200_2011"
    names = ("001.Albatross/a b", "001.Albatross/ä", "002.Auklet/c", "001.Albatross/d")
    for name, (width, height) in zip(names, ((40, 30), (16, 12), (20, 20), (20, 20)), strict=True):
        write_flat_image(root / "images" / f"{name}.png", width, height)
    tables = {
        "images": tuple(f"{i} {name}.png" for i, name in zip((7, 9, 11, 12), names, strict=True)),
        "image_class_labels": ("7 1", "9 1", "11 2", "12 1"),
        "train_test_split": ("7 1", "9 1", "11 1", "12 0"),
        "classes": ("1 001.Albatross", "2 002.Auklet"),
        "bounding_boxes": ("7 9.0 7.0 4.0 10.0", "9 1.0 1.0 9.0 9.0", "11 0 0 20 20", "12 0 0 20 20"),
        "parts": tuple(f"{i} {name}" for i, name in enumerate(PARTS, start=1)),
        "part_locs": LOCATIONS,
    }
    for name, lines in (tables | replaced).items():
        place = root / "parts" if name.startswith("part") else root
        write_text(place / f"{name}.txt", *lines)
    return folder


def test_two_rows_make_a_pair(tmp_path: Path) -> None:
    data = open_folder(_write(tmp_path / "with space ö"), "train")
    assert len(data) == 1 and not data.problems and not data.notes
    sample = data.read(0)
    assert sample.points0.tolist() == [[10.5, 20.25], [30, 8]]
    assert sample.points1.tolist() == [[12, 3], [5, 6]]
    assert sample.parts is not None and sample.parts.tolist() == [0, 1]
    assert sample.mirror_parts is not None and sample.mirror_parts.tolist() == [0, 2, 1]
    assert sample.pck_length == pytest.approx(20)  # 16 × 12 pixels, a diagonal of 20
    assert sample.name == "001.Albatross/a b--001.Albatross/ä"


def test_splits(tmp_path: Path) -> None:
    _write(tmp_path)
    assert len(open_folder(tmp_path, "all")) == 3
    assert len(open_folder(tmp_path, "train", pairing="any")) == 3
    with pytest.raises(DataError, match="split 'test' is empty: no two "):
        open_folder(tmp_path, "test")
    with pytest.raises(DataError, match="pairing must be one of class, any"):
        open_folder(tmp_path, "train", pairing="all")
    with pytest.raises(DataError, match="cub has no split 'val'"):
        open_data("cub", tmp_path, "val")


def test_cropping_keeps_the_box_and_all_visible_parts(tmp_path: Path) -> None:
    sample = open_folder(_write(tmp_path), "train", crop=True).read(0)
    # Box 9…12 × 7…16, parts at (10.5, 20.25) and (30, 8): pixels 9…30 × 7…20.
    assert sample.image0.shape == (3, 14, 22)
    assert sample.points0.tolist() == [[1.5, 13.25], [21, 1]]
    # Box 1…9 × 1…9, parts at (12, 3), (5, 6), (7, 6.5): pixels 1…12 × 1…9.
    assert sample.points1.tolist() == [[11, 2], [4, 5]]
    assert sample.pck_length == pytest.approx(math.hypot(12, 9))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("8 1 1.0 1.0 1", "unknown image '8': images.txt does not have it"),
        ("7 4 1.0 1.0 1", "unknown part '4': parts/parts.txt does not have it"),
        ("7 1 1.0 1.0", "expected image, part, x, y and 0 or 1, got '7 1 1.0 1.0'"),
        ("7 1 1.0 1.0 2", "expected image, part, x, y and 0 or 1"),
        ("7", "expected image, part, x, y and 0 or 1"),
        ("7 3 nan 1.0 1", "position: expected a finite number, got 'nan'"),
        ("7 3 x 1.0 1", "position: expected a number, got 'x'"),
        ("7 1 1.0 1.0 1", "image 7 has part 1 on line 1 already"),
    ],
)
def test_wrong_part_lines_are_named_and_excluded(tmp_path: Path, line: str, message: str) -> None:
    locations = (*LOCATIONS[:2], *LOCATIONS[3:], line)
    data = open_folder(_write(tmp_path, part_locs=locations), "train")
    assert len(data) == 1 and len(data.read(0)) == 2
    (problem,) = data.problems
    assert problem.path.name == "part_locs.txt" and problem.line == 12 and message in problem.message
    assert_remedy(problem.message)


def test_a_list_of_another_set_gives_few_problems(tmp_path: Path) -> None:
    strange = tuple(f"{i} 1 1.0 1.0 1" for i in range(1000, 1300))
    data = open_folder(_write(tmp_path, part_locs=(*LOCATIONS, *strange)), "train")
    assert len(data.problems) == 51 and "250 more problems" in data.problems[-1].message


@pytest.mark.parametrize(
    ("table", "lines", "message"),
    [
        ("images", ("7 001.Albatross/a b.png", "9 ../ä.png"), "images.txt:2: expected a path inside"),
        ("images", ("7 001.Albatross/a b.png", "9 no.png"), "images.txt:2: no image file images/no.png"),
        ("images", ("7 001.Albatross/a b.png", "7 001.Albatross/ä.png"), "images.txt:2: id 7 is repeated"),
        ("images", ("7 001.Albatross/a b.png", "word"), "images.txt:2: expected 2 cells, got 'word'"),
        ("image_class_labels", ("7 1", "11 2", "12 1"), "images.txt:2: image 9 has no line in image_class_"),
        (
            "train_test_split",
            ("7 1", "11 1", "12 0"),
            "images.txt:2: image 9 has no line in train_test_split",
        ),
        ("image_class_labels", ("7 1", "9 1", "11 2", "12 1", "5 1"), "labels.txt:5: unknown image '5'"),
        ("part_locs", LOCATIONS[:3] + LOCATIONS[6:], "images.txt:2: image 9 has no line in parts/part_locs"),
    ],
)
def test_wrong_lines_of_other_files(tmp_path: Path, table: str, lines: tuple[str, ...], message: str) -> None:
    problems = open_folder(_write(tmp_path, **{table: lines}), "train").problems
    assert any(message in str(problem) for problem in problems), [str(problem) for problem in problems]
    for problem in problems:
        assert_remedy(problem.message)


def test_wrong_boxes_matter_where_they_are_used(tmp_path: Path) -> None:
    _write(tmp_path, bounding_boxes=("7 9.0 7.0 4.0 10.0", "9 1.0 1.0 9.0 inf"))
    assert not open_folder(tmp_path, "train").problems
    data = open_folder(tmp_path, "train", crop=True)
    assert [str(problem).rsplit("/", 1)[1] for problem in data.problems] == [
        "bounding_boxes.txt:2: expected a finite number, got 'inf'; correct it"
    ]
    assert data.read(0).image1.shape == (3, 5, 8)  # the parts alone: x 5…12, y 3…7


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(tmp_path, "train")
    _write(tmp_path)
    root = tmp_path / "CUB_200_2011"
    (root / "parts/parts.txt").write_text("")
    with pytest.raises(DataError, match=r"parts\.txt names no parts"):
        open_folder(root, "train")
    (root / "images.txt").write_bytes(b"7 \xff\xfe")
    with pytest.raises(DataError, match=r"images\.txt: it is not UTF-8"):
        open_folder(root, "train")
    (root / "images.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read list .*images\.txt: no such file"):
        open_folder(root, "train")


def test_a_list_chooses_images_or_pairs(tmp_path: Path) -> None:
    # Names with blanks cannot stand in a list; ids can.
    _write(tmp_path, train_test_split=("7 1", "9 1", "11 1", "12 1"))
    write_text(tmp_path / "CUB_200_2011/ids.txt", "9 001.Albatross/ä.png", "d")
    data = open_folder(tmp_path, "train", list_file="ids.txt")
    assert [data.pair_name(i) for i in range(len(data))] == ["001.Albatross/ä--001.Albatross/d"]
    pairs = write_text(tmp_path / "pairs.txt", "12 7", "11 001.Albatross/ä", "99 7")
    data = open_folder(tmp_path, "train", list_file=str(pairs))
    assert [data.pair_name(i) for i in range(len(data))] == [
        "001.Albatross/d--001.Albatross/a b",
        "002.Auklet/c--001.Albatross/ä",
    ]
    assert [problem.line for problem in data.problems] == [3]
    write_text(pairs, "12 7")
    _write(tmp_path)
    with pytest.raises(DataError, match="names no image of the split"):
        open_folder(tmp_path, "train", list_file=str(pairs))


def test_points_outside_are_problems_of_their_image_alone(tmp_path: Path) -> None:
    locations = ("7 1 10.5 35.5 1", *LOCATIONS[1:])  # 6 px below an image of 40 × 30
    data = open_folder(_write(tmp_path, part_locs=locations), "all")
    report = check_data(data)
    (problem,) = report.problems
    assert problem.path.name == "a b.png"
    assert (
        "part_locs.txt:1: part 0 at (10.5, 35.5) lies 6.0 px outside its image of 40 × 30" in problem.message
    )
    assert report.read_count == 1  # the pair without that image


def test_real_birds(data_folder: Path) -> None:
    began = time.process_time()
    data = open_data("cub", data_folder / "cub")
    assert time.process_time() - began < 3
    assert guess_data(data_folder / "cub") == ["cub"]
    # 5,994 images, 29 or 30 of each of 200 classes.
    assert len(data) == 86_826 and not data.problems
    sample = data.read(0)
    assert sample.name.startswith("001.Black_footed_Albatross/Black_Footed_Albatross_0009_34--")
    assert sample.points0[0].tolist() == pytest.approx([72.62, 44.02])
    # Parts 7, 8, 9 are the left eye, leg and wing, 11, 12, 13 the right ones; ids here count from 0.
    assert sample.mirror_parts is not None
    assert sample.mirror_parts.tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 9, 6, 7, 8, 13, 14]
    training, validation = data.split_off(0.1)
    assert len(training) + len(validation) < len(data)
    assert len(validation) == 200 * 3  # 3 of 29 or 30 images are held out


@pytest.mark.slow
def test_real_birds_lie_on_their_images(data_folder: Path) -> None:
    report = check_data(open_data("cub", data_folder / "cub", "train"), max_pairs=20)
    assert report.is_good and report.file_counts["image"] == 5994
    (note,) = report.notes  # image 5007, part 4
    assert "part_locs.txt:44629: part 3 at (129.26, 110.2) lies 3.7 px outside" in note
    assert CUB.splits[0] == "train"


def test_parts_have_names(tmp_path: Path) -> None:
    assert tuple(open_folder(_write(tmp_path), "train").part_names_of("1")) == PARTS
