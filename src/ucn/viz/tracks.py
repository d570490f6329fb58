"""Tracked points drawn into video frames, and video files."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import cv2
import numpy as np
import torch

from ucn.data.io import to_pixels
from ucn.errors import OutputError
from ucn.files import check_output, clean_up, scratch_folder
from ucn.geometry.coords import resize_points, resize_scale
from ucn.matching.tracking import TrackedFrame
from ucn.types import FloatArray, ImageLike
from ucn.viz.canvas import draw_cross, draw_lines, draw_marker, resize
from ucn.viz.caption import write_labels, write_note
from ucn.viz.colours import ImageArray, distinct_colours, position_colours

TAIL = 20
"""Number of earlier positions drawn behind a point."""
MAX_NUMBERED_POINTS = 30
"""More points than this have no numbers, and are coloured by their first position."""
_USUAL_SIDE = 960  # longer side of frames whose thin lines are one pixel wide
_LOST_OPACITY = 0.65


class TrackPainter:
    """Draws points with their recent trajectories, and lost ones as crosses; takes the frames in order.

    Frames of another size than the first are scaled into its size, with black borders.
    """

    def __init__(self) -> None:
        self._tail: deque[FloatArray] = deque(maxlen=TAIL)
        self._colours: ImageArray | None = None
        self._size_hw: tuple[int, int] | None = None
        self._last_seen: FloatArray | None = None

    def paint(self, image: ImageLike, tracked: TrackedFrame) -> ImageArray:
        """A frame (H, W, 3) uint8 with its points; a lost one is a cross where it was last seen."""
        canvas = to_pixels(image)
        self._size_hw = self._size_hw or (canvas.shape[0], canvas.shape[1])
        canvas, tracked = _fit_frame(canvas, tracked, self._size_hw)
        count, unit = len(tracked.points), max(1.0, max(canvas.shape) / _USUAL_SIDE)
        if self._colours is None or self._last_seen is None:
            self._colours = _choose_colours(tracked.points, canvas.shape[:2])
            self._last_seen = tracked.points.copy()
        self._last_seen[~tracked.is_lost] = tracked.points[~tracked.is_lost]
        self._tail.append(tracked.points)
        older, newer, colours = self._find_segments(self._colours)
        canvas = draw_lines(canvas, older, newer, colours, thickness=2 * unit)
        radius = unit * (4.0 if count <= MAX_NUMBERED_POINTS else 2.0)
        canvas = self._mark_lost(canvas, tracked, radius, unit)
        for row in np.flatnonzero(~tracked.is_lost):
            draw_marker(canvas, tracked.points[row], self._colours[row], radius, True, unit)
        if count <= MAX_NUMBERED_POINTS:
            canvas = write_labels(canvas, self._last_seen, list(map(str, range(count))), radius + 4, unit)
        return canvas

    def _mark_lost(self, canvas: ImageArray, tracked: TrackedFrame, radius: float, unit: float) -> ImageArray:
        """Crosses where lost points were last seen, and how many are lost."""
        if self._colours is None or self._last_seen is None or not tracked.is_lost.any():
            return canvas
        marked = canvas.copy()
        for row in np.flatnonzero(tracked.is_lost & np.isfinite(self._last_seen[:, 0])):
            place, colour = self._last_seen[row], self._colours[row]
            draw_cross(marked, place, radius + unit, colour, min(0.75 * unit, radius / 4), has_rim=True)
        mixed = cv2.addWeighted(marked, _LOST_OPACITY, canvas, 1 - _LOST_OPACITY, 0)
        note = f"lost: {int(tracked.is_lost.sum()):,} of {len(tracked.points):,}"
        return write_note(np.asarray(mixed, np.uint8), note, unit)

    def _find_segments(self, colours: ImageArray) -> tuple[FloatArray, FloatArray, ImageArray]:
        """Start points, end points and colours of all trajectory segments."""
        positions = np.stack(self._tail)  # (frames, N, 2)
        older, newer = positions[:-1].reshape(-1, 2), positions[1:].reshape(-1, 2)
        is_drawn = np.isfinite(older).all(axis=1) & np.isfinite(newer).all(axis=1)
        repeated = np.tile(colours, (len(positions) - 1, 1)).reshape(-1, 3)
        return older[is_drawn], newer[is_drawn], repeated[is_drawn]


def _choose_colours(points: FloatArray, image_hw: tuple[int, ...]) -> ImageArray:
    if len(points) > MAX_NUMBERED_POINTS:
        return position_colours(points, (image_hw[0], image_hw[1]))
    return distinct_colours(points)


def _fit_frame(
    pixels: ImageArray, tracked: TrackedFrame, size_hw: tuple[int, int]
) -> tuple[ImageArray, TrackedFrame]:
    """A frame scaled into a canvas of another size, without distortion, and its points there."""
    height, width = pixels.shape[:2]
    if (height, width) == size_hw:
        return pixels, tracked
    scale = min(size_hw[0] / height, size_hw[1] / width)
    inner_hw = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (size_hw[0] - inner_hw[0]) // 2, (size_hw[1] - inner_hw[1]) // 2
    canvas = np.zeros((*size_hw, 3), np.uint8)
    canvas[top : top + inner_hw[0], left : left + inner_hw[1]] = resize(pixels, inner_hw)
    points = resize_points(torch.from_numpy(tracked.points), resize_scale((height, width), inner_hw))
    return canvas, replace(tracked, points=points.numpy() + np.array([left, top], np.float32))


class VideoFile:
    """An .mp4 that is written frame by frame to a temporary file and moved into place when complete."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        """Prepares the file; the first frame opens it and sets its size.

        Raises:
            OutputError: the file exists, or cannot be written.
        """
        clean_up(path)
        check_output(path, overwrite=False)
        self._path, self._speed = path, frames_per_second
        self._work = ExitStack()
        self._part = path
        self._writer: cv2.VideoWriter | None = None

    def add(self, frame: ImageArray) -> None:
        """Appends a frame (H, W, 3) RGB; the codec needs even sides, so a last odd row or column is cut."""
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
        if self._writer is None:
            code = cv2.VideoWriter.fourcc(*"mp4v")
            self._writer = cv2.VideoWriter(
                str(self._part), cv2.CAP_FFMPEG, code, self._speed, (width, height)
            )
            if not self._writer.isOpened():
                raise OutputError(f"cannot write {self._path}: this OpenCV has no encoder for MPEG-4 video")
        self._writer.write(np.ascontiguousarray(frame[:height, :width, ::-1]))

    def __enter__(self) -> Self:
        self._part = self._work.enter_context(scratch_folder(self._path)) / f"{self._path.stem}.mp4"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.release()
        try:
            if kind is None and self._writer is not None:
                if not self._part.is_file() or self._part.stat().st_size == 0:
                    raise OutputError(
                        f"cannot write {self._path}: the encoder wrote nothing; is the disk full?"
                    )
                check_output(self._path, overwrite=False)
                self._part.replace(self._path)
        finally:
            self._work.close()
