"""Keypoints of image pairs matched by mutual nearest neighbours of their descriptors, or by LightGlue.

Where the features of both images have a coarse map, neighbourhood consensus (`ucn.matching.consensus`) guides
the search, as it does in `ucn.matching.cells`: where the best two candidates of a keypoint are about equally
similar, the support of the matches around it is added to the similarity. Both directions are guided.

Where images have features at several scales, the consensus is that of the two scales at which they show
things at about one size (`_choose_levels`). In an ordinary pair these are the first of both, and keypoints of
each scale are matched with those of the same one. If image 1 is much closer, the keypoints of all its scales
are matched with those of the first scale of image 0. So keypoints of smaller scales have matches in both
kinds of pairs, and their tracks connect close images with distant ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucn.errors import ConfigError, DataError
from ucn.features.lightglue import LightGlueMethod, SizedKeypoints
from ucn.files.recent import RecentItems
from ucn.folders.pairing import Pair
from ucn.formats.hloc import (
    CoarseMap,
    ImageFeatures,
    PairMatches,
    check_pair_names,
    open_features,
    write_pair_matches,
)
from ucn.knn import mutual_nearest
from ucn.matching.cells import CONSENSUS_RADIUS
from ucn.matching.consensus import CELL_PIXELS, Consensus, measure_support, pool_cells
from ucn.matching.guided import match_guided
from ucn.matching.views import (
    MAX_SCALE,
    MIN_AGREEMENT,
    MIN_KEPT,
    MIN_VIEW_AGREEMENT,
    estimate_similarity,
)
from ucn.types import FeatureMap

Progress = Callable[[int, int], None]
"""Called with (pairs done, all pairs)."""

MAX_SUPPORT_ENTRIES = 2**22
"""Pairs of coarse cells whose support is measured; of larger images, 2 × 2 coarse cells are pooled first."""
MAX_SEARCH_ENTRIES = 2**20
"""The same while scales are searched."""

_CACHED_IMAGES = 64  # pairs come sorted by their first image
_RADIUS = CONSENSUS_RADIUS / CELL_PIXELS  # in coarse cells


def match_image_pairs(
    features: Path,
    pairs: Sequence[Pair],
    output: Path,
    *,
    min_similarity: float = -1.0,
    device: str = "cpu",
    consensus: bool = True,
    matcher: LightGlueMethod | None = None,
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
        consensus: as in `match_image_features`.
        matcher: matches the keypoints that it detected; None takes mutual nearest neighbours.
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
                if matcher is None:
                    found = match_image_features(features0, read(name1), min_similarity, device, consensus)
                else:
                    found = match_by_method(matcher, features0, read(name1))
                total += len(found.rows)
                yield (name0, name1), len(features0), found
                if progress is not None:
                    progress(done, len(pairs))

        key = build_match_key(file.meta, pairs, min_similarity, consensus)
        write_pair_matches(output, stream(), key, overwrite)
    return total


def match_image_features(
    features0: ImageFeatures,
    features1: ImageFeatures,
    min_similarity: float = -1.0,
    device: str = "cpu",
    consensus: bool = True,
) -> PairMatches:
    """Matches the keypoints of two images by mutual nearest neighbours.

    With consensus, their scales are compared first; without, keypoints of all scales are matched alike.

    Args:
        features0: of image 0.
        features1: of image 1.
        min_similarity: cosine similarity in [-1, 1] below which matches are dropped.
        device: where the search runs.
        consensus: guide the search by neighbourhood consensus, where both images have a coarse map.

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
    if consensus and features0.coarse_maps and features1.coarse_maps:
        partners = _match_levels(features0, features1, descriptors0, descriptors1)
    else:
        partners = mutual_nearest(descriptors0, descriptors1)
    rows = (partners >= 0).nonzero()[:, 0]
    similarities = (descriptors0[rows] * descriptors1[partners[rows]]).sum(dim=1).clamp(-1, 1)
    is_kept = similarities >= min_similarity
    kept = torch.stack([rows, partners[rows]], dim=1)[is_kept].cpu().numpy()
    return PairMatches(kept, ((1 + similarities[is_kept]) / 2).cpu().numpy())


