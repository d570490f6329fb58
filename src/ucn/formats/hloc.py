"""Features and matches in the files of hloc (Hierarchical-Localization).

Features, .h5: one group per image, named by the image's path below its folder (``left/001.jpg``), with

- ``keypoints`` (N, 2) float32: x and y in pixels as stored, which hloc and COLMAP read: where EXIF turns an
  image upright, they are turned back here, and an attribute ``orientation`` (2 to 8) says so. The centre of
  the top-left pixel is at (0, 0), as everywhere in ucn and in hloc's own files; hloc adds half a pixel when
  it fills a COLMAP database, and so does `ucn.formats.colmap`;
- ``descriptors`` (D, N) float16, of unit length;
- ``scores`` (N,) float16, larger is better;
- ``image_size`` (2,) int64: width and height as stored;
- ``global_descriptor`` (D,) float32 of unit length, of the whole image, as hloc's retrieval reads it;
- ``coarse`` (D, h, w) float16, where the method has a feature map: descriptors of coarse cells for
  neighbourhood consensus, with attributes ``offset`` (centre of the first cell) and ``stride`` (distance of
  cells), both as x and y in pixels of the upright full-size image; hloc ignores it;
- ``levels`` (N,) uint8, where images were encoded at several scales: the index of the scale at which each
  keypoint was detected, rising; and ``coarse_1``, ``coarse_2``, …, as ``coarse``, of the smaller scales. hloc
  ignores both, and reads the keypoints of all scales.

Matches, .h5: one group per pair, named ``a.jpg/b.jpg`` with every / of a name replaced by -, with
``matches0`` (N0,) int32, the row in image 1 or -1, and ``matching_scores0`` (N0,) float16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from ucn.data.listing import natural_key
from ucn.errors import DataError
from ucn.files import (
    checked_h5,
    find_h5_array,
    list_h5_groups,
    open_h5,
    quote,
    shorten,
    write_bytes_atomically,
)
from ucn.types import FloatArray

MAX_KEYPOINTS = 1_000_000
"""Files with more keypoints in an image are refused unread."""
MAX_DIMENSIONS = 8192
"""Files with descriptors of more dimensions are refused unread."""
MAX_COARSE_VALUES = 2**28
"""Files with larger coarse maps are refused unread."""
MAX_LEVELS = 4
"""Files with keypoints of more scales are refused."""

_META = "ucn"
_REMEDY = "write it again with `ucn extract`"
_PAIRS_REMEDY = "write it again with `ucn pairs --matches`"
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class CoarseMap:
    """Descriptors of the coarse cells of an image, for neighbourhood consensus.

    Attributes:
        descriptors: (D, h, w) float32, of unit length or 0.
        first: (x, y) centre of the first cell, in pixels of the full-size image.
        step: (x, y) distance of neighbouring cells, in the same pixels.
    """

    descriptors: FloatArray
    first: tuple[float, float]
    step: tuple[float, float]


@dataclass(frozen=True)
class ImageFeatures:
    """Keypoints and descriptors of an image.

    Attributes:
        keypoints: (N, 2) float32 pixels of the full-size image, upright.
        descriptors: (N, D) float32, of unit length.
        scores: (N,) float32, larger is better.
        image_hw: (H, W), upright.
        global_descriptor: (D,) float32 of the whole image; None where the file has none.
        coarse: None where the file has none.
        levels: (N,) uint8 index of the scale of each keypoint, rising from 0; None where there is one scale.
        reduced: as `coarse`, of the further scales; empty where `coarse` is None.
        orientation: 1 to 8, with which EXIF turns the stored image upright.
    """

    keypoints: FloatArray
    descriptors: FloatArray
    scores: FloatArray
    image_hw: tuple[int, int]
    global_descriptor: FloatArray | None = None
    coarse: CoarseMap | None = None
    levels: NDArray[np.uint8] | None = None
    reduced: tuple[CoarseMap, ...] = ()
    orientation: int = 1

    def __len__(self) -> int:
        return len(self.keypoints)

    @property
    def coarse_maps(self) -> tuple[CoarseMap, ...]:
        """The coarse maps of all scales; empty where there are none."""
        return () if self.coarse is None else (self.coarse, *self.reduced)

    def list_rows(self, level: int) -> IntArray:
        """The keypoints of a scale."""
        if self.levels is None:
            return np.arange(len(self) if level == 0 else 0)
        return np.flatnonzero(self.levels == level)


@dataclass(frozen=True)
class PackedArray:
    """An array with attributes, as it is written."""

    values: NDArray[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)


PackedFeatures = dict[str, PackedArray]
"""Arrays of an image by name, in the order and types in which they are written."""


def pack_features(features: ImageFeatures) -> PackedFeatures:
    """Converts features to what is written, so that threads can share this work."""
    from ucn.geometry.coords import invert_orientation, orient_size  # imports torch

    (height, width), turn = orient_size(features.image_hw, features.orientation), features.orientation
    keypoints = turn_keypoints(features.keypoints, features.image_hw, invert_orientation(turn))
    # hloc scales its thresholds by the uncertainty, in pixels.
    attributes = {"uncertainty": 1.0} | ({"orientation": turn} if turn != 1 else {})
    packed: PackedFeatures = {
        "keypoints": PackedArray(keypoints.astype(np.float32), attributes),
        "descriptors": PackedArray(features.descriptors.T.astype(np.float16)),
        "scores": PackedArray(features.scores.astype(np.float16)),
        "image_size": PackedArray(np.array([width, height], np.int64)),
    }
    if features.global_descriptor is not None:
        packed["global_descriptor"] = PackedArray(features.global_descriptor.astype(np.float32))
    for level, coarse in enumerate(features.coarse_maps):
        place = {"offset": coarse.first, "stride": coarse.step}
        packed[_coarse_name(level)] = PackedArray(coarse.descriptors.astype(np.float16), place)
    if features.levels is not None:
        packed["levels"] = PackedArray(features.levels.astype(np.uint8))
    return packed


def turn_keypoints(keypoints: FloatArray, image_hw: tuple[int, int], orientation: int) -> FloatArray:
    """Keypoints (N, 2) of an image of this size, after EXIF has turned it."""
    if orientation == 1:
        return keypoints
    import torch

    from ucn.geometry.coords import apply_orientation

    return apply_orientation(torch.from_numpy(keypoints), image_hw, orientation).numpy()


def _coarse_name(level: int) -> str:
    return f"coarse_{level}" if level else "coarse"


@dataclass(frozen=True)
class PairMatches:
    """Which keypoints of two images match.

    Attributes:
        rows: (M, 2) int64: row in image 0, row in image 1.
        scores: (M,) float32 in [0, 1].
    """

    rows: IntArray
    scores: FloatArray


def pair_group_name(name0: str, name1: str) -> str:
    """The name of a pair's group in a file of matches."""
    return f"{name0.replace('/', '-')}/{name1.replace('/', '-')}"


