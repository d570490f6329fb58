"""Your own images with named points: any two of a class are a pair, and errors name file and line."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from support.point_cases import coco_values, labelme_values, write_json, write_text
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, skip_bad
from ucn.data.sets.own.images import OwnImages
from ucn.errors import DataError

HEADER = "image,part,x,y,class\n"
BIRDS = (
    "a.png,left eye,1,2,bird\na.png,beak,5,6,bird\n"
    "sub/b.png,beak,7,8,bird\nsub/b.png,left eye,9,10,bird\nsub/b.png,right eye,11,10,bird\n"
    "c.png,beak,2,3,bird\n"
)
CATS = "d.png,beak,1,1,cat\ne.png,beak,2,2,cat\n"


def write_images(root: Path) -> Path:
    """Five images of different sizes."""
    for number, name in enumerate(("a.png", "sub/b.png", "c.png", "d.png", "e.png")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (16 + number, 20 + number, 3), dtype=np.uint8)
        PIL.Image.fromarray(pixels).save(path)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three birds and two cats, in keypoints.csv."""
    root = write_images(tmp_path / "eigene Daten ü")
    write_text(root / "keypoints.csv", HEADER + BIRDS + CATS)
    return root


def open_own(root: Path, split: str = "all", **options: Any) -> OwnImages:
    data = open_data("own", root, split, options)
    assert isinstance(data, OwnImages)
    return data


def only_problem(data: OwnImages) -> str:
    assert len(data.problems) == 1, [str(problem) for problem in data.problems]
    return str(data.problems[0])


