"""Camera matrices that users write, and relative poses as files."""

import json
from pathlib import Path

import numpy as np
import pytest

from ucn.data.cameras import read_intrinsics, write_pose
from ucn.errors import DataError, OutputError
from ucn.files import read_npz
from ucn.geometry.pose import PoseEstimate
from ucn.types import Matches

K = [[700.0, 0.0, 320.5], [0.0, 710.0, 240.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    "text",
    [
        "700 0 320.5\n0 710 240\n0 0 1\n",
        "# of the left camera\n700, 0, 320.5\n\n0, 710, 240  # fy, cy\n0, 0, 1",
        "700 0 320.5 0 710 240 0 0 1",
        "700,710,320.5,240\n",
        "7e2\n710\n320.5\n240",
        "\ufeff700 710 320.5 240\r\n",
    ],
)
def test_files_in_all_forms(tmp_path: Path, text: str) -> None:
    path = tmp_path / "K.txt"
    path.write_text(text, encoding="utf-8")
    assert read_intrinsics(str(path)).tolist() == K


def test_four_numbers() -> None:
    assert read_intrinsics("700,710,320.5,240").tolist() == K
    assert read_intrinsics(" 7e2, 710 ,320.5,240").tolist() == K


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("700,710,320.5", r"^700,710,320\.5: expected 3 × 3 numbers .*, got 3 numbers; correct it"),
        ("700,710,nan,240", r"expected a finite number, got 'nan'"),
        ("0,710,320,240", r"with fx and fy above 0, got .*; correct it"),
        ("absent.txt", r"absent\.txt"),
        ("700,fy,320,240", r"700,fy,320,240"),
    ],
)
def test_what_is_not_a_camera_is_refused(given: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_intrinsics(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"K\.txt: expected 3 × 3 numbers .* got 0 numbers"),
        ("1 2 3\n4 5 six\n", r"K\.txt:2: expected a number, got 'six'"),
        ("1 0 0\n0 1 0\n0 0 2", r"K\.txt: expected 3 × 3 numbers"),
        ("1 0 0\n0 1 0\n", r"got 6 numbers"),
        ("inf 1 2 3", r"K\.txt:1: expected a finite number"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "K.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_intrinsics(str(path))


def test_files_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "K.txt"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DataError, match="it is not UTF-8 text"):
        read_intrinsics(str(path))


def make_pose(count: int = 3) -> tuple[PoseEstimate, Matches]:
    points = np.arange(2.0 * count, dtype=np.float32).reshape(-1, 2)
    is_inlier = np.arange(count) > 0
    matches = Matches(
        points, points + 1, np.ones(count, np.float32), np.ones(count, np.bool_), 0.9, (8, 8), (8, 8)
    )
    return PoseEstimate(np.eye(3), np.array([0.0, 0.0, 1.0]), is_inlier), matches


def test_a_motion_as_npz_and_as_json(tmp_path: Path) -> None:
    pose, matches = make_pose()
    cameras = np.eye(3), np.diag([2.0, 2.0, 1.0])
    for suffix in ("npz", "json"):
        write_pose(tmp_path / f"m.{suffix}", pose, matches, cameras, {"inliers": 2})
    arrays = read_npz(tmp_path / "m.npz")
    assert arrays["R"].tolist() == np.eye(3).tolist()
    assert arrays["t"].tolist() == [0, 0, 1]
    assert arrays["K1"].tolist() == cameras[1].tolist()
    assert arrays["is_inlier"].tolist() == [False, True, True]
    assert arrays["points1"].tolist() == matches.points1.tolist()
    assert json.loads(str(arrays["meta"])) == json.loads((tmp_path / "m.json").read_text()) == {"inliers": 2}
    with pytest.raises(OutputError, match="exists"):
        write_pose(tmp_path / "m.npz", pose, matches, cameras, {})


def test_a_failure_has_no_arrays(tmp_path: Path) -> None:
    _, matches = make_pose()
    failed = PoseEstimate(None, None, np.zeros(3, np.bool_), "2 matches")
    with pytest.raises(ValueError, match="no pose to write: 2 matches"):
        write_pose(tmp_path / "m.npz", failed, matches, (np.eye(3), np.eye(3)), {})
