"""Stage 1: where each method finds the points of each pair, kept on disk; stage 2 reads nothing else."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ucn.evaluate.core.benchmark_pairs import (
    BenchmarkPair,
    PreparedPair,
    Rectangle,
    digest_pairs,
    is_inside_content,
)
from ucn.evaluate.core.cache import PredictionCache, Record, name_folder
from ucn.evaluate.core.predictions import (
    FeatureCache,
    Progress,
    Task,
    digest_image,
    predict_missing,
)
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.features.extractor import Extractor
from ucn.features.method import DenseMethod
from ucn.features.pair_matcher import Alignment, NearestNeighbours, PairMatcher, align_features
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.types import Features, FloatArray

VERSION = 1
"""Part of every key: raise it where code changes what is predicted."""

_FEATURE_BYTES = 96 * 2**20  # of recent images, for each method


class PointFinder(Protocol):
    """Finds the points of a pair in its own way, without dense features of both images."""

    @property
    def images(self) -> int:
        """Number of images of a pair whose features it extracts."""

    def find(self, pair: BenchmarkPair, prepared: PreparedPair) -> Tensor:
        """The points of a prepared pair in image 1: (N, 2) pixels, NaN where not found."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FinderMethod(DenseMethod):
    """A method whose points come from a `PointFinder`.

    Attributes:
        finder: finds the points.
    """

    finder: PointFinder

    @property
    def is_nearest(self) -> bool:
        """False."""
        return False


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with or without sub-cell refinement."""

    method: DenseMethod
    use_refinement: bool


@dataclass(frozen=True)
class PairPrediction:
    """What stage 2 needs of a pair.

    Attributes:
        pair: which pair.
        points0: (N, 2) the given points, in pixels of the prepared image 0.
        points1: (N, 2) ground truth in the prepared image 1.
        length: L of PCK@alpha; NaN where limits are pixels.
        predicted: (N, 2) by each variant, in the order of `Predictions.variants`; NaN where not found.
        seconds: of each variant: extracting features, the number of images of that, matching.
    """

    pair: BenchmarkPair
    points0: FloatArray
    points1: FloatArray
    length: float
    predicted: tuple[FloatArray, ...]
    seconds: tuple[FloatArray, ...]


@dataclass(frozen=True)
class Predictions:
    """All that stage 2 works on.

    Attributes:
        variants: what was evaluated.
        pairs: the evaluated pairs, in order.
        points_sha256: hash of all points and their ground truth, which is equal in comparable runs.
    """

    variants: tuple[Variant, ...]
    pairs: tuple[PairPrediction, ...]
    points_sha256: str


def predict_points(
    benchmark: Benchmark,
    pairs: Sequence[BenchmarkPair],
    chosen: Sequence[int],
    methods: Sequence[DenseMethod],
    cache: Path,
    *,
    refinements: Sequence[bool] = (True, False),
    seed: int = 0,
    device: torch.device | str = "cpu",
    jobs: int = 1,
    progress: Progress | None = None,
) -> Predictions:
    """Makes the predictions that the cache lacks, and reads all of them from it.

    Args:
        benchmark: its protocol.
        pairs: all pairs of the benchmark.
        chosen: rows of the pairs to evaluate.
        methods: what is evaluated.
        cache: folder of predictions.
        refinements: which variants of each method.
        seed: of the sampling of points.
        device: where matching runs.
        jobs: processes that share the pairs; those of a GPU share it.
        progress: called after each pair.

    Raises:
        UcnError: a file of the data is wrong, or the cache cannot be used.
    """
    key = {"version": VERSION, **benchmark.to_dict(seed), "data": digest_pairs(pairs)}
    folder = cache / benchmark.name
    queries = PredictionCache(folder, "queries", key)
    variants = [Variant(method, use) for method in methods for use in refinements]
    caches = [
        PredictionCache(
            folder,
            f"{name_folder(variant.method.name)}-{'refined' if variant.use_refinement else 'cells'}",
            {**key, "method": variant.method.key, "refinement": variant.use_refinement},
        )
        for variant in variants
    ]
    predictor = _Predictor(benchmark, pairs, variants, seed, torch.device(device))
    predict_missing(predictor, chosen, [queries, *caches], jobs, progress)
    return _collect(pairs, chosen, variants, queries, caches)


class _Predictor:
    """Reads a pair, samples its points, and finds them with each variant; cache 0 holds the points."""

    def __init__(
        self,
        benchmark: Benchmark,
        pairs: Sequence[BenchmarkPair],
        variants: Sequence[Variant],
        seed: int,
        device: torch.device,
    ) -> None:
        self._benchmark, self._pairs, self._seed = benchmark, pairs, seed
        self._variants = variants
        self._features = {
            variant.method.name: cache_features(variant.method.extractor, device) for variant in variants
        }

    @torch.no_grad()
    def __call__(self, task: Task) -> list[Record]:
        pair = self._pairs[task.pair]
        prepared = prepare_pair(self._benchmark, pair, self._seed)
        variants = [self._variants[number - 1] for number in task.missing if number > 0]
        matchers = {variant.method.name: _LastAlignment(variant.method.matcher) for variant in variants}
        records = [_record_query(prepared)] if 0 in task.missing else []
        images = [(image, digest_image(image)) for image in (prepared.sample.image0, prepared.sample.image1)]
        for variant in variants:
            method, begin = variant.method, time.perf_counter()
            if isinstance(method, FinderMethod):
                points1 = method.finder.find(pair, prepared)
                seconds = (time.perf_counter() - begin, float(method.finder.images), 0.0)
            else:
                cache, matcher = self._features[method.name], matchers[method.name]
                features = [cache.extract(*image) for image in images]
                begin = time.perf_counter()
                points1 = find_points(
                    features[0],
                    features[1],
                    prepared.sample.points0,
                    prepared.content1,
                    variant.use_refinement,
                    matcher,
                )
                seconds = (*cache.take_cost(), time.perf_counter() - begin + matcher.saved_seconds)
            answers = points1.cpu().numpy().astype(np.float32)
            records.append({"points1": answers, "seconds": np.array(seconds, np.float32)})
        return records


def _record_query(prepared: PreparedPair) -> Record:
    sample = prepared.sample
    length = np.nan if sample.pck_length is None else sample.pck_length
    return {
        "points0": sample.points0.numpy(),
        "points1": sample.points1.numpy(),
        "length": np.array(length, np.float64),
    }


def cache_features(extractor: Extractor, device: torch.device) -> FeatureCache[Features]:
    """A cache of dense features on a device."""
    extract = partial(_extract, extractor, device)
    return FeatureCache(extract, max_bytes=_FEATURE_BYTES, count_bytes=_count_bytes)


def _extract(extractor: Extractor, device: torch.device, image: Tensor) -> Features:
    features = extractor.extract(image)
    return replace(features, map=replace(features.map, features=features.map.features.to(device)))


def _count_bytes(features: Features) -> int:
    return features.map.features.nbytes


class _LastAlignment:
    """Aligns pairs and keeps the last alignment, for all variants of a method.

    Attributes:
        saved_seconds: what the alignment took, where it was kept; it counts for every variant.
    """

    def __init__(self, matcher: PairMatcher) -> None:
        self._matcher = matcher
        self._pair: tuple[Features, Features] | None = None
        self._kept: Alignment | None = None
        self._seconds = 0.0
        self.saved_seconds = 0.0

    def __call__(
        self, features0: Features, features1: Features, is_allowed1: Tensor | None = None
    ) -> Alignment:
        """Aligns a pair, or returns its kept alignment; a pair always has the same allowed cells."""
        is_known = self._pair is not None and self._pair[0] is features0 and self._pair[1] is features1
        if not is_known or self._kept is None:
            begin = time.perf_counter()
            self._kept = align_features(self._matcher, features0, features1, is_allowed1)
            self._pair, self._seconds = (features0, features1), time.perf_counter() - begin
            self.saved_seconds = 0.0
        else:
            self.saved_seconds = self._seconds
        return self._kept


def prepare_pair(benchmark: Benchmark, pair: BenchmarkPair, seed: int) -> PreparedPair:
    """A pair as all methods get it, with the sampled points."""
    sample = pair.read()
    if benchmark.points is not None:
        sample = sample.select(sample_points(len(sample), benchmark.points, seed, pair.name))
    return benchmark.preparation.apply(sample)


def sample_points(total: int, count: int, seed: int, name: str) -> Tensor:
    """`count` of `total` rows, sampled without replacement by a seed and the pair's name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randperm(total, generator=generator)[:count]


