"""Hand-made descriptors at the keypoints of OpenCV's SIFT detector, matched by mutual nearest neighbours.

This is how hand-made features are used for camera motion; `classical` computes the same ones on a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.features.extractor import GreyArray, make_unit, read_pixels, to_grey
from ucn.knn import mutual_nearest, nearest
from ucn.types import FloatArray, ImageLike


@dataclass(frozen=True)
class Keypoints:
    """Points of an image with a descriptor each.

    Attributes:
        points: (K, 2) pixels.
        descriptors: (K, D).
    """

    points: Tensor
    descriptors: Tensor


@dataclass(frozen=True)
class KeypointMatches:
    """Matched keypoints of two images, best first.

    Attributes:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        scores: (N,) larger is better; of no unit.
    """

    points0: Tensor
    points1: Tensor
    scores: Tensor


@dataclass(frozen=True)
class SiftKeypoints:
    """SIFT's keypoints with SIFT's descriptors (Lowe 2004), of the scale and direction found there.

    Attributes:
        max_count: keep the strongest so many.
    """

    max_count: int = 4096

    def extract(self, image: ImageLike) -> Keypoints:
        """Finds and describes the keypoints of the grey image."""
        found, descriptors = self.make_detector().detectAndCompute(to_grey(read_pixels(image)), None)
        rows = self._rank(found)
        return _collect(_list_points(found)[rows], None if descriptors is None else descriptors[rows])

    def detect(self, grey: GreyArray) -> FloatArray:
        """Places (K, 2) of the keypoints, strongest first; those of several directions count once."""
        found = self.make_detector().detect(grey, None)
        points = _list_points(found)[self._rank(found)]
        return points[np.sort(np.unique(points, axis=0, return_index=True)[1])]

    def _rank(self, keypoints: Sequence[cv2.KeyPoint]) -> list[int]:
        """Rows of the strongest; OpenCV gives more than asked for where some are equally strong."""
        order = sorted(range(len(keypoints)), key=lambda row: -keypoints[row].response)
        return order[: self.max_count]

    def make_detector(self) -> cv2.SIFT:
        """OpenCV's SIFT, which without precise upscaling finds everything 0.25 px too far right and down."""
        return cv2.SIFT.create(nfeatures=self.max_count, enable_precise_upscale=True)


class PointDescriber(Protocol):
    """Describes given points of an image; `DenseDaisy`, `DenseKaze` and `DenseSurf` do."""

    def describe_at(self, grey: GreyArray, points: FloatArray) -> FloatArray:
        """Descriptors (K, D) at points (K, 2)."""


@dataclass(frozen=True)
class GridDescriptorsAtKeypoints:
    """DAISY, KAZE or SURF of one size as on the grid, at SIFT's keypoints.

    Attributes:
        descriptor: which, with its settings.
        detector: of the keypoints.
    """

    descriptor: PointDescriber
    detector: SiftKeypoints = SiftKeypoints()

    def extract(self, image: ImageLike) -> Keypoints:
        """Finds and describes the keypoints of the grey image."""
        grey = to_grey(read_pixels(image))
        points = self.detector.detect(grey)
        if not len(points):
            return _collect(points, None)
        found = _collect(points, self.descriptor.describe_at(grey, points))
        # On blank surfaces OpenCV's DAISY divides by zero.
        return Keypoints(found.points, make_unit(found.descriptors, 1))


def match_keypoints(keypoints0: Keypoints, keypoints1: Keypoints, ratio: float = 1.0) -> KeypointMatches:
    """Keypoints that are each other's nearest by their descriptors.

    Args:
        keypoints0: of image 0.
        keypoints1: of image 1.
        ratio: largest share that a match's distance may be of the distance of the second nearest (Lowe 2004);
            1 switches the test off.

    Returns:
        Matches ordered by their distance, or by that share where the test is on.
    """
    descriptors0, descriptors1 = keypoints0.descriptors, keypoints1.descriptors
    if not len(descriptors0) or not len(descriptors1):
        nothing = torch.zeros(0, 2)
        return KeypointMatches(nothing, nothing, nothing[:, 0])
    partners = mutual_nearest(descriptors0, descriptors1)
    found = nearest(descriptors0, descriptors1, k=2)
    distances, seconds = found.distances[:, 0], found.distances[:, 1]
    is_kept = partners >= 0
    costs = distances
    if ratio < 1:
        costs = distances / seconds.clamp_min(1e-12)
        is_kept &= costs <= ratio
    rows = is_kept.nonzero()[:, 0]
    rows = rows[costs[rows].argsort(stable=True)]
    return KeypointMatches(keypoints0.points[rows], keypoints1.points[partners[rows]], -costs[rows])


def _list_points(keypoints: Sequence[cv2.KeyPoint]) -> FloatArray:
    return np.array([keypoint.pt for keypoint in keypoints], np.float32).reshape(-1, 2)


def _collect(points: FloatArray, descriptors: NDArray[Any] | None) -> Keypoints:
    described = np.zeros((0, 1), np.float32) if descriptors is None else np.asarray(descriptors, np.float32)
    return Keypoints(torch.from_numpy(points), torch.from_numpy(described))
