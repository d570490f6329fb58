from pathlib import Path

import numpy as np
import pytest
import torch

from support.dense_cases import correspondences, file_named, problem_texts, write_flat_image, write_png
from support.photometric_rule import assert_photometric_rule
from support.remedy_rule import refused
from ucn.data.catalogue import open_data
from ucn.data.sets.flow.kitti_flow import KittiFlow, open_folder
from ucn.errors import DataError, ImageReadError

ZERO = 2**15


def code(vectors: dict[tuple[int, int], tuple[float, float]], width: int = 4, height: int = 3) -> np.ndarray:
    """KITTI's 16-bit RGB (H, W, 3): known at the given (x, y)."""
    values = np.zeros((height, width, 3), np.uint16)
    for (x, y), (u, v) in vectors.items():
        values[y, x] = (ZERO + round(64 * u), ZERO + round(64 * v), 1)
    return values


def add_scene(
    root: Path,
    number: int,
    vectors: dict[tuple[int, int], tuple[float, float]],
    images: str = "image_2",
    flows: str = "flow_noc",
) -> None:
    for frame in (10, 11):
        write_flat_image(root / "training" / images / f"{number:06}_{frame}.png", 4, 3)
    write_png(root / "training" / flows / f"{number:06}_10.png", code(vectors))


def test_every_known_pixel_by_hand(tmp_path: Path) -> None:
    # Known: (0, 0) by (1.5, 2), (3, 1) by (-2, -0.25); (2, 2) leaves by the right, (1, 0) by the top.
    add_scene(tmp_path, 0, {(0, 0): (1.5, 2), (3, 1): (-2, -0.25), (2, 2): (1.75, 0), (1, 0): (0, -1)})
    data = open_folder(tmp_path, "training")
    sample = data.read(0)
    assert correspondences(sample) == {(0, 0): (1.5, 2), (3, 1): (1, 0.75)}
    assert sample.points0.dtype == sample.points1.dtype == torch.float32
    assert sample.image0.shape == (3, 3, 4)
    assert (sample.name, data.problems, len(data)) == ("000000", [], 1)
    assert [path.name for path in data.pair_files(0)] == ["000000_10.png", "000000_11.png", "000000_10.png"]
    assert sorted(file.kind for file in data.files()) == ["flow", "image", "image"]


def test_a_pixel_on_the_border_of_image_1_is_kept(tmp_path: Path) -> None:
    add_scene(tmp_path, 0, {(3, 0): (0.5, -0.5), (3, 2): (0.515625, 0)})
    assert correspondences(open_folder(tmp_path, "training").read(0)) == {(3, 0): (3.5, -0.5)}


def test_no_known_pixel_is_a_normal_pair(tmp_path: Path) -> None:
    add_scene(tmp_path, 0, {})
    sample = open_folder(tmp_path, "training").read(0)
    assert sample.points0.shape == sample.points1.shape == (0, 2)


def test_the_third_channel_marks_known_pixels(tmp_path: Path) -> None:
    add_scene(tmp_path, 0, {})
    values = np.full((3, 4, 3), ZERO, np.uint16)  # vectors of 0, which would all stay on the image
    values[..., 2] = 0
    values[1, 2, 2] = 1
    write_png(tmp_path / "training" / "flow_noc" / "000000_10.png", values)
    assert correspondences(open_folder(tmp_path, "training").read(0)) == {(2, 1): (2, 1)}


def test_ground_truth_option(tmp_path: Path) -> None:
    add_scene(tmp_path, 0, {(0, 0): (1, 0)}, flows="flow_occ")
    assert correspondences(open_folder(tmp_path, "training").read(0)) == {(0, 0): (1, 0)}
    with pytest.raises(DataError, match=r"no folder .*flow_noc: option ground_truth=noc needs it"):
        open_folder(tmp_path, "training", ground_truth="noc")
    add_scene(tmp_path, 0, {(1, 1): (1, 0)}, flows="flow_noc")
    assert correspondences(open_folder(tmp_path, "training").read(0)) == {(1, 1): (2, 1)}
    assert correspondences(open_folder(tmp_path, "training", ground_truth="occ").read(0)) == {(0, 0): (1, 0)}
    with pytest.raises(
        DataError, match="option ground_truth of kitti-flow must be one of auto, noc, occ, got 'all'"
    ):
        open_folder(tmp_path, "training", ground_truth="all")


@pytest.mark.parametrize(("images", "first_val"), [("image_2", 160), ("colored_0", 155), ("image_0", 155)])
def test_splits_are_by_number(tmp_path: Path, images: str, first_val: int) -> None:
    for number in (0, first_val - 1, first_val, 193):
        add_scene(tmp_path, number, {(0, 0): (0, 0)}, images)
    names: dict[str, list[str]] = {split: [] for split in ("training", "train", "val")}
    for split, found in names.items():
        data = open_folder(tmp_path, split)
        found += [data.pair_name(index) for index in range(len(data))]
    assert names["train"] == ["000000", f"{first_val - 1:06}"]
    assert names["val"] == [f"{first_val:06}", "000193"]
    assert names["training"] == names["train"] + names["val"]


def test_frames_of_the_multi_view_extension_are_ignored(tmp_path: Path) -> None:
    add_scene(tmp_path, 0, {(0, 0): (0, 0)})
    write_flat_image(tmp_path / "training" / "image_2" / "000000_09.png", 4, 3)
    write_flat_image(tmp_path / "training" / "image_2" / "notes_10.png", 4, 3)
    data = open_folder(tmp_path, "training")
    assert (len(data), data.problems) == (1, [])


