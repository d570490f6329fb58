"""Images warped onto one canvas by homographies, and blended along seams.

Exposure gains, seams and multi-band blending are those of OpenCV's stitching module. Seams and gains are
found at a reduced size; at full size one image after the other is warped and fed to the blender.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ucn.errors import DataError
from ucn.types import BoolArray

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]
"""Left, top, width and height of an image's part of the canvas."""
Report = Callable[[str, int, int], None]
"""Called with the name of the stage, the images done and all images."""

MAX_STRETCH = 8.0
"""Largest enlargement of an image at its corners: beyond, a plane cannot show the views."""
MAX_SIDE = 30_000
"""Longest side of a canvas in pixels; OpenCV's warps are limited to 32,766."""

_SEAM_PIXELS = 100_000  # of an image when seams and gains are found, on average
_BLEND_SHARE = 0.05  # of the canvas' mean side, over which images are blended
_MAX_BANDS = 8
_FRACTION = 16  # steps per grey level: the blender rounds towards 0 in every band
_GAIN_ROUNDS = 3  # each of which estimates what the prior of gains near 1 left over


@dataclass(frozen=True)
class Canvas:
    """Where images lie on a canvas.

    Attributes:
        size_hw: (H, W).
        homographies: (N, 3, 3), from pixels of each image to pixels of the canvas.
        boxes: of each image.
        scale: pixels of the canvas per pixel of the reference image.
    """

    size_hw: tuple[int, int]
    homographies: Array
    boxes: tuple[Box, ...]
    scale: float


def plan_canvas(
    homographies: Array, sizes_hw: Sequence[tuple[int, int]], names: Sequence[str], max_pixels: float
) -> Canvas:
    """Finds the size of the canvas that shows all images, reduced to `max_pixels` where it would be larger.

    Args:
        homographies: (N, 3, 3) from pixels of each image to those of the reference, N at least 1.
        sizes_hw: (H, W) of each image.
        names: of the images, for errors.
        max_pixels: largest number of pixels.

    Raises:
        DataError: an image would reach the horizon, or be enlarged more than `MAX_STRETCH` times.
    """
    hulls = [
        _place_corners(H, size_hw, name)
        for H, size_hw, name in zip(homographies, sizes_hw, names, strict=True)
    ]
    low, high = np.min(hulls, axis=(0, 1)), np.max(hulls, axis=(0, 1))
    width, height = high - low + 1
    scale = float(min(1.0, np.sqrt(max_pixels / (width * height)), MAX_SIDE / max(width, height)))
    # At full size whole pixels, so that the reference image is copied without interpolation.
    origin = np.floor(low) if scale == 1 else low
    shift = np.array([[scale, 0, -scale * origin[0]], [0, scale, -scale * origin[1]], [0, 0, 1]])
    return _place(shift @ homographies, [scale * (hull - origin) for hull in hulls], scale)


def _place_corners(H: Array, size_hw: tuple[int, int], name: str) -> Array:
    """The corners (4, 2) of an image in the reference."""
    advice = "the views span too wide an angle for one plane; leave out the outermost images"
    height, width = size_hw
    corners = np.array([[0, 0, 1], [width - 1, 0, 1], [width - 1, height - 1, 1], [0, height - 1, 1.0]])
    moved = corners @ H.T
    depths = moved[:, 2]
    if not (np.isfinite(moved).all() and np.linalg.det(H) > 0 and depths.min() > 1e-6 * depths.max()):
        raise DataError(f"cannot place {name} on the canvas: it would reach the horizon; {advice}")
    # The local change of area of a homography is det(H) divided by the cube of the depth.
    stretch = float(np.sqrt(np.linalg.det(H) / depths.min() ** 3))
    if stretch > MAX_STRETCH:
        raise DataError(
            f"cannot place {name} on the canvas: a corner would be enlarged {stretch:.0f} times, at most "
            f"{MAX_STRETCH:g} is allowed; {advice}"
        )
    return np.asarray(moved[:, :2] / depths[:, None])


