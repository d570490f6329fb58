"""KITTI odometry: driving sequences with camera poses; depth comes from the stereo rig.

Pixels and matrices are used as published: KITTI counts pixels from 0, and its projections of scanned points
and its flow agree with pixel centres at integers, as here.

Where the GPS/IMU unit had an outage, the published poses were interpolated: long runs of equal steps, up to
12 pixels away from what the images show (sequence 05, frames 1500 to 1512, the median of the worst pair, by
``benchmarks/ground_truth_errors.py``). Such frames are detected and excluded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ucn.data.checking import to_problem
from ucn.data.descriptions import KITTI_ODOMETRY as INFO
from ucn.data.io import image_hw, read_header_hw, read_image
from ucn.data.pairs import DataFile, check_choice
from ucn.data.sets.kitti.stereo_depth import match_stereo
from ucn.data.sets.layout import find_root, list_numbered
from ucn.data.sets.posed.posed_pairs import (
    Array,
    SequenceData,
    check_gaps,
    invert,
    make_sample,
    read_keyed_file,
    require_intrinsics,
    rigid,
    to_batch,
)
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines
from ucn.files.recent import RecentItems
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import is_hidden, is_smooth, nearest_depths, sample_depth, warp_points_by_depth
from ucn.types import PairSample

_CAMERAS = {"grey": (0, 1), "colour": (2, 3)}  # left, right
_LAST_PUBLIC = 10  # sequences 11 to 21 are the benchmark's own; their poses are not public
_TEST = (9, 10)  # as papers do, which train on 00 to 08
_EDGE = 0.1  # relative depth step of an edge; a distant road changes by 3 % per row
_DISPARITY_TOLERANCE = 1.5  # largest difference, pixels, of a warped disparity and the one found in view 1
# Two measured rotations of a moving car never agree so well three times in a row.
_EQUAL_STEP = np.deg2rad(0.003)
_MIN_STEPS = 3
_MIN_STEP = np.deg2rad(0.01)  # smaller: a rendered sequence, or a car at rest
_FRAME = r"([0-9]{6})\.(?:png|jpe?g)"


def open_folder(
    folder: Path,
    split: str,
    *,
    min_gap: int = 1,
    max_gap: int = 5,
    frames: str = "",
    camera: str = "auto",
    keep_interpolated: bool = False,
    all_frames: bool = False,
) -> KittiOdometry:
    """Opens KITTI odometry.

    Args:
        folder: holds ``sequences`` and ``poses``.
        split: train (sequences 00 to 08), test (09 and 10) or all of them.
        min_gap: the second frame of a pair comes at least this many frames after the first.
        max_gap: the second frame of a pair comes at most this many frames after the first.
        frames: only frames with these numbers, such as ``600-639``; empty means all.
        camera: the images to use: grey, colour, or auto: colour where a sequence has it.
        keep_interpolated: keep frames whose poses move in equal steps, which are otherwise excluded as
            interpolated; for rendered sequences.
        all_frames: also use pairs whose first frame has no right image: their relative pose is known, but no
            correspondences.
    """
    check_gaps(min_gap, max_gap, INFO.name)
    check_choice(camera, ("auto", *_CAMERAS), f"option camera of {INFO.name}")
    root = find_root(folder, INFO.markers, INFO.inside)
    chosen = _Choice((min_gap, max_gap), _read_range(frames), camera, keep_interpolated, all_frames)
    return KittiOdometry(root, split, chosen)


def _read_range(text: str) -> range:
    if not text:
        return range(10**6)
    match = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise DataError(f"option frames of {INFO.name} must be a range such as 600-639, got {text[:40]!r}")
    return range(int(match[1]), int(match[2]) + 1)


@dataclass(frozen=True)
class _Choice:
    gaps: tuple[int, int]
    frames: range
    camera: str
    keep_interpolated: bool
    all_frames: bool


@dataclass(frozen=True)
class _Sequence:
    name: str
    calibration: Path
    poses: Path
    cameras: tuple[int, int]
    left: dict[int, Path]
    right: dict[int, Path]


class KittiOdometry(SequenceData[_Sequence]):
    """Frames of one sequence; the first has a right image, too, unless `all_frames` is set."""

    def __init__(self, root: Path, split: str, choice: _Choice) -> None:
        super().__init__(root)
        self._choice = choice
        self._cameras: RecentItems[Path, _Camera] = RecentItems(32)
        self._poses: RecentItems[Path, Array] = RecentItems(32)
        self._depths: RecentItems[tuple[Path, Path], Tensor] = RecentItems(8)
        for folder in sorted((root / "sequences").iterdir()):
            if (
                re.fullmatch(r"[0-9][0-9]", folder.name)
                and folder.is_dir()
                and _is_in_split(int(folder.name), split)
            ):
                self._index(folder)
        self.require_pairs(
            split,
            f"no sequence of it in {root / 'sequences'} has a frame with left and right image and another "
            f"{choice.gaps[0]} to {choice.gaps[1]} frames later" + "".join(f"; {n}" for n in self.notes),
        )

    def _index(self, folder: Path) -> None:
        """Adds a sequence, or records why it is excluded."""
        camera = self._choice.camera
        poses, calibration = self.root / "poses" / f"{folder.name}.txt", folder / "calib.txt"
        if int(folder.name) > _LAST_PUBLIC and not poses.is_file():
            self.notes.append(f"sequence {folder.name} excluded: its poses are not public")
            return
        if camera == "auto":
            camera = "colour" if (folder / "image_2").is_dir() else "grey"
        names = [f"image_{number}" for number in _CAMERAS[camera]]
        for path in (calibration, poses, *(folder / name for name in names)):
            if not (path.is_file() if path.suffix else path.is_dir()):
                message = f"missing, so that sequence {folder.name} is excluded; unpack it beside the others"
                self.add_problem(path, message)
                return
        left, right = (self._list_frames(folder / name) for name in names)
        try:
            left = self._keep_posed(left, poses)
        except DataError as error:
            self.problems.append(to_problem(error, poses))
            return
        right = {number: path for number, path in right.items() if number in left}
        sequence = _Sequence(folder.name, calibration, poses, _CAMERAS[camera], left, right)
        self.add_sequence(sequence, left if self._choice.all_frames else right, left, *self._choice.gaps)

    def _list_frames(self, folder: Path) -> dict[int, Path]:
        frames = self._choice.frames
        return {number: path for number, path in list_numbered(folder, _FRAME).items() if number in frames}

    def _keep_posed(self, left: dict[int, Path], path: Path) -> dict[int, Path]:
        """The frames that have a measured pose; raises `DataError` where the poses cannot be read."""
        poses = self._read_poses(path)
        count, last = len(poses), max(left, default=-1)
        if last >= count:
            message = (
                f"it has {count} poses, though there are frames up to {last:06d}, which needs {last + 1}; "
                "frames without a pose are excluded; get the whole file"
            )
            self.add_problem(path, message)
        interpolated = set() if self._choice.keep_interpolated else find_interpolated(poses) & left.keys()
        if interpolated:
            self.notes.append(
                f"sequence {path.stem}: {len(interpolated)} frames from {min(interpolated)} to "
                f"{max(interpolated)} excluded, since their poses were interpolated, not measured"
            )
        return {
            number: file for number, file in left.items() if number < count and number not in interpolated
        }

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two left images."""
        sequence, first, second = self.locate(index)
        return sequence.left[first], sequence.left[second]

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """Left images, right images where present, calibration and poses."""
        sequence, first, second = self.locate(index)
        right = [sequence.right[number] for number in (first, second) if number in sequence.right]
        return *self.image_paths(index), *right, sequence.calibration, sequence.poses

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each pixel of known depth that frame 1 shows, too."""
        sequence, first, second = self.locate(index)
        image0, image1 = (read_image(path) for path in self.image_paths(index))
        if first not in sequence.right:
            nothing = torch.zeros(0, 2)
            return make_sample(image0, image1, nothing, nothing, self.pair_name(index))
        K, T_0to1 = to_batch(self._camera(sequence).K), to_batch(self.motion(sequence, first, second))
        map0 = self._depth(sequence, first)
        chosen = is_smooth(map0, _EDGE)[0]
        points0, depth0 = pixel_grid(image_hw(map0)).double()[chosen][None], map0[0][chosen][None]
        points1, depth1 = warp_points_by_depth(points0, depth0, K, K, T_0to1)
        hw = image_hw(image1)
        nearest = nearest_depths(points1, depth1, hw)
        is_kept = ~is_hidden(points1, depth1, nearest, tolerance=_EDGE)
        if second in sequence.right:
            measured = sample_depth(self._depth(sequence, second), points1, _EDGE)
            gap = self._camera(sequence).focal_baseline * (1 / measured - 1 / depth1).abs()
            is_kept = torch.where(measured.isfinite(), gap <= _DISPARITY_TOLERANCE, is_kept)
        return make_sample(image0, image1, points0[is_kept], points1[is_kept], self.pair_name(index))

    def files(self) -> Sequence[DataFile]:
        """Images, calibrations and poses."""
        found: list[DataFile] = []
        for sequence in self.sequences:
            check = partial(_read_camera, sequence.calibration, sequence.cameras)
            found.append(DataFile(sequence.calibration, "calibration", check))
            found.append(DataFile(sequence.poses, "poses", partial(read_poses, sequence.poses)))
            found += [DataFile.image(path) for path in sequence.left.values()]
            for number, path in sequence.right.items():
                found.append(DataFile(path, "image", partial(_check_right, sequence.left[number], path)))
        return found

    def _camera(self, sequence: _Sequence) -> _Camera:
        path = sequence.calibration
        return self._cameras.get_or_make(path, partial(_read_camera, path, sequence.cameras))

    def _read_poses(self, path: Path) -> Array:
        return self._poses.get_or_make(path, partial(read_poses, path))

    def motion(self, sequence: _Sequence, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the left camera."""
        poses = self._read_poses(sequence.poses)
        offset = rigid(np.eye(3), self._camera(sequence).offset)
        T: Array = offset @ invert(poses[second]) @ poses[first] @ invert(offset)
        return T

    def camera_matrix(self, sequence: _Sequence) -> Array:
        """K (3, 3) of the left camera."""
        return self._camera(sequence).K

    def _depth(self, sequence: _Sequence, number: int) -> Tensor:
        """The depth map (1, H, W) of the left image of a frame with a right image."""
        paths = sequence.left[number], sequence.right[number]
        return self._depths.get_or_make(
            paths, partial(_read_depth, *paths, self._camera(sequence).focal_baseline)
        )


