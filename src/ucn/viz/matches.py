"""Drawings of matches, of query points, and of the correspondences of data sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ucn.types import BoolArray, FloatArray, ImageLike, Matches, PairSample
from ucn.viz.canvas import (
    FINE,
    add_caption,
    draw_cross,
    draw_dots,
    draw_lines,
    draw_marker,
    lay_out,
    reduce,
    spread_evenly,
    write_labels,
)
from ucn.viz.colours import (
    ImageArray,
    colour_ramp,
    error_colours,
    is_finite,
    position_colours,
    row_colours,
    score_colours,
)

MAX_NUMBERED_POINTS = 60
"""More query points than this are drawn without numbers, coloured by their position in image 0."""
_SAMPLE_POINTS, _SAMPLE_LINES = 300, 40  # at most, of a pair of a data set
_OUTLIER_COLOUR = (150, 150, 150)


def draw_matches(
    image0: ImageLike,
    image1: ImageLike,
    matches: Matches,
    *,
    errors: FloatArray | None = None,
    error_limit: float = 3.0,
    is_inlier: BoolArray | None = None,
    max_lines: int = 200,
    width: int = 1600,
) -> ImageArray:
    """Draws matches between two images side by side.

    Every match is a dot in both images; lines join at most `max_lines` of them, spread evenly over image 0.
    A caption gives the number of matches and lines, and the colour scale.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: N matches in the pixels of these images; those with NaN points are left out.
        errors: (N,) distances from the ground truth in pixels, NaN where unknown (grey); None colours by
            score.
        error_limit: error in pixels at the middle of the colour scale, which ends at twice this.
        is_inlier: (N,) inliers of a geometric verification; the other matches are drawn in grey, below them.
        max_lines: largest number of lines.
        width: of the drawing, in pixels.

    Returns:
        (H, width, 3) uint8.

    Raises:
        ValueError: `errors` or `is_inlier` is not (N,).
    """
    if errors is not None and errors.shape != (len(matches),):
        raise ValueError(f"errors must be ({len(matches)},) as the matches, got {errors.shape}")
    if is_inlier is not None and is_inlier.shape != (len(matches),):
        raise ValueError(f"is_inlier must be ({len(matches)},) as the matches, got {is_inlier.shape}")
    panels = lay_out(image0, image1, FINE * width, dim=0.68)
    is_known = is_finite(matches.points0) & is_finite(matches.points1)
    known = matches.select(is_known)
    colours = score_colours(known.scores)
    if errors is not None:
        colours = error_colours(errors[is_known], error_limit)
    order = np.arange(len(known))
    if is_inlier is not None:
        order = np.argsort(is_inlier[is_known], kind="stable")  # the last is drawn on top
        colours[~is_inlier[is_known]] = _OUTLIER_COLOUR
    known, colours = known.select(order), colours[order]
    points0, points1 = panels.place0(known.points0), panels.place1(known.points1)
    lines = spread_evenly(points0, max_lines)
    canvas = draw_lines(panels.canvas, points0[lines], points1[lines], colours[lines])
    canvas = draw_dots(canvas, np.concatenate([points0, points1]), np.concatenate([colours, colours]))
    canvas = reduce(canvas)
    text = f"{len(matches):,} matches"
    if is_inlier is not None:
        text += f", {int(is_inlier.sum()):,} inliers (others grey)"
    if len(lines) < len(matches):
        text += f", lines for {len(lines):,} of them"
    if errors is None:
        return add_caption(canvas, text, "score", score_colours(colour_ramp()), ("0", "1"))
    scale = error_colours(colour_ramp() * np.float32(2 * error_limit), error_limit)
    return add_caption(canvas, text, "error (grey: unknown)", scale, ("0", f"{2 * error_limit:g}+ px"))


def draw_points(image0: ImageLike, image1: ImageLike, matches: Matches, *, width: int = 1600) -> ImageArray:
    """Draws given points of image 0 and their matches in image 1, with equal markers in both.

    Up to `MAX_NUMBERED_POINTS` points carry their row number (from 0); more are coloured by their position in
    image 0. Markers of matches that are not mutual are hollow; points without a match have a cross.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: one row per query point.
        width: of the drawing, in pixels.

    Returns:
        (H, width, 3) uint8.
    """
    panels = lay_out(image0, image1, FINE * width)
    points0, points1 = panels.place0(matches.points0), panels.place1(matches.points1)
    has_match = is_finite(points1)
    is_numbered = len(matches) <= MAX_NUMBERED_POINTS
    if is_numbered:
        colours = row_colours(len(matches))
    else:
        colours = position_colours(matches.points0, matches.image0_hw)
    radius = FINE * (6.0 if is_numbered else 4.0)
    canvas = panels.canvas.copy()
    for i in range(len(matches)):
        positions = (points0[i], points1[i]) if has_match[i] else (points0[i],)
        for position in positions:
            draw_marker(canvas, position, colours[i], radius, is_filled=bool(matches.is_mutual[i]))
        if not has_match[i]:
            draw_cross(canvas, points0[i], radius)
    if is_numbered:
        numbers = [str(i) for i in range(len(matches))]
        canvas = write_labels(canvas, np.concatenate([points0, points1]), numbers * 2, radius + 2 * FINE)
    canvas = reduce(canvas)
    matched = int(has_match.sum())
    text = f"{len(matches):,} points, {matched:,} matched, {int(matches.is_mutual.sum()):,} mutual"
    return add_caption(canvas, f"{text} (filled)")


def draw_samples(samples: Sequence[PairSample], *, width: int = 1200) -> ImageArray:
    """Draws pairs of a data set with their correspondences, one below the other.

    Up to `MAX_NUMBERED_POINTS` correspondences carry their row number; of more, 300 are drawn, spread evenly
    over image 0, coloured by their position in image 0; 40 of them are joined.

    Args:
        samples: the pairs, at least one.
        width: of the drawing, in pixels.

    Returns:
        (H, width, 3) uint8.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("samples must hold at least one pair, got none")
    return np.concatenate([_draw_sample(sample, width) for sample in samples])


