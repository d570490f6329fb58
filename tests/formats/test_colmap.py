"""COLMAP's database and model: the half pixel, ids, cameras, and a scene whose cameras are known."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.scene_cases import HW, Scene, align_centres, make_scene
from ucn.errors import ConfigError, DataError, OutputError
from ucn.formats.colmap import (
    CameraSettings,
    DatabaseImage,
    MappingSettings,
    build_cameras,
    find_obstacle,
    load_pycolmap,
    map_incrementally,
    quiet,
    to_colmap,
    verify_matches,
    write_database,
)
from ucn.formats.colmap_colours import colour_points
from ucn.formats.colmap_legacy import write_legacy_database
from ucn.formats.colmap_scene import to_scene
from ucn.types import FloatArray

pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
Values = NDArray[np.float64]
K = np.array([[100.0, 0, 39.5], [0, 110, 29.5], [0, 0, 1]])


def make_image(
    name: str, points: object = ((0.0, 0.0), (3.0, 4.5)), hw: tuple[int, int] = (60, 80)
) -> DatabaseImage:
    return DatabaseImage(name, np.asarray(points, np.float32).reshape(-1, 2), hw)


def test_half_a_pixel_is_added_to_keypoints() -> None:
    np.testing.assert_array_equal(to_colmap(np.array([[0, 0], [3, 4.5]], np.float32)), [[0.5, 0.5], [3.5, 5]])


def test_half_a_pixel_is_in_the_database_and_in_the_camera(tmp_path: Path) -> None:
    images = [make_image("a.jpg"), make_image("s/b.jpg", [])]
    cameras = build_cameras(images, tmp_path, CameraSettings(intrinsics=K))
    write_database(tmp_path / "d.db", images, cameras, {}, {})
    database = pycolmap.Database.open(tmp_path / "d.db")
    try:
        np.testing.assert_array_equal(database.read_keypoints(1)[:, :2], [[0.5, 0.5], [3.5, 5]])
        assert len(database.read_keypoints(2)) == 0
        assert [image.name for image in database.read_all_images()] == ["a.jpg", "s/b.jpg"]
        camera = database.read_all_cameras()[0]
    finally:
        database.close()
    assert camera.model_name == "PINHOLE"
    np.testing.assert_allclose(camera.params, [100, 110, 40, 30])
    assert (camera.width, camera.height) == (80, 60)
    assert camera.has_prior_focal_length


def test_nobody_else_adds_it() -> None:
    source = Path(__file__).parents[2] / "src" / "ucn"
    users = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "to_corner_origin(" in path.read_text(encoding="utf-8")
    }
    assert users == {"geometry/coords.py", "formats/colmap.py"}


def test_cameras_are_shared_by_size(tmp_path: Path) -> None:
    images = [make_image("a.jpg"), make_image("b.jpg", hw=(80, 60)), make_image("c.jpg")]
    cameras = build_cameras(images, tmp_path, CameraSettings())
    assert cameras[0] is cameras[2]
    assert cameras[0] is not cameras[1]
    assert cameras[1].focal_length == pytest.approx(1.2 * 80)  # no file, so COLMAP's guess
    np.testing.assert_allclose([cameras[1].principal_point_x, cameras[1].principal_point_y], [30, 40])
    assert not cameras[0].has_prior_focal_length
    write_database(tmp_path / "d.db", images, cameras, {}, {})
    database = pycolmap.Database.open(tmp_path / "d.db")
    try:
        assert database.num_cameras() == 2
        assert [image.camera_id for image in database.read_all_images()] == [1, 2, 1]
    finally:
        database.close()
    own = build_cameras(images, tmp_path, CameraSettings(is_shared=False, model="OPENCV"))
    assert len({id(camera) for camera in own}) == 3
    assert own[0].model_name == "OPENCV"


def test_unknown_model_of_camera() -> None:
    with pytest.raises(ConfigError, match=r"no camera model 'FISH' \(there are SIMPLE_PINHOLE"):
        CameraSettings(model="FISH")


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_obstacle() == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ucn\[reconstruct\]'"):
        load_pycolmap()


def see(space: Values, R: Values, centre: Values, scene_K: Values) -> FloatArray:
    """Where a camera sees points: the reference, written out."""
    homogeneous = (space - centre) @ R.T @ scene_K.T
    return np.asarray(homogeneous[:, :2] / homogeneous[:, 2:], np.float32)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path / "images")


def see_walls(scene: Scene) -> list[DatabaseImage]:
    """Exact projections of 150 points on the walls of a scene."""
    walls = np.random.default_rng(0).uniform(0.2, 3, (150, 2))
    zero = np.zeros(50)
    space = np.concatenate(
        [
            np.stack([walls[:50, 0], -walls[:50, 1], zero], axis=1),
            np.stack([zero, -walls[50:100, 1], -walls[50:100, 0]], axis=1),
            np.stack([walls[100:, 0], zero, -walls[100:, 1]], axis=1),
        ]
    )
    return [
        DatabaseImage(f"{row:03}.png", see(space, R, centre, scene.K), HW)
        for row, (R, centre) in enumerate(zip(scene.rotations, scene.centres, strict=True))
    ]


ROWS = np.stack([np.arange(150)] * 2, axis=1)


def test_wrong_matches_are_not_verified(tmp_path: Path, scene: Scene) -> None:
    images = see_walls(scene)
    wrong = ROWS.copy()
    wrong[::10, 1] = np.roll(wrong[::10, 1], 1)
    cameras = build_cameras(images, scene.folder, CameraSettings(intrinsics=scene.K))
    seen: list[tuple[int, int]] = []
    settings = MappingSettings(max_error=1.0)
    found = verify_matches(
        images, cameras, {(0, 1): wrong}, settings, lambda done, total: seen.append((done, total))
    )
    inliers = np.asarray(found[0, 1].inlier_matches)
    assert (inliers[:, 0] == inliers[:, 1]).sum() == 135
    assert len(inliers) <= 140
    assert seen == [(1, 1)]
    again = verify_matches(images, cameras, {(0, 1): wrong}, settings)
    np.testing.assert_array_equal(inliers, again[0, 1].inlier_matches)


def test_exact_points_give_exact_cameras(tmp_path: Path, scene: Scene) -> None:
    images = see_walls(scene)
    matches = {(i, j): ROWS for i in range(5) for j in range(i + 1, 5)}
    cameras = build_cameras(images, scene.folder, CameraSettings(intrinsics=scene.K))
    settings = MappingSettings()
    with quiet():
        geometries = verify_matches(images, cameras, matches, settings)
        (tmp_path / ".d.db.part").write_text("mine")
        write_database(tmp_path / "d.db", images, cameras, geometries, matches)
        model, again = (
            map_incrementally(tmp_path / "d.db", scene.folder, tmp_path / name, settings, True)
            for name in ("one", "two")
        )
    assert model.registered == tuple(image.name for image in images)
    assert model.points == 150
    assert model.reprojection_error < 1e-3
    assert model.track_length == 5
    assert (tmp_path / "one" / "0" / "points3D.bin").is_file()
    assert [path.read_text() for path in tmp_path.glob(".*")] == ["mine"]
    found = to_scene(model)
    np.testing.assert_array_equal(found.centres, to_scene(again).centres)
    assert found.points.shape == found.colours.shape == (150, 3)
    assert found.errors.max() < 1e-3
    assert found.track_lengths.tolist() == [5] * 150
    assert found.observations.tolist() == [150] * 5
    assert found.names == model.registered
    assert align_centres(found.centres, scene.centres).max() < 1e-3
    turns = [each[3] @ each[0].T for each in (found.rotations, scene.rotations)]
    np.testing.assert_allclose(turns[0], turns[1], atol=1e-4)
    again.reconstruction.extract_colors_for_all_images(str(scene.folder))
    colour_points(model.reconstruction, scene.folder)
    differences = np.abs(to_scene(model).colours.astype(int) - to_scene(again).colours)
    assert np.median(differences) <= 1
    corners = np.array([[-0.5, -0.5, 1], [239.5, -0.5, 1], [239.5, 179.5, 1], [-0.5, 179.5, 1]])
    np.testing.assert_allclose(found.corners[0], corners @ np.linalg.inv(scene.K).T, atol=1e-9)


def test_no_model(tmp_path: Path) -> None:
    images = [make_image("a.jpg"), make_image("b.jpg")]
    cameras = build_cameras(images, tmp_path, CameraSettings())
    write_database(tmp_path / "d.db", images, cameras, {}, {})
    with quiet(), pytest.raises(DataError, match="no model: no two images"):
        map_incrementally(tmp_path / "d.db", tmp_path, tmp_path / "m", MappingSettings())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.db"]


def test_options_of_colmap(tmp_path: Path) -> None:
    settings = MappingSettings(options={"mapper.no_such_thing": 1})
    with pytest.raises(ConfigError, match=r"no option 'mapper\.no_such_thing'"):
        map_incrementally(tmp_path / "d.db", tmp_path, tmp_path / "m", settings)


TURNED_K = np.array([[110.0, 0, 28.5], [0, 100, 59], [0, 0, 1]])  # of a portrait, upright


def test_turned_photographs_are_written_as_stored(tmp_path: Path) -> None:
    """Row 0 as stored is on the right of the upright image, which is 60 wide and 80 high."""
    image = DatabaseImage("a.jpg", np.array([[59, 0], [56.5, 3]], np.float32), (80, 60), 6)
    assert image.stored_hw == (60, 80)
    np.testing.assert_array_equal(image.find_colmap_keypoints(), [[0.5, 0.5], [3.5, 3.0]])
    images = [image, make_image("b.jpg"), make_image("c.jpg", hw=(80, 60))]
    cameras = build_cameras(images, tmp_path, CameraSettings())
    assert cameras[0] is cameras[1]
    assert cameras[0] is not cameras[2]
    assert (cameras[0].width, cameras[0].height) == (80, 60)
    write_database(tmp_path / "d.db", images, cameras, {}, {})
    database = pycolmap.Database.open(tmp_path / "d.db")
    try:
        np.testing.assert_array_equal(database.read_keypoints(1)[:, :2], [[0.5, 0.5], [3.5, 3.0]])
    finally:
        database.close()


def test_intrinsics_of_turned_photographs_are_of_the_image_that_they_fit(tmp_path: Path) -> None:
    turned = make_image("a.jpg", hw=(80, 60))
    turned = DatabaseImage(turned.name, turned.keypoints, turned.image_hw, 6)
    (upright,) = build_cameras([turned], tmp_path, CameraSettings(intrinsics=TURNED_K))
    np.testing.assert_allclose(upright.params, [100, 110, 59.5, 31])
    assert (upright.width, upright.height) == (80, 60)
    stored, other = build_cameras([turned, make_image("b.jpg")], tmp_path, CameraSettings(intrinsics=K))
    assert stored is other
    np.testing.assert_allclose(stored.params, [100, 110, 40, 30])


class TestLegacyDatabase:
    """COLMAP 3's tables; this COLMAP reads the same from them as from its own."""

    def write(self, tmp_path: Path, scene: Scene) -> tuple[Path, Path]:
        images = [*see_walls(scene), make_image("s/blank.jpg", [], HW)]
        cameras = build_cameras(images, scene.folder, CameraSettings(intrinsics=scene.K))
        matches = {(0, 1): ROWS, (1, 3): ROWS[:40], (2, 5): ROWS[:0]}
        geometries = verify_matches(images, cameras, matches, MappingSettings())
        paths = tmp_path / "3.db", tmp_path / "4.db"
        for path, write in zip(paths, (write_legacy_database, write_database), strict=True):
            write(path, images, cameras, geometries, matches)
        assert not list(tmp_path.glob(".*"))
        return paths

    def test_same_content(self, tmp_path: Path, scene: Scene) -> None:
        databases = [pycolmap.Database.open(path) for path in self.write(tmp_path, scene)]
        try:
            legacy, own = databases
            assert [image.name for image in legacy.read_all_images()] == [
                image.name for image in own.read_all_images()
            ]
            for first, second in zip(legacy.read_all_cameras(), own.read_all_cameras(), strict=True):
                assert (first.model, first.width, first.height) == (second.model, second.width, second.height)
                assert first.params.tolist() == second.params.tolist()
                assert first.has_prior_focal_length == second.has_prior_focal_length
            for number in range(1, 7):
                keypoints = [database.read_keypoints(number)[:, :2] for database in databases]
                np.testing.assert_array_equal(*keypoints)
            for pair in ((1, 2), (2, 4), (3, 6)):
                np.testing.assert_array_equal(*(database.read_matches(*pair) for database in databases))
                found, expected = (database.read_two_view_geometry(*pair) for database in databases)
                np.testing.assert_array_equal(found.inlier_matches, expected.inlier_matches)
                assert found.config == expected.config
            found, expected = (database.read_two_view_geometry(1, 2) for database in databases)
            np.testing.assert_allclose(found.E, expected.E, rtol=1e-12)
            assert (
                found.cam2_from_cam1 is expected.cam2_from_cam1 is None
            )  # this COLMAP leaves it to the mapper
        finally:
            for database in databases:
                database.close()

    def test_columns_are_those_that_colmap_3_prepares_its_statements_for(
        self, tmp_path: Path, scene: Scene
    ) -> None:
        path, own = self.write(tmp_path, scene)
        statements = (
            "INSERT INTO images(image_id, name, camera_id, prior_qw, prior_qx, prior_qy, prior_qz, prior_tx, "
            "prior_ty, prior_tz) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            "INSERT INTO descriptors(image_id, rows, cols, data) VALUES (?, ?, ?, ?)",
        )
        for statement in statements:
            values = (90, "x", 1, *range(7))[: statement.count("?")]
            with closing(sqlite3.connect(path)) as database:
                database.execute(statement, values)
                assert database.execute("PRAGMA table_info(pose_priors)").fetchall() == []
            with closing(sqlite3.connect(own)) as database, pytest.raises(sqlite3.Error):
                database.execute(statement, values)

    def test_what_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"cannot write .*d\.db: .*no does not exist"):
            write_legacy_database(tmp_path / "no" / "d.db", [], [], {}, {})
