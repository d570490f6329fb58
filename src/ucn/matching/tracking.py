"""Points followed through a clip: each frame is encoded once, and every answer is checked by the way back."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ucn.data.io import write_bytes_atomically
from ucn.data.points import check_points
from ucn.data.sets.layout import IMAGE_SUFFIXES
from ucn.data.sets.video.frames import Clip, FrameFolder, Frames
from ucn.errors import DataError
from ucn.types import BoolArray, Features, FloatArray, Matches

TRACK_COLUMNS = ("frame", "point", "x", "y", "score", "is_lost")
"""Header of a CSV of tracks."""
MIN_SCORE = 0.5
"""Answers that are likelier wrong than right are not taken."""
MAX_STEP = 0.1
"""How far a point may move from frame to frame, as a share of the longer side."""

_AGREEMENT = 8.0  # pixels within which the first frame and the one before say the same: two cells


class FrameMatcher(Protocol):
    """What tracking asks of a matcher; `Matcher` is one."""

    def extract(self, image: Tensor) -> Features:
        """Encodes a frame."""

    def match_features(self, features0: Features, features1: Features, *, points: FloatArray) -> Matches:
        """Looks points of one frame up in another."""


@dataclass(frozen=True)
class TrackedFrame:
    """Where N points are in one frame.

    Attributes:
        number: of the frame, from 0.
        points: (N, 2) float32 pixels; NaN where a point is lost.
        scores: (N,) float32 in [0, 1]: estimated probability that the place is right; 0 where it is lost.
        is_lost: (N,) bool: not seen in this frame, or not surely.
    """

    number: int
    points: FloatArray
    scores: FloatArray
    is_lost: BoolArray


def open_frames(path: Path, max_frames: int) -> Frames:
    """Opens a clip, or a folder of images whose names are their order.

    Raises:
        DataError: it is neither, or damaged.
    """
    try:
        is_folder = path.is_dir()
        names = sorted(path.iterdir()) if is_folder else []
    except OSError as error:
        raise DataError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if not is_folder:
        return Clip(path, max_frames)
    images = [file for file in names if file.suffix.lower() in IMAGE_SUFFIXES and file.name[0] != "."]
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
    """Follows points of the first frame through all that come after it.

    A point is looked for twice: from where it was in the first frame, which cannot drift away, and from where
    it was in the frame before, which looks most like this one. An answer counts if it is mutual, that is, if
    the way back ends where it began, and if its score suffices. If both count, the first frame's is taken
    where they agree or it is the surer one. A point that neither finds, or that would have to leap there, is
    lost in this frame and looked for again in the next.

    Args:
        matcher: such as `Matcher`.
        frames: (3, H, W) RGB in [0, 1], all of one size; read one by one.
        points: (N, 2) pixels of the first frame; N may be 0.
        min_score: in [0, 1].
        max_step: how far a point may move from one frame to the next, as a share of the longer side; a point
            that was lost may have moved on meanwhile.

    Raises:
        PointsError: a point is not finite or lies outside the first frame.
        DataError: a frame has another size than the first.
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
    last_seen, unseen_for = starts.copy(), np.zeros(count, np.int64)
    step = max_step * max(first.image_hw)
    for number, image in enumerate(images, start=1):
        features = matcher.extract(image)
        _check_size(features, first, number)
        found = _look_up(matcher, first, features, starts, min_score)
        if number > 1:
            found = _choose(found, _look_up(matcher, before, features, now.points, min_score))
        found = _forbid_leaps(found, last_seen, step * (1 + unseen_for))
        before, now = features, TrackedFrame(number, *found)
        last_seen[~now.is_lost] = now.points[~now.is_lost]
        unseen_for = np.where(now.is_lost, unseen_for + 1, 0)
        yield now


_Found = tuple[FloatArray, FloatArray, BoolArray]


def _look_up(
    matcher: FrameMatcher, features0: Features, features1: Features, points: FloatArray, min_score: float
) -> _Found:
    """Places and scores of points (N, 2) of one frame in another, and who is lost; NaN is from the start."""
    places = np.full((len(points), 2), np.nan, np.float32)
    scores = np.zeros(len(points), np.float32)
    rows = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(rows):
        matches = matcher.match_features(features0, features1, points=points[rows])
        is_good = matches.is_mutual & (matches.scores >= min_score) & np.isfinite(matches.points1).all(axis=1)
        places[rows[is_good]] = matches.points1[is_good]
        scores[rows[is_good]] = matches.scores[is_good]
    return places, scores, np.isnan(places[:, 0])


def _choose(far: _Found, near: _Found) -> _Found:
    """Of what the first frame and the one before say, point by point, what is taken."""
    with np.errstate(invalid="ignore"):
        is_agreed = np.linalg.norm(far[0] - near[0], axis=1) <= _AGREEMENT
    use_far = ~far[2] & (near[2] | is_agreed | (far[1] > near[1]))
    places = np.where(use_far[:, None], far[0], near[0])
    return places, np.where(use_far, far[1], near[1]), np.isnan(places[:, 0])


def _forbid_leaps(found: _Found, last_seen: FloatArray, limits: NDArray[np.floating[Any]]) -> _Found:
    """Loses points that would have to move farther than their limits (N,), in pixels."""
    places, scores, is_lost = found
    with np.errstate(invalid="ignore"):
        is_lost = is_lost | (np.linalg.norm(places - last_seen, axis=1) > limits)
    return np.where(is_lost[:, None], np.float32(np.nan), places), np.where(is_lost, 0, scores), is_lost


def _check_size(features: Features, first: Features, number: int) -> None:
    if features.image_hw != first.image_hw:
        (height, width), (first_height, first_width) = features.image_hw, first.image_hw
        raise DataError(
            f"frame {number} has {width} × {height} pixels; expected {first_width} × {first_height} as the "
            "first one; give frames of one size"
        )


def write_tracks(path: str | Path, tracks: Sequence[TrackedFrame], overwrite: bool = False) -> None:
    """Writes a CSV: under the header `TRACK_COLUMNS` a line per frame and point; lost ones are at nan, nan.

    Raises:
        OutputError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TRACK_COLUMNS)
    for frame in tracks:
        values = zip(frame.points.tolist(), frame.scores.tolist(), frame.is_lost.tolist(), strict=True)
        for point, ((x, y), score, is_lost) in enumerate(values):
            writer.writerow([frame.number, point, f"{x:.3f}", f"{y:.3f}", f"{score:.4f}", int(is_lost)])
    write_bytes_atomically(path, text.getvalue().encode(), overwrite)
