"""7-Scenes, and RGB-D recordings in its layout: depth of a Kinect, poses of KinectFusion.

The published depth is not registered to the colour image: it is in pixels of the depth camera. Only the
intrinsics of that camera were published (focal length 585, centre 320, 240), and the poses are its poses. The
colour camera has a field of view about 11 % wider and is mounted beside it. Each measured pixel is therefore
unprojected by the depth camera and projected into the two colour images. The focal length of the colour
camera, 525, is the one that others use; it and the offset of 2 cm were confirmed on 60 pairs of real frames 8
to 16 apart (``benchmarks/ground_truth_errors.py``): compared with depth taken as registered, the mean colour
difference falls from 0.045 to 0.032, and the median distance from matched SIFT features from 3.1 to 1.7
pixels. The rest grows to 4.5 pixels in the worst pair, where the camera rotates fast, since colour and depth
are not synchronised.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from ucn.data.descriptions import SEVEN_SCENES as INFO
from ucn.data.image_limits import MAX_FILE_BYTES, MAX_PIXELS, check_structure
from ucn.data.io import image_hw, read_header_hw, read_image
from ucn.data.pairs import DataFile, Problem
from ucn.data.sets.flow.dense_pairs import check_size
from ucn.data.sets.layout import find_root
from ucn.data.sets.posed.posed_pairs import (
    Array,
    SequenceData,
    check_gaps,
    check_rotation,
    invert,
    make_sample,
    read_matrix,
    require_intrinsics,
    rigid,
    to_batch,
)
from ucn.errors import DataError
from ucn.files.reading import read_binary, read_lines
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import is_hidden, is_smooth, is_visible, nearest_depths, project, unproject
from ucn.types import PairSample

DEPROBLEM_INTRINSICS = np.array([[585.0, 0, 320], [0, 585, 240], [0, 0, 1]])
"""Intrinsics of the depth camera, from the data set's page; pixel centres are assumed at integers."""

_REMEDY = "get the file again"
_NAME = re.compile(r"frame-([0-9]{6})\.(color\.(?:png|jpe?g)|depth\.png|pose\.txt)")
_EDGE = 0.05  # relative depth step of an edge
_TOLERANCE = 0.03  # relative; errors of a Kinect are about 1 cm at 2 m, those of poses as large


def open_folder(
    folder: Path,
    split: str,
    *,
    min_gap: int = 1,
    max_gap: int = 20,
    is_registered: bool = False,
    colour_focal: float = 525.0,
    colour_offset: float = -0.02,
) -> SevenScenes:
    """Opens 7-Scenes or one of its scenes.

    Args:
        folder: the folder of all scenes, of one scene, or of one sequence.
        split: train or test by the scenes' split files (frames directly in the folder are train), or all.
        min_gap: the second frame of a pair comes at least this many frame numbers after the first.
        max_gap: the second frame of a pair comes at most this many frame numbers after the first.
        is_registered: the depth is registered to the colour image, and the intrinsics apply to both;
            colour_focal and colour_offset are then ignored.
        colour_focal: focal length of the colour camera, pixels; its principal point is the depth camera's.
        colour_offset: metres to add to x in the depth camera's coordinates to get the colour camera's.
    """
    check_gaps(min_gap, max_gap, INFO.name)
    if not colour_focal > 0:
        raise DataError(f"option colour_focal of {INFO.name} must be above 0, got {colour_focal}")
    root = find_root(folder, INFO.markers, INFO.inside)
    colour = None if is_registered else (colour_focal, colour_offset)
    return SevenScenes(root, split, (min_gap, max_gap), colour)


@dataclass(frozen=True)
class _Sequence:
    name: str
    folder: Path
    suffixes: dict[int, str]  # of the colour image of each frame
    intrinsics: Path | None

    def path(self, number: int, kind: str) -> Path:
        suffix = {"depth": "depth.png", "pose": "pose.txt"}.get(kind) or self.suffixes[number]
        return self.folder / f"frame-{number:06d}.{suffix}"


