"""Tracked points drawn into their clip, and clips written as video."""

from __future__ import annotations

import secrets
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

import cv2
import numpy as np

from ucn.data.io import check_output, to_pixels
from ucn.errors import OutputError
from ucn.matching.tracking import TrackedFrame
from ucn.types import FloatArray, ImageLike
from ucn.viz.canvas import draw_lines, draw_marker, write_labels
from ucn.viz.colours import OKABE_ITO, Picture, position_colours

TAIL = 20
"""Frames whose places are drawn behind a point."""
MAX_NUMBERED_POINTS = 30
"""More points than these have no numbers, and colours that say where they began."""


class TrackPainter:
    """Draws points with the tails of where they were; give it the frames in order."""

    def __init__(self) -> None:
        self._tail: deque[FloatArray] = deque(maxlen=TAIL)
        self._colours: Picture | None = None

    def paint(self, image: ImageLike, tracked: TrackedFrame) -> Picture:
        """A frame (H, W, 3) uint8 with its points; lost ones are left out until they are found again."""
        canvas = to_pixels(image)
        count = len(tracked.points)
        if self._colours is None:
            self._colours = _choose_colours(tracked.points, canvas.shape[:2])
        self._tail.append(tracked.points)
        older, newer, colours = self._find_segments(self._colours)
        canvas = draw_lines(canvas, older, newer, colours)
        radius = 4.0 if count <= MAX_NUMBERED_POINTS else 2.0
        for row in np.flatnonzero(~tracked.is_lost):
            draw_marker(canvas, tracked.points[row], self._colours[row], radius, is_filled=True)
        if count <= MAX_NUMBERED_POINTS:
            canvas = write_labels(canvas, tracked.points, list(map(str, range(count))), radius + 4)
        return canvas

    def _find_segments(self, colours: Picture) -> tuple[FloatArray, FloatArray, Picture]:
        """Beginnings, ends and colours of all pieces of all tails."""
        places = np.stack(self._tail)  # (frames, N, 2)
        older, newer = places[:-1].reshape(-1, 2), places[1:].reshape(-1, 2)
        is_drawn = np.isfinite(older).all(axis=1) & np.isfinite(newer).all(axis=1)
        repeated = np.tile(colours, (len(places) - 1, 1)).reshape(-1, 3)
        return older[is_drawn], newer[is_drawn], repeated[is_drawn]


def _choose_colours(points: FloatArray, image_hw: tuple[int, ...]) -> Picture:
    if len(points) > MAX_NUMBERED_POINTS:
        return position_colours(points, (image_hw[0], image_hw[1]))
    rows = [OKABE_ITO[row % len(OKABE_ITO)] for row in range(len(points))]
    return np.asarray(rows, np.uint8).reshape(-1, 3)


class VideoFile:
    """An .mp4 that is written picture by picture beside its place and moved there when it is whole."""

    def __init__(self, path: Path, frames_per_second: float, overwrite: bool = False) -> None:
        """Prepares the file; it is opened with the first picture, which gives its size.

        Raises:
            OutputError: it could not be written there.
        """
        check_output(path, overwrite)
        self._path, self._speed, self._overwrite = path, frames_per_second, overwrite
        self._part = path.with_name(f".ucn-{secrets.token_hex(6)}.part.mp4")
        self._writer: cv2.VideoWriter | None = None

    def add(self, picture: Picture) -> None:
        """Appends a picture (H, W, 3) RGB; a last odd row or column, which the codec cannot hold, is left."""
        height, width = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2
        if self._writer is None:
            code = cv2.VideoWriter.fourcc(*"mp4v")
            self._writer = cv2.VideoWriter(
                str(self._part), cv2.CAP_FFMPEG, code, self._speed, (width, height)
            )
            if not self._writer.isOpened():
                raise OutputError(f"cannot write {self._path}: this OpenCV has no encoder for MPEG-4 video")
        self._writer.write(np.ascontiguousarray(picture[:height, :width, ::-1]))

    def __enter__(self) -> Self:
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
                check_output(self._path, self._overwrite)
                self._part.replace(self._path)
        finally:
            self._part.unlink(missing_ok=True)
