"""Query points at keypoints of OpenCV's SIFT, and classical features with descriptors at keypoints only.

The paper's Figure 5b compares these: keypoints have the scale and direction that dense SIFT lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import cv2
import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ucn.data.pairs import PairData, Selection
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair, PreparedPair
from ucn.evaluate.core.predictions import FeatureCache, digest_image
from ucn.evaluate.points.predictions import FinderMethod
from ucn.features.classical import DenseDaisy, DenseKaze
from ucn.features.extractor import to_grey
from ucn.features.method import DenseMethod
from ucn.features.sparse import GridDescriptorsAtKeypoints, Keypoints, SiftKeypoints
from ucn.features.surf import DenseSurf
from ucn.geometry.coords import is_inside
from ucn.knn import nearest
from ucn.types import PairSample

MAX_DISTANCE = 1.5
"""Pixels from a keypoint to a point with known correspondence, whose displacement it gets."""

_SAME_POINT = 0.5  # pixels; the query point is one of the method's own keypoints
_KEPT_IMAGES = 12  # whose keypoints are kept, since pairs share images


class KeypointPairs(Selection):
    """Pairs of another data set with keypoints of image 0 as points, near points of known correspondence."""

    def __init__(self, data: PairData) -> None:
        super().__init__(data, range(len(data)))
        self._detector = SiftKeypoints()
        self.problems, self.notes = data.problems, data.notes

    def read(self, index: int) -> PairSample:
        """Reads a pair; each keypoint has the displacement of the nearest known point."""
        sample = super().read(index)
        found = self._detector.detect(to_grey(sample.image0))
        if not len(found) or not len(sample):
            return sample.select(torch.zeros(0, dtype=torch.int64))
        distances, rows = cKDTree(sample.points0.numpy()).query(found, distance_upper_bound=MAX_DISTANCE)
        is_near = np.isfinite(distances)
        points0, near = torch.from_numpy(found[is_near]), torch.from_numpy(rows[is_near])
        points1 = sample.points1[near] + points0 - sample.points0[near]
        is_visible = is_inside(points1, (sample.image1.shape[-2], sample.image1.shape[-1]))
        return PairSample(sample.image0, sample.image1, points0[is_visible], points1[is_visible], sample.name)


@dataclass(frozen=True, eq=False)
class KeypointFinder:
    """Finds points as the keypoint of image 1 with the nearest descriptor; a `PointFinder`.

    Attributes:
        extractor: detects keypoints and computes their descriptors.
        images: of a pair whose keypoints it extracts.
    """

    extractor: SiftKeypoints | GridDescriptorsAtKeypoints
    images: int = 2
    _kept: FeatureCache[Keypoints] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kept", FeatureCache(self.extractor.extract, _KEPT_IMAGES))

    def find(self, pair: BenchmarkPair, prepared: PreparedPair) -> Tensor:
        """Points (N, 2) of image 0, each a keypoint, in image 1; NaN where one is no keypoint."""
        sample = prepared.sample
        own0, own1 = (
            self._kept.extract(image, digest_image(image)) for image in (sample.image0, sample.image1)
        )
        found = torch.full((len(sample), 2), float("nan"))
        if not len(sample) or not len(own0.points) or not len(own1.points):
            return found
        distances, rows = cKDTree(own0.points.numpy()).query(sample.points0.numpy())
        is_own = torch.from_numpy(distances <= _SAME_POINT)
        queries = own0.descriptors[torch.from_numpy(rows)[is_own]]
        if len(queries):
            found[is_own] = own1.points[nearest(queries, own1.descriptors).indices[:, 0]]
        return found


_WHERE = f"at up to {SiftKeypoints.max_count:,} keypoints of OpenCV's SIFT"
_AT_KEYPOINTS: Mapping[str, tuple[str, SiftKeypoints | GridDescriptorsAtKeypoints]] = {
    "sift": (f"SIFT {_WHERE}, with the scale and orientation of each keypoint", SiftKeypoints()),
    "daisy": (f"DAISY as on the grid, {_WHERE}", GridDescriptorsAtKeypoints(DenseDaisy())),
    "kaze": (f"KAZE as on the grid, {_WHERE}", GridDescriptorsAtKeypoints(DenseKaze())),
    "surf": (f"SURF as on the grid, {_WHERE}", GridDescriptorsAtKeypoints(DenseSurf())),
}


def move_to_keypoints(methods: Sequence[DenseMethod]) -> list[DenseMethod]:
    """Classical features at keypoints in place of the same features on a grid; others stay dense."""
    return [_move(method) for method in methods]


def _move(method: DenseMethod) -> DenseMethod:
    # The key distinguishes the package's baselines from weights files of the same name.
    if method.name not in _AT_KEYPOINTS or method.name not in method.key:
        return method
    title, extractor = _AT_KEYPOINTS[method.name]
    key = {"keypoints": method.name, "settings": asdict(extractor), "opencv": cv2.__version__}
    name = f"{method.name} at keypoints"
    return FinderMethod(name, title, key, extractor=method.extractor, finder=KeypointFinder(extractor))
