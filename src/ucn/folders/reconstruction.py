"""Sparse reconstruction of a folder: features, pairs, matches, verification, keypoint adjustment, mapping."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.data.io import read_orientation
from ucn.errors import ConfigError, DataError, ImageReadError, OutputError
from ucn.features.lightglue import LIGHTGLUE, LightGlueMethod
from ucn.features.method import MethodInfo
from ucn.files.reading import read_binary
from ucn.files.recent import RecentItems
from ucn.files.scratch import lock_output, scratch_folder
from ucn.files.writing import exists_error, write_bytes_atomically
from ucn.folders.extraction import (
    CONTENT_VERSION,
    Executor,
    ExtractionResult,
    LocalExecutor,
    digest_images,
    discard_remains,
    extract_folder,
    list_image_names,
)
from ucn.folders.keypoint_adjustment import Rows, adjust_keypoints
from ucn.folders.pair_matching import build_match_key, match_image_pairs
from ucn.folders.pairing import Pair, PairingSettings, choose_pairs
from ucn.folders.worker import ExtractSettings, read_resized
from ucn.formats.colmap import (
    CameraSettings,
    DatabaseImage,
    MappingSettings,
    SparseModel,
    build_cameras,
    check_models,
    map_incrementally,
    quiet,
    verify_matches,
    write_database,
)
from ucn.formats.colmap_legacy import write_legacy_database
from ucn.formats.hloc import (
    FeatureFile,
    check_pair_names,
    open_features,
    read_pair_matches,
    read_pair_matches_meta,
)
from ucn.formats.hloc_pairs import has_space, write_pair_list
from ucn.geometry.coords import resize_points, resize_scale
from ucn.types import FloatArray

STRICT_ERROR = 1.5
"""Maximal reprojection error for adjusted keypoints, in pixels of the encoded size; COLMAP's default is 4.
Adjusted keypoints are accurate to about 0.2 px, so larger errors are outliers."""

_CACHED_IMAGES = 64
_RESULTS = ("pairs.txt", "matches.h5", "database.db", "sparse")
_MARK = "progress.json"
_MARK_CONTENT = json.dumps({"format": "ucn-reconstruct-1", "results": _RESULTS}).encode()
_ERROR_OPTIONS = (
    "mapper.filter_max_reproj_error",
    "triangulation.complete_max_reproj_error",
    "triangulation.merge_max_reproj_error",
)
Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the items done and all items."""


@dataclass(frozen=True)
class ReconstructSettings:
    """Settings of a reconstruction.

    Attributes:
        extract: how features are extracted.
        pairing: which images are matched.
        cameras: what is known of the cameras.
        mapping: of COLMAP's incremental mapping.
        use_adjustment: adjust keypoints photometrically.
        min_similarity: cosine similarity below which matches are dropped.
        consensus: guide the matching by neighbourhood consensus, where the features have coarse maps.
        colmap: the COLMAP that ``database.db`` is written for: 4, or 3, whose databases 4 opens, too.
    """

    extract: ExtractSettings = field(default_factory=ExtractSettings)
    pairing: PairingSettings = field(default_factory=PairingSettings)
    cameras: CameraSettings = field(default_factory=CameraSettings)
    mapping: MappingSettings = field(default_factory=MappingSettings)
    use_adjustment: bool = True
    min_similarity: float = -1.0
    consensus: bool = True
    colmap: int = 4

    def __post_init__(self) -> None:
        """Checks the version of COLMAP."""
        if self.colmap not in (3, 4):
            raise ConfigError(f"colmap must be 3 or 4, got {self.colmap}")


@dataclass(frozen=True)
class ReconstructionResult:
    """A sparse model and the counts of each stage.

    Attributes:
        model: the largest one.
        extracted: the features.
        pairs: number of matched pairs.
        matches: number of matches of all pairs.
        verified: number of matches that are inliers of their pair's two-view geometry.
        used: number of matches given to the mapper, after adjustment.
        moved: median shift of adjusted keypoints in pixels; None without adjustment.
    """

    model: SparseModel
    extracted: ExtractionResult
    pairs: int
    matches: int
    verified: int
    used: int
    moved: float | None


