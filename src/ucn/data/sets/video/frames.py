"""Frames of a video or a folder, by number.

Seeking is not enough: with some codecs and containers, a decoder returns another frame than requested. So a
video is decoded once from start to end when it is opened, and the time of each frame recorded; after a seek,
the time of the decoded frame identifies it.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.image_limits import MAX_PIXELS
from ucn.data.io import read_image, to_pixels, to_tensor
from ucn.data.listing import natural_key
from ucn.errors import DataError
from ucn.files.reading import open_data
from ucn.files.recent import RecentItems

MIN_SIDE = 32
"""Frames with a shorter side are refused: they are too small for tracking."""

Pixels = NDArray[np.uint8]

_FORWARD = 100  # frames that are decoded rather than skipped by a seek
_SEEK_BACK = (0, 16, 64, 256)  # frames before the requested one to seek to, in turn
_CACHE_BYTES = 2**28
_abandoned: list[cv2.VideoCapture] = []


def _count_bytes(pixels: Pixels) -> int:
    return pixels.nbytes


class Frames(ABC):
    """Consecutive frames; those of a video have one size.

    Attributes:
        path: the video or the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def __len__(self) -> int:
        """The number of frames."""

    @abstractmethod
    def frame_path(self, number: int) -> Path:
        """The file of a frame; a video's frames have paths below the video's path."""

    @abstractmethod
    def read(self, number: int) -> Tensor:
        """Reads a frame as (3, H, W) float32 RGB in [0, 1]; raises `UcnError`."""

    @abstractmethod
    def read_grey(self, number: int) -> Pixels:
        """Reads a frame as grey (H, W) uint8, for tracking."""


class FrameFolder(Frames):
    """Frames as image files, sorted by name; numbers in names are sorted by value."""

    def __init__(self, path: Path, frames: Sequence[Path]) -> None:
        super().__init__(path)
        self._paths = sorted(frames, key=lambda frame: natural_key(frame.name))

    def __len__(self) -> int:
        return len(self._paths)

    def frame_path(self, number: int) -> Path:
        """The image file."""
        return self._paths[number]

    def read(self, number: int) -> Tensor:
        """Reads an image file."""
        image = read_image(self._paths[number])
        _check_size(image.shape[2], image.shape[1], self._paths[number])
        return image

    def read_grey(self, number: int) -> Pixels:
        """Reads an image file as grey."""
        return to_grey(to_pixels(self.read(number)))


