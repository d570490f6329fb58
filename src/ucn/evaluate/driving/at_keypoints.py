"""Questions at the keypoints of OpenCV's SIFT, and hand-made features that are described there only.

So the paper's Figure 5b compares: what dense SIFT loses to a fixed size and direction, keypoints give back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import cv2
import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ucn.data.pairs import DataFile, PairData
from ucn.data.sets.posed.views import RecentCache
from ucn.evaluate.core.benchmark_pairs import Entry
from ucn.evaluate.core.feature_cache import digest_image
from ucn.evaluate.core.method_types import Method
from ucn.evaluate.core.preparation import Prepared
from ucn.features import DenseDaisy, DenseKaze
from ucn.features.extractor import to_grey
from ucn.features.sparse import GridDescriptorsAtKeypoints, Keypoints, SiftKeypoints
from ucn.features.surf import DenseSurf
from ucn.geometry.coords import is_inside
from ucn.knn import nearest
from ucn.types import PairSample

MAX_DISTANCE = 1.5
"""Pixels from a keypoint to the point whose correspondence is known and moves along with it."""

_SAME_PLACE = 0.5  # pixels; a question is one of the method's own keypoints
_KEPT_IMAGES = 12  # whose keypoints are kept, since pairs share images


class KeypointQuestions(PairData):
    """Pairs of another set, asked at keypoints of image 0 that lie beside points of known correspondence."""

    def __init__(self, data: PairData) -> None:
        super().__init__(data.root)
        self._data, self._detector = data, SiftKeypoints()
        self.faults, self.notes = data.faults, data.notes

    def __len__(self) -> int:
        return len(self._data)

    def pair_name(self, index: int) -> str:
        """The name that the set gives it."""
        return self._data.pair_name(index)

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two images."""
        return self._data.image_paths(index)

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The files that the set makes it of."""
        return self._data.pair_files(index)

    def files(self) -> Sequence[DataFile]:
        """All files of the set."""
        return self._data.files()

    def read(self, index: int) -> PairSample:
        """Reads a pair; each keypoint moves as the nearest known point does."""
        sample = self._data.read(index)
        found = self._detector.detect(to_grey(sample.image0))
        if not len(found) or not len(sample):
            return sample.select(torch.zeros(0, dtype=torch.int64))
        distances, rows = cKDTree(sample.points0.numpy()).query(found, distance_upper_bound=MAX_DISTANCE)
        is_near = np.isfinite(distances)
        points0, near = torch.from_numpy(found[is_near]), torch.from_numpy(rows[is_near])
        points1 = sample.points1[near] + points0 - sample.points0[near]
        is_seen = is_inside(points1, (sample.image1.shape[-2], sample.image1.shape[-1]))
        return PairSample(sample.image0, sample.image1, points0[is_seen], points1[is_seen], sample.name)


@dataclass(frozen=True, eq=False)
class KeypointAnswerer:
    """Answers by the keypoint of image 1 whose descriptor is nearest.

    Attributes:
        extractor: finds and describes keypoints.
        images: that it describes of a pair.
    """

    extractor: SiftKeypoints | GridDescriptorsAtKeypoints
    images: int = 2
    _kept: RecentCache[str, Keypoints] = field(default_factory=lambda: RecentCache(_KEPT_IMAGES), repr=False)

    def find(self, entry: Entry, prepared: Prepared) -> Tensor:
        """Where points (N, 2) of image 0, each a keypoint, lie in image 1; NaN where one is no keypoint."""
        sample = prepared.sample
        own0, own1 = (self._describe(image) for image in (sample.image0, sample.image1))
        answers = torch.full((len(sample), 2), float("nan"))
        if not len(sample) or not len(own0.points) or not len(own1.points):
            return answers
        distances, rows = cKDTree(own0.points.numpy()).query(sample.points0.numpy())
        is_own = torch.from_numpy(distances <= _SAME_PLACE)
        asked = own0.descriptors[torch.from_numpy(rows)[is_own]]
        if len(asked):
            answers[is_own] = own1.points[nearest(asked, own1.descriptors).indices[:, 0]]
        return answers

    def _describe(self, image: Tensor) -> Keypoints:
        return self._kept.get(digest_image(image), lambda: self.extractor.extract(image))


_WHERE = f"at up to {SiftKeypoints.max_count:,} keypoints of OpenCV's SIFT"
_AT_KEYPOINTS: Mapping[str, tuple[str, SiftKeypoints | GridDescriptorsAtKeypoints]] = {
    "sift": (f"SIFT {_WHERE}, of the size and direction found there", SiftKeypoints()),
    "daisy": (f"DAISY as on the grid, {_WHERE}", GridDescriptorsAtKeypoints(DenseDaisy())),
    "kaze": (f"KAZE as on the grid, {_WHERE}", GridDescriptorsAtKeypoints(DenseKaze())),
    "surf": (f"SURF as on the grid, {_WHERE}", GridDescriptorsAtKeypoints(DenseSurf())),
}


def move_to_keypoints(methods: Sequence[Method]) -> list[Method]:
    """Hand-made features at keypoints in place of the same on a grid; other methods stay dense."""
    return [_move(method) for method in methods]


def _move(method: Method) -> Method:
    # The key tells the package's own baselines from weights files that are called alike.
    if method.name not in _AT_KEYPOINTS or method.name not in method.key:
        return method
    title, extractor = _AT_KEYPOINTS[method.name]
    key = {"keypoints": method.name, "settings": asdict(extractor), "opencv": cv2.__version__}
    name = f"{method.name} at keypoints"
    return Method(name, title, key, method.extractor, answerer=KeypointAnswerer(extractor))
