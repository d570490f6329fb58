"""Stage 1: where each method finds the points of each pair, kept on disk; stage 2 reads nothing else."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.evaluate.core.cache import Record, RecordStore, digest_data
from ucn.evaluate.core.feature_cache import Describer, digest_image
from ucn.evaluate.core.method_types import Answerer, Method
from ucn.evaluate.core.preparation import Prepared, Rectangle
from ucn.evaluate.core.processes import share_work
from ucn.evaluate.points.benchmarks import Benchmark, Entry
from ucn.evaluate.points.pair_alignment import OnceAligned
from ucn.geometry.coords import cell_centres, resize_points, resize_scale
from ucn.paper import NearestNeighbours, PairMatcher
from ucn.types import Features, FloatArray

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""

VERSION = 1
"""Goes into every key: raise it where code changes what is predicted."""


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
        points0: (N, 2) the points that were asked, in pixels as methods saw image 0.
        points1: (N, 2) true points in image 1, in pixels as methods saw it.
        length: L of PCK@alpha; NaN where limits are pixels.
        found: (N, 2) by each variant, in the order of `Predictions.variants`; NaN where nothing was found.
        seconds: of each variant: describing its images, how many images that were, matching.
    """

    entry: Entry
    points0: FloatArray
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
    jobs: int = 1,
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
        jobs: processes that share the methods of the CPU; those of another device stay in this one.
        progress: called after each pair.

    Raises:
        UcnError: a file of the data is wrong, or the cache cannot be used.
    """
    pairs = [(entry.name, entry.data.pair_files(entry.index)) for entry in entries]
    key = {"version": VERSION, **benchmark.to_dict(seed), "data": digest_data(pairs)}
    folder = cache / benchmark.name
    queries = RecordStore(folder, "queries", key)
    stores = {
        Variant(method, use): RecordStore(folder, _name(method, use), _key(key, method, use))
        for method in methods
        for use in refinements
    }
    try:
        _predict_missing(benchmark, entries, chosen, queries, stores, seed, device, jobs, progress)
    finally:
        for store in (queries, *stores.values()):
            store.flush()
    return _collect(entries, chosen, queries, stores)


@dataclass(frozen=True)
class _Task:
    """What is missing of a pair: its number, and those of variants."""

    number: int
    variants: tuple[int, ...]


def _predict_missing(
    benchmark: Benchmark,
    entries: Sequence[Entry],
    chosen: Sequence[int],
    queries: RecordStore,
    stores: Mapping[Variant, RecordStore],
    seed: int,
    device: torch.device | str,
    jobs: int,
    progress: Progress | None,
) -> None:
    """Fills the stores; methods of the CPU may be shared by processes, others may not."""
    variants = list(stores)
    shares = _share_out(variants, torch.device(device), jobs)
    done, total = 0, len(chosen) * len(shares)
    for numbers, place, processes in shares:
        tasks = []
        for number in chosen:
            lacking = tuple(i for i in numbers if number not in stores[variants[i]])
            if lacking or number not in queries:
                tasks.append(_Task(number, lacking))
        done += len(chosen) - len(tasks)
        if progress is not None and done:
            progress(done, total)
        own = {i: variants[i] for i in numbers}
        worker = _Worker(benchmark, [variant.method for variant in own.values()], seed, place)
        work = _PairWork(worker, entries, own)
        for task, (query, found) in share_work(work, tasks, processes):
            queries.put(task.number, query)
            for i, record in found.items():
                stores[variants[i]].put(task.number, record)
            done += 1
            if progress is not None:
                progress(done, total)


def _share_out(
    variants: Sequence[Variant], device: torch.device, jobs: int
) -> list[tuple[list[int], torch.device, int]]:
    """Numbers of variants, the device they are matched on, and how many processes share them."""
    everything = list(range(len(variants)))
    if jobs == 1:
        return [(everything, device, 1)]
    is_here = [_is_on_accelerator(variant.method.extractor) for variant in variants]
    shared = [i for i in everything if not is_here[i]]
    rest = [i for i in everything if is_here[i]]
    shares = [(shared, torch.device("cpu"), jobs), (rest, device, 1)]
    return [share for share in shares if share[0]]


def _is_on_accelerator(extractor: object) -> bool:
    device = getattr(extractor, "device", None)
    return device is not None and torch.device(device).type != "cpu"


@dataclass(frozen=True, eq=False)
class _PairWork:
    """Does a task wherever it is copied to."""

    worker: _Worker
    entries: Sequence[Entry]
    variants: Mapping[int, Variant]

    def __call__(self, task: _Task) -> tuple[Record, dict[int, Record]]:
        chosen = [self.variants[i] for i in task.variants]
        query, found = self.worker.predict(self.entries[task.number], chosen)
        return query, {i: found[self.variants[i]] for i in task.variants}


def _name(method: Method, use_refinement: bool) -> str:
    safe = "".join(letter if letter.isalnum() else "_" for letter in method.name)
    return f"{safe}-{'refined' if use_refinement else 'cells'}"


def _key(key: Mapping[str, Any], method: Method, use_refinement: bool) -> dict[str, Any]:
    return {**key, "method": method.key, "refinement": use_refinement}


class _Worker:
    """Reads a pair, draws its points, and asks methods for them."""

    def __init__(
        self, benchmark: Benchmark, methods: Sequence[Method], seed: int, device: torch.device
    ) -> None:
        self._benchmark, self._seed, self._device = benchmark, seed, device
        self._describers = {method.name: Describer(method.extractor, device) for method in methods}

    @torch.no_grad()
    def predict(self, entry: Entry, variants: Sequence[Variant]) -> tuple[Record, dict[Variant, Record]]:
        """What is asked of a pair, and what each variant answers."""
        prepared = show_pair(self._benchmark, entry, self._seed)
        shown = prepared.sample
        length = np.nan if shown.pck_length is None else shown.pck_length
        query: Record = {
            "points0": shown.points0.numpy(),
            "points1": shown.points1.numpy(),
            "length": np.array(length, np.float64),
        }
        found: dict[Variant, Record] = {}
        images = [(image, digest_image(image)) for image in (shown.image0, shown.image1)]
        aligners = {variant.method.name: OnceAligned(variant.method.matcher) for variant in variants}
        for variant in variants:
            if variant.method.answerer is not None:
                found[variant] = _ask(variant.method.answerer, entry, prepared)
                continue
            describer = self._describers[variant.method.name]
            features = [describer.describe(image, digest) for image, digest in images]
            aligner = aligners[variant.method.name]
            ask_aligner = partial(find_points, matcher=aligner)
            before = time.perf_counter()
            points1 = ask_aligner(
                features[0], features[1], shown.points0, prepared.content1, variant.use_refinement
            )
            matching = time.perf_counter() - before + aligner.saved_seconds
            seconds = (*describer.take_cost(), matching)
            found[variant] = _record(points1, seconds)
        return query, found


def _record(points1: Tensor, seconds: tuple[float, float, float]) -> Record:
    """Answers, and the seconds of describing, how many images that were, and the seconds of matching."""
    answers = points1.cpu().numpy().astype(np.float32)
    return {"points1": answers, "seconds": np.array(seconds, np.float32)}


def _ask(answerer: Answerer, entry: Entry, prepared: Prepared) -> Record:
    """What a method answers that does without dense features."""
    before = time.perf_counter()
    points1 = answerer.find(entry, prepared)
    return _record(points1, (time.perf_counter() - before, float(answerer.images), 0.0))


def show_pair(benchmark: Benchmark, entry: Entry, seed: int) -> Prepared:
    """A pair as all methods see it, with the points that are asked."""
    sample = entry.data.read(entry.index)
    if benchmark.points is not None:
        sample = sample.select(draw_points(len(sample), benchmark.points, seed, entry.name))
    return benchmark.preparation.apply(sample)


def draw_points(total: int, count: int, seed: int, name: str) -> Tensor:
    """`count` of `total` rows, drawn without replacement by a seed and the pair's name, nothing else."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randperm(total, generator=generator)[:count]


