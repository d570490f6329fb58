"""Pictures as arrays: matches, query points and flow, drawn as uint8 (H, W, 3) RGB.

Colour-blind readers can tell the colours apart: viridis for scores; Okabe and Ito's blue, yellow and
vermilion for errors. `data.io.write_image` writes a picture to a file.
"""

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
from ucn.types import BoolArray, FloatArray, Flow, ImageLike, Matches

Picture = NDArray[np.uint8]

MAX_NUMBERED_POINTS = 60
"""Query points beyond this many are drawn without numbers, coloured by where they lie in image 0."""

_OKABE_ITO = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
_ERROR_COLOURS = np.asarray([(86, 180, 233), (240, 228, 66), (213, 94, 0)], np.float64)
_UNKNOWN_COLOUR = (150, 150, 150)
_PAPER, _INK = (255, 255, 255), (40, 40, 40)
_GAP = 16
_SHIFT = 4  # cv2 draws at sixteenths of a pixel
_FINE = 2  # pictures are drawn this many times too large and then reduced: cv2's small circles are not round


@dataclass(frozen=True)
class _Panels:
    """Two images of equal height side by side on a canvas, and where their points fall on it."""

    canvas: Picture
    scale0_xy: FloatArray
    scale1_xy: FloatArray
    left1: int

    def place0(self, points: FloatArray) -> FloatArray:
        return (points + np.float32(0.5)) * self.scale0_xy - np.float32(0.5)

    def place1(self, points: FloatArray) -> FloatArray:
        placed = (points + np.float32(0.5)) * self.scale1_xy - np.float32(0.5)
        return placed + np.asarray([self.left1, 0], np.float32)


def draw_matches(
    image0: ImageLike,
    image1: ImageLike,
    matches: Matches,
    *,
    errors: FloatArray | None = None,
    error_limit: float = 3.0,
    max_lines: int = 200,
    width: int = 1600,
) -> Picture:
    """Draws matches between two images side by side.

    Every match is a dot in both images; lines join at most `max_lines` of them, spread evenly over image 0.
    A caption says how many there are, how many lines were drawn, and what the colours mean.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: N matches in the pixels of these images; those with NaN points are left out.
        errors: (N,) distances from the truth in pixels, NaN where unknown (grey); None colours by score.
        error_limit: error in pixels at the middle of the colour scale, which ends at twice this.
        max_lines: how many lines at most.
        width: of the picture, in pixels.

    Returns:
        (H, width, 3) uint8.

    Raises:
        ValueError: `errors` is not (N,).
    """
    if errors is not None and errors.shape != (len(matches),):
        raise ValueError(f"errors must be ({len(matches)},) as the matches, got {errors.shape}")
    panels = _lay_out(image0, image1, _FINE * width, dim=0.68)
    is_placed = _is_finite(matches.points0) & _is_finite(matches.points1)
    placed = matches.select(is_placed)
    if errors is None:
        colours = _score_colours(placed.scores)
    else:
        colours = _error_colours(errors[is_placed], error_limit)
    points0, points1 = panels.place0(placed.points0), panels.place1(placed.points1)
    lines = _spread(points0, max_lines)
    canvas = _draw_lines(panels.canvas, points0[lines], points1[lines], colours[lines])
    canvas = _draw_dots(canvas, np.concatenate([points0, points1]), np.concatenate([colours, colours]))
    canvas = _reduce(canvas)
    text = f"{len(matches):,} matches"
    if len(lines) < len(matches):
        text += f", lines for {len(lines):,} of them"
    if errors is None:
        return _add_caption(canvas, text, "score", _score_colours(_ramp()), ("0", "1"))
    scale = _error_colours(_ramp() * np.float32(2 * error_limit), error_limit)
    return _add_caption(canvas, text, "error (grey: unknown)", scale, ("0", f"{2 * error_limit:g}+ px"))


