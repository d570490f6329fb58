"""Which images are worth matching: all with all, neighbours in a sequence, or those that look alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import torch

from ucn.errors import ConfigError, DataError
from ucn.formats.hloc import FeatureFile
from ucn.knn import nearest
from ucn.types import FloatArray

Pair = tuple[str, str]


def pair_all(names: Sequence[str]) -> list[Pair]:
    """Every image with every other: N (N − 1) / 2 pairs."""
    return list(combinations(names, 2))


def pair_neighbours(names: Sequence[str], overlap: int) -> list[Pair]:
    """Every image with so many that follow it; names must be in the order in which they were taken.

    Raises:
        ConfigError: `overlap` is below 1.
    """
    if overlap < 1:
        raise ConfigError(f"--overlap must be at least 1 image, got {overlap}")
    return [(name, other) for row, name in enumerate(names) for other in names[row + 1 : row + 1 + overlap]]


def pair_similar(names: Sequence[str], descriptors: FloatArray, count: int) -> list[Pair]:
    """Every image with those that look most like it as a whole; a pair comes once.

    Args:
        names: of N images.
        descriptors: (N, D) of them as a whole; what all have in common is taken off first.
        count: of images for each.

    Raises:
        ConfigError: `count` is below 1.
    """
    if count < 1:
        raise ConfigError(f"--neighbours must be at least 1 image, got {count}")
    if len(names) < 2:
        return []
    centred = torch.from_numpy(descriptors - descriptors.mean(axis=0))
    unit = torch.nn.functional.normalize(centred, dim=1)
    found = nearest(unit, unit, k=min(count + 1, len(names))).indices.numpy()
    return _order(
        names, ((row, other) for row, others in enumerate(found) for other in _without(others, row, count))
    )


def _without(others: np.ndarray[tuple[int], np.dtype[np.int64]], row: int, count: int) -> list[int]:
    """The first so many but the image itself, which need not be first where two images are equal."""
    return [int(other) for other in others if other != row][:count]


def _order(names: Sequence[str], rows: Iterable[tuple[int, int]]) -> list[Pair]:
    kept = sorted({(min(pair), max(pair)) for pair in rows})
    return [(names[first], names[second]) for first, second in kept]


def read_globals(file: FeatureFile) -> FloatArray:
    """(N, D) descriptors of all images of a file as a whole, in the order of its names.

    Raises:
        DataError: an image has none, or not all are equally long.
    """
    found = [file.read_global(name) for name in file.names]
    lengths = sorted({len(values) for values in found})
    if len(lengths) > 1:
        raise DataError(
            f"{file.path}: descriptors of images as a whole must be equally long, got {lengths[0]} and "
            f"{lengths[-1]} numbers; extract all images with one method"
        )
    return np.stack(found) if found else np.zeros((0, 0), np.float32)
