"""KITTI odometry: driving sequences with camera poses; depth comes from the stereo rig.

Pixels and matrices are used as published: KITTI counts pixels from 0, and its projections of scanned points
and its flow agree with pixel centres at integers, as here.

Where the GPS/IMU unit had an outage the published poses were interpolated: many equal steps, and up to 12
pixels from what the images show (sequence 05, frames 1500 to 1512, by ``benchmarks/data_truth.py``: the
median of the worst pair). Such frames are found and left out.
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

from ucn.data.catalogue import DataInfo
from ucn.data.checking import to_fault
from ucn.data.headers import read_header_hw
from ucn.data.io import read_image
from ucn.data.pairs import DataFile, Fault, check_choice
from ucn.data.sets.layout import find_root, parse_numbers, read_lines
from ucn.data.sets.posed.stereo_depth import match_stereo
from ucn.data.sets.posed.views import (
    Array,
    FramePairs,
    PosedData,
    RecentCache,
    check_gaps,
    check_intrinsics,
    image_hw,
    invert,
    make_sample,
    read_keyed_file,
    rigid,
    to_batch,
)
from ucn.errors import DataError
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import is_hidden, is_smooth, nearest_depths, sample_depth, warp_points_by_depth
from ucn.types import PairSample

INFO = DataInfo(
    name="kitti-odometry",
    title="KITTI visual odometry (2012)",
    task="geometric",
    truth="depth by semi-global stereo matching and published camera poses",
    layout=(
        "sequences/NN/image_0/NNNNNN.png and image_1 (grey, left and right), or image_2 and image_3 (colour)",
        "sequences/NN/calib.txt: lines P0: … P3:, 3 × 4",
        "poses/NN.txt: 12 numbers a frame, left grey camera to world",
    ),
    splits=("train", "test", "all"),
    licence="CC BY-NC-SA 3.0: non-commercial use only",
    source="https://www.cvlibs.net/datasets/kitti/eval_odometry.php",
    markers=("sequences/*/image_[0-3]",),
    inside=("dataset",),
)

_CAMERAS = {"grey": (0, 1), "colour": (2, 3)}  # left, right
_LAST_PUBLIC = 10  # sequences 11 to 21 are the benchmark's own; their poses are not public
_TEST = (9, 10)  # the habit of papers: 00 to 08 to train on
_EDGE = 0.1  # relative step of depth that is an edge; a road far ahead changes by 3 % a row
_DISPARITY_TOLERANCE = 1.5  # pixels that a disparity carried into view 1 may differ from the one found there
_EQUAL_STEP = np.deg2rad(
    0.003
)  # two measured rotations of a moving car never agree so well three times running
_MIN_STEPS = 3
_MIN_STEP = np.deg2rad(0.01)  # an exact nothing is a rendered road, or a standing car
_FRAME = re.compile(r"([0-9]{6})\.(?:png|jpe?g)")


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
        folder: that holds ``sequences`` and ``poses``.
        split: train (sequences 00 to 08), test (09 and 10) or all of them.
        min_gap: the second frame of a pair comes at least this many frames after the first.
        max_gap: the second frame of a pair comes at most this many frames after the first.
        frames: only frames with these numbers, such as ``600-639``; empty means all.
        camera: which images are used: grey, colour, or auto: colour where a sequence has it.
        keep_interpolated: keep frames whose poses move in equal steps, which are otherwise left out as not
            measured; for rendered sequences.
        all_frames: also take pairs whose first frame has no right image: their motion is known, but no
            correspondence.
    """
    check_choice(split, INFO.splits, "split")
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
        raise DataError(
            f"option frames of {INFO.name} must be two numbers such as 600-639, got {text[:40]!r}"
        )
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


