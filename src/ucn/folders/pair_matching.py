"""Keypoints of image pairs matched by mutual nearest neighbours of their descriptors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucn.errors import ConfigError, DataError
from ucn.files import RecentItems
from ucn.folders.pairing import Pair
from ucn.formats.hloc import ImageFeatures, PairMatches, check_pair_names, open_features, write_pair_matches
from ucn.knn import mutual_nearest

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""

_CACHED_IMAGES = 64  # pairs come sorted by their first image


def match_image_pairs(
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
        features: file of `extract_folder`, or of hloc.
        pairs: names of images.
        output: the .h5 file.
        min_similarity: as in `match_image_features`.
        device: where the search runs.
        overwrite: replace an existing file.
        progress: called after each pair.

    Returns:
        The number of matches of all pairs together.

    Raises:
        ConfigError: `min_similarity` is not a cosine.
        DataError: the features are missing or damaged, or names collide in hloc's layout.
        OutputError: the file cannot be written, or exists already.
    """
    if not -1 <= min_similarity <= 1:
        raise ConfigError(f"min_similarity must be a cosine in [-1, 1], got {min_similarity:g}")
    check_pair_names(dict.fromkeys(name for pair in pairs for name in pair))
    total = 0
    with open_features(features) as file:
        cache: RecentItems[str, ImageFeatures] = RecentItems(_CACHED_IMAGES)

        def read(name: str) -> ImageFeatures:
            return cache.get_or_make(name, lambda: file.read(name))

        def stream() -> Iterator[tuple[Pair, int, PairMatches]]:
            nonlocal total
            for done, (name0, name1) in enumerate(pairs, 1):
                features0 = read(name0)
                found = match_image_features(features0, read(name1), min_similarity, device)
                total += len(found.rows)
                yield (name0, name1), len(features0), found
                if progress is not None:
                    progress(done, len(pairs))

        write_pair_matches(output, stream(), build_match_key(file.meta, pairs, min_similarity), overwrite)
    return total


def match_image_features(
    features0: ImageFeatures, features1: ImageFeatures, min_similarity: float = -1.0, device: str = "cpu"
) -> PairMatches:
    """Matches the keypoints of two images by mutual nearest neighbours.

    Args:
        features0: of image 0.
        features1: of image 1.
        min_similarity: cosine similarity in [-1, 1] below which matches are dropped.
        device: where the search runs.

    Returns:
        Rows of both, ordered by the first; scores are (1 + cosine) / 2, as of hloc's nearest neighbours.

    Raises:
        DataError: the descriptors differ in dimension.
    """
    if not len(features0) or not len(features1):
        return PairMatches(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))
    descriptors0, descriptors1 = (
        torch.from_numpy(features.descriptors).to(device) for features in (features0, features1)
    )
    if descriptors0.shape[1] != descriptors1.shape[1]:
        raise DataError(
            f"descriptors of both images must have one dimension, got {descriptors0.shape[1]} and "
            f"{descriptors1.shape[1]}; extract all images with one method"
        )
    partners = mutual_nearest(descriptors0, descriptors1)
    rows = (partners >= 0).nonzero()[:, 0]
    similarities = (descriptors0[rows] * descriptors1[partners[rows]]).sum(dim=1).clamp(-1, 1)
    is_kept = similarities >= min_similarity
    kept = torch.stack([rows, partners[rows]], dim=1)[is_kept].cpu().numpy()
    return PairMatches(kept, ((1 + similarities[is_kept]) / 2).cpu().numpy())


def build_match_key(
    features: Mapping[str, Any], pairs: Sequence[Pair], min_similarity: float
) -> dict[str, Any]:
    """What matches depend on, stored with them: metadata of the features, a hash of the pairs, the limit."""
    digest = hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()
    return {"features": dict(features), "pairs": digest, "min_similarity": min_similarity}
