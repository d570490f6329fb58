"""7-Scenes: depth and poses by hand, the colour camera beside the depth camera, splits, problems."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray

from support.photometric_rule import assert_photometric_rule
from support.remedy_rule import refused
from ucn.data.catalogue import open_data
from ucn.data.sets.posed.seven_scenes import SevenScenes, open_folder, read_depth, read_pose
from ucn.errors import DataError, UcnError

INTRINSICS = "10 0 3\n0 10 2\n0 0 1\n"
HW = (6, 8)


def write_depth(path: Path, millimetres: NDArray[np.uint16]) -> None:
    PIL.Image.fromarray(millimetres).save(path)


def write_frame(
    folder: Path, number: int, x: float = 0.0, hw: tuple[int, int] = HW, millimetres: int = 2000
) -> None:
    """A frame before a wall, from a camera that stands at (x, 0, 0)."""
    folder.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (hw[1], hw[0]), (9, 9, 9)).save(folder / f"frame-{number:06d}.color.png")
    write_depth(folder / f"frame-{number:06d}.depth.png", np.full(hw, millimetres, np.uint16))
    pose = np.eye(4)
    pose[0, 3] = x
    np.savetxt(folder / f"frame-{number:06d}.pose.txt", pose)


def write_pair(folder: Path) -> None:
    write_frame(folder, 0)
    write_frame(folder, 4, x=0.4)
    (folder / "camera-intrinsics.txt").write_text(INTRINSICS)


def open_registered(folder: Path) -> SevenScenes:
    return open_folder(folder, "train", is_registered=True)


def test_registered_depth_by_hand(tmp_path: Path) -> None:
    write_pair(tmp_path)
    data = open_registered(tmp_path)
    assert (len(data), data.problems) == (1, [])
    sample = data.read(0)
    assert sample.name == "000000-000004"
    # f = 10, 0.4 m to the right, wall at 2 m: 2 pixels to the left. The first two columns leave the image.
    y, x = np.mgrid[0:6, 2:8]
    points0 = torch.from_numpy(np.stack([x.ravel(), y.ravel()], axis=1)).float()
    assert sample.points0.equal(points0)
    torch.testing.assert_close(sample.points1, points0 - torch.tensor([2.0, 0.0]))
    R, t = data.relative_pose(0)
    assert R.tolist() == np.eye(3).tolist()
    np.testing.assert_allclose(t, [-0.4, 0, 0])
    assert data.intrinsics(0)[1].tolist() == [[10, 0, 3], [0, 10, 2], [0, 0, 1]]


def test_a_colour_camera_beside_the_depth_camera_by_hand(tmp_path: Path) -> None:
    write_pair(tmp_path)
    data = open_folder(tmp_path, "train", colour_focal=5.0, colour_offset=0.4)
    sample = data.read(0)
    # Pixel x of the depth camera is (x - 3) / 10 * 2 to the right at depth 2; the colour camera, 0.4 more,
    # sees it at 5 / 2 of that + 3 = (x - 3) / 2 + 4; a row y at (y - 2) / 2 + 2. From frame to frame it moves
    # by 5 * 0.4 / 2 = 1. Depth pixels 0 and 1 leave the depth map of frame 4.
    y, x = np.mgrid[0:6, 2:8]
    points0 = torch.from_numpy(np.stack([(x.ravel() - 3) / 2 + 4, (y.ravel() - 2) / 2 + 2], axis=1)).float()
    torch.testing.assert_close(sample.points0, points0)
    torch.testing.assert_close(sample.points1, points0 - torch.tensor([1.0, 0.0]))
    assert data.intrinsics(0)[0].tolist() == [[5, 0, 3], [0, 5, 2], [0, 0, 1]]
    np.testing.assert_allclose(data.relative_pose(0)[1], [-0.4, 0, 0])


def test_the_defaults_are_those_of_the_data_set(tmp_path: Path) -> None:
    for number in (0, 1):
        write_frame(tmp_path, number, hw=(480, 640))
    data = open_folder(tmp_path, "train")
    assert data.intrinsics(0)[0].tolist() == [[525, 0, 320], [0, 525, 240], [0, 0, 1]]
    # Pixel (320, 240) of the depth camera, 2 cm to the left of the colour camera's axis at 2 m.
    distance = (data.read(0).points0 - torch.tensor([320 - 525 * 0.02 / 2, 240.0])).norm(dim=1)
    assert distance.min() < 1e-4


def test_a_turned_colour_camera_by_a_slow_reference(tmp_path: Path) -> None:
    write_pair(tmp_path)
    c, s = np.cos(0.1), np.sin(0.1)
    pose = np.array([[c, 0, s, 0.4], [0, 1, 0, 0], [-s, 0, c, 0.1], [0, 0, 0, 1]])
    np.savetxt(tmp_path / "frame-000004.pose.txt", pose)
    R, t = open_folder(tmp_path, "train", colour_offset=-0.02).relative_pose(0)
    world = np.array([0.3, -0.2, 2.0])  # which is also camera 0's
    depth1 = np.linalg.inv(pose)[:3] @ np.array([*world, 1.0])
    aside = np.array([-0.02, 0, 0])
    np.testing.assert_allclose(R @ (world + aside) + t, depth1 + aside)


def test_what_the_other_view_does_not_see_is_excluded(tmp_path: Path) -> None:
    write_pair(tmp_path)
    depth = np.full(HW, 2000, np.uint16)
    depth[:, 0], depth[0, 2], depth[5, 2] = 1000, 0, 65535
    write_depth(tmp_path / "frame-000004.depth.png", depth)
    found = open_registered(tmp_path).read(0).points1.round().int().tolist()
    expected = [[x, y] for y in range(6) for x in range(1, 6) if (x, y) not in ((2, 0), (2, 5))]
    assert found == expected


def test_pixels_beside_edges_and_unknown_ones_are_excluded(tmp_path: Path) -> None:
    write_pair(tmp_path)
    depth = np.full(HW, 2000, np.uint16)
    depth[2, 7] = 0
    write_depth(tmp_path / "frame-000000.depth.png", depth)
    found = open_registered(tmp_path).read(0).points0.int().tolist()
    assert found == [[x, y] for y in range(6) for x in range(2, 8) if not (x >= 6 and 1 <= y <= 3)]


def write_scene(scene: Path) -> None:
    for sequence in (1, 2, 3):
        for number in range(3):
            write_frame(scene / f"seq-{sequence:02d}", number, x=0.1 * number)
    (scene / "TrainSplit.txt").write_text("sequence1\nsequence3\n")
    (scene / "TestSplit.txt").write_text("sequence2\n")


def test_splits(tmp_path: Path) -> None:
    root = tmp_path / "sieben Räume"
    write_scene(root / "chess")
    write_scene(root / "fire")
    names = [open_folder(root, split).pair_name(0) for split in ("train", "test", "all")]
    assert names == ["chess/seq-01/000000-000001", "chess/seq-02/000000-000001", "chess/seq-01/000000-000001"]
    assert [len(open_folder(root, split)) for split in ("train", "test", "all")] == [12, 6, 18]
    one = open_folder(root / "fire", "test")
    assert [one.pair_name(i) for i in range(3)] == [
        f"seq-02/{a}" for a in ("000000-000001", "000000-000002", "000001-000002")
    ]
    assert len(open_folder(root / "fire" / "seq-01", "train")) == 3
    with pytest.raises(DataError, match="split 'test' is empty: the frames are directly in"):
        open_folder(root / "fire" / "seq-01", "test")
    (root / "fire" / "TrainSplit.txt").write_text("sequence1\nsequence9\nsevenths\n")
    problems = [str(problem) for problem in open_folder(root, "train").problems]
    path = root / "fire" / "TrainSplit.txt"
    assert problems[0].startswith(f"{path}:2: there is no folder seq-09")
    assert problems[1] == f"{path}:3: expected 'sequence' and a number, got 'sevenths'; correct it"
    (root / "fire" / "TestSplit.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read split file \(or choose split all\) .*TestSplit.txt"):
        open_folder(root, "test")


def test_gaps(tmp_path: Path) -> None:
    for number in (0, 4, 8, 500):
        write_frame(tmp_path, number)
    assert len(open_folder(tmp_path, "all")) == 3
    assert len(open_folder(tmp_path, "all", max_gap=4)) == 2
    assert len(open_folder(tmp_path, "all", min_gap=5)) == 1
    with pytest.raises(
        DataError, match=r"split 'all' is empty: 4 frames in .* none of them 1 to 2 frame numbers"
    ):
        open_folder(tmp_path, "all", max_gap=2)
    with pytest.raises(DataError, match="seven-scenes needs 1 <= min_gap <= max_gap"):
        open_folder(tmp_path, "all", min_gap=7, max_gap=6)
    with pytest.raises(DataError, match="option colour_focal of seven-scenes must be above 0, got -1"):
        open_folder(tmp_path, "all", colour_focal=-1.0)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(empty, "all")


def test_missing_files_are_problems(tmp_path: Path) -> None:
    for number in range(4):
        write_frame(tmp_path, number)
    (tmp_path / "frame-000001.depth.png").unlink()
    (tmp_path / "frame-000002.pose.txt").unlink()
    data = open_folder(tmp_path, "train")
    assert [data.pair_name(i) for i in range(len(data))] == ["000000-000003"]
    assert sorted(problem.path.name for problem in data.problems) == [
        "frame-000001.depth.png",
        "frame-000002.pose.txt",
    ]
    assert all("no such file, though the frame has others" in problem.message for problem in data.problems)


def test_every_file_is_listed_and_checked(tmp_path: Path) -> None:
    write_pair(tmp_path)
    data = open_folder(tmp_path, "train")
    files = {file.path.name: file for file in data.files()}
    assert sorted(file.kind for file in files.values()) == sorted(
        ["intrinsics", *["image", "depth", "pose"] * 2]
    )
    for file in files.values():
        file.check()
    assert {file.path for file in files.values()} == set(data.pair_files(0))
    for name, content, message in (
        ("frame-000000.color.png", b"no image", "cannot read image"),
        ("frame-000000.depth.png", b"no image", "expected a 16-bit PNG, got one that cannot be read"),
        ("frame-000000.pose.txt", b"1 0 0 0\n", "expected 4 lines of 4 numbers, got 1"),
        ("camera-intrinsics.txt", b"1 2\n", "expected 3 lines of 3 numbers, got 1"),
        (
            "camera-intrinsics.txt",
            b"-5 0 3\n0 5 3\n0 0 1\n",
            "expected fx s cx, 0 fy cy, 0 0 1 with positive",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        with refused(message, UcnError):
            files[name].check()
        with pytest.raises(UcnError, match=message):
            data.read(0)
        write_pair(tmp_path)


def test_wrong_depths(tmp_path: Path) -> None:
    image, path = tmp_path / "image.png", tmp_path / "depth.png"
    write_depth(path, np.full((4, 5), 1500, np.uint16))
    assert read_depth(path, image, None).tolist() == [[1.5] * 5] * 4
    with pytest.raises(
        DataError, match=r"depth.png: expected 8 × 6 \(width × height\) as image .* got 5 × 4"
    ):
        read_depth(path, image, HW)
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(DataError, match=r"depth.png: expected a 16-bit PNG, got one that cannot be read"):
        read_depth(path, image, None)
    PIL.Image.new("L", (5, 4)).save(path)
    with pytest.raises(DataError, match=r"depth.png: expected a 16-bit grey PNG, got 5 × 4 pixels of mode L"):
        read_depth(path, image, None)
    with pytest.raises(DataError, match=r"cannot read depth .*absent.png: no such file"):
        read_depth(tmp_path / "absent.png", image, None)


def test_wrong_poses(tmp_path: Path) -> None:
    path = tmp_path / "pose.txt"
    for text, message in (
        ("2 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n", "pose.txt: expected a rotation matrix"),
        ("1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 2\n", "pose.txt: expected 0 0 0 1 as the last row"),
        ("-1.#IND 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n", "pose.txt:1: expected a number, got '-1.#IND'"),
    ):
        path.write_text(text)
        with refused(message):
            read_pose(path)


@pytest.mark.parametrize("name", ["000016-000032", "000504-000520", "000524-000536"])
def test_the_sample(data_folder: Path, name: str) -> None:
    data = open_data("seven-scenes", data_folder / "rgbd_7scenes")
    assert data.problems == []
    assert len(data) == 2 * (20 * 5 - 15)
    (index,) = (i for i in range(len(data)) if data.pair_name(i) == name)
    sample = data.read(index)
    assert len(sample) > 150_000
    assert_photometric_rule(sample)


def test_the_sample_is_not_registered(data_folder: Path) -> None:
    folder = data_folder / "rgbd_7scenes"
    data, registered = open_folder(folder, "train"), open_registered(folder)
    (index,) = (i for i in range(len(data)) if data.pair_name(i) == "000504-000520")
    with pytest.raises(AssertionError, match=r"expected at most 0\.35 of it"):
        assert_photometric_rule(registered.read(index), 0.35)
    assert_photometric_rule(data.read(index), 0.35)


def test_the_images_of_the_sample_are_whole(data_folder: Path) -> None:
    files = open_folder(data_folder / "rgbd_7scenes", "train").files()
    assert len(files) == 1 + 40 * 3
    for file in files[::7]:
        file.check()
