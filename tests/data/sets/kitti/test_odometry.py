"""KITTI odometry: a textured wall by hand, stereo, invalid poses, splits, problems."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray

from support.photometric_rule import assert_photometric_rule
from support.remedy_rule import assert_remedy, refused
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, skip_bad
from ucn.data.sets.kitti.odometry import KittiOdometry, find_interpolated, open_folder, read_poses
from ucn.data.sets.kitti.stereo_depth import match_stereo
from ucn.data.sets.posed.posed_pairs import Array, rigid
from ucn.errors import DataError, UcnError

HW = (60, 160)
# f = 50; the right camera's fourth number is -f * B = -80, so disparity 8 is 10 m.
CALIBRATION = (
    "P0: 50 0 80 0 0 50 30 0 0 0 1 0\nP1: 50 0 80 -80 0 50 30 0 0 0 1 0\n"
    "P2: 50 0 80 10 0 50 30 0 0 0 1 0\nP3: 50 0 80 -70 0 50 30 0 0 0 1 0\nTr: 1 0 0 0 0 1 0 0 0 0 1 0\n"
)
WALL: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (60, 400), dtype=np.uint8)


def write_view(path: Path, left: int) -> None:
    """What a camera sees of the wall when its first column is at `left`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(WALL[:, left : left + HW[1]]).save(path)


def write_poses(root: Path, steps: Array | list[float], sequence: str = "05") -> None:
    """Poses that move to the right, a line each."""
    (root / "poses").mkdir(parents=True, exist_ok=True)
    lines = [f"1 0 0 {x:g} 0 1 0 0 0 0 1 0" for x in steps]
    (root / "poses" / f"{sequence}.txt").write_text("\n".join(lines) + "\n")


def write_sequence(
    root: Path, frames: int = 2, sequence: str = "05", cameras: tuple[int, int] = (0, 1)
) -> Path:
    """A drive sideways along a wall at 10 m, 1 m a frame: images move by 5 pixels, left and right by 8."""
    folder = root / "sequences" / sequence
    for frame in range(frames):
        write_view(folder / f"image_{cameras[0]}" / f"{frame:06d}.png", 50 + 5 * frame)
        write_view(folder / f"image_{cameras[1]}" / f"{frame:06d}.png", 58 + 5 * frame)
    (folder / "calib.txt").write_text(CALIBRATION)
    write_poses(root, [float(frame) for frame in range(frames)], sequence)
    return folder


def assert_moves_by(data: KittiOdometry, index: int, pixels: float, least: int = 4000) -> None:
    sample = data.read(index)
    assert len(sample) > least
    assert sample.points0.equal(sample.points0.round())
    error = (sample.points1 - sample.points0 + torch.tensor([pixels, 0.0])).abs()
    assert error.max() < 0.3  # stereo is exact to a sixteenth of a pixel, but not at the borders
    assert error.mean() < 0.01


def test_a_wall_by_hand(tmp_path: Path) -> None:
    write_sequence(tmp_path)
    data = open_folder(tmp_path, "train")
    assert (len(data), data.problems, data.notes) == (1, [], [])
    assert data.pair_name(0) == "05/000000-000001"
    assert_moves_by(data, 0, 5)
    R, t = data.relative_pose(0)
    assert R.tolist() == np.eye(3).tolist()
    assert t.tolist() == [-1, 0, 0]
    assert data.intrinsics(0)[0].tolist() == [[50, 0, 80], [0, 50, 30], [0, 0, 1]]


def test_stereo_by_hand() -> None:
    left, right = (
        torch.from_numpy(WALL[:, start : start + 160] / 255).float().expand(3, -1, -1) for start in (50, 58)
    )
    disparity = match_stereo(left, right)
    is_known = np.isfinite(disparity)
    assert is_known[5:-5, 15:-5].mean() > 0.9
    assert np.abs(disparity[is_known] - 8).max() < 0.3
    assert np.abs(disparity[is_known] - 8).mean() < 0.01
    # The right view shows nothing of the first 8 columns; exchanged, the disparities would be negative.
    assert not is_known[:, :8].any()
    swapped = np.isfinite(match_stereo(right, left))
    assert swapped.mean() < 0.05


