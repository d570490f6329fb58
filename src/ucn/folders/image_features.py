"""Images to keypoints with descriptors: the work that every engine does, in batches of images of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.errors import ConfigError
from ucn.features.extractor import Extractor
from ucn.folders.detectors import DEFAULT_DETECTOR, DETECTORS, OF_PIXELS, Detected, detect
from ucn.folders.images import Reduced
from ucn.formats.hloc import ImageFeatures
from ucn.geometry.coords import resize_points, resize_scale
from ucn.geometry.sampling import sample_descriptors
from ucn.nn import MIN_SIDE
from ucn.types import FeatureMap, FloatArray

OWN = "own"
"""As a detector: the keypoints that a method finds itself, where it does (DISK)."""


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


@dataclass(frozen=True)
class Prepared:
    """An image with what can be found out before the network has seen it.

    Attributes:
        image: its pixels, in memory that a GPU can read by itself where one is used.
        found: its keypoints; None where the detector looks at features.
    """

    image: Reduced
    found: Detected | None


class Launched:
    """Features of a batch, which a GPU may still be working on."""

    def __init__(self, features: Sequence[ImageFeatures], device: torch.device | None) -> None:
        """Keeps features whose arrays the device fills by what was asked of it so far."""
        self._features, self._event = list(features), None
        if device is not None and device.type == "cuda":
            # A wait without it keeps a core busy, which reading and keypoints need.
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))

    def finish(self) -> list[ImageFeatures]:
        """The features, when they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._features


class ImageDescriber:
    """Describes images with one extractor and one detector."""

    def __init__(self, extractor: Extractor, settings: ExtractSettings) -> None:
        """Keeps both; raises `ConfigError` where a method has no keypoints of its own, and they are asked."""
        self._extractor, self.settings = extractor, settings
        if settings.detector == OWN and not getattr(extractor, "has_own_keypoints", False):
            raise ConfigError(
                f"detector '{OWN}': this method has no keypoints of its own; choose {', '.join(DETECTORS)}"
            )
        self._encode_together: Any = getattr(extractor, "encode", None)
        device = getattr(extractor, "device", None)
        is_cuda = isinstance(device, torch.device) and device.type == "cuda"
        self._gpu: torch.device | None = device if is_cuda and self._encode_together is not None else None

    def describe(self, images: Sequence[Reduced]) -> list[ImageFeatures]:
        """Features of images, in their order; neighbours of one size pass the network together."""
        found: list[ImageFeatures] = []
        start = 0
        while start < len(images):
            stop, limit = start + 1, min(len(images), start + self.settings.batch)
            while stop < limit and images[stop].hw == images[start].hw:
                stop += 1
            found += self.launch([self.prepare(image) for image in images[start:stop]]).finish()
            start = stop
        return found

    @torch.no_grad()
    def prepare(self, image: Reduced) -> Prepared:
        """What does not need the network; for threads beside the one that calls `launch`."""
        found = None
        if self.settings.detector in OF_PIXELS:
            found = detect(self.settings.detector, image.pixels, None, self.settings.max_keypoints)
        if self._gpu is not None:
            image = replace(image, pixels=image.pixels.pin_memory())
        return Prepared(image, found)

    @torch.no_grad()
    def launch(self, images: Sequence[Prepared]) -> Launched:
        """Describes images of one size, as far as possible without waiting for a GPU; all in one thread."""
        if not images:
            return Launched([], None)
        if self._encode_together is None:
            single = [self._extract(item) for item in images]
            return Launched([features for features, _ in single], single[-1][1])
        together: FeatureMap = self._encode_together(self._stack([item.image.pixels for item in images]))
        found = [
            item.found or self._detect(item.image, together[row], None) for row, item in enumerate(images)
        ]
        features = _collect(together, [item.image for item in images], found)
        return Launched(features, together.features.device)

    def _extract(self, item: Prepared) -> tuple[ImageFeatures, torch.device]:
        """The same by a method that takes one image at a time, and may have keypoints of its own."""
        extracted = self._extractor.extract(item.image.pixels)
        own = resize_points(extracted.keypoints, resize_scale(extracted.image_hw, extracted.map.image_hw))
        found = item.found or self._detect(item.image, extracted.map, own)
        return _collect(extracted.map, [item.image], [found])[0], extracted.map.features.device

    def _stack(self, images: Sequence[Tensor]) -> Tensor:
        """Images as a batch; that of a GPU is made there, by copies that nobody waits for."""
        if self._gpu is None:
            return torch.stack(list(images))
        batch = torch.empty((len(images), *images[0].shape), device=self._gpu)
        for row, image in zip(batch, images, strict=True):
            row.copy_(image, non_blocking=True)
        return batch

    def _detect(self, image: Reduced, feature_map: FeatureMap, own: Tensor | None) -> Detected:
        count = self.settings.max_keypoints
        if self.settings.detector != OWN or own is None:
            return detect(self.settings.detector, image.pixels, feature_map, count)
        points = _to_numpy(resize_points(own[:count], resize_scale(feature_map.image_hw, image.hw)))
        ranks = np.arange(len(points), dtype=np.float32)
        return Detected(points, np.asarray(1 - 0.999 * ranks / max(len(points), 1), np.float32))


def _collect(
    feature_map: FeatureMap, images: Sequence[Reduced], found: Sequence[Detected]
) -> list[ImageFeatures]:
    """Descriptors of a map's images at their keypoints: asked for, and sent home, in one piece."""
    points = np.zeros((len(images), max(len(item.points) for item in found), 2), np.float32)
    for row, item in zip(points, found, strict=True):
        row[: len(item.points)] = item.points
    # Some methods see an image at a size of their own.
    inside = resize_points(torch.from_numpy(points), resize_scale(images[0].hw, feature_map.image_hw))
    sampled = sample_descriptors(feature_map, _send_out(inside, feature_map.features.device))
    descriptors, whole = _send_home(sampled), _send_home(_pool(feature_map))
    return [
        ImageFeatures(
            resize_points(torch.from_numpy(item.points), resize_scale(image.hw, image.image_hw)).numpy(),
            descriptors[row, : len(item.points)],
            item.scores,
            image.image_hw,
            whole[row],
        )
        for row, (image, item) in enumerate(zip(images, found, strict=True))
    ]


def pool_features(feature_map: FeatureMap) -> FloatArray:
    """A unit vector (D,) for the (first) image of a map as a whole: the mean of its descriptors."""
    return _to_numpy(_pool(feature_map)[0])


def _pool(feature_map: FeatureMap) -> Tensor:
    """Unit vectors (B, D)."""
    return F.normalize(feature_map.features.float().mean(dim=(2, 3)), dim=1)


def _send_out(values: Tensor, device: torch.device) -> Tensor:
    """Values of the CPU on a device, without waiting until a GPU has done what it was asked before."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _send_home(values: Tensor) -> FloatArray:
    """The values as an array of the CPU; from a GPU they come when it has done what was asked of it."""
    values = values.detach().float()
    if values.is_cuda:
        home = torch.empty_like(values, device="cpu", pin_memory=True)  # in the same order, as it lies
        values = home.copy_(values, non_blocking=True)
    return values.cpu().numpy()


def _to_numpy(values: Tensor) -> FloatArray:
    return np.ascontiguousarray(values.detach().float().cpu().numpy())
