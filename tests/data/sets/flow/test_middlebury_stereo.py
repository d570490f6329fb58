import math
import shutil
import struct
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import ArrayLike

from support.dense_cases import correspondences, file_named, problem_texts, write_flat_image, write_grey
from support.photometric_rule import assert_centred, assert_photometric_rule
from ucn.data.catalogue import open_data
from ucn.data.example import example_pair
from ucn.data.sets.flow.middlebury_stereo import open_folder, read_pfm
from ucn.errors import DataError

# A bar (disparity 3, left pixels 4 and 5) before a wall (disparity 1): left pixels 2 and 3 are behind the bar
# in the right view, and pixel 0 leaves it.
LEFT = np.array([[1, 1, 1, 1, 3, 3, 1, 1]])
RIGHT = np.array([[1, 3, 3, 1, 1, 1, 1, 1]])
SEEN = {(1, 0): (0, 0), (4, 0): (1, 0), (5, 0): (2, 0), (6, 0): (5, 0), (7, 0): (6, 0)}
HIDDEN = {(2, 0): (1, 0), (3, 0): (2, 0)}


def write_pfm(path: Path, values: ArrayLike, endian: str = "<", end: bytes = b"\n") -> Path:
    array = np.asarray(values, f"{endian}f4")
    scale = b"-1" if endian == "<" else b"1.0"
    sizes = b"%d %d" % (array.shape[1], array.shape[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"Pf" + end + sizes + end + scale + end + array[::-1].tobytes())
    return path


def add_pictures(
    scene: Path, scale: int, left: np.ndarray = LEFT, right: np.ndarray | None = RIGHT, suffix: str = ".png"
) -> None:
    """A scene in the layout of 2001 and 2003."""
    height, width = left.shape
    for name in ("im2", "im6"):
        write_flat_image(scene / f"{name}{'.ppm' if suffix == '.pgm' else suffix}", width, height)
    write_grey(scene / f"disp2{suffix}", scale * left)
    if right is not None:
        write_grey(scene / f"disp6{suffix}", scale * right)


@pytest.mark.parametrize("suffix", [".png", ".pgm"])
@pytest.mark.parametrize(("scene", "scale"), [("venus", 8), ("Barn1", 8), ("tsukuba", 16)])
def test_scenes_of_2001_by_hand(tmp_path: Path, scene: str, scale: int, suffix: str) -> None:
    add_pictures(tmp_path / scene, scale, suffix=suffix)
    data = open_folder(tmp_path, "all")
    sample = data.read(0)
    assert correspondences(sample) == SEEN
    assert (sample.name, data.problems, data.notes) == (scene, [], [])
    assert sample.points0.dtype == sample.points1.dtype == torch.float32
    assert [path.stem for path in data.pair_files(0)] == ["im2", "im6", "disp6", "disp2"]
    assert correspondences(open_folder(tmp_path, "all", keep_occluded=True).read(0)) == SEEN | HIDDEN
    for file in data.files():
        file.check()


def test_without_the_right_disparity_the_left_tells_occlusions(tmp_path: Path) -> None:
    add_pictures(tmp_path / "tsukuba", 16, right=None)
    data = open_folder(tmp_path, "all")
    assert correspondences(data.read(0)) == SEEN
    assert data.notes == ["no right disparity in tsukuba: occlusions are found with the left one alone"]
    assert open_folder(tmp_path, "all", keep_occluded=True).notes == []


def test_zero_is_unknown_and_fractions_are_kept(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "venus" / "im2.png", 4, 1)
    write_flat_image(tmp_path / "venus" / "im6.png", 4, 1)
    write_grey(tmp_path / "venus" / "disp2.png", [[0, 4, 5, 8]])
    found = correspondences(open_folder(tmp_path, "all", keep_occluded=True).read(0))
    assert found == {(1, 0): (0.5, 0), (2, 0): (2 - 5 / 8, 0), (3, 0): (2, 0)}


@pytest.mark.parametrize(("height", "scale"), [(375, 4), (750, 2), (1500, 1)])
def test_scale_of_2003_follows_from_the_height(tmp_path: Path, height: int, scale: int) -> None:
    add_pictures(tmp_path / "cones", scale, LEFT.repeat(height, 0), RIGHT.repeat(height, 0))
    sample = open_folder(tmp_path, "all").read(0)
    assert correspondences(sample) == {
        (x0, y): (x1, y) for (x0, _), (x1, _) in SEEN.items() for y in range(height)
    }


@pytest.mark.parametrize(("height", "scale"), [(370, 3), (555, 2), (1110, 1)])
def test_scale_of_2005_and_2006_follows_from_the_height(tmp_path: Path, height: int, scale: int) -> None:
    for name in ("view1", "view5"):
        write_flat_image(tmp_path / "Aloe" / f"{name}.png", 8, height)
    write_grey(tmp_path / "Aloe" / "disp1.png", scale * LEFT.repeat(height, 0))
    write_grey(tmp_path / "Aloe" / "disp5.png", scale * RIGHT.repeat(height, 0))
    sample = open_folder(tmp_path, "all").read(0)
    assert len(sample) == len(SEEN) * height
    assert correspondences(sample)[4, 7] == (1, 7)


def test_unknown_scale_is_a_problem_and_the_option_its_cure(tmp_path: Path) -> None:
    add_pictures(tmp_path / "mine", 5)
    data = open_folder(tmp_path, "all")
    assert (len(data), len(data.problems)) == (0, 1)
    assert "mine/disp2.png: its scale is unknown" in str(data.problems[0])
    assert "give option disparity_scale" in str(data.problems[0])
    cured = open_data("middlebury-stereo", tmp_path, options={"disparity_scale": "5"})
    assert correspondences(cured.read(0)) == SEEN
    with pytest.raises(DataError, match=r"disparity_scale must be 0 \(automatic\) or positive, got -1"):
        open_folder(tmp_path, "all", disparity_scale=-1.0)


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("names", [("disp0", "disp1"), ("disp0GT", "disp1GT")])
def test_scenes_of_2014_by_hand(tmp_path: Path, endian: str, names: tuple[str, str]) -> None:
    scene = tmp_path / "Piano"
    left, right = np.full((2, 8), math.inf), np.full((2, 8), math.inf)
    left[:1], right[:1] = LEFT, RIGHT
    left[1, 5], right[1, 3] = 2.5, 2.25  # lands between right pixels 2 and 3, of which one is unknown
    left[1, 7], right[1, 5] = 2, 2.5
    for name in ("im0", "im1"):
        write_flat_image(scene / f"{name}.png", 8, 2)
    write_pfm(scene / f"{names[0]}.pfm", left, endian)
    write_pfm(scene / f"{names[1]}.pfm", right, endian)
    data = open_folder(tmp_path, "all", disparity_scale=8.0)  # which is not for PFM
    assert correspondences(data.read(0)) == SEEN | {(7, 1): (5, 1)}
    everything = SEEN | HIDDEN | {(5, 1): (2.5, 1), (7, 1): (5, 1)}
    assert correspondences(open_folder(tmp_path, "all", keep_occluded=True).read(0)) == everything
    for file in data.files():
        file.check()


def test_pfm_rows_come_from_the_bottom(tmp_path: Path) -> None:
    path = tmp_path / "a.pfm"
    path.write_bytes(b"Pf\n2 2\n-0.003922\n" + struct.pack("<4f", 1, 2, math.nan, 4))
    top, bottom = read_pfm(path).tolist()
    assert math.isnan(top[0])
    assert (top[1], bottom) == (4, [1, 2])


def test_pfm_may_begin_with_a_white_byte_and_have_long_line_ends(tmp_path: Path) -> None:
    values = np.frombuffer(b"\n\n\n\x40" * 2, "<f4")[None]
    assert read_pfm(write_pfm(tmp_path / "a.pfm", values)).tolist() == values.tolist()
    assert read_pfm(write_pfm(tmp_path / "b.pfm", values, end=b"\r\n")).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "expected a portable float map of one channel"),
        (b"PF\n8 1\n-1\n" + bytes(96), r"begins 'Pf', width, height, scale; got b'PF"),
        (b"Pf\n8 -1\n-1\n" + bytes(32), "expected a portable float map"),
        (b"Pf\n8 1\nscale\n" + bytes(32), "expected a portable float map"),
        (b"Pf\n8 1", "expected a portable float map"),
        (b"Pf\n8 1\n-1\n" + bytes(31), r"expected 32 bytes for 8 × 1 values after the header, got 31"),
        (b"Pf\n8 1\n-1\n" + bytes(33), "got 33"),
        (b"Pf\n99999999 99999999\n-1\n" + bytes(32), "expected 39,999,999,200,000,004 bytes"),
        (b"Pf\n4 2\n-1\n" + bytes(32), r"expected 8 × 1 .* as image .*im0\.png, got 4 × 2"),
    ],
)
def test_bad_pfm_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    for name in ("im0", "im1"):
        write_flat_image(tmp_path / "Piano" / f"{name}.png", 8, 1)
    (tmp_path / "Piano" / "disp0.pfm").write_bytes(content)
    data = open_folder(tmp_path, "all")
    for action in (file_named(data, "disp0.pfm").check, lambda: data.read(0)):
        with pytest.raises(DataError, match=match) as caught:
            action()
        assert "Piano/disp0.pfm" in str(caught.value)