def check_pair_names(names: Iterable[str]) -> None:
    """Raises `DataError` where two images have one name in hloc's files of matches."""
    short: dict[str, str] = {}
    for name in names:
        other = short.setdefault(name.replace("/", "-"), name)
        if other != name:
            raise DataError(
                f"images {other} and {name} have the same name in hloc's files of matches; rename one of them"
            )


class FeatureWriter:
    """Writes images into an open .h5 file, one after another."""

    def __init__(self, file: h5py.File, meta: Mapping[str, Any] | None = None) -> None:
        """Begins a file.

        Args:
            file: open for writing.
            meta: plain values, stored with it as JSON.
        """
        self._file = file
        file.attrs[_META] = json.dumps(dict(meta or {}), sort_keys=True)

    def add(self, name: str, features: ImageFeatures | PackedFeatures) -> None:
        """Writes an image."""
        group = self._file.create_group(name)
        packed = pack_features(features) if isinstance(features, ImageFeatures) else features
        for key, item in packed.items():
            group.create_dataset(key, data=item.values).attrs.update(item.attributes)

    def copy(self, other: FeatureFile) -> None:
        """Copies all images of another file."""
        for name in other.names:
            with checked_h5(other.path, f"features of {quote(name)}", _REMEDY):
                other.file.copy(other.file[name], self._file, name)


