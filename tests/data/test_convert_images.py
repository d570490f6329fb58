"""Conversion of annotated images: the same pairs come back, as rows or as COCO keypoints."""

import json
from pathlib import Path

import pytest
import torch

from support.bird_cases import write_birds
from support.point_cases import write_text
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data
from ucn.data.convert_images import ImageLayout, choose_layout, convert_images
from ucn.data.pairs import Selection
from ucn.data.sets.own.images import OwnImages
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.errors import DataError, OutputError


@pytest.fixture
def birds(tmp_path: Path) -> KeypointData:
    """Two species, six images each, with three parts."""
    data = open_data("cub", write_birds(tmp_path / "source"), "train")
    assert isinstance(data, KeypointData)
    return data


def open_own(root: Path) -> OwnImages:
    data = open_data("own", root)
    assert isinstance(data, OwnImages)
    return data


def assert_same_pairs(found: KeypointData, expected: KeypointData) -> None:
    assert len(found) == len(expected)
    for index in (0, len(found) // 2, len(found) - 1):
        sample, other = found.read(index), expected.read(index)
        for name in ("image0", "image1", "points0", "points1", "parts", "mirror_parts"):
            assert torch.equal(getattr(sample, name), getattr(other, name)), name
        assert sample.pck_length == other.pck_length
        assert found.pair_class(index) == expected.pair_class(index)
    assert check_data(found).is_good


@pytest.mark.parametrize("layout", ["images", "coco"])
def test_the_same_pairs_come_back(birds: KeypointData, tmp_path: Path, layout: ImageLayout) -> None:
    calls: list[tuple[int, int]] = []
    out = tmp_path / "out"
    summary = convert_images(birds, out, layout=layout, progress=lambda *call: calls.append(call))
    assert (summary.pair_count, summary.image_count, summary.copied_count, summary.point_count) == (
        30,
        12,
        12,
        36,
    )
    assert (calls[0], calls[-1], len(calls)) == ((1, 12), (12, 12), 12)
    found = open_own(out)
    assert found.part_names == ("back", "left eye", "right eye")
    assert_same_pairs(found, birds)
    names = {path.name for path in out.iterdir()}
    assert names == {
        "images",
        "parts.csv",
        "source.json",
        f"keypoints.{'csv' if layout == 'images' else 'json'}",
    }


def test_rows(birds: KeypointData, tmp_path: Path) -> None:
    convert_images(birds, tmp_path / "out")
    header, first, *_ = (tmp_path / "out" / "keypoints.csv").read_text().splitlines()
    assert header == "image,class,part,x,y,pck_length"
    assert first == "images/001.Kind/0.png,1,back,9,10,80.0"


def test_own_data_in_another_format(birds: KeypointData, tmp_path: Path) -> None:
    convert_images(birds, tmp_path / "first", layout="coco")
    first = open_own(tmp_path / "first")
    convert_images(first, tmp_path / "second")
    assert_same_pairs(open_own(tmp_path / "second"), birds)


def test_splits_boxes_and_cut_out_objects_are_kept(birds: KeypointData, tmp_path: Path) -> None:
    convert_images(birds, tmp_path / "first")
    names = [f"images/00{kind}.Kind/{image}.png,{image}" for kind in "12" for image in "01"]
    rows = [
        "image,object,part,x,y,box,split",
        *(f"{name},back,30,20,20 10 24 18,test" for name in names),
        "images/001.Kind/0.png,second,back,10,8,0 0 15 12,test",
    ]
    write_text(tmp_path / "first" / "keypoints.csv", "\n".join(rows))
    (tmp_path / "first" / "parts.csv").unlink()
    cut = open_data("own", tmp_path / "first", options={"crop": True})
    assert isinstance(cut, OwnImages) and len(cut) == 10
    summary = convert_images(cut, tmp_path / "cut")
    assert (summary.image_count, summary.copied_count) == (5, 0)
    found = open_own(tmp_path / "cut")
    assert found.list_splits() == {"test"}
    assert found.read(0).points0.tolist() == cut.read(0).points0.tolist()
    whole = open_own(tmp_path / "first")
    assert len(whole) == 3
    convert_images(whole, tmp_path / "whole")
    text = (tmp_path / "whole" / "keypoints.csv").read_text()
    assert text.startswith("image,split,part,x,y,box,pck_length\n")
    assert ",20 10 24 18,24.0\n" in text
    assert not (tmp_path / "whole" / "parts.csv").exists()


def test_fewer_images(birds: KeypointData, tmp_path: Path) -> None:
    summary = convert_images(birds, tmp_path / "out", source="cub", split="train", max_images=4)
    assert (summary.pair_count, summary.image_count) == (2, 4)
    record = json.loads((tmp_path / "out" / "source.json").read_text())
    assert (record["set"], record["layout"], record["max_images"]) == ("cub", "images", 4)
    with pytest.raises(OutputError, match="exists already"):
        convert_images(birds, tmp_path / "out")
    convert_images(birds, tmp_path / "out", overwrite=True)
    assert len(open_own(tmp_path / "out")) == 30


def test_nothing_half_written(birds: KeypointData, tmp_path: Path) -> None:
    birds.examples[-1].image.write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot read image"):
        convert_images(birds, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    birds._use_all_pairs([])
    with pytest.raises(DataError, match="has no images to convert"):
        convert_images(birds, tmp_path / "out")


def test_layouts(birds: KeypointData) -> None:
    assert choose_layout(birds, None) == "images"
    assert [choose_layout(birds, layout) for layout in ("pairs", "coco")] == ["pairs", "coco"]
    assert choose_layout(Selection(birds, [0]), None) == "pairs"
    with pytest.raises(DataError, match="only images with named points"):
        choose_layout(Selection(birds, [0]), "coco")


def test_real_data(data_folder: Path, tmp_path: Path) -> None:
    data = open_data("cub", data_folder / "cub", "test")
    assert isinstance(data, KeypointData)
    convert_images(data, tmp_path / "out", max_images=40)
    found = open_own(tmp_path / "out")
    assert check_data(found).is_good
    by_name = {example.image.name: example for example in data.examples}
    for example in found.examples[::10]:
        view, other = found.read_view(example), data.read_view(by_name[example.image.name])
        assert torch.equal(view.image, other.image)
        assert view.keypoints.is_visible.sum() == other.keypoints.is_visible.sum()
