"""Epipolar lines of a relative pose, drawn in both images."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ucn.geometry.pose import PoseEstimate, find_fundamental
from ucn.types import FloatArray, ImageLike, Matches
from ucn.viz.canvas import FINE, Panels, draw_lines, draw_marker, find_unit, lay_out, reduce, spread_evenly
from ucn.viz.caption import add_caption, write_banner
from ucn.viz.colours import ImageArray, distinct_colours, is_finite
from ucn.viz.matches import draw_matches

Segments = NDArray[np.float64]
"""(N, 2, 2): the start (x, y) and the end of each segment; NaN where there is none."""

MAX_EPIPOLAR_LINES = 16
_RADIUS = 5.0


def draw_pose(
    image0: ImageLike,
    image1: ImageLike,
    matches: Matches,
    pose: PoseEstimate,
    K0: ArrayLike,
    K1: ArrayLike,
    *,
    min_score: float | None = None,
    width: int = 1600,
) -> ImageArray:
    """Draws a relative pose: matches with inliers and outliers, and below them epipolar lines of inliers.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: N matches in the pixels of these images.
        pose: estimated from all of them; where it failed, there are no epipolar lines.
        K0: (3, 3) intrinsics of camera 0.
        K1: (3, 3) intrinsics of camera 1.
        min_score: as `draw_matches`.
        width: of the drawing, in pixels.

    Returns:
        (H, width, 3) uint8.
    """
    joined = draw_matches(image0, image1, matches, is_inlier=pose.is_inlier, min_score=min_score, width=width)
    if pose.R is None or pose.t is None:
        return joined
    F_0to1 = find_fundamental(pose.R, pose.t, K0, K1)
    lines = draw_epipolar_lines(image0, image1, matches.select(pose.is_inlier), F_0to1, width=width)
    return np.concatenate([joined, lines])


def draw_epipolar_lines(
    image0: ImageLike,
    image1: ImageLike,
    matches: Matches,
    F_0to1: ArrayLike,
    *,
    max_lines: int = MAX_EPIPOLAR_LINES,
    width: int = 1600,
) -> ImageArray:
    """Draws matches with their epipolar lines: where the other view sees the rays through the points.

    Point and line of a match have one colour in both images. A correct match lies on both lines, and all
    lines of an image meet where the other camera is.

    Args:
        image0: as `to_tensor` takes it.
        image1: likewise.
        matches: N matches in the pixels of these images; those with NaN points are left out.
        F_0to1: (3, 3) fundamental matrix: ``x1ᵀ F x0 = 0`` for homogeneous pixels of both images.
        max_lines: how many matches at most, spread over image 0 such that their lines are far apart.
        width: of the drawing, in pixels.

    Returns:
        (H, width, 3) uint8.

    Raises:
        ValueError: `F_0to1` is not (3, 3) and finite.
    """
    F = _check_fundamental(F_0to1)
    known = matches.select(is_finite(matches.points0) & is_finite(matches.points1))
    panels, unit = lay_out(image0, image1, FINE * width, 0.85), FINE * find_unit(width)
    chosen = known.select(_choose_rows(known, F, max_lines))
    canvas = _draw_lines_and_points(panels, chosen, F, unit)
    if not len(chosen):
        canvas = write_banner(canvas, "no matches", unit)
    text = f"epipolar lines of {len(chosen):,} matches: a correct match lies on the line of its colour"
    return add_caption(reduce(canvas), text, unit=unit / FINE)


def find_epipolar_segments(points: FloatArray, F: ArrayLike, image_hw: tuple[int, int]) -> Segments:
    """The parts inside an image of the epipolar lines of the other image's points.

    Args:
        points: (N, 2) pixels of the other image.
        F: (3, 3) fundamental matrix from the other image to this one; its transpose for the other direction.
        image_hw: (H, W) of this image.

    Returns:
        (N, 2, 2) their ends; NaN for lines that miss the image.

    Raises:
        ValueError: `F` is not (3, 3) and finite.
    """
    whole = np.column_stack([np.asarray(points, np.float64), np.ones(len(points))])
    matrix = _check_fundamental(F)
    lines = whole @ matrix.T  # (N, 3): a x + b y + c = 0
    # The epipole itself has no line, but rounding gives it one.
    rounding = 1e-12 * np.linalg.norm(matrix) * np.linalg.norm(whole, axis=1)
    lines[np.hypot(lines[:, 0], lines[:, 1]) <= rounding] = np.nan
    return np.array([_clip(line, image_hw) for line in lines], np.float64).reshape(-1, 2, 2)


def _check_fundamental(F: ArrayLike) -> NDArray[np.float64]:
    matrix = np.asarray(F, np.float64)
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise ValueError(f"a fundamental matrix must be (3, 3) and finite, got {matrix.tolist()}")
    return matrix


def _choose_rows(matches: Matches, F: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Rows of at most `count` matches whose epipolar lines in image 0 are far from each other.

    Candidates are spread over the image; each further one is that whose line is farthest from all chosen.
    """
    rows = spread_evenly(matches.points0, 4 * count)
    lines = find_epipolar_segments(matches.points1[rows], F.T, matches.image0_hw)
    chosen: list[int] = []
    # Lines that miss the image are as far from the others as one another, and come last.
    distances = np.where(np.isnan(lines[:, 0, 0]), 0.0, np.inf)
    while len(chosen) < min(count, len(rows)):
        distances[chosen] = -1
        chosen.append(int(np.argmax(distances)))
        own = lines[chosen[-1]]
        apart = np.minimum(*(np.linalg.norm(lines - ends, axis=-1).sum(axis=-1) for ends in (own, own[::-1])))
        distances = np.fmin(distances, apart)
    return np.sort(rows[chosen])


