"""HPatches by matches that are kept: keypoints of both images, mutual nearest neighbours, homographies.

The benchmark `hpatches` asks every method for the same points. Here a method says itself what it trusts: a
match is kept where both keypoints are each other's nearest, and from the matches a homography is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.evaluate.core.cache import Record, RecordStore, digest_data
from ucn.evaluate.core.feature_cache import Describer, digest_image
from ucn.evaluate.core.methods import Method
from ucn.evaluate.core.preparation import Rectangle
from ucn.evaluate.points.benchmarks import Benchmark, Entry, find_benchmark
from ucn.evaluate.points.predictions import Progress, show_pair
from ucn.features import Extractor
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.geometry.warp import homography_from_points
from ucn.knn import mutual_nearest
from ucn.matching.keypoints import detect_corners
from ucn.types import Features, FloatArray

KEYPOINTS = 1000
"""Corners of each image, for methods that have no keypoints of their own."""
INLIER_PIXELS = 3.0
"""Within which a match supports a homography."""
VERSION = 1
"""Goes into every key: raise it where code changes what is predicted."""

_TRUTH_POINTS = 200  # from which the homography between the shown images is computed
_RANSAC_ITERATIONS, _RANSAC_CONFIDENCE = 5000, 0.9999


@dataclass(frozen=True)
class MatchedPair:
    """What is scored of a pair and a method.

    Attributes:
        entry: which pair.
        truth_0to1: (3, 3) the true homography between the images as they were shown.
        content0: where the picture is in image 0.
        content1: where it is in image 1.
        keypoints0: (N, 2) that were found in image 0.
        keypoints1: (M, 2) that were found in image 1.
        rows: (K, 2) int64 rows of both that match.
    """

    entry: Entry
    truth_0to1: NDArray[np.float64]
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
        """(K, 2) their partners in image 1."""
        return self.keypoints1[self.rows[:, 1]]


def match_pairs(
    methods: Sequence[Method],
    chosen: Sequence[int],
    entries: Sequence[Entry],
    cache: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, list[MatchedPair]]:
    """Matches of each method on each chosen pair; those in the cache are not made again.

    Args:
        methods: each with an `Extractor`.
        chosen: which of the entries.
        entries: all pairs of HPatches.
        cache: folder of predictions.
        device: where matching runs.
        progress: called after each pair.
    """
    benchmark = find_benchmark("hpatches")
    pairs = [(entry.name, entry.data.pair_files(entry.index)) for entry in entries]
    key = {"version": VERSION, "matches": KEYPOINTS, **benchmark.to_dict(0), "data": digest_data(pairs)}
    place = cache / "hpatches-matches"
    truths = RecordStore(place, "truths", key)
    stores = {method: RecordStore(place, _name(method), {**key, "method": method.key}) for method in methods}
    describers = {method: Describer(method.extractor, torch.device(device)) for method in methods}
    try:
        for done, number in enumerate(chosen, start=1):
            missing = [method for method in methods if number not in stores[method]]
            if missing or number not in truths:
                images, truth = _read_pair(benchmark, entries[number])
                truths.put(number, truth)
                for method in missing:
                    stores[method].put(number, _match(describers[method], method.extractor, images, truth))
            if progress is not None:
                progress(done, len(chosen))
    finally:
        for store in (truths, *stores.values()):
            store.flush()
    return {
        method.name: [_collect(entries[number], truths.get(number), store.get(number)) for number in chosen]
        for method, store in stores.items()
    }


def _name(method: Method) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in method.name)


def _read_pair(benchmark: Benchmark, entry: Entry) -> tuple[tuple[Tensor, Tensor], Record]:
    """Both images as shown, the homography between them, and where their pictures are."""
    prepared = show_pair(benchmark, entry, seed=0)
    sample = prepared.sample
    points0, points1 = (points[:_TRUTH_POINTS].double() for points in (sample.points0, sample.points1))
    # Without four points that both images see, no match can be right, and none is asked to be.
    truth = homography_from_points(points0, points1).numpy() if len(points0) >= 4 else np.full((3, 3), np.nan)
    record: Record = {
        "truth_0to1": np.asarray(truth, np.float64),
        "content0": np.array(prepared.content0, np.int64),
        "content1": np.array(prepared.content1, np.int64),
    }
    return (sample.image0, sample.image1), record


@torch.no_grad()
def _match(
    describer: Describer, extractor: Extractor, images: tuple[Tensor, Tensor], truth: Mapping[str, Any]
) -> Record:
    found = []
    for image, content in zip(images, (truth["content0"], truth["content1"]), strict=True):
        features = describer.describe(image, digest_image(image))
        keypoints = find_keypoints(extractor, image, features)
        found.append((features, keypoints[_is_on_picture(keypoints, content)]))
    descriptors = [_describe(features, keypoints) for features, keypoints in found]
    partners = mutual_nearest(descriptors[0], descriptors[1]).cpu().numpy()
    rows = np.flatnonzero(partners >= 0)
    return {
        "keypoints0": found[0][1].numpy().astype(np.float32),
        "keypoints1": found[1][1].numpy().astype(np.float32),
        "rows": np.stack([rows, partners[rows]], axis=-1).astype(np.int64),
    }


def find_keypoints(extractor: Extractor, image: Tensor, features: Features) -> Tensor:
    """(N, 2) pixels, on the CPU: the method's own where it has such, else the strongest corners."""
    if getattr(extractor, "has_own_keypoints", False):
        return features.keypoints.cpu()
    return detect_corners(image, KEYPOINTS)


def _is_on_picture(points: Tensor, content: NDArray[np.int64]) -> Tensor:
    left, top, right, bottom = content.tolist()
    low, high = points.new_tensor([left, top]) - 0.5, points.new_tensor([right, bottom]) - 0.5
    return ((points >= low) & (points <= high)).all(dim=1)


def _describe(features: Features, keypoints: Tensor) -> Tensor:
    """Descriptors (N, D) at points of the image."""
    scale = resize_scale(features.image_hw, features.map.image_hw)
    places = resize_points(keypoints.to(features.map.features.device), scale)
    return sample_descriptors(features.map, places[None])[0]


def _collect(entry: Entry, truth: Record, record: Record) -> MatchedPair:
    content0, content1 = (tuple(truth[name].tolist()) for name in ("content0", "content1"))
    return MatchedPair(
        entry,
        truth["truth_0to1"],
        content0,
        content1,
        record["keypoints0"],
        record["keypoints1"],
        record["rows"],
    )


def estimate_homography(points0: FloatArray, points1: FloatArray, seed: int) -> NDArray[np.float64] | None:
    """A homography (3, 3) from matches (N, 2), by OpenCV's RANSAC; None where there is none.

    Args:
        points0: pixels of image 0.
        points1: pixels of image 1.
        seed: of the draws.
    """
    if len(points0) < 4:
        return None
    cv2.setRNGSeed(seed)
    found, _ = cv2.findHomography(
        points0.reshape(-1, 1, 2).astype(np.float64),
        points1.reshape(-1, 1, 2).astype(np.float64),
        cv2.RANSAC,
        INLIER_PIXELS,
        maxIters=_RANSAC_ITERATIONS,
        confidence=_RANSAC_CONFIDENCE,
    )
    return None if found is None else np.asarray(found, np.float64)
