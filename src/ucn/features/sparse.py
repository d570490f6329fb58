"""Classical descriptors at the keypoints of OpenCV's SIFT detector, and their mutual nearest neighbours.

Relative pose is estimated with these; `classical` computes the same descriptors on a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.features.extractor import GreyArray, normalise_descriptors, read_pixels, to_grey
from ucn.knn import mutual_nearest, nearest
from ucn.types import FloatArray, ImageLike


@dataclass(frozen=True)
class Keypoints:
    """Keypoints of an image with a descriptor each.

    Attributes:
        points: (K, 2) pixels.
        descriptors: (K, D).
    """

    points: Tensor
    descriptors: Tensor


@dataclass(frozen=True)
class KeypointMatches:
    """Matched points of two images, best first.

    Attributes:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        scores: (N,) larger is better; methods use different units.
    """

    points0: Tensor
    points1: Tensor
    scores: Tensor


class KeypointExtractor(Protocol):
    """Detects keypoints of an image and computes their descriptors."""

    def extract(self, image: ImageLike) -> Keypoints:
        """Keypoints of an image, strongest first; raises `ImageReadError` as `Extractor.extract`."""


@dataclass(frozen=True)
class SiftKeypoints:
    """SIFT's keypoints with SIFT's descriptors (Lowe 2004), at the scale and orientation of each keypoint.

    Attributes:
        max_count: the most keypoints to keep, strongest first.
    """

    dim: ClassVar[int] = 128
    max_count: int = 4096

    def extract(self, image: ImageLike) -> Keypoints:
        """Detects keypoints of the grey image and computes their descriptors."""
        found, descriptors = self.make_detector().detectAndCompute(to_grey(read_pixels(image)), None)
        rows = self._rank(found)
        return _collect(_list_points(found)[rows], None if descriptors is None else descriptors[rows])

    def detect(self, grey: GreyArray) -> FloatArray:
        """Positions (K, 2) of the keypoints, strongest first; one with several orientations counts once."""
        found = self.make_detector().detect(grey, None)
        points = _list_points(found)[self._rank(found)]
        return points[np.sort(np.unique(points, axis=0, return_index=True)[1])]

    def _rank(self, keypoints: Sequence[cv2.KeyPoint]) -> list[int]:
        """Rows of the strongest; OpenCV returns more than `nfeatures` where some are equally strong."""
        order = sorted(range(len(keypoints)), key=lambda row: -keypoints[row].response)
        return order[: self.max_count]

    def make_detector(self) -> cv2.SIFT:
        """OpenCV's SIFT; without precise upscaling, keypoints lie 0.25 px too far to the right and down."""
        return cv2.SIFT.create(nfeatures=self.max_count, enable_precise_upscale=True)


class PointDescriptor(Protocol):
    """Computes descriptors at given points of an image, as `DenseDaisy`, `DenseKaze` and `DenseSurf` do."""

    @property
    def dim(self) -> int:
        """Dimensions of a descriptor."""

    def compute_at(self, grey: GreyArray, points: FloatArray) -> FloatArray:
        """Descriptors (K, D) at points (K, 2)."""


@dataclass(frozen=True)
class GridDescriptorsAtKeypoints:
    """DAISY, KAZE or SURF of one scale as on the grid, at SIFT's keypoints.

    Attributes:
        descriptor: one of these, with its settings.
        detector: of the keypoints.
    """

    descriptor: PointDescriptor
    detector: SiftKeypoints = SiftKeypoints()

    @property
    def dim(self) -> int:
        """Dimensions of a descriptor."""
        return self.descriptor.dim

    def extract(self, image: ImageLike) -> Keypoints:
        """Detects keypoints of the grey image and computes their descriptors."""
        grey = to_grey(read_pixels(image))
        points = self.detector.detect(grey)
        if not len(points):
            return _collect(points, None)
        found = _collect(points, self.descriptor.compute_at(grey, points))
        # On textureless surfaces OpenCV's DAISY divides by zero.
        return Keypoints(found.points, normalise_descriptors(found.descriptors, 1))


def match_keypoints(keypoints0: Keypoints, keypoints1: Keypoints, ratio: float = 1.0) -> KeypointMatches:
    """Mutual nearest neighbours of descriptors.

    Args:
        keypoints0: of image 0.
        keypoints1: of image 1.
        ratio: largest ratio of the distances to the nearest and to the second nearest descriptor (Lowe 2004);
            1 switches the test off.

    Returns:
        Matches ordered by their distance, or by that ratio where the test is on.
    """
    descriptors0, descriptors1 = keypoints0.descriptors, keypoints1.descriptors
    if not len(descriptors0) or not len(descriptors1):
        empty = torch.zeros(0, 2)
        return KeypointMatches(empty, empty, empty[:, 0])
    partners = mutual_nearest(descriptors0, descriptors1)
    found = nearest(descriptors0, descriptors1, k=2)
    costs, second = found.distances[:, 0], found.distances[:, 1]
    is_kept = partners >= 0
    if ratio < 1:
        costs = costs / second.clamp_min(1e-12)
        is_kept &= costs <= ratio
    rows = is_kept.nonzero()[:, 0]
    rows = rows[costs[rows].argsort(stable=True)]
    return KeypointMatches(keypoints0.points[rows], keypoints1.points[partners[rows]], -costs[rows])


def _list_points(keypoints: Sequence[cv2.KeyPoint]) -> FloatArray:
    return np.array([keypoint.pt for keypoint in keypoints], np.float32).reshape(-1, 2)


def _collect(points: FloatArray, descriptors: NDArray[Any] | None) -> Keypoints:
    values = np.zeros((0, 1), np.float32) if descriptors is None else np.asarray(descriptors, np.float32)
    return Keypoints(torch.from_numpy(points), torch.from_numpy(values))
