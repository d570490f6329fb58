"""NN transfer: the keypoints of the most similar training image, copied to the test image.

The paper calls it NN transfer, or fc7 NN. Positions are copied relative to the bounding boxes of the objects,
which are given for both images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.errors import ConfigError
from ucn.features.extractor import Extractor
from ucn.features.pair_matcher import Alignment
from ucn.types import FeatureMap

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) of an object: centres of its outermost pixels."""

SIDE = 128
"""Pixels: the content of a box is scaled to a square of this side before features are extracted."""
SQUARES = 3
"""Squares along each side; an object's descriptor is the mean feature of each square, concatenated."""


@dataclass(frozen=True)
class UnboundTransfer:
    """The matcher of NN transfer before it has training images."""

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Raises `ConfigError`: a pair alone cannot be matched."""
        raise ConfigError("NN transfer needs training images with named parts; run it with `ucn evaluate`")


@dataclass(frozen=True, eq=False)
class PartGallery:
    """Training objects with known parts.

    Attributes:
        descriptors: (M, E) of unit length, one for each object.
        parts: (M, P, 2) positions of their parts relative to their boxes, in [0, 1]; rows may be padded.
        is_visible: (M, P) bool.
        kinds: (M,) class names; objects of one class have the same parts.
    """

    descriptors: Tensor
    parts: Tensor
    is_visible: Tensor
    kinds: Sequence[str]

    def transfer(self, descriptor: Tensor, kind: str, indices: Tensor) -> Tensor:
        """Copies each part from the most similar object on which it is visible.

        Args:
            descriptor: (E,) of an object.
            kind: its class.
            indices: (N,) int64, the parts to find.

        Returns:
            (N, 2) relative to its box; NaN where no object of the class shows a part.
        """
        rows = torch.tensor([row for row, other in enumerate(self.kinds) if other == kind], dtype=torch.int64)
        if not len(rows):
            return self.parts.new_full((len(indices), 2), torch.nan)
        order = rows[(self.descriptors[rows] @ descriptor).argsort(descending=True, stable=True)]
        is_shown = self.is_visible[order][:, indices]  # (M', N)
        first = is_shown.to(torch.uint8).argmax(dim=0)
        found = self.parts[order[first], indices]
        return torch.where(is_shown.any(dim=0)[:, None], found, torch.nan)


def compute_object_descriptor(extractor: Extractor, image: Tensor, box: Box) -> Tensor:
    """One descriptor (E,) of unit length of the content of a box of an image (3, H, W).

    The content is scaled to a square; its features are averaged in `SQUARES` × `SQUARES` squares, which keeps
    their rough layout.
    """
    height, width = image.shape[-2:]
    left, top = max(0, round(box[0])), max(0, round(box[1]))
    right, bottom = min(width - 1, round(box[2])), min(height - 1, round(box[3]))
    window = image[:, top : bottom + 1, left : right + 1]
    if 0 in window.shape:  # a box outside the image
        window = image
    square = F.interpolate(window[None], (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    features = extractor.extract(square[0].clamp(0, 1)).map.features
    pooled = F.adaptive_avg_pool2d(features.float().cpu(), SQUARES)
    return F.normalize(pooled.flatten(), dim=0)


def to_relative(points: Tensor, box: Box) -> Tensor:
    """Points (..., 2) in pixels, relative to a box: (0, 0) is its corner, (1, 1) the opposite one."""
    start, size = _measure(points, box)
    return (points - start) / size


def from_relative(points: Tensor, box: Box) -> Tensor:
    """Points (..., 2) relative to a box, in pixels; the inverse of `to_relative`."""
    start, size = _measure(points, box)
    return points * size + start


def _measure(points: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """The corner of a box, and its size (width, height) to the edges of its outermost pixels."""
    left, top, right, bottom = box
    return points.new_tensor([left - 0.5, top - 0.5]), points.new_tensor([right - left + 1, bottom - top + 1])
