"""Camera matrices that users write, and relative poses as files."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest

from ucn.data.cameras import read_camera, write_pose
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
    assert read_camera(str(path)).K.tolist() == K


def test_four_numbers() -> None:
    assert read_camera("700,710,320.5,240").K.tolist() == K
    assert read_camera(" 7e2, 710 ,320.5,240").K.tolist() == K
    assert read_camera("700 710  320.5 240").K.tolist() == K


def test_matrices_as_numbers() -> None:
    assert read_camera("700 0 320.5 0 710 240 0 0 1").K.tolist() == K
    assert read_camera("700 0 320.5 44.8 0 710 240 0.2 0 0 1 0.003").K.tolist() == K


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
        read_camera(given)


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
        read_camera(str(path))


def test_files_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "K.txt"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DataError, match="it is not UTF-8 text"):
        read_camera(str(path))


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


KITTI = """\
calib_time: 09-Jan-2012 13:57:47
P0: 700 0 320.5 0 0 710 240 0 0 0 1 0
P1: 700 0 320.5 -379.8 0 710 240 0 0 0 1 0
P2: 705 0 322 44.8 0 705 241 0.2 0 0 1 0.003
R0_rect: 0.9999 0.0098 -0.0074 -0.0098 0.9999 -0.0043 0.0074 0.0043 0.9999
Tr: 0.0004 -0.9999 0 0 0 0 -1 0 1 0 0 -0.27
"""


class TestKitti:
    def test_one_of_several_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "calib.txt"
        path.write_text(KITTI)
        assert read_camera(f"{path}:P1").K.tolist() == K
        assert read_camera(f"{path}:P2").K.tolist() == [[705, 0, 322], [0, 705, 241], [0, 0, 1]]
        with pytest.raises(
            DataError, match=r"has 3 cameras \(P0, P1, P2\); name one of them, .*calib\.txt:P2"
        ):
            read_camera(str(path))
        with pytest.raises(DataError, match=r"no camera 'P3'; it has P0, P1, P2: name one of them"):
            read_camera(f"{path}:P3")

    def test_equal_cameras_are_one(self, tmp_path: Path) -> None:
        path = tmp_path / "calib.txt"
        path.write_text("".join(line for line in KITTI.splitlines(True) if not line.startswith("P2")))
        assert read_camera(str(path)).K.tolist() == K

    def test_no_camera(self, tmp_path: Path) -> None:
        path = tmp_path / "calib.txt"
        path.write_text(KITTI.splitlines(True)[-1])
        with pytest.raises(DataError, match="found no camera matrix: expected 3 × 3 numbers"):
            read_camera(str(path))
        path.write_text("700 710 320.5 240")
        with pytest.raises(DataError, match="has no named cameras, so that there is no 'P0'"):
            read_camera(f"{path}:P0")


class TestOpenCv:
    def test_as_opencv_writes_it(self, tmp_path: Path) -> None:
        path = tmp_path / "camera.yml"
        storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
        storage.write("image_width", 640)
        storage.write("image_height", 480)
        storage.write("camera_matrix", np.array(K))
        storage.write("R", np.eye(3))
        storage.write("distortion_coefficients", np.array([[0.1, -0.05, 0, 0, 0]]))
        storage.release()
        camera = read_camera(str(path))
        assert (camera.K.tolist(), camera.image_hw, camera.is_distorted) == (K, (480, 640), True)

    @pytest.mark.parametrize("data", ["[700, 0, 320.5, 0, 710, 240, 0, 0, 1]", str(K)])
    def test_of_ros_and_plain(self, tmp_path: Path, data: str) -> None:
        path = tmp_path / "camera.yaml"
        path.write_text(
            f"camera_matrix: {{rows: 3, cols: 3, data: {data}}}\n"
            "rectification_matrix: {rows: 3, cols: 3, data: [1, 0, 0, 0, 1, 0, 0, 0, 1]}\n"
            "distortion_coefficients: {rows: 1, cols: 5, data: [0, 0, 0, 0, 0]}\n"
        )
        camera = read_camera(str(path))
        assert (camera.K.tolist(), camera.image_hw, camera.is_distorted) == (K, None, False)

    def test_two_cameras(self, tmp_path: Path) -> None:
        path = tmp_path / "intrinsics.yml"
        path.write_text(
            "%YAML:1.0\n---\nM1: !!opencv-matrix\n   rows: 3\n   cols: 3\n   dt: d\n"
            "   data: [ 700., 0., 320.5, 0., 710., 240., 0., 0., 1. ]\nD1: [ 0.1 ]\n"
            f"M2: {np.diag([5.0, 5.0, 1.0]).tolist()}\nD2: [ 0 ]\n"
        )
        first, second = (read_camera(f"{path}:{name}") for name in ("M1", "M2"))
        assert (first.K.tolist(), first.is_distorted) == (K, True)
        assert (second.K[0, 0], second.is_distorted) == (5, False)
        with pytest.raises(DataError, match=r"has 2 cameras \(M1, M2\)"):
            read_camera(str(path))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: &a [*a]", "an alias in itself"),
            ("!!python/object/apply:os.system [id]", "the tag .* is not read"),
            ("[" * 5000, "cannot read camera matrix"),
            ("K: !!opencv-matrix [1]", "its value is not a mapping"),
            ("just text", "expected names with values, such as camera_matrix"),
            ("R: [[0, 1, 0], [1, 0, 0], [0, 0, 1]]", "found no camera matrix"),
            ("K: [[.nan, 0, 1], [0, 1, 1], [0, 0, 1]]", "found no camera matrix"),
            ("a: [1", "cannot read camera matrix"),
        ],
    )
    def test_hostile_and_damaged(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "camera.yml"
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_camera(str(path))

    def test_size_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ucn.data.camera_files.MAX_YAML_BYTES", 10)
        (tmp_path / "camera.yml").write_text("#" * 11)
        with pytest.raises(DataError, match="the limit for camera matrix is 10"):
            read_camera(str(tmp_path / "camera.yml"))


def write_photograph(path: Path, size: tuple[int, int] = (64, 48), **tags: Any) -> Path:
    """An image with EXIF tags by name."""
    exif = PIL.Image.Exif()
    if "Orientation" in tags:
        exif[PIL.ExifTags.Base.Orientation] = tags.pop("Orientation")
    exif.get_ifd(PIL.ExifTags.IFD.Exif).update({PIL.ExifTags.Base[name]: tags[name] for name in tags})
    PIL.Image.new("RGB", size).save(path, exif=exif)
    return path


class TestColmap:
    HEAD = "# Camera list with one line of data per camera:\n#   CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n"

    @pytest.mark.parametrize(
        ("line", "expected", "is_distorted"),
        [
            ("1 SIMPLE_PINHOLE 64 48 70 32 24", [70, 70, 31.5, 23.5], False),
            ("1 PINHOLE 64 48 70 71 32 24", [70, 71, 31.5, 23.5], False),
            ("1 SIMPLE_RADIAL 64 48 70 32 24 0", [70, 70, 31.5, 23.5], False),
            ("1 SIMPLE_RADIAL 64 48 70 32 24 -0.01", [70, 70, 31.5, 23.5], True),
            ("1 OPENCV 64 48 70 71 32 24 0 0 0.1 0", [70, 71, 31.5, 23.5], True),
        ],
    )
    def test_models(self, tmp_path: Path, line: str, expected: list[float], is_distorted: bool) -> None:
        path = tmp_path / "cameras.txt"
        path.write_text(f"{self.HEAD}{line}\n")
        camera = read_camera(str(path))
        found = [camera.K[0, 0], camera.K[1, 1], camera.K[0, 2], camera.K[1, 2]]
        assert (found, camera.image_hw, camera.is_distorted) == (expected, (48, 64), is_distorted)

    def test_one_of_several_by_id(self, tmp_path: Path) -> None:
        path = tmp_path / "cameras.txt"
        path.write_text("1 SIMPLE_PINHOLE 64 48 70 32 24\n12 SIMPLE_PINHOLE 64 48 80 32 24\n")
        assert read_camera(f"{path}:12").K[0, 0] == 80
        with pytest.raises(DataError, match=r"has 2 cameras \(1, 12\); name one of them, .*:12"):
            read_camera(str(path))

    def test_size_and_orientation_of_the_image(self, tmp_path: Path) -> None:
        path = tmp_path / "cameras.txt"
        path.write_text("1 PINHOLE 64 48 70 71 30 21\n")
        turned = write_photograph(tmp_path / "a.jpg", Orientation=6)
        # Row 0 as stored is on the right of the upright image, which is 48 wide.
        assert read_camera(str(path), turned).K.tolist() == [[71, 0, 47 - 20.5], [0, 70, 29.5], [0, 0, 1]]
        other = write_photograph(tmp_path / "b.jpg", (32, 24))
        with pytest.raises(DataError, match=r"is for images of 64 × 48 pixels, b\.jpg has 32 × 24; scale"):
            read_camera(str(path), other)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1 OPENCV_FISHEYE 64 48 70 71 32 24 0 0 0 0", "got OPENCV_FISHEYE; undistort the images"),
            ("1 PINHOLE 64 48 70 71 32", r"cameras\.txt:1: expected 4 numbers, got 3"),
            ("1 PINHOLE 64 48 70 71 32 24\nmore", r"cameras\.txt:2: expected CAMERA_ID MODEL"),
        ],
    )
    def test_bad_lines(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "cameras.txt"
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_camera(str(path))


class TestExif:
    def test_equivalent_focal_length(self, tmp_path: Path) -> None:
        path = write_photograph(tmp_path / "a.jpg", FocalLengthIn35mmFilm=26, FocalLength=4.25)
        focal = 26 * 80 / np.hypot(36, 24)  # the diagonal has 80 pixels
        expected = [[focal, 0, 31.5], [0, focal, 23.5], [0, 0, 1]]
        np.testing.assert_allclose(read_camera("exif", path).K, expected)
        upright = write_photograph(tmp_path / "b.jpg", FocalLengthIn35mmFilm=26, Orientation=6)
        np.testing.assert_allclose(read_camera("EXIF", upright).K[:2, 2], [23.5, 31.5])

    @pytest.mark.parametrize("orientation", [1, 6])
    def test_resolution_of_the_sensor(self, tmp_path: Path, orientation: int) -> None:
        """50 mm at 200 pixels a centimetre are 1000 pixels; the copy is half as wide as the photograph."""
        tags: dict[str, Any] = {
            "FocalLength": 50,
            "FocalPlaneXResolution": 200,
            "FocalPlaneResolutionUnit": 3,
        }
        size: dict[str, Any] = {"ExifImageWidth": 128, "ExifImageHeight": 96, "Orientation": orientation}
        path = write_photograph(tmp_path / "a.jpg", **tags, **size)
        assert read_camera("exif", path).K[0, 0] == pytest.approx(500)

    @pytest.mark.parametrize(
        ("tags", "got"),
        [
            ({}, "neither"),
            ({"FocalLength": 4.25}, "FocalLength alone"),
            ({"FocalLengthIn35mmFilm": 0}, "neither"),
            (
                {"FocalLength": 50, "FocalPlaneXResolution": 200, "FocalPlaneResolutionUnit": 9},
                "FocalLength alone",
            ),
        ],
    )
    def test_what_is_missing(self, tmp_path: Path, tags: dict[str, Any], got: str) -> None:
        path = write_photograph(tmp_path / "a.jpg", **tags)
        with pytest.raises(DataError, match=rf"expected EXIF data .*, got {got}; give the four numbers"):
            read_camera("exif", path)

    def test_of_no_image(self) -> None:
        with pytest.raises(DataError, match="exif takes the focal length of a single image"):
            read_camera("exif")