def draw_points(image0: ImageLike, image1: ImageLike, matches: Matches, *, width: int = 1600) -> Picture:
    """Draws where given points of image 0 were found in image 1, by markers that look alike in both.

    Up to `MAX_NUMBERED_POINTS` points carry their row number (from 0); more are coloured by where they lie in
    image 0. Points that were not found again (not mutual) are hollow; those without an answer have a cross.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: one row per query point.
        width: of the picture, in pixels.

    Returns:
        (H, width, 3) uint8.
    """
    panels = _lay_out(image0, image1, _FINE * width)
    points0, points1 = panels.place0(matches.points0), panels.place1(matches.points1)
    has_answer = _is_finite(points1)
    is_numbered = len(matches) <= MAX_NUMBERED_POINTS
    if is_numbered:
        colours = np.asarray(
            [_OKABE_ITO[i % len(_OKABE_ITO)] for i in range(len(matches))], np.uint8
        ).reshape(-1, 3)
    else:
        colours = _position_colours(matches.points0, matches.image0_hw)
    radius = _FINE * (6.0 if is_numbered else 4.0)
    canvas = panels.canvas.copy()
    for i in range(len(matches)):
        places = (points0[i], points1[i]) if has_answer[i] else (points0[i],)
        for place in places:
            _draw_marker(canvas, place, colours[i], radius, is_filled=bool(matches.is_mutual[i]))
        if not has_answer[i]:
            _draw_cross(canvas, points0[i], radius)
    if is_numbered:
        numbers = [str(i) for i in range(len(matches))]
        canvas = _write_labels(canvas, np.concatenate([points0, points1]), numbers * 2, radius + 2 * _FINE)
    canvas = _reduce(canvas)
    answered = int(has_answer.sum())
    text = f"{len(matches):,} points, {answered:,} answered, {int(matches.is_mutual.sum()):,} mutual"
    return _add_caption(canvas, f"{text} (filled)")


def flow_colours(flow_0to1: FloatArray, max_length: float | None = None) -> Picture:
    """The standard colours of optical flow: hue is direction, saturation length (Baker et al. 2007, Sec. 4).

    Args:
        flow_0to1: (H, W, 2) pixels, NaN where unknown.
        max_length: length in pixels of the full colour, beyond which colours darken; None takes the longest.

    Returns:
        (H, W, 3) uint8: white where nothing moves, black where flow is unknown.
    """
    is_known = _is_finite(flow_0to1)
    x, y = (np.where(is_known, flow_0to1[..., i], 0.0).astype(np.float64) for i in range(2))
    length = np.hypot(x, y)
    if max_length is None:
        max_length = float(length.max(initial=0.0))
    length = length / max(max_length, 1e-6)
    wheel = _colour_wheel()
    # As in the published code: red is motion to the right, and hues turn with the angle from there, y down.
    position = (np.arctan2(-y, -x) / np.pi + 1) / 2 * (len(wheel) - 1)
    low = np.floor(position).astype(np.int64)
    part = (position - low)[..., None]
    hue = (1 - part) * wheel[low] + part * wheel[(low + 1) % len(wheel)]
    inside = 1 - length[..., None] * (1 - hue)
    colours = np.where(length[..., None] <= 1, inside, 0.75 * hue)
    return np.where(is_known[..., None], np.floor(255 * colours), 0).astype(np.uint8)


def draw_flow(
    flow: Flow, image0: ImageLike | None = None, *, max_length: float | None = None, width: int = 1600
) -> Picture:
    """Draws flow in its standard colours, faded to grey where confidence is low, with the colour wheel's key.

    Args:
        flow: H × W vectors with confidence.
        image0: shown at the left when given, as `to_tensor` takes it.
        max_length: length in pixels of the full colour; None takes the 98th percentile of confident vectors.
        width: of the picture, in pixels.

    Returns:
        (H', width, 3) uint8.
    """
    if max_length is None:
        max_length = _typical_length(flow)
    length = np.hypot(flow.flow_0to1[..., 0], flow.flow_0to1[..., 1])
    shortened = flow.flow_0to1 * np.minimum(1, max_length / np.maximum(length, 1e-6))[..., None]
    colours = flow_colours(shortened.astype(np.float32), max_length * 1.0001).astype(np.float32)
    confidence = np.nan_to_num(np.clip(flow.confidence, 0, 1))[..., None]
    picture = np.round(confidence * colours + (1 - confidence) * 128).astype(np.uint8)
    if image0 is None:
        height = max(1, round(picture.shape[0] * width / picture.shape[1]))
        canvas = _resize(picture, (height, width))
    else:
        canvas = _lay_out(image0, picture, width).canvas
    side = 56
    square = np.stack(np.meshgrid(*[np.linspace(-1.0, 1.0, side, dtype=np.float32)] * 2), axis=-1)
    square[np.hypot(square[..., 0], square[..., 1]) > 1] = np.nan
    key = flow_colours(square, 1.0)
    key[np.isnan(square[..., 0])] = _PAPER
    text = (
        f"colour: direction of motion from image 0 to 1, full from {max_length:.3g} px; grey: not confident"
    )
    strip = _add_caption(np.zeros((0, canvas.shape[1], 3), np.uint8), text, height=side + 8)
    strip[4 : 4 + side, -side - 12 : -12] = key
    return np.concatenate([canvas, strip])


def _typical_length(flow: Flow) -> float:
    length = np.hypot(flow.flow_0to1[..., 0], flow.flow_0to1[..., 1])
    confident = length[np.isfinite(length) & (flow.confidence >= 0.5)]
    chosen = confident if confident.size else length[np.isfinite(length)]
    return max(float(np.percentile(chosen, 98)), 1e-3) if chosen.size else 1.0