class FeatureFile:
    """Features of images in a file, read on demand; `names` are in natural order."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self.file, self.path = file, path
        with checked_h5(path, "features", _REMEDY):
            found = file.attrs.get(_META, "{}")
            names = sorted(_list_groups(file, path), key=natural_key)
        try:
            self.meta: dict[str, Any] = json.loads(found)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: its attribute '{_META}' is not JSON; {_REMEDY}") from error
        self.names: tuple[str, ...] = tuple(names)
        self._known = frozenset(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str) -> ImageFeatures:
        """Reads the features of an image; raises `DataError` where they are missing or damaged."""
        if name not in self._known:
            raise DataError(
                f"{self.path} has no image {name!r:.80} (it has {len(self.names):,}); extract it first"
            )
        with checked_h5(self.path, f"features of {quote(name)}", _REMEDY):
            return self._read(name)

    def _read(self, name: str) -> ImageFeatures:
        from ucn.geometry.coords import orient_size  # imports torch

        where = f"{self.path}, image {shorten(name)}"
        group = self.file[name]
        keypoints = _read_array(group, "keypoints", 2, where)
        descriptors = _read_array(group, "descriptors", 2, where)
        size = _read_array(group, "image_size", 1, where)
        scores = _read_array(group, "scores", 1, where) if "scores" in group else np.ones(len(keypoints))
        whole = _read_array(group, "global_descriptor", 1, where) if "global_descriptor" in group else None
        count = len(keypoints)
        shapes = (keypoints.shape[1:], descriptors.shape[1:], scores.shape, size.shape)
        if shapes != ((2,), (count,), (count,), (2,)):
            raise DataError(
                f"{where}: expected keypoints (N, 2), descriptors (D, N), scores (N,) and image_size (2,), "
                f"got {keypoints.shape}, {descriptors.shape}, {scores.shape} and {size.shape}; {_REMEDY}"
            )
        orientation = _read_orientation(group, where)
        stored_hw = (int(size[1]), int(size[0]))
        return ImageFeatures(
            turn_keypoints(keypoints.astype(np.float32), stored_hw, orientation),
            np.ascontiguousarray(descriptors.T, np.float32),
            scores.astype(np.float32),
            orient_size(stored_hw, orientation),
            None if whole is None else whole.astype(np.float32),
            _read_coarse(group, "coarse", descriptors.shape[0], where) if "coarse" in group else None,
            *_read_levels(group, (count, descriptors.shape[0]), where),
            orientation=orientation,
        )

    def read_global(self, name: str) -> FloatArray:
        """Reads the global descriptor of an image; raises `DataError` where there is none."""
        where = f"{self.path}, image {shorten(name)}"
        with checked_h5(self.path, "features", _REMEDY):
            group = self.file[name]
            if "global_descriptor" not in group:
                raise DataError(f"{where}: no global_descriptor; {_REMEDY}")
            values = _read_array(group, "global_descriptor", 1, where)
        return values.astype(np.float32)


def write_features(
    path: Path,
    features: Mapping[str, ImageFeatures | PackedFeatures],
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes features of images; equal features give equal bytes.

    Raises:
        OutputError: the file cannot be written, or exists already.
    """
    write_bytes_atomically(path, lambda file: fill_features(file, features, meta), overwrite)


