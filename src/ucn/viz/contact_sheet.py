"""Contact sheet: many images with points of the same parts, in the same colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.io import to_pixels
from ucn.viz.canvas import FINE, PAPER, draw_marker, reduce, resize
from ucn.viz.caption import add_caption, write_labels
from ucn.viz.colours import OKABE_ITO, ImageArray, is_finite
from ucn.viz.matches import MAX_NUMBERED_POINTS

_COLUMNS, _SIDE, _GAP = 4, 300, 8
_STRIP = 26
_RADIUS = 4.5


@dataclass(frozen=True, eq=False)
class SheetImage:
    """An image of a contact sheet.

    Attributes:
        title: below it.
        path: of the image.
        points: (N, 2) in its pixels; NaN where a part is not shown.
    """

    title: str
    path: Path
    points: NDArray[np.floating]


def draw_contact_sheet(images: Sequence[SheetImage], parts: Sequence[str]) -> ImageArray:
    """Draws images in rows of four; up to `MAX_NUMBERED_POINTS` parts are numbered from 1 and named below.

    Args:
        images: at least one.
        parts: N names.

    Returns:
        (H, W, 3) uint8.
    """
    is_numbered = len(parts) <= MAX_NUMBERED_POINTS
    cells = [_draw_cell(image, is_numbered) for image in images]
    width = min(_COLUMNS, len(cells)) * (_SIDE + _GAP) + _GAP
    rows = []
    for first in range(0, len(cells), _COLUMNS):
        row = cells[first : first + _COLUMNS]
        height = max(cell.shape[0] for cell in row)
        canvas = np.full((height + _GAP, width, 3), PAPER, np.uint8)
        for column, cell in enumerate(row):
            left = _GAP + column * (_SIDE + _GAP)
            canvas[_GAP : _GAP + cell.shape[0], left : left + _SIDE] = cell
        rows.append(canvas)
    sheet = np.concatenate(rows)
    names = [f"{number} {name}" for number, name in enumerate(parts, 1)] if is_numbered else []
    for first in range(0, len(names), 8):
        sheet = add_caption(sheet, ",  ".join(names[first : first + 8]), height=_STRIP)
    return sheet


def _draw_cell(image: SheetImage, is_numbered: bool) -> ImageArray:
    """The image scaled to fit into a square, centred, above its title."""
    pixels = to_pixels(image.path)
    scale = _SIDE / max(pixels.shape[:2])
    size_hw = (max(1, round(pixels.shape[0] * scale)), max(1, round(pixels.shape[1] * scale)))
    canvas = resize(pixels, (FINE * size_hw[0], FINE * size_hw[1]))
    factor = np.asarray([canvas.shape[1] / pixels.shape[1], canvas.shape[0] / pixels.shape[0]])
    places = ((image.points + 0.5) * factor - 0.5).astype(np.float32)
    shown = is_finite(places)
    for row in np.flatnonzero(shown):
        colour = np.asarray(OKABE_ITO[row % len(OKABE_ITO)], np.uint8)
        draw_marker(canvas, places[row], colour, FINE * _RADIUS, is_filled=True, unit=1.0)
    if is_numbered:
        numbers = [str(row) for row in range(1, len(places) + 1)]
        canvas = write_labels(canvas, places, numbers, FINE * _RADIUS + 2, unit=0.8 * FINE)
    cell = np.full((size_hw[0], _SIDE, 3), PAPER, np.uint8)
    left = (_SIDE - size_hw[1]) // 2
    cell[:, left : left + size_hw[1]] = reduce(canvas)
    title = f"{image.title}: {int(shown.sum())} of {len(shown)}"
    return add_caption(cell, title, height=_STRIP, unit=0.8)