@dataclass(frozen=True)
class _Camera:
    """The left camera: matrix, offset from the left grey camera, and depth × disparity of the rig."""

    K: Array
    offset: Array
    focal_baseline: float


def _read_camera(path: Path, cameras: tuple[int, int]) -> _Camera:
    calibration = read_keyed_file(path, "calibration")
    left, right = (calibration.matrix(f"P{number}", 3, 4) for number in cameras)
    K = left[:, :3]
    require_intrinsics(K, f"{path}, line 'P{cameras[0]}:'")
    focal_baseline = float(left[0, 3] - right[0, 3])
    if not focal_baseline > 0:
        raise DataError(
            f"{path}: expected P{cameras[1]} to the right of P{cameras[0]} (a smaller fourth number), got "
            f"{right[0, 3]:g} and {left[0, 3]:g}; get the file again"
        )
    offset: Array = np.linalg.inv(K) @ left[:, 3]
    return _Camera(K, offset, focal_baseline)


def read_poses(path: Path) -> Array:
    """Reads the poses (N, 4, 4) of a sequence, camera to world; raises `DataError` with file and line."""
    rows, lines = [], []
    for number, line in read_lines(path, "poses"):
        rows.append(parse_numbers(line, 12, f"{path}:{number}"))
        lines.append(number)
    poses = np.tile(np.eye(4), (len(rows), 1, 1))
    poses[:, :3] = np.array(rows).reshape(-1, 3, 4)
    rotations = poses[:, :3, :3]
    errors = np.abs(rotations.transpose(0, 2, 1) @ rotations - np.eye(3)).max(axis=(1, 2), initial=0.0)
    bad = np.flatnonzero((errors > 1e-2) | (np.linalg.det(rotations) < 0))
    if len(bad):
        raise DataError(f"{path}:{lines[bad[0]]}: expected a rotation and a translation; get the file again")
    return poses


