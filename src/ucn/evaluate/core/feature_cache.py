"""Features of images, each described once while pairs share it, with the time that took."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ucn.features import Extractor
from ucn.types import Features

_FEATURE_BYTES = 96 * 2**20  # of a method's features that are kept


class Describer:
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


def _count_bytes(features: Features) -> int:
    return features.map.features.nbytes


def digest_image(image: Tensor) -> str:
    """A name of an image: equal pixels have equal ones."""
    pixels = np.ascontiguousarray(image.numpy())
    return hashlib.blake2b(pixels.data, digest_size=16, key=str(pixels.shape).encode()).hexdigest()
