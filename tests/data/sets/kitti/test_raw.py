"""KITTI raw: three scanned points by hand, poses from GPS/IMU packets, splits, moving objects, problems."""

import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from support.photometric_rule import assert_photometric_rule
from support.remedy_rule import assert_remedy, refused
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, skip_bad
from ucn.data.sets.kitti.raw import EXCLUDED_DRIVES, KittiRaw, open_folder
from ucn.data.sets.kitti.rig import pose_of, read_packet
from ucn.errors import DataError, UcnError
from ucn.types import PairSample

DAY = "2011_09_26"
LATITUDE, LONGITUDE = 49.0, 8.4
SIZE = (24, 12)  # width, height
# Scanner x forward, y left, z up; camera x right, y down, z forward. Camera 2 stands 0.5 m left of camera 0:
# its x is larger by 0.5. f = 10, centre (10, 5).
CAMERAS = (
    "calib_time: 09-Jan-2012 13:57:47\nR_rect_00: 1 0 0 0 1 0 0 0 1\n"
    "P_rect_02: 1.0e+01 0 1.0e+01 5.0e+00 0 1.0e+01 5.0e+00 0 0 0 1 0\n"
)
SCANNER = "calib_time: 15-Mar-2012 11:37:16\nR: 0 -1 0 0 0 -1 1 0 0\nT: 0 0 0\ndelta_f: 0 0\ndelta_c: 0 0\n"
UNIT = "calib_time: 25-May-2012 16:47:16\nR: 1 0 0 0 1 0 0 0 1\nT: -0.8 0.3 -0.8\n"
# Seen by camera 2 at depths 10, 5 and 3: (0.5, 0), (-0.5, 0) and (1.5, 0.5) to the right of and below it.
SCAN = [(10.0, 0.0, 0.0), (5.0, 1.0, 0.0), (3.0, -1.0, -0.5)]
POINTS0 = [(10.5, 5.0), (9.0, 5.0), (15.0, 5 + 5 / 3)]
# The car drives 1 m: depths 9, 4 and 2.
POINTS1 = [(10 + 5 / 9, 5.0), (8.75, 5.0), (17.5, 7.5)]


def write_packet(path: Path, east: float = 0.0, yaw: float = 0.0) -> None:
    """A packet of 30 values so many metres east of the origin."""
    longitude = LONGITUDE + math.degrees(east / (math.cos(math.radians(LATITUDE)) * 6378137.0))
    values = [LATITUDE, longitude, 116.4, 0.0, 0.0, yaw, *[0.0] * 17, 0.05, 0.01, 4, 10, 4, 4, 0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" ".join(f"{value:.15g}" for value in values) + "\n")


