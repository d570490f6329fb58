"""Keypoints of two images that are each other's best match by similarity and neighbourhood consensus.

The rule is that of `ucn.matching.cells`, with the keypoints of the other image in place of all its cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.geometry.sampling import sample_image
from ucn.knn import ExclusionRadius, nearest
from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.matching.cells import CONSENSUS_GAP, CONSENSUS_RADIUS, CONSENSUS_WEIGHT, to_cosine
from ucn.matching.consensus import Consensus


def match_guided(
    descriptors0: Tensor,
    descriptors1: Tensor,
    points0: Tensor,
    points1: Tensor,
    consensus: Consensus,
    *,
    radius: float = CONSENSUS_RADIUS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """For each keypoint of image 0 the row of its match in image 1; -1 where it is not mutual.

    Args:
        descriptors0: (N, D), of unit length.
        descriptors1: (M, D), of unit length.
        points0: (N, 2) in the pixels of the images of `consensus`.
        points1: (M, 2) likewise.
        consensus: of the two images.
        radius: pixels around the most similar keypoint within which no other is the second best.
        memory_bytes: budget of the temporaries.

    Returns:
        (N,) int64.
    """
    if not len(points0) or not len(points1):
        return torch.full((len(points0),), -1, device=points0.device)
    forward = find_guided(descriptors0, descriptors1, points0, points1, consensus, radius, memory_bytes)
    back = consensus.swap()
    backward = find_guided(descriptors1, descriptors0, points1, points0, back, radius, memory_bytes)
    is_mutual = backward[forward] == torch.arange(len(points0), device=forward.device)
    return forward.where(is_mutual, -1)


def find_guided(
    descriptors0: Tensor,
    descriptors1: Tensor,
    points0: Tensor,
    points1: Tensor,
    consensus: Consensus,
    radius: float,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """Rows (N,) of image 1 with the largest sum of similarity and weighted support; as `match_guided`.

    The weight of a keypoint falls with the lead of its most similar one over the second best outside the
    radius. Keypoints whose match no support can change are not compared again, and a match does not move
    within the radius, where support hardly differs.
    """
    found = nearest(descriptors0, descriptors1, memory_bytes=memory_bytes)
    index, similarities = found.indices[:, 0], to_cosine(found.distances[:, 0])
    best = points1[index]
    exclusion = ExclusionRadius(best, points1, radius)
    others = nearest(descriptors0, descriptors1, exclusion=exclusion, memory_bytes=memory_bytes)
    lead = similarities - to_cosine(others.distances[:, 0])
    weights = CONSENSUS_WEIGHT * torch.exp(-lead / CONSENSUS_GAP)
    rows = (lead < weights * (1 - consensus.read_pairs(points0, best))).nonzero()[:, 0]
    h, w = consensus.support.shape[2:]
    places = consensus.to_coarse(points1)[None, None]  # (1, 1, M, 2)
    for part in rows.split(max(1, memory_bytes // (4 * (6 * h * w + 3 * len(points1))))):
        guidance = weights[part, None, None] * consensus.read_rows(points0[part])  # (n, h, w)
        guided = sample_image(guidance[None], places, "border")[0, :, 0]  # (n, M)
        guided += descriptors0[part] @ descriptors1.t()
        moved = guided.argmax(dim=1)
        is_far = (points1[moved] - best[part]).norm(dim=1) > radius
        index[part] = torch.where(is_far, moved, index[part])
    return index
