"""Stage 1 of `hpatches-matches`: the matches that a method chooses, kept on disk.

The benchmark `hpatches` gives every method the same points. Here a method chooses its matches. Networks match
the corners of image 0 as `ucn.Matcher` does, with sub-pixel positions in image 1; LightGlue matches keypoints
of its detector; of other methods, keypoints of both images that are each other's nearest neighbours match, or
best matches by similarity and neighbourhood consensus. Of networks the matches of all corners are kept, too,
with their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.config import MatchConfig
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
from ucn.features.lightglue import LightGlueMethod, SizedKeypoints
from ucn.features.method import DenseMethod
from ucn.folders.detectors import MIN_DISTANCE
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.geometry.warp import homography_from_points
from ucn.knn import mutual_nearest
from ucn.matching.consensus import measure_consensus
from ucn.matching.guided import match_guided
from ucn.matching.keypoints import detect_corners
from ucn.matching.matcher import Matcher
from ucn.types import Features, FloatArray, Matches

HPATCHES = find_benchmark("hpatches")
"""The benchmark whose pairs are matched."""
KEYPOINTS = 1000
"""Corners of each image, for methods without keypoints of their own; the most keypoints of LightGlue's."""
VERSION = 2
"""Part of every key: raise it where code changes what is predicted."""

_MATCHER_VERSION = 4  # part of the keys of networks: raise it where `Matcher` changes what it keeps
_KEPT_IMAGES = 8  # whose keypoints LightGlue's methods keep, since pairs share image 1
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
        points0: (K, 2) matched points of image 0, keypoints.
        points1: (K, 2) their matches; of networks not keypoints, but any positions.
        scored: (S, 5) of a network: x0, y0, x1, y1 and score of the matches of all keypoints of image 0;
            (0, 5) of other methods, which have no scores in [0, 1].
    """

    pair: BenchmarkPair
    true_0to1: NDArray[np.float64]
    content0: Rectangle
    content1: Rectangle
    keypoints0: FloatArray
    keypoints1: FloatArray
    points0: FloatArray
    points1: FloatArray
    scored: FloatArray


MatchingMethod = DenseMethod | LightGlueMethod
"""A method that can be evaluated here."""


def predict_matches(
    methods: Sequence[MatchingMethod],
    chosen: Sequence[int],
    pairs: Sequence[BenchmarkPair],
    cache: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    jobs: int = 1,
) -> dict[str, list[MatchedPair]]:
    """The matches of each method in each chosen pair; those in the cache are not predicted again.

    Args:
        methods: what is evaluated.
        chosen: rows of the pairs to evaluate.
        pairs: all pairs of HPatches.
        cache: folder of predictions.
        device: where matching runs.
        progress: called after each pair.
        jobs: processes that share the pairs; those of a GPU share it.
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
        PredictionCache(
            folder,
            name_folder(method.name),
            {**key, "method": method.key, **({"matcher": _MATCHER_VERSION} if _is_network(method) else {})},
        )
        for method in methods
    ]
    predictor = _Predictor(pairs, methods, torch.device(device))
    predict_missing(predictor, chosen, [truths, *caches], jobs, progress)
    return {
        method.name: [_collect(pairs[row], truths.get(row), own.get(row)) for row in chosen]
        for method, own in zip(methods, caches, strict=True)
    }


