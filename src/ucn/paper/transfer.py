"""NN transfer: the parts of the most similar training image, copied without a look at the parts themselves.

What a method gains over this is what it sees of the single image; the paper calls it NN transfer, or fc7 NN.
Positions are copied relative to the boxes round the objects, which are given for both images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.features.extractor import Extractor

Box = tuple[float, float, float, float]
"""Centres (left, top, right, bottom) of the outermost pixels of an object."""

SIDE = 128
"""Pixels to which what a box holds is scaled, whatever its shape, before it is described."""
SQUARES = 3
"""Along each side: the descriptor of an object is the means of its features in so many squares."""


@dataclass(frozen=True, eq=False)
class PartGallery:
    """Objects whose parts are known.

    Attributes:
        descriptors: (M, E) of unit length, one an object.
        parts: (M, P, 2) places of their parts relative to their boxes, in [0, 1]; rows may be padded.
        is_visible: (M, P) bool.
        kinds: (M,) names; only objects of one kind have the same parts.
    """

    descriptors: Tensor
    parts: Tensor
    is_visible: Tensor
    kinds: Sequence[str]

    def transfer(self, descriptor: Tensor, kind: str, wanted: Tensor) -> Tensor:
        """Copies parts from the most similar object; one that it does not show, from the next that does.

        Args:
            descriptor: (E,) of an object.
            kind: of that object.
            wanted: (N,) int64, which of its parts are asked for.

        Returns:
            (N, 2) relative to its box; NaN where no object of the kind shows a part.
        """
        rows = torch.tensor([row for row, other in enumerate(self.kinds) if other == kind], dtype=torch.int64)
        if not len(rows):
            return self.parts.new_full((len(wanted), 2), torch.nan)
        order = rows[(self.descriptors[rows] @ descriptor).argsort(descending=True, stable=True)]
        is_shown = self.is_visible[order][:, wanted]  # (M', N)
        first = is_shown.to(torch.uint8).argmax(dim=0)
        found = self.parts[order[first], wanted]
        return torch.where(is_shown.any(dim=0)[:, None], found, torch.nan)


def describe_object(extractor: Extractor, image: Tensor, box: Box) -> Tensor:
    """One descriptor (E,) of unit length of what a box of an image (3, H, W) holds.

    The box's content is scaled to a square and described; features are averaged in `SQUARES` × `SQUARES`
    squares, so that the descriptor says roughly where things are.
    """
    height, width = image.shape[-2:]
    left, top = max(0, round(box[0])), max(0, round(box[1]))
    right, bottom = min(width - 1, round(box[2])), min(height - 1, round(box[3]))
    window = image[:, top : bottom + 1, left : right + 1]
    if 0 in window.shape:  # a box beside the image
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
    """The corner of a box, and its width and height, edges of its outermost pixels included."""
    left, top, right, bottom = box
    return points.new_tensor([left - 0.5, top - 0.5]), points.new_tensor([right - left + 1, bottom - top + 1])