def _draw_sample(sample: PairSample, width: int) -> ImageArray:
    is_numbered = len(sample) <= MAX_NUMBERED_POINTS
    panels = lay_out(sample.image0, sample.image1, FINE * width, dim=1.0 if is_numbered else 0.8)
    shown = spread_evenly(sample.points0.numpy(), _SAMPLE_POINTS)
    points0, points1 = sample.points0.numpy()[shown], sample.points1.numpy()[shown]
    if is_numbered:
        colours = row_colours(len(shown))
    else:
        colours = position_colours(points0, (sample.image0.shape[-2], sample.image0.shape[-1]))
    positions0, positions1 = panels.place0(points0), panels.place1(points1)
    canvas = panels.canvas
    if not is_numbered:
        lines = spread_evenly(positions0, _SAMPLE_LINES)
        canvas = draw_lines(canvas, positions0[lines], positions1[lines], colours[lines])
    canvas = canvas.copy()
    radius = FINE * (5.0 if is_numbered else 3.0)
    for position, colour in zip(
        np.concatenate([positions0, positions1]), np.tile(colours, (2, 1)), strict=True
    ):
        draw_marker(canvas, position, colour, radius, is_filled=True)
    if is_numbered:
        numbers = [str(i) for i in range(len(shown))]
        canvas = write_labels(
            canvas, np.concatenate([positions0, positions1]), numbers * 2, radius + 2 * FINE
        )
    count = f"{len(sample):,} correspondences"
    drawn = f", {len(shown):,} drawn" if len(shown) < len(sample) else ""
    return add_caption(reduce(canvas), f"{sample.name}: {count}{drawn}")