def test_without_a_right_image_in_the_second_frame(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path)
    (folder / "image_1" / "000001.png").unlink()
    data = open_folder(tmp_path, "train")
    assert len(data) == 1
    assert_moves_by(data, 0, 5)
    assert folder / "image_1" / "000000.png" in data.pair_files(0)
    assert folder / "image_1" / "000001.png" not in data.pair_files(0)


def test_what_the_second_view_measures_elsewhere_is_excluded(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path)
    # In frame 1 the right half has come to 5 m: a disparity of 16.
    right = WALL[:, 63:223].copy()
    right[:, 80 - 16 :] = WALL[:, 55 + 80 : 55 + 160 + 16]
    PIL.Image.fromarray(right).save(folder / "image_1" / "000001.png")
    sample = open_folder(tmp_path, "train").read(0)
    is_left = sample.points1[:, 0] < 75
    assert is_left.sum() > 1500
    assert ((sample.points1[:, 0] > 85) & (sample.points1[:, 0] < 150)).sum() < 50


def test_colour_cameras(tmp_path: Path) -> None:
    write_sequence(tmp_path, cameras=(2, 3))
    data = open_folder(tmp_path, "train")
    assert data.image_paths(0)[0].parent.name == "image_2"
    assert_moves_by(data, 0, 5)
    # A turn about camera 0 moves camera 2, 0.2 m from it, to the side.
    turn = "0 0 1 0 0 1 0 0 -1 0 0 0"
    (tmp_path / "poses" / "05.txt").write_text(f"1 0 0 0 0 1 0 0 0 0 1 0\n{turn}\n")
    R, t = open_folder(tmp_path, "train").relative_pose(0)
    point, aside = np.array([1.0, 2.0, 5.0]), np.array([0.2, 0, 0])  # x is 0.2 more in camera 2's coordinates
    expected = np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]).T @ point + aside
    np.testing.assert_allclose(R @ (point + aside) + t, expected, atol=1e-12)
    data = open_folder(tmp_path, "train", camera="grey")
    assert str(data.problems[0]).startswith(
        f"{tmp_path / 'sequences' / '05' / 'image_0'}: missing, so that sequence 05"
    )


def test_gaps_frames_and_splits(tmp_path: Path) -> None:
    root = tmp_path / "Straße 5" / "dataset"
    write_sequence(root, frames=8)
    data = open_folder(root.parent, "train")
    assert len(data) == 8 * 5 - 15
    assert len(open_folder(root, "train", min_gap=2, max_gap=3)) == 6 + 5
    some = open_folder(root, "train", frames="2-4")
    assert [some.pair_name(i)[3:] for i in range(len(some))] == [
        "000002-000003",
        "000002-000004",
        "000003-000004",
    ]
    assert len(open_folder(root, "all")) == len(data)
    with pytest.raises(DataError, match="split 'test' is empty: no sequence of it"):
        open_folder(root, "test")
    write_sequence(root, frames=2, sequence="09")
    assert open_folder(root, "test").pair_name(0) == "09/000000-000001"
    for frames in ("9-2", "some", "1-2-3"):
        with pytest.raises(
            DataError, match="option frames of kitti-odometry must be a range such as 600-639"
        ):
            open_folder(root, "train", frames=frames)
    with pytest.raises(DataError, match="option camera of kitti-odometry must be one of auto, grey, colour"):
        open_folder(root, "train", camera="left")
    with pytest.raises(DataError, match="does not have the expected layout"):
        open_folder(root / "poses", "train")


