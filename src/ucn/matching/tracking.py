"""Point tracking through a video: each frame is encoded once, and matches must be cycle-consistent."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ucn.data.io import IMAGE_SUFFIXES
from ucn.data.listing import list_images
from ucn.data.point_files.table import rename_columns
from ucn.data.points import check_points
from ucn.data.sets.video.frames import FrameFolder, Frames, Video
from ucn.errors import DataError
from ucn.files import explain_failure, write_bytes_atomically
from ucn.geometry.coords import resize_points, resize_scale
from ucn.types import BoolArray, Features, FloatArray, Matches

TRACK_COLUMNS = ("frame", "point", "x", "y", "score", "is_lost")
"""Header of a CSV of tracks."""
MIN_SCORE = 0.5
"""Matches with a lower score are not used."""
MAX_STEP = 0.1
"""How far a point may move from frame to frame, as a share of the longer side."""

_AGREEMENT = 8.0  # pixels, two cells, within which matches from the first and the previous frame agree


class FrameMatcher(Protocol):
    """The part of `Matcher` that tracking needs."""

    def extract(self, image: Tensor) -> Features:
        """Encodes a frame."""

    def match_features(self, features0: Features, features1: Features, *, points: FloatArray) -> Matches:
        """Matches points of one frame in another."""


@dataclass(frozen=True)
class TrackedFrame:
    """Positions of N points in one frame.

    Attributes:
        number: of the frame, counted from 0.
        points: (N, 2) float32 pixels; NaN where a point is lost.
        scores: (N,) float32 in [0, 1]: estimated probability that the position is correct; 0 where lost.
        is_lost: (N,) bool: occluded, out of the frame, or not found reliably.
    """

    number: int
    points: FloatArray
    scores: FloatArray
    is_lost: BoolArray


def open_frames(path: Path, max_frames: int) -> Frames:
    """Opens a video file, or a folder of images in natural order of their names.

    Raises:
        DataError: it is neither, or damaged.
    """
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise DataError(f"cannot read {path}: {explain_failure(error)}") from error
    if not is_folder:
        if path.suffix.lower() in IMAGE_SUFFIXES:  # OpenCV would read it as a video of one frame
            raise DataError(f"{path} is an image; give a video, or a folder of images")
        return Video(path, max_frames)
    images = [path / name for name in list_images(path)]
    if not images:
        raise DataError(f"{path} has no frames ({', '.join(IMAGE_SUFFIXES[:3])}, …); give a folder of images")
    return FrameFolder(path, images)


def track_points(
    matcher: FrameMatcher,
    frames: Iterable[Tensor],
    points: ArrayLike,
    *,
    min_score: float = MIN_SCORE,
    max_step: float = MAX_STEP,
) -> Iterator[TrackedFrame]:
    """Tracks points of the first frame through all following frames.

    Each point is matched twice: from the first frame, which cannot drift, and from the previous frame, which
    looks most like this one. A match counts if it is cycle-consistent and its score suffices. If both count,
    the first frame's is taken where they agree or its score is higher. A point without a match, or whose
    match is too far away, is lost in this frame and searched for again in the next.

    Args:
        matcher: such as `Matcher`.
        frames: (3, H, W) RGB in [0, 1], read one by one; where their sizes differ, positions are in pixels of
            each, and steps are measured as if all were resized to one size.
        points: (N, 2) pixels of the first frame; N may be 0.
        min_score: in [0, 1].
        max_step: how far a point may move from one frame to the next, as a share of the longer side; the
            limit grows with each frame in which the point was lost.

    Raises:
        PointsError: a point is not finite or lies outside the first frame.
        ValueError: `min_score` or `max_step` is out of range.
    """
    if not 0 <= min_score <= 1:
        raise ValueError(f"min_score must be in [0, 1], got {min_score}")
    if not max_step > 0:
        raise ValueError(f"max_step must be above 0, got {max_step}")
    images = iter(frames)
    start = next(images, None)
    if start is None:
        return
    first = before = matcher.extract(start)
    starts = check_points(points, first.image_hw)
    count = len(starts)
    now = TrackedFrame(0, starts, np.ones(count, np.float32), np.zeros(count, np.bool_))
    yield now
    last_seen, frames_lost = starts.copy(), np.zeros(count, np.int64)
    for number, image in enumerate(images, start=1):
        features = matcher.extract(image)
        found = _match_frame(matcher, first, features, starts, min_score)
        if number > 1:
            found = _choose(found, _match_frame(matcher, before, features, now.points, min_score))
        if features.image_hw != before.image_hw:
            last_seen = _resize(last_seen, before.image_hw, features.image_hw)
        step = max_step * max(features.image_hw)
        found = _limit_steps(found, last_seen, step * (1 + frames_lost))
        before, now = features, TrackedFrame(number, *found)
        last_seen[~now.is_lost] = now.points[~now.is_lost]
        frames_lost = np.where(now.is_lost, frames_lost + 1, 0)
        yield now


_Found = tuple[FloatArray, FloatArray, BoolArray]


def _match_frame(
    matcher: FrameMatcher, features0: Features, features1: Features, points: FloatArray, min_score: float
) -> _Found:
    """Positions and scores of points (N, 2) of one frame in another, and which are lost; NaN points are."""
    positions = np.full((len(points), 2), np.nan, np.float32)
    scores = np.zeros(len(points), np.float32)
    rows = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(rows):
        matches = matcher.match_features(features0, features1, points=points[rows])
        is_good = matches.is_mutual & (matches.scores >= min_score) & np.isfinite(matches.points1).all(axis=1)
        positions[rows[is_good]] = matches.points1[is_good]
        scores[rows[is_good]] = matches.scores[is_good]
    return positions, scores, np.isnan(positions[:, 0])


def _choose(far: _Found, near: _Found) -> _Found:
    """Chooses for each point between the matches from the first (far) and the previous (near) frame."""
    with np.errstate(invalid="ignore"):
        is_agreed = np.linalg.norm(far[0] - near[0], axis=1) <= _AGREEMENT
    use_far = ~far[2] & (near[2] | is_agreed | (far[1] > near[1]))
    positions = np.where(use_far[:, None], far[0], near[0])
    return positions, np.where(use_far, far[1], near[1]), np.isnan(positions[:, 0])


def _limit_steps(found: _Found, last_seen: FloatArray, limits: NDArray[np.floating[Any]]) -> _Found:
    """Marks points as lost that would have moved farther than their limits (N,), in pixels."""
    positions, scores, is_lost = found
    with np.errstate(invalid="ignore"):
        is_lost = is_lost | (np.linalg.norm(positions - last_seen, axis=1) > limits)
    return np.where(is_lost[:, None], np.float32(np.nan), positions), np.where(is_lost, 0, scores), is_lost


def _resize(points: FloatArray, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> FloatArray:
    return resize_points(torch.from_numpy(points), resize_scale(from_hw, to_hw)).numpy()


def write_tracks(
    path: str | Path,
    tracks: Sequence[TrackedFrame],
    overwrite: bool = False,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Writes a CSV with the header `TRACK_COLUMNS` and a line per frame and point; lost ones are nan, nan.

    Args:
        path: the file to write.
        tracks: the frames.
        overwrite: replace an existing file.
        columns: more columns, a cell per point by name, such as those of a `PointTable`; one whose name is
            in `TRACK_COLUMNS` is written as ``input_NAME``.

    Raises:
        OutputError: the file cannot be written.
    """
    more = rename_columns(columns, TRACK_COLUMNS)
    cells = [list(row) for row in zip(*more.values(), strict=True)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*TRACK_COLUMNS, *more])
    for frame in tracks:
        values = zip(frame.points.tolist(), frame.scores.tolist(), frame.is_lost.tolist(), strict=True)
        for point, ((x, y), score, is_lost) in enumerate(values):
            row = [frame.number, point, f"{x:.3f}", f"{y:.3f}", f"{score:.4f}", int(is_lost)]
            writer.writerow(row + (cells[point] if more else []))
    write_bytes_atomically(path, text.getvalue().encode(), overwrite)
