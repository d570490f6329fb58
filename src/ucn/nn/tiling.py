"""Large images: resized, or encoded in overlapping tiles with the same result as the whole image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import find_reduced_hw
from ucn.nn.model import Encoder
from ucn.types import FeatureMap

_ALIGNMENT = 32  # a multiple of every stride, so that the cells of tiles are those of the whole image


@dataclass(frozen=True)
class _Span:
    """One tile along one axis, in pixels: the part that is kept, and the wider part that is encoded."""

    start: int
    stop: int
    wide_start: int
    wide_stop: int


def reduce_image(pixels: Tensor, max_side: int | None) -> Tensor:
    """Resizes an image (3, H, W) to a longest side; no side gets below `MIN_SIDE`. None keeps the size."""
    image_hw = pixels.shape[-2], pixels.shape[-1]
    size = find_reduced_hw(image_hw, max_side)
    if size == image_hw:
        return pixels
    reduced = F.interpolate(pixels[None], size, mode="bilinear", antialias=True, align_corners=False)
    return reduced[0].clamp(0, 1)


def encode_in_tiles(
    model: Encoder,
    image: Tensor,
    tile_side: int,
    report: Callable[[str], None] | None = None,
) -> FeatureMap:
    """Descriptors of one image, with memory bounded by the tile and not by the image.

    Every tile is encoded with a border as wide as the network's receptive field, which is then cropped, so
    the result equals that of the whole image.

    Args:
        model: a network or a fast engine.
        image: (1, 3, H, W).
        tile_side: in pixels, a multiple of 32. An image with a longer side is cut into tiles. With their
            borders they have at most as many pixels as a square tile of this side with its borders.
        report: called with a message before each tile.
    """
    height, width = image.shape[-2:]
    if max(height, width) <= tile_side:
        return model.encode(image)
    rows, columns = _plan_tiles((height, width), tile_side, model.reach)
    strips, count = [], len(rows) * len(columns)
    prepared = model.prepare(image)
    for i, row in enumerate(rows):
        pieces = []
        for j, column in enumerate(columns):
            if report is not None:
                report(f"tile {i * len(columns) + j + 1}/{count}")
            piece = prepared[..., row.wide_start : row.wide_stop, column.wide_start : column.wide_stop]
            features = model.describe(piece)
            features = _crop(features, row, -2, height, model.stride)
            pieces.append(_crop(features, column, -1, width, model.stride))
        strips.append(torch.cat(pieces, dim=-1))
    features = torch.cat(strips, dim=-2)
    return FeatureMap(features, model.stride, model.offset, (height, width), model.semantic_dim)


def count_encoded_pixels(size_hw: tuple[int, int], tile_side: int, reach: int) -> int:
    """Pixels that a network of this reach encodes for one image, borders of tiles included."""
    if max(size_hw) <= tile_side:
        return size_hw[0] * size_hw[1]
    rows, columns = _plan_tiles(size_hw, tile_side, reach)
    height, width = (sum(span.wide_stop - span.wide_start for span in spans) for spans in (rows, columns))
    return height * width


def _plan_tiles(size_hw: tuple[int, int], tile_side: int, reach: int) -> tuple[list[_Span], list[_Span]]:
    """Spans of rows and of columns, so that as few pixels as possible are encoded twice.

    Borders cost most with many small tiles: fewer, elongated tiles with as many pixels have less of them. At
    least one axis is cut.
    """
    margin = -(-reach // _ALIGNMENT) * _ALIGNMENT
    max_pixels = (tile_side + 2 * margin) ** 2
    height, width = size_hw
    finest = _max_tiles(height, margin), _max_tiles(width, margin)
    plans = [finest]  # in case tiles are hardly larger than their borders
    for columns in range(1, min(4 * -(-width // tile_side), finest[1]) + 1):
        rows = _count_tiles(height, max_pixels // _find_longest(width, columns, margin), margin)
        if rows is not None:
            plans.append((max(rows, 2) if columns == 1 and finest[0] > 1 else rows, columns))

    def find_cost(plan: tuple[int, int]) -> tuple[bool, int]:
        rows, columns = plan
        encoded = (height + 2 * margin * (rows - 1)) * (width + 2 * margin * (columns - 1))
        return plan == (1, 1), encoded

    rows, columns = min(plans, key=find_cost)
    return list(_spans(height, rows, margin)), list(_spans(width, columns, margin))


def _find_longest(size: int, count: int, margin: int) -> int:
    """Length in pixels of the longest of `count` tiles along one axis."""
    return max(span.wide_stop - span.wide_start for span in _spans(size, count, margin))


def _max_tiles(size: int, margin: int) -> int:
    """Largest number of tiles along an axis such that each keeps at least 32 pixels."""
    return max(1, (size - 2 * margin) // _ALIGNMENT)


def _count_tiles(size: int, limit: int, margin: int) -> int | None:
    """Smallest number of tiles of at most `limit` pixels along one axis; None if that is impossible."""
    if size <= limit:
        return 1
    inner = limit - 2 * margin
    if inner <= _ALIGNMENT:
        return None
    fewest, enough = (-(-(size - 2 * margin) // each) for each in (inner, inner - _ALIGNMENT))
    # Tile borders are aligned, so that some tiles are longer than the mean.
    counts = range(max(1, fewest), min(enough, _max_tiles(size, margin)) + 1)
    return next((count for count in counts if _find_longest(size, count, margin) <= limit), None)


def _spans(size: int, count: int, margin: int) -> Iterator[_Span]:
    """`count` tiles that encode about equally many pixels each; the outer ones have one border only."""
    inner = (size - 2 * margin) / count
    ends = [round((margin + inner * (index + 1)) / _ALIGNMENT) * _ALIGNMENT for index in range(count - 1)]
    starts = [0, *ends]
    for start, stop in zip(starts, [*ends, size], strict=True):
        yield _Span(start, stop, max(0, start - margin), min(size, stop + margin))


def _crop(features: Tensor, span: _Span, axis: int, size: int, stride: int) -> Tensor:
    first = (span.start - span.wide_start) // stride
    if span.stop == size:  # the last tile keeps all cells to the image's end
        return features.narrow(axis, first, features.shape[axis] - first)
    return features.narrow(axis, first, (span.stop - span.start) // stride)
