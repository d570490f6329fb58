"""The features of an image as a .safetensors file, which no pickle can make run code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from ucn.config.base import Config, require, require_within
from ucn.data.points import check_suffix
from ucn.errors import DataError, WeightsError
from ucn.files.reading import read_binary
from ucn.files.writing import write_bytes_atomically
from ucn.types import FeatureMap, Features
from ucn.weights.store import parse_safetensors

FEATURES_SUFFIX = ".safetensors"
"""Ending of the name of a features file."""
FORMAT = "ucn-features-1"
"""The format that the file's header names."""
MAX_FEATURES_BYTES = 4 * 2**30
"""Larger features files are refused unread; those of 12 million pixels at full size take 0.4 GB."""

_OPTIONAL = ("grey", "image", "view")


@dataclass(frozen=True)
class _Layout(Config):
    """What a features file holds besides tensors; as in `FeatureMap` and `Features`."""

    stride: int
    offset: float
    semantic_dim: int
    encoded_hw: tuple[int, int]
    image_hw: tuple[int, int]

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require_within(self, {"stride": (1, 1024), "offset": (-1024, 1024), "semantic_dim": (0, 65536)})
        for name in ("encoded_hw", "image_hw"):
            size = getattr(self, name)
            require(1 <= min(size) <= max(size) <= 1_000_000, f"{name} must be in [1, 1000000]", size)


def write_features(path: str | Path, features: Features, overwrite: bool = False) -> None:
    """Writes all tensors as they are, and the layout of the map in the header.

    Args:
        path: ends in .safetensors.
        features: of one image.
        overwrite: replace an existing file.

    Raises:
        OutputError: another suffix, or the file cannot be written.
    """
    check_suffix(path, (FEATURES_SUFFIX,), "features")
    found = features.map
    layout = _Layout(found.stride, found.offset, found.semantic_dim, found.image_hw, features.image_hw)
    tensors = {"features": found.features, "keypoints": features.keypoints}
    tensors |= {name: tensor for name in _OPTIONAL if (tensor := getattr(features, name)) is not None}
    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        {"format": FORMAT, "layout": json.dumps(asdict(layout))},
    )
    write_bytes_atomically(path, content, overwrite)


def read_features(path: str | Path) -> Features:
    """Reads a file of `write_features` to the CPU.

    Raises:
        DataError: the file is missing, damaged, over `MAX_FEATURES_BYTES` or of another format.
    """
    path = Path(path)
    content = read_binary(path, "features", MAX_FEATURES_BYTES)
    try:
        header, tensors = parse_safetensors(content, path, FORMAT, "holds no features of an image")
        layout = _Layout.from_dict(json.loads(header["layout"]), "layout")
        _check_tensors(tensors, layout)
    except WeightsError as error:
        raise DataError(f"{error}; extract the features again", path=path) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = "its header is nested too deeply" if isinstance(error, RecursionError) else error
        message = f"{path} does not hold features: {reason}; extract them again"
        raise DataError(message, path=path) from error
    feature_map = FeatureMap(
        tensors["features"], layout.stride, layout.offset, layout.encoded_hw, layout.semantic_dim
    )
    optional = {name: tensors.get(name) for name in _OPTIONAL}
    return Features(feature_map, layout.image_hw, tensors["keypoints"], **optional)


def _check_tensors(tensors: dict[str, Tensor], layout: _Layout) -> None:
    """Raises a ValueError where names, types, shapes or values of tensors are not those of features."""
    odd = (tensors.keys() ^ {"features", "keypoints"}) - set(_OPTIONAL)
    if odd:
        raise ValueError(f"it must have features and keypoints, got {sorted(tensors)[:8]}")
    shape = tuple(tensors["features"].shape)
    if len(shape) != 4 or shape[0] != 1 or shape[1] <= layout.semantic_dim or 0 in shape:
        raise ValueError(f"features must be (1, D, h, w) with D above {layout.semantic_dim}, got {shape}")
    resized_hw = tensors["image"].shape[-2:] if {"image", "view"} <= tensors.keys() else layout.encoded_hw
    shapes = {
        "keypoints": (len(tensors["keypoints"]) if tensors["keypoints"].ndim else 0, 2),
        "grey": layout.encoded_hw,
        "image": (3, *resized_hw),
        "view": (2, 3),
    }
    for name, tensor in tensors.items():
        if name in shapes and tuple(tensor.shape) != shapes[name]:
            raise ValueError(f"{name} must be {shapes[name]}, got {tuple(tensor.shape)}")
        is_byte = name in ("grey", "image")
        is_right = tensor.dtype == torch.uint8 if is_byte else tensor.is_floating_point()
        if not is_right:
            raise ValueError(f"{name} must be {'uint8' if is_byte else 'floating point'}, got {tensor.dtype}")
        if not (is_byte or tensor.isfinite().all()):
            raise ValueError(f"{name} must be finite")
