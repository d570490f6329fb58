"""Strecha: a textured wall by hand, camera files, cameras for other image sizes, problems."""

from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray

from support.photometric_rule import assert_photometric_rule
from support.remedy_rule import refused
from ucn.data.catalogue import open_data
from ucn.data.sets.posed.posed_pairs import Array
from ucn.data.sets.posed.strecha import Strecha, open_folder, read_camera_file
from ucn.errors import DataError, UcnError

HW = (120, 160)
# f = 200 for an image of 160 × 120; the files speak of three times that.
K = "600 0 239.5\n0 600 179.5\n0 0 1\n"


def make_wall() -> NDArray[np.uint8]:
    noise = np.random.default_rng(0).random((120, 300)).astype(np.float32)
    wall = cv2.GaussianBlur(noise, (0, 0), 1.5)
    return np.asarray(np.clip((wall - 0.5) * 900 + 128, 0, 255), np.uint8)


WALL = make_wall()


def write_camera(path: Path, centre: tuple[float, float, float], R: Array | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    R = np.eye(3) if R is None else R
    rows = "\n".join(" ".join(f"{value:.9g}" for value in row) for row in R)
    place = " ".join(f"{value:g}" for value in centre)
    path.write_text(f"{K}0 0 0\n{rows} \n{place} \n480 360\n")


def write_scene(folder: Path, count: int = 4) -> None:
    """Photos of a wall at 10 m from cameras 0.5 m apart: the image moves by 10 pixels."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        view = WALL[:, 20 + 10 * i : 20 + 10 * i + HW[1]]
        PIL.Image.fromarray(view).save(folder / "images" / f"{i:04d}.png")
        write_camera(folder / "gt_dense_cameras" / f"{i:04d}.jpg.camera", (0.5 * i, 0.0, 0.0))


@pytest.mark.parametrize(("index", "name", "pixels"), [(0, "0000-0001", 10.0), (1, "0000-0002", 20.0)])
def test_a_wall_by_hand(tmp_path: Path, index: int, name: str, pixels: float) -> None:
    write_scene(tmp_path)
    data = open_folder(tmp_path, "all")
    assert (len(data), data.problems) == (6, [])
    sample = data.read(index)
    assert sample.name == name
    assert len(sample) > 50
    assert sample.points0.dtype == torch.float32
    error = (sample.points1 - sample.points0 + torch.tensor([pixels, 0.0])).abs()
    assert error.max() < 0.3
    assert error.mean() < 0.03
    np.testing.assert_allclose(data.relative_pose(index)[1], [-pixels / 20, 0, 0])
    # Centres of pixels: (239.5 + 0.5) / 3 - 0.5.
    expected = np.array([[200, 0, 79.5], [0, 200, 59.5], [0, 0, 1]])
    np.testing.assert_allclose(data.intrinsics(index)[0], expected)


def test_cameras_that_do_not_fit_leave_nothing(tmp_path: Path) -> None:
    write_scene(tmp_path)
    # Camera 1 said to stand 4 cm lower: every feature is 0.8 pixels off.
    write_camera(tmp_path / "gt_dense_cameras" / "0001.jpg.camera", (0.5, 0.04, 0.0))
    data = open_folder(tmp_path, "all")
    assert len(data.read(0)) < 5
    assert len(data.read(1)) > 50


def test_rotations_by_a_slow_reference(tmp_path: Path) -> None:
    write_scene(tmp_path)
    c, s = np.cos(0.3), np.sin(0.3)
    R = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    write_camera(tmp_path / "gt_dense_cameras" / "0001.jpg.camera", (0.5, 0.2, -0.1), R)
    rotation, translation = open_folder(tmp_path, "all").relative_pose(0)
    world = np.array([0.3, -0.4, 8.0])  # which is also camera 0's
    # The file's columns are the camera's axes in the world.
    expected = [float(R[:, k] @ (world - np.array([0.5, 0.2, -0.1]))) for k in range(3)]
    np.testing.assert_allclose(rotation @ world + translation, expected, atol=1e-8)


def test_read_camera_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "0000.jpg.camera"
    write_camera(path, (1.0, 2.0, 3.0), np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]))
    view = read_camera_file(path)
    assert view.file_hw == (360, 480)
    assert view.K.tolist() == [[600, 0, 239.5], [0, 600, 179.5], [0, 0, 1]]
    assert view.T_world_to_camera.tolist() == [[0, 1, 0, -2], [-1, 0, 0, 1], [0, 0, 1, -3], [0, 0, 0, 1]]
    assert view.matrix((360, 480)).tolist() == view.K.tolist()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("480 360\n", "", "expected 9 lines of numbers, got 8"),
        ("480 360", "480", r":9: expected 2 numbers, got 1"),
        ("480 360", "480 0", r":9: expected width and height in pixels, got '480 0'"),
        ("0 0 0\n", "0.1 0 0\n", r":4: expected a distortion of 0 0 0, got '0.1 0 0'"),
        ("600 0 239.5", "600 0 wide", r":1: expected a number, got 'wide'"),
        ("0 600 179.5", "0 -600 179.5", "expected fx s cx, 0 fy cy, 0 0 1 with positive fx and fy"),
        ("1 0 0 \n0 1 0", "1 0 0 \n0 2 0", "expected a rotation matrix"),
    ],
)
def test_wrong_cameras(tmp_path: Path, old: str, new: str, message: str) -> None:
    write_scene(tmp_path)
    path = tmp_path / "gt_dense_cameras" / "0002.jpg.camera"
    text = path.read_text()
    if "\n0 1 0" in old:
        text = text.replace(" \n", "\n")
        old, new = old.replace(" \n", "\n"), new.replace(" \n", "\n")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with refused(message):
        read_camera_file(path)
    data = open_folder(tmp_path, "all")
    assert len(data) == 3
    (problem,) = data.problems
    assert problem.path == path
    assert problem.message.startswith("image 0002.png excluded: expected ")  # the file is not named again
    assert problem.line == (int(message[1]) if message.startswith(":") else None)


def test_scenes_and_angles(tmp_path: Path) -> None:
    root = tmp_path / "Brunnen und Höfe"
    write_scene(root / "a", 3)
    write_scene(root / "b", 4)
    data = open_folder(root, "all")
    assert len(data) == 3 + 6
    assert data.pair_name(3) == "b/0000-0001"
    c, s = np.cos(1.2), np.sin(1.2)  # 69 degrees
    turn = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    write_camera(root / "a" / "gt_dense_cameras" / "0002.jpg.camera", (1.0, 0, 0), turn)
    assert len(open_folder(root, "all")) == 1 + 6
    assert len(open_folder(root, "all", max_angle=70.0)) == 3 + 6
    with pytest.raises(DataError, match="strecha needs max_angle and max_features above 0, got 0 and 4000"):
        open_folder(root, "all", max_angle=0.0)
    with pytest.raises(DataError, match="does not have the expected layout: no gt_dense_cameras"):
        open_folder(root / "a" / "images", "all")
    with pytest.raises(IndexError, match="there is no pair 9"):
        data.read(9)


def test_no_two_photos_look_alike(tmp_path: Path) -> None:
    write_scene(tmp_path, 3)
    for i, angle in enumerate((0.0, 2.0, 4.0)):
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        write_camera(tmp_path / "gt_dense_cameras" / f"{i:04d}.jpg.camera", (i, 0, 0), turn)
    with pytest.raises(
        DataError,
        match=r"split 'all' is empty: no two images in .* have viewing directions within 60 degrees",
    ):
        open_folder(tmp_path, "all")


def test_missing_files_are_problems(tmp_path: Path) -> None:
    write_scene(tmp_path)
    (tmp_path / "gt_dense_cameras" / "0003.jpg.camera").unlink()
    data = open_folder(tmp_path, "all")
    assert len(data) == 3
    assert "image 0003.png excluded: cannot read camera: no such file" in str(data.problems[0])
    (tmp_path / "images" / "0000.png").unlink()
    data = open_folder(tmp_path, "all")
    assert len(data) == 0
    assert "expected at least 3 images with cameras" in str(data.problems[1])


def test_a_cropped_photo(tmp_path: Path) -> None:
    write_scene(tmp_path)
    PIL.Image.fromarray(WALL[:100, :160]).save(tmp_path / "images" / "0000.png")
    data = open_folder(tmp_path, "all")
    message = (
        r"0000.jpg.camera: expected a camera for 160 × 100 pixels, .* got 480 × 360; get the whole image"
    )
    with pytest.raises(DataError, match=message):
        data.read(0)
    with pytest.raises(DataError, match=message):
        data.intrinsics(0)


def test_every_file_is_listed_and_checked(tmp_path: Path) -> None:
    write_scene(tmp_path, 3)
    data = open_folder(tmp_path, "all")
    files = {file.path: file for file in data.files()}
    assert sorted(file.kind for file in files.values()) == [*["camera"] * 3, *["image"] * 3]
    for file in files.values():
        file.check()
    assert set(files) == set(data.pair_files(0))
    path = tmp_path / "images" / "0002.png"  # confirms the matches of the other two
    path.write_bytes(b"no image")
    for check in (files[path].check, lambda: data.read(0)):
        with pytest.raises(UcnError, match="cannot read image"):
            check()


def test_photos_without_texture(tmp_path: Path) -> None:
    write_scene(tmp_path, 3)
    for path in (tmp_path / "images").iterdir():
        PIL.Image.new("L", (160, 120), 90).save(path)
    assert len(open_folder(tmp_path, "all").read(0)) == 0


@pytest.mark.slow
def test_the_sample(data_folder: Path) -> None:
    data = open_data("strecha", data_folder / "strecha")
    assert isinstance(data, Strecha)
    assert data.problems == []
    assert len(data) == 41
    (index,) = (i for i in range(len(data)) if data.pair_name(i) == "fountain-P11/0003-0006")
    sample = data.read(index)
    assert len(sample) > 300
    assert_photometric_rule(sample, 0.35)
    K0, K1 = data.intrinsics(index)
    R, t = data.relative_pose(index)
    # The epipolar constraint, though points are only as good as float32.
    skew = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]])
    F = np.linalg.inv(K1).T @ skew @ R @ np.linalg.inv(K0)
    points0, points1 = (
        np.c_[points.double().numpy(), np.ones(len(sample))] for points in (sample.points0, sample.points1)
    )
    lines = points0 @ F.T
    distance = np.abs((lines * points1).sum(axis=1)) / np.hypot(lines[:, 0], lines[:, 1])
    assert distance.max() < 0.01
