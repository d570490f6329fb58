"""A folder of images to a sparse model: features, pairs, matches, verification, adjustment, mapping."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.errors import ConfigError, DataError
from ucn.folders.extraction import Engine, Extracted, Method, extract_folder
from ucn.folders.image_features import ExtractSettings
from ucn.folders.images import digest_images, list_images, read_reduced
from ucn.folders.keypoint_adjustment import Rows, adjust_keypoints
from ucn.folders.pair_matching import describe_matches, match_pairs
from ucn.folders.pairing import Pair, pair_all, pair_neighbours, pair_similar, read_globals
from ucn.formats.colmap import (
    CameraSettings,
    DatabaseImage,
    MappingSettings,
    Model,
    build_cameras,
    map_incrementally,
    quiet,
    verify_matches,
    write_database,
)
from ucn.formats.hloc import (
    FeatureFile,
    check_pair_names,
    open_features,
    read_matches,
    read_note,
)
from ucn.formats.pair_lists import has_space, read_pairs, write_pairs
from ucn.geometry.coords import resize_points, resize_scale
from ucn.types import FloatArray

PAIRINGS = ("exhaustive", "sequential", "retrieval")
"""Ways to choose pairs."""

STRICT_PIXELS = 1.5
"""Pixels, of the size described, by which a point in space may miss adjusted keypoints; COLMAP's own is 4.
Keypoints that are good to a fifth of a pixel make what misses by more a mistake."""

_KEPT_PICTURES = 64
_LIMITS = (
    "mapper.filter_max_reproj_error",
    "triangulation.complete_max_reproj_error",
    "triangulation.merge_max_reproj_error",
)
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class PairingSettings:
    """Which images are matched.

    Attributes:
        kind: of `PAIRINGS`.
        overlap: images that follow, for sequences.
        neighbours: images that look alike, for retrieval.
        path: of a list of pairs, two names a line, in place of all that.
    """

    kind: str = "exhaustive"
    overlap: int = 10
    neighbours: int = 20
    path: Path | None = None

    def __post_init__(self) -> None:
        """Checks the kind."""
        if self.kind not in PAIRINGS:
            raise ConfigError(f"no pairing '{self.kind[:80]}' (there are {', '.join(PAIRINGS)})")


@dataclass(frozen=True)
class ReconstructSettings:
    """How a model is made.

    Attributes:
        extract: how images are described.
        pairing: which are matched.
        cameras: what is known of them.
        mapping: of COLMAP.
        use_adjustment: move keypoints to where pixels agree.
        min_similarity: of matched descriptors, a cosine.
    """

    extract: ExtractSettings = field(default_factory=ExtractSettings)
    pairing: PairingSettings = field(default_factory=PairingSettings)
    cameras: CameraSettings = field(default_factory=CameraSettings)
    mapping: MappingSettings = field(default_factory=MappingSettings)
    use_adjustment: bool = True
    min_similarity: float = -1.0


@dataclass(frozen=True)
class Reconstructed:
    """A model and what it was made of.

    Attributes:
        model: the largest one.
        extracted: features.
        pairs: that were matched.
        matches: of all of them.
        verified: matches that agree with the geometry of their pair.
        used: matches that went into the model, after adjustment.
        moved: median of the pixels that adjustment moved keypoints by; None without it.
    """

    model: Model
    extracted: Extracted
    pairs: int
    matches: int
    verified: int
    used: int
    moved: float | None


def choose_pairs(file: FeatureFile, settings: PairingSettings) -> list[Pair]:
    """Pairs of the images of a file of features.

    Raises:
        DataError: a list of pairs is given, and cannot be read or names other images.
    """
    if settings.path is not None:
        return read_pairs(settings.path, file.names)
    if settings.kind == "sequential":
        return pair_neighbours(file.names, settings.overlap)
    if settings.kind == "retrieval":
        return pair_similar(file.names, read_globals(file), settings.neighbours)
    return pair_all(file.names)


def reconstruct_folder(
    folder: Path,
    output: Path,
    method: Method,
    settings: ReconstructSettings | None = None,
    *,
    engine: Engine | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Reconstructed:
    """Makes a sparse model of the images of a folder.

    The folder ``output`` gets ``features.h5``, ``pairs.txt`` and ``matches.h5`` (hloc's layout),
    ``database.db`` and ``sparse/`` (COLMAP's). Features and matches of an earlier run with
    the same settings are used again.

    Args:
        folder: of images.
        output: folder of the results, made where missing.
        method: how images are described.
        settings: the defaults when None.
        engine: who extracts features; this process when None.
        overwrite: replace what is there.
        progress: called now and then.

    Raises:
        ConfigError: pycolmap is not installed.
        DataError: fewer than two images can be read, or they make no model.
        OutputError: the folder cannot be written to, or holds a model already.
    """
    settings = settings or ReconstructSettings()
    say = progress or (lambda _what, _done, _all: None)
    extracted = _extract(folder, output, method, settings, engine, overwrite, say)
    with open_features(extracted.path) as file, quiet():
        if len(file) < 2:
            raise DataError(f"{folder}: a model needs two images at least, got {len(file)}")
        pairs = choose_pairs(file, settings.pairing)
        check_pair_names(file.names)
        if not any(map(has_space, file.names)):  # such a list could not be read
            write_pairs(output / "pairs.txt", pairs, overwrite=True)
        found = _match(file, pairs, output / "matches.h5", settings.min_similarity, say)
        images = [_to_image(file, name) for name in file.names]
        return _build_model(folder, output, settings, images, pairs, (extracted, found), say)


def _extract(
    folder: Path,
    output: Path,
    method: Method,
    settings: ReconstructSettings,
    engine: Engine | None,
    overwrite: bool,
    say: Progress,
) -> Extracted:
    """Features of the folder: those of an earlier run, or new ones."""
    path = output / "features.h5"
    names = list_images(folder)
    wanted = {
        "key": dict(method.key),
        "images": digest_images(folder, names),
        "settings": asdict(settings.extract),
    }
    if path.is_file():
        with open_features(path) as file:
            if {name: file.meta.get(name) for name in wanted} == wanted:
                return Extracted(path, len(file), len(file), file.meta.get("failures", {}))
        if not overwrite:
            raise DataError(
                f"{path} was made of other images or with other settings; use --overwrite or a new folder"
            )
    return extract_folder(
        folder,
        path,
        method,
        settings.extract,
        engine=engine,
        overwrite=overwrite,
        progress=lambda done, total: say("describing", done, total),
    )


def _match(file: FeatureFile, pairs: Sequence[Pair], path: Path, min_similarity: float, say: Progress) -> int:
    """Matches of the pairs: those of an earlier run, or new ones; how many there are."""
    if path.is_file() and read_note(path) == describe_matches(file.meta, pairs, min_similarity):
        return sum(len(found.rows) for found in read_matches(path, pairs))
    return match_pairs(
        file.path,
        pairs,
        path,
        min_similarity=min_similarity,
        overwrite=True,
        progress=lambda done, total: say("matching", done, total),
    )


def _to_image(file: FeatureFile, name: str) -> DatabaseImage:
    features = file.read(name)
    return DatabaseImage(name, features.keypoints, features.image_hw)


def _build_model(
    folder: Path,
    output: Path,
    settings: ReconstructSettings,
    images: list[DatabaseImage],
    pairs: Sequence[Pair],
    before: tuple[Extracted, int],
    say: Progress,
) -> Reconstructed:
    numbers = {image.name: number for number, image in enumerate(images)}
    matches = {
        (numbers[name0], numbers[name1]): found.rows
        for (name0, name1), found in zip(pairs, read_matches(output / "matches.h5", pairs), strict=True)
    }
    cameras = build_cameras(images, folder, settings.cameras)
    geometries = verify_matches(
        images, cameras, matches, settings.mapping, lambda done, total: say("verifying", done, total)
    )
    verified = {pair: np.asarray(item.inlier_matches, np.int64) for pair, item in geometries.items()}
    moved, mapping = None, settings.mapping
    if settings.use_adjustment:
        pictures = _Pictures(folder, images, settings.extract.max_side)
        images, matches, moved = _adjust(pictures, images, verified, say)
        mapping = be_strict(mapping, pictures.largest_scale)
        geometries = verify_matches(images, cameras, matches, settings.mapping)
    write_database(output / "database.db", images, cameras, geometries, matches)
    registered = count(3)  # two are there when the first of the others comes
    model = map_incrementally(
        output / "database.db",
        folder,
        output / "sparse",
        mapping,
        settings.cameras.intrinsics is not None,
        lambda: say("mapping", next(registered), len(images)),
    )
    extracted, total = before
    counts = [sum(len(rows) for rows in each.values()) for each in (verified, matches)]
    return Reconstructed(model, extracted, len(pairs), total, counts[0], counts[1], moved)


def _adjust(
    pictures: _Pictures,
    images: Sequence[DatabaseImage],
    verified: Mapping[tuple[int, int], Rows],
    say: Progress,
) -> tuple[list[DatabaseImage], dict[tuple[int, int], Rows], float]:
    """Images with keypoints where the pixels agree, the matches that hold then, and the median move."""
    adjusted = adjust_keypoints(
        [pictures.to_reduced(number) for number in range(len(images))],
        verified,
        pictures.grey,
        lambda done, total: say("adjusting", done, total),
    )
    moved = [
        replace(image, keypoints=pictures.to_file(number, adjusted.keypoints[number]))
        for number, image in enumerate(images)
    ]
    return moved, adjusted.matches, adjusted.moved


def be_strict(mapping: MappingSettings, scale: float = 1.0) -> MappingSettings:
    """Limits for keypoints that are precise; what the user has set stays.

    Args:
        mapping: the settings.
        scale: pixels of the files to one of the size described.
    """
    return replace(mapping, options={**dict.fromkeys(_LIMITS, STRICT_PIXELS * scale), **mapping.options})


class _Pictures:
    """Grey pictures of images at the size they were described at, the last few kept in memory."""

    def __init__(self, folder: Path, images: Sequence[DatabaseImage], max_side: int | None) -> None:
        self._folder, self._images, self._max_side = folder, images, max_side
        self._kept: OrderedDict[int, Tensor] = OrderedDict()
        self._sizes: dict[int, tuple[int, int]] = {}

    def grey(self, number: int) -> Tensor:
        """(H, W) in [0, 1]."""
        if number not in self._kept:
            reduced = read_reduced(self._folder / self._images[number].name, self._max_side)
            self._kept[number] = reduced.pixels.mean(dim=0)
            self._sizes[number] = reduced.hw
        self._kept.move_to_end(number)
        while len(self._kept) > _KEPT_PICTURES:
            self._kept.popitem(last=False)
        return self._kept[number]

    @property
    def largest_scale(self) -> float:
        """Pixels of a file to one of its picture, where that is most."""
        return max(self._images[number].image_hw[1] / hw[1] for number, hw in self._sizes.items())

    def to_reduced(self, number: int) -> FloatArray:
        """Keypoints of an image in the pixels of its picture."""
        return self._move(number, self._images[number].keypoints, is_back=False)

    def to_file(self, number: int, points: FloatArray) -> FloatArray:
        """Points of the picture in the pixels of the file."""
        return self._move(number, points, is_back=True)

    def _move(self, number: int, points: FloatArray, is_back: bool) -> FloatArray:
        if number not in self._sizes:
            self.grey(number)
        sizes: list[Any] = [self._images[number].image_hw, self._sizes[number]]
        scale = resize_scale(*reversed(sizes)) if is_back else resize_scale(*sizes)
        return resize_points(torch.from_numpy(points), scale).numpy()
