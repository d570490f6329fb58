"""A sheet of qualitative matches as in the paper: query, ground truth, and the matches of each method."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
from torch import Tensor

from ucn.data.checking import spread
from ucn.data.io import to_pixels
from ucn.evaluate.core.benchmark_pairs import Rectangle
from ucn.evaluate.core.metrics import point_errors
from ucn.evaluate.points.predictions import PairPrediction, prepare_pair
from ucn.evaluate.points.report import PointsRun
from ucn.types import FloatArray
from ucn.viz.canvas import FINE, INK, PAPER, draw_cross, draw_marker, reduce, resize, spread_evenly
from ucn.viz.colours import OKABE_ITO, ImageArray, is_finite

_HEIGHT, _MAX_WIDTH = 170, 260  # of an image on the sheet, in pixels
_GAP, _LINE = 6, 26
_COLUMNS = 5  # side by side
_POINTS = 12  # of a pair
_RADIUS = 5.0


@dataclass(frozen=True)
class _Marks:
    """Points on an image: filled where correct, hollow where not, a cross where not found."""

    points: FloatArray
    is_correct: Sequence[bool]


def draw_sheet(run: PointsRun, pairs: int) -> bytes:
    """A JPEG with a row for each of some pairs, evenly spread.

    Where a run has both variants, the refined matches are shown.

    Args:
        run: with its predictions; images are read again from the data.
        pairs: how many rows at most.
    """
    filled = [pair for pair in run.predictions.pairs if len(pair.points1)]
    variants = run.predictions.variants
    use = any(variant.use_refinement for variant in variants)
    shown = [number for number, variant in enumerate(variants) if variant.use_refinement == use]
    names = ["query", "ground truth", *(variants[number].method.name for number in shown)]
    rows = [_draw_row(run, filled[row], shown) for row in spread(len(filled), pairs)]
    limit = f"{run.benchmark.main_limit:g}"
    within = f"{limit} px" if run.benchmark.unit == "px" else f"alpha {limit}"
    caption = f"{run.benchmark.name}: filled within {within}, hollow farther away, cross: not found"
    return encode_sheet(compose_sheet(names, rows, caption))


def _draw_row(run: PointsRun, pair: PairPrediction, shown: Sequence[int]) -> list[ImageArray]:
    prepared = prepare_pair(run.benchmark, pair.pair, run.settings.seed)
    sample = prepared.sample
    chosen = spread_evenly(sample.points0.numpy(), _POINTS)
    scale = 1.0 if run.benchmark.unit == "px" else pair.length
    everything = [True] * len(chosen)
    panels = [
        _draw_panel(sample.image0, prepared.content0, _Marks(sample.points0.numpy()[chosen], everything)),
        _draw_panel(sample.image1, prepared.content1, _Marks(pair.points1[chosen], everything)),
    ]
    for number in shown:
        found = pair.predicted[number][chosen]
        is_correct = point_errors(found, pair.points1[chosen]) <= run.benchmark.main_limit * scale
        panels.append(_draw_panel(sample.image1, prepared.content1, _Marks(found, is_correct.tolist())))
    return panels


def _draw_panel(image: Tensor, content: Rectangle, marks: _Marks) -> ImageArray:
    """The image without its padding, with its points."""
    left, top, right, bottom = content
    pixels = to_pixels(image)[top:bottom, left:right]
    scale = min(_HEIGHT / pixels.shape[0], _MAX_WIDTH / pixels.shape[1])
    size_hw = (max(1, round(pixels.shape[0] * scale)), max(1, round(pixels.shape[1] * scale)))
    canvas = resize(pixels, (FINE * size_hw[0], FINE * size_hw[1]))
    factor = np.asarray([canvas.shape[1] / pixels.shape[1], canvas.shape[0] / pixels.shape[0]], np.float32)
    corner = np.asarray([left, top], np.float32)
    places = (marks.points - corner + np.float32(0.5)) * factor - np.float32(0.5)
    is_found = is_finite(marks.points)
    for number, place in enumerate(places):
        colour = np.asarray(OKABE_ITO[number % len(OKABE_ITO)], np.uint8)
        if is_found[number]:
            draw_marker(canvas, place, colour, FINE * _RADIUS, is_filled=marks.is_correct[number])
        else:
            draw_cross(canvas, np.asarray([10 * FINE * (number + 1), 10 * FINE], np.float32), FINE * _RADIUS)
    return reduce(canvas)


def compose_sheet(
    names: Sequence[str], rows: Sequence[Sequence[ImageArray]], caption: str
) -> PIL.Image.Image:
    """Images in rows and columns, names above, caption below; columns that do not fit follow below."""
    bands = [
        _compose_band(names[first : first + _COLUMNS], [row[first : first + _COLUMNS] for row in rows])
        for first in range(0, len(names), _COLUMNS)
    ]
    size = (max(band.width for band in bands), sum(band.height for band in bands) + _LINE)
    sheet = PIL.Image.new("RGB", size, PAPER)
    top = 0
    for band in bands:
        sheet.paste(band, (0, top))
        top += band.height
    font = PIL.ImageFont.load_default(size=15)
    PIL.ImageDraw.Draw(sheet).text((_GAP, top + _LINE / 2), caption, font=font, fill=INK, anchor="lm")
    return sheet


def _compose_band(names: Sequence[str], rows: Sequence[Sequence[ImageArray]]) -> PIL.Image.Image:
    widths = [max(row[column].shape[1] for row in rows) for column in range(len(names))]
    heights = [max(panel.shape[0] for panel in row) for row in rows]
    size = (sum(widths) + _GAP * (len(widths) + 1), sum(heights) + _GAP * (len(rows) + 1) + _LINE)
    band = PIL.Image.new("RGB", size, PAPER)
    draw = PIL.ImageDraw.Draw(band)
    font = PIL.ImageFont.load_default(size=15)
    lefts = [_GAP + sum(widths[:column]) + _GAP * column for column in range(len(widths))]
    for name, left in zip(names, lefts, strict=True):
        draw.text((left, _LINE / 2), name, font=font, fill=INK, anchor="lm")
    top = _LINE + _GAP
    for row, height in zip(rows, heights, strict=True):
        for panel, left in zip(row, lefts, strict=True):
            band.paste(PIL.Image.fromarray(panel), (left, top))
        top += height + _GAP
    return band


def encode_sheet(sheet: PIL.Image.Image) -> bytes:
    """A sheet as JPEG."""
    content = io.BytesIO()
    sheet.save(content, "JPEG", quality=90)
    return content.getvalue()