def _place(homographies: Array, hulls: Sequence[Array], scale: float) -> Canvas:
    """The canvas of images whose corners (4, 2) are given in its pixels, the first of them at (0, 0)."""
    boxes = []
    for hull in hulls:
        left, top = np.maximum(np.floor(hull.min(axis=0) + 1e-6), 0).astype(int).tolist()
        right, bottom = np.ceil(hull.max(axis=0) - 1e-6).astype(int).tolist()
        boxes.append((left, top, max(right - left, 0) + 1, max(bottom - top, 0) + 1))
    size_hw = max(y + height for _, y, _, height in boxes), max(x + width for x, _, width, _ in boxes)
    return Canvas(size_hw, homographies, tuple(boxes), scale)


def _reduce_canvas(canvas: Canvas, sizes_hw: Sequence[tuple[int, int]]) -> Canvas:
    """The canvas at the size at which seams are found."""
    total = sum(width * height for _, _, width, height in canvas.boxes)
    scale = min(1.0, float(np.sqrt(_SEAM_PIXELS * len(canvas.boxes) / total)))
    homographies = np.diag([scale, scale, 1.0]) @ canvas.homographies
    hulls = [_place_corners(H, size_hw, "") for H, size_hw in zip(homographies, sizes_hw, strict=True)]
    return _place(homographies, hulls, scale)


def warp_to_box(pixels: Pixels, H: Array, box: Box) -> tuple[Pixels, Pixels]:
    """Warps an image onto its part of the canvas.

    Args:
        pixels: (H, W, 3).
        H: (3, 3), from pixels of the image to those of the canvas.
        box: of the image.

    Returns:
        The part (height, width, 3), and its mask (height, width): 255 where the image is, else 0.
    """
    left, top, width, height = box
    to_box = np.array([[1.0, 0, -left], [0, 1, -top], [0, 0, 1]])
    to_image = np.asarray(np.linalg.inv(to_box @ H), np.float64)
    pixels, to_image = reduce_for_warp(pixels, to_image, (height, width))
    whole = np.full(pixels.shape[:2], 255, np.uint8)
    size, flags = (width, height), cv2.WARP_INVERSE_MAP
    warped = cv2.warpPerspective(
        pixels, to_image, size, flags=flags | cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT
    )
    mask = cv2.warpPerspective(whole, to_image, size, flags=flags | cv2.INTER_NEAREST)
    return np.asarray(warped, np.uint8), np.asarray(mask, np.uint8)


def reduce_for_warp(pixels: Pixels, to_image: Array, size_hw: tuple[int, int]) -> tuple[Pixels, Array]:
    """Reduces an image that is warped to a coarser one, to avoid aliasing.

    Args:
        pixels: (H, W, 3).
        to_image: (3, 3), from pixels of the warped image to pixels of the image.
        size_hw: (H, W) of the warped image.

    Returns:
        The image, which is reduced where one pixel of the warped image covers more than 1.5 of its own, and
        the homography to its pixels.
    """
    middle = np.array([(size_hw[1] - 1) / 2, (size_hw[0] - 1) / 2, 1.0])
    # The local change of area of a homography is det(H) divided by the cubed depth.
    area = abs(np.linalg.det(to_image)) / max(abs(float(to_image[2] @ middle)) ** 3, 1e-12)
    factor = float(np.sqrt(area))
    if not 1.5 < factor < np.inf:
        return pixels, to_image
    height, width = (max(1, round(side / factor)) for side in pixels.shape[:2])
    scale_y, scale_x = height / pixels.shape[0], width / pixels.shape[1]
    to_reduced = np.array(
        [[scale_x, 0, (scale_x - 1) / 2], [0, scale_y, (scale_y - 1) / 2], [0, 0, 1]], np.float64
    )
    reduced = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(reduced, np.uint8), np.asarray(to_reduced @ to_image, np.float64)


