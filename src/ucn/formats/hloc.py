"""Features and matches in the files of hloc (Hierarchical-Localization).

Features, .h5: a group an image, called as the image's path below its folder (``left/001.jpg``), with

- ``keypoints`` (N, 2) float32: x and y in pixels, the centre of the top-left pixel at (0, 0), as everywhere
  in ucn and in hloc's own files; hloc adds half a pixel when it fills a COLMAP database, and so does
  `export.colmap`;
- ``descriptors`` (D, N) float16, of unit length;
- ``scores`` (N,) float16, larger is better;
- ``image_size`` (2,) int64: width and height;
- ``global_descriptor`` (D,) float32 of unit length: the image as a whole, as hloc's retrieval reads it.

Matches, .h5: a group a pair, called ``a.jpg/b.jpg`` with every / of a name made -, with ``matches0`` (N0,)
int32, the row in image 1 or -1, and ``matching_scores0`` (N0,) float16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ucn.data.io import write_bytes_atomically
from ucn.errors import DataError
from ucn.types import FloatArray

MAX_KEYPOINTS = 1_000_000
"""Files that claim more keypoints of an image are refused unread."""
MAX_DIMENSIONS = 8192
"""Files that claim more numbers a descriptor are refused unread."""

_META = "ucn"
_REMEDY = "make it again with `ucn extract`"
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ImageFeatures:
    """What is known of an image.

    Attributes:
        keypoints: (N, 2) float32 pixels of the image as its file has it, upright.
        descriptors: (N, D) float32, of unit length.
        scores: (N,) float32, larger is better.
        image_hw: (H, W).
        global_descriptor: (D,) float32 of the whole image; None where the file has none.
    """

    keypoints: FloatArray
    descriptors: FloatArray
    scores: FloatArray
    image_hw: tuple[int, int]
    global_descriptor: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.keypoints)


Packed = dict[str, NDArray[Any]]
"""What a file has of an image: arrays by name, in the order in which they are written."""


def pack_features(features: ImageFeatures) -> Packed:
    """An image as a file has it, so that threads can do what takes time and one of them writes."""
    height, width = features.image_hw
    packed: Packed = {
        "keypoints": features.keypoints.astype(np.float32),
        "descriptors": features.descriptors.T.astype(np.float16),
        "scores": features.scores.astype(np.float16),
        "image_size": np.array([width, height], np.int64),
    }
    if features.global_descriptor is not None:
        packed["global_descriptor"] = features.global_descriptor.astype(np.float32)
    return packed


@dataclass(frozen=True)
class PairMatches:
    """Which keypoints of two images match.

    Attributes:
        rows: (M, 2) int64: row in image 0, row in image 1.
        scores: (M,) float32 in [0, 1].
    """

    rows: IntArray
    scores: FloatArray


def names_to_pair(name0: str, name1: str) -> str:
    """What hloc calls a pair inside a file of matches."""
    return f"{name0.replace('/', '-')}/{name1.replace('/', '-')}"


def check_pair_names(names: Iterable[str]) -> None:
    """Raises `DataError` where hloc's files of matches could not tell two images apart."""
    short: dict[str, str] = {}
    for name in names:
        other = short.setdefault(name.replace("/", "-"), name)
        if other != name:
            raise DataError(
                f"images {other} and {name} have one name in hloc's files of matches; rename one of them"
            )


class FeatureWriter:
    """Writes images into an open .h5 file, one after another."""

    def __init__(self, file: h5py.File, meta: Mapping[str, Any] | None = None) -> None:
        """Begins a file.

        Args:
            file: open for writing.
            meta: plain values that are kept with it as JSON.
        """
        self._file = file
        file.attrs[_META] = json.dumps(dict(meta or {}), sort_keys=True)

    def add(self, name: str, features: ImageFeatures | Packed) -> None:
        """Writes an image."""
        group = self._file.create_group(name)
        packed = pack_features(features) if isinstance(features, ImageFeatures) else features
        for key, values in packed.items():
            data = group.create_dataset(key, data=values)
            if key == "keypoints":
                data.attrs["uncertainty"] = 1.0  # pixels; hloc scales its thresholds by it

    def copy(self, other: FeatureFile) -> None:
        """Takes over all images of another file, as they are."""
        for name in other.names:
            other.file.copy(other.file[name], self._file, name)


class FeatureFile:
    """Features of images in a file; nothing is read before it is asked for."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self.file, self.path = file, path
        found = file.attrs.get(_META, "{}")
        try:
            self.meta: dict[str, Any] = json.loads(found)
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: its note '{_META}' is not JSON; {_REMEDY}") from error
        self.names: tuple[str, ...] = tuple(sorted(_list_groups(file, path)))
        self._known = frozenset(self.names)  # found at once among however many

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str) -> ImageFeatures:
        """Features of an image; raises `DataError` where there are none, or they are damaged."""
        if name not in self._known:
            raise DataError(
                f"{self.path} has no image {name!r:.80} (it has {len(self.names):,}); extract it first"
            )
        where = f"{self.path}, image {name}"
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
        return ImageFeatures(
            keypoints.astype(np.float32),
            np.ascontiguousarray(descriptors.T, np.float32),
            scores.astype(np.float32),
            (int(size[1]), int(size[0])),
            None if whole is None else whole.astype(np.float32),
        )

    def read_global(self, name: str) -> FloatArray:
        """The descriptor of an image as a whole; raises `DataError` where there is none."""
        group = self.file[name]
        if "global_descriptor" not in group:
            raise DataError(f"{self.path}, image {name}: no global_descriptor; {_REMEDY}")
        values = _read_array(group, "global_descriptor", 1, f"{self.path}, image {name}")
        return values.astype(np.float32)


def write_features(
    path: Path,
    features: Mapping[str, ImageFeatures | Packed],
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes features of images; equal ones give equal bytes.

    Raises:
        OutputError: the file cannot be written, or exists already.
    """

    def fill(target: Any) -> None:
        with h5py.File(target, "w") as file:
            writer = FeatureWriter(file, meta)
            for name, item in features.items():
                writer.add(name, item)

    write_bytes_atomically(path, fill, overwrite)


