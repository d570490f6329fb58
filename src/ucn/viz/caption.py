"""Text on drawings: labels beside points, a banner across the picture, captions with a colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from ucn.types import FloatArray
from ucn.viz.canvas import FINE, INK, PAPER
from ucn.viz.colours import ImageArray

_Font = PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont
_SMALLEST = 6.0  # font size


@dataclass(frozen=True)
class ColourScale:
    """The colour scale of a caption.

    Attributes:
        name: of the quantity.
        colours: (W, 3) from the low end to the high end.
        ends: labels of the two ends.
    """

    name: str
    colours: ImageArray
    ends: tuple[str, str]


def write_labels(
    canvas: ImageArray, positions: FloatArray, labels: Sequence[str], offset: float, unit: float = FINE
) -> ImageArray:
    """A copy of the canvas with labels beside the finite positions: where there is room, not on each other.

    Args:
        canvas: (H, W, 3).
        positions: (N, 2), NaN where nothing is written.
        labels: N.
        offset: from the position to the label.
        unit: width of a thin line.
    """
    image = PIL.Image.fromarray(canvas)
    draw = PIL.ImageDraw.Draw(image)
    font, rim = PIL.ImageFont.load_default(size=15 * unit), round(2 * unit)
    taken = np.concatenate([positions - 0.6 * offset, positions + 0.6 * offset], axis=1)
    for place, label in zip(positions, labels, strict=True):
        if np.isfinite(place).all():
            size = np.asarray([font.getlength(label), 15 * unit])
            box = _find_room(place, size, offset, taken, canvas.shape[:2])
            taken = np.concatenate([taken, box[None]])
            start = (float(box[0]), float(box[1] + box[3]) / 2)
            draw.text(
                start, label, font=font, fill="white", anchor="lm", stroke_width=rim, stroke_fill="black"
            )
    return np.array(image)


def _find_room(
    place: FloatArray, size: FloatArray, offset: float, taken: FloatArray, canvas_hw: tuple[int, ...]
) -> FloatArray:
    """The box (left, top, right, bottom) of a label beside a point that overlaps with fewest taken boxes."""
    boxes = []
    for across, down in ((1, -1), (-1, -1), (1, 1), (-1, 1)):  # at the upper right, if there is room
        middle = place + offset * np.asarray([across, down]) + [across * size[0] / 2, 0]
        boxes.append(np.concatenate([middle - size / 2, middle + size / 2]))
    costs = []
    for left, top, right, bottom in boxes:
        is_out = left < 0 or top < 0 or right > canvas_hw[1] or bottom > canvas_hw[0]
        is_apart = (taken[:, 0] > right) | (taken[:, 2] < left) | (taken[:, 1] > bottom) | (taken[:, 3] < top)
        known = np.isfinite(taken[:, 0])
        costs.append(np.sum(known & ~is_apart) + 1000 * is_out)
    chosen = boxes[int(np.argmin(costs))]
    inner = np.asarray(canvas_hw[::-1]) - (chosen[2:] - chosen[:2])
    corner = np.maximum(np.minimum(chosen[:2], inner), 0)
    return np.concatenate([corner, corner + chosen[2:] - chosen[:2]]).astype(np.float32)


def write_note(canvas: ImageArray, text: str, unit: float = FINE) -> ImageArray:
    """A copy of the canvas with a line of text in its lower left corner."""
    image = PIL.Image.fromarray(canvas)
    margin, rim = 6 * unit, round(2 * unit)
    font = _fit_font(text, image.width - 2 * margin, 15 * unit)
    PIL.ImageDraw.Draw(image).text(
        (margin, image.height - margin),
        text,
        font=font,
        fill="white",
        anchor="ls",
        stroke_width=rim,
        stroke_fill="black",
    )
    return np.array(image)


def write_banner(canvas: ImageArray, text: str, unit: float = FINE) -> ImageArray:
    """A copy of the canvas with a line of text on a plate in its middle."""
    image = PIL.Image.fromarray(canvas)
    draw = PIL.ImageDraw.Draw(image)
    size = min(28 * unit, image.height / 3)
    font = _fit_font(text, 0.8 * image.width, size)
    middle = (image.width / 2, image.height / 2)
    left, top, right, bottom = draw.textbbox(middle, text, font=font, anchor="mm")
    draw.rectangle((left - size, top - size / 2, right + size, bottom + size / 2), fill=PAPER, outline=INK)
    draw.text(middle, text, font=font, fill=INK, anchor="mm")
    return np.array(image)


def add_caption(
    canvas: ImageArray, text: str, scale: ColourScale | None = None, height: int = 36, unit: float = 1.0
) -> ImageArray:
    """Appends a strip below the image: text at the left, a colour scale at the right.

    Where both do not fit side by side, the scale has a strip of its own; text that is too long shrinks.

    Args:
        canvas: (H, W, 3).
        text: one line.
        scale: the colour scale, if any.
        height: of the strip, times `unit`.
        unit: magnification of text and scale.
    """
    width, tall, margin = canvas.shape[1], round(height * unit), round(12 * unit)
    room = max(1, width - 2 * margin)
    strip = PIL.Image.new("RGB", (width, tall), PAPER)
    key = None if scale is None else _draw_key(scale, tall, unit, room)
    length = PIL.ImageFont.load_default(size=17 * unit).getlength(text)
    has_own = key is not None and length + key.width + margin > room
    strips = [strip, PIL.Image.new("RGB", (width, tall), PAPER)] if has_own else [strip]
    font = _fit_font(text, room, 17 * unit)
    PIL.ImageDraw.Draw(strip).text((margin, tall / 2), text, font=font, fill=INK, anchor="lm")
    if key is not None:
        strips[-1].paste(key, (margin if has_own else width - margin - key.width, 0))
    return np.concatenate([canvas, *map(np.array, strips)])


def _draw_key(scale: ColourScale, height: int, unit: float, room: int) -> PIL.Image.Image:
    """A colour scale with its name and the labels of its ends, at most `room` wide."""
    font, gap = PIL.ImageFont.load_default(size=17 * unit), round(8 * unit)
    low, high = f"{scale.name}  {scale.ends[0]}", scale.ends[1]
    before, after = (round(font.getlength(text)) for text in (low, high))
    bar_hw = max(1, round(12 * unit)), max(1, round(len(scale.colours) * unit))
    key = PIL.Image.new("RGB", (before + after + bar_hw[1] + 2 * gap, height), PAPER)
    draw = PIL.ImageDraw.Draw(key)
    draw.text((0, height / 2), low, font=font, fill=INK, anchor="lm")
    bar = PIL.Image.fromarray(scale.colours[None]).resize(bar_hw[::-1])
    key.paste(bar, (before + gap, round(height / 2 - bar_hw[0] / 2)))
    draw.text((key.width, height / 2), high, font=font, fill=INK, anchor="rm")
    return key if key.width <= room else key.resize((room, height))


def _fit_font(text: str, room: float, size: float) -> _Font:
    """A font of this size, or a smaller one, in which the text is as wide as the room at most."""
    length = PIL.ImageFont.load_default(size=size).getlength(text)
    return PIL.ImageFont.load_default(size=max(_SMALLEST, size * min(1.0, room / max(length, 1.0))))
