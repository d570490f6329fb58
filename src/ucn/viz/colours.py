"""Colour-blind safe colours of scores (viridis), errors (Okabe and Ito), positions and flow."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from ucn.types import BoolArray, FloatArray

ImageArray = NDArray[np.uint8]
"""RGB values (..., 3): an image (H, W, 3), or colours (N, 3)."""

OKABE_ITO = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
LINE_COLOURS = (
    (255, 225, 60),
    (80, 200, 255),
    (255, 130, 50),
    (60, 225, 130),
    (255, 130, 210),
    (180, 150, 255),
    (255, 255, 255),
    (190, 240, 60),
)
"""Bright colours of thin lines on photographs."""
OUTLIER_COLOUR = (190, 85, 80)
"""Dull red."""
_ERROR_COLOURS = np.asarray([(86, 180, 233), (240, 228, 66), (213, 94, 0)], np.float64)
_UNKNOWN_COLOUR = (150, 150, 150)


def score_shares(scores: FloatArray, low: float) -> FloatArray:
    """Positions (N,) of scores on a scale from `low` to 1: 0 at its lower end and below, 1 at the upper."""
    tiny = 1e-6  # where the scale has no length, scores of 1 lie at its upper end
    shares: FloatArray = np.clip((np.nan_to_num(scores) - low + tiny) / (1 - low + tiny), 0, 1)
    return shares


def score_colours(scores: FloatArray, low: float = 0.0) -> ImageArray:
    """Viridis from `low` to 1, without its darkest fifth, which is hard to see on photographs."""
    levels = np.round(255 * (0.2 + 0.8 * score_shares(scores, low))).astype(np.uint8)
    bgr = (
        cv2.applyColorMap(levels.reshape(-1, 1), cv2.COLORMAP_VIRIDIS) if levels.size else np.zeros((0, 1, 3))
    )
    return np.asarray(bgr, np.uint8).reshape(-1, 3)[:, ::-1]


def error_colours(errors: FloatArray, limit: float) -> ImageArray:
    """Blue, yellow at the limit, vermilion from twice the limit on; grey where the error is NaN."""
    level = np.clip(np.nan_to_num(errors, nan=0.0, posinf=np.inf) / limit, 0, 2)
    channels = [np.interp(level, (0, 1, 2), _ERROR_COLOURS[:, c]) for c in range(3)]
    colours = np.round(np.stack(channels, axis=-1)).astype(np.uint8).reshape(-1, 3)
    colours[np.isnan(errors)] = _UNKNOWN_COLOUR
    return colours


def position_colours(points: FloatArray, image_hw: tuple[int, int]) -> ImageArray:
    """Similar colours for neighbours: hue is the direction from the image centre, brightness the distance."""
    half = np.asarray([image_hw[1], image_hw[0]], np.float32) / 2
    offset = (points + np.float32(0.5)) / half - 1
    return flow_colours(offset[:, None].astype(np.float32), 1.5)[:, 0]


def distinct_colours(*views: FloatArray, palette: Sequence[tuple[int, int, int]] = OKABE_ITO) -> ImageArray:
    """Colours (N, 3) for N points, such that points close to each other in any view have different ones.

    Each point in turn gets the colour whose nearest point so far is farthest away: first the palette in its
    order, then again what is not around.

    Args:
        views: (N, 2) positions of the points in each view, at least one; NaN where there is none.
        palette: the colours.
    """
    count = len(views[0])
    chosen = np.zeros(count, np.int64)
    for row in range(count):
        offsets = np.stack([points[:row] - points[row] for points in views])  # (views, row, 2)
        distances = np.nan_to_num(np.hypot(offsets[..., 0], offsets[..., 1]), nan=np.inf).min(axis=0)
        nearest = [distances[chosen[:row] == number].min(initial=np.inf) for number in range(len(palette))]
        chosen[row] = int(np.argmax(nearest))
    return np.asarray(palette, np.uint8)[chosen].reshape(-1, 3)


def flow_colours(flow_0to1: FloatArray, max_length: float | None = None) -> ImageArray:
    """The standard colours of optical flow: hue is direction, saturation length (Baker et al. 2007, Sec. 4).

    Args:
        flow_0to1: (H, W, 2) pixels, NaN where unknown.
        max_length: length in pixels of full saturation, beyond which colours darken; None takes the longest.

    Returns:
        (H, W, 3) uint8: white where nothing moves, black where flow is unknown.
    """
    is_known = is_finite(flow_0to1)
    x, y = (np.where(is_known, flow_0to1[..., i], 0.0).astype(np.float64) for i in range(2))
    length = np.hypot(x, y)
    if max_length is None:
        max_length = float(length.max(initial=0.0))
    length = length / max(max_length, 1e-6)
    wheel = _colour_wheel()
    # As in the published code: red is motion to the right, and the hue follows the angle from there, y down.
    position = (np.arctan2(-y, -x) / np.pi + 1) / 2 * (len(wheel) - 1)
    low = np.floor(position).astype(np.int64)
    part = (position - low)[..., None]
    hue = (1 - part) * wheel[low] + part * wheel[(low + 1) % len(wheel)]
    inside = 1 - length[..., None] * (1 - hue)
    colours = np.where(length[..., None] <= 1, inside, 0.75 * hue)
    return np.where(is_known[..., None], np.floor(255 * colours), 0).astype(np.uint8)


def _colour_wheel() -> FloatArray:
    """(55, 3) hues in [0, 1]: six arcs between red, yellow, green, cyan, blue, magenta.

    The lengths of the arcs follow perceptual differences of hue (Baker et al. 2007, after S. Reynolds).
    """
    corners = np.asarray(
        [(1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1), (1, 0, 0)], np.float64
    )
    arcs = []
    for length, start, end in zip((15, 6, 4, 11, 13, 6), corners[:-1], corners[1:], strict=True):
        part = np.floor(255 * np.arange(length)[:, None] / length) / 255
        arcs.append(start + part * (end - start))
    return np.concatenate(arcs).astype(np.float32)


def colour_ramp() -> FloatArray:
    """Evenly spaced values in [0, 1], for a colour scale."""
    return np.linspace(0, 1, 160, dtype=np.float32)


def is_finite(vectors: FloatArray) -> BoolArray:
    """Which vectors (..., 2) have no NaN and no infinity."""
    return np.isfinite(vectors[..., 0]) & np.isfinite(vectors[..., 1])