def merge_features(
    path: Path, parts: Sequence[Path], meta: Mapping[str, Any] | None = None, overwrite: bool = False
) -> int:
    """Writes all images of several files into one; returns how many.

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
    """Opens a file of features, of ucn's or hloc's making, for reading.

    Raises:
        DataError: it is missing, damaged or something else.
    """
    with _open(path, "features", _REMEDY) as file:
        yield FeatureFile(file, path)


def write_matches(
    path: Path,
    matches: Iterable[tuple[tuple[str, str], int, PairMatches]],
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> int:
    """Writes matches as they come; returns the number of pairs.

    Args:
        path: of the file.
        matches: names of both images, how many keypoints image 0 has, and the matches.
        meta: plain values that are kept with them as JSON.
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
                group = file.create_group(names_to_pair(name0, name1))
                group.create_dataset("matches0", data=matches0)
                group.create_dataset("matching_scores0", data=scores0)
                count += 1

    write_bytes_atomically(path, fill, overwrite)
    return count


def read_matches(path: Path, pairs: Sequence[tuple[str, str]]) -> Iterator[PairMatches]:
    """Matches of pairs, one after another; a file that has a pair the other way round will do.

    Raises:
        DataError: the file is missing, damaged or something else, or lacks a pair.
    """
    remedy = "make it again with `ucn pairs --matches`"
    with _open(path, "matches", remedy) as file:
        for name0, name1 in pairs:
            is_turned = names_to_pair(name0, name1) not in file
            key = names_to_pair(name1, name0) if is_turned else names_to_pair(name0, name1)
            if key not in file:
                raise DataError(f"{path} has no matches of {name0} and {name1}; {remedy}")
            where = f"{path}, pair {key}"
            matches0 = _read_array(file[key], "matches0", 1, where).astype(np.int64)
            scores0 = _read_array(file[key], "matching_scores0", 1, where).astype(np.float32)
            if matches0.shape != scores0.shape:
                raise DataError(f"{where}: {len(matches0)} matches have {len(scores0)} scores; {remedy}")
            kept = np.flatnonzero(matches0 >= 0)
            rows = np.stack([kept, matches0[kept]], axis=1)
            yield PairMatches(rows[:, ::-1].copy() if is_turned else rows, scores0[kept])


def read_note(path: Path) -> dict[str, Any]:
    """The plain values that are kept with a file of matches; none where ucn did not make it.

    Raises:
        DataError: the file is missing, damaged or something else.
    """
    with _open(path, "matches", "make it again with `ucn pairs --matches`") as file:
        try:
            note: dict[str, Any] = json.loads(file.attrs.get(_META, "{}"))
        except (TypeError, ValueError):
            return {}
        return note


@contextmanager
def _open(path: Path, what: str, remedy: str) -> Iterator[h5py.File]:
    if not path.is_file():
        raise DataError(f"no file of {what} {path}; {remedy}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} is damaged or no .h5 file of {what} ({error}); {remedy}") from error
    with file:
        yield file


def _list_groups(file: h5py.File, path: Path) -> Iterator[str]:
    """Names of the groups that hold keypoints; links to other places are not followed."""
    waiting: list[str] = [""]
    while waiting:
        prefix = waiting.pop()
        group = file[prefix] if prefix else file
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise DataError(f"{path}: {prefix}/{key} is a link to another place; {_REMEDY}")
            if not isinstance(group[key], h5py.Group):
                continue
            name = f"{prefix}/{key}" if prefix else key
            if len(name) > 4096:
                raise DataError(f"{path}: a name of an image has over 4096 letters; {_REMEDY}")
            if "keypoints" in group[key]:
                yield name
            else:
                waiting.append(name)


def _read_array(group: h5py.Group, key: str, axes: int, where: str) -> NDArray[Any]:
    """An array of finite numbers whose size was checked before a byte of it was read."""
    is_array = key in group and isinstance(group.get(key, getlink=True), h5py.HardLink)
    data = group[key] if is_array else None
    if not isinstance(data, h5py.Dataset) or data.ndim != axes or data.dtype.kind not in "fiu":
        raise DataError(f"{where}: expected an array '{key}' of numbers with {axes} axes; {_REMEDY}")
    if data.external or data.is_virtual:
        raise DataError(f"{where}: '{key}' lies in another file; {_REMEDY}")
    limits = sorted(data.shape, reverse=True)
    if limits[0] > MAX_KEYPOINTS or (axes == 2 and limits[1] > MAX_DIMENSIONS):
        raise DataError(
            f"{where}: '{key}' has the shape {data.shape}, the limits are {MAX_KEYPOINTS:,} keypoints and "
            f"{MAX_DIMENSIONS:,} numbers a descriptor; {_REMEDY}"
        )
    try:
        values = np.asarray(data)
    except OSError as error:
        raise DataError(f"{where}: '{key}' is damaged ({error}); {_REMEDY}") from error
    if not np.isfinite(values).all():
        raise DataError(f"{where}: '{key}' has values that are not finite; {_REMEDY}")
    return values
