"""Drawing primitives: two images side by side, dots, lines and markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ucn.data.io import to_pixels
from ucn.types import FloatArray, ImageLike
from ucn.viz.colours import ImageArray

PAPER, INK = (255, 255, 255), (40, 40, 40)
FINE = 2
"""Supersampling factor: drawings are made larger, then reduced, since cv2's small circles are not round."""

_GAP = 16
_TALLEST = 2.0  # height of a canvas, as a share of its width
_USUAL_WIDTH = 1600  # of a drawing whose thin lines are one pixel wide
_RIM = (20, 20, 20)  # around lines and dots, so that they show on light photographs, too
_SHIFT = 4  # fractional bits of cv2's coordinates


@dataclass(frozen=True)
class Panels:
    """Two images of equal height side by side on a canvas, and the mapping of their points onto it."""

    canvas: ImageArray
    scale0_xy: FloatArray
    scale1_xy: FloatArray
    left0: int
    left1: int

    def place0(self, points: FloatArray) -> FloatArray:
        """Positions on the canvas of points (..., 2) of image 0."""
        return _place(points, self.scale0_xy, self.left0)

    def place1(self, points: FloatArray) -> FloatArray:
        """Positions on the canvas of points (..., 2) of image 1."""
        return _place(points, self.scale1_xy, self.left1)


def _place(points: FloatArray, scale_xy: FloatArray, left: int) -> FloatArray:
    return (points + np.float32(0.5)) * scale_xy - np.float32(0.5) + np.asarray([left, 0], np.float32)


def lay_out(image0: ImageLike, image1: ImageLike, width: int, brightness: float = 1.0) -> Panels:
    """Scales both images to one height so that the pair is `width` wide.

    A pair of very tall images is narrower, so that the canvas is at most twice as tall as wide. `brightness`
    below 1 darkens the images.
    """
    pixels0, pixels1 = to_pixels(image0), to_pixels(image1)
    aspect0, aspect1 = (p.shape[1] / p.shape[0] for p in (pixels0, pixels1))
    fitting, tallest = (width - _GAP) / (aspect0 + aspect1), _TALLEST * width
    height = max(FINE, round(min(fitting, tallest)) // FINE * FINE)
    width0 = min(max(1, round(height * aspect0)), width - _GAP - 1)
    width1 = width - _GAP - width0
    if fitting > tallest:
        width1 = min(max(1, round(height * aspect1)), width1)
    left0 = (width - _GAP - width0 - width1) // 2
    lefts, widths = (left0, left0 + width0 + _GAP), (width0, width1)
    canvas = np.full((height, width, 3), PAPER, np.uint8)
    for pixels, left, own in zip((pixels0, pixels1), lefts, widths, strict=True):
        canvas[:, left : left + own] = cv2.convertScaleAbs(resize(pixels, (height, own)), alpha=brightness)
    scale0_xy, scale1_xy = (
        np.asarray([own / pixels.shape[1], height / pixels.shape[0]], np.float32)
        for own, pixels in zip(widths, (pixels0, pixels1), strict=True)
    )
    return Panels(canvas, scale0_xy, scale1_xy, *lefts)


def find_unit(width: int) -> float:
    """Width of a thin line in a drawing of this width: a pixel, or more where the drawing is very wide."""
    return max(1.0, width / _USUAL_WIDTH)


def resize(pixels: ImageArray, size_hw: tuple[int, int]) -> ImageArray:
    """Resizes an image."""
    shrinks = size_hw[0] < pixels.shape[0]
    mode = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, (size_hw[1], size_hw[0]), interpolation=mode), np.uint8)