def test_bad_images_are_refused(tmp_path: Path) -> None:
    add_pictures(tmp_path / "venus", 8)
    disparity = tmp_path / "venus" / "disp6.png"
    data = open_folder(tmp_path, "all")
    check = file_named(data, "disp6.png").check
    write_grey(disparity, RIGHT.repeat(2, 0))
    with pytest.raises(DataError, match=r"disp6\.png: expected 8 × 1 .* as image .*im6\.png, got 8 × 2"):
        check()
    PIL.Image.new("RGB", (8, 1), (8, 9, 8)).save(disparity)
    with pytest.raises(DataError, match="expected disparity as 8-bit grey, got colours or more bits"):
        data.read(0)
    PIL.Image.fromarray(np.full((1, 8), 1000, np.uint16)).save(disparity)
    with pytest.raises(DataError, match="expected disparity as 8-bit grey"):
        check()


def test_missing_images_are_problems_and_other_folders_ignored(tmp_path: Path) -> None:
    for scene in ("bull", "poster", "venus"):
        add_pictures(tmp_path / scene, 8)
    (tmp_path / "bull" / "im6.png").unlink()
    (tmp_path / "poster" / "im2.png").unlink()
    write_flat_image(tmp_path / "photos" / "1.png", 4, 4)
    data = open_folder(tmp_path, "all")
    assert [data.pair_name(index) for index in range(len(data))] == ["venus"]
    assert problem_texts(data) == [
        "bull/im6.png: no such file, though disp2.png is there; unpack the scene again",
        "poster/im2.png: no such file, though disp2.png is there; unpack the scene again",
    ]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(tmp_path, "all")
    (tmp_path / "venus" / "disp2.png").mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"split 'all' is empty: no SCENE/disp2\.png, disp1\.png or disp0\.pfm"
    ):
        open_folder(tmp_path, "all")


