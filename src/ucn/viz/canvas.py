"""Drawing primitives: two images side by side, dots, lines, markers, labels and captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
from numpy.typing import NDArray

from ucn.data.io import to_pixels
from ucn.types import FloatArray, ImageLike
from ucn.viz.colours import ImageArray

PAPER, INK = (255, 255, 255), (40, 40, 40)
FINE = 2
"""Supersampling factor: drawings are made larger, then reduced, since cv2's small circles are not round."""

_GAP = 16
_SHIFT = 4  # fractional bits of cv2's coordinates


@dataclass(frozen=True)
class Panels:
    """Two images of equal height side by side on a canvas, and the mapping of their points onto it."""

    canvas: ImageArray
    scale0_xy: FloatArray
    scale1_xy: FloatArray
    left1: int

    def place0(self, points: FloatArray) -> FloatArray:
        """Positions on the canvas of points of image 0."""
        return (points + np.float32(0.5)) * self.scale0_xy - np.float32(0.5)

    def place1(self, points: FloatArray) -> FloatArray:
        """Positions on the canvas of points of image 1."""
        placed = (points + np.float32(0.5)) * self.scale1_xy - np.float32(0.5)
        return placed + np.asarray([self.left1, 0], np.float32)


def lay_out(image0: ImageLike, image1: ImageLike, width: int, dim: float = 1.0) -> Panels:
    """Scales both images to one height so that the pair is `width` wide; `dim` below 1 darkens them."""
    pixels0, pixels1 = to_pixels(image0), to_pixels(image1)
    aspect0, aspect1 = (p.shape[1] / p.shape[0] for p in (pixels0, pixels1))
    height = max(FINE, round((width - _GAP) / (aspect0 + aspect1)) // FINE * FINE)
    width0 = min(max(1, round(height * aspect0)), width - _GAP - 1)
    width1 = width - _GAP - width0
    canvas = np.full((height, width, 3), PAPER, np.uint8)
    canvas[:, :width0] = _dim(resize(pixels0, (height, width0)), dim)
    canvas[:, -width1:] = _dim(resize(pixels1, (height, width1)), dim)
    scale0_xy, scale1_xy = (
        np.asarray([w / p.shape[1], height / p.shape[0]], np.float32)
        for w, p in ((width0, pixels0), (width1, pixels1))
    )
    return Panels(canvas, scale0_xy, scale1_xy, width0 + _GAP)


def _dim(pixels: ImageArray, dim: float) -> ImageArray:
    """Darkens and desaturates, so that thin coloured lines stand out."""
    if dim == 1.0:
        return pixels
    grey = pixels.mean(axis=-1, keepdims=True, dtype=np.float32)
    dimmed: ImageArray = np.round(np.float32(dim / 2) * (grey + pixels)).astype(np.uint8)
    return dimmed


def resize(pixels: ImageArray, size_hw: tuple[int, int]) -> ImageArray:
    """Resizes an image."""
    shrinks = size_hw[0] < pixels.shape[0]
    mode = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, (size_hw[1], size_hw[0]), interpolation=mode), np.uint8)


