"""Encodes each image once per weights, and matches pairs from cached features."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np

from ucn.config import MatchConfig
from ucn.data.points import check_points
from ucn.files.recent import RecentItems
from ucn.matching.matcher import Matcher, PairContext
from ucn.serve.decoder import Decoders
from ucn.serve.images import StoredImage
from ucn.serve.lanes import Lane
from ucn.serve.limits import Limits
from ucn.serve.uploads import NotFoundError
from ucn.types import Features, Matches, SimilarityMap
from ucn.weights import WeightsInfo, list_weights

_PairKey = tuple[str, str, str]
"""Names of image 0, image 1 and weights."""
_DECODERS = 2
"""Uploads decoded at a time; a client that occupies one child leaves the other to the others."""
_MAX_PAIRS = 64  # a list of matches takes about 200 kB; contexts are bounded by their bytes, too


class MatchService:
    """One matcher per weights, and caches of features, pair contexts and matches.

    Encoding and matching of whole pairs take seconds and run in one thread; queries of single points take
    milliseconds and run in another, so that they do not wait; uploads are decoded in child processes. In each
    lane the clients take turns. All methods are thread-safe.

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
        self._encoding = Lane("ucn-encode", limits.max_waiting)
        self._queries = Lane("ucn-query", limits.max_waiting)
        # Uploads wait without a thread of the server's; connections and their bytes are limited.
        self._decoding = Lane("ucn-decode", 1024, threads=_DECODERS)
        self._decoders = Decoders(_DECODERS + 1, limits.max_pixels)  # one is for the encoding thread

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

    def decode(self, name: str, content: bytes) -> Future[StoredImage]:
        """Decodes an upload in a child process when it is the client's turn; see `Decoders.show`.

        Raises:
            CapacityError: too many uploads of this client wait.
            UnavailableError: too many uploads wait.
        """
        return self._decoding.submit(self._decoders.show, name, content)

    def match(self, image0: StoredImage, image1: StoredImage, weights: str) -> Matches:
        """The mutual matches of a pair, best first.

        Raises:
            NotFoundError: there are no such weights.
            CapacityError: too many requests of this client wait.
            UnavailableError: too many requests wait, or for too long.
            ImageReadError: an image cannot be decoded again.
        """
        self._check_weights(weights)
        cached = self._matches.get((image0.name, image1.name, weights))
        if cached is not None:
            return cached
        return self._encoding.run(self._match_all, image0, image1, weights)

    def match_points(
        self, image0: StoredImage, image1: StoredImage, weights: str, points: Sequence[tuple[float, float]]
    ) -> Matches:
        """The match in image 1 of each point of image 0.

        Raises:
            PointsError: a point lies outside image 0.
            NotFoundError: there are no such weights.
            CapacityError: too many requests of this client wait.
            UnavailableError: too many requests wait, or for too long.
            ImageReadError: an image cannot be decoded again.
        """
        matcher, features0, features1, context = self._prepare(image0, image1, weights)
        # The last digits of a match depend on its place in the batch: equal points are matched once.
        distinct, rows = np.unique(check_points(points, image0.image_hw), axis=0, return_inverse=True)
        match = functools.partial(matcher.match_features, points=distinct, context=context)
        return self._queries.run(match, features0, features1).select(rows.reshape(-1))

    def compute_similarity(
        self, image0: StoredImage, image1: StoredImage, weights: str, point: tuple[float, float]
    ) -> SimilarityMap:
        """Similarity of one point of image 0 to every cell of image 1; raises as `match_points`."""
        matcher, features0, features1, _ = self._prepare(image0, image1, weights)
        return self._queries.run(matcher.similarities, features0, features1, point)

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

    def drain(self) -> None:
        """Refuses all requests that have not begun."""
        for lane in (self._decoding, self._encoding, self._queries):
            lane.drain()

    def close(self) -> None:
        """Ends the threads and the child processes."""
        for lane in (self._decoding, self._encoding, self._queries):
            lane.close()
        self._decoders.close()

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
        return self._encoding.run(self._compute, image0, image1, weights)

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
        return self._features.get_or_make((image.name, weights), lambda: self._extract(matcher, image))

    def _extract(self, matcher: Matcher, image: StoredImage) -> Features:
        return matcher.extract(self._decoders.read(image))

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