def _clip(line: NDArray[np.float64], image_hw: tuple[int, int]) -> Segments:
    """The ends (2, 2) of a line a x + b y + c = 0 in an image; NaN where it misses it."""
    direction = np.array([-line[1], line[0]])
    length = float(direction @ direction)
    if not length > 0:  # or NaN
        return np.full((2, 2), np.nan)
    foot = -line[2] * line[:2] / length  # the point of the line that is nearest to the origin
    low, high = np.array([-0.5, -0.5]), np.array([image_hw[1] - 0.5, image_hw[0] - 0.5])
    first, last = -np.inf, np.inf
    for axis in range(2):
        if direction[axis] == 0:
            if not low[axis] <= foot[axis] <= high[axis]:
                return np.full((2, 2), np.nan)
            continue
        ends = sorted((edge[axis] - foot[axis]) / direction[axis] for edge in (low, high))
        first, last = max(first, ends[0]), min(last, ends[1])
    if first > last:
        return np.full((2, 2), np.nan)
    return np.stack([foot + first * direction, foot + last * direction])


def _draw_lines_and_points(
    panels: Panels, matches: Matches, F: NDArray[np.float64], unit: float
) -> ImageArray:
    """The panels with the epipolar lines of matches, and their points on top."""
    places = panels.place0(matches.points0), panels.place1(matches.points1)
    segments = (
        panels.place0(find_epipolar_segments(matches.points1, F.T, matches.image0_hw).astype(np.float32)),
        panels.place1(find_epipolar_segments(matches.points0, F, matches.image1_hw).astype(np.float32)),
    )
    colours = distinct_colours(*places, *(own[:, end] for own in segments for end in (0, 1)))
    canvas = panels.canvas
    for own in segments:
        is_seen = np.isfinite(own).all(axis=(1, 2))
        ends = own[is_seen, 0], own[is_seen, 1]
        canvas = draw_lines(canvas, *ends, colours[is_seen], thickness=1.5 * unit, opacity=0.9, has_rim=True)
    for place, colour in zip(np.concatenate(places), np.tile(colours, (2, 1)), strict=True):
        draw_marker(canvas, place, colour, _RADIUS * unit, is_filled=True, unit=unit)
    return canvas
