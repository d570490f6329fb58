"""A small sparse reconstruction: a floor of coloured points, and cameras around it."""

import numpy as np
from numpy.typing import NDArray

from ucn.geometry.scene import SparseScene

Array = NDArray[np.float64]
CORNERS = np.array([[-0.6, -0.45, 1], [0.6, -0.45, 1], [0.6, 0.45, 1], [-0.6, 0.45, 1]])


def look_at(centre: Array, target: Array) -> Array:
    """(3, 3) from a world whose z is up to a camera."""
    ahead = (target - centre) / np.linalg.norm(target - centre)
    right = np.cross(ahead, [0.0, 0, 1])
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(ahead, right), ahead])


def make_sparse_scene(
    count: int = 4000, names: tuple[str, ...] = ("a.jpg", "b.jpg", "c.jpg"), shift: float = 0.0
) -> SparseScene:
    """A scene of `count` points; `shift` moves it away from the origin."""
    rng = np.random.default_rng(0)
    points = np.stack(
        [rng.uniform(-4, 4, count), rng.uniform(-3, 3, count), rng.normal(0, 0.05, count)], axis=1
    )
    angles = np.linspace(-2.4, -0.7, len(names))
    centres = np.stack([5 * np.cos(angles), 5 * np.sin(angles), np.full(len(names), 2.0)], axis=1)
    rotations = np.array([look_at(centre, np.zeros(3)) for centre in centres]).reshape(-1, 3, 3)
    return SparseScene(
        points=points + shift,
        colours=np.clip(128 + 30 * points, 0, 255).astype(np.uint8),
        errors=rng.uniform(0.1, 2.0, count),
        track_lengths=rng.integers(2, 9, count),
        names=names,
        rotations=rotations,
        centres=centres + shift,
        corners=np.tile(CORNERS, (len(names), 1, 1)),
        observations=np.arange(len(names)) + 100,
    )
