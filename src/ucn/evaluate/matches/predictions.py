"""Stage 1 of `hpatches-matches`: keypoints of both images and their mutual nearest neighbours, kept on disk.

The benchmark `hpatches` gives every method the same points. Here a method chooses its matches: keypoints
that are each other's nearest neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.evaluate.core.benchmark_pairs import (
    BenchmarkPair,
    PreparedPair,
    Rectangle,
    digest_pairs,
    is_inside_content,
)
from ucn.evaluate.core.cache import PredictionCache, Record, name_folder
from ucn.evaluate.core.predictions import FeatureCache, Progress, Task, digest_image, predict_missing
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.predictions import cache_features, prepare_pair
from ucn.features.extractor import Extractor, has_own_keypoints
from ucn.features.method import DenseMethod
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.geometry.warp import homography_from_points
from ucn.knn import mutual_nearest
from ucn.matching.keypoints import detect_corners
from ucn.types import Features, FloatArray

HPATCHES = find_benchmark("hpatches")
"""The benchmark whose pairs are matched."""
KEYPOINTS = 1000
"""Corners of each image, for methods that have no keypoints of their own."""
VERSION = 1
"""Part of every key: raise it where code changes what is predicted."""

_HOMOGRAPHY_POINTS = 200  # correspondences from which the true homography of prepared images is computed


@dataclass(frozen=True)
class MatchedPair:
    """The matches of a method in a pair.

    Attributes:
        pair: which pair.
        true_0to1: (3, 3) the true homography between the prepared images.
        content0: image 0 without its padding.
        content1: image 1 without its padding.
        keypoints0: (N, 2) keypoints of image 0.
        keypoints1: (M, 2) keypoints of image 1.
        rows: (K, 2) int64 rows of both that match.
    """

    pair: BenchmarkPair
    true_0to1: NDArray[np.float64]
    content0: Rectangle
    content1: Rectangle
    keypoints0: FloatArray
    keypoints1: FloatArray
    rows: NDArray[np.int64]

    @property
    def points0(self) -> FloatArray:
        """(K, 2) matched keypoints of image 0."""
        return self.keypoints0[self.rows[:, 0]]

    @property
    def points1(self) -> FloatArray:
        """(K, 2) matched keypoints of image 1."""
        return self.keypoints1[self.rows[:, 1]]


def predict_matches(
    methods: Sequence[DenseMethod],
    chosen: Sequence[int],
    pairs: Sequence[BenchmarkPair],
    cache: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, list[MatchedPair]]:
    """The matches of each method in each chosen pair; those in the cache are not predicted again.

    Args:
        methods: what is evaluated.
        chosen: rows of the pairs to evaluate.
        pairs: all pairs of HPatches.
        cache: folder of predictions.
        device: where matching runs.
        progress: called after each pair.
    """
    key = {
        "version": VERSION,
        "matches": KEYPOINTS,
        **HPATCHES.to_dict(0),
        "data": digest_pairs(pairs),
    }
    folder = cache / "hpatches-matches"
    truths = PredictionCache(folder, "truths", key)
    caches = [
        PredictionCache(folder, name_folder(method.name), {**key, "method": method.key}) for method in methods
    ]
    predictor = _Predictor(pairs, methods, torch.device(device))
    predict_missing(predictor, chosen, [truths, *caches], progress=progress)
    return {
        method.name: [_collect(pairs[row], truths.get(row), own.get(row)) for row in chosen]
        for method, own in zip(methods, caches, strict=True)
    }


class _Predictor:
    """Reads a pair, and matches it with each method; cache 0 holds the ground truth."""

    def __init__(
        self, pairs: Sequence[BenchmarkPair], methods: Sequence[DenseMethod], device: torch.device
    ) -> None:
        self._pairs = pairs
        self._extractors = [method.extractor for method in methods]
        self._features = [cache_features(extractor, device) for extractor in self._extractors]

    @torch.no_grad()
    def __call__(self, task: Task) -> list[Record]:
        prepared = prepare_pair(HPATCHES, self._pairs[task.pair], seed=0)
        return [
            _match(self._extractors[number - 1], self._features[number - 1], prepared)
            if number
            else _record_truth(prepared)
            for number in task.missing
        ]


def _record_truth(prepared: PreparedPair) -> Record:
    sample = prepared.sample
    points0, points1 = (points[:_HOMOGRAPHY_POINTS].double() for points in (sample.points0, sample.points1))
    # Without four points that are visible in both images no match can be correct.
    truth = homography_from_points(points0, points1).numpy() if len(points0) >= 4 else np.full((3, 3), np.nan)
    return {
        "truth_0to1": np.asarray(truth, np.float64),
        "content0": np.array(prepared.content0, np.int64),
        "content1": np.array(prepared.content1, np.int64),
    }


def _match(extractor: Extractor, cache: FeatureCache[Features], prepared: PreparedPair) -> Record:
    sample = prepared.sample
    keypoints, descriptors = [], []
    for image, content in ((sample.image0, prepared.content0), (sample.image1, prepared.content1)):
        features = cache.extract(image, digest_image(image))
        points = find_keypoints(extractor, image, features)
        points = points[is_inside_content(points, content)]
        keypoints.append(points.numpy().astype(np.float32))
        descriptors.append(_sample(features, points))
    nearest = mutual_nearest(descriptors[0], descriptors[1]).cpu().numpy()
    rows = np.flatnonzero(nearest >= 0)
    return {
        "keypoints0": keypoints[0],
        "keypoints1": keypoints[1],
        "rows": np.stack([rows, nearest[rows]], axis=-1).astype(np.int64),
    }


def find_keypoints(extractor: Extractor, image: Tensor, features: Features) -> Tensor:
    """(N, 2) pixels, on the CPU: the method's own keypoints if it has any, else the strongest corners."""
    if has_own_keypoints(extractor):
        return features.keypoints.cpu()
    return detect_corners(image, KEYPOINTS).points


def _sample(features: Features, keypoints: Tensor) -> Tensor:
    """Descriptors (N, D) at points of the image."""
    scale = resize_scale(features.image_hw, features.map.image_hw)
    points = resize_points(keypoints.to(features.map.features.device), scale)
    return sample_descriptors(features.map, points[None])[0]


def _collect(pair: BenchmarkPair, truth: Record, record: Record) -> MatchedPair:
    content0, content1 = (tuple(truth[name].tolist()) for name in ("content0", "content1"))
    names = ("keypoints0", "keypoints1", "rows")
    return MatchedPair(pair, truth["truth_0to1"], content0, content1, *(record[name] for name in names))