def find_interpolated(poses: Array) -> set[int]:
    """Frames whose poses (N, 4, 4) lie on a run of equal rotations."""
    steps = poses[:-1, :3, :3].transpose(0, 2, 1) @ poses[1:, :3, :3]
    # For small differences of rotation, the chord is the angle times sqrt(2).
    is_equal = np.linalg.norm(steps[1:] - steps[:-1], axis=(1, 2)) / np.sqrt(2) < _EQUAL_STEP
    is_equal &= np.linalg.norm(steps[:-1] - np.eye(3), axis=(1, 2)) / np.sqrt(2) > _MIN_STEP
    found: set[int] = set()
    run = 0
    for frame, equal in enumerate([*is_equal.tolist(), False], start=1):  # steps before and after `frame`
        if equal:
            run += 1
        else:
            found.update(range(frame - run, frame) if run >= _MIN_STEPS else ())
            run = 0
    return found


def _read_depth(left: Path, right: Path, focal_baseline: float) -> Tensor:
    image_left, image_right = read_image(left), read_image(right)
    _compare_sizes(right, image_hw(image_right), left, image_hw(image_left))
    return to_batch(focal_baseline / match_stereo(image_left, image_right))


def _check_right(left: Path, right: Path) -> None:
    image = read_image(right)
    left_hw = read_header_hw(left)
    if left_hw is not None:  # otherwise the check of the left image reports it
        _compare_sizes(right, image_hw(image), left, left_hw)


def _compare_sizes(right: Path, right_hw: tuple[int, int], left: Path, left_hw: tuple[int, int]) -> None:
    if right_hw != left_hw:
        raise DataError(
            f"{right}: expected the size of {left.name} of the left camera, {left_hw} (height, width), got "
            f"{right_hw}; unpack both again",
            path=right,
        )


def _is_in_split(number: int, split: str) -> bool:
    return split == "all" or (number <= _LAST_PUBLIC and (number in _TEST) == (split == "test"))