class SevenScenes(SequenceData[_Sequence]):
    """Frames of one sequence within a range of gaps."""

    def __init__(
        self, root: Path, split: str, gaps: tuple[int, int], colour: tuple[float, float] | None
    ) -> None:
        super().__init__(root)
        self._colour = colour
        for folder in self._find_sequences(split):
            sequence = self._index(folder)
            self.add_sequence(sequence, sequence.suffixes, sequence.suffixes, *gaps)
        frames = sum(len(sequence.suffixes) for sequence in self.sequences)
        self.require_pairs(
            split,
            f"{frames} frames in {root}, none of them {gaps[0]} to {gaps[1]} frame numbers after another of "
            "its sequence; change min_gap or max_gap",
        )

    def _find_sequences(self, split: str) -> list[Path]:
        """The folders of the sequences of a split."""
        if next(self.root.glob("frame-*.color.*"), None) is not None:
            if split == "test":
                raise DataError(
                    f"split 'test' is empty: the frames are directly in {self.root}, and split files list "
                    "sequences only; use split train or all"
                )
            return [self.root]
        scenes = {folder.parent for pattern in ("seq-*", "*/seq-*") for folder in self.root.glob(pattern)}
        return [folder for scene in sorted(scenes) for folder in self._find_in_scene(scene, split)]

    def _find_in_scene(self, scene: Path, split: str) -> list[Path]:
        folders = (path for path in sorted(scene.glob("seq-*")) if path.is_dir())
        present = {int(path.name[4:]): path for path in folders if re.fullmatch("[0-9]+", path.name[4:])}
        if split == "all":
            return list(present.values())
        path = scene / f"{split.capitalize()}Split.txt"
        found = []
        for line, text in read_lines(path, "split file (or choose split all)"):
            match = re.fullmatch(r"sequence([0-9]{1,4})", text)  # as published; the folders are seq-01, ...
            if match is None:
                self.problems.append(
                    Problem(path, f"expected 'sequence' and a number, got {text[:40]!r}; correct it", line)
                )
            elif int(match[1]) not in present:
                message = f"there is no folder seq-{int(match[1]):02d} in {scene}; unpack that sequence"
                self.problems.append(Problem(path, message, line))
            else:
                found.append(present[int(match[1])])
        return found

    def _index(self, folder: Path) -> _Sequence:
        """The frames of a sequence that have all their files."""
        found: dict[int, dict[str, str]] = {}
        for name in sorted(path.name for path in folder.iterdir()):
            if match := _NAME.fullmatch(name):
                found.setdefault(int(match[1]), {})[match[2].split(".")[0]] = match[2]
        for number, kinds in found.items():
            for kind in {"color", "depth", "pose"} - kinds.keys():
                path = folder / f"frame-{number:06d}.{kind}.{'txt' if kind == 'pose' else 'png'}"
                message = "no such file, though the frame has others; unpack the sequence again"
                self.problems.append(Problem(path, message))
        complete = {number: kinds["color"] for number, kinds in sorted(found.items()) if len(kinds) == 3}
        places = (folder, folder.parent, folder.parent.parent)
        files = [place / "camera-intrinsics.txt" for place in places if place.is_relative_to(self.root)]
        own = next((file for file in files if file.is_file()), None)
        place = folder.relative_to(self.root).as_posix()
        return _Sequence("" if place == "." else place, folder, complete, own)

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two colour images."""
        sequence, first, second = self.locate(index)
        return sequence.path(first, "color"), sequence.path(second, "color")

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images, the intrinsics where there is a file, poses and depths."""
        sequence, *numbers = self.locate(index)
        others = [sequence.path(number, kind) for kind in ("pose", "depth") for number in numbers]
        intrinsics = [] if sequence.intrinsics is None else [sequence.intrinsics]
        return *self.image_paths(index), *intrinsics, *others

    def motion(self, sequence: _Sequence, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the colour camera."""
        offset = np.eye(4)
        offset[0, 3] = self._colour[1] if self._colour else 0.0
        T: Array = offset @ _read_motion(sequence, first, second) @ invert(offset)
        return T

    def camera_matrix(self, sequence: _Sequence) -> Array:
        """K (3, 3) of the colour camera."""
        return self._colour_intrinsics(_read_intrinsics(sequence.intrinsics))

    def _colour_intrinsics(self, depth_intrinsics: Array) -> Array:
        K = depth_intrinsics.copy()
        if self._colour:
            K[0, 0] = K[1, 1] = self._colour[0]
        return K

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each measured pixel that both colour images show."""
        sequence, first, second = self.locate(index)
        paths = self.image_paths(index)
        image0, image1 = (read_image(path) for path in paths)
        map0, map1 = (
            to_batch(read_depth(sequence.path(number, "depth"), path, image_hw(image)))
            for number, path, image in zip((first, second), paths, (image0, image1), strict=True)
        )
        T_0to1 = to_batch(_read_motion(sequence, first, second))
        K = _read_intrinsics(sequence.intrinsics)
        is_smooth_pixel = is_smooth(map0, _EDGE)[0]
        points = pixel_grid(image_hw(map0)).to(torch.float64)[is_smooth_pixel][None]
        space0 = unproject(points, map0[0][is_smooth_pixel][None], to_batch(K))
        space1 = space0 @ T_0to1[:, :3, :3].mT + T_0to1[:, None, :3, 3]
        seen1, depth1 = project(space1, to_batch(K))
        is_kept = is_visible(seen1, depth1, map1, _TOLERANCE)
        space0, space1 = space0[is_kept][None], space1[is_kept][None]
        points0, is_visible0 = self._project(space0, map0, K, image_hw(image0))
        points1, is_visible1 = self._project(space1, map1, K, image_hw(image1))
        rows = is_visible0 & is_visible1
        return make_sample(image0, image1, points0[rows], points1[rows], self.pair_name(index))

    def _project(
        self, space: Tensor, depth_map: Tensor, K: Array, size_hw: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Projects points (1, N, 3) of the depth camera to the colour camera: (N, 2), and visibility (N,)."""
        colour_K = to_batch(self._colour_intrinsics(K))
        if self._colour is None:
            return project(space, colour_K)[0][0], torch.ones(space.shape[1], dtype=torch.bool)
        offset = to_batch(rigid(np.eye(3), [self._colour[1], 0.0, 0.0]))
        pixels = pixel_grid(image_hw(depth_map)).to(torch.float64).view(1, -1, 2)
        surface = unproject(pixels, depth_map.flatten(1), to_batch(K))
        nearest = nearest_depths(*project(surface, colour_K, offset), size_hw)
        points, depth = project(space, colour_K, offset)
        hidden = is_hidden(points, depth, nearest, tolerance=_EDGE)
        return points[0], ~hidden[0]

    def files(self) -> Sequence[DataFile]:
        """Images, depths, poses and intrinsics."""
        found: list[DataFile] = []
        intrinsics: dict[Path, DataFile] = {}
        for sequence in self.sequences:
            if (path := sequence.intrinsics) is not None:
                intrinsics[path] = DataFile(path, "intrinsics", partial(_read_intrinsics, path))
            for number in sequence.suffixes:
                colour, depth, pose = (sequence.path(number, kind) for kind in ("color", "depth", "pose"))
                found += [
                    DataFile.image(colour),
                    DataFile(depth, "depth", partial(_check_depth, depth, colour)),
                    DataFile(pose, "pose", partial(read_pose, pose)),
                ]
        return [*intrinsics.values(), *found]


def read_depth(path: Path, image: Path, size_hw: tuple[int, int] | None) -> Array:
    """Reads a depth image: 16 bits, millimetres, 0 and 65535 unknown.

    Args:
        path: the file.
        image: its colour image, for errors.
        size_hw: size of the colour image; None skips the check.

    Returns:
        (H, W) metres; NaN where unknown.

    Raises:
        DataError: the file is missing, damaged, not a 16-bit PNG, or not of the colour image's size.
    """
    content = read_binary(path, "depth", MAX_FILE_BYTES)
    try:
        check_structure(io.BytesIO(content))
        with PIL.Image.open(io.BytesIO(content), formats=("PNG",)) as image_file:
            mode, width, height = image_file.mode, *image_file.size
            is_readable = mode.startswith("I") and width * height <= MAX_PIXELS
            values = np.asarray(image_file).astype(np.float64) if is_readable else None
    except Exception as error:  # on damaged files Pillow raises SyntaxError, OSError, struct.error and more
        raise DataError(
            f"{path}: expected a 16-bit PNG, got one that cannot be read ({error}); {_REMEDY}"
        ) from error
    if values is None:
        got = f"{width} × {height} pixels of mode {mode}"
        raise DataError(f"{path}: expected a 16-bit grey PNG, got {got}; {_REMEDY}")
    check_size(path, values.shape, image, size_hw)
    values[(values == 0) | (values == 65535)] = np.nan
    return values / 1000


def _check_depth(path: Path, image: Path) -> object:
    return read_depth(path, image, read_header_hw(image))


def read_pose(path: Path) -> Array:
    """Reads the pose (4, 4) of a frame, camera to world; raises `DataError` where it is malformed."""
    T = read_matrix(path, 4, 4, "pose")
    check_rotation(T[:3, :3], str(path))
    if not np.allclose(T[3], [0, 0, 0, 1]):
        raise DataError(f"{path}: expected 0 0 0 1 as the last row, got {T[3].tolist()}; {_REMEDY}")
    return T


def _read_motion(sequence: _Sequence, first: int, second: int) -> Array:
    """The motion (4, 4) of the depth camera between two frames."""
    pose0, pose1 = (read_pose(sequence.path(number, "pose")) for number in (first, second))
    T: Array = np.linalg.inv(pose1) @ pose0
    return T


def _read_intrinsics(path: Path | None) -> Array:
    """The matrix (3, 3) of the depth camera."""
    if path is None:
        return DEPROBLEM_INTRINSICS
    K = read_matrix(path, 3, 3, "intrinsics")
    require_intrinsics(K, str(path))
    return K