class Video(Frames):
    """A video file.

    Attributes:
        announced_count: the number of frames in its header; 0 where the header has none.
        is_truncated: whether it has more than `max_frames` frames.
    """

    def __init__(self, path: Path, max_frames: int) -> None:
        super().__init__(path)
        self._decoder: _Decoder | None = None
        self._lock = threading.Lock()
        self._cache: RecentItems[int, Pixels] = RecentItems(64, _CACHE_BYTES, _count_bytes, min_items=4)
        decoder = _Decoder(path)
        self.announced_count = decoder.announced_count
        self._times = decoder.read_times(max_frames + 1)
        self.is_truncated = len(self._times) > max_frames
        self._times = self._times[:max_frames]
        decoder.close()
        if len(self._times) == 0:
            raise DataError(
                f"{path}: no frame can be decoded; it is damaged, or its codec is not supported: convert it"
            )

    def __len__(self) -> int:
        return len(self._times)

    def __getstate__(self) -> dict[str, Any]:
        """Without the state of this process."""
        return self.__dict__ | {"_decoder": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def frames_per_second(self) -> float:
        """Frame rate from the median time step; 25 where times are unknown."""
        steps = np.diff(self._times)
        steps = steps[steps > 0]
        return float(1000 / np.median(steps)) if len(steps) else 25.0

    def frame_path(self, number: int) -> Path:
        """A path below the video's path, at which there is no file."""
        return self.path / f"{number:06d}"

    def read(self, number: int) -> Tensor:
        """Decodes a frame."""
        return to_tensor(self._read_pixels(number))

    def read_grey(self, number: int) -> Pixels:
        """Decodes a frame as grey."""
        return to_grey(self._read_pixels(number))

    def check(self) -> None:
        """Decodes every frame; raises `DataError` where one cannot be decoded, or another one is."""
        decoder = _Decoder(self.path)
        for number in range(len(self)):
            decoder.read(number, self._times)
        decoder.close()

    def _read_pixels(self, number: int) -> Pixels:
        with self._lock:
            return self._cache.get_or_make(number, lambda: self._open().read(number, self._times))

    def _open(self) -> _Decoder:
        """The decoder of this process. One opened before a fork shares the position in the file."""
        if self._decoder is not None and self._decoder.process != os.getpid():
            self._decoder.abandon()
            self._decoder = None
        if self._decoder is None:
            self._decoder = _Decoder(self.path)
        return self._decoder


class _Decoder:
    """An open video, and the number of the frame that was decoded last."""

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        self._path = path
        self._open()
        self.announced_count = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def _open(self) -> None:
        _check_not_text(self._path)
        # Read when the first video is opened: FFmpeg prints nothing about damaged ones, of which we report.
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        try:
            # FFmpeg explicitly: other backends interpret % in a path as a pattern of files.
            self._capture = cv2.VideoCapture(str(self._path), cv2.CAP_FFMPEG)
        finally:
            cv2.utils.logging.setLogLevel(level)
        self._position = -1  # of the frame that was decoded last
        if not self._capture.isOpened():
            raise DataError(f"{self._path} cannot be opened as a video; check that it is one and not damaged")
        width = int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH))
        height = int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        _check_size(width, height, self._path)

    def close(self) -> None:
        """Frees the decoder."""
        self._capture.release()

    def abandon(self) -> None:
        """Never releases the decoder of a parent process: its threads do not exist in this one."""
        _abandoned.append(self._capture)

    def read_times(self, limit: int) -> NDArray[np.float64]:
        """Decodes up to `limit` frames and returns their times in milliseconds."""
        times: list[float] = []
        while len(times) < limit and self._capture.grab():
            times.append(self._time())
        return np.array(times, np.float64)

    def read(self, number: int, times: NDArray[np.float64]) -> Pixels:
        """Decodes a frame as (H, W, 3) RGB, verified by its time."""
        can_seek = bool((np.diff(times) > 0).all())
        if not self._position <= number <= self._position + _FORWARD:
            self._seek(number, times if can_seek else times[:0])
        self._advance(number)
        if can_seek and self._time() != times[number]:
            self._seek(number, times[:0])  # frames were lost: decode from the start
            self._advance(number)
            if self._time() != times[number]:
                raise DataError(
                    f"{self._path}: frame {number} differs from the first decoding; convert the video"
                )
        is_read, frame = self._capture.retrieve()
        if not is_read or frame is None or frame.ndim != 3:
            raise DataError(f"{self._path}: frame {number} cannot be decoded; get the file again")
        return np.ascontiguousarray(frame[..., ::-1]).astype(np.uint8, copy=False)

    def _advance(self, number: int) -> None:
        while self._position < number:
            if not self._capture.grab():
                raise DataError(
                    f"{self._path}: frame {self._position + 1} could be decoded only once; get the file again"
                )
            self._position += 1

    def _seek(self, number: int, times: NDArray[np.float64]) -> None:
        """Seeks to frame `number` or one before it; without times, to the start."""
        for distance in _SEEK_BACK if len(times) else ():
            self._capture.set(cv2.CAP_PROP_POS_FRAMES, max(0, number - distance))
            if self._capture.grab():
                position = int(np.searchsorted(times, self._time()))
                if position <= number and times[position] == self._time():
                    self._position = position
                    return
        self._capture.release()
        self._open()

    def _time(self) -> float:
        return float(self._capture.get(cv2.CAP_PROP_POS_MSEC))


def _check_not_text(path: Path) -> None:
    """Refuses text: a playlist named .mp4 would make the decoder open other files."""
    with open_data(path, "video", None) as file:
        start = file.read(4096)
    if b"\0" not in start:
        raise DataError(
            f"{path} is not a video: it is empty or text; give a video file, or a folder of frames"
        )


def _check_size(width: int, height: int, path: Path) -> None:
    if min(width, height) < MIN_SIDE or width * height > MAX_PIXELS:
        raise DataError(
            f"{path} has {width:,} × {height:,} pixels; expected sides of at least {MIN_SIDE} and at most "
            f"{MAX_PIXELS:,} pixels in total; resize it"
        )


def to_grey(pixels: Pixels) -> Pixels:
    """Converts (H, W, 3) RGB to grey (H, W)."""
    return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)