def test_sequences_without_public_poses_are_noted(tmp_path: Path) -> None:
    write_sequence(tmp_path)
    write_sequence(tmp_path, sequence="11")
    (tmp_path / "poses" / "11.txt").unlink()
    data = open_folder(tmp_path, "all")
    assert (len(data), data.problems) == (1, [])
    assert data.notes == ["sequence 11 excluded: its poses are not public"]


def test_missing_files_are_problems(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path)
    for path in (folder / "calib.txt", tmp_path / "poses" / "05.txt"):
        content = path.read_bytes()
        path.unlink()
        data = open_folder(tmp_path, "train")
        assert len(data) == 0
        assert [str(f) for f in data.problems] == [
            f"{path}: missing, so that sequence 05 is excluded; unpack it beside the others"
        ]
        path.write_bytes(content)


def test_fewer_poses_than_frames(tmp_path: Path) -> None:
    write_sequence(tmp_path, frames=4)
    write_poses(tmp_path, [0.0, 1.0, 2.0])
    data = open_folder(tmp_path, "train")
    assert len(data) == 3
    (problem,) = data.problems
    assert str(problem).startswith(
        f"{tmp_path / 'poses' / '05.txt'}: it has 3 poses, though there are frames up to 000003, which needs"
    )
    # The frames without a pose are left out already: the file is no reason to leave out the others.
    report = check_data(data)
    assert (report.read_count, report.problems) == (3, (problem,))
    assert len(skip_bad(data, report)) == 3


def test_a_right_image_of_another_size_spoils_its_own_pairs(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path, frames=6)
    path = folder / "image_1" / "000004.png"
    PIL.Image.new("L", (100, 60)).save(path)
    data = open_folder(tmp_path, "train")
    report = check_data(data)
    (problem,) = report.problems
    assert problem.path == path
    assert_remedy(problem.message)
    good = skip_bad(data, report)
    assert len(data) == 15
    assert [good.pair_name(i) for i in range(len(good))] == [
        data.pair_name(i) for i in range(len(data)) if "000004" not in data.pair_name(i)
    ]
    with pytest.raises(DataError, match="expected the size of") as caught:
        data.read(3)  # frames 0 and 4
    assert caught.value.path == path


def test_every_file_is_listed_and_checked(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path)
    data = open_folder(tmp_path, "train")
    files = {file.path: file for file in data.files()}
    assert sorted(file.kind for file in files.values()) == ["calibration", *["image"] * 4, "poses"]
    for file in files.values():
        file.check()
    assert set(files) == set(data.pair_files(0))
    for path, text, message in (
        (folder / "calib.txt", "P0: 1 2 3\n", r"calib.txt:1: expected 12 numbers, got 3"),
        (folder / "calib.txt", CALIBRATION.replace("-80", "80"), "expected P1 to the right of P0"),
        (folder / "image_1" / "000000.png", "no image", "cannot read image"),
    ):
        path.write_text(text)
        with refused(message, UcnError):
            files[path].check()
        with pytest.raises(UcnError, match=message):
            open_folder(tmp_path, "train").read(0)
        write_sequence(tmp_path)
    PIL.Image.new("L", (100, 60)).save(folder / "image_1" / "000000.png")
    with pytest.raises(DataError, match=r"000000.png: expected the size of 000000.png of the left camera"):
        open_folder(tmp_path, "train").read(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 0 0 0 1 0 0 0 0 1 0\n1 0 0\n", r"05.txt:2: expected 12 numbers, got 3"),
        ("1 0 0 0 0 1 0 0 0 0 1 x\n", r"05.txt:1: expected a number, got 'x'"),
        (
            "1 0 0 0 0 1 0 0 0 0 1 0\n3 0 0 0 0 1 0 0 0 0 1 0\n",
            r"05.txt:2: expected a rotation and a translation",
        ),
    ],
)
def test_wrong_poses(tmp_path: Path, text: str, message: str) -> None:
    write_sequence(tmp_path)
    path = tmp_path / "poses" / "05.txt"
    path.write_text(text)
    with refused(message):
        read_poses(path)
    data = open_folder(tmp_path, "train")
    assert len(data) == 0
    (problem,) = data.problems
    assert message.split(": ")[1] in problem.message
    assert f".txt:{problem.line}: " in message
    assert check_data(data).problems == (problem,)


