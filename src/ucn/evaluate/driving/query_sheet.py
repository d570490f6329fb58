"""A sheet of query points of frame t and where each method finds them in frame t + 1, in the same colours.

Colours code the position in frame t, so that errors break their gradient, even without ground truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import cv2
import numpy as np
import torch
from torch import Tensor

from ucn.data.checking import spread
from ucn.data.io import read_image, to_pixels
from ucn.evaluate.core.benchmark_pairs import BenchmarkPair, find_gap
from ucn.evaluate.points.predictions import FinderMethod, find_points
from ucn.evaluate.points.report import PointsRun
from ucn.evaluate.points.sheet import compose_sheet, encode_sheet
from ucn.features.extractor import GreyArray, to_grey
from ucn.features.method import DenseMethod
from ucn.features.pair_matcher import align_features
from ucn.types import FloatArray
from ucn.viz.canvas import FINE, draw_dots, reduce, resize
from ucn.viz.caption import write_labels
from ucn.viz.colours import ImageArray, is_finite, position_colours

FAST_THRESHOLD, FAST_COUNT = 20, 500
"""Of OpenCV's FAST: difference of grey values, and how many of the strongest are shown."""
DENSE_PIXELS = 10
"""Pixels between dense query points."""

_WIDTH = 620  # of an image on the sheet, in pixels


def detect_fast(grey: GreyArray) -> FloatArray:
    """The strongest FAST corners (K, 2) of a grey image (Rosten and Drummond 2006)."""
    found = cv2.FastFeatureDetector.create(threshold=FAST_THRESHOLD).detect(grey, None)
    found = sorted(found, key=lambda keypoint: -keypoint.response)[:FAST_COUNT]
    return np.array([keypoint.pt for keypoint in found], np.float32).reshape(-1, 2)


def list_grid(image_hw: tuple[int, int]) -> FloatArray:
    """Points (K, 2) all over an image."""
    start = DENSE_PIXELS // 2
    y, x = np.mgrid[start : image_hw[0] : DENSE_PIXELS, start : image_hw[1] : DENSE_PIXELS]
    return np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.float32)


def choose_close_pairs(pairs: Sequence[BenchmarkPair], count: int) -> list[BenchmarkPair]:
    """At most `count` pairs, evenly spread over those with the fewest frames between them."""
    gaps = [find_gap(pair.name) for pair in pairs]
    close = [pair for pair, gap in zip(pairs, gaps, strict=True) if gap == min(gaps)]
    return [close[row] for row in spread(len(close), count)]


@torch.no_grad()
def draw_queries(run: PointsRun, pairs: int) -> bytes:
    """A JPEG: for each of some pairs the query points in frame t, then where each dense method finds them.

    Args:
        run: with its methods; those that cannot find any given point are left out.
        pairs: how many at most.
    """
    dense = [method for method in run.methods if isinstance(method, DenseMethod)]
    methods = [method for method in dense if not isinstance(method, FinderMethod)]
    rows: list[list[ImageArray]] = []
    for chosen in choose_close_pairs([pair.pair for pair in run.predictions.pairs], pairs):
        image0, image1 = map(read_image, chosen.image_paths())
        size_hw = (image0.shape[-2], image0.shape[-1])
        queries: tuple[FloatArray, ...] = (detect_fast(to_grey(image0)), list_grid(size_hw))
        colours = [position_colours(points, size_hw) for points in queries]
        labelled = [("frame t", image0, queries)]
        labelled += [(method.name, image1, _find(method, image0, image1, queries)) for method in methods]
        for name, image, found in labelled:
            columns = zip(found, colours, strict=True)
            rows.append([_draw(image, points, own, name) for points, own in columns])
    names = (f"FAST corners, at most {FAST_COUNT}", f"every {DENSE_PIXELS}th pixel")
    caption = f"{run.benchmark.name}: points in the next frame have the colours of their queries in frame t"
    return encode_sheet(compose_sheet(names, rows, caption))


def _find(
    method: DenseMethod, image0: Tensor, image1: Tensor, queries: Sequence[FloatArray]
) -> tuple[FloatArray, ...]:
    features0, features1 = (method.extractor.extract(image) for image in (image0, image1))
    whole = (0, 0, image1.shape[-1], image1.shape[-2])
    points0, align = torch.from_numpy(np.concatenate(queries)), partial(align_features, method.matcher)
    found = find_points(features0, features1, points0, whole, True, align)
    first = len(queries[0])
    points: FloatArray = found.cpu().numpy().astype(np.float32)
    return points[:first], points[first:]


def _draw(image: Tensor, points: FloatArray, colours: ImageArray, name: str) -> ImageArray:
    """An image with coloured dots and a name."""
    pixels = to_pixels(image)
    scale = _WIDTH / pixels.shape[1]
    size_hw = (max(1, round(pixels.shape[0] * scale)), _WIDTH)
    canvas = resize(pixels, (FINE * size_hw[0], FINE * size_hw[1]))
    factor = np.asarray([canvas.shape[1] / pixels.shape[1], canvas.shape[0] / pixels.shape[0]], np.float32)
    is_shown = is_finite(points)
    places = (points[is_shown] + np.float32(0.5)) * factor - np.float32(0.5)
    canvas = draw_dots(canvas, places, colours[is_shown])
    corner = np.asarray([[6.0 * FINE, 14.0 * FINE]], np.float32)
    return reduce(write_labels(canvas, corner, [name], 0.0))