def blend_images(
    read: Callable[[int], Pixels],
    canvas: Canvas,
    sizes_hw: Sequence[tuple[int, int]],
    *,
    use_gains: bool = True,
    progress: Report | None = None,
) -> tuple[Pixels, BoolArray, Array]:
    """Blends images on a canvas: gains against differences of exposure, seams, and bands of frequencies.

    Args:
        read: reads an image (H, W, 3) by its index; it is called twice for each.
        canvas: of `plan_canvas`.
        sizes_hw: (H, W) of each image.
        use_gains: adjust the brightness of the images to each other.
        progress: called after each image of each stage.

    Returns:
        The picture (H, W, 3), black where no image is; the mask (H, W) of its covered pixels; and the factors
        (N,) by which brightness was changed.
    """
    report = progress or (lambda _what, _done, _all: None)
    small = _reduce_canvas(canvas, sizes_hw)
    count = len(canvas.boxes)
    parts = []
    for index in range(count):
        parts.append(warp_to_box(read(index), small.homographies[index], small.boxes[index]))
        report("finding seams", index + 1, count)
    gains = find_gains(parts, small.boxes) if use_gains else np.ones(count)
    seams = _find_seams(parts, small.boxes, gains)
    height, width = canvas.size_hw
    blender = cv2.detail.MultiBandBlender(0, _count_bands(canvas.size_hw))
    blender.prepare((0, 0, width, height))
    for index, (seam, box) in enumerate(zip(seams, canvas.boxes, strict=True)):
        warped, mask = warp_to_box(read(index), canvas.homographies[index], box)
        chosen = cv2.resize(cv2.dilate(seam, np.ones((3, 3))), box[2:], interpolation=cv2.INTER_LINEAR)
        used = cv2.bitwise_and(mask, cv2.threshold(chosen, 0, 255, cv2.THRESH_BINARY)[1])
        blender.feed(_scale(warped, _FRACTION * gains[index], cv2.CV_16S), used, box[:2])
        report("blending", index + 1, count)
    blended, covered = blender.blend(None, None)  # type: ignore[call-overload]
    is_covered = np.asarray(covered) > 0
    picture = np.asarray(_scale(blended, 1 / _FRACTION, cv2.CV_8U), np.uint8)
    picture[~is_covered] = 0
    return picture, is_covered, gains


def _scale(values: NDArray[Any], factor: float, kind: int) -> NDArray[Any]:
    """Multiplies, rounds and saturates without temporaries, of which there is no room at full size."""
    return np.asarray(cv2.addWeighted(values, factor, values, 0.0, 0.0, dtype=kind))


def find_gains(parts: Sequence[tuple[Pixels, Pixels]], boxes: Sequence[Box]) -> Array:
    """Factors (N,) that make the images equally bright where they overlap (Brown and Lowe 2007, Sec. 6).

    Args:
        parts: warped images with their masks.
        boxes: of the images.
    """
    compensator = cv2.detail.GainCompensator(_GAIN_ROUNDS)
    images, masks = ([_to_umat(part[kind]) for part in parts] for kind in (0, 1))
    compensator.feed([box[:2] for box in boxes], images, masks)
    gains = [float(np.asarray(gain).ravel()[0]) for gain in compensator.getMatGains()]
    return np.array(gains)


def _find_seams(parts: Sequence[tuple[Pixels, Pixels]], boxes: Sequence[Box], gains: Array) -> list[Pixels]:
    """Masks of the pixels that each image contributes, by graph cuts through similar colours."""
    finder = cv2.detail.GraphCutSeamFinder("COST_COLOR")
    images = [
        _to_umat(part[0].astype(np.float32) * np.float32(gain))
        for part, gain in zip(parts, gains, strict=True)
    ]
    masks = [_to_umat(part[1]) for part in parts]
    found = finder.find(images, [box[:2] for box in boxes], masks)
    return [
        np.asarray(mask.get() if isinstance(mask, cv2.UMat) else mask, np.uint8) for mask in found or masks
    ]


def _to_umat(values: NDArray[Any]) -> cv2.UMat:
    return cv2.UMat(values)  # type: ignore[call-overload, no-any-return]  # its annotations know no arrays


def _count_bands(size_hw: tuple[int, int]) -> int:
    width = _BLEND_SHARE * float(np.sqrt(size_hw[0] * size_hw[1]))
    return int(np.clip(np.ceil(np.log2(max(width, 1.0))) - 1, 1, _MAX_BANDS))
