"""A COLMAP model as points and pinhole cameras, for drawings and exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ucn.formats.colmap import SparseModel
from ucn.geometry.scene import SparseScene

if TYPE_CHECKING:
    import pycolmap


def to_scene(model: SparseModel) -> SparseScene:
    """Points by rising id, and the registered images by name, with their cameras as pinholes."""
    reconstruction = model.reconstruction
    points = [reconstruction.points3D[key] for key in sorted(reconstruction.points3D)]
    images = [reconstruction.find_image_with_name(name) for name in model.registered]
    return SparseScene(
        points=np.array([point.xyz for point in points], np.float64).reshape(-1, 3),
        colours=np.array([point.color for point in points], np.uint8).reshape(-1, 3),
        errors=np.array([point.error for point in points], np.float64),
        track_lengths=np.array([point.track.length() for point in points], np.int64),
        names=model.registered,
        rotations=np.stack([model.rotation(name) for name in model.registered]),
        centres=np.stack([model.centre(name) for name in model.registered]),
        corners=np.stack([_find_corners(reconstruction.cameras[image.camera_id]) for image in images]),
        observations=np.array([image.num_points3D for image in images], np.int64),
    )


def _find_corners(camera: pycolmap.Camera) -> NDArray[np.float64]:
    """(4, 3): corners of the image at depth 1, clockwise from the top left, without distortion."""
    width, height = camera.width, camera.height
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], np.float64)
    return np.asarray(np.linalg.solve(camera.calibration_matrix(), corners.T).T)
