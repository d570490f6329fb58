"""Encodes each image once per weights, and matches pairs from cached features."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from ucn.config import MatchConfig
from ucn.files import RecentItems
from ucn.matching.matcher import Matcher, PairContext
from ucn.serve.images import StoredImage, decode_upload
from ucn.serve.limits import Limits
from ucn.serve.uploads import CapacityError, NotFoundError
from ucn.types import Features, Matches, SimilarityMap
from ucn.weights import WeightsInfo, list_weights

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_PairKey = tuple[str, str, str]
"""Names of image 0, image 1 and weights."""
_MAX_PAIRS = 64  # a list of matches takes about 200 kB; contexts are bounded by their bytes, too


class MatchService:
    """One matcher per weights, and caches of features, pair contexts and matches.

    Encoding and matching of whole pairs take seconds and run in one thread; queries of single points take
    milliseconds and run in another, so that they do not wait. All methods are thread-safe.

    Attributes:
        default_weights: name of the user's own weights, or else of the first shipped ones.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        own_weights: Path | None = None,
        config: MatchConfig | None = None,
        device: str | None = None,
    ) -> None:
        """Prepares the service; weights are loaded at first use.

        Args:
            limits: of memory and of waiting requests.
            own_weights: a weights file to offer besides the shipped ones.
            config: how images are matched; the defaults when None.
            device: as `Matcher.from_pretrained` takes it.
        """
        self._limits, self._config, self._device = limits, config, device
        self._sources: dict[str, str | Path] = {info.name: info.name for info in list_weights()}
        self.default_weights = next(iter(self._sources))
        if own_weights is not None:
            stem = own_weights.stem
            self.default_weights = f"{stem} (own)" if stem in self._sources else stem
            self._sources[self.default_weights] = own_weights
        self._matchers: dict[str, Matcher] = {}
        self._features: RecentItems[tuple[str, str], Features] = RecentItems(
            max_bytes=limits.memory_bytes * 3 // 8, count_bytes=_count_bytes, min_items=2
        )
        self._contexts: RecentItems[_PairKey, PairContext] = RecentItems(
            _MAX_PAIRS, max_bytes=limits.memory_bytes // 8, count_bytes=_count_context_bytes
        )
        self._matches: RecentItems[_PairKey, Matches] = RecentItems(_MAX_PAIRS)
        self._lock = threading.RLock()
        self._waiting = threading.BoundedSemaphore(limits.max_waiting)
        self._encoding = ThreadPoolExecutor(1, "ucn-encode")
        self._queries = ThreadPoolExecutor(1, "ucn-query")

    def list_weights(self) -> list[WeightsInfo]:
        """All weights to choose from."""
        shipped = {info.name: info for info in list_weights()}
        infos = []
        for name, source in self._sources.items():
            if isinstance(source, Path):
                infos.append(replace(self.load(name).weights, name=name, description="Weights of your own."))
            else:
                infos.append(shipped[name])
        return infos

    def decode(self, name: str, content: bytes) -> StoredImage:
        """Decodes an upload as `decode_upload`, one at a time to bound the memory."""
        return self._run(self._encoding, decode_upload, name, content, self._limits.max_pixels)

    def match(self, image0: StoredImage, image1: StoredImage, weights: str) -> Matches:
        """The mutual matches of a pair, best first.

        Raises:
            NotFoundError: there are no such weights.
            CapacityError: too many requests wait.
        """
        self._check_weights(weights)
        cached = self._matches.get((image0.name, image1.name, weights))
        if cached is not None:
            return cached
        return self._run(self._encoding, self._match_all, image0, image1, weights)

    def match_points(
        self, image0: StoredImage, image1: StoredImage, weights: str, points: Sequence[tuple[float, float]]
    ) -> Matches:
        """The match in image 1 of each point of image 0.

        Raises:
            PointsError: a point lies outside image 0.
            NotFoundError: there are no such weights.
            CapacityError: too many requests wait.
        """
        matcher, features0, features1, context = self._prepare(image0, image1, weights)
        match = functools.partial(matcher.match_features, points=points, context=context)
        return self._run(self._queries, match, features0, features1)

    def compute_similarity(
        self, image0: StoredImage, image1: StoredImage, weights: str, point: tuple[float, float]
    ) -> SimilarityMap:
        """Similarity of one point of image 0 to every cell of image 1; raises as `match_points`."""
        matcher, features0, features1, _ = self._prepare(image0, image1, weights)
        return self._run(self._queries, matcher.similarities, features0, features1, point)

    def forget(self, name: str) -> None:
        """Drops everything computed from an image."""
        with self._lock:
            self._features.remove(lambda key: key[0] == name)
            for cache in (self._contexts, self._matches):
                cache.remove(lambda key: name in key[:2])

    @property
    def memory_bytes(self) -> int:
        """Memory of the cached features."""
        return self._features.held_bytes

    def close(self) -> None:
        """Ends the threads."""
        self._encoding.shutdown(cancel_futures=True)
        self._queries.shutdown(cancel_futures=True)

    def _prepare(
        self, image0: StoredImage, image1: StoredImage, weights: str
    ) -> tuple[Matcher, Features, Features, PairContext]:
        """Matcher, features and context of a pair, cached or computed in the encoding thread."""
        self._check_weights(weights)
        with self._lock:
            features0, features1 = (self._features.get((image.name, weights)) for image in (image0, image1))
            context = self._contexts.get((image0.name, image1.name, weights))
            if features0 is not None and features1 is not None and context is not None:
                return self._matchers[weights], features0, features1, context
        return self._run(self._encoding, self._compute, image0, image1, weights)

    def _compute(
        self, image0: StoredImage, image1: StoredImage, weights: str
    ) -> tuple[Matcher, Features, Features, PairContext]:
        matcher = self.load(weights)
        features0, features1 = (self._encode(matcher, image, weights) for image in (image0, image1))
        context = self._contexts.get_or_make(
            (image0.name, image1.name, weights), lambda: matcher.pair_context(features0, features1)
        )
        return matcher, features0, features1, context

    def _match_all(self, image0: StoredImage, image1: StoredImage, weights: str) -> Matches:
        matcher, features0, features1, _ = self._compute(image0, image1, weights)
        matches = matcher.match_features(features0, features1)
        self._matches.put((image0.name, image1.name, weights), matches)
        return matches

    def _encode(self, matcher: Matcher, image: StoredImage, weights: str) -> Features:
        """Cached features, or new ones; only for the encoding thread."""
        return self._features.get_or_make((image.name, weights), lambda: matcher.extract(image.read()))

    def load(self, weights: str) -> Matcher:
        """The matcher of weights, loaded at its first use."""
        with self._lock:
            if weights not in self._matchers:
                self._matchers[weights] = Matcher.from_pretrained(
                    self._sources[weights], config=self._config, device=self._device
                )
            return self._matchers[weights]

    def _check_weights(self, weights: str) -> None:
        if weights not in self._sources:
            raise NotFoundError(f"there are no such weights; there are {', '.join(self._sources)}")

    def _run(
        self,
        executor: ThreadPoolExecutor,
        work: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Result:
        """Runs work in a thread and waits for it, unless too many requests wait already."""
        if not self._waiting.acquire(blocking=False):
            raise CapacityError(
                f"{self._limits.max_waiting} requests wait already; try again in a few seconds"
            )
        try:
            return executor.submit(work, *arguments, **options).result()
        finally:
            self._waiting.release()


def _count_context_bytes(context: PairContext) -> int:
    arrays = (context.matches.points0, context.matches.points1, context.matches.scores)
    views = context.views
    held = 0 if views.consensus is None else views.consensus.support.nbytes
    # Views are encoded for this pair alone; images as given are counted with the features.
    held += sum(_count_bytes(each) for each in (views.features0, views.features1) if each.view is not None)
    return held + sum(array.nbytes for array in arrays)


def _count_bytes(features: Features) -> int:
    tensors = [features.map.features, features.keypoints]
    tensors += [each for each in (features.grey, features.image) if each is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