def drive(turns: list[float], speed: float) -> Array:
    """Poses (N, 4, 4) of a car that turns by so many degrees from frame to frame."""
    poses = [np.eye(4)]
    for turn in np.radians(turns):
        step = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
        poses.append(poses[-1] @ rigid(step, [0.0, 0.0, speed]))
    return np.array(poses)


def test_interpolated_poses_are_found() -> None:
    measured = np.random.default_rng(0).normal(0, 0.1, 10).tolist()
    # Frames 0 ... 10 measured, 11 ... 14 interpolated between 10 and 15, 15 ... 25 measured.
    turns = [*measured, *[0.4] * 5, *measured]
    assert find_interpolated(drive(turns, 0.7)) == {11, 12, 13, 14}
    assert find_interpolated(drive([*measured, *[0.4] * 3], 0.7)) == set()
    assert find_interpolated(drive([0.0] * 9, 0.0)) == set()
    assert find_interpolated(np.zeros((0, 4, 4))) == set()
    assert find_interpolated(np.eye(4)[None]) == set()


def test_frames_with_interpolated_poses_are_excluded(tmp_path: Path) -> None:
    write_sequence(tmp_path, frames=8)
    (tmp_path / "poses").mkdir(exist_ok=True)
    turns = [0.3, *[0.4] * 5, -0.2]
    lines = [" ".join(f"{value:.12g}" for value in pose[:3].ravel()) for pose in drive(turns, 1.0)]
    (tmp_path / "poses" / "05.txt").write_text("\n".join(lines))
    data = open_folder(tmp_path, "train", max_gap=7)
    assert data.notes == [
        "sequence 05: 4 frames from 2 to 5 excluded, since their poses were interpolated, not measured"
    ]
    assert len(data) == 6  # of frames 0, 1, 6 and 7
    assert len(open_folder(tmp_path, "train", max_gap=7, keep_interpolated=True)) == 28
    with pytest.raises(DataError, match=r"is empty: .*; sequence 05: 4 frames from 2 to 5 excluded"):
        open_folder(tmp_path, "train", frames="2-5")


@pytest.mark.parametrize("name", ["05/000604-000607", "05/000628-000632", "05/001520-001525"])
def test_the_sample(data_folder: Path, name: str) -> None:
    data = open_data("kitti-odometry", data_folder / "kitti_odometry")
    assert data.problems == []
    assert "13 frames from 1500 to 1512" in data.notes[0]
    (index,) = (i for i in range(len(data)) if data.pair_name(i) == name)
    sample = data.read(index)
    assert len(sample) > 80_000
    assert_photometric_rule(sample)


def test_the_sample_is_divided_by_frames(data_folder: Path) -> None:
    folder = data_folder / "kitti_odometry"
    counts = [len(open_folder(folder, "train", frames=frames)) for frames in ("", "600-639", "1500-1539")]
    assert counts[0] == counts[1] + counts[2]
    assert min(counts) > 25


def test_all_frames_have_a_motion_though_not_all_have_correspondences(tmp_path: Path) -> None:
    folder = write_sequence(tmp_path, frames=3)
    (folder / "image_1" / "000001.png").unlink()
    assert [open_folder(tmp_path, "train").pair_name(i) for i in range(2)] == [
        "05/000000-000001",
        "05/000000-000002",
    ]
    data = open_folder(tmp_path, "train", all_frames=True)
    assert len(data) == 3
    assert data.pair_name(2) == "05/000001-000002"
    assert data.relative_pose(2)[1].tolist() == [-1, 0, 0]
    assert len(data.read(2)) == 0
    assert_moves_by(data, 0, 5)
