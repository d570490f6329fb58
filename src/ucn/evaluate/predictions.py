"""Stage 1: where each method finds the points of each pair, kept on disk; stage 2 reads nothing else."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.baselines import Extractor
from ucn.evaluate.benchmarks import Benchmark, Entry
from ucn.evaluate.cache import Record, RecordStore
from ucn.evaluate.methods import Method
from ucn.evaluate.preparation import Rectangle
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.matching import match_cells
from ucn.types import Features, FloatArray

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""

VERSION = 1
"""Goes into every key: raise it where code changes what is predicted."""

_FEATURE_BYTES = 96 * 2**20  # of each method's features that are kept, since pairs share images


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with or without refinement."""

    method: Method
    use_refinement: bool


@dataclass(frozen=True)
class PairPrediction:
    """What stage 2 needs of a pair.

    Attributes:
        entry: which pair.
        points1: (N, 2) true points in image 1, in pixels as methods saw it.
        length: L of PCK@alpha; NaN where limits are pixels.
        found: (N, 2) by each variant, in the order of `Predictions.variants`; NaN where nothing was found.
        seconds: of each variant: describing its images, how many images that were, matching.
    """

    entry: Entry
    points1: FloatArray
    length: float
    found: tuple[FloatArray, ...]
    seconds: tuple[FloatArray, ...]


@dataclass(frozen=True)
class Predictions:
    """All that stage 2 works on.

    Attributes:
        variants: what was measured.
        pairs: the pairs that were asked, in order.
        points_sha256: of all true points, so that two runs can show that they asked the same.
    """

    variants: tuple[Variant, ...]
    pairs: tuple[PairPrediction, ...]
    points_sha256: str


