"""Base classes of data sets with camera poses, and the rigid motions, matrices and frame pairs they share.

Matrices are NumPy float64, since driving sequences lie kilometres from their origin. ``T_0to1`` (4, 4) maps
coordinates of camera 0 to those of camera 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import image_hw
from ucn.data.pairs import PairData, check_index
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines
from ucn.geometry.coords import is_inside
from ucn.geometry.pose import check_intrinsics
from ucn.types import PairSample

Array = NDArray[np.float64]
"""Float64 of any shape."""

_S = TypeVar("_S", bound="NamedSequence")

_REMEDY = "get the file again"


class PosedData(PairData):
    """Pairs with known relative pose and intrinsics, besides their correspondences."""

    @abstractmethod
    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The relative pose R (3, 3), t (3,) from camera 0 to camera 1: X1 = R X0 + t, t in metres.

        Raises:
            IndexError: there is no such pair.
            UcnError: a file is faulty; the message names it.
        """

    @abstractmethod
    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """The camera matrices K0, K1 (3, 3) of a pair, for the pixels of its images.

        Raises:
            IndexError: there is no such pair.
            UcnError: a file is faulty; the message names it.
        """


def rigid(rotation: Array, translation: Array | Sequence[float]) -> Array:
    """The rigid motion (4, 4) of a rotation (3, 3) and a translation (3,)."""
    T = np.eye(4)
    T[:3, :3] = rotation
    T[:3, 3] = translation
    return T


def invert(T: Array) -> Array:
    """The inverse of a rigid motion (4, 4)."""
    return rigid(T[:3, :3].T, -T[:3, :3].T @ T[:3, 3])


def move(T: Array, points: Array) -> Array:
    """Applies a motion (4, 4) to points (N, 3)."""
    return points @ T[:3, :3].T + T[:3, 3]


def check_rotation(rotation: Array, where: str) -> None:
    """Raises `DataError` where (3, 3) is not a rotation: not orthonormal, or a reflection."""
    # Published poses have six digits or so, and chains of them drift.
    if not np.allclose(rotation.T @ rotation, np.eye(3), atol=1e-2) or np.linalg.det(rotation) < 0:
        raise DataError(
            f"{where}: expected a rotation matrix, got {np.round(rotation, 3).tolist()}; {_REMEDY}"
        )


def require_intrinsics(K: Array, where: str) -> None:
    """Raises `DataError` where (3, 3) is not a camera matrix."""
    try:
        check_intrinsics(K)
    except ValueError as error:
        raise DataError(
            f"{where}: expected fx s cx, 0 fy cy, 0 0 1 with positive fx and fy, got {K.tolist()}; {_REMEDY}"
        ) from error


@dataclass(frozen=True)
class KeyedFile:
    """A text file of lines ``key: numbers``, as KITTI's calibration has them.

    Attributes:
        path: the file.
        texts: line number and text of each key.
    """

    path: Path
    texts: Mapping[str, tuple[int, str]]

    def matrix(self, key: str, rows: int, columns: int) -> Array:
        """The matrix of a key, in row-major order; raises `DataError` where it is missing or malformed."""
        if key not in self.texts:
            missing = f"a line '{key}:' with {rows * columns} numbers"
            raise DataError(f"{self.path}: expected {missing}, got none; {_REMEDY}")
        line, text = self.texts[key]
        numbers = parse_numbers(text, rows * columns, f"{self.path}:{line}")
        return np.array(numbers).reshape(rows, columns)

    def motion(self, rotation_key: str = "R", translation_key: str = "T") -> Array:
        """The rigid motion (4, 4) of two keys."""
        rotation = self.matrix(rotation_key, 3, 3)
        check_rotation(rotation, f"{self.path}:{self.texts[rotation_key][0]}")
        return rigid(rotation, self.matrix(translation_key, 3, 1)[:, 0])


def read_keyed_file(path: Path, what: str) -> KeyedFile:
    """Reads lines ``key: numbers``; raises `DataError` where a line has no key."""
    texts: dict[str, tuple[int, str]] = {}
    for number, line in read_lines(path, what):
        key, separator, text = line.partition(":")
        if not separator:
            raise DataError(f"{path}:{number}: expected 'key: numbers', got {line[:60]!r}; {_REMEDY}")
        texts[key.strip()] = (number, text)
    return KeyedFile(path, texts)


def read_matrix(path: Path, rows: int, columns: int, what: str) -> Array:
    """Reads a text file with one matrix, a row per line.

    Raises:
        DataError: the file is missing, not text, or has other rows; names file and line.
    """
    lines = list(read_lines(path, what))
    if len(lines) != rows:
        raise DataError(f"{path}: expected {rows} lines of {columns} numbers, got {len(lines)}; {_REMEDY}")
    return np.array([parse_numbers(line, columns, f"{path}:{number}") for number, line in lines])


