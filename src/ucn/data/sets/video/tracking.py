"""Your own videos: points tracked between frames by pyramidal Lucas-Kanade, with a forward-backward check.

The ground truth is tracked, not measured. The forward-backward check rejects most errors, but not those that
occur in both directions, as on repeated or sliding texture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ucn.data.descriptions import VIDEO as INFO
from ucn.data.io import IMAGE_SUFFIXES, to_pixels
from ucn.data.listing import VIDEO_SUFFIXES
from ucn.data.pairs import DataFile, PairData, Problem, check_index
from ucn.data.sets.layout import find_root
from ucn.data.sets.video.frames import FrameFolder, Frames, Pixels, Video, to_grey
from ucn.errors import DataError, UcnError
from ucn.files.reading import explain_failure
from ucn.types import FloatArray, PairSample

_CORNER_DISTANCE = 8  # smallest distance of tracked points, pixels
_WINDOW = (21, 21)
_MARGIN = 10  # half of the window
_LEVELS = 4
_STOP = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 30, 0.005)


def open_folder(
    folder: Path,
    split: str,
    *,
    gap: int = 5,
    step: int = 5,
    max_error: float = 1.0,
    max_points: int = 500,
    max_frames: int = 20_000,
) -> VideoData:
    """Opens videos or frames. Every video is decoded once, to count its frames reliably.

    Args:
        folder: holds videos, frames, or folders of frames; or is a video.
        split: all.
        gap: frames from image 0 to image 1 of a pair.
        step: frames from one pair to the next.
        max_error: largest forward-backward error of a track, in pixels.
        max_points: the most corners of image 0 to track.
        max_frames: the most frames of a video to use.
    """
    legal = {"gap": gap, "step": step, "max_points": max_points, "max_frames": max_frames}
    for name, value in legal.items():
        if value < 1:
            raise DataError(f"option {name} of video must be 1 or more, got {value}")
    if not max_error > 0:
        raise DataError(f"option max_error of video must be above 0 pixels, got {max_error}")
    return VideoData(folder, gap, step, max_error, max_points, max_frames)


class VideoData(PairData):
    """Pairs of frames t and t + gap."""

    def __init__(
        self, folder: Path, gap: int, step: int, max_error: float, max_points: int, max_frames: int
    ) -> None:
        is_video = folder.is_file() and folder.suffix.lower() in VIDEO_SUFFIXES
        if not is_video and not folder.is_dir():
            find_root(folder, INFO.markers)  # raises with the reason
        super().__init__(folder.parent if is_video else folder)
        self._gap, self._step, self._max_error, self._max_points = gap, step, max_error, max_points
        self._sources = [Video(folder, max_frames)] if is_video else self._find_sources(max_frames)
        starts = [len(range(0, len(source) - gap, step)) for source in self._sources]
        for source, count in zip(self._sources, starts, strict=True):
            if count == 0:
                needed = f"a pair needs {gap + 1} (option gap={gap})"
                self.notes.append(f"{source.path} has {len(source)} frames, {needed}; it is excluded")
        self._ends = np.cumsum(starts, dtype=np.int64)
        self.require_pairs("all", self.notes[0] if self.notes else f"{folder}")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def pair_name(self, index: int) -> str:
        """The path of the first frame in the folder, and the name of the second."""
        first, second = self.image_paths(index)
        return f"{first.relative_to(self.root).as_posix()}--{second.name}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two frames; a video's frames have paths below the video's path."""
        source, start = self._locate(index)
        return source.frame_path(start), source.frame_path(start + self._gap)

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The two frames and the video; or all frames from the first to the second."""
        source, start = self._locate(index)
        if isinstance(source, Video):
            return *self.image_paths(index), source.path
        return tuple(source.frame_path(start + frame) for frame in range(self._gap + 1))

    def read(self, index: int) -> PairSample:
        """Reads two frames with the points that were tracked from one to the other and back."""
        source, start = self._locate(index)
        image0, image1 = source.read(start), source.read(start + self._gap)
        between = [source.read_grey(number) for number in range(start + 1, start + self._gap)]
        greys = [to_grey(to_pixels(image0)), *between, to_grey(to_pixels(image1))]
        for number, grey in enumerate(greys, start):
            if grey.shape != greys[0].shape:
                raise DataError(
                    f"{source.frame_path(number)} has {grey.shape[1]} × {grey.shape[0]} pixels; expected "
                    f"{greys[0].shape[1]} × {greys[0].shape[0]} as the frames before it"
                )
        points0, points1 = track_corners(greys, self._max_points, self._max_error)
        return PairSample(
            image0, image1, torch.from_numpy(points0), torch.from_numpy(points1), self.pair_name(index)
        )

    def files(self) -> Sequence[DataFile]:
        """Every video, or every frame that is a file, once."""
        found = []
        for source in self._sources:
            if isinstance(source, Video):
                found.append(DataFile(source.path, "video", source.check))
            else:
                paths = [source.frame_path(number) for number in range(len(source))]
                found += [DataFile.image(path) for path in paths]
        return found

    def _locate(self, index: int) -> tuple[Frames, int]:
        """The video of a pair, and its first frame."""
        check_index(index, len(self))
        source = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[source - 1]) if source else 0
        return self._sources[source], (index - before) * self._step

    def _find_sources(self, max_frames: int) -> list[Frames]:
        videos, frames, folders = _list_folder(self.root)
        if videos:
            if frames:
                self.notes.append(f"{self.root} has videos; its {len(frames)} images are not used")
            opened = (self._open_video(max_frames, path) for path in videos)
            return [video for video in opened if video is not None]
        if frames:
            return [FrameFolder(self.root, frames)]
        inner = [(folder, _list_folder(folder)[1]) for folder in folders]
        sources: list[Frames] = [FrameFolder(folder, images) for folder, images in inner if images]
        if not sources:
            raise DataError(
                f"{self.root} has no videos ({', '.join(VIDEO_SUFFIXES[:6])}, …) and no frames "
                f"({', '.join(IMAGE_SUFFIXES[:3])}, …), also not in its sub-folders; give another folder"
            )
        return sources

    def _open_video(self, max_frames: int, path: Path) -> Video | None:
        try:
            video = Video(path, max_frames)
        except UcnError as error:
            self.problems.append(Problem(path, str(error).removeprefix(f"{path}").lstrip(": ")))
            return None
        if video.is_truncated:
            self.notes.append(f"{path}: frames beyond {max_frames:,} are not used (option max_frames)")
        elif video.announced_count > len(video) + 1 + video.announced_count // 100:
            self.notes.append(
                f"{path}: its header has {video.announced_count:,} frames, {len(video):,} decoded; it "
                "may be truncated"
            )
        return video


def track_corners(
    greys: Sequence[Pixels], max_points: int, max_error: float
) -> tuple[FloatArray, FloatArray]:
    """Tracks corners of the first frame to the last one and back.

    Args:
        greys: frames (H, W), all of one size, in order.
        max_points: the most corners, the strongest.
        max_error: largest forward-backward error, in pixels.

    Returns:
        (N, 2) points of the first frame and (N, 2) points of the last. OpenCV, too, has the centre of the
        top-left pixel at (0, 0).
    """
    # Points whose window extends beyond the border are up to a pixel off.
    mask = np.zeros_like(greys[0])
    mask[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = 255
    found = cv2.goodFeaturesToTrack(greys[0], max_points, 0.01, _CORNER_DISTANCE, mask=mask, blockSize=5)
    if found is None:  # no corners
        return np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)
    corners: NDArray[np.float32] = found.astype(np.float32)  # (N, 1, 2)
    forward, is_found = _track(greys, corners)
    backward, is_found_back = _track(greys[::-1], forward)
    is_good = is_found & is_found_back
    is_good &= np.linalg.norm((backward - corners)[:, 0], axis=-1) <= max_error
    height, width = greys[0].shape
    last = (width - 1 - _MARGIN, height - 1 - _MARGIN)
    is_good &= ((forward[:, 0] >= _MARGIN) & (forward[:, 0] <= last)).all(axis=-1)
    return corners[is_good, 0], forward[is_good, 0]


def _track(
    greys: Sequence[Pixels], points: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Tracks points (N, 1, 2) from the first frame to the last; returns them and which were not lost."""
    is_found = np.ones(len(points), np.bool_)
    for before, after in pairwise(greys):
        moved, status, _ = cv2.calcOpticalFlowPyrLK(
            before,
            after,
            points,
            points.copy(),
            winSize=_WINDOW,
            maxLevel=_LEVELS,
            criteria=_STOP,
        )
        points = moved.astype(np.float32)
        is_found &= status[:, 0] == 1
    return points, is_found


def _list_folder(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Videos, images and folders in a folder, sorted."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot list {folder}: {explain_failure(error)}") from error
    videos = [path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()]
    images = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return videos, images, [path for path in paths if path.is_dir()]
