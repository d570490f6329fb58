"""Which methods find matches for camera motion: the network, hand-made features at keypoints, and peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cv2
import torch
from torch import Tensor

from ucn.config import MatchConfig
from ucn.errors import ConfigError
from ucn.evaluate.core.method_types import hint_at, list_wanted, refuse_repeated
from ucn.evaluate.core.methods import MethodFiles, MethodInfo, load_methods
from ucn.features import DenseDaisy, DenseKaze, Extractor
from ucn.features.sparse import (
    GridDescriptorsAtKeypoints,
    KeypointMatches,
    Keypoints,
    SiftKeypoints,
    match_keypoints,
)
from ucn.features.surf import SurfKeypoints
from ucn.features.surf import find_obstacle as find_surf_obstacle
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.matching.cells import match_points
from ucn.matching.keypoints import detect_corners
from ucn.matching.matcher import Matcher
from ucn.nn.encoder import choose_exact_engine
from ucn.types import Features
from ucn.weights import list_weights

RATIO = 0.8
"""Of Lowe's test, as in his paper."""
# Images are seen at their own size by all methods. Alignment is the benchmark's own step.
_CONFIG = MatchConfig(max_side=None, use_alignment=False)


class FrameMatcher(Protocol):
    """Finds matches of two images."""

    def describe(self, image: Tensor) -> Any:
        """What `match` needs of an image (3, H, W) in [0, 1]; used for many pairs."""

    def match(self, described0: Any, described1: Any) -> KeypointMatches:
        """Matches in pixels of both images, best first."""


@dataclass(frozen=True, eq=False)
class MotionMethod(MethodInfo):
    """A method that finds matches.

    Attributes:
        matcher: does it.
    """

    matcher: FrameMatcher


