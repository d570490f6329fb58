"""Video: points of a frame followed to a later one by pyramidal Lucas-Kanade, there and back.

The truth is tracked, not measured. A point is kept where the way back ends where it began; that finds most
mistakes, and none where both ways go wrong together, as on repeated or sliding texture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ucn.data.catalogue import DataInfo
from ucn.data.io import read_image, to_pixels
from ucn.data.pairs import DataFile, Fault, PairData, check_choice, check_index
from ucn.data.sets.layout import IMAGE_SUFFIXES, find_root
from ucn.data.sets.video.frames import VIDEO_SUFFIXES, Clip, FrameFolder, Frames, Pixels, to_grey
from ucn.errors import DataError, UcnError
from ucn.types import FloatArray, PairSample

INFO = DataInfo(
    name="video",
    title="Your own clips, or frames of one",
    task="geometric",
    truth="tracked by Lucas-Kanade there and back, not measured; for short gaps",
    layout=(
        "CLIP.mp4, .avi, .mov, .mkv, .webm, …: one or several; or the path of a clip itself",
        "or frames: images whose sorted names are their order",
        "or folders of frames",
    ),
    splits=("all",),
    licence="yours",
    source="",
    markers=tuple(f"*{suffix}" for suffix in VIDEO_SUFFIXES),
)

_CORNER_DISTANCE = 8  # pixels between points that are followed
_WINDOW = (21, 21)
_MARGIN = 10  # half of it
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
    """Opens clips or frames. Every clip is decoded once, since only that tells how many frames it has.

    Args:
        folder: of clips, of frames, or of folders of frames; or a clip.
        split: all.
        gap: frames from image 0 to image 1 of a pair.
        step: frames from one pair to the next.
        max_error: pixels by which the way there and back may miss where it began.
        max_points: at most so many corners of image 0 are followed.
        max_frames: at most so many frames of a clip are used; the rest is left out.
    """
    check_choice(split, INFO.splits, "split")
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
        is_clip = folder.is_file() and folder.suffix.lower() in VIDEO_SUFFIXES
        if not is_clip and not folder.is_dir():
            find_root(folder, INFO.markers)  # says what it is instead
        super().__init__(folder.parent if is_clip else folder)
        self._gap, self._step, self._max_error, self._max_points = gap, step, max_error, max_points
        self._sources = [Clip(folder, max_frames)] if is_clip else self._find_sources(max_frames)
        starts = [len(range(0, len(source) - gap, step)) for source in self._sources]
        for source, count in zip(self._sources, starts, strict=True):
            if count == 0:
                needed = f"a pair needs {gap + 1} (option gap={gap})"
                self.notes.append(f"{source.path} has {len(source)} frames, {needed}; it is left out")
        self._ends = np.cumsum(starts, dtype=np.int64)
        if len(self) == 0 and not self.faults:
            raise DataError(f"split 'all' is empty: {self.notes[0] if self.notes else folder}")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def pair_name(self, index: int) -> str:
        """The first frame's path in the folder, and the second frame's name."""
        first, second = self.image_paths(index)
        return f"{first.relative_to(self.root).as_posix()}--{second.name}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two frames; those of a clip have paths beneath the clip's own."""
        source, start = self._locate(index)
        return source.frame_path(start), source.frame_path(start + self._gap)

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The two frames and the clip; or all frames from the first to the second."""
        source, start = self._locate(index)
        if isinstance(source, Clip):
            return *self.image_paths(index), source.path
        return tuple(source.frame_path(start + frame) for frame in range(self._gap + 1))

    def read(self, index: int) -> PairSample:
        """Reads two frames with the points that could be followed from one to the other and back."""
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
        points0, points1 = track_points(greys, self._max_points, self._max_error)
        return PairSample(
            image0, image1, torch.from_numpy(points0), torch.from_numpy(points1), self.pair_name(index)
        )

    def files(self) -> Sequence[DataFile]:
        """Every clip, or every frame that is a file, once."""
        found = []
        for source in self._sources:
            if isinstance(source, Clip):
                found.append(DataFile(source.path, "clip", source.check))
            else:
                paths = [source.frame_path(number) for number in range(len(source))]
                found += [DataFile(path, "image", partial(read_image, path)) for path in paths]
        return found

    def _locate(self, index: int) -> tuple[Frames, int]:
        """The clip of a pair, and its first frame."""
        check_index(index, len(self))
        source = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[source - 1]) if source else 0
        return self._sources[source], (index - before) * self._step

    def _find_sources(self, max_frames: int) -> list[Frames]:
        clips, frames, folders = _list_folder(self.root)
        if clips:
            if frames:
                self.notes.append(f"{self.root} has clips; its {len(frames)} images are not used")
            return [clip for clip in map(partial(self._open_clip, max_frames), clips) if clip is not None]
        if frames:
            return [FrameFolder(self.root, frames)]
        inner = [(folder, _list_folder(folder)[1]) for folder in folders]
        sources: list[Frames] = [FrameFolder(folder, images) for folder, images in inner if images]
        if not sources:
            raise DataError(
                f"{self.root} has no clips ({', '.join(VIDEO_SUFFIXES[:6])}, …) and no frames "
                f"({', '.join(IMAGE_SUFFIXES[:3])}, …) in it or in its folders"
            )
        return sources

    def _open_clip(self, max_frames: int, path: Path) -> Clip | None:
        try:
            clip = Clip(path, max_frames)
        except UcnError as error:
            self.faults.append(Fault(path, str(error).removeprefix(f"{path}").lstrip(": ")))
            return None
        if clip.is_cut:
            self.notes.append(f"{path}: frames beyond {max_frames:,} are left out (option max_frames)")
        elif clip.stated_count > len(clip) + 1 + clip.stated_count // 100:
            self.notes.append(
                f"{path}: its header announces {clip.stated_count:,} frames, {len(clip):,} could be decoded; "
                "is it cut off?"
            )
        return clip


def track_points(greys: Sequence[Pixels], max_points: int, max_error: float) -> tuple[FloatArray, FloatArray]:
    """Follows corners of the first frame to the last one and back.

    Args:
        greys: frames (H, W), all of one size, each close to the next.
        max_points: at most so many corners, the strongest.
        max_error: pixels by which the way back may miss the corner.

    Returns:
        (N, 2) points of the first frame and (N, 2) points of the last. OpenCV, too, has the centre of the
        top-left pixel at (0, 0).
    """
    # Beyond the border there is nothing to compare: points whose window reaches there are up to a pixel off.
    is_whole = np.zeros_like(greys[0])
    is_whole[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = 255
    found = cv2.goodFeaturesToTrack(greys[0], max_points, 0.01, _CORNER_DISTANCE, mask=is_whole, blockSize=5)
    if found is None:  # nothing but one colour
        return np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)
    corners: NDArray[np.float32] = found.astype(np.float32)  # (N, 1, 2)
    there, is_found = _follow(greys, corners)
    back, is_found_back = _follow(greys[::-1], there)
    is_good = is_found & is_found_back
    is_good &= np.linalg.norm((back - corners)[:, 0], axis=-1) <= max_error
    height, width = greys[0].shape
    last = (width - 1 - _MARGIN, height - 1 - _MARGIN)
    is_good &= ((there[:, 0] >= _MARGIN) & (there[:, 0] <= last)).all(axis=-1)
    return corners[is_good, 0], there[is_good, 0]


def _follow(
    greys: Sequence[Pixels], points: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Where points (N, 1, 2) of the first frame are in the last, frame by frame, and which were not lost."""
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
    """Clips, images and folders in a folder, sorted."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot list {folder}: {(error.strerror or str(error)).lower()}") from error
    clips = [path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()]
    images = [path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
    return clips, images, [path for path in paths if path.is_dir()]