def _colour_wheel() -> FloatArray:
    """(55, 3) hues in [0, 1]: six arcs between red, yellow, green, cyan, blue, magenta.

    The arcs' lengths follow how many hues the eye tells apart in each (Baker et al. 2007, after S. Reynolds).
    """
    corners = np.asarray(
        [(1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1), (1, 0, 0)], np.float64
    )
    arcs = []
    for length, start, end in zip((15, 6, 4, 11, 13, 6), corners[:-1], corners[1:], strict=True):
        part = np.floor(255 * np.arange(length)[:, None] / length) / 255
        arcs.append(start + part * (end - start))
    return np.concatenate(arcs).astype(np.float32)


def _lay_out(image0: ImageLike, image1: ImageLike, width: int, dim: float = 1.0) -> _Panels:
    """Scales both images to one height that makes the pair `width` wide; `dim` darkens them under colours."""
    pixels0, pixels1 = to_pixels(image0), to_pixels(image1)
    aspect0, aspect1 = (p.shape[1] / p.shape[0] for p in (pixels0, pixels1))
    height = max(_FINE, round((width - _GAP) / (aspect0 + aspect1)) // _FINE * _FINE)
    width0 = min(max(1, round(height * aspect0)), width - _GAP - 1)
    width1 = width - _GAP - width0
    canvas = np.full((height, width, 3), _PAPER, np.uint8)
    canvas[:, :width0] = _dim(_resize(pixels0, (height, width0)), dim)
    canvas[:, -width1:] = _dim(_resize(pixels1, (height, width1)), dim)
    scale0_xy, scale1_xy = (
        np.asarray([w / p.shape[1], height / p.shape[0]], np.float32)
        for w, p in ((width0, pixels0), (width1, pixels1))
    )
    return _Panels(canvas, scale0_xy, scale1_xy, width0 + _GAP)


def _dim(pixels: Picture, dim: float) -> Picture:
    """Darker and half as colourful, so that thin coloured lines stand out."""
    if dim == 1.0:
        return pixels
    grey = pixels.mean(axis=-1, keepdims=True, dtype=np.float32)
    dimmed: Picture = np.round(np.float32(dim / 2) * (grey + pixels)).astype(np.uint8)
    return dimmed


def _resize(pixels: Picture, size_hw: tuple[int, int]) -> Picture:
    shrinks = size_hw[0] < pixels.shape[0]
    mode = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, (size_hw[1], size_hw[0]), interpolation=mode), np.uint8)