class KittiOdometry(PosedData):
    """Frames of the same sequence; the first has a right image too, unless all frames are asked for."""

    def __init__(self, root: Path, split: str, choice: _Choice) -> None:
        super().__init__(root)
        self._choice = choice
        self._sequences: list[_Sequence] = []
        self._pairs = FramePairs()
        self._cameras: RecentCache[Path, _Camera] = RecentCache(32)
        self._poses: RecentCache[Path, Array] = RecentCache(32)
        self._depths: RecentCache[tuple[Path, Path], Tensor] = RecentCache(8)
        for folder in sorted((root / "sequences").iterdir()):
            if (
                re.fullmatch(r"[0-9][0-9]", folder.name)
                and folder.is_dir()
                and _is_in_split(int(folder.name), split)
            ):
                self._index(folder)
        if not len(self._pairs) and not self.faults:
            raise DataError(
                f"split '{split}' is empty: no sequence of it in {root / 'sequences'} has a frame with left "
                f"and right image and another {choice.gaps[0]} to {choice.gaps[1]} frames later"
                + "".join(f"; {note}" for note in self.notes)
            )

    def _index(self, folder: Path) -> None:
        """Adds a sequence, or notes why not."""
        camera = self._choice.camera
        poses, calibration = self.root / "poses" / f"{folder.name}.txt", folder / "calib.txt"
        if int(folder.name) > _LAST_PUBLIC and not poses.is_file():
            self.notes.append(f"sequence {folder.name} left out: its poses are not public")
            return
        if camera == "auto":
            camera = "colour" if (folder / "image_2").is_dir() else "grey"
        names = [f"image_{number}" for number in _CAMERAS[camera]]
        for path in (calibration, poses, *(folder / name for name in names)):
            if not (path.is_file() if path.suffix else path.is_dir()):
                message = f"missing, so sequence {folder.name} is left out; unpack it beside the rest"
                self.faults.append(Fault(path, message, is_left_out=True))
                return
        left, right = (_list_frames(folder / name, self._choice.frames) for name in names)
        try:
            left = self._keep_posed(left, poses)
        except DataError as error:
            self.faults.append(to_fault(error, poses))
            return
        right = {number: path for number, path in right.items() if number in left}
        self._sequences.append(_Sequence(folder.name, calibration, poses, _CAMERAS[camera], left, right))
        self._pairs.add(left if self._choice.all_frames else right, left, *self._choice.gaps)

    def _keep_posed(self, left: dict[int, Path], path: Path) -> dict[int, Path]:
        """The frames that have a measured pose; raises `DataError` where the poses cannot be read."""
        poses = self._read_poses(path)
        count, last = len(poses), max(left, default=-1)
        if last >= count:
            message = (
                f"it has {count} poses, though there are frames up to {last:06d}, which needs {last + 1}; "
                "frames without a pose are left out; get the whole file"
            )
            self.faults.append(Fault(path, message, is_left_out=True))
        left_out = set() if self._choice.keep_interpolated else find_interpolated(poses) & left.keys()
        if left_out:
            self.notes.append(
                f"sequence {path.stem}: {len(left_out)} frames from {min(left_out)} to {max(left_out)} left "
                "out, since their poses were not measured but interpolated"
            )
        return {number: file for number, file in left.items() if number < count and number not in left_out}

    def __len__(self) -> int:
        return len(self._pairs)

    def _locate(self, index: int) -> tuple[_Sequence, int, int]:
        place, first, second = self._pairs.locate(index)
        return self._sequences[place], first, second

    def pair_name(self, index: int) -> str:
        """Sequence and frame numbers."""
        sequence, first, second = self._locate(index)
        return f"{sequence.name}/{first:06d}-{second:06d}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two left images."""
        sequence, first, second = self._locate(index)
        return sequence.left[first], sequence.left[second]

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """Left images, right images where there are, calibration and poses."""
        sequence, first, second = self._locate(index)
        right = [sequence.right[number] for number in (first, second) if number in sequence.right]
        return *self.image_paths(index), *right, sequence.calibration, sequence.poses

    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The motion of the left camera."""
        T = self._motion(*self._locate(index))
        return T[:3, :3], T[:3, 3]

    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """Of the left camera, twice."""
        K = self._camera(self._locate(index)[0]).K
        return K, K.copy()

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each pixel of known depth that the second frame shows."""
        sequence, first, second = self._locate(index)
        image0, image1 = (read_image(path) for path in self.image_paths(index))
        if first not in sequence.right:
            nothing = torch.zeros(0, 2)
            return make_sample(image0, image1, nothing, nothing, self.pair_name(index))
        K, T_0to1 = to_batch(self._camera(sequence).K), to_batch(self._motion(sequence, first, second))
        map0 = self._depth(sequence, first)
        chosen = is_smooth(map0, _EDGE)[0]
        points0, depth0 = pixel_grid(image_hw(map0)).double()[chosen][None], map0[0][chosen][None]
        points1, depth1 = warp_points_by_depth(points0, depth0, K, K, T_0to1)
        hw = image_hw(image1)
        nearest = nearest_depths(points1, depth1, hw)
        is_kept = ~is_hidden(points1, depth1, hw, nearest, tolerance=_EDGE)
        if second in sequence.right:
            measured = sample_depth(self._depth(sequence, second), points1, _EDGE)
            gap = self._camera(sequence).focal_baseline * (1 / measured - 1 / depth1).abs()
            is_kept = torch.where(measured.isfinite(), gap <= _DISPARITY_TOLERANCE, is_kept)
        return make_sample(image0, image1, points0[is_kept], points1[is_kept], self.pair_name(index))

    def files(self) -> Sequence[DataFile]:
        """Images, calibrations and poses."""
        found: list[DataFile] = []
        for sequence in self._sequences:
            check = partial(_read_camera, sequence.calibration, sequence.cameras)
            found.append(DataFile(sequence.calibration, "calibration", check))
            found.append(DataFile(sequence.poses, "poses", partial(read_poses, sequence.poses)))
            found += [DataFile(path, "image", partial(read_image, path)) for path in sequence.left.values()]
            for number, path in sequence.right.items():
                found.append(DataFile(path, "image", partial(_check_right, sequence.left[number], path)))
        return found

    def _camera(self, sequence: _Sequence) -> _Camera:
        path = sequence.calibration
        return self._cameras.get(path, partial(_read_camera, path, sequence.cameras))

    def _read_poses(self, path: Path) -> Array:
        return self._poses.get(path, partial(read_poses, path))

    def _motion(self, sequence: _Sequence, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the left camera in use."""
        poses = self._read_poses(sequence.poses)
        aside = rigid(np.eye(3), self._camera(sequence).offset)
        T: Array = aside @ invert(poses[second]) @ poses[first] @ invert(aside)
        return T

    def _depth(self, sequence: _Sequence, number: int) -> Tensor:
        """The depth map (1, H, W) of the left image of a frame that has a right one."""
        paths = sequence.left[number], sequence.right[number]
        return self._depths.get(paths, partial(_read_depth, *paths, self._camera(sequence).focal_baseline))


@dataclass(frozen=True)
class _Camera:
    """The left camera: matrix, place beside the left grey one, and depth × disparity of the rig."""

    K: Array
    offset: Array
    focal_baseline: float


def _read_camera(path: Path, cameras: tuple[int, int]) -> _Camera:
    calibration = read_keyed_file(path, "calibration")
    left, right = (calibration.matrix(f"P{number}", 3, 4) for number in cameras)
    K = left[:, :3]
    check_intrinsics(K, f"{path}, line 'P{cameras[0]}:'")
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
    """Frames whose poses (N, 4, 4) lie on a run of equal turns."""
    steps = poses[:-1, :3, :3].transpose(0, 2, 1) @ poses[1:, :3, :3]
    # For rotations so alike, the chord is the angle times sqrt(2).
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
    if left_hw is not None:  # else that is the left image's fault
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


def _list_frames(folder: Path, frames: range) -> dict[int, Path]:
    found = (_FRAME.fullmatch(name) for name in sorted(path.name for path in folder.iterdir()))
    return {int(match[1]): folder / match[0] for match in found if match and int(match[1]) in frames}
