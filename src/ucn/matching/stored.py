"""Features that were extracted before, maybe on another device, in another type, or read from a file."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.sampling import sample_descriptors
from ucn.matching.views import to_encoded
from ucn.types import Features


def receive(features: Features, device: torch.device) -> Features:
    """Features on a device; on a CPU not in half precision, as a GPU may have saved them."""
    there = features.map.features.device
    is_there = there.type == device.type and device.index in (None, there.index)
    is_half = device.type == "cpu" and features.map.features.element_size() < 4
    return features.to(device) if is_half or not is_there else features


def receive_pair(features0: Features, features1: Features, device: torch.device) -> tuple[Features, Features]:
    """As `receive`, both in one type.

    Raises:
        ValueError: the features are of different weights, as far as their dimensions tell.
    """
    dims = [features.map.features.shape[1] for features in (features0, features1)]
    if dims[0] != dims[1]:
        raise ValueError(
            "features0 and features1 must be of the same weights, got descriptors of "
            f"{dims[0]} and {dims[1]} dimensions; extract both with one matcher"
        )
    received0, received1 = receive(features0, device), receive(features1, device)
    types = [features.map.features.dtype for features in (received0, received1)]
    if types[0] == types[1]:
        return received0, received1
    dtype = torch.promote_types(*types)
    return _cast(received0, dtype), _cast(received1, dtype)


def _cast(features: Features, dtype: torch.dtype) -> Features:
    return replace(features, map=replace(features.map, features=features.map.features.to(dtype)))


def describe_points(features: Features, points: Tensor) -> Tensor:
    """Unit descriptors (N, D) float32 at points (N, 2) of the caller's image."""
    found = sample_descriptors(features.map, to_encoded(points, features)[None])[0]
    return F.normalize(found.float(), dim=1)
