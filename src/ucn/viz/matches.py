"""Drawings of matches, of query points, and of the correspondences of data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ucn.types import BoolArray, FloatArray, ImageLike, Matches, PairSample
from ucn.viz.canvas import (
    FINE,
    Panels,
    draw_cross,
    draw_dots,
    draw_lines,
    draw_marker,
    find_unit,
    lay_out,
    reduce,
    spread_evenly,
)
from ucn.viz.caption import ColourScale, add_caption, write_banner, write_labels
from ucn.viz.colours import (
    LINE_COLOURS,
    OUTLIER_COLOUR,
    ImageArray,
    colour_ramp,
    distinct_colours,
    error_colours,
    is_finite,
    position_colours,
    score_colours,
    score_shares,
)

MAX_NUMBERED_POINTS = 60
"""More query points than this are drawn without numbers, coloured by their position in image 0."""
MAX_LINES = 100
"""Matches that are joined by lines, by default; more hide the photographs."""
_BRIGHTNESS = 0.85  # of photographs behind lines
_DOT_RADIUS, _DOT_RIM = 1.5, 0.5
_OPACITIES = (0.4, 0.6, 0.8, 1.0)  # of lines, by score
_SAMPLE_POINTS, _SAMPLE_LINES = 300, 40  # at most, of a pair of a data set


def draw_matches(
    image0: ImageLike,
    image1: ImageLike,
    matches: Matches,
    *,
    errors: FloatArray | None = None,
    error_limit: float = 3.0,
    is_inlier: BoolArray | None = None,
    min_score: float | None = None,
    max_lines: int = MAX_LINES,
    width: int = 1600,
) -> ImageArray:
    """Draws matches between two images side by side.

    Every match is a dot in both images, coloured by its score. Lines join at most `max_lines` of them, spread
    evenly over image 0; neighbouring lines have different colours, and low scores fainter ones. Outliers are
    dull red, with thin lines. A caption gives the number of matches and lines, and the colour scale.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: N matches in the pixels of these images; those with NaN points are left out.
        errors: (N,) distances from the ground truth in pixels, NaN where unknown (grey), which then colour
            dots and lines.
        error_limit: error in pixels at the middle of the colour scale, which ends at twice this.
        is_inlier: (N,) which matches agree with an estimated model; None where there is none.
        min_score: score at which the colour scale starts, such as the threshold of the matches; None: the
            lowest score, rounded down to a tenth.
        max_lines: largest number of lines.
        width: of the drawing, in pixels; lines are thicker where it is over 1600.

    Returns:
        (H, width, 3) uint8.

    Raises:
        ValueError: `errors` or `is_inlier` is not (N,), or `min_score` or `max_lines` is out of range.
    """
    _check(matches, errors, is_inlier, min_score, max_lines)
    kept = np.ones(len(matches), np.bool_) if is_inlier is None else np.asarray(is_inlier, np.bool_)
    is_known = is_finite(matches.points0) & is_finite(matches.points1)
    known, kept = matches.select(is_known), kept[is_known]
    low = _find_lowest(known.scores) if min_score is None else min_score
    panels, unit = lay_out(image0, image1, FINE * width, _BRIGHTNESS), FINE * find_unit(width)
    points0, points1 = panels.place0(known.points0), panels.place1(known.points1)
    lines = _choose_lines(points0, kept, max_lines)
    if errors is None:
        dots, scale = score_colours(known.scores, low), _make_score_scale(low)
        shades = distinct_colours(*_list_views(panels, points0[lines], points1[lines]), palette=LINE_COLOURS)
        levels = _choose_opacities(known.scores[lines], low)
    else:
        dots, scale = error_colours(errors[is_known], error_limit), _make_error_scale(error_limit)
        shades, levels = dots[lines], np.full(len(lines), _OPACITIES[-1])
    strokes = _Strokes(points0[lines], points1[lines], shades, levels, kept[lines])
    canvas = _draw_strokes(panels.canvas, strokes, unit)
    canvas = _draw_ends(canvas, points0, points1, dots, kept, unit)
    if not len(known):
        canvas = write_banner(canvas, "no matches", unit)
    text, key = _describe(matches, is_inlier, len(lines)), scale if len(known) else None
    return add_caption(reduce(canvas), text, key, unit=unit / FINE)


@dataclass(frozen=True)
class _Strokes:
    """Lines on the canvas: ends (L, 2), colours (L, 3), opacities (L,) and whether they are of inliers."""

    starts: FloatArray
    ends: FloatArray
    colours: ImageArray
    opacities: NDArray[np.float64]
    is_inlier: BoolArray


def _check(
    matches: Matches,
    errors: FloatArray | None,
    is_inlier: BoolArray | None,
    min_score: float | None,
    max_lines: int,
) -> None:
    """Raises ValueError for arguments of `draw_matches` that are out of range."""
    for name, values in (("errors", errors), ("is_inlier", is_inlier)):
        if values is not None and np.shape(values) != (len(matches),):
            raise ValueError(f"{name} must be ({len(matches)},) as the matches, got {np.shape(values)}")
    if is_inlier is not None and np.asarray(is_inlier).dtype != np.bool_:
        raise ValueError(f"is_inlier must be bool, got {np.asarray(is_inlier).dtype}")
    if min_score is not None and not 0 <= min_score <= 1:
        raise ValueError(f"min_score must be in [0, 1], got {min_score}")
    if max_lines < 0:
        raise ValueError(f"max_lines must be at least 0, got {max_lines}")


def _find_lowest(scores: FloatArray) -> float:
    """The lowest score, rounded down to a tenth, and at most 0.9."""
    # float32 holds no exact tenths.
    return min(float(np.floor(10 * float(scores.min()) + 1e-4) / 10), 0.9) if len(scores) else 0.0


def _make_score_scale(low: float) -> ColourScale:
    ramp = score_colours(low + (1 - low) * colour_ramp(), low)
    return ColourScale("score (dots)", ramp, (f"{low:g}", "1"))


def _make_error_scale(limit: float) -> ColourScale:
    ramp = error_colours(colour_ramp() * np.float32(2 * limit), limit)
    return ColourScale("error (grey: unknown)", ramp, ("0", f"{2 * limit:g}+ px"))


def _choose_opacities(scores: FloatArray, low: float) -> NDArray[np.float64]:
    """Opacities of lines: low scores are fainter."""
    levels = np.minimum((score_shares(scores, low) * len(_OPACITIES)).astype(np.int64), len(_OPACITIES) - 1)
    return np.asarray(_OPACITIES, np.float64)[levels]


def _choose_lines(points0: FloatArray, is_inlier: BoolArray, count: int) -> NDArray[np.int64]:
    """Rows of the matches that lines join: inliers and outliers by their shares, but half for inliers."""
    inliers, outliers = np.flatnonzero(is_inlier), np.flatnonzero(~is_inlier)
    count = min(count, len(points0))
    share = round(count * len(outliers) / max(len(points0), 1))
    outlier_count = min(share, max(count // 2, count - len(inliers)))
    chosen = (
        outliers[spread_evenly(points0[outliers], outlier_count)],
        inliers[spread_evenly(points0[inliers], count - outlier_count)],
    )
    return np.concatenate(chosen)


def _list_views(panels: Panels, starts: FloatArray, ends: FloatArray) -> tuple[FloatArray, ...]:
    """Positions at which lines may be close to each other: both ends, and where they reach image 1."""
    run = np.maximum(ends[:, 0] - starts[:, 0], 1)
    share = (panels.left1 - starts[:, 0]) / run
    heights = starts[:, 1] + share * (ends[:, 1] - starts[:, 1])
    # Where lines reach image 1 they lie on one vertical, hence closer together than their ends.
    return starts, ends, 5 * np.column_stack([np.zeros_like(heights), heights])


def _draw_strokes(canvas: ImageArray, strokes: _Strokes, unit: float) -> ImageArray:
    """The canvas with lines: outliers below, then inliers from the faintest on."""
    is_thin = ~strokes.is_inlier
    grey = np.broadcast_to(np.asarray(OUTLIER_COLOUR, np.uint8), (int(is_thin.sum()), 3))
    starts, ends = strokes.starts[is_thin], strokes.ends[is_thin]
    canvas = draw_lines(canvas, starts, ends, grey, thickness=unit, opacity=0.55)
    for opacity in _OPACITIES:
        chosen = strokes.is_inlier & (strokes.opacities == opacity)
        own = strokes.starts[chosen], strokes.ends[chosen], strokes.colours[chosen]
        if chosen.any():
            canvas = draw_lines(canvas, *own, thickness=1.5 * unit, opacity=opacity, has_rim=True)
    return canvas


def _draw_ends(
    canvas: ImageArray,
    points0: FloatArray,
    points1: FloatArray,
    colours: ImageArray,
    is_inlier: BoolArray,
    unit: float,
) -> ImageArray:
    """The canvas with two dots per match: outliers below; the first match, which is the best, on top."""
    order = np.concatenate([np.flatnonzero(~is_inlier), np.flatnonzero(is_inlier)[::-1]])
    shades = np.where(is_inlier[:, None], colours, np.asarray(OUTLIER_COLOUR, np.uint8))[order]
    points = np.concatenate([points0[order], points1[order]])
    return draw_dots(canvas, points, np.tile(shades, (2, 1)), _DOT_RADIUS * unit, _DOT_RIM * unit)


def _describe(matches: Matches, is_inlier: BoolArray | None, lines: int) -> str:
    """The text of the caption."""
    if not len(matches):
        return "no matches"
    text = f"{len(matches):,} match{'es' * (len(matches) > 1)}"
    if is_inlier is not None:
        text += f", {int(np.sum(is_inlier)):,} inliers (outliers in dull red)"
    return f"{text}, lines for {lines:,} of them" if lines < len(matches) else text


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
    unit = FINE * find_unit(width)
    panels = lay_out(image0, image1, FINE * width)
    points0, points1 = panels.place0(matches.points0), panels.place1(matches.points1)
    has_match = is_finite(points1)
    is_numbered = len(matches) <= MAX_NUMBERED_POINTS
    if is_numbered:
        colours = distinct_colours(points0, points1)
    else:
        colours = position_colours(matches.points0, matches.image0_hw)
    radius = unit * (6.0 if is_numbered else 4.0)
    canvas = panels.canvas.copy()
    for i in range(len(matches)):
        positions = (points0[i], points1[i]) if has_match[i] else (points0[i],)
        for position in positions:
            draw_marker(canvas, position, colours[i], radius, bool(matches.is_mutual[i]), unit)
        if not has_match[i]:
            draw_cross(canvas, points0[i], radius, unit=unit)
    if is_numbered:
        numbers = [str(i) for i in range(len(matches))]
        places = np.concatenate([points0, points1])
        canvas = write_labels(canvas, places, numbers * 2, radius + 2 * unit, unit)
    if not len(matches):
        canvas = write_banner(canvas, "no points", unit)
    matched = int(has_match.sum())
    text = f"{len(matches):,} points, {matched:,} matched, {int(matches.is_mutual.sum()):,} mutual"
    return add_caption(reduce(canvas), f"{text} (filled)", unit=unit / FINE)


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
    unit = FINE * find_unit(width)
    panels = lay_out(sample.image0, sample.image1, FINE * width, 1.0 if is_numbered else _BRIGHTNESS)
    shown = spread_evenly(sample.points0.numpy(), _SAMPLE_POINTS)
    points0, points1 = sample.points0.numpy()[shown], sample.points1.numpy()[shown]
    positions0, positions1 = panels.place0(points0), panels.place1(points1)
    if is_numbered:
        colours = distinct_colours(positions0, positions1)
    else:
        colours = position_colours(points0, (sample.image0.shape[-2], sample.image0.shape[-1]))
    canvas = panels.canvas
    if not is_numbered:
        lines = spread_evenly(positions0, _SAMPLE_LINES)
        canvas = draw_lines(canvas, positions0[lines], positions1[lines], colours[lines], thickness=unit)
    canvas = canvas.copy()
    radius = unit * (5.0 if is_numbered else 3.0)
    places = np.concatenate([positions0, positions1])
    for position, colour in zip(places, np.tile(colours, (2, 1)), strict=True):
        draw_marker(canvas, position, colour, radius, is_filled=True, unit=unit)
    if is_numbered:
        numbers = [str(i) for i in range(len(shown))]
        canvas = write_labels(canvas, places, numbers * 2, radius + 2 * unit, unit)
    count = f"{len(sample):,} correspondences"
    drawn = f", {len(shown):,} drawn" if len(shown) < len(sample) else ""
    return add_caption(reduce(canvas), f"{sample.name}: {count}{drawn}", unit=unit / FINE)