def reduce(canvas: ImageArray) -> ImageArray:
    """Reduces a supersampled canvas to its final size."""
    return resize(canvas, (canvas.shape[0] // FINE, canvas.shape[1] // FINE))


def spread_evenly(points: FloatArray, count: int) -> NDArray[np.int64]:
    """Indices of at most `count` points, evenly spread: the first one of each grid cell, then the second."""
    if len(points) <= count:
        return np.arange(len(points))
    if count < 1:
        return np.zeros(0, np.int64)
    cells = _find_cells(points, count)
    order = np.argsort(cells, kind="stable")
    sizes = np.unique(cells, return_counts=True)[1]
    rank = np.empty(len(points), np.int64)  # number of earlier points in its cell
    rank[order] = np.concatenate([np.arange(size) for size in sizes])
    last = np.sort(rank)[count - 1]
    whole = np.flatnonzero(rank < last)
    # Of the last rank, take every n-th cell, not only the first rows of the image.
    rest = order[rank[order] == last]
    chosen = np.linspace(0, len(rest), count - len(whole), endpoint=False).astype(np.int64)
    return np.sort(np.concatenate([whole, rest[chosen]]))


def _find_cells(points: FloatArray, count: int) -> NDArray[np.int64]:
    """The cell of each point, of a grid of `count` square cells at most over all points."""
    corner, extent = points.min(axis=0), np.ptp(points, axis=0).astype(np.float64)
    side = max(1.0, float(np.sqrt(np.prod(extent + 1) / count)))
    while np.prod(np.floor(extent / side) + 1) > count:
        side *= 1.05
    columns, rows = np.floor((points - corner) / side).astype(np.int64).T
    found: NDArray[np.int64] = rows * (columns.max() + 1) + columns
    return found


def _fixed(point: FloatArray) -> tuple[int, int]:
    return round(float(point[0]) * 2**_SHIFT), round(float(point[1]) * 2**_SHIFT)


def _colour(colour: Sequence[int] | ImageArray) -> tuple[int, int, int]:
    red, green, blue = (int(c) for c in colour)
    return red, green, blue


def draw_lines(
    canvas: ImageArray,
    points0: FloatArray,
    points1: FloatArray,
    colours: ImageArray,
    *,
    thickness: float = FINE,
    opacity: float = 0.55,
    has_rim: bool = False,
) -> ImageArray:
    """A copy of the canvas with thin translucent lines.

    Args:
        canvas: (H, W, 3).
        points0: (N, 2) starts.
        points1: (N, 2) ends.
        colours: (N, 3).
        thickness: in pixels of the canvas.
        opacity: in [0, 1].
        has_rim: draw a dark rim at both sides of each line.
    """
    drawn, own = canvas.copy(), max(1, round(thickness))
    rim = own + max(2, round(0.6 * own))
    for start, end, colour in zip(points0, points1, colours, strict=True):
        if has_rim:
            cv2.line(drawn, _fixed(start), _fixed(end), _RIM, rim, cv2.LINE_AA, _SHIFT)
        cv2.line(drawn, _fixed(start), _fixed(end), _colour(colour), own, cv2.LINE_AA, _SHIFT)
    if opacity == 1 or not len(colours):
        return drawn
    return np.asarray(cv2.addWeighted(drawn, opacity, canvas, 1 - opacity, 0), np.uint8)


def draw_dots(
    canvas: ImageArray, points: FloatArray, colours: ImageArray, radius: float = 2.4 * FINE, rim: float = 0.0
) -> ImageArray:
    """A copy of the canvas with small filled dots; `rim` is the width of a dark edge around each."""
    drawn = canvas.copy()
    inner, outer = (round(size * 2**_SHIFT) for size in (radius, radius + rim))
    for point, colour in zip(points, colours, strict=True):
        if rim:
            cv2.circle(drawn, _fixed(point), outer, _RIM, -1, cv2.LINE_AA, _SHIFT)
        cv2.circle(drawn, _fixed(point), inner, _colour(colour), -1, cv2.LINE_AA, _SHIFT)
    return drawn


def draw_marker(
    canvas: ImageArray,
    position: FloatArray,
    colour: ImageArray,
    radius: float,
    is_filled: bool,
    unit: float = FINE,
) -> None:
    """Draws a circle with a dark rim, filled or hollow; `unit` is the width of a thin line."""
    centre, size = _fixed(position), round(radius * 2**_SHIFT)
    rim = round((radius + 1.25 * unit) * 2**_SHIFT)
    if is_filled:
        cv2.circle(canvas, centre, rim, (0, 0, 0), -1, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, centre, size, _colour(colour), -1, cv2.LINE_AA, _SHIFT)
    else:
        cv2.circle(canvas, centre, size, (0, 0, 0), round(4 * unit), cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, centre, size, _colour(colour), round(2 * unit), cv2.LINE_AA, _SHIFT)


def draw_cross(
    canvas: ImageArray,
    position: FloatArray,
    radius: float,
    colour: Sequence[int] | ImageArray = PAPER,
    unit: float = FINE,
    has_rim: bool = False,
) -> None:
    """Draws a diagonal cross, white by default; `unit` is the width of a thin line."""
    passes = [(_RIM, 4 * unit)] if has_rim else []
    for own, thickness in [*passes, (_colour(colour), 2 * unit)]:
        for sign in (-1, 1):
            start = position + np.asarray([-radius, -sign * radius], np.float32)
            end = position + np.asarray([radius, sign * radius], np.float32)
            cv2.line(canvas, _fixed(start), _fixed(end), own, max(1, round(thickness)), cv2.LINE_AA, _SHIFT)
