"""Principal points: refined where many views determine them, and kept at the image centre elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from ucn.errors import ConfigError
from ucn.formats.colmap import (
    CameraSettings,
    DatabaseImage,
    MappingSettings,
    SparseModel,
    build_cameras,
    map_incrementally,
    quiet,
    verify_matches,
    write_database,
)
from ucn.formats.principal_point import MIN_IMAGES, jackknife_deviation, judge

pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
Values = NDArray[np.float64]
HW = (300, 400)
OFF = np.array([-9.0, 6.0])
POINTS = 150
NOISE = 0.05
FAST = MappingSettings(options={"extract_colors": False})


def see_points(count: int, off: Values, sizes: int = 1, seed: int = 0) -> list[DatabaseImage]:
    """Views of random points from an arc of 60 degrees, rolled; with sizes=2 every second is larger."""
    rng = np.random.default_rng(seed)
    space = rng.uniform(-1, 1, (POINTS, 3))
    images = []
    for number in range(count):
        angle = np.radians(60 * number / (count - 1))
        turn = Rotation.from_euler("zxy", [rng.normal() * 0.4, rng.normal() * 0.2, angle]).as_matrix()
        seen = space @ turn.T + [0, 0, 5]
        hw = (HW[0] + 20 * (number % sizes), HW[1])
        centre = np.array([hw[1] - 1, hw[0] - 1]) / 2 + off * (number % sizes == 0)
        pixels = 480 * seen[:, :2] / seen[:, 2:] + centre + rng.normal(size=(POINTS, 2)) * NOISE
        images.append(DatabaseImage(f"{number:03}.png", pixels.astype(np.float32), hw))
    return images


def see_road(count: int) -> list[DatabaseImage]:
    """Views of a camera that moves forward without turning, with a distortion its model lacks."""
    rng = np.random.default_rng(0)
    space = rng.uniform([-4, -2, 8], [4, 2, 30], (POINTS, 3))
    images = []
    for number in range(count):
        seen = space - [0.1 * number, 0, 0.6 * number]
        plane = seen[:, :2] / seen[:, 2:]
        plane = plane + 0.004 * (plane**2).sum(axis=1, keepdims=True) * [1.0, 0.5]
        pixels = 480 * plane + np.array([HW[1] - 1, HW[0] - 1]) / 2 + rng.normal(size=(POINTS, 2)) * 0.3
        images.append(DatabaseImage(f"{number:03}.png", pixels.astype(np.float32), HW))
    return images


def reconstruct(
    images: list[DatabaseImage], folder: Path, mapping: MappingSettings = FAST, is_shared: bool = True
) -> SparseModel:
    rows = np.stack([np.arange(POINTS)] * 2, axis=1)
    matches = {(i, j): rows for i in range(len(images)) for j in range(i + 1, len(images))}
    cameras = build_cameras(images, folder, CameraSettings(is_shared=is_shared))
    with quiet():
        geometries = verify_matches(images, cameras, matches, mapping)
        write_database(folder / "d.db", images, cameras, geometries, matches)
        return map_incrementally(folder / "d.db", folder, folder / "sparse", mapping)


def read_shifts(model: Any) -> Values:
    """Principal points relative to the image centres, by camera."""
    cameras = [model.camera(number) for number in sorted(model.cameras)]
    return np.array(
        [
            [each.principal_point_x - each.width / 2, each.principal_point_y - each.height / 2]
            for each in cameras
        ]
    )


def test_off_the_centre(tmp_path: Path) -> None:
    model = reconstruct(see_points(8, OFF), tmp_path)
    (point,) = model.principal_points
    assert point.is_refined
    assert (point.camera, point.images) == (1, 8)
    assert point.shift is not None
    assert point.deviation is not None
    np.testing.assert_allclose(point.shift, OFF, atol=0.5)
    assert 0.02 < point.deviation < 0.5
    assert point.fall is not None
    assert point.fall > 0.1
    assert "px off the centre, standard deviation" in point.reason
    kept = reconstruct(see_points(8, OFF), tmp_path, replace(FAST, principal_point="never"))
    assert model.reprojection_error < 0.8 * kept.reprojection_error
    assert (read_shifts(kept.reconstruction) == 0).all()
    assert kept.principal_points[0].reason == "never refined"


def test_the_refined_model_is_written(tmp_path: Path) -> None:
    model = reconstruct(see_points(8, OFF), tmp_path)
    written = pycolmap.Reconstruction(str(tmp_path / "sparse" / "0"))
    np.testing.assert_allclose(read_shifts(written), read_shifts(model.reconstruction), atol=1e-9)
    assert written.compute_mean_reprojection_error() == pytest.approx(model.reprojection_error)
    for name in model.registered:
        image = written.find_image_with_name(name)
        np.testing.assert_allclose(image.projection_center(), model.centre(name), atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_at_the_centre(tmp_path: Path, seed: int) -> None:
    model = reconstruct(see_points(8, 0 * OFF, seed=seed), tmp_path)
    (point,) = model.principal_points
    assert not point.is_refined
    assert point.reason.startswith("undetermined: ")
    assert (read_shifts(model.reconstruction) == 0).all()


def test_forward_motion(tmp_path: Path) -> None:
    options = {"mapper.init_max_forward_motion": 1.0, "mapper.init_min_tri_angle": 1.0}
    model = reconstruct(see_road(8), tmp_path, replace(FAST, options={**FAST.options, **options}))
    (point,) = model.principal_points
    assert point.shift is not None
    assert np.linalg.norm(point.shift) > 3, "a bundle adjustment moves it"
    assert not point.is_refined
    assert (read_shifts(model.reconstruction) == 0).all()


def test_too_few_images(tmp_path: Path) -> None:
    model = reconstruct(see_points(MIN_IMAGES - 1, OFF), tmp_path)
    (point,) = model.principal_points
    assert (point.is_refined, point.shift, point.deviation) == (False, None, None)
    assert point.reason == f"{MIN_IMAGES - 1} images, {MIN_IMAGES} are needed"


def test_one_camera_per_image(tmp_path: Path) -> None:
    model = reconstruct(see_points(7, OFF), tmp_path, is_shared=False)
    assert [point.images for point in model.principal_points] == [1] * 7
    assert (read_shifts(model.reconstruction) == 0).all()


def test_each_camera_has_its_own_decision(tmp_path: Path) -> None:
    model = reconstruct(see_points(14, OFF, sizes=2), tmp_path)
    first, second = model.principal_points
    assert [first.is_refined, second.is_refined] == [True, False]
    shifts = read_shifts(model.reconstruction)
    np.testing.assert_allclose(shifts[0], OFF, atol=1)
    np.testing.assert_array_equal(shifts[1], [0, 0])


def test_always(tmp_path: Path) -> None:
    model = reconstruct(see_points(5, OFF), tmp_path, replace(FAST, principal_point="always"))
    (point,) = model.principal_points
    assert (point.is_refined, point.reason) == (True, "always refined")
    np.testing.assert_allclose(read_shifts(model.reconstruction), [OFF], atol=1.5)


def test_unknown_choice() -> None:
    with pytest.raises(ConfigError, match="one of auto, always, never, got 'maybe'"):
        MappingSettings(principal_point="maybe")


class TestDecision:
    def test_deviation_by_hand(self) -> None:
        samples = np.array([[1.0, 0], [3, 0], [1, 2], [3, 2]])  # deviations of 1 in x and y
        assert jackknife_deviation(samples) == pytest.approx(np.sqrt(3 / 4 * 4))

    @pytest.mark.parametrize(
        ("shift", "deviation", "fall", "is_refined", "reason"),
        [
            (
                (4.0, -3.0),
                1.6,
                0.02,
                True,
                "5.0 px off the centre, standard deviation 1.6 px, squared errors",
            ),
            ((4.0, -3.0), 1.7, 0.02, False, "undetermined: 5.0 px off"),
            ((4.0, -3.0), 1.6, 0.009, False, "undetermined: 5.0 px off"),
            ((0.0, 60.0), 1.0, 0.1, True, "60.0 px off"),
            ((0.0, 60.0), 1.0, 0.08, False, "undetermined: 60.0 px off"),
            ((float("nan"), 0.0), 1.0, 0.5, False, "the bundle adjustment failed"),
            ((4.0, -3.0), 1.0, float("nan"), False, "the bundle adjustment failed"),
        ],
    )
    def test_limits(
        self, shift: tuple[float, float], deviation: float, fall: float, is_refined: bool, reason: str
    ) -> None:
        found = judge(np.array(shift), deviation, fall, 400)
        assert found[0] == is_refined
        assert found[1].startswith(reason)