def find_points(
    features0: Features,
    features1: Features,
    points0: Tensor,
    content1: Rectangle,
    use_refinement: bool,
    align: Callable[[Features, Features, Tensor | None], Alignment] | None = None,
) -> Tensor:
    """Finds points (N, 2) of image 0 in image 1.

    Args:
        features0: of image 0.
        features1: of image 1, on the same device.
        points0: in pixels of the image whose features they are.
        content1: image 1 without its padding; points are searched in it.
        use_refinement: refine matches to sub-cell positions.
        align: aligns the pair; None takes the nearest descriptor of each point.

    Returns:
        (N, 2) pixels of image 1.
    """
    align = align or partial(align_features, NearestNeighbours())
    map0, map1 = features0.map, features1.map
    encoded0 = resize_points(
        points0.to(map0.features.device), resize_scale(features0.image_hw, map0.image_hw)
    )
    scale1 = resize_scale(map1.image_hw, features1.image_hw)
    is_allowed1 = None
    if content1 != (0, 0, features1.image_hw[1], features1.image_hw[0]):
        is_allowed1 = is_inside_content(resize_points(cell_centres(map1), scale1), content1)
    found = align(features0, features1, is_allowed1).find(encoded0, use_refinement)
    return resize_points(found, scale1)


def _collect(
    pairs: Sequence[BenchmarkPair],
    chosen: Sequence[int],
    variants: Sequence[Variant],
    queries: PredictionCache,
    caches: Sequence[PredictionCache],
) -> Predictions:
    digest = hashlib.sha256()
    collected = []
    for row in chosen:
        query, records = queries.get(row), [cache.get(row) for cache in caches]
        digest.update(query["points0"].tobytes() + query["points1"].tobytes())
        collected.append(
            PairPrediction(
                pair=pairs[row],
                points0=query["points0"],
                points1=query["points1"],
                length=float(query["length"]),
                predicted=tuple(record["points1"] for record in records),
                seconds=tuple(record["seconds"] for record in records),
            )
        )
    return Predictions(tuple(variants), tuple(collected), digest.hexdigest())