@dataclass(frozen=True)
class _Sequence:
    """First and second frames, where each first's seconds start, and the cumulative number of pairs."""

    firsts: NDArray[np.int64]
    seconds: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


class FramePairs:
    """Pairs of frames of sequences within a range of gaps.

    Pairs are computed, not stored: a drive of 4,000 frames has 120,000 pairs up to 30 frames apart. They are
    ordered by sequence, then by first frame, then by second frame.
    """

    def __init__(self) -> None:
        self._sequences: list[_Sequence] = []
        self._ends: list[int] = []

    def add(self, firsts: Iterable[int], seconds: Iterable[int], min_gap: int, max_gap: int) -> int:
        """Adds a sequence.

        Args:
            firsts: numbers of the frames that may be view 0.
            seconds: numbers of the frames that may be view 1.
            min_gap: smallest difference of the frame numbers.
            max_gap: largest difference of the frame numbers.

        Returns:
            The number of its pairs.
        """
        first, second = (np.array(sorted(frames), dtype=np.int64) for frames in (firsts, seconds))
        starts = np.searchsorted(second, first + min_gap, side="left")
        counts = np.searchsorted(second, first + max_gap, side="right") - starts
        sequence = _Sequence(first, second, starts, np.cumsum(np.maximum(counts, 0)))
        self._sequences.append(sequence)
        self._ends.append(len(self) + len(sequence))
        return len(sequence)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[int, int, int]:
        """The sequence, first frame and second frame of a pair; raises `IndexError`."""
        check_index(index, len(self))
        place = int(np.searchsorted(self._ends, index, side="right"))
        sequence = self._sequences[place]
        rank = index - (self._ends[place] - len(sequence))
        row = int(np.searchsorted(sequence.ends, rank, side="right"))
        before = int(sequence.ends[row - 1]) if row else 0
        second = sequence.seconds[sequence.starts[row] + rank - before]
        return place, int(sequence.firsts[row]), int(second)


class NamedSequence(Protocol):
    """A sequence of frames."""

    @property
    def name(self) -> str:
        """Unique in the set; may be empty where there is one sequence."""


class SequenceData(PosedData, Generic[_S]):
    """Pairs of frames of sequences, with one camera matrix per sequence.

    A derived class calls `add_sequence` when it is constructed.

    Attributes:
        sequences: the sequences, in order.
    """

    digits = 6
    """Digits of frame numbers in names."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sequences: list[_S] = []
        self._pairs = FramePairs()

    @abstractmethod
    def motion(self, sequence: _S, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the camera between two frames."""

    @abstractmethod
    def camera_matrix(self, sequence: _S) -> Array:
        """K (3, 3) of the images of a sequence."""

    def add_sequence(
        self, sequence: _S, firsts: Iterable[int], seconds: Iterable[int], min_gap: int, max_gap: int
    ) -> None:
        """Adds a sequence, with its pairs as `FramePairs.add` forms them."""
        self.sequences.append(sequence)
        self._pairs.add(firsts, seconds, min_gap, max_gap)

    def __len__(self) -> int:
        return len(self._pairs)

    def locate(self, index: int) -> tuple[_S, int, int]:
        """The sequence, first frame and second frame of a pair; raises `IndexError`."""
        place, first, second = self._pairs.locate(index)
        return self.sequences[place], first, second

    def pair_name(self, index: int) -> str:
        """Sequence and frame numbers."""
        sequence, first, second = self.locate(index)
        prefix = f"{sequence.name}/" if sequence.name else ""
        return f"{prefix}{first:0{self.digits}d}-{second:0{self.digits}d}"

    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The relative pose of the camera between the two frames."""
        T = self.motion(*self.locate(index))
        return T[:3, :3], T[:3, 3]

    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """The camera matrix of the sequence, twice."""
        K = self.camera_matrix(self.locate(index)[0])
        return K, K.copy()


def check_gaps(min_gap: int, max_gap: int, name: str) -> None:
    """Raises `DataError` where the options min_gap and max_gap of a reader allow no pairs."""
    if not 1 <= min_gap <= max_gap:
        raise DataError(f"{name} needs 1 <= min_gap <= max_gap, got min_gap {min_gap} and max_gap {max_gap}")


def to_batch(array: Array) -> Tensor:
    """Converts an array to a float64 tensor with a batch axis of 1, for `geometry.warp`."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))[None]


def make_sample(image0: Tensor, image1: Tensor, points0: Tensor, points1: Tensor, name: str) -> PairSample:
    """Makes a sample of the points (N, 2) that are finite and inside both images, as float32."""
    points0, points1 = points0.to(torch.float32), points1.to(torch.float32)
    rows = is_inside(points0, image_hw(image0)) & is_inside(points1, image_hw(image1))
    return PairSample(image0, image1, points0[rows], points1[rows], name)