def find_points(
    features0: Features,
    features1: Features,
    points0: Tensor,
    content1: Rectangle,
    use_refinement: bool,
    matcher: PairMatcher | None = None,
) -> Tensor:
    """Where points (N, 2) of image 0 lie in image 1: their nearest descriptors on the picture.

    Args:
        features0: of image 0.
        features1: of image 1, on the same device.
        points0: in pixels of the image that was described.
        content1: where in image 1 the picture is.
        use_refinement: place matches between cells.
        matcher: what to do instead of looking for the nearest descriptors.

    Returns:
        (N, 2) pixels of image 1.
    """
    matcher = matcher or NearestNeighbours()
    map0, map1 = features0.map, features1.map
    asked = resize_points(points0.to(map0.features.device), resize_scale(features0.image_hw, map0.image_hw))
    back = resize_scale(map1.image_hw, features1.image_hw)
    is_allowed1 = _is_on_picture(resize_points(cell_centres(map1), back), features1.image_hw, content1)
    found = matcher.align(map0, map1, is_allowed1).find(asked, use_refinement)
    return resize_points(found, back)


def _is_on_picture(centres: Tensor, image_hw: tuple[int, int], content: Rectangle) -> Tensor | None:
    """Bool (h * w,): the cells whose centres lie on the picture; None where it fills the image."""
    left, top, right, bottom = content
    if content == (0, 0, image_hw[1], image_hw[0]):
        return None
    low, high = centres.new_tensor([left, top]) - 0.5, centres.new_tensor([right, bottom]) - 0.5
    return ((centres >= low) & (centres <= high)).all(dim=1)


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
                points0=query["points0"],
                points1=query["points1"],
                length=float(query["length"]),
                found=tuple(record["points1"] for record in found),
                seconds=tuple(record["seconds"] for record in found),
            )
        )
    return Predictions(tuple(stores), tuple(pairs), digest.hexdigest())
