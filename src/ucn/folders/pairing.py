"""Image pairs to match: all, neighbours in a sequence, or images with similar global descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from ucn.errors import ConfigError, DataError
from ucn.formats.hloc import FeatureFile
from ucn.formats.hloc_pairs import read_pair_list
from ucn.knn import nearest
from ucn.types import FloatArray

PAIRINGS = ("exhaustive", "sequential", "retrieval")
"""Methods to choose pairs."""

Pair = tuple[str, str]
"""Names of two images."""


@dataclass(frozen=True)
class PairingSettings:
    """Which images are matched.

    Attributes:
        kind: one of `PAIRINGS`.
        overlap: sequential: how many following images each image is paired with.
        neighbours: retrieval: how many similar images each image is paired with.
        path: a list of pairs, two names per line, to be used instead.
    """

    kind: str = "exhaustive"
    overlap: int = 10
    neighbours: int = 20
    path: Path | None = None

    def __post_init__(self) -> None:
        """Checks the kind."""
        if self.kind not in PAIRINGS:
            raise ConfigError(f"no pairing '{self.kind[:80]}' (there are {', '.join(PAIRINGS)})")


def choose_pairs(file: FeatureFile, settings: PairingSettings) -> list[Pair]:
    """Chooses pairs of the images of a file of features.

    Raises:
        DataError: a list of pairs is given, and cannot be read or names other images.
    """
    if settings.path is not None:
        return read_pair_list(settings.path, file.names)
    if settings.kind == "sequential":
        return pair_sequentially(file.names, settings.overlap)
    if settings.kind == "retrieval":
        return pair_by_retrieval(file.names, read_global_descriptors(file), settings.neighbours)
    return pair_exhaustively(file.names)


def pair_exhaustively(names: Sequence[str]) -> list[Pair]:
    """Every image with every other: N (N − 1) / 2 pairs."""
    return list(combinations(names, 2))


def pair_sequentially(names: Sequence[str], overlap: int) -> list[Pair]:
    """Every image with the `overlap` images that follow it; names must be in the order of capture.

    Raises:
        ConfigError: `overlap` is below 1.
    """
    if overlap < 1:
        raise ConfigError(f"overlap must be at least 1 image, got {overlap}")
    return [(name, other) for row, name in enumerate(names) for other in names[row + 1 : row + 1 + overlap]]


def pair_by_stem(names0: Sequence[str], names1: Sequence[str]) -> list[Pair]:
    """Images of two folders with equal names, or with names that differ in the suffix alone.

    Args:
        names0: of the first folder; pairs have their order.
        names1: of the second folder.

    Raises:
        DataError: either of two images of a folder may be meant, since they differ in the suffix alone.
    """
    equal = set(names0) & set(names1)
    stems0, stems1 = (_group_by_stem(names, equal) for names in (names0, names1))
    pairs = []
    for name in names0:
        stem = _remove_suffix(name)
        if name in equal:
            pairs.append((name, name))
        elif stem in stems1:
            for several in (stems0[stem], stems1[stem]):
                if len(several) > 1:
                    raise DataError(
                        f"the images {' and '.join(several)} of one folder differ in the suffix alone, and "
                        "either may be meant; remove all but one of them"
                    )
            pairs.append((name, stems1[stem][0]))
    return pairs


def _group_by_stem(names: Sequence[str], left_out: set[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        if name not in left_out:
            groups.setdefault(_remove_suffix(name), []).append(name)
    return groups


def _remove_suffix(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def pair_by_retrieval(names: Sequence[str], descriptors: FloatArray, count: int) -> list[Pair]:
    """Every image with those of the most similar global descriptors; each pair once.

    Args:
        names: of N images.
        descriptors: (N, D) global descriptors; their mean is subtracted first.
        count: how many similar images each image is paired with.

    Raises:
        ConfigError: `count` is below 1.
    """
    if count < 1:
        raise ConfigError(f"neighbours must be at least 1 image, got {count}")
    if len(names) < 2:
        return []
    centred = torch.from_numpy(descriptors - descriptors.mean(axis=0))
    unit = torch.nn.functional.normalize(centred, dim=1)
    found = nearest(unit, unit, k=min(count + 1, len(names))).indices.tolist()
    rows: set[tuple[int, int]] = set()
    for row, candidates in enumerate(found):
        # The image itself need not come first where two images are equal.
        others = [other for other in candidates if other != row][:count]
        rows.update((min(row, other), max(row, other)) for other in others)
    return [(names[first], names[second]) for first, second in sorted(rows)]


def read_global_descriptors(file: FeatureFile) -> FloatArray:
    """Global descriptors (N, D) of all images of a file, in the order of its names.

    Raises:
        DataError: an image has none, or their dimensions differ.
    """
    found = [file.read_global(name) for name in file.names]
    dims = sorted({len(values) for values in found})
    if len(dims) > 1:
        raise DataError(
            f"{file.path}: global descriptors must have one dimension, got {dims[0]} and {dims[-1]}; extract "
            "all images with one method"
        )
    return np.stack(found) if found else np.zeros((0, 0), np.float32)