@dataclass(frozen=True)
class LoadedMotionMethods:
    """What can be measured, and why something cannot.

    Attributes:
        methods: in the order asked for.
        skipped: reasons by name.
    """

    methods: list[MotionMethod] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class NetworkMatcher:
    """Mutual nearest neighbours as `ucn.Matcher` gives them."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def describe(self, image: Tensor) -> Features:
        """Encodes an image."""
        return self._matcher.extract(image)

    def match(self, described0: Features, described1: Features) -> KeypointMatches:
        """Matches corners of image 0."""
        found = self._matcher.match_features(described0, described1)
        points0, points1, scores = map(torch.from_numpy, (found.points0, found.points1, found.scores))
        return KeypointMatches(points0, points1, scores)


@dataclass(frozen=True)
class KeypointMatcher:
    """Mutual nearest neighbours among keypoints.

    Attributes:
        extractor: finds and describes them.
        ratio: of Lowe's test; 1 switches it off.
    """

    extractor: SiftKeypoints | SurfKeypoints | GridDescriptorsAtKeypoints
    ratio: float = 1.0

    def describe(self, image: Tensor) -> Keypoints:
        """Finds and describes keypoints."""
        return self.extractor.extract(image)

    def match(self, described0: Keypoints, described1: Keypoints) -> KeypointMatches:
        """Matches keypoints of both images."""
        return match_keypoints(described0, described1, self.ratio)


@dataclass(frozen=True)
class DenseMatcher:
    """A peer's dense features: its own keypoints where it has such, else corners, matched as the network's.

    Attributes:
        extractor: describes images.
    """

    extractor: Extractor

    def describe(self, image: Tensor) -> tuple[Features, Tensor]:
        """Features of an image, and its keypoints."""
        features = self.extractor.extract(image)
        own = getattr(self.extractor, "has_own_keypoints", False)
        return features, features.keypoints.cpu() if own else detect_corners(image, _CONFIG.max_keypoints)

    def match(
        self, described0: tuple[Features, Tensor], described1: tuple[Features, Tensor]
    ) -> KeypointMatches:
        """Matches between keypoints of both images, or from corners to anywhere."""
        (features0, points0), (features1, points1) = described0, described1
        if getattr(self.extractor, "has_own_keypoints", False):
            return match_keypoints(
                Keypoints(points0, _read(features0, points0)), Keypoints(points1, _read(features1, points1))
            )
        found = match_points(
            features0.map,
            features1.map,
            _to_encoded(features0, points0),
            second_best_radius=_CONFIG.second_best_radius,
        )
        rows = (found.round_trip_errors <= _CONFIG.mutual_tolerance).nonzero()[:, 0]
        rows = rows[found.similarities[rows].argsort(descending=True, stable=True)].cpu()
        back = resize_scale(features1.map.image_hw, features1.image_hw)
        matched = resize_points(found.points1, back).cpu()
        return KeypointMatches(points0[rows], matched[rows], found.similarities.cpu()[rows])


def _to_encoded(features: Features, points: Tensor) -> Tensor:
    scale = resize_scale(features.image_hw, features.map.image_hw)
    return resize_points(points.to(features.map.features.device), scale)


def _read(features: Features, points: Tensor) -> Tensor:
    return sample_descriptors(features.map, _to_encoded(features, points)[None])[0].cpu()


def list_motion_methods() -> tuple[str, ...]:
    """Names of all methods that need no file of `ucn train`."""
    return (*(info.name for info in list_weights()), *_CLASSICAL, *_PEERS)


def load_motion_methods(
    names: Iterable[str] | None, files: MethodFiles | None = None, device: str | torch.device = "cpu"
) -> LoadedMotionMethods:
    """Loads methods; those whose files or packages are absent are skipped, with the reason.

    Args:
        names: of `list_motion_methods`, and those of given weights files; None means all of the former.
        files: what they need beside the package; weights files are measured even where they are not named.
        device: where networks of torch run.

    Raises:
        ConfigError: a name is unknown, or two methods have the same.
        WeightsError: a file is there, but damaged or of something else.
    """
    files = files or MethodFiles()
    legal = list_motion_methods()
    chosen = list(dict.fromkeys(legal if names is None else names))
    known = (*legal, *(path.stem for path in files.weights))
    for name in chosen:
        if name not in known:
            _refuse(name, known)
    loaded = LoadedMotionMethods()
    for wanted in list_wanted(chosen, files.weights, legal):
        if isinstance(wanted, Path):
            loaded.methods.append(_load_weights(wanted, wanted.stem, device))
        elif wanted == "surf" and (obstacle := find_surf_obstacle()):
            loaded.skipped[wanted] = obstacle
        elif wanted in _CLASSICAL:
            loaded.methods.append(_CLASSICAL[wanted]())
        elif wanted in _PEERS:
            _load_peer(wanted, files, device, loaded)
        else:
            loaded.methods.append(_load_weights(wanted, wanted, device))
    refuse_repeated([method.name for method in loaded.methods])
    return loaded


def _refuse(name: str, legal: tuple[str, ...]) -> None:
    raise ConfigError(
        f"no method '{name[:80]}' of camera motion{hint_at(name, legal)} (there are {', '.join(legal)}; "
        "files of `ucn train` are given with --weights-file)"
    )


def _load_weights(name_or_path: str | Path, name: str, device: str | torch.device) -> MotionMethod:
    engine = choose_exact_engine(device)
    matcher = Matcher.from_pretrained(name_or_path, config=_CONFIG, device=str(device), engine=engine)
    sha256 = matcher.weights.sha256
    title = (
        f"UCN, weights {name}, sha256 {sha256[:16]}: up to {_CONFIG.max_keypoints:,} corners of image 0, "
        f"matches that lead back to within {_CONFIG.mutual_tolerance:g} px and have a score of at least "
        f"{_CONFIG.min_score:g}, ordered by it"
    )
    key = {"ucn": sha256, "config": _CONFIG.to_dict()}
    return MotionMethod(name, title, key, NetworkMatcher(matcher))


def _load_peer(
    name: str, files: MethodFiles, device: str | torch.device, loaded: LoadedMotionMethods
) -> None:
    found = load_methods([name], MethodFiles(trunk=files.trunk, xfeat=files.xfeat), device)
    loaded.skipped.update(found.skipped)
    for method in found.methods:
        own = getattr(method.extractor, "has_own_keypoints", False)
        how = "its own keypoints" if own else f"up to {_CONFIG.max_keypoints:,} corners of image 0"
        title = f"{method.title}; {how}, mutual nearest neighbours ordered by their similarity"
        key = {**method.key, "config": _CONFIG.to_dict()}
        loaded.methods.append(MotionMethod(name, title, key, DenseMatcher(method.extractor)))


def _classical(name: str, title: str, matcher: KeypointMatcher) -> Callable[[], MotionMethod]:
    key = {name: asdict(matcher), "opencv": cv2.__version__}
    return lambda: MotionMethod(name, title, key, matcher)


_WHERE = f"up to {SiftKeypoints.max_count:,} keypoints of OpenCV's SIFT"
_CLASSICAL: dict[str, Callable[[], MotionMethod]] = {
    "sift": _classical(
        "sift",
        f"SIFT at {_WHERE}, mutual nearest neighbours ordered by their distance",
        KeypointMatcher(SiftKeypoints()),
    ),
    "sift-ratio": _classical(
        "sift-ratio",
        f"the same with Lowe's ratio test, at most {RATIO:g}, ordered by that ratio",
        KeypointMatcher(SiftKeypoints(), RATIO),
    ),
    "daisy": _classical(
        "daisy",
        f"DAISY, radius {DenseDaisy.radius:g} px, upright, at {_WHERE}, matched as sift",
        KeypointMatcher(GridDescriptorsAtKeypoints(DenseDaisy())),
    ),
    "kaze": _classical(
        "kaze",
        f"KAZE, 24 × 24 samples {DenseKaze.unit_pixels} px apart, upright, at {_WHERE}, matched as sift",
        KeypointMatcher(GridDescriptorsAtKeypoints(DenseKaze())),
    ),
    "surf": _classical(
        "surf",
        f"SURF at up to {SurfKeypoints.max_count:,} keypoints of its own, by mahotas, matched as sift",
        KeypointMatcher(SurfKeypoints()),
    ),
}
_PEERS = ("trunk", "xfeat", "disk")