class _Predictor:
    """Reads a pair, and matches it with each method; cache 0 holds the ground truth."""

    def __init__(
        self, pairs: Sequence[BenchmarkPair], methods: Sequence[MatchingMethod], device: torch.device
    ) -> None:
        self._pairs = pairs
        self._matchers = [_make_matcher(method, device) for method in methods]

    @torch.no_grad()
    def __call__(self, task: Task) -> list[Record]:
        prepared = prepare_pair(HPATCHES, self._pairs[task.pair], seed=0)
        return [
            self._matchers[number - 1](prepared) if number else _record_truth(prepared)
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


def _make_matcher(method: MatchingMethod, device: torch.device) -> Callable[[PreparedPair], Record]:
    if isinstance(method, LightGlueMethod):
        return partial(_match_by_method, method, FeatureCache(method.extract, _KEPT_IMAGES))
    cache = cache_features(method.extractor, device)
    if isinstance(method.extractor, Matcher):
        return partial(_match_by_network, method.extractor, method.uses_consensus, cache)
    return partial(_match, method, cache)


def _is_network(method: MatchingMethod) -> bool:
    return isinstance(method.extractor, Matcher)


def _match_by_method(
    method: LightGlueMethod, cache: FeatureCache[SizedKeypoints], prepared: PreparedPair
) -> Record:
    """Matches of a method with its own matcher, from as many keypoints as the others have corners."""
    sample, found = prepared.sample, []
    for image, content in ((sample.image0, prepared.content0), (sample.image1, prepared.content1)):
        features = cache.extract(image, digest_image(image))
        found.append(features.select(is_inside_content(features.points, content)).select(slice(KEYPOINTS)))
    keypoints0, keypoints1 = (features.points.cpu().numpy() for features in found)
    rows, _ = method.match_rows(*found)
    return {"keypoints0": keypoints0, "keypoints1": keypoints1, "rows": rows.numpy()}


def _match_by_network(
    matcher: Matcher, consensus: bool, cache: FeatureCache[Features], prepared: PreparedPair
) -> Record:
    """The matches of `Matcher.match` for the corners of image 0, and all of them with their scores."""
    sample, both, masks = prepared.sample, [], []
    for image, content in ((sample.image0, prepared.content0), (sample.image1, prepared.content1)):
        features = cache.extract(image, digest_image(image))
        points = find_keypoints(matcher, image, features)
        both.append(replace(features, keypoints=points[is_inside_content(points, content)]))
        masks.append(np.zeros(features.image_hw, np.bool_))
        masks[-1][content[1] : content[3], content[0] : content[2]] = True

    def match(**settings: Any) -> Matches:
        config = MatchConfig(max_side=None, consensus=consensus, **settings)
        return matcher.with_config(config).match_features(*both, mask0=masks[0], mask1=masks[1])

    found, scored = match(), match(min_score=0.0, use_mutual=False)
    return {
        "keypoints0": both[0].keypoints.numpy().astype(np.float32),
        "keypoints1": both[1].keypoints.numpy().astype(np.float32),
        "matches": np.concatenate([found.points0, found.points1], axis=1),
        "scored": np.concatenate([scored.points0, scored.points1, scored.scores[:, None]], axis=1),
    }


def _match(method: DenseMethod, cache: FeatureCache[Features], prepared: PreparedPair) -> Record:
    sample = prepared.sample
    both, keypoints, encoded, descriptors = [], [], [], []
    for image, content in ((sample.image0, prepared.content0), (sample.image1, prepared.content1)):
        features = cache.extract(image, digest_image(image))
        points = find_keypoints(method.extractor, image, features)
        points = points[is_inside_content(points, content)]
        both.append(features)
        keypoints.append(points.numpy().astype(np.float32))
        encoded.append(_to_encoded(features, points))
        descriptors.append(sample_descriptors(features.map, encoded[-1][None])[0])
    if method.uses_consensus:
        consensus = measure_consensus(
            both[0].map,
            both[1].map,
            is_allowed0=_cells_inside(both[0], prepared.content0),
            is_allowed1=_cells_inside(both[1], prepared.content1),
        )
        found = match_guided(descriptors[0], descriptors[1], encoded[0], encoded[1], consensus)
    else:
        found = mutual_nearest(descriptors[0], descriptors[1])
    nearest = found.cpu().numpy()
    rows = np.flatnonzero(nearest >= 0)
    return {
        "keypoints0": keypoints[0],
        "keypoints1": keypoints[1],
        "rows": np.stack([rows, nearest[rows]], axis=-1).astype(np.int64),
    }


def _cells_inside(features: Features, content: Rectangle) -> Tensor:
    """Bool (h * w,): the cells whose centres lie in an image without its padding."""
    scale = resize_scale(features.map.image_hw, features.image_hw)
    return is_inside_content(resize_points(cell_centres(features.map), scale), content)


def find_keypoints(extractor: Extractor, image: Tensor, features: Features) -> Tensor:
    """(N, 2) pixels, on the CPU: the method's own keypoints if it has any, else corners."""
    if has_own_keypoints(extractor):
        return features.keypoints.cpu()
    return detect_corners(image, KEYPOINTS, min_distance=MIN_DISTANCE).points


def _to_encoded(features: Features, points: Tensor) -> Tensor:
    """Points of the image in pixels of the encoded image."""
    scale = resize_scale(features.image_hw, features.map.image_hw)
    return resize_points(points.to(features.map.features.device), scale)


def _collect(pair: BenchmarkPair, truth: Record, record: Record) -> MatchedPair:
    content0, content1 = (tuple(truth[name].tolist()) for name in ("content0", "content1"))
    keypoints0, keypoints1 = record["keypoints0"], record["keypoints1"]
    if "matches" in record:
        points0, points1 = record["matches"][:, :2], record["matches"][:, 2:]
    else:
        points0, points1 = keypoints0[record["rows"][:, 0]], keypoints1[record["rows"][:, 1]]
    return MatchedPair(
        pair,
        truth["truth_0to1"],
        content0,
        content1,
        keypoints0,
        keypoints1,
        points0,
        points1,
        scored=record.get("scored", np.zeros((0, 5), np.float32)),
    )