class TestPairs:
    def test_any_two_images_of_a_class_are_a_pair(self, folder: Path) -> None:
        data = open_own(folder)
        assert [data.pair_name(index) for index in range(len(data))] == [
            "a.png--sub/b.png",
            "a.png--c.png",
            "sub/b.png--c.png",
            "d.png--e.png",
        ]
        assert [data.pair_class(index) for index in range(4)] == ["bird"] * 3 + ["cat"]
        assert data.part_names == ("left eye", "beak", "right eye")
        assert not data.problems
        assert not data.notes
        assert len(open_own(folder, pairing="any")) == 10

    def test_correspondences_are_the_parts_of_both(self, folder: Path) -> None:
        sample = open_own(folder).read(0)
        assert sample.points0.tolist() == [[1, 2], [5, 6]]
        assert sample.points1.tolist() == [[9, 10], [7, 8]]
        assert sample.image0.shape == (3, 16, 20)
        assert sample.image1.shape == (3, 17, 21)
        assert sample.points0.dtype == torch.float32
        assert sample.pck_length == 21
        assert (sample.parts, sample.mirror_parts) == (None, None)
        assert open_own(folder).read(1).points1.tolist() == [[2, 3]]

    def test_the_file_itself_may_be_given(self, folder: Path) -> None:
        (folder / "keypoints.csv").rename(folder / "mine.csv")
        assert len(open_own(folder / "mine.csv")) == 4
        assert len(open_own(folder, file="mine.csv")) == 4

    def test_images_may_lie_in_a_folder_of_their_own(self, folder: Path) -> None:
        images = folder / "images"
        images.mkdir()
        for name in ("a.png", "c.png", "d.png", "e.png", "sub"):
            (folder / name).rename(images / name)
        assert len(open_own(folder)) == 4
        images.rename(folder / "photos")
        assert len(open_own(folder, image_folder="photos")) == 4

    def test_missing_points(self, folder: Path) -> None:
        rows = (
            "a.png,left eye,,,1\na.png,beak,5,6,0\na.png,tail,3,4,1\nc.png,tail,nan,nan,1\nc.png,beak,2,3,1\n"
        )
        write_text(folder / "keypoints.csv", "image,part,x,y,visible\n" + rows)
        data = open_own(folder)
        assert len(data) == 1
        assert not data.problems
        sample = data.read(0)
        assert sample.points0.shape == sample.points1.shape == (0, 2)
        assert check_data(data).is_good

    def test_several_objects_of_an_image(self, folder: Path) -> None:
        rows = "a.png,1,beak,5,6\na.png,2,beak,15,12\nc.png,1,beak,2,3\nd.png,1,beak,4,4\n"
        write_text(folder / "keypoints.csv", "image,object,part,x,y\n" + rows)
        data = open_own(folder)
        assert [data.pair_name(index) for index in range(len(data))] == ["c.png--d.png"]
        assert data.notes == [
            "1 images show several objects of one class, which are left out; option crop=true cuts each out "
            "of its image"
        ]
        cut = open_own(folder, crop=True)
        assert len(cut) == 6
        assert cut.pair_name(0) == "a.png--a.png#2"
        sample = cut.read(0)
        assert sample.image1.shape == (3, 3, 3)  # a margin of one pixel around the one point
        assert sample.points1.tolist() == [[1, 1]]

    def test_boxes(self, folder: Path) -> None:
        rows = "a.png,beak,5,6,4 3 10 8\nc.png,beak,2,3,0 0 6 12\n"
        write_text(folder / "keypoints.csv", "image,part,x,y,box\n" + rows)
        assert open_own(folder).read(0).pck_length == 12
        assert open_own(folder, length="image").read(0).pck_length == 22
        sample = open_own(folder, crop=True).read(0)
        assert sample.image0.shape == (3, 9, 11)
        assert sample.points0.tolist() == [[1, 3]]
        assert sample.pck_length == 12
        write_text(folder / "keypoints.csv", "image,part,x,y,box\n" + rows.replace("4 3 10 8", ""))
        assert open_own(folder).read(0).pck_length == 22

    def test_length_of_the_file_and_of_the_points(self, folder: Path) -> None:
        rows = "a.png,beak,5,6,40\nc.png,beak,2,3,50.5\nc.png,tail,9,3,50.5\n"
        write_text(folder / "keypoints.csv", "image,part,x,y,pck_length\n" + rows)
        assert open_own(folder).read(0).pck_length == 50.5
        assert open_own(folder, length="points").read(0).pck_length == 7
        with pytest.raises(DataError, match="length must be one of auto, image, points, got 'eyes'"):
            open_own(folder, length="eyes")

    def test_splits(self, folder: Path) -> None:
        rows = "a.png,beak,5,6,train\nc.png,beak,2,3,train\nd.png,beak,2,3,test\ne.png,beak,2,3,test\n"
        write_text(folder / "keypoints.csv", "image,part,x,y,split\n" + rows)
        data = open_own(folder)
        assert len(data) == 6
        assert [data.pair_split(index) for index in range(6)] == ["train", "", "", "", "", "test"]
        assert data.list_splits() == {"train", "test"}
        assert [open_own(folder, split).pair_name(0) for split in ("train", "test")] == [
            "a.png--c.png",
            "d.png--e.png",
        ]
        with pytest.raises(DataError, match=r"split 'val' is empty: .* has no annotated image"):
            open_own(folder, "val")

    def test_held_out_images(self, folder: Path) -> None:
        training, validation = open_own(folder, pairing="any").split_off(0.4)
        images = [{path for i in range(len(d)) for path in d.image_paths(i)} for d in (training, validation)]
        assert all(images)
        assert not images[0] & images[1]


class TestMirror:
    def test_parts_csv_names_the_mirror_parts(self, folder: Path) -> None:
        write_text(folder / "parts.csv", "name,mirror\nbeak,\nright eye,left eye\nleft eye,right eye\n")
        data = open_own(folder)
        assert data.part_names == ("beak", "right eye", "left eye")
        sample = data.read(0)
        assert sample.parts is not None and sample.parts.tolist() == [0, 2]
        assert sample.mirror_parts is not None and sample.mirror_parts.tolist() == [0, 2, 1]
        assert sample.points0.tolist() == [[5, 6], [1, 2]]

    def test_names_with_left_and_right(self, folder: Path) -> None:
        sample = open_own(folder, mirror_names=True).read(0)
        assert sample.mirror_parts is not None and sample.mirror_parts.tolist() == [2, 1, 0]

    def test_a_part_that_parts_csv_lacks(self, folder: Path) -> None:
        write_text(folder / "parts.csv", "name,mirror\nbeak,\nright ey,\nleft eye,\n")
        data = open_own(folder)
        assert "keypoints.csv:6: parts.csv has no part 'right eye'; did you mean 'right ey'?" in (
            only_problem(data)
        )
        assert len(data) == 4


