"""Frames of a clip or a folder, by number.

To ask a decoder for frame n is not enough: with some codecs and containers another one comes. So a clip is
decoded once from front to end when it is opened, and the time of each frame noted; after a jump, the time of
what came says which frame it is.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import MAX_PIXELS, read_image, to_pixels, to_tensor
from ucn.errors import DataError

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"),
    *(".wmv", ".ogv", ".mts", ".m2ts", ".3gp", ".flv"),
)
"""Suffixes of the clips that are looked for in a folder."""
MIN_SIDE = 32
"""Frames with a shorter side are refused: nothing can be tracked in them."""

Pixels = NDArray[np.uint8]

_FORWARD = 100  # frames that are decoded rather than jumped over
_JUMPS = (0, 16, 64, 256)  # how far before the wanted frame to try to land
_CACHE_BYTES = 2**28
_abandoned: list[cv2.VideoCapture] = []


class Frames(ABC):
    """Consecutive frames of one size.

    Attributes:
        path: the clip or the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def __len__(self) -> int:
        """How many frames there are."""

    @abstractmethod
    def frame_path(self, number: int) -> Path:
        """The file of a frame; frames of a clip have paths beneath the clip's own."""

    @abstractmethod
    def read(self, number: int) -> Tensor:
        """A frame as (3, H, W) float32 RGB in [0, 1]; raises a `UcnError` where it cannot be read."""

    @abstractmethod
    def read_grey(self, number: int) -> Pixels:
        """A frame as (H, W), for tracking."""


class FrameFolder(Frames):
    """Frames that are image files, in the order of their names, numbers in these by value."""

    def __init__(self, path: Path, frames: Sequence[Path]) -> None:
        super().__init__(path)
        self._paths = sorted(frames, key=lambda frame: _natural_key(frame.name))

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


