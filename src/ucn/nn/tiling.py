"""Images that are too large: reduced, or encoded in overlapping tiles that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.nn.model import MIN_SIDE
from ucn.types import FeatureMap

_ALIGNMENT = 32  # a multiple of every stride, so that tiles fall on the cells of the whole image


class Encoder(Protocol):
    """Makes images feature maps, whole or prepared and then in parts; `CorrespondenceNetwork` says how."""

    stride: int
    offset: float
    reach: int

    def encode(self, images: Tensor) -> FeatureMap:
        """Whole images (B, 3, H, W)."""

    def prepare(self, images: Tensor) -> Tensor:
        """What parts of images cannot do alone."""

    def describe(self, images: Tensor) -> Tensor:
        """Parts of prepared images."""


@dataclass(frozen=True)
class _Span:
    """One tile along one axis, in pixels: what is kept, and the wider stretch that is encoded for it."""

    start: int
    stop: int
    wide_start: int
    wide_stop: int


def reduce_image(pixels: Tensor, max_side: int | None) -> Tensor:
    """An image (3, H, W) reduced to a longest side, though never below what networks need; None keeps it."""
    height, width = pixels.shape[-2:]
    if max_side is None or max(height, width) <= max_side:
        return pixels
    scale = max(max_side / max(height, width), MIN_SIDE / min(height, width))
    if scale >= 1:
        return pixels
    size = (round(height * scale), round(width * scale))
    reduced = F.interpolate(pixels[None], size, mode="bilinear", antialias=True, align_corners=False)
    return reduced[0].clamp(0, 1)


def encode_in_tiles(
    model: Encoder,
    image: Tensor,
    tile_side: int,
    report: Callable[[str], None] | None = None,
) -> FeatureMap:
    """Descriptors of one image, with memory bounded by the tile and not by the image.

    Every tile is encoded with a border as wide as the network reaches, which is then cut off, so the result
    equals that of the whole image.

    Args:
        model: a network, or what encodes as one.
        image: (1, 3, H, W).
        tile_side: side of what a tile contributes, in pixels, a multiple of 32.
        report: called with a phrase before each tile.
    """
    height, width = image.shape[-2:]
    if max(height, width) <= tile_side:
        return model.encode(image)
    rows, columns = (list(_spans(size, tile_side, model.reach)) for size in (height, width))
    strips, count = [], len(rows) * len(columns)
    prepared = model.prepare(image)
    for i, row in enumerate(rows):
        pieces = []
        for j, column in enumerate(columns):
            if report is not None:
                report(f"tile {i * len(columns) + j + 1}/{count}")
            piece = prepared[..., row.wide_start : row.wide_stop, column.wide_start : column.wide_stop]
            features = model.describe(piece)
            features = _cut(features, row, -2, height, model.stride)
            pieces.append(_cut(features, column, -1, width, model.stride))
        strips.append(torch.cat(pieces, dim=-1))
    return FeatureMap(torch.cat(strips, dim=-2), model.stride, model.offset, (height, width))


def _spans(size: int, tile_side: int, reach: int) -> Iterator[_Span]:
    margin = -(-reach // _ALIGNMENT) * _ALIGNMENT
    start = 0
    while start < size:
        stop = min(size, start + tile_side)
        if size - stop < _ALIGNMENT * 2:  # no sliver at the end
            stop = size
        yield _Span(start, stop, max(0, start - margin), min(size, stop + margin))
        start = stop


def _cut(features: Tensor, span: _Span, axis: int, size: int, stride: int) -> Tensor:
    first = (span.start - span.wide_start) // stride
    if span.stop == size:  # the last tile keeps all cells to the image's end
        return features.narrow(axis, first, features.shape[axis] - first)
    return features.narrow(axis, first, (span.stop - span.start) // stride)