def reduce(canvas: ImageArray) -> ImageArray:
    """Reduces a supersampled canvas to its final size."""
    return resize(canvas, (canvas.shape[0] // FINE, canvas.shape[1] // FINE))


def spread_evenly(points: FloatArray, count: int) -> NDArray[np.int64]:
    """Indices of at most `count` points, evenly spread: one per grid cell, then a second one, and so on."""
    if len(points) <= count:
        return np.arange(len(points))
    if count < 1:
        return np.zeros(0, np.int64)
    side = max(1.0, float(np.sqrt(np.prod(np.ptp(points, axis=0) + 1) / max(count, 1))))
    cells = np.floor(points / side).astype(np.int64)
    _, cell, sizes = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(cell.reshape(-1), kind="stable")
    rank = np.empty(len(points), np.int64)  # number of earlier points in its cell
    rank[order] = np.concatenate([np.arange(size) for size in sizes])
    # Of the last rank, take every n-th cell, not only the first rows of the image.
    by_rank = np.argsort(rank, kind="stable")
    last = rank[by_rank[count - 1]]
    whole = by_rank[rank[by_rank] < last]
    rest = by_rank[rank[by_rank] == last]
    chosen = np.linspace(0, len(rest), count - len(whole), endpoint=False).astype(np.int64)
    return np.sort(np.concatenate([whole, rest[chosen]]))


def _fixed(point: FloatArray) -> tuple[int, int]:
    return round(float(point[0]) * 2**_SHIFT), round(float(point[1]) * 2**_SHIFT)


def _colour(colour: Sequence[int] | ImageArray) -> tuple[int, int, int]:
    red, green, blue = (int(c) for c in colour)
    return red, green, blue


def draw_lines(
    canvas: ImageArray, points0: FloatArray, points1: FloatArray, colours: ImageArray
) -> ImageArray:
    """A copy of the canvas with thin translucent lines."""
    drawn = canvas.copy()
    for start, end, colour in zip(points0, points1, colours, strict=True):
        cv2.line(drawn, _fixed(start), _fixed(end), _colour(colour), FINE, cv2.LINE_AA, _SHIFT)
    return np.asarray(cv2.addWeighted(drawn, 0.55, canvas, 0.45, 0), np.uint8)


def draw_dots(canvas: ImageArray, points: FloatArray, colours: ImageArray) -> ImageArray:
    """A copy of the canvas with small filled dots."""
    drawn = canvas.copy()
    radius = round(FINE * 2.4 * 2**_SHIFT)
    for point, colour in zip(points, colours, strict=True):
        cv2.circle(drawn, _fixed(point), radius, _colour(colour), -1, cv2.LINE_AA, _SHIFT)
    return drawn


def draw_marker(
    canvas: ImageArray, position: FloatArray, colour: ImageArray, radius: float, is_filled: bool
) -> None:
    """Draws a circle with a dark rim, filled or hollow."""
    centre, size = _fixed(position), round(radius * 2**_SHIFT)
    rim = round((radius + 1.25 * FINE) * 2**_SHIFT)
    if is_filled:
        cv2.circle(canvas, centre, rim, (0, 0, 0), -1, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, centre, size, _colour(colour), -1, cv2.LINE_AA, _SHIFT)
    else:
        cv2.circle(canvas, centre, size, (0, 0, 0), 4 * FINE, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, centre, size, _colour(colour), 2 * FINE, cv2.LINE_AA, _SHIFT)


def draw_cross(canvas: ImageArray, position: FloatArray, radius: float) -> None:
    """Draws a white cross."""
    for sign in (-1, 1):
        start = position + np.asarray([-radius, -sign * radius], np.float32)
        end = position + np.asarray([radius, sign * radius], np.float32)
        cv2.line(canvas, _fixed(start), _fixed(end), (255, 255, 255), 2 * FINE, cv2.LINE_AA, _SHIFT)


def write_labels(
    canvas: ImageArray, positions: FloatArray, labels: Sequence[str], offset: float
) -> ImageArray:
    """A copy of the canvas with labels beside the finite positions."""
    image = PIL.Image.fromarray(canvas)
    draw = PIL.ImageDraw.Draw(image)
    font = PIL.ImageFont.load_default(size=15 * FINE)
    for (x, y), label in zip(positions.tolist(), labels, strict=True):
        if np.isfinite(x) and np.isfinite(y):
            position = (x + offset, max(y - offset, 10.0 * FINE))
            rim = 2 * FINE
            draw.text(
                position, label, font=font, fill="white", anchor="lm", stroke_width=rim, stroke_fill="black"
            )
    return np.array(image)


def add_caption(
    canvas: ImageArray,
    text: str,
    scale_name: str = "",
    scale: ImageArray | None = None,
    scale_ends: tuple[str, str] = ("", ""),
    height: int = 36,
) -> ImageArray:
    """Appends a strip below the image: text at the left, a colour scale at the right."""
    image = PIL.Image.new("RGB", (canvas.shape[1], height), PAPER)
    draw = PIL.ImageDraw.Draw(image)
    font = PIL.ImageFont.load_default(size=17)
    middle = height / 2
    draw.text((12, middle), text, font=font, fill=INK, anchor="lm")
    if scale is not None:
        right = canvas.shape[1] - 12
        draw.text((right, middle), scale_ends[1], font=font, fill=INK, anchor="rm")
        right -= round(draw.textlength(scale_ends[1], font=font)) + 8
        bar = PIL.Image.fromarray(np.broadcast_to(scale, (12, *scale.shape)).copy())
        image.paste(bar, (right - bar.width, round(middle) - 6))
        right -= bar.width + 8
        draw.text((right, middle), f"{scale_name}  {scale_ends[0]}", font=font, fill=INK, anchor="rm")
    return np.concatenate([canvas, np.array(image)])
