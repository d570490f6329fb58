"""Images to keypoints with descriptors: the work that every engine does, in batches of images of one size."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.baselines.extractor import Extractor
from ucn.batch.detectors import DEFAULT_DETECTOR, DETECTORS, Detected, detect
from ucn.batch.images import Reduced
from ucn.errors import ConfigError
from ucn.export.hloc import ImageFeatures
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.nn import MIN_SIDE
from ucn.types import FeatureMap, FloatArray

OWN = "own"
"""As a detector: the keypoints that a method finds itself, where it does (DISK)."""

_THREADS = 8


@dataclass(frozen=True)
class ExtractSettings:
    """How images are described.

    Attributes:
        max_side: larger images are reduced to this longest side in pixels; None keeps them.
        max_keypoints: of an image.
        detector: of `DETECTORS`, or `OWN`.
        batch: images of one size that pass the network together.
    """

    max_side: int | None = 1024
    max_keypoints: int = 4096
    detector: str = DEFAULT_DETECTOR
    batch: int = 4

    def __post_init__(self) -> None:
        """Checks ranges."""
        legal = (*DETECTORS, OWN)
        if self.detector not in legal:
            raise ConfigError(f"no detector '{self.detector[:80]}' (there are {', '.join(legal)})")
        for name, low in (("max_keypoints", 1), ("batch", 1), ("max_side", MIN_SIDE)):
            value = getattr(self, name)
            if value is not None and not low <= value <= 1_000_000:
                raise ConfigError(f"{name} must be in {low}..1,000,000, got {value}")


class ImageDescriber:
    """Describes images with one extractor and one detector."""

    def __init__(self, extractor: Extractor, settings: ExtractSettings) -> None:
        """Keeps both; raises `ConfigError` where a method has no keypoints of its own, and they are asked."""
        self._extractor, self._settings = extractor, settings
        if settings.detector == OWN and not getattr(extractor, "has_own_keypoints", False):
            raise ConfigError(
                f"detector '{OWN}': this method has no keypoints of its own; choose {', '.join(DETECTORS)}"
            )

    def describe(self, images: Sequence[Reduced]) -> list[ImageFeatures]:
        """Features of images, in their order; neighbours of one size pass the network together."""
        found: list[ImageFeatures] = []
        start = 0
        while start < len(images):
            stop, limit = start + 1, min(len(images), start + self._settings.batch)
            while stop < limit and images[stop].hw == images[start].hw:
                stop += 1
            found += self._describe_equal(images[start:stop])
            start = stop
        return found

    @torch.no_grad()
    def _describe_equal(self, images: Sequence[Reduced]) -> list[ImageFeatures]:
        maps, own = self._encode([image.pixels for image in images])
        # Detectors are OpenCV's, on the CPU, and let go of the interpreter while they work.
        with ThreadPoolExecutor(min(len(images), _THREADS)) as pool:
            return list(pool.map(self._collect, images, maps, own))

    def _encode(self, images: Sequence[Tensor]) -> tuple[list[FeatureMap], list[Tensor | None]]:
        """Maps of images of one size, and the method's own keypoints."""
        encode: Any = getattr(self._extractor, "encode", None)
        if encode is not None:
            together: FeatureMap = encode(torch.stack(list(images)))
            return [together[row] for row in range(len(images))], [None] * len(images)
        found = [self._extractor.extract(image) for image in images]
        scales = [resize_scale(item.image_hw, item.map.image_hw) for item in found]
        own = [resize_points(item.keypoints, scale) for item, scale in zip(found, scales, strict=True)]
        return [item.map for item in found], list(own)

    @torch.no_grad()
    def _collect(self, image: Reduced, feature_map: FeatureMap, own: Tensor | None) -> ImageFeatures:
        found = self._detect(image, feature_map, own)
        points = torch.from_numpy(found.points)
        # Some methods see an image at a size of their own.
        inside = resize_points(points, resize_scale(image.hw, feature_map.image_hw))
        descriptors = sample_descriptors(feature_map, inside[None].to(feature_map.features.device))[0]
        keypoints = resize_points(points, resize_scale(image.hw, image.image_hw))
        return ImageFeatures(
            keypoints.numpy(),
            _to_numpy(descriptors),
            found.scores,
            image.image_hw,
            pool_features(feature_map),
        )

    def _detect(self, image: Reduced, feature_map: FeatureMap, own: Tensor | None) -> Detected:
        count = self._settings.max_keypoints
        if self._settings.detector != OWN or own is None:
            return detect(self._settings.detector, image.pixels.cpu(), feature_map, count)
        points = _to_numpy(resize_points(own[:count], resize_scale(feature_map.image_hw, image.hw)))
        ranks = np.arange(len(points), dtype=np.float32)
        return Detected(points, np.asarray(1 - 0.999 * ranks / max(len(points), 1), np.float32))


def pool_features(feature_map: FeatureMap) -> FloatArray:
    """A unit vector (D,) for the image as a whole: the mean of its descriptors."""
    return _to_numpy(F.normalize(feature_map.features[0].float().mean(dim=(1, 2)), dim=0))


def _to_numpy(values: Tensor) -> FloatArray:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())