class Clip(Frames):
    """A video file.

    Attributes:
        stated_count: how many frames its header announces; 0 where it does not say.
        is_cut: whether it has more than `max_frames`.
    """

    def __init__(self, path: Path, max_frames: int) -> None:
        super().__init__(path)
        self._decoder: _Decoder | None = None
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, Pixels] = OrderedDict()
        decoder = _Decoder(path)
        self.stated_count = decoder.stated_count
        self._times = decoder.read_times(max_frames + 1)
        self.is_cut = len(self._times) > max_frames
        self._times = self._times[:max_frames]
        decoder.close()
        if len(self._times) == 0:
            raise DataError(
                f"{path}: no frame can be decoded; it is damaged, or of a codec that is not known"
            )

    def __len__(self) -> int:
        return len(self._times)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to one process."""
        return self.__dict__ | {"_decoder": None, "_lock": None, "_cache": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def frames_per_second(self) -> float:
        """How fast it is shown, by the times of its frames; 25 where they do not tell."""
        steps = np.diff(self._times)
        steps = steps[steps > 0]
        return float(1000 / np.median(steps)) if len(steps) else 25.0

    def frame_path(self, number: int) -> Path:
        """A path beneath the clip's own, at which there is no file."""
        return self.path / f"{number:06d}"

    def read(self, number: int) -> Tensor:
        """Decodes a frame."""
        return to_tensor(self._read_pixels(number))

    def read_grey(self, number: int) -> Pixels:
        """Decodes a frame as grey."""
        return to_grey(self._read_pixels(number))

    def check(self) -> None:
        """Decodes every frame; raises `DataError` where one cannot be, or another comes."""
        decoder = _Decoder(self.path)
        for number in range(len(self)):
            decoder.read(number, self._times)
        decoder.close()

    def _read_pixels(self, number: int) -> Pixels:
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
                return self._cache[number]
            frame = self._open().read(number, self._times)
            self._cache[number] = frame
            while len(self._cache) > max(4, min(64, _CACHE_BYTES // frame.nbytes)):
                self._cache.popitem(last=False)
            return frame

    def _open(self) -> _Decoder:
        """The decoder of this process. One that was opened before a fork shares its place in the file."""
        if self._decoder is not None and self._decoder.process != os.getpid():
            self._decoder.abandon()
            self._decoder = None
        if self._decoder is None:
            self._decoder = _Decoder(self.path)
        return self._decoder


class _Decoder:
    """An open clip, and which of its frames has been decoded last."""

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        self._path = path
        self._open()
        self.stated_count = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def _open(self) -> None:
        _check_not_text(self._path)
        # FFmpeg by name: others would take a name with a % sign as a pattern of many files.
        self._capture = cv2.VideoCapture(str(self._path), cv2.CAP_FFMPEG)
        self._place = -1  # of the frame that was decoded last
        if not self._capture.isOpened():
            raise DataError(f"{self._path} cannot be opened as a clip; is it damaged, or no video?")
        width = int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH))
        height = int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        _check_size(width, height, self._path)

    def close(self) -> None:
        """Frees the decoder."""
        self._capture.release()

    def abandon(self) -> None:
        """Keeps the decoder of a parent process for ever: its threads are not in this one to be ended."""
        _abandoned.append(self._capture)

    def read_times(self, limit: int) -> NDArray[np.float64]:
        """Times in milliseconds of at most `limit` frames, all decoded one after the other."""
        times: list[float] = []
        while len(times) < limit and self._capture.grab():
            times.append(self._time())
        return np.array(times, np.float64)

    def read(self, number: int, times: NDArray[np.float64]) -> Pixels:
        """Frame `number` as (H, W, 3) RGB, checked by its time."""
        can_jump = bool((np.diff(times) > 0).all())
        if not self._place <= number <= self._place + _FORWARD:
            self._jump(number, times if can_jump else times[:0])
        self._advance(number)
        if can_jump and self._time() != times[number]:
            self._jump(number, times[:0])  # frames were lost since; all over again
            self._advance(number)
            if self._time() != times[number]:
                raise DataError(
                    f"{self._path}: decoding frame {number} gives another frame than it gave at first"
                )
        is_read, frame = self._capture.retrieve()
        if not is_read or frame is None or frame.ndim != 3:
            raise DataError(f"{self._path}: frame {number} cannot be decoded")
        return np.ascontiguousarray(frame[..., ::-1]).astype(np.uint8, copy=False)

    def _advance(self, number: int) -> None:
        while self._place < number:
            if not self._capture.grab():
                raise DataError(
                    f"{self._path}: frame {self._place + 1} cannot be decoded, though it could before"
                )
            self._place += 1

    def _jump(self, number: int, times: NDArray[np.float64]) -> None:
        """Moves to frame `number` or one before it; without times, to before the first."""
        for distance in _JUMPS if len(times) else ():
            self._capture.set(cv2.CAP_PROP_POS_FRAMES, max(0, number - distance))
            if self._capture.grab():
                place = int(np.searchsorted(times, self._time()))
                if place <= number and times[place] == self._time():
                    self._place = place
                    return
        self._capture.release()
        self._open()

    def _time(self) -> float:
        return float(self._capture.get(cv2.CAP_PROP_POS_MSEC))


def _check_not_text(path: Path) -> None:
    """Playlists, too, have names that end in .mp4, and would send the decoder to other files."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise DataError(f"cannot read clip {path}: {(error.strerror or str(error)).lower()}") from error
    if b"\0" not in start:
        raise DataError(f"{path} is no clip: it is empty or text; give a video file, or a folder of frames")


def _check_size(width: int, height: int, path: Path) -> None:
    if min(width, height) < MIN_SIDE or width * height > MAX_PIXELS:
        raise DataError(
            f"{path} has {width:,} × {height:,} pixels; expected sides of at least {MIN_SIDE} and at most "
            f"{MAX_PIXELS:,} pixels in all"
        )


def to_grey(pixels: Pixels) -> Pixels:
    """(H, W, 3) RGB to (H, W)."""
    return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)


def _natural_key(name: str) -> list[tuple[int, str]]:
    """frame2 before frame10: digits by their value, the rest by its letters."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", name)
    return [
        (int(piece[:300]), "") if piece[0].isdecimal() and piece.isascii() else (-1, piece)
        for piece in pieces
    ]
