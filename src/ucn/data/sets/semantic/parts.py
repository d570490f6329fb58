"""Annotated parts of an image: positions, mirror parts, and points outside the image.

Published points do not always lie inside their image, because of rounding, of an origin at (1, 1), or of a
careless click. A point at most `BORDER_PIXELS` outside is moved onto the border. A point further out, by at
most `OUTSIDE_SHARE` of the longer side, counts as not visible, which is recorded in a note. Further out it is
a problem: then points and image do not belong together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.errors import DataError

BORDER_PIXELS = 1.0
"""Largest distance in pixels at which a point outside is moved onto the border."""
OUTSIDE_SHARE = 0.05
"""Largest distance, as a fraction of the longer side, at which a point outside counts as not visible."""

_SIDES = {"left": "right", "right": "left", "l": "r", "r": "l"}
_SIDE_WORD = re.compile(r"(?<![a-z])(left|right|l|r)(?![a-z])", re.IGNORECASE)

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels."""


@dataclass(frozen=True)
class Example:
    """An annotated image.

    Attributes:
        name: unique in the set.
        category: its class.
        image: the image file.
        annotation: the file with its parts.
        is_shared: that file has the parts of other images, too.
        key: the reader's index of the image in that file.
    """

    name: str
    category: str
    image: Path
    annotation: Path
    is_shared: bool = False
    key: int = -1


@dataclass(frozen=True)
class Keypoints:
    """The parts of one image.

    Attributes:
        points: (P, 2) x, y in pixels; undefined where a part is not visible.
        is_visible: (P,) bool.
        path: the annotation file, for errors.
        lines: line of each part in that file; empty where it has no lines.
        box: bounding box of the object, where the set has one.
        length: the length of PCK in pixels, where the annotation determines it.
        places: place of each part for errors, in files that have no lines.
    """

    points: NDArray[np.float64]
    is_visible: NDArray[np.bool_]
    path: Path
    lines: Sequence[int] = ()
    box: Box | None = None
    length: float | None = None
    places: Sequence[str] = ()

    def place(self, part: int) -> str:
        """File and line of a part."""
        if self.places:
            return self.places[part]
        return f"{self.path}:{self.lines[part]}" if self.lines else f"{self.path}"


def mirror_by_names(names: Sequence[str]) -> NDArray[np.int64]:
    """Finds mirror parts by the words left and right, or L and R, in names such as ``L_Eye``.

    Returns:
        (P,) index of the part with the opposite side in its name; its own where there is none.
    """
    index = {name.lower(): i for i, name in enumerate(names)}
    swapped = (_SIDE_WORD.sub(lambda found: _SIDES[found[0]], name.lower()) for name in names)
    return np.array([index.get(name, i) for i, name in enumerate(swapped)], np.int64)


def has_side(names: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each name (P,) has the word left or right, or L or R, as ``left eye`` and ``L_Eye``."""
    return np.array([_SIDE_WORD.search(name) is not None for name in names], np.bool_)


def object_window(keypoints: Keypoints, size_hw: tuple[int, int]) -> tuple[int, int, int, int]:
    """The crop (x0, y0, x1, y1), ends excluded, that contains the object's box and its visible parts."""
    height, width = size_hw
    corners = [keypoints.points[keypoints.is_visible]]
    if keypoints.box is not None:
        corners.append(np.asarray(keypoints.box).reshape(2, 2))
    spots = np.concatenate(corners)
    if not len(spots):
        return 0, 0, width, height
    pixels = np.clip(np.floor(spots + 0.5), 0, (width - 1, height - 1)).astype(np.int64)
    (x0, y0), (x1, y1) = pixels.min(axis=0).tolist(), pixels.max(axis=0).tolist()
    return x0, y0, x1 + 1, y1 + 1


def clamp_to_image(
    keypoints: Keypoints, size_hw: tuple[int, int], outside_share: float = OUTSIDE_SHARE
) -> tuple[Keypoints, str]:
    """Applies the rule for points outside the image, as in the docstring of this module.

    Args:
        keypoints: as published.
        size_hw: (H, W) of the image.
        outside_share: largest distance outside, as a fraction of the longer side; infinity hides all points
            outside without a note.

    Returns:
        The points, and a note on those that were hidden; empty where there are none.

    Raises:
        DataError: a visible point is too far outside.
    """
    height, width = size_hw
    last = np.array([width - 0.5, height - 0.5])
    outside = np.maximum(-0.5 - keypoints.points, keypoints.points - last).max(axis=1)  # pixels
    is_near = keypoints.is_visible & (outside <= BORDER_PIXELS)
    is_far = keypoints.is_visible & ~is_near & ~(outside <= outside_share * max(size_hw))
    if is_far.any():
        raise DataError(
            f"{_describe(keypoints, is_far, outside, size_hw)}; the image was resized or is another one: put "
            "the right one in its place, or correct the point"
        )
    is_hidden, note = keypoints.is_visible & ~is_near, ""
    if is_hidden.any() and math.isfinite(outside_share):
        note = f"{_describe(keypoints, is_hidden, outside, size_hw)}; it counts as not visible"
    points = np.where(is_near[:, None], np.clip(keypoints.points, -0.5, last), keypoints.points)
    return replace(keypoints, points=points, is_visible=is_near), note


def _describe(
    keypoints: Keypoints, chosen: NDArray[np.bool_], outside: NDArray[np.float64], size_hw: tuple[int, int]
) -> str:
    part = int(np.flatnonzero(chosen)[0])
    x, y = keypoints.points[part]
    more = f" (and {chosen.sum() - 1} more parts)" if chosen.sum() > 1 else ""
    return (
        f"{keypoints.place(part)}: part {part} at ({x:g}, {y:g}){more} lies {outside[part]:.1f} px outside "
        f"its image of {size_hw[1]} × {size_hw[0]} pixels"
    )
