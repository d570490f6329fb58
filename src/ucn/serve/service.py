"""Encodes each image once for each weights, and answers questions about pairs from what it kept."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from ucn.matching.matcher import Matcher
from ucn.serve.limits import Limits
from ucn.serve.pictures import HeldImage, hold_image
from ucn.serve.uploads import FullError, UnknownError
from ucn.types import Features, Matches, PairContext, SimilarityMap
from ucn.weights import WeightsInfo, list_weights

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
_Key = TypeVar("_Key", bound=tuple[str, ...])
_Value = TypeVar("_Value")
_KEPT_PAIRS = 64  # a context and a list of matches take about 200 kB


class Engine:
    """Matchers, one for each weights that is asked for, and what they found.

    There are two lanes, a thread each: one encodes images and matches whole pairs, which takes seconds, the
    other answers for single points, which takes milliseconds and does not wait for the first. All methods may
    be called from several threads.

    Attributes:
        default_weights: name of the user's own weights, or else of the first that ship.
    """

    def __init__(self, limits: Limits, *, own_weights: Path | None = None, device: str | None = None) -> None:
        """Loads nothing yet.

        Args:
            limits: of memory and of waiting questions.
            own_weights: a weights file to be offered beside the shipped ones.
            device: as `Matcher.from_pretrained` takes it.
        """
        self._limits, self._device = limits, device
        self._sources: dict[str, str | Path] = {info.name: info.name for info in list_weights()}
        self.default_weights = next(iter(self._sources))
        if own_weights is not None:
            stem = own_weights.stem
            self.default_weights = f"{stem} (own)" if stem in self._sources else stem
            self._sources[self.default_weights] = own_weights
        self._matchers: dict[str, Matcher] = {}
        self._features: OrderedDict[tuple[str, str], Features] = OrderedDict()
        self._contexts: OrderedDict[tuple[str, str, str], PairContext] = OrderedDict()
        self._matches: OrderedDict[tuple[str, str, str], Matches] = OrderedDict()
        self._lock = threading.RLock()
        self._waiting = threading.BoundedSemaphore(limits.max_waiting)
        self._slow = ThreadPoolExecutor(1, "ucn-encode")
        self._quick = ThreadPoolExecutor(1, "ucn-answer")

    def list_weights(self) -> list[WeightsInfo]:
        """What there is to choose from."""
        shipped = {info.name: info for info in list_weights()}
        infos = []
        for name, source in self._sources.items():
            if isinstance(source, Path):
                infos.append(replace(self._load(name).weights, name=name, description="Weights of your own."))
            else:
                infos.append(shipped[name])
        return infos

    def hold(self, name: str, content: bytes) -> HeldImage:
        """Decodes an upload, one at a time, so that no two need memory at once; as `hold_image`."""
        return self._run(self._slow, hold_image, name, content, self._limits.max_pixels)

    def match(self, image0: HeldImage, image1: HeldImage, weights: str) -> Matches:
        """The mutual matches of a pair, best first.

        Raises:
            UnknownError: there are no such weights.
            FullError: too many questions wait.
        """
        self._check_weights(weights)
        key = (image0.name, image1.name, weights)
        kept = self._recall(self._matches, key)
        return kept if kept is not None else self._run(self._slow, self._match_all, image0, image1, weights)

    def look_up(
        self, image0: HeldImage, image1: HeldImage, weights: str, points: Sequence[tuple[float, float]]
    ) -> Matches:
        """Where points of image 0 lie in image 1, one answer for each.

        Raises:
            PointsError: a point lies outside image 0.
            UnknownError: there are no such weights.
            FullError: too many questions wait.
        """
        matcher, features0, features1, context = self._prepare(image0, image1, weights)
        answer = functools.partial(matcher.match_features, points=points, context=context)
        return self._run(self._quick, answer, features0, features1)

    def compare(
        self, image0: HeldImage, image1: HeldImage, weights: str, point: tuple[float, float]
    ) -> SimilarityMap:
        """How alike one point of image 0 and every place of image 1 are; raises as `look_up`."""
        matcher, features0, features1, _ = self._prepare(image0, image1, weights)
        return self._run(self._quick, matcher.similarities, features0, features1, point)

    def forget(self, name: str) -> None:
        """Drops all that was found in an image."""
        with self._lock:
            for key in [key for key in self._features if key[0] == name]:
                del self._features[key]
            for kept in (self._contexts, self._matches):
                for pair in [pair for pair in kept if name in pair[:2]]:
                    kept.pop(pair, None)

    @property
    def held_bytes(self) -> int:
        """Memory that features take."""
        with self._lock:
            return sum(map(_count_bytes, self._features.values()))

    def close(self) -> None:
        """Ends the threads."""
        self._slow.shutdown(cancel_futures=True)
        self._quick.shutdown(cancel_futures=True)

    def _prepare(
        self, image0: HeldImage, image1: HeldImage, weights: str
    ) -> tuple[Matcher, Features, Features, PairContext]:
        """What answers about a pair need: from memory, or made in the slow lane."""
        self._check_weights(weights)
        with self._lock:
            features = [self._recall(self._features, (image.name, weights)) for image in (image0, image1)]
            context = self._recall(self._contexts, (image0.name, image1.name, weights))
            if features[0] is not None and features[1] is not None and context is not None:
                return self._matchers[weights], features[0], features[1], context
        return self._run(self._slow, self._make, image0, image1, weights)

    def _make(
        self, image0: HeldImage, image1: HeldImage, weights: str
    ) -> tuple[Matcher, Features, Features, PairContext]:
        matcher = self._load(weights)
        features0, features1 = (self._encode(matcher, image, weights) for image in (image0, image1))
        key = (image0.name, image1.name, weights)
        context = self._recall(self._contexts, key)
        if context is None:
            context = matcher.pair_context(features0, features1)
            self._keep(self._contexts, key, context)
        return matcher, features0, features1, context

    def _match_all(self, image0: HeldImage, image1: HeldImage, weights: str) -> Matches:
        matcher, features0, features1, _ = self._make(image0, image1, weights)
        matches = matcher.match_features(features0, features1)
        self._keep(self._matches, (image0.name, image1.name, weights), matches)
        return matches

    def _encode(self, matcher: Matcher, image: HeldImage, weights: str) -> Features:
        """Features from memory or, in the slow lane only, made anew; the least used make room for them."""
        key = (image.name, weights)
        kept = self._recall(self._features, key)
        if kept is not None:
            return kept
        features = matcher.extract(image.read())
        with self._lock:
            self._features[key] = features
            while len(self._features) > 2 and self.held_bytes > self._limits.memory_bytes // 2:
                self._features.popitem(last=False)
        return features

    def _load(self, weights: str) -> Matcher:
        with self._lock:
            if weights not in self._matchers:
                self._matchers[weights] = Matcher.from_pretrained(self._sources[weights], device=self._device)
            return self._matchers[weights]

    def _check_weights(self, weights: str) -> None:
        if weights not in self._sources:
            raise UnknownError(f"there are no such weights; there are {', '.join(self._sources)}")

    def _recall(self, kept: OrderedDict[_Key, _Value], key: _Key) -> _Value | None:
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
            return kept.get(key)

    def _keep(self, kept: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
        with self._lock:
            kept[key] = value
            while len(kept) > _KEPT_PAIRS:
                kept.popitem(last=False)

    def _run(
        self,
        lane: ThreadPoolExecutor,
        work: Callable[_Arguments, _Answer],
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> _Answer:
        """Waits for work in a lane, unless too many wait already."""
        if not self._waiting.acquire(blocking=False):
            raise FullError(f"{self._limits.max_waiting} questions wait already; try again in a few seconds")
        try:
            return lane.submit(work, *arguments, **options).result()
        finally:
            self._waiting.release()


def _count_bytes(features: Features) -> int:
    tensors = [features.map.features, features.keypoints]
    if features.grey is not None:
        tensors.append(features.grey)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