def write_scan(path: Path, points: list[tuple[float, float, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [[*point, 0.25] for point in points]
    path.write_bytes(np.array(values, "<f4").tobytes())


def write_image(path: Path, size: tuple[int, int] = SIZE, level: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", size, (level, level, level)).save(path)


def shift(points: list[tuple[float, float, float]], by: float) -> list[tuple[float, float, float]]:
    return [(x - by, y, z) for x, y, z in points]


def write_calibration(root: Path) -> None:
    (root / DAY).mkdir(parents=True, exist_ok=True)
    for name, text in (("cam_to_cam", CAMERAS), ("velo_to_cam", SCANNER), ("imu_to_velo", UNIT)):
        (root / DAY / f"calib_{name}.txt").write_text(text)


def write_drive(root: Path, number: str = "0001", frames: int = 2) -> Path:
    """A drive east at 1 m a frame past points that stand still."""
    write_calibration(root)
    drive = root / DAY / f"{DAY}_drive_{number}_sync"
    for frame in range(frames):
        write_image(drive / "image_02" / "data" / f"{frame:010d}.png")
        write_scan(drive / "velodyne_points" / "data" / f"{frame:010d}.bin", shift(SCAN, frame))
        write_packet(drive / "oxts" / "data" / f"{frame:010d}.txt", east=frame)
    return drive


def assert_points(sample: PairSample, rows: list[int]) -> None:
    assert sample.points0.dtype == torch.float32
    expected = torch.tensor([POINTS0, POINTS1], dtype=torch.float32)[:, rows]
    torch.testing.assert_close(torch.stack([sample.points0, sample.points1]), expected, atol=1e-4, rtol=0)


def test_three_points_by_hand(tmp_path: Path) -> None:
    write_drive(tmp_path)
    data = open_folder(tmp_path, "train")
    assert (len(data), data.problems, data.notes) == (1, [], [])
    sample = data.read(0)
    assert sample.name == "2011_09_26_drive_0001_sync/0000000000-0000000001"
    assert sample.image0.shape == (3, 12, 24)
    assert_points(sample, [0, 1, 2])
    R, t = data.relative_pose(0)
    np.testing.assert_allclose(R, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(t, [0, 0, -1], atol=1e-6)
    K0, K1 = data.intrinsics(0)
    assert K0.tolist() == K1.tolist() == [[10, 0, 10], [0, 10, 5], [0, 0, 1]]


def test_hidden_points_are_excluded(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    # Behind the first in both images, at twice its depth.
    write_scan(drive / "velodyne_points" / "data" / "0000000000.bin", [*SCAN, (20.0, -0.5, 0.0)])
    assert_points(open_folder(tmp_path, "train").read(0), [0, 1, 2])


# At depth 20, then 19, behind the third point: in image 0 alone, at (15, 6 2/3), 10 m right of camera 2 and
# 10/3 m below it; or in image 1 alone, at (17.5, 7.5), 14.25 and 4.75 m from it. In the other image they lie
# at (15.26, 6.75) and (17.13, 7.38), where the third point at (17.5, 7.5) and (15, 6 2/3) does not hide them.
@pytest.mark.parametrize(
    ("far", "points"),
    [
        ((20.0, 0.5 - 10, -10 / 3), [(15.0, 5 + 5 / 3), (10 + 100 / 19, 5 + 100 / 57)]),
        ((20.0, 0.5 - 14.25, -4.75), [(17.125, 7.375), (17.5, 7.5)]),
    ],
)
def test_what_is_occluded_in_one_image_is_excluded(
    tmp_path: Path, far: tuple[float, float, float], points: list[tuple[float, float]]
) -> None:
    drive = write_drive(tmp_path)
    scans = [drive / "velodyne_points" / "data" / f"{frame:010d}.bin" for frame in range(2)]
    write_scan(scans[0], [*SCAN, far])
    assert_points(open_folder(tmp_path, "train", moving="keep").read(0), [0, 1, 2])
    # Without the third point it is seen in both.
    write_scan(scans[0], [*SCAN[:2], far])
    write_scan(scans[1], shift(SCAN[:2], 1))
    sample = open_folder(tmp_path, "train", moving="keep").read(0)
    last = torch.stack([sample.points0, sample.points1])[:, 2]
    torch.testing.assert_close(last, torch.tensor(points, dtype=torch.float32), atol=1e-4, rtol=0)


def test_what_the_second_scan_sees_through_is_excluded(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    # Where the second point was, scan 1 measures something at depth 40 instead.
    second = [*shift([SCAN[0], SCAN[2]], 1), (40.0, 0.5 + 0.125 * 40, 0.0)]
    write_scan(drive / "velodyne_points" / "data" / "0000000001.bin", second)
    assert_points(open_folder(tmp_path, "train").read(0), [0, 2])


def test_a_turning_car_by_a_slow_reference(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    write_packet(drive / "oxts" / "data" / "0000000001.txt", east=0.7, yaw=0.05)
    R, t = open_folder(tmp_path, "train", moving="keep").relative_pose(0)
    # The first point: scanner, unit, world, unit, scanner, camera, by hand.
    c, s = math.cos(0.05), math.sin(0.05)
    x, y, z = SCAN[0][0] + 0.8, SCAN[0][1] - 0.3, SCAN[0][2] + 0.8
    east, north = x - 0.7, y
    forward, left = c * east + s * north - 0.8, -s * east + c * north + 0.3
    expected = np.array([-left + 0.5, -(z - 0.8), forward])
    np.testing.assert_allclose(R @ np.array([0.5, 0.0, 10.0]) + t, expected, atol=1e-6)


def test_packets_become_poses_by_hand(tmp_path: Path) -> None:
    packet = [0.0, 0.0, 5.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(pose_of(packet, 0.0)[:3, 3], [0, 0, 5], atol=1e-9)
    # A degree east on the equator; and Mercator's north: R ln tan(45 + 0.5 degrees).
    packet[:2] = [1.0, 1.0]
    east, north = 6378137 * math.pi / 180, 6378137 * math.log(math.tan(math.radians(45.5)))
    np.testing.assert_allclose(pose_of(packet, 0.0)[:3, 3], [east, north, 5])
    np.testing.assert_allclose(pose_of(packet, 60.0)[:3, 3], [east / 2, north / 2, 5])
    # Yaw turns forward to north; pitch its front down; roll its left side up.
    quarter = math.pi / 2
    np.testing.assert_allclose(pose_of([0, 0, 0, 0, 0, quarter], 0.0)[:3, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(pose_of([0, 0, 0, 0, quarter, 0], 0.0)[:3, 0], [0, 0, -1], atol=1e-12)
    np.testing.assert_allclose(pose_of([0, 0, 0, quarter, 0, 0], 0.0)[:3, 1], [0, 0, 1], atol=1e-12)
    path = tmp_path / "packet.txt"
    write_packet(path, east=3)
    assert len(read_packet(path)) == 30


def test_gaps_and_rank(tmp_path: Path) -> None:
    write_drive(tmp_path, frames=5)
    data = open_folder(tmp_path, "train")
    assert len(data) == 10
    names = [data.pair_name(index)[-21:] for index in range(10)]
    assert names[:5] == [f"0000000000-000000000{i}" for i in (1, 2, 3, 4)] + ["0000000001-0000000002"]
    assert len(open_folder(tmp_path, "train", min_gap=2, max_gap=3)) == 5
    with pytest.raises(IndexError, match="there is no pair 10"):
        data.read(10)
    with pytest.raises(DataError, match="kitti-raw needs 1 <= min_gap <= max_gap"):
        open_folder(tmp_path, "train", min_gap=0)
    with pytest.raises(DataError, match=r"split 'train' is empty: no drive of it .* has two frames 9 to 30"):
        open_folder(tmp_path, "train", min_gap=9)


def drives_of(data: KittiRaw) -> list[str]:
    return [data.pair_name(index).split("_drive_")[1][:4] for index in range(len(data))]


def test_splits(tmp_path: Path) -> None:
    for number in ("0001", "0015", "0079", "0084", "0091", "own_tour"):
        write_drive(tmp_path, number)
    (tmp_path / DAY / f"{DAY}_drive_0002_extract").mkdir()
    assert drives_of(open_folder(tmp_path, "train")) == ["0001", "0015", "own_"]
    assert drives_of(open_folder(tmp_path, "test")) == ["0079", "0084", "0091"]
    assert drives_of(open_folder(tmp_path, "paper-train")) == ["0001", "0015", "0079", "0084"]
    assert drives_of(open_folder(tmp_path, "paper-test")) == ["0079", "0084", "0091"]
    assert len(drives_of(open_folder(tmp_path, "all"))) == 6


def test_drives_that_the_paper_excludes(tmp_path: Path) -> None:
    numbers = ["0017", "0018", "0060", "0093"]
    assert [f"{number:04d}" for number in EXCLUDED_DRIVES] == numbers
    write_drive(tmp_path, "0001")
    write_drive(tmp_path, "0052")
    for number in numbers:
        write_drive(tmp_path, number)
    for split, drive in (
        ("train", "0001"),
        ("test", "0052"),
        ("paper-train", "0001"),
        ("paper-test", "0052"),
    ):
        data = open_folder(tmp_path, split)
        assert (drives_of(data), data.notes) == ([drive], [])
    data = open_folder(tmp_path, "all")
    assert drives_of(data) == sorted(["0001", "0052", *numbers])
    assert data.notes == [
        f"{DAY}_drive_{number}_sync: the paper excludes this drive, since {reason}"
        for number, reason in zip(
            numbers, [*["its scenes are mostly static"] * 3, "its GPS/IMU data are too noisy"], strict=True
        )
    ]


def test_drives_of_other_days_are_in_no_split_of_the_paper(tmp_path: Path) -> None:
    write_drive(tmp_path, "0001")
    other = tmp_path / "2011_09_28"
    (tmp_path / DAY).rename(other)
    (other / f"{DAY}_drive_0001_sync").rename(other / "2011_09_28_drive_0001_sync")
    assert len(open_folder(tmp_path, "all")) == 1
    with pytest.raises(DataError, match="split 'train' is empty"):
        open_folder(tmp_path, "train")


def write_labels(drive: Path, kind: str, places: list[tuple[float, float, float]]) -> None:
    """A box of 1 m around places in the scanner's coordinates, from frame 0 on."""
    poses = "".join(
        f"<item><tx>{x}</tx><ty>{y}</ty><tz>{z - 0.5}</tz><rz>0</rz></item>" for x, y, z in places
    )
    (drive / "tracklet_labels.xml").write_text(
        "<!DOCTYPE boost_serialization>\n<boost_serialization><tracklets><count>1</count><item>"
        f"<objectType>{kind}</objectType><h>1</h><w>1</w><l>1</l><first_frame>0</first_frame>"
        f"<poses>{poses}</poses></item></tracklets></boost_serialization>"
    )


def test_labelled_boxes_that_move(tmp_path: Path) -> None:
    drive = write_drive(tmp_path, frames=4)
    # Around the second point: parked (it comes nearer by 1 m a frame), then driving along with the car.
    write_labels(drive, "Car", [(5 - i, 1, 0) for i in range(4)])
    assert_points(open_folder(tmp_path, "train").read(0), [0, 1, 2])
    write_labels(drive, "Car", [(5, 1, 0)] * 4)
    assert_points(open_folder(tmp_path, "train").read(0), [0, 2])
    assert_points(open_folder(tmp_path, "train", moving="keep").read(0), [0, 1, 2])
    # People move their limbs where they stand.
    write_labels(drive, "Pedestrian", [(5 - i, 1, 0) for i in range(4)])
    data = open_folder(tmp_path, "train", moving="labels")
    assert_points(data.read(0), [0, 2])
    assert [file.path.name for file in data.files() if file.kind == "labels"] == ["tracklet_labels.xml"]


def test_the_scan_that_tells_what_moves_belongs_to_the_pair(tmp_path: Path) -> None:
    drive = write_drive(tmp_path, frames=4)
    names = {
        moving: [
            path.name[9]
            for path in open_folder(tmp_path, "train", moving=moving).pair_files(1)
            if path.suffix == ".bin"
        ]
        for moving in ("auto", "keep")
    }
    assert names == {"auto": ["1", "2", "0"], "keep": ["2", "0"]}
    write_labels(drive, "Car", [(5, 1, 0)] * 4)
    assert len(open_folder(tmp_path, "train").pair_files(1)) == len(
        set(open_folder(tmp_path, "train").pair_files(1))
    )
    # A packet that only the box's travel needs does no harm to other pairs.
    (drive / "oxts" / "data" / "0000000003.txt").write_text("broken")
    assert_points(open_folder(tmp_path, "train").read(0), [0, 2])


def test_masks(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    masks = tmp_path / "masks" / drive.name
    for frame, xy in ((0, (9, 5)), (1, (18, 8))):  # on the second point in image 0, on the third in image 1
        write_image(masks / f"{frame:010d}.png", level=0)
        with PIL.Image.open(masks / f"{frame:010d}.png") as image:
            image.putpixel(xy, (0, 0, 1))
            image.save(masks / f"{frame:010d}.png")
    data = open_folder(tmp_path, "train", mask_folder="masks")
    assert_points(data.read(0), [0])
    assert masks / "0000000001.png" in data.pair_files(0)
    (masks / "0000000001.png").unlink()
    data = open_folder(tmp_path, "train", mask_folder=str(tmp_path / "masks"))
    assert [str(problem) for problem in data.problems] == [
        f"{masks / '0000000001.png'}: no mask, as for 1 of 2 frames of {drive.name}; they are excluded; "
        "unpack it again"
    ]
    with pytest.raises(DataError, match=r"no folder .*absent: option mask_folder of kitti-raw needs it"):
        open_folder(tmp_path, "train", mask_folder="absent")


def test_a_folder_with_blanks_and_umlauts(tmp_path: Path) -> None:
    root = tmp_path / "Über Land" / "raw_data"
    write_drive(root)
    assert_points(open_folder(root, "train").read(0), [0, 1, 2])
    assert_points(open_folder(root.parent, "train").read(0), [0, 1, 2])


def test_every_file_is_listed_and_checked(tmp_path: Path) -> None:
    drive = write_drive(tmp_path)
    data = open_folder(tmp_path, "train")
    files = {file.path.relative_to(tmp_path / DAY): file for file in data.files()}
    counts = {kind: sum(file.kind == kind for file in files.values()) for kind in ("image", "scan", "pose")}
    assert counts == {"image": 2, "scan": 2, "pose": 2}
    assert sum(file.kind == "calibration" for file in files.values()) == 3
    for file in files.values():
        file.check()
    assert {file.path for file in files.values()} == set(data.pair_files(0))
    for name, message in (
        ("image_02/data/0000000000.png", "cannot read image"),
        ("velodyne_points/data/0000000000.bin", "expected 16 bytes a point"),
        ("oxts/data/0000000000.txt", r"0000000000.txt:1: expected 30 numbers, got 2"),
    ):
        (drive / name).write_text("1 2")
        with pytest.raises(UcnError, match=message):
            files[(drive / name).relative_to(tmp_path / DAY)].check()
        with pytest.raises(UcnError, match=message):
            open_folder(tmp_path, "train").read(0)
        write_drive(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("calib_cam_to_cam.txt", "R_rect_00: 1 0 0 0 1 0 0 0 1\n", "expected a line 'P_rect_02:'"),
        (
            "calib_cam_to_cam.txt",
            CAMERAS.replace("1.0e+01 0 1.0", "0 0 1.0", 1),
            "'P_rect_02:': expected fx s cx",
        ),
        (
            "calib_velo_to_cam.txt",
            "R: 1 2 3\nT: 0 0 0\n",
            "calib_velo_to_cam.txt:1: expected 9 numbers, got 3",
        ),
        (
            "calib_imu_to_velo.txt",
            UNIT.replace("1 0 0 0 1", "2 0 0 0 1"),
            "imu_to_velo.txt:2: expected a rotation",
        ),
        ("calib_imu_to_velo.txt", "R: \xff", "expected 9 numbers"),
    ],
)
def test_wrong_calibration(tmp_path: Path, name: str, text: str, message: str) -> None:
    write_drive(tmp_path)
    (tmp_path / DAY / name).write_text(text)
    data = open_folder(tmp_path, "train")
    (file,) = (file for file in data.files() if file.path.name == name)
    with pytest.raises(DataError, match=message):
        file.check()
    with pytest.raises(DataError, match=message):
        data.read(0)
    (problem,) = check_data(data).problems  # a file beside it that is good is not blamed
    assert problem.path.name == name
    assert_remedy(problem.message)


def test_packets_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "packet.txt"
    path.write_text("")
    with refused("expected one line of 30 numbers, got 0 lines"):
        read_packet(path)
    path.write_text(" ".join(["95", *["0"] * 29]))
    with refused(r"packet.txt:1: expected latitude and longitude in degrees, got 95 and 0"):
        read_packet(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    drive = write_drive(tmp_path, frames=4)
    (drive / "velodyne_points" / "data" / "0000000001.bin").unlink()
    data = open_folder(tmp_path, "train")
    assert len(data) == 3 + 0 + 1  # frame 1 comes second, never first
    (problem,) = data.problems
    assert str(problem).startswith(
        f"{drive / 'velodyne_points' / 'data' / '0000000001.bin'}: no scan, as for 1 of 4"
    )
    (drive / "oxts" / "data" / "0000000003.txt").unlink()
    data = open_folder(tmp_path, "train")
    assert "no GPS/IMU packet, as for 1 of 4 frames" in str(data.problems[0])
    assert len(data) == 2
    assert len(skip_bad(data, check_data(data))) == 2
    for name in ("calib_imu_to_velo.txt", "calib_velo_to_cam.txt", "calib_cam_to_cam.txt"):
        (tmp_path / DAY / name).unlink()
        data = open_folder(tmp_path, "train")
        assert len(data) == 0
        assert str(data.problems[0]).startswith(
            f"{tmp_path / DAY / name}: missing, so that drive {drive.name}"
        )


def test_other_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not have the expected layout: no \*/\*_drive_\*_sync"):
        open_folder(tmp_path, "train")
    with pytest.raises(
        DataError, match="option poses of kitti-raw must be one of auto, oxts, icp, got 'gps'"
    ):
        open_folder(tmp_path, "train", poses="gps")
    with pytest.raises(DataError, match="option moving of kitti-raw must be one of"):
        open_folder(tmp_path, "train", moving="no")
    with pytest.raises(DataError, match="option camera of kitti-raw must be one of 0, 1, 2, 3, got '7'"):
        open_folder(tmp_path, "train", camera=7)


def test_without_oxts(tmp_path: Path) -> None:
    drive = write_drive(tmp_path, frames=9)
    for path in (drive / "oxts" / "data").iterdir():
        path.unlink()
    (drive / "oxts" / "data").rmdir()
    (drive / "oxts").rmdir()
    data = open_folder(tmp_path, "train")
    assert len(data) == 9 * 5 - 15  # at most 5 frames apart
    assert "poses from aligned scans" in data.notes[0]
    with pytest.raises(
        DataError, match=r"0000000000.bin: cannot be aligned with 0000000001.bin: expected two scans"
    ):
        data.read(0)
    scans = [path.name[9] for path in data.pair_files(3) if path.suffix == ".bin"]
    assert scans == ["1", "2", "3", "4", "0"]  # aligned step by step
    data = open_folder(tmp_path, "train", poses="oxts")
    assert str(data.problems[0]).startswith(f"{drive / 'oxts' / 'data'}: missing")
    (tmp_path / DAY / "calib_imu_to_velo.txt").unlink()  # not needed then
    assert open_folder(tmp_path, "train").problems == []


@pytest.mark.slow
def test_the_sample(data_folder: Path) -> None:
    data = open_data("kitti-raw", data_folder / "kitti_raw")
    assert isinstance(data, KittiRaw)
    assert len(data) == 3
    assert data.problems == []
    assert "since it has no oxts" in data.notes[0]
    for file in data.files():
        file.check()
    (index,) = (i for i in range(3) if data.pair_name(i).endswith("40-0000000042"))
    sample = data.read(index)
    assert len(sample) > 8000
    assert_photometric_rule(sample)
    # The tanker on the right rolls and must not be in it, but for the road before it.
    is_tanker = (sample.points0[:, 0] > 900) & (sample.points0[:, 1] < 250)
    assert is_tanker.sum() < 30
    # 16 cm in two frames, by the images and by the scans alike.
    np.testing.assert_allclose(data.relative_pose(index)[1], [0, 0, -0.16], atol=0.01)
