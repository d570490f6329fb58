"""Keypoints of images matched with keypoints of others: each other's nearest by their descriptors."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucn.errors import ConfigError, DataError
from ucn.folders.pairing import Pair
from ucn.formats.hloc import (
    FeatureFile,
    ImageFeatures,
    PairMatches,
    check_pair_names,
    open_features,
    write_matches,
)
from ucn.knn import mutual_nearest

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""

_KEPT = 64  # images in memory; pairs come sorted by their first image


def match_images(
    features0: ImageFeatures, features1: ImageFeatures, min_similarity: float = -1.0, device: str = "cpu"
) -> PairMatches:
    """Mutual nearest neighbours of two images.

    Args:
        features0: of image 0.
        features1: of image 1.
        min_similarity: of the descriptors, a cosine in [-1, 1]; matches below are left out.
        device: where the search runs.

    Returns:
        Rows of both, ordered by the first; scores are (1 + cosine) / 2, as hloc's nearest neighbours have.

    Raises:
        DataError: the descriptors have different lengths.
    """
    if not len(features0) or not len(features1):
        return PairMatches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
    descriptors0, descriptors1 = (
        torch.from_numpy(features.descriptors).to(device) for features in (features0, features1)
    )
    if descriptors0.shape[1] != descriptors1.shape[1]:
        raise DataError(
            f"descriptors of both images must be equally long, got {descriptors0.shape[1]} and "
            f"{descriptors1.shape[1]} numbers; extract all images with one method"
        )
    partners = mutual_nearest(descriptors0, descriptors1)
    rows = (partners >= 0).nonzero()[:, 0]
    similarities = (descriptors0[rows] * descriptors1[partners[rows]]).sum(dim=1).clamp(-1, 1)
    is_kept = similarities >= min_similarity
    kept = torch.stack([rows, partners[rows]], dim=1)[is_kept].cpu().numpy()
    return PairMatches(kept, ((1 + similarities[is_kept]) / 2).cpu().numpy())


class FeatureCache:
    """Features of a file, the last few images kept in memory."""

    def __init__(self, file: FeatureFile) -> None:
        self._file = file
        self._kept: OrderedDict[str, ImageFeatures] = OrderedDict()

    def read(self, name: str) -> ImageFeatures:
        """Features of an image."""
        if name not in self._kept:
            self._kept[name] = self._file.read(name)
        self._kept.move_to_end(name)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[name]


def match_pairs(
    features: Path,
    pairs: Sequence[Pair],
    output: Path,
    *,
    min_similarity: float = -1.0,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Matches pairs of images and writes one file in hloc's layout.

    Args:
        features: of `extract_folder`, or of hloc.
        pairs: names of images.
        output: the .h5 file.
        min_similarity: as in `match_images`.
        device: where the search runs.
        overwrite: replace an existing file.
        progress: called after each pair.

    Returns:
        The number of matches of all pairs together.

    Raises:
        ConfigError: `min_similarity` is no cosine.
        DataError: the features are missing or damaged, or hloc could not tell names apart.
        OutputError: the file cannot be written, or exists already.
    """
    if not -1 <= min_similarity <= 1:
        raise ConfigError(f"--min-similarity must be a cosine in [-1, 1], got {min_similarity:g}")
    check_pair_names(dict.fromkeys(name for pair in pairs for name in pair))
    total = 0
    with open_features(features) as file:
        cache = FeatureCache(file)

        def stream() -> Iterator[tuple[Pair, int, PairMatches]]:
            nonlocal total
            for done, (name0, name1) in enumerate(pairs, 1):
                features0 = cache.read(name0)
                found = match_images(features0, cache.read(name1), min_similarity, device)
                total += len(found.rows)
                yield (name0, name1), len(features0), found
                if progress is not None:
                    progress(done, len(pairs))

        write_matches(output, stream(), describe_matches(file.meta, pairs, min_similarity), overwrite)
    return total


def describe_matches(
    features: Mapping[str, Any], pairs: Sequence[Pair], min_similarity: float
) -> dict[str, Any]:
    """What matches depend on, as it is kept with them: the note of the features, the pairs, the limit."""
    digest = hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()
    return {"features": dict(features), "pairs": digest, "min_similarity": min_similarity}