def predict_pairs(
    benchmark: Benchmark,
    entries: Sequence[Entry],
    chosen: Sequence[int],
    methods: Sequence[Method],
    cache: Path,
    *,
    refinements: Sequence[bool] = (True, False),
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Predictions:
    """Makes the predictions that are not yet in the cache, and reads all of them from it.

    Args:
        benchmark: its protocol.
        entries: all pairs of the benchmark.
        chosen: which of them are asked.
        methods: what is measured.
        cache: folder of predictions.
        refinements: which variants of each method.
        seed: of the choice of points.
        device: where matching runs.
        progress: called after each pair.

    Raises:
        UcnError: a file of the data is wrong, or the cache cannot be used.
    """
    key = {"version": VERSION, **benchmark.to_dict(seed), "data": _digest_data(entries)}
    folder = cache / benchmark.name
    queries = RecordStore(folder, "queries", key)
    stores = {
        Variant(method, use): RecordStore(folder, _name(method, use), _key(key, method, use))
        for method in methods
        for use in refinements
    }
    worker = _Worker(benchmark, methods, seed, torch.device(device))
    try:
        for done, number in enumerate(chosen, start=1):
            missing = [variant for variant, store in stores.items() if number not in store]
            if missing or number not in queries:
                query, found = worker.predict(entries[number], missing)
                queries.put(number, query)
                for variant in missing:
                    stores[variant].put(number, found[variant])
            if progress is not None:
                progress(done, len(chosen))
    finally:
        for store in (queries, *stores.values()):
            store.flush()
    return _collect(entries, chosen, queries, stores)


def _name(method: Method, use_refinement: bool) -> str:
    safe = "".join(letter if letter.isalnum() else "_" for letter in method.name)
    return f"{safe}-{'refined' if use_refinement else 'cells'}"


def _key(key: Mapping[str, Any], method: Method, use_refinement: bool) -> dict[str, Any]:
    return {**key, "method": method.key, "refinement": use_refinement}


def _digest_data(entries: Sequence[Entry]) -> str:
    """Of the names of all pairs, and of names and sizes of their files."""
    digest = hashlib.sha256()
    for entry in entries:
        files = [(path.name, path.stat().st_size) for path in entry.data.pair_files(entry.index)]
        digest.update(json.dumps([entry.name, files]).encode())
    return digest.hexdigest()


class _Worker:
    """Reads a pair, draws its points, and asks methods for them."""

    def __init__(
        self, benchmark: Benchmark, methods: Sequence[Method], seed: int, device: torch.device
    ) -> None:
        self._benchmark, self._seed, self._device = benchmark, seed, device
        self._describers = {method.name: _Describer(method.extractor, device) for method in methods}

    @torch.no_grad()
    def predict(self, entry: Entry, variants: Sequence[Variant]) -> tuple[Record, dict[Variant, Record]]:
        """What is asked of a pair, and what each variant answers."""
        sample = entry.data.read(entry.index)
        if self._benchmark.points is not None:
            sample = sample.select(draw_points(len(sample), self._benchmark.points, self._seed, entry.name))
        prepared = self._benchmark.preparation.apply(sample)
        shown = prepared.sample
        length = np.nan if shown.pck_length is None else shown.pck_length
        query: Record = {
            "points0": shown.points0.numpy(),
            "points1": shown.points1.numpy(),
            "length": np.array(length, np.float64),
        }
        found: dict[Variant, Record] = {}
        images = [(image, _digest_image(image)) for image in (shown.image0, shown.image1)]
        for variant in variants:
            describer = self._describers[variant.method.name]
            features = [describer.describe(image, digest) for image, digest in images]
            before = time.perf_counter()
            points1 = find_points(
                features[0], features[1], shown.points0, prepared.content1, variant.use_refinement
            )
            seconds = (*describer.take_cost(), time.perf_counter() - before)
            found[variant] = {
                "points1": points1.cpu().numpy().astype(np.float32),
                "seconds": np.array(seconds, np.float32),
            }
        return query, found


class _Describer:
    """Features of images, each described once while it is in use."""

    def __init__(self, extractor: Extractor, device: torch.device) -> None:
        self._extractor, self._device = extractor, device
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._seconds, self._count = 0.0, 0

    def describe(self, image: Tensor, digest: str) -> Features:
        """Features of an image, on the device."""
        if digest not in self._kept:
            before = time.perf_counter()
            features = self._extractor.extract(image)
            moved = replace(features.map, features=features.map.features.to(self._device))
            self._kept[digest] = replace(features, map=moved)
            self._seconds += time.perf_counter() - before
            self._count += 1
        self._kept.move_to_end(digest)
        while len(self._kept) > 2 and sum(map(_count_bytes, self._kept.values())) > _FEATURE_BYTES:
            self._kept.popitem(last=False)
        return self._kept[digest]

    def take_cost(self) -> tuple[float, float]:
        """Seconds spent since the last call, and how many images they described."""
        cost = self._seconds, float(self._count)
        self._seconds, self._count = 0.0, 0
        return cost


def draw_points(total: int, count: int, seed: int, name: str) -> Tensor:
    """`count` of `total` rows, drawn without replacement by a seed and the pair's name, nothing else."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randperm(total, generator=generator)[:count]


def find_points(
    features0: Features, features1: Features, points0: Tensor, content1: Rectangle, use_refinement: bool
) -> Tensor:
    """Where points (N, 2) of image 0 lie in image 1: their nearest descriptors on the picture.

    Args:
        features0: of image 0.
        features1: of image 1, on the same device.
        points0: in pixels of the image that was described.
        content1: where in image 1 the picture is.
        use_refinement: place matches between cells.

    Returns:
        (N, 2) pixels of image 1.
    """
    map0, map1 = features0.map, features1.map
    asked = resize_points(points0.to(map0.features.device), resize_scale(features0.image_hw, map0.image_hw))
    back = resize_scale(map1.image_hw, features1.image_hw)
    found = match_cells(
        map0,
        map1,
        asked,
        is_allowed1=_is_on_picture(resize_points(cell_centres(map1), back), features1.image_hw, content1),
        use_refinement=use_refinement,
    )
    return resize_points(found.points1, back)


def _is_on_picture(centres: Tensor, image_hw: tuple[int, int], content: Rectangle) -> Tensor | None:
    """Bool (h * w,): the cells whose centres lie on the picture; None where it fills the image."""
    left, top, right, bottom = content
    if content == (0, 0, image_hw[1], image_hw[0]):
        return None
    low, high = centres.new_tensor([left, top]) - 0.5, centres.new_tensor([right, bottom]) - 0.5
    return ((centres >= low) & (centres <= high)).all(dim=1)


def _count_bytes(features: Features) -> int:
    return features.map.features.nbytes


def _digest_image(image: Tensor) -> str:
    pixels = np.ascontiguousarray(image.numpy())
    return hashlib.blake2b(pixels.data, digest_size=16, key=str(pixels.shape).encode()).hexdigest()


def _collect(
    entries: Sequence[Entry],
    chosen: Sequence[int],
    queries: RecordStore,
    stores: Mapping[Variant, RecordStore],
) -> Predictions:
    digest = hashlib.sha256()
    pairs = []
    for number in chosen:
        query, found = queries.get(number), [store.get(number) for store in stores.values()]
        digest.update(query["points0"].tobytes() + query["points1"].tobytes())
        pairs.append(
            PairPrediction(
                entry=entries[number],
                points1=query["points1"],
                length=float(query["length"]),
                found=tuple(record["points1"] for record in found),
                seconds=tuple(record["seconds"] for record in found),
            )
        )
    return Predictions(tuple(stores), tuple(pairs), digest.hexdigest())