def fill_features(
    target: BinaryIO,
    features: Mapping[str, ImageFeatures | PackedFeatures],
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Writes what `write_features` does into an open file."""
    with h5py.File(target, "w") as file:
        writer = FeatureWriter(file, meta)
        for name, item in features.items():
            writer.add(name, item)


def merge_features(
    path: Path, parts: Sequence[Path], meta: Mapping[str, Any] | None = None, overwrite: bool = False
) -> int:
    """Merges several files of features into one; returns the number of images.

    Raises:
        DataError: a part is damaged.
        OutputError: the file cannot be written, or exists already.
    """
    count = 0

    def fill(target: Any) -> None:
        nonlocal count
        with h5py.File(target, "w") as file:
            writer = FeatureWriter(file, meta)
            for part in parts:
                with open_features(part) as other:
                    writer.copy(other)
                    count += len(other)

    write_bytes_atomically(path, fill, overwrite)
    return count


@contextmanager
def open_features(path: Path) -> Iterator[FeatureFile]:
    """Opens a file of features, written by ucn or hloc, for reading.

    Raises:
        DataError: it is missing, damaged or something else.
    """
    with open_h5(path, "features", _REMEDY) as file:
        with checked_h5(path, "features", _REMEDY):
            features = FeatureFile(file, path)
        yield features


def write_pair_matches(
    path: Path,
    matches: Iterable[tuple[tuple[str, str], int, PairMatches]],
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> int:
    """Writes matches as they are computed; returns the number of pairs.

    Args:
        path: of the file.
        matches: names of both images, the number of keypoints of image 0, and the matches.
        meta: plain values, stored with them as JSON.
        overwrite: replace an existing file.

    Raises:
        OutputError: the file cannot be written, or exists already.
    """
    count = 0

    def fill(target: Any) -> None:
        nonlocal count
        with h5py.File(target, "w") as file:
            file.attrs[_META] = json.dumps(dict(meta or {}), sort_keys=True)
            for (name0, name1), size0, pair in matches:
                matches0 = np.full(size0, -1, np.int32)
                scores0 = np.zeros(size0, np.float16)
                matches0[pair.rows[:, 0]] = pair.rows[:, 1]
                scores0[pair.rows[:, 0]] = pair.scores
                group = file.create_group(pair_group_name(name0, name1))
                group.create_dataset("matches0", data=matches0)
                group.create_dataset("matching_scores0", data=scores0)
                count += 1

    write_bytes_atomically(path, fill, overwrite)
    return count


def read_pair_matches(path: Path, pairs: Sequence[tuple[str, str]]) -> Iterator[PairMatches]:
    """Yields the matches of pairs; the file may have a pair in the other order.

    Raises:
        DataError: the file is missing, damaged or something else, or lacks a pair.
    """
    with open_h5(path, "matches", _PAIRS_REMEDY) as file:
        for names in pairs:
            with checked_h5(path, "matches", _PAIRS_REMEDY):
                found = _read_pair(file, path, *names)
            yield found


def _read_pair(file: h5py.File, path: Path, name0: str, name1: str) -> PairMatches:
    is_swapped = pair_group_name(name0, name1) not in file
    key = pair_group_name(name1, name0) if is_swapped else pair_group_name(name0, name1)
    if key not in file:
        raise DataError(f"{path} has no matches of {name0} and {name1}; {_PAIRS_REMEDY}")
    where = f"{path}, pair {shorten(key)}"
    matches0 = _read_array(file[key], "matches0", 1, where).astype(np.int64)
    scores0 = _read_array(file[key], "matching_scores0", 1, where).astype(np.float32)
    if matches0.shape != scores0.shape:
        raise DataError(f"{where}: {len(matches0)} matches have {len(scores0)} scores; {_PAIRS_REMEDY}")
    kept = np.flatnonzero(matches0 >= 0)
    rows = np.stack([kept, matches0[kept]], axis=1)
    return PairMatches(rows[:, ::-1].copy() if is_swapped else rows, scores0[kept])


def read_pair_matches_meta(path: Path) -> dict[str, Any]:
    """The metadata of a file of matches; empty where ucn did not write it.

    Raises:
        DataError: the file is missing, damaged or something else.
    """
    with open_h5(path, "matches", _PAIRS_REMEDY) as file, checked_h5(path, "matches", _PAIRS_REMEDY):
        try:
            meta = json.loads(file.attrs.get(_META, "{}"))
        except (TypeError, ValueError, RecursionError):
            return {}
        return meta if isinstance(meta, dict) else {}


def _list_groups(file: h5py.File, path: Path) -> Iterator[str]:
    """Yields the names of groups that hold keypoints; links are refused."""
    for name, group in list_h5_groups(file, _is_image):
        if _is_image(group):
            if len(name) > 4096:
                raise DataError(f"{path}: the name of an image has over 4096 characters; {_REMEDY}")
            if name:
                yield name
            continue
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise DataError(f"{path}: {shorten(f'{name}/{key}')} is a link; {_REMEDY}")


def _is_image(group: h5py.Group) -> bool:
    return "keypoints" in group


def _read_levels(
    group: h5py.Group, shape: tuple[int, int], where: str
) -> tuple[NDArray[np.uint8] | None, tuple[CoarseMap, ...]]:
    """Scales of keypoints (N, D), and the coarse maps of all but the first; None and () with one scale."""
    if "levels" not in group:
        return None, ()
    levels = _read_array(group, "levels", 1, where)
    names = list(takewhile(group.__contains__, map(_coarse_name, range(MAX_LEVELS))))[1:]
    limit = len(names) if "coarse" in group else MAX_LEVELS - 1
    is_rising = levels.shape == shape[:1] and levels.dtype.kind != "f" and (levels[1:] >= levels[:-1]).all()
    if not is_rising or not (levels.min(initial=0) >= 0 and levels.max(initial=0) <= limit):
        raise DataError(
            f"{where}: expected 'levels' ({shape[0]},) to be integers that rise from 0 to at most {limit}, "
            f"one per coarse map, got {levels.dtype} {levels.shape}; {_REMEDY}"
        )
    return levels.astype(np.uint8), tuple(_read_coarse(group, name, shape[1], where) for name in names)


def _read_orientation(group: h5py.Group, where: str) -> int:
    found = group["keypoints"].attrs.get("orientation", 1)
    if np.ndim(found) or found not in range(1, 9):
        raise DataError(f"{where}: expected the attribute orientation of 'keypoints' in 1..8; {_REMEDY}")
    return int(found)


def _read_coarse(group: h5py.Group, key: str, dimensions: int, where: str) -> CoarseMap:
    values = _read_array(group, key, 3, where)
    try:
        first, step = (np.asarray(group[key].attrs[name], np.float64) for name in ("offset", "stride"))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(f"{where}: '{key}' needs the attributes offset and stride; {_REMEDY}") from error
    is_valid = first.shape == step.shape == (2,) and np.isfinite(first).all() and np.isfinite(step).all()
    if not is_valid or step.min() <= 0 or values.shape[0] != dimensions or not values.size:
        raise DataError(
            f"{where}: expected '{key}' ({dimensions}, h, w) with an offset and a positive stride along x "
            f"and y, got {values.shape} with {first} and {step}; {_REMEDY}"
        )
    return CoarseMap(
        values.astype(np.float32), (float(first[0]), float(first[1])), (float(step[0]), float(step[1]))
    )


def _read_array(group: h5py.Group, key: str, axes: int, where: str) -> NDArray[Any]:
    """Reads an array of finite numbers, after its size was checked."""
    try:
        data = find_h5_array(group, key)
    except (KeyError, ValueError) as error:
        reason = error.args[0] if error.args else error
        raise DataError(f"{where}: expected an array '{key}': {reason}; {_REMEDY}") from error
    if data.ndim != axes or data.dtype.kind not in "fiu":
        raise DataError(f"{where}: expected an array '{key}' of numbers with {axes} dimensions; {_REMEDY}")
    limits = sorted(data.shape, reverse=True)
    if axes == 3 and data.size > MAX_COARSE_VALUES:
        raise DataError(
            f"{where}: '{key}' has the shape {data.shape}, the limit is {MAX_COARSE_VALUES:,} values; "
            f"{_REMEDY}"
        )
    if limits[0] > MAX_KEYPOINTS or (axes == 2 and limits[1] > MAX_DIMENSIONS):
        raise DataError(
            f"{where}: '{key}' has the shape {data.shape}, the limits are {MAX_KEYPOINTS:,} keypoints and "
            f"{MAX_DIMENSIONS:,} dimensions; {_REMEDY}"
        )
    try:
        values = np.asarray(data)
    except Exception as error:  # h5py raises OSError, RuntimeError, MemoryError and more on damaged data
        raise DataError(f"{where}: '{key}' is damaged ({shorten(error)}); {_REMEDY}") from error
    if not np.isfinite(values).all():
        raise DataError(f"{where}: '{key}' has values that are not finite; {_REMEDY}")
    return values