def test_missing_partners_are_problems(tmp_path: Path) -> None:
    for number in range(4):
        add_scene(tmp_path, number, {(0, 0): (0, 0)})
    training = tmp_path / "training"
    (training / "image_2" / "000000_11.png").unlink()
    (training / "image_2" / "000001_10.png").unlink()
    (training / "flow_noc" / "000002_10.png").unlink()
    data = open_folder(tmp_path, "training")
    assert [data.pair_name(index) for index in range(len(data))] == ["000003"]
    again = "has others; unpack it again"
    assert problem_texts(data) == [
        f"training/image_2/000000_11.png: no such file, though scene 000000 {again}",
        f"training/image_2/000001_10.png: no such file, though scene 000001 {again}",
        f"training/flow_noc/000002_10.png: no such file, though scene 000002 {again}",
    ]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(tmp_path, "training")
    (tmp_path / "testing" / "image_2").mkdir(parents=True)
    with pytest.raises(
        DataError, match="holds only KITTI's testing images, whose ground truth is not public"
    ):
        open_folder(tmp_path, "training")
    (tmp_path / "training" / "flow_occ").mkdir(parents=True)
    with pytest.raises(DataError, match="has no images: expected the folder image_2 or colored_0 or image_0"):
        open_folder(tmp_path, "training")
    (tmp_path / "training" / "image_2").mkdir()
    with pytest.raises(DataError, match="split 'training' is empty"):
        open_folder(tmp_path, "training")
    add_scene(tmp_path, 0, {}, flows="flow_occ")
    with pytest.raises(DataError, match="split 'val' is empty"):
        open_folder(tmp_path, "val")
    with pytest.raises(DataError, match="kitti-flow has no split 'testing'"):
        open_data("kitti-flow", tmp_path, "testing")


def open_with_flow(root: Path, content: bytes) -> KittiFlow:
    add_scene(root, 0, {(0, 0): (0, 0)})
    (root / "training" / "flow_noc" / "000000_10.png").write_bytes(content)
    return open_folder(root, "training")


def assert_bad_flow(root: Path, content: bytes, match: str) -> None:
    """Both reading the pair and checking the file name what is wrong."""
    data = open_with_flow(root, content)
    check = file_named(data, "flow_noc/000000_10.png").check
    for action in (check, lambda: data.read(0)):
        with refused(match) as caught:
            action()
        assert "flow_noc/000000_10.png" in str(caught.value)


def test_truncated_flow_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    whole = write_png(tmp_path / "whole.png", generator.integers(0, 2**16, (3, 4, 3))).read_bytes()
    for length in (*range(33, len(whole), 7), len(whole) - 1):
        assert_bad_flow(tmp_path, whole[:length], "truncated after")
    for length in (0, 7, 20, 32):
        assert_bad_flow(tmp_path, whole[:length], "not PNG or has no header")


def test_damaged_flow_is_refused(tmp_path: Path) -> None:
    whole = bytearray(write_png(tmp_path / "whole.png", code({(0, 0): (1, 1)})).read_bytes())
    whole[45] ^= 255
    assert_bad_flow(tmp_path, bytes(whole), "damaged at byte 33")
    whole = bytearray(write_png(tmp_path / "whole.png", code({})).read_bytes())
    assert_bad_flow(tmp_path, bytes(whole).replace(b"IDAT", b"IDAX"), "damaged at byte 33")


def test_other_images_are_refused(tmp_path: Path) -> None:
    grey8 = write_png(tmp_path / "a.png", np.zeros((3, 4, 1)), bits=8, colour_type=0)
    assert_bad_flow(tmp_path, grey8.read_bytes(), "expected a 16-bit RGB PNG, got 8 bits and colour type 0")
    rgb8 = write_flat_image(tmp_path / "b.png", 4, 3)
    assert_bad_flow(tmp_path, rgb8.read_bytes(), "got 8 bits and colour type 2")
    assert_bad_flow(tmp_path, write_flat_image(tmp_path / "c.jpg", 4, 3).read_bytes(), "not PNG")
    huge = bytearray(write_png(tmp_path / "d.png", code({})).read_bytes())
    huge[16:24] = b"\0\xff\xff\xff" * 2
    assert_bad_flow(tmp_path, bytes(huge), "pixels, expected at most 160,000,000")


def test_flow_of_another_size_is_refused(tmp_path: Path) -> None:
    other = write_png(tmp_path / "other.png", code({}, width=5)).read_bytes()
    assert_bad_flow(tmp_path, other, r"expected 4 × 3 \(width × height\) as image .*, got 5 × 3")


def test_a_bad_image_is_the_image_s_problem(tmp_path: Path) -> None:
    add_scene(tmp_path, 0, {(0, 0): (0, 0)})
    image = tmp_path / "training" / "image_2" / "000000_10.png"
    image.write_bytes(image.read_bytes()[:40])
    data = open_folder(tmp_path, "training")
    with pytest.raises(ImageReadError, match=r"image_2/000000_10\.png"):
        file_named(data, "image_2/000000_10.png").check()
    file_named(data, "flow_noc/000000_10.png").check()
    with pytest.raises(IndexError, match="there is no pair 1: the set has 1"):
        data.read(1)


def test_folder_with_spaces_and_other_letters(tmp_path: Path) -> None:
    root = tmp_path / "mes données é" / "data_scene_flow"
    add_scene(root, 0, {(0, 0): (2, 1)})
    data = open_data("kitti-flow", root.parent)
    assert correspondences(data.read(0)) == {(0, 0): (2, 1)}
    for file in data.files():
        file.check()


def test_real_pair(data_folder: Path) -> None:
    data = open_data("kitti-flow", data_folder / "kitti_flow_2015")
    assert (len(data), data.problems) == (1, [])
    for file in data.files():
        file.check()
    sample = data.read(0)
    assert len(sample) > 70_000
    assert_photometric_rule(sample)
