"""Methods: metadata that is known before any weights are loaded, and what extracts and matches features."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ucn.config import MatchConfig
from ucn.data.io import to_tensor
from ucn.errors import ConfigError
from ucn.features.extractor import Extractor, has_own_keypoints
from ucn.features.names import CONSENSUS
from ucn.features.pair_matcher import CONSENSUS_SHA256, NearestNeighbours, PairMatcher
from ucn.features.sparse import KeypointExtractor, KeypointMatches, Keypoints, match_keypoints
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.cells import match_points, measure_guidance
from ucn.matching.keypoints import detect_corners
from ucn.runtime.device import choose_device
from ucn.types import Features, ImageLike
from ucn.weights.store import DEFAULT_MAX_SIDE

_CONFIG = MatchConfig()
_Made = TypeVar("_Made")


class UnavailableError(ConfigError):
    """A method cannot run here; `reason` says which package or file is missing, and how to get it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"method '{name}' cannot run here: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class MethodFiles:
    """Files that methods need beside the package.

    Attributes:
        weights: weights files of `ucn train`; each is a method, named after its file.
        trunk: GoogLeNet's ImageNet weights; None looks in the folder that ``UCN_DATA`` names.
        xfeat: XFeat's ONNX file; None looks there too.
        siamese: a Siamese network; None takes the package's.
        vgg: VGG-16's weights; None looks in the folder that ``UCN_DATA`` names.
    """

    weights: Sequence[Path] = ()
    trunk: Path | None = None
    xfeat: Path | None = None
    siamese: Path | None = None
    vgg: Path | None = None


