"""Points and cameras of a sparse reconstruction, as drawings and exports take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Array = NDArray[np.float64]

_SPACING_SHARE = 0.4  # length of a frustum, in distances between neighbouring cameras
_RADIUS_SHARES = (0.01, 0.06)  # its limits, in radii of the scene


@dataclass(frozen=True)
class SparseScene:
    """A sparse reconstruction: points, and cameras as pinholes.

    Attributes:
        points: (P, 3).
        colours: (P, 3) uint8 RGB.
        errors: (P,) mean reprojection errors in pixels.
        track_lengths: (P,) int64, numbers of images that see each point.
        names: of the C images.
        rotations: (C, 3, 3) from the world to each camera.
        centres: (C, 3) of the cameras.
        corners: (C, 4, 3) corners of the images at depth 1, in the axes of their cameras, clockwise from the
            top left.
        observations: (C,) int64, numbers of points that each image sees.
    """

    points: Array
    colours: NDArray[np.uint8]
    errors: Array
    track_lengths: NDArray[np.int64]
    names: tuple[str, ...]
    rotations: Array
    centres: Array
    corners: Array
    observations: NDArray[np.int64]

    def frusta(self, depth: float | None = None) -> Array:
        """(C, 5, 3): the centre of each camera and its four image corners at a depth, in the world.

        Args:
            depth: of the corners; None takes what suits the distances of the cameras.
        """
        length = self.frustum_depth() if depth is None else depth
        corners = length * self.corners @ self.rotations + self.centres[:, None]
        return np.concatenate([self.centres[:, None], corners], axis=1)

    def radius(self) -> float:
        """Distance from the middle that 90 % of the points and 90 % of the cameras keep; 1 where it is 0."""
        parts = [part for part in (self.points, self.centres) if len(part)]
        distances = [np.linalg.norm(part - self.middle(), axis=1) for part in parts]
        return max(float(np.percentile(each, 90)) for each in distances) or 1.0

    def middle(self) -> Array:
        """(3,): the median of the points, or of the cameras where there are no points."""
        return np.asarray(np.median(self.points if len(self.points) else self.centres, axis=0))

    def frustum_depth(self) -> float:
        """Depth at which frusta of neighbouring cameras hardly touch."""
        low, high = (share * self.radius() for share in _RADIUS_SHARES)
        if len(self.centres) < 2:
            return high
        spacing = cKDTree(self.centres).query(self.centres, 2)[0][:, 1]
        return float(np.clip(_SPACING_SHARE * np.median(spacing), low, high))
