"""What data sets with known cameras share: rigid motions, matrices in text files, frame pairs by their gap.

Matrices are NumPy float64, for driving sequences lie kilometres from their origin. ``T_0to1`` (4, 4) takes
coordinates of camera 0 to those of camera 1.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.pairs import PairData, check_index
from ucn.data.sets.layout import parse_numbers, read_lines
from ucn.errors import DataError
from ucn.geometry.coords import is_inside
from ucn.types import PairSample

Array = NDArray[np.float64]
"""Float64 in any shape."""

Key = TypeVar("Key")
Value = TypeVar("Value")

_REMEDY = "get the file again"


class PosedData(PairData):
    """Pairs whose camera motion is known as well as their correspondences."""

    @abstractmethod
    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The motion R (3, 3), t (3,) from camera 0 to camera 1 of a pair, X1 = R X0 + t, t in metres.

        Raises:
            IndexError: there is no such pair.
            UcnError: a file is wrong; the message names it.
        """

    @abstractmethod
    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """The matrices K (3, 3) of the two cameras of a pair, for the pixels of its images.

        Raises:
            IndexError: there is no such pair.
            UcnError: a file is wrong; the message names it.
        """


def rigid(rotation: Array, translation: Array | Sequence[float]) -> Array:
    """The motion (4, 4) of a rotation (3, 3) and a translation (3,)."""
    T = np.eye(4)
    T[:3, :3] = rotation
    T[:3, 3] = translation
    return T


def invert(T: Array) -> Array:
    """The way back of a rigid motion (4, 4)."""
    return rigid(T[:3, :3].T, -T[:3, :3].T @ T[:3, 3])


def move(T: Array, points: Array) -> Array:
    """Points (N, 3) through a motion (4, 4)."""
    return points @ T[:3, :3].T + T[:3, 3]


def check_rotation(rotation: Array, where: str) -> None:
    """Raises `DataError` where (3, 3) is no rotation: its columns are not orthonormal, or it mirrors."""
    # Published poses have six digits or so, and chains of them drift.
    if not np.allclose(rotation.T @ rotation, np.eye(3), atol=1e-2) or np.linalg.det(rotation) < 0:
        raise DataError(
            f"{where}: expected a rotation matrix, got {np.round(rotation, 3).tolist()}; {_REMEDY}"
        )


def check_intrinsics(K: Array, where: str) -> None:
    """Raises `DataError` where (3, 3) cannot be a camera's matrix."""
    if not (K[0, 0] > 0 and K[1, 1] > 0 and np.array_equal(K[2], [0, 0, 1]) and K[1, 0] == 0):
        raise DataError(
            f"{where}: expected fx s cx, 0 fy cy, 0 0 1 with positive fx and fy, got {K.tolist()}; {_REMEDY}"
        )


@dataclass(frozen=True)
class KeyedFile:
    """A text file of lines ``key: numbers``, as KITTI's calibration has them.

    Attributes:
        path: the file.
        texts: what stands behind each key, with its line.
    """

    path: Path
    texts: Mapping[str, tuple[int, str]]

    def matrix(self, key: str, rows: int, columns: int) -> Array:
        """The matrix behind a key, row by row; raises `DataError` where it is missing or wrong."""
        if key not in self.texts:
            wanted = f"a line '{key}:' with {rows * columns} numbers"
            raise DataError(f"{self.path}: expected {wanted}, got none; {_REMEDY}")
        line, text = self.texts[key]
        numbers = parse_numbers(text, rows * columns, f"{self.path}:{line}")
        return np.array(numbers).reshape(rows, columns)

    def motion(self, rotation_key: str = "R", translation_key: str = "T") -> Array:
        """The rigid motion (4, 4) that two keys hold."""
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
    """Reads a text file that holds one matrix, a row a line.

    Raises:
        DataError: missing, not text, not that many rows, or a row is wrong; names file and line.
    """
    lines = list(read_lines(path, what))
    if len(lines) != rows:
        raise DataError(f"{path}: expected {rows} lines of {columns} numbers, got {len(lines)}; {_REMEDY}")
    return np.array([parse_numbers(line, columns, f"{path}:{number}") for number, line in lines])


@dataclass(frozen=True)
class _Sequence:
    """Frames that may come first and second, where each first's seconds begin, and pairs up to each first."""

    firsts: NDArray[np.int64]
    seconds: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


class FramePairs:
    """Pairs of frames of sequences by how many frames they are apart.

    Pair i is computed, not stored: a drive of 4,000 frames has 120,000 pairs up to 30 frames apart. Pairs are
    ordered by sequence, then by their first frame, then by their second.
    """

    def __init__(self) -> None:
        self._sequences: list[_Sequence] = []
        self._ends: list[int] = []

    def add(self, firsts: Iterable[int], seconds: Iterable[int], min_gap: int, max_gap: int) -> int:
        """Adds a sequence.

        Args:
            firsts: numbers of the frames that may be view 0.
            seconds: numbers of the frames that may be view 1.
            min_gap: the second comes at least this many frame numbers after the first.
            max_gap: and at most this many.

        Returns:
            how many pairs it has.
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
        """Which sequence, first frame and second frame a pair is; raises `IndexError`."""
        check_index(index, len(self))
        place = int(np.searchsorted(self._ends, index, side="right"))
        sequence = self._sequences[place]
        rank = index - (self._ends[place] - len(sequence))
        row = int(np.searchsorted(sequence.ends, rank, side="right"))
        before = int(sequence.ends[row - 1]) if row else 0
        second = sequence.seconds[sequence.starts[row] + rank - before]
        return place, int(sequence.firsts[row]), int(second)


def check_gaps(min_gap: int, max_gap: int, name: str) -> None:
    """Raises `DataError` where the options min_gap and max_gap of a reader leave no pairs."""
    if not 1 <= min_gap <= max_gap:
        raise DataError(f"{name} needs 1 <= min_gap <= max_gap, got min_gap {min_gap} and max_gap {max_gap}")


class RecentCache(Generic[Key, Value]):
    """The results of the last few calls; for threads too, and empty after pickling."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not at hand."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def __getstate__(self) -> dict[str, int]:
        return {"size": self._size}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._size = state["size"]
        self._values = OrderedDict()
        self._lock = threading.Lock()


def to_batch(array: Array) -> Tensor:
    """An array as a float64 tensor with a batch axis of 1, for `geometry.warp`."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))[None]


def image_hw(image: Tensor) -> tuple[int, int]:
    """(H, W) of an image (3, H, W)."""
    return image.shape[-2], image.shape[-1]


def make_sample(image0: Tensor, image1: Tensor, points0: Tensor, points1: Tensor, name: str) -> PairSample:
    """The sample of points (N, 2), those that are finite and on both images, as float32."""
    points0, points1 = points0.to(torch.float32), points1.to(torch.float32)
    rows = is_inside(points0, image_hw(image0)) & is_inside(points1, image_hw(image1))
    return PairSample(image0, image1, points0[rows], points1[rows], name)
