import numpy as np
import pytest

from support.sparse_scene_cases import CORNERS, make_sparse_scene
from ucn.geometry.scene import SparseScene


def make_row(count: int, points: int = 0) -> SparseScene:
    """Cameras side by side that look along z, 1 apart, and points at (0, 0, 10)."""
    centres = np.arange(count)[:, None] * np.array([[1.0, 0, 0]])
    return SparseScene(
        points=np.tile([[0.0, 0, 10]], (points, 1)),
        colours=np.zeros((points, 3), np.uint8),
        errors=np.zeros(points),
        track_lengths=np.full(points, 2),
        names=tuple(f"{index}.jpg" for index in range(count)),
        rotations=np.tile(np.eye(3), (count, 1, 1)),
        centres=centres,
        corners=np.tile(CORNERS, (count, 1, 1)),
        observations=np.zeros(count, np.int64),
    )


def test_frusta_by_hand() -> None:
    scene = make_row(2)
    frusta = scene.frusta(depth=2.0)
    assert frusta.shape == (2, 5, 3)
    np.testing.assert_allclose(frusta[1, 0], [1, 0, 0])
    np.testing.assert_allclose(frusta[1, 1], [1 - 1.2, -0.9, 2])
    np.testing.assert_allclose(frusta[1, 3], [1 + 1.2, 0.9, 2])


def test_frusta_of_turned_cameras_face_what_they_see() -> None:
    scene = make_sparse_scene()
    ahead = scene.frusta(1.0)[:, 1:].mean(axis=1) - scene.centres
    towards = -scene.centres / np.linalg.norm(scene.centres, axis=1)[:, None]
    np.testing.assert_allclose(ahead, towards, atol=1e-9)


def test_sizes() -> None:
    scene = make_row(11)
    np.testing.assert_allclose(scene.middle(), [5, 0, 0])
    assert scene.radius() == pytest.approx(5)
    assert scene.frustum_depth() == pytest.approx(0.06 * 5)  # of the radius, below 0.4 of the spacing
    assert make_row(1001).frustum_depth() == pytest.approx(0.01 * 450, rel=1e-2)  # neighbours are too close
    assert make_row(1).radius() == 1
    assert make_row(1).frustum_depth() == pytest.approx(0.06)
    seen = make_row(3, points=4)
    np.testing.assert_allclose(seen.middle(), [0, 0, 10])
    assert seen.radius() == pytest.approx(10.2, abs=0.1)
