"""7-Scenes, and RGB-D recordings in its layout: depth by a Kinect, poses by KinectFusion.

The published depth is not registered to the colour image: it lies in the pixels of the depth camera, of which
alone the intrinsics were published (focal length 585, centre 320, 240) and whose poses the pose files give.
The colour camera sees about 11 % wider and stands beside it. Each measured pixel is therefore taken to space
by the depth camera and from there to the two colour images. The colour camera's focal length, 525, is what
others have used; it and the offset of 2 cm were confirmed on 60 pairs of real frames 8 to 16 apart (by
``benchmarks/data_truth.py``): against depth taken as registered, the mean difference of colours falls from
0.045 to 0.032, and the median distance from matched SIFT features from 3.1 to 1.7 pixels. What remains grows
to 4.5 pixels in the worst pair, where the camera turns fast, since colour and depth are not taken at the same
moment.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from ucn.data.catalogue import DataInfo
from ucn.data.headers import read_header_hw
from ucn.data.io import MAX_FILE_BYTES, MAX_PIXELS, read_image
from ucn.data.pairs import DataFile, Fault, check_choice
from ucn.data.sets.flow.dense import check_size
from ucn.data.sets.layout import find_root, read_binary, read_lines
from ucn.data.sets.posed.views import (
    Array,
    FramePairs,
    PosedData,
    check_gaps,
    check_intrinsics,
    check_rotation,
    image_hw,
    invert,
    make_sample,
    read_matrix,
    rigid,
    to_batch,
)
from ucn.errors import DataError
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import is_hidden, is_smooth, is_visible, nearest_depths, project, unproject
from ucn.types import PairSample

INFO = DataInfo(
    name="seven-scenes",
    title="RGB-D Dataset 7-Scenes (2013), and recordings in its layout",
    task="geometric",
    truth="depth measured by a Kinect and camera poses, visibility by the other view's depth",
    layout=(
        "[SCENE/]seq-NN/frame-NNNNNN.color.png (or .jpg), or the frames directly in the folder",
        "… frame-NNNNNN.depth.png: 16 bits, millimetres, 0 and 65535 unknown",
        "… frame-NNNNNN.pose.txt: 4 × 4, camera to world",
        "[SCENE/]TrainSplit.txt, TestSplit.txt: the sequences of each part",
        "camera-intrinsics.txt (optional): 3 × 3, of the depth camera",
    ),
    splits=("train", "test", "all"),
    licence="Microsoft Research licence: non-commercial use only",
    source="https://www.microsoft.com/en-us/research/project/rgb-d-dataset-7-scenes/",
    markers=("frame-*.color.*", "seq-*/frame-*.color.*", "*/seq-*/frame-*.color.*"),
)

DEFAULT_INTRINSICS = np.array([[585.0, 0, 320], [0, 585, 240], [0, 0, 1]])
"""Of the depth camera, as the data set's page gives them; pixel centres are taken to be at integers."""