def _match_levels(
    features0: ImageFeatures, features1: ImageFeatures, descriptors0: Tensor, descriptors1: Tensor
) -> Tensor:
    """For each keypoint of image 0 the row of its match in image 1, guided by consensus; -1 without one."""
    device = descriptors0.device
    maps0, maps1 = features0.coarse_maps, features1.coarse_maps
    choice0, choice1, consensus = _choose_levels(maps0, maps1, device)
    map0, map1 = maps0[choice0], maps1[choice1]
    cells0, cells1 = _to_cells(features0, map0, device), _to_cells(features1, map1, device)
    if (choice0, choice1) == (0, 0):
        levels = range(min(len(maps0), len(maps1)))
        groups = [(features0.list_rows(level), features1.list_rows(level)) for level in levels]
    else:
        all0, all1 = np.arange(len(features0)), np.arange(len(features1))
        groups = [(all0 if choice0 else features0.list_rows(0), all1 if choice1 else features1.list_rows(0))]
    partners = torch.full((len(features0),), -1, device=device)
    for level, group in enumerate(groups):
        rows0, rows1 = (torch.from_numpy(rows).to(device) for rows in group)
        found = match_guided(
            descriptors0[rows0],
            descriptors1[rows1],
            cells0[rows0],
            cells1[rows1],
            consensus,
            radius=_RADIUS * _find_step(maps1[choice1 + level]) / _find_step(map1),
        )
        partners[rows0[found >= 0]] = rows1[found[found >= 0]]
    return partners


def _choose_levels(
    maps0: Sequence[CoarseMap], maps1: Sequence[CoarseMap], device: torch.device
) -> tuple[int, int, Consensus]:
    """The scales, by index, at which two images show things at about one size, and their consensus.

    They are the first of both where the consensus of these agrees and names nearly one scale. Otherwise one
    of both is smaller: the pair that agrees most, on coarser cells. Where none agrees, they are the first.
    """
    consensus = _measure_consensus(maps0[0], maps1[0], device)
    choices = [(0, level) for level in range(1, len(maps1))] + [(level, 0) for level in range(1, len(maps0))]
    if not choices:
        return 0, 0, consensus
    found = estimate_similarity(consensus)
    if found.agreement >= MIN_AGREEMENT:
        if found.is_within(MAX_SCALE, 180.0):
            return 0, 0, consensus
        choices = [pair for pair in choices if (pair[1] > 0) == (found.scale > 1)]
    tried = {
        (level0, level1): estimate_similarity(
            _measure_consensus(maps0[level0], maps1[level1], device, MAX_SEARCH_ENTRIES)
        )
        for level0, level1 in choices
    }
    best = max(choices, key=lambda pair: tried[pair].agreement)
    if tried[best].agreement < max(MIN_VIEW_AGREEMENT, MIN_KEPT * found.agreement):
        return 0, 0, consensus
    return *best, _measure_consensus(maps0[best[0]], maps1[best[1]], device)


def _find_step(coarse: CoarseMap) -> float:
    """Distance of coarse cells in pixels of the full-size image, along x or y, whichever is larger."""
    return max(coarse.step)


def _to_cells(features: ImageFeatures, coarse: CoarseMap, device: torch.device) -> Tensor:
    """Keypoints (N, 2) in coarse cells, whose centres are at whole numbers."""
    points = torch.from_numpy(features.keypoints).to(device)
    return (points - points.new_tensor(coarse.first)) / points.new_tensor(coarse.step)


def _measure_consensus(
    coarse0: CoarseMap, coarse1: CoarseMap, device: torch.device, entries: int | None = None
) -> Consensus:
    """The consensus of a pair, for points in coarse cells, of at most so many entries."""
    limit = MAX_SUPPORT_ENTRIES if entries is None else entries
    maps = [torch.from_numpy(coarse.descriptors).to(device) for coarse in (coarse0, coarse1)]
    cells, pooled = 1, maps
    while pooled[0][0].numel() * pooled[1][0].numel() > limit:
        cells *= 2
        hw = [(each.shape[1], each.shape[2]) for each in maps]
        pooled = [
            pool_cells(FeatureMap(each[None], 1, 0.0, size), cells)
            for each, size in zip(maps, hw, strict=True)
        ]
    return Consensus(measure_support(*pooled), cells, stride=1, offset=0.0)


def match_by_method(
    method: LightGlueMethod, features0: ImageFeatures, features1: ImageFeatures
) -> PairMatches:
    """Matches the keypoints of two images by the method that detected them; rows are ordered by the first."""
    rows, scores = method.match_rows(_to_keypoints(features0), _to_keypoints(features1))
    order = rows[:, 0].argsort()
    return PairMatches(rows[order].numpy(), scores[order].numpy())


def _to_keypoints(features: ImageFeatures) -> SizedKeypoints:
    points, descriptors, scores = map(
        torch.from_numpy, (features.keypoints, features.descriptors, features.scores)
    )
    return SizedKeypoints(points, descriptors, scores, features.image_hw)


def build_match_key(
    features: Mapping[str, Any], pairs: Sequence[Pair], min_similarity: float, consensus: bool
) -> dict[str, Any]:
    """What matches depend on, stored with them: metadata of the features, a hash of the pairs, settings."""
    digest = hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()
    settings = {"min_similarity": min_similarity, "consensus": consensus}
    return {"features": dict(features), "pairs": digest, **settings}