def _reduce(canvas: Picture) -> Picture:
    return _resize(canvas, (canvas.shape[0] // _FINE, canvas.shape[1] // _FINE))


def _is_finite(vectors: FloatArray) -> BoolArray:
    return np.isfinite(vectors[..., 0]) & np.isfinite(vectors[..., 1])


def _ramp() -> FloatArray:
    return np.linspace(0, 1, 160, dtype=np.float32)


def _score_colours(scores: FloatArray) -> Picture:
    """Viridis without its darkest fifth, which vanishes on photographs."""
    levels = np.round(255 * (0.2 + 0.8 * np.clip(np.nan_to_num(scores), 0, 1))).astype(np.uint8)
    bgr = (
        cv2.applyColorMap(levels.reshape(-1, 1), cv2.COLORMAP_VIRIDIS) if levels.size else np.zeros((0, 1, 3))
    )
    return np.asarray(bgr, np.uint8).reshape(-1, 3)[:, ::-1]


def _error_colours(errors: FloatArray, limit: float) -> Picture:
    place = np.clip(np.nan_to_num(errors, nan=0.0, posinf=np.inf) / limit, 0, 2)
    channels = [np.interp(place, (0, 1, 2), _ERROR_COLOURS[:, c]) for c in range(3)]
    colours = np.round(np.stack(channels, axis=-1)).astype(np.uint8).reshape(-1, 3)
    colours[np.isnan(errors)] = _UNKNOWN_COLOUR
    return colours


def _position_colours(points: FloatArray, image_hw: tuple[int, int]) -> Picture:
    """Neighbours get like colours: hue follows the direction from the middle, brightness the distance."""
    half = np.asarray([image_hw[1], image_hw[0]], np.float32) / 2
    offset = (points + np.float32(0.5)) / half - 1
    return flow_colours(offset[:, None].astype(np.float32), 1.5)[:, 0]


def _spread(points: FloatArray, count: int) -> NDArray[np.int64]:
    """Indices of at most `count` points, evenly spread: one of each cell of a grid, then the next."""
    if len(points) <= count:
        return np.arange(len(points))
    side = max(1.0, float(np.sqrt(np.prod(np.ptp(points, axis=0) + 1) / max(count, 1))))
    cells = np.floor(points / side).astype(np.int64)
    _, cell, sizes = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(cell.reshape(-1), kind="stable")
    rank = np.empty(len(points), np.int64)  # how many of its cell came before
    rank[order] = np.concatenate([np.arange(size) for size in sizes])
    return np.sort(np.argsort(rank, kind="stable")[:count])


def _fixed(point: FloatArray) -> tuple[int, int]:
    return round(float(point[0]) * 2**_SHIFT), round(float(point[1]) * 2**_SHIFT)


def _colour(colour: Sequence[int] | Picture) -> tuple[int, int, int]:
    red, green, blue = (int(c) for c in colour)
    return red, green, blue


def _draw_lines(canvas: Picture, points0: FloatArray, points1: FloatArray, colours: Picture) -> Picture:
    """Thin lines, mixed with what is below so that neither hides the other."""
    drawn = canvas.copy()
    for start, end, colour in zip(points0, points1, colours, strict=True):
        cv2.line(drawn, _fixed(start), _fixed(end), _colour(colour), _FINE, cv2.LINE_AA, _SHIFT)
    return np.asarray(cv2.addWeighted(drawn, 0.55, canvas, 0.45, 0), np.uint8)


def _draw_dots(canvas: Picture, points: FloatArray, colours: Picture) -> Picture:
    drawn = canvas.copy()
    radius = round(_FINE * 2.4 * 2**_SHIFT)
    for point, colour in zip(points, colours, strict=True):
        cv2.circle(drawn, _fixed(point), radius, _colour(colour), -1, cv2.LINE_AA, _SHIFT)
    return drawn


def _draw_marker(canvas: Picture, place: FloatArray, colour: Picture, radius: float, is_filled: bool) -> None:
    centre, size = _fixed(place), round(radius * 2**_SHIFT)
    rim = round((radius + 1.25 * _FINE) * 2**_SHIFT)
    if is_filled:
        cv2.circle(canvas, centre, rim, (0, 0, 0), -1, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, centre, size, _colour(colour), -1, cv2.LINE_AA, _SHIFT)
    else:
        cv2.circle(canvas, centre, size, (0, 0, 0), 4 * _FINE, cv2.LINE_AA, _SHIFT)
        cv2.circle(canvas, centre, size, _colour(colour), 2 * _FINE, cv2.LINE_AA, _SHIFT)


def _draw_cross(canvas: Picture, place: FloatArray, radius: float) -> None:
    for sign in (-1, 1):
        start = place + np.asarray([-radius, -sign * radius], np.float32)
        end = place + np.asarray([radius, sign * radius], np.float32)
        cv2.line(canvas, _fixed(start), _fixed(end), (255, 255, 255), 2 * _FINE, cv2.LINE_AA, _SHIFT)


def _write_labels(canvas: Picture, places: FloatArray, labels: Sequence[str], offset: float) -> Picture:
    image = PIL.Image.fromarray(canvas)
    draw = PIL.ImageDraw.Draw(image)
    font = PIL.ImageFont.load_default(size=15 * _FINE)
    for (x, y), label in zip(places.tolist(), labels, strict=True):
        if np.isfinite(x) and np.isfinite(y):
            place = (x + offset, max(y - offset, 10.0 * _FINE))
            rim = 2 * _FINE
            draw.text(
                place, label, font=font, fill="white", anchor="lm", stroke_width=rim, stroke_fill="black"
            )
    return np.array(image)


def _add_caption(
    canvas: Picture,
    text: str,
    scale_name: str = "",
    scale: Picture | None = None,
    scale_ends: tuple[str, str] = ("", ""),
    height: int = 36,
) -> Picture:
    """A strip of paper below the picture: words at the left, a colour scale at the right."""
    image = PIL.Image.new("RGB", (canvas.shape[1], height), _PAPER)
    draw = PIL.ImageDraw.Draw(image)
    font = PIL.ImageFont.load_default(size=17)
    middle = height / 2
    draw.text((12, middle), text, font=font, fill=_INK, anchor="lm")
    if scale is not None:
        right = canvas.shape[1] - 12
        draw.text((right, middle), scale_ends[1], font=font, fill=_INK, anchor="rm")
        right -= round(draw.textlength(scale_ends[1], font=font)) + 8
        bar = PIL.Image.fromarray(np.broadcast_to(scale, (12, *scale.shape)).copy())
        image.paste(bar, (right - bar.width, round(middle) - 6))
        right -= bar.width + 8
        draw.text((right, middle), f"{scale_name}  {scale_ends[0]}", font=font, fill=_INK, anchor="rm")
    return np.concatenate([canvas, np.array(image)])