_REMEDY = "get the file again"
_NAME = re.compile(r"frame-([0-9]{6})\.(color\.(?:png|jpe?g)|depth\.png|pose\.txt)")
_EDGE = 0.05  # relative step of depth between neighbours that is an edge
_TOLERANCE = 0.03  # relative; a Kinect errs by about 1 cm at 2 m, and poses by as much


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
        folder: of all scenes, of one scene, or of one sequence.
        split: train or test by the scenes' split files (frames that lie directly in the folder are train),
            or all.
        min_gap: the second frame of a pair comes at least this many frame numbers after the first.
        max_gap: the second frame of a pair comes at most this many frame numbers after the first.
        is_registered: the depth lies in the pixels of the colour image, and both have the intrinsics that the
            depth camera has otherwise; colour_focal and colour_offset then mean nothing.
        colour_focal: focal length of the colour camera, pixels; its centre is the depth camera's.
        colour_offset: metres to add to x in the depth camera's coordinates to get the colour camera's.
    """
    check_choice(split, INFO.splits, "split")
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


class SevenScenes(PosedData):
    """Frames of the same sequence, at most some frames apart."""

    def __init__(
        self, root: Path, split: str, gaps: tuple[int, int], colour: tuple[float, float] | None
    ) -> None:
        super().__init__(root)
        self._colour = colour
        self._sequences: list[_Sequence] = []
        self._pairs = FramePairs()
        for folder in self._find_sequences(split):
            sequence = self._index(folder)
            self._sequences.append(sequence)
            self._pairs.add(sequence.suffixes, sequence.suffixes, *gaps)
        if not len(self._pairs) and not self.faults:
            frames = sum(len(sequence.suffixes) for sequence in self._sequences)
            raise DataError(
                f"split '{split}' is empty: {frames} frames in {root}, none of them {gaps[0]} to {gaps[1]} "
                "frame numbers after another of its sequence; change min_gap or max_gap"
            )

    def _find_sequences(self, split: str) -> list[Path]:
        """The folders of the sequences of a split."""
        if next(self.root.glob("frame-*.color.*"), None) is not None:
            if split == "test":
                raise DataError(
                    f"split 'test' is empty: the frames lie directly in {self.root}, and split files divide "
                    "only sequences; use split train or all"
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
            match = re.fullmatch(
                r"sequence([0-9]{1,4})", text
            )  # as published; the folders are called seq-01, ...
            if match is None:
                self.faults.append(Fault(path, f"expected 'sequence' and a number, got {text[:40]!r}", line))
            elif int(match[1]) not in present:
                message = f"there is no folder seq-{int(match[1]):02d} in {scene}; unpack that sequence"
                self.faults.append(Fault(path, message, line))
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
                self.faults.append(Fault(path, message))
        complete = {number: kinds["color"] for number, kinds in sorted(found.items()) if len(kinds) == 3}
        places = (folder, folder.parent, folder.parent.parent)
        files = [place / "camera-intrinsics.txt" for place in places if place.is_relative_to(self.root)]
        own = next((file for file in files if file.is_file()), None)
        place = folder.relative_to(self.root).as_posix()
        return _Sequence("" if place == "." else f"{place}/", folder, complete, own)

    def __len__(self) -> int:
        return len(self._pairs)

    def _locate(self, index: int) -> tuple[_Sequence, int, int]:
        place, first, second = self._pairs.locate(index)
        return self._sequences[place], first, second

    def pair_name(self, index: int) -> str:
        """Sequence and frame numbers."""
        sequence, first, second = self._locate(index)
        return f"{sequence.name}{first:06d}-{second:06d}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two colour images."""
        sequence, first, second = self._locate(index)
        return sequence.path(first, "color"), sequence.path(second, "color")

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images, the intrinsics where they have a file, and poses and depths."""
        sequence, *numbers = self._locate(index)
        others = [sequence.path(number, kind) for kind in ("pose", "depth") for number in numbers]
        intrinsics = [] if sequence.intrinsics is None else [sequence.intrinsics]
        return *self.image_paths(index), *intrinsics, *others

    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The motion of the colour camera."""
        sequence, first, second = self._locate(index)
        aside = np.eye(4)
        aside[0, 3] = self._colour[1] if self._colour else 0.0
        T = aside @ _read_motion(sequence, first, second) @ invert(aside)
        return T[:3, :3], T[:3, 3]

    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """Of the colour camera, twice."""
        K = self._colour_intrinsics(_read_intrinsics(self._locate(index)[0].intrinsics))
        return K, K.copy()

    def _colour_intrinsics(self, depth_intrinsics: Array) -> Array:
        K = depth_intrinsics.copy()
        if self._colour:
            K[0, 0] = K[1, 1] = self._colour[0]
        return K

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each measured pixel that both colour images show."""
        sequence, first, second = self._locate(index)
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
        points0, is_kept0 = self._see(space0, map0, K, image_hw(image0))
        points1, is_kept1 = self._see(space1, map1, K, image_hw(image1))
        rows = is_kept0 & is_kept1
        return make_sample(image0, image1, points0[rows], points1[rows], self.pair_name(index))

    def _see(
        self, space: Tensor, depth_map: Tensor, K: Array, size_hw: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Where the colour camera sees points (1, N, 3) of the depth camera, (N, 2), and which it sees."""
        colour_K = to_batch(self._colour_intrinsics(K))
        if self._colour is None:
            return project(space, colour_K)[0][0], torch.ones(space.shape[1], dtype=torch.bool)
        aside = to_batch(rigid(np.eye(3), [self._colour[1], 0.0, 0.0]))
        pixels = pixel_grid(image_hw(depth_map)).to(torch.float64).view(1, -1, 2)
        surface = unproject(pixels, depth_map.flatten(1), to_batch(K))
        nearest = nearest_depths(*project(surface, colour_K, aside), size_hw)
        points, depth = project(space, colour_K, aside)
        hidden = is_hidden(points, depth, size_hw, nearest, tolerance=_EDGE)
        return points[0], ~hidden[0]

    def files(self) -> Sequence[DataFile]:
        """Images, depths, poses and intrinsics."""
        found: list[DataFile] = []
        intrinsics: dict[Path, DataFile] = {}
        for sequence in self._sequences:
            if (path := sequence.intrinsics) is not None:
                intrinsics[path] = DataFile(path, "intrinsics", partial(_read_intrinsics, path))
            for number in sequence.suffixes:
                colour, depth, pose = (sequence.path(number, kind) for kind in ("color", "depth", "pose"))
                checks: list[tuple[Path, str, Callable[[], object]]] = [
                    (colour, "image", partial(read_image, colour)),
                    (depth, "depth", partial(_check_depth, depth, colour)),
                    (pose, "pose", partial(read_pose, pose)),
                ]
                found += [DataFile(*entry) for entry in checks]
        return [*intrinsics.values(), *found]


def read_depth(path: Path, image: Path, size_hw: tuple[int, int] | None) -> Array:
    """Reads a depth image: 16 bits, millimetres, 0 and 65535 unknown.

    Args:
        path: the file.
        image: the colour image it belongs to, for errors.
        size_hw: its size; None leaves that unchecked.

    Returns:
        (H, W) metres; NaN where unknown.

    Raises:
        DataError: missing, damaged, not a 16-bit PNG, or not as large as the colour image.
    """
    content = read_binary(path, "depth", MAX_FILE_BYTES)
    try:
        with PIL.Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            mode, width, height = picture.mode, *picture.size
            is_readable = mode.startswith("I") and width * height <= MAX_PIXELS
            values = np.asarray(picture).astype(np.float64) if is_readable else None
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
    """Reads the pose (4, 4) of a frame, camera to world; raises `DataError` where it is none."""
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
        return DEFAULT_INTRINSICS
    K = read_matrix(path, 3, 3, "intrinsics")
    check_intrinsics(K, str(path))
    return K