@dataclass(frozen=True, eq=False)
class MethodInfo:
    """Metadata of a method, known without loading its weights; it can be sent to another process.

    Attributes:
        name: what the command line and tables call it.
        title: what it is, with its settings.
        key: everything its results depend on, as plain JSON values.
        dim: dimensions of a descriptor; None where unknown.
        stride: pixels between cells; None for descriptors at keypoints only.
        max_side: longest side of images in pixels that it was made for.
        has_own_keypoints: whether its extractor detects keypoints itself, as DISK does.
        trained_on: parts of data sets that a network was trained on, each ``NAME PART``, where its weights
            say so (`ucn.features.trained_on`).
        loader: loads the method onto a device; None for a method read from a report.
    """

    name: str
    title: str
    key: dict[str, Any]
    dim: int | None = None
    stride: int | None = None
    max_side: int = DEFAULT_MAX_SIDE
    has_own_keypoints: bool = False
    trained_on: tuple[str, ...] = ()
    loader: Loader | None = field(default=None, repr=False)

    @property
    def uses_consensus(self) -> bool:
        """Whether neighbourhood consensus guides its matches; from its key, which reports have too."""
        return CONSENSUS in self.key

    def load(self, device: str | torch.device | None = None) -> Any:
        """The `Method`, ready to run on a device; None takes CUDA where there is one, else the CPU.

        Raises:
            WeightsError: a file is damaged or of something else.
            ConfigError: it has no loader.
        """
        if self.loader is None:
            raise ConfigError(f"method '{self.name}' has no loader; find it in the registry")
        return self.loader(self, str(choose_device(None if device is None else str(device))))

    def metadata(self) -> dict[str, Any]:
        """The fields of this class by name, to make a loaded method or another kind of info from."""
        return {item.name: getattr(self, item.name) for item in fields(MethodInfo)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Method(MethodInfo, ABC):
    """A loaded method.

    Attributes:
        extractor: extracts features of an image.
    """

    extractor: Any

    def extract(self, image: ImageLike) -> Any:
        """Features of one image, to be matched with those of many others."""
        return self.extractor.extract(image)

    @abstractmethod
    def match(self, features0: Any, features1: Any) -> KeypointMatches:
        """Matches of two images in pixels, best first."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseMethod(Method):
    """A method with dense features, which can find any point of image 0 in image 1.

    Attributes:
        extractor: extracts dense features.
        matcher: finds points, given the features of two images.
        max_corners: the most corners that `extract` gives as keypoints; None keeps the extractor's.
    """

    extractor: Extractor
    matcher: PairMatcher = field(default_factory=NearestNeighbours)
    max_corners: int | None = None

    @property
    def is_nearest(self) -> bool:
        """Whether it matches by nearest neighbours of its descriptors, with consensus or without."""
        return isinstance(self.matcher, NearestNeighbours)

    def extract(self, image: ImageLike) -> Features:
        """Dense features of an image, with keypoints."""
        features = self.extractor.extract(image)
        if self.max_corners is None or has_own_keypoints(self.extractor):
            return features
        return replace(features, keypoints=detect_corners(to_tensor(image), self.max_corners).points)

    def match(self, features0: Features, features1: Features) -> KeypointMatches:
        """Matches the keypoints of image 0, ordered by similarity.

        Keypoints of an extractor's own are matched with those of image 1 by mutual nearest neighbours. Others
        are matched with any position of image 1, and nearest neighbours pass a forward-backward check;
        consensus guides both searches where the matcher uses it.
        """
        if has_own_keypoints(self.extractor):
            keypoints = [features.keypoints.cpu() for features in (features0, features1)]
            return match_keypoints(
                Keypoints(keypoints[0], _sample(features0, keypoints[0])),
                Keypoints(keypoints[1], _sample(features1, keypoints[1])),
            )
        points0 = features0.keypoints.cpu()
        encoded0 = _to_encoded(features0, points0)
        scale = resize_scale(features1.map.image_hw, features1.image_hw)
        if not isinstance(self.matcher, NearestNeighbours):
            found1 = self.matcher.align(features0.map, features1.map).find(encoded0, use_refinement=True)
            points1 = resize_points(found1, scale).cpu()
            similarities = (_sample(features0, points0) * _sample(features1, points1)).sum(dim=1)
            rows = similarities.argsort(descending=True, stable=True)
        else:
            radius = _CONFIG.second_best_radius
            maps = (features0.map, features1.map)
            consensus = measure_guidance(*maps) if self.matcher.consensus else None
            found = match_points(*maps, encoded0, second_best_radius=radius, consensus=consensus)
            points1, similarities = resize_points(found.points1, scale).cpu(), found.similarities.cpu()
            rows = (found.round_trip_errors <= _CONFIG.mutual_tolerance).nonzero()[:, 0].cpu()
            rows = rows[similarities[rows].argsort(descending=True, stable=True)]
        return KeypointMatches(points0[rows], points1[rows], similarities[rows])


@dataclass(frozen=True, eq=False, kw_only=True)
class KeypointMethod(Method):
    """Mutual nearest neighbours of descriptors at keypoints.

    Attributes:
        extractor: detects keypoints and computes their descriptors.
        ratio: of Lowe's ratio test; 1 switches it off.
    """

    extractor: KeypointExtractor
    ratio: float = 1.0

    def match(self, features0: Keypoints, features1: Keypoints) -> KeypointMatches:
        """Mutual nearest neighbours, ordered by distance, or by their ratio where the test is on."""
        return match_keypoints(features0, features1, self.ratio)


AnyMethod = TypeVar("AnyMethod", bound=Method)


@dataclass(frozen=True)
class LoadedMethods(Generic[AnyMethod]):
    """Methods that can run here, and why others cannot.

    Attributes:
        methods: in the order of their names.
        skipped: reasons by name.
    """

    methods: list[AnyMethod] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


Loader = Callable[[MethodInfo, str], Any]
"""Loads the method of an info onto a device; picklable."""

_shared: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()


def make_once(key: tuple[object, ...], make: Callable[[], _Made]) -> _Made:
    """What `make` gives, made once for all methods of this process that hold it at the same time."""
    found: _Made | None = _shared.get(key)
    if found is None:
        found = _shared[key] = make()
    return found


def wrap_extractor(extractor: Extractor, matcher: PairMatcher | None = None) -> Loader:
    """A loader of an extractor without weights, and of a matcher; nearest neighbours when None."""
    return partial(_load_ready, extractor, matcher or NearestNeighbours())


def add_consensus(info: MethodInfo) -> MethodInfo:
    """A dense method by nearest neighbours, with neighbourhood consensus."""
    return replace(
        info,
        title=f"{info.title}; guided by neighbourhood consensus",
        key={**info.key, CONSENSUS: CONSENSUS_SHA256},
        loader=partial(_load_guided, info),
    )


def _load_guided(base: MethodInfo, info: MethodInfo, device: str) -> DenseMethod:
    method: DenseMethod = base.load(device)
    return replace(method, **info.metadata(), matcher=NearestNeighbours(consensus=True))


def _load_ready(extractor: Extractor, matcher: PairMatcher, info: MethodInfo, _device: str) -> DenseMethod:
    return DenseMethod(**info.metadata(), extractor=extractor, matcher=matcher)


def load_from_file(
    make: Callable[[Path, str], Extractor], path: Path, info: MethodInfo, device: str
) -> DenseMethod:
    """With the first two arguments bound, a `Loader` of an extractor that `make` loads from a file."""
    key = (make, json.dumps(info.key, sort_keys=True), device)
    return DenseMethod(**info.metadata(), extractor=make_once(key, lambda: make(path, device)))


def _to_encoded(features: Features, points: Tensor) -> Tensor:
    scale = resize_scale(features.image_hw, features.map.image_hw)
    return resize_points(points.to(features.map.features.device), scale)


def _sample(features: Features, points: Tensor) -> Tensor:
    """Descriptors (N, D), on the CPU, at points (N, 2) of the image."""
    return sample_descriptors(features.map, _to_encoded(features, points)[None])[0].cpu()