def reconstruct_folder(
    folder: Path,
    output: Path,
    method: MethodInfo,
    settings: ReconstructSettings | None = None,
    *,
    executor: Executor | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ReconstructionResult:
    """Reconstructs a sparse model from the images of a folder.

    The folder ``output`` gets ``features.h5``, ``pairs.txt`` and ``matches.h5`` (hloc's layout),
    ``database.db`` and ``sparse/`` (COLMAP's). Features and matches of an earlier run with the same settings
    are reused. ``progress.json`` says that these are ours, so that a later run may replace them.

    Args:
        folder: of images.
        output: folder of the results, which must exist.
        method: how features are extracted.
        settings: the defaults when None.
        executor: where features are extracted; in this process when None.
        overwrite: replace existing results.
        progress: called during each stage.

    Raises:
        ConfigError: pycolmap is not installed.
        DataError: fewer than two images can be read, or no model can be reconstructed.
        OutputError: the folder cannot be written to, or holds results that no reconstruction wrote, or
            another run is writing them.
    """
    with lock_output(output, is_folder=True):
        _claim(output, overwrite)
        return _reconstruct(
            folder, output, method, settings or ReconstructSettings(), executor, overwrite, progress
        )


def _claim(output: Path, overwrite: bool) -> None:
    """Notes that the results in a folder will be ours; refuses those of others."""
    check_models(output / "sparse")
    mark = output / _MARK
    if os.path.lexists(mark):
        if mark.is_symlink() or read_binary(mark, "the record of results", 4096) != _MARK_CONTENT:
            raise OutputError(f"{mark} was not written by ucn and was kept; give another folder")
        return
    for name in _RESULTS:
        if os.path.lexists(output / name) and not overwrite:
            raise exists_error(output / name)
    write_bytes_atomically(mark, _MARK_CONTENT)


def _reconstruct(
    folder: Path,
    output: Path,
    method: MethodInfo,
    settings: ReconstructSettings,
    executor: Executor | None,
    overwrite: bool,
    progress: Progress | None,
) -> ReconstructionResult:
    report = progress or (lambda _what, _done, _all: None)
    extracted = _extract(folder, output, method, settings, executor, overwrite, report)
    with open_features(extracted.path) as file, quiet():
        if len(file) < 2:
            raise DataError(f"{folder}: expected at least two readable images, got {len(file)}; add images")
        pairs = choose_pairs(file, settings.pairing)
        check_pair_names(file.names)
        if not any(map(has_space, file.names)):  # a list with such names could not be read
            write_pair_list(output / "pairs.txt", pairs, overwrite=True)
        device = executor.device if isinstance(executor, LocalExecutor) else None
        load = partial(method.load, device) if method.name in LIGHTGLUE else None
        found = _match(file, pairs, output / "matches.h5", settings, load, report)
        images = [_to_image(file, name) for name in file.names]
        return _build_model(folder, output, settings, images, pairs, (extracted, found), report)


def _extract(
    folder: Path,
    output: Path,
    method: MethodInfo,
    settings: ReconstructSettings,
    executor: Executor | None,
    overwrite: bool,
    report: Progress,
) -> ExtractionResult:
    """Extracts features of the folder, or reuses those of an earlier run."""
    path = output / "features.h5"
    names = list_image_names(folder)
    expected = {
        "key": dict(method.key),
        "images": digest_images(folder, names),
        "settings": settings.extract.to_key(),
        "version": CONTENT_VERSION,
    }
    if path.is_file():
        fault = "was extracted from other images or with other settings"
        try:
            with open_features(path) as file:
                found = ExtractionResult(path, len(file), len(file), file.meta.get("failures", {}))
                is_reusable = _is_reusable(file.meta, expected, folder, names)
        except DataError:
            fault, is_reusable = "is damaged or no file of features", False
        if is_reusable:
            discard_remains(folder, path, method, settings.extract)
            return found
        if not overwrite:
            raise DataError(f"{path} {fault}; pass overwrite=True or choose a new folder")
    return extract_folder(
        folder,
        path,
        method,
        settings.extract,
        executor=executor,
        overwrite=overwrite,
        progress=lambda done, total: report("extracting", done, total),
    )


def _is_reusable(
    meta: Mapping[str, Any], expected: Mapping[str, Any], folder: Path, names: Sequence[str]
) -> bool:
    """Whether features of an earlier run are those that this one would extract."""
    found = {name: meta.get(name) for name in expected}
    if found == {**expected, "version": 2}:  # the same, where EXIF turns no image
        return not any(_is_turned(folder / name) for name in names)
    return found == expected


def _is_turned(path: Path) -> bool:
    try:
        return read_orientation(path) != 1
    except ImageReadError:  # it has no features
        return False


def _match(
    file: FeatureFile,
    pairs: Sequence[Pair],
    path: Path,
    settings: ReconstructSettings,
    load_matcher: Callable[[], LightGlueMethod] | None,
    report: Progress,
) -> int:
    """Matches the pairs, or reuses the matches of an earlier run; returns their number."""
    key = build_match_key(file.meta, pairs, settings.min_similarity, settings.consensus)
    with suppress(DataError):  # missing or damaged
        if read_pair_matches_meta(path) == key:
            return sum(len(found.rows) for found in read_pair_matches(path, pairs))
    return match_image_pairs(
        file.path,
        pairs,
        path,
        min_similarity=settings.min_similarity,
        consensus=settings.consensus,
        matcher=None if load_matcher is None else load_matcher(),
        overwrite=True,
        progress=lambda done, total: report("matching", done, total),
    )


def _to_image(file: FeatureFile, name: str) -> DatabaseImage:
    features = file.read(name)
    return DatabaseImage(name, features.keypoints, features.image_hw, features.orientation)


def _build_model(
    folder: Path,
    output: Path,
    settings: ReconstructSettings,
    images: list[DatabaseImage],
    pairs: Sequence[Pair],
    before: tuple[ExtractionResult, int],
    report: Progress,
) -> ReconstructionResult:
    indices = {image.name: index for index, image in enumerate(images)}
    matches = {
        (indices[name0], indices[name1]): found.rows
        for (name0, name1), found in zip(pairs, read_pair_matches(output / "matches.h5", pairs), strict=True)
    }
    cameras = build_cameras(images, folder, settings.cameras)
    geometries = verify_matches(
        images, cameras, matches, settings.mapping, lambda done, total: report("verifying", done, total)
    )
    verified = {pair: np.asarray(item.inlier_matches, np.int64) for pair, item in geometries.items()}
    moved, mapping = None, settings.mapping
    if settings.use_adjustment:
        reader = _GreyImages(folder, images, settings.extract.max_side)
        images, matches, moved = _adjust(reader, images, verified, report)
        mapping = use_strict_limits(mapping, reader.largest_scale)
        geometries = verify_matches(images, cameras, matches, settings.mapping)
    registered = count(3)  # the callback comes first after the initial two
    with _write_databases(output, settings.colmap, images, cameras, geometries, matches) as database:
        model = map_incrementally(
            database,
            folder,
            output / "sparse",
            mapping,
            settings.cameras.intrinsics is not None,
            lambda: report("mapping", next(registered), len(images)),
        )
    extracted, total = before
    counts = [sum(len(rows) for rows in each.values()) for each in (verified, matches)]
    return ReconstructionResult(model, extracted, len(pairs), total, counts[0], counts[1], moved)


@contextmanager
def _write_databases(output: Path, colmap: int, *content: Any) -> Iterator[Path]:
    """Writes ``database.db``, and yields it or, where it is of COLMAP 3, a temporary one to be mapped."""
    path = output / "database.db"
    if colmap == 4:
        write_database(path, *content)
        yield path
        return
    write_legacy_database(path, *content)
    with scratch_folder(output / "colmap4.db") as work:
        write_database(work / path.name, *content)
        yield work / path.name


def _adjust(
    reader: _GreyImages,
    images: Sequence[DatabaseImage],
    verified: Mapping[tuple[int, int], Rows],
    report: Progress,
) -> tuple[list[DatabaseImage], dict[tuple[int, int], Rows], float]:
    """Images with adjusted keypoints, their matches without outliers, and the median shift in pixels."""
    adjusted = adjust_keypoints(
        [reader.to_encoded(index) for index in range(len(images))],
        verified,
        reader.read,
        lambda done, total: report("adjusting", done, total),
    )
    moved = [
        replace(image, keypoints=reader.to_file(index, adjusted.keypoints[index]))
        for index, image in enumerate(images)
    ]
    return moved, adjusted.matches, adjusted.moved


def use_strict_limits(mapping: MappingSettings, scale: float = 1.0) -> MappingSettings:
    """Lowers COLMAP's error limits to `STRICT_ERROR` for adjusted keypoints; options that are set stay.

    Args:
        mapping: the settings.
        scale: pixels of the files per pixel of the encoded size.
    """
    return replace(
        mapping, options={**dict.fromkeys(_ERROR_OPTIONS, STRICT_ERROR * scale), **mapping.options}
    )


class _GreyImages:
    """Grey images at the size at which they were encoded, with the most recent ones in memory."""

    def __init__(self, folder: Path, images: Sequence[DatabaseImage], max_side: int | None) -> None:
        self._folder, self._images, self._max_side = folder, images, max_side
        self._recent: RecentItems[int, Tensor] = RecentItems(_CACHED_IMAGES)
        self._sizes: dict[int, tuple[int, int]] = {}

    def read(self, index: int) -> Tensor:
        """An image (H, W) in [0, 1]."""
        return self._recent.get_or_make(index, lambda: self._read_file(index))

    def _read_file(self, index: int) -> Tensor:
        resized = read_resized(self._folder / self._images[index].name, self._max_side)
        self._sizes[index] = resized.hw
        return resized.pixels.mean(dim=0)

    @property
    def largest_scale(self) -> float:
        """The largest ratio of a file's size to its encoded size."""
        return max(self._images[index].image_hw[1] / hw[1] for index, hw in self._sizes.items())

    def to_encoded(self, index: int) -> FloatArray:
        """Keypoints of an image in pixels of its encoded size."""
        image = self._images[index]
        return _resize(image.keypoints, image.image_hw, self._find_size(index))

    def to_file(self, index: int, points: FloatArray) -> FloatArray:
        """Points of the encoded size in pixels of the file."""
        return _resize(points, self._find_size(index), self._images[index].image_hw)

    def _find_size(self, index: int) -> tuple[int, int]:
        if index not in self._sizes:
            self.read(index)
        return self._sizes[index]


def _resize(points: FloatArray, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> FloatArray:
    return resize_points(torch.from_numpy(points), resize_scale(from_hw, to_hw)).numpy()