class TestOtherFiles:
    def test_coco(self, tmp_path: Path) -> None:
        root = write_images(tmp_path)
        write_json(root / "keypoints.json", coco_values())
        data = open_own(root)
        assert data.part_names == ("left eye", "right eye", "beak")
        assert (len(data), data.pair_class(0), data.problems) == (1, "bird", [])
        sample = data.read(0)
        assert (sample.points0.tolist(), sample.points1.tolist()) == ([[1, 2]], [[7, 8]])
        assert check_data(data).is_good
        assert len(open_own(root, occluded=False).keypoints(data.examples[0]).is_visible.nonzero()[0]) == 1

    def test_coco_with_a_fault_in_one_annotation(self, tmp_path: Path) -> None:
        root, values = write_images(tmp_path), coco_values()
        values["annotations"].append({"image_id": 7, "category_id": 3, "keypoints": [1, 2, 3] * 3})
        values["images"].append({"id": 8, "file_name": "../a.png"})
        bad = {"id": 13, "image_id": 8, "category_id": 3, "keypoints": [1, 2, 2] * 3}
        values["annotations"].append(bad)
        write_json(root / "annotations" / "birds.json", values)
        data = open_own(root, file="annotations/birds.json")
        assert len(data) == 1
        assert [problem.message.partition(";")[0] for problem in data.problems] == [
            "annotations[2]: keypoint 'left eye': v must be 0, 1 or 2, got 3",
            f"annotations[3]: keypoint 'left eye': expected a path inside {root}, got '../a.png'",
        ]

    def test_labelme(self, tmp_path: Path) -> None:
        root = write_images(tmp_path)
        for name in ("a", "c", "sub/b"):
            values = labelme_values() | {"imagePath": f"{name.split('/')[-1]}.png"}
            values["shapes"][2]["group_id"] = None
            write_json(root / f"{name}.json", values)
        data = open_own(root)
        assert len(data) == 3
        assert not data.problems
        assert data.read(0).points1.tolist() == [[1, 2], [3, 4]]
        assert data.pair_files(0)[2:] == (root / "a.json", root / "c.json")
        assert check_data(data).is_good
        write_json(root / "c.json", {"shapes": 3, "imagePath": "c.png"})
        assert "c.json: expected shapes to be a list" in only_problem(open_own(root))
        assert len(open_own(root)) == 1

    def test_pts(self, tmp_path: Path) -> None:
        root = write_images(tmp_path)
        for name in ("a", "c"):
            write_text(root / f"{name}.pts", "version: 1\nn_points: 2\n{\n1 2\n3.5 4\n}\n")
        data = open_own(root)
        assert data.part_names == ("1", "2")
        assert data.read(0).points0.tolist() == [[0, 1], [2.5, 3]]
        write_text(root / "parts.csv", "name,mirror\neye,\nnose,\n")
        assert open_own(root).part_names == ("eye", "nose")
        write_text(root / "d.pts", "1 2\n")
        write_text(root / "f.pts", "1 2\n3 4\n")
        problems = [str(problem) for problem in open_own(root).problems]
        assert "d.pts: expected 2 landmarks as in parts.csv, got 1" in problems[0]
        assert "f.pts:1: image: no file 'f." in problems[1]

    def test_a_coco_file_beside_its_images(self, tmp_path: Path) -> None:
        root = write_images(tmp_path)
        write_json(root / "birds.json", coco_values())
        data = open_own(root)
        assert "birds.json: it has the points of 2 images; name it by option file" in only_problem(data)
        assert len(open_own(root / "birds.json")) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("a.png,tail,x,2,bird", "keypoints.csv:10: expected a number, got 'x'"),
            ("a.png,tail,1,2", "keypoints.csv:10: expected 5 columns separated by commas, got 4"),
            (
                "a.png,beak,1,2,bird",
                "keypoints.csv:10: part 'beak' of this object is there twice",
            ),
            ("a.png,,1,2,bird", "keypoints.csv:10: the part has no name"),
            ("A.png,beak,1,2,bird", "keypoints.csv:10: image: no file 'A.png'"),
            ("../a.png,beak,1,2,bird", "keypoints.csv:10: expected a path inside"),
            ("/etc/passwd,beak,1,2,bird", "keypoints.csv:10: expected a path inside"),
            (",beak,1,2,bird", "keypoints.csv:10: expected a path inside"),
        ],
    )
    def test_a_faulty_row_is_left_out(self, folder: Path, row: str, message: str) -> None:
        write_text(folder / "keypoints.csv", f"{HEADER}{BIRDS}{CATS}{row}\n")
        data = open_own(folder)
        assert message in only_problem(data)
        assert len(data) == 4
        assert len(check_data(data).problems) == 1

    @pytest.mark.parametrize(
        ("column", "cell", "message"),
        [
            ("split", "dev", "keypoints.csv:2: split must be train, val, test or empty, got 'dev'"),
            ("box", "1 2 3", "keypoints.csv:2: box must be x y width height, got '1 2 3'"),
            ("box", "1 2 -3 4", "keypoints.csv:2: box must be x y width height"),
            ("pck_length", "0", "keypoints.csv:2: pck_length must be a number of pixels above 0"),
        ],
    )
    def test_faulty_columns(self, folder: Path, column: str, cell: str, message: str) -> None:
        text = f"image,part,x,y,{column}\na.png,beak,1,2,{cell}\nc.png,beak,1,2,\nd.png,beak,1,2,\n"
        write_text(folder / "keypoints.csv", text)
        data = open_own(folder)
        assert message in only_problem(data)
        assert len(data) == 1

    def test_a_point_outside_its_image(self, folder: Path) -> None:
        write_text(folder / "keypoints.csv", HEADER + BIRDS + "d.png,beak,1,100,cat\ne.png,beak,2,2,cat\n")
        report = check_data(open_own(folder))
        (problem,) = report.problems
        assert "keypoints.csv:8: part 1 at (1, 100) lies" in problem.message
        assert len(skip_bad(open_own(folder), report)) == 3

    def test_a_missing_image_is_reported_once(self, folder: Path) -> None:
        (folder / "a.png").unlink()
        data = open_own(folder)
        assert "keypoints.csv:2: image: no file 'a.png'" in only_problem(data)
        assert len(data) == 2

    def test_a_damaged_image(self, folder: Path) -> None:
        (folder / "a.png").write_bytes(b"no image")
        (problem,) = check_data(open_own(folder)).problems
        assert problem.path == folder / "a.png"

    def test_columns_that_are_missing(self, folder: Path) -> None:
        write_text(folder / "keypoints.csv", "file,part,x,y\na.png,beak,1,2\n")
        with pytest.raises(DataError, match=r"expected a column image, got file, part, x, y"):
            open_own(folder)
        write_text(folder / "keypoints.csv", "image,x,y\na.png,1,2\n")
        with pytest.raises(DataError, match="expected a column part"):
            open_own(folder)
        write_text(folder / "keypoints.csv", "image,part\na.png,beak\n")
        with pytest.raises(DataError, match=r"keypoints\.csv:1: expected two numbers x and y"):
            open_own(folder)

    @pytest.mark.parametrize("text", ["", "image,part,x,y\n"])
    def test_no_points(self, folder: Path, text: str) -> None:
        write_text(folder / "keypoints.csv", text)
        with pytest.raises(DataError, match="has no annotated image"):
            open_own(folder)

    def test_no_two_of_a_class(self, folder: Path) -> None:
        write_text(folder / "keypoints.csv", HEADER + "a.png,beak,1,2,bird\nc.png,beak,1,2,cat\n")
        with pytest.raises(DataError, match=r"no two of the 2 annotated images .* are of one class; use"):
            open_own(folder)

    def test_one_list_only(self, folder: Path) -> None:
        write_text(folder / "pairs.csv", "image0,image1\n")
        with pytest.raises(DataError, match=r"has both pairs\.csv and keypoints\.csv; keep one"):
            open_own(folder)
        (folder / "keypoints.csv").unlink()
        with pytest.raises(DataError, match=r"option crop is for points per image, but .*pairs\.csv lists"):
            open_data("own", folder, options={"crop": True})

    def test_a_split_without_a_column(self, folder: Path) -> None:
        with pytest.raises(DataError, match=r"keypoints\.csv does not assign images to split 'train'; add a"):
            open_own(folder, "train")

    def test_many_problems_are_counted(self, folder: Path) -> None:
        write_text(folder / "keypoints.csv", HEADER + BIRDS + "a.png,beak,1\n" * 70)
        problems = open_own(folder).problems
        assert len(problems) == 51
        assert problems[-1].message.startswith("20 more problems of this kind")
