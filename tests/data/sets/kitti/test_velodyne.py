"""Scans: reading, alignment, and moving objects."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ucn.data.sets.kitti.velodyne import (
    MAX_SCAN_BYTES,
    Surface,
    align_scans,
    find_moving,
    guess_motions,
    read_scan,
)
from ucn.data.sets.posed.posed_pairs import Array, invert, move, rigid
from ucn.errors import DataError


def write_scan(path: Path, points: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.concatenate([points, np.full((len(points), 1), 0.5)], axis=1)
    path.write_bytes(values.astype("<f4").tobytes())


def make_street(seed: int, car_x: float = 12.0) -> Array:
    """A road with two fronts that have bays, a wall at its end, and a car; other points with each seed."""
    generator = np.random.default_rng(seed)

    def draw(count: int, *spans: tuple[float, float]) -> Array:
        return np.stack([generator.uniform(low, high, count) for low, high in spans], axis=1)

    parts = [draw(6000, (-20, 40), (-8, 8), (-1.7, -1.7)), draw(2500, (40, 40), (-8, 8), (-1.7, 3))]
    for side in (-8.0, 8.0):
        parts.append(draw(5000, (-20, 40), (side, side), (-1.7, 3)))
        for x in range(-15, 40, 10):
            parts.append(draw(300, (x, x), (side - 0.4, side + 0.4), (-1.7, 3)))
    top, back = ((car_x, car_x + 4), (1.0, 2.8), (-0.2, -0.2)), ((car_x, car_x), (1.0, 2.8), (-1.4, -0.2))
    parts += [draw(700, *top), draw(500, *back), draw(500, (car_x, car_x + 4), (1.0, 1.0), (-1.4, -0.2))]
    return np.concatenate(parts)


def test_read_scan_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "scän 1.bin"
    write_scan(path, np.array([[1.0, 2.0, 3.0], [-4.0, 0.5, -1.0]]))
    assert read_scan(path).tolist() == [[1, 2, 3], [-4, 0.5, -1]]


def test_wrong_scans(tmp_path: Path) -> None:
    path = tmp_path / "scan.bin"
    with pytest.raises(DataError, match=r"cannot read scan .*scan.bin: no such file"):
        read_scan(path)
    for content in (b"", b"\0" * 40):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=rf"scan.bin: expected 16 bytes a point .* got {len(content)} in all"
        ):
            read_scan(path)
    for wrong in (np.nan, np.inf, 1e6):
        write_scan(path, np.array([[wrong, 0.0, 0.0]]))
        with pytest.raises(DataError, match=r"scan.bin: expected coordinates within 250 m"):
            read_scan(path)
    with path.open("wb") as file:
        file.truncate(MAX_SCAN_BYTES + 16)
    with pytest.raises(DataError, match="the limit for scan is"):
        read_scan(path)


def test_scans_are_aligned() -> None:
    # The car drove 1.3 m, drifted and turned by a degree: what was at X is then at T X.
    T = rigid(Rotation.from_euler("zyx", [1.0, 0.2, -0.1], degrees=True).as_matrix(), [-1.3, 0.05, 0.02])
    found = align_scans(make_street(0), Surface.of(move(T, make_street(1))), guess_motions())
    np.testing.assert_allclose(found[:3, 3], T[:3, 3], atol=0.01)
    np.testing.assert_allclose(found[:3, :3], T[:3, :3], atol=5e-4)


def test_scans_of_different_places() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(DataError, match="expected two scans of the same place, got"):
        align_scans(generator.uniform(-40, 40, (4000, 3)), Surface.of(make_street(1)), guess_motions())
    with pytest.raises(DataError, match="expected two scans of the same place, got 0%"):
        align_scans(make_street(0), Surface.of(np.zeros((3, 3))), guess_motions())


def test_what_moves_is_found() -> None:
    T = rigid(np.eye(3), [-1.0, 0.0, 0.0])
    scan = make_street(0)
    is_car = (scan[:, 0] > 11.9) & (scan[:, 0] < 16.1) & (np.abs(scan[:, 1] - 1.9) < 1) & (scan[:, 2] > -1.45)
    is_high = is_car & (scan[:, 2] > -1.3)
    still = Surface.of(move(T, make_street(1)))
    assert not find_moving(scan, still, T)[is_car].any()
    for shift in (0.3, -0.25):
        moved = Surface.of(move(T, make_street(1, car_x=12 + shift)))
        found = find_moving(scan, moved, T)
        assert found[is_high].all()
        assert not found[~is_car].any()
    # Driven off altogether: it fits nowhere.
    assert find_moving(scan, Surface.of(move(T, make_street(1, car_x=25.0))), T)[is_high].all()
    # The other way round.
    back = find_moving(move(T, make_street(1, car_x=12.3)), Surface.of(scan), invert(T))
    assert back.any()


def test_bare_scans_have_nothing_that_moves() -> None:
    few = np.array([[5.0, 0, 0], [6, 1, 0]])
    assert find_moving(few, Surface.of(few), np.eye(4)).tolist() == [False, False]
    assert find_moving(np.zeros((0, 3)), Surface.of(np.zeros((0, 3))), np.eye(4)).tolist() == []