def test_bundled_pair_in_the_layout_of_2014(tmp_path: Path) -> None:
    example, scene = example_pair(), tmp_path / "Motorcycle"
    known = np.isfinite(example.disparity)
    write_pfm(scene / "disp0.pfm", np.where(known, example.disparity, np.inf))
    shutil.copy(example.image0_path, scene / "im0.png")
    shutil.copy(example.image1_path, scene / "im1.png")
    sample = open_folder(tmp_path, "all").read(0)
    assert 0.7 * known.sum() < len(sample) < known.sum()
    assert_photometric_rule(sample, 0.4)
    kept = open_folder(tmp_path, "all", keep_occluded=True).read(0)
    assert len(kept) > len(sample)


def test_real_scenes(data_folder: Path) -> None:
    data = open_data("middlebury-stereo", data_folder / "middlebury_stereo")
    assert (len(data), data.problems) == (6, [])
    for file in data.files():
        file.check()
    samples = [data.read(index) for index in range(len(data))]
    for sample in samples:
        assert len(sample) > 0.75 * sample.image0[0].numel()
        assert_photometric_rule(sample, 0.3)
    assert_centred(samples)


def test_the_left_disparity_alone_finds_nearly_the_same_occluded_pixels(
    data_folder: Path, tmp_path: Path
) -> None:
    source = data_folder / "middlebury_stereo" / "sawtooth"
    for name in ("im2.png", "im6.png", "disp2.png"):
        (tmp_path / "sawtooth").mkdir(exist_ok=True)
        shutil.copy(source / name, tmp_path / "sawtooth" / name)
    both = open_data("middlebury-stereo", data_folder / "middlebury_stereo")
    (index,) = [i for i in range(len(both)) if both.pair_name(i) == "sawtooth"]
    by_both = set(map(tuple, both.read(index).points0.tolist()))
    by_left = set(map(tuple, open_folder(tmp_path, "all").read(0).points0.tolist()))
    assert len(by_both & by_left) / len(by_both | by_left) > 0.98
