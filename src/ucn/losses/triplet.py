"""The triplet loss on squared distances, plain or with mined negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from ucn.losses.correspondences import prepare_pair, sample_pair
from ucn.losses.mining import MinedNegatives, gather_negatives
from ucn.types import FeatureMap


def triplet_loss(
    anchors: Tensor, positives: Tensor, negatives: Tensor, is_valid: Tensor, margin: float = 1.0
) -> Tensor:
    """Mean over the valid triplets of max(0, ‖a − p‖² − ‖a − n‖² + margin).

    The mean is over all leading axes together. Without a valid triplet the loss is 0 with a zero gradient.

    Args:
        anchors: (..., P, D).
        positives: (..., P, D).
        negatives: (..., P, D).
        is_valid: (..., P) bool.
        margin: by how much the negative's squared distance should exceed the positive's, above 0.

    Returns:
        A scalar, at least float32.

    Raises:
        ValueError: shapes do not fit, or the margin is not above 0.
    """
    if anchors.ndim < 2 or not anchors.shape == positives.shape == negatives.shape:
        shapes = ", ".join(str(tuple(each.shape)) for each in (anchors, positives, negatives))
        raise ValueError(f"anchors, positives and negatives must all be (..., P, D), got {shapes}")
    if is_valid.shape != anchors.shape[:-1] or is_valid.dtype != torch.bool:
        wanted = tuple(anchors.shape[:-1])
        raise ValueError(f"is_valid must be bool {wanted}, got {is_valid.dtype} {tuple(is_valid.shape)}")
    if not margin > 0:
        raise ValueError(f"margin must be above 0, got {margin}")
    dtype = torch.promote_types(anchors.dtype, torch.float32)
    keep = is_valid[..., None]
    to_positive = torch.where(keep, anchors.to(dtype) - positives.to(dtype), 0.0).square().sum(dim=-1)
    to_negative = torch.where(keep, anchors.to(dtype) - negatives.to(dtype), 0.0).square().sum(dim=-1)
    cost = torch.where(is_valid, (to_positive - to_negative + margin).clamp(min=0), 0.0)
    return cost.sum() / is_valid.sum().clamp(min=1)


def mined_triplet_loss(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    negatives: MinedNegatives,
    margin: float = 1.0,
) -> Tensor:
    """`triplet_loss` over every mined negative, its anchor point and that point's true match.

    Args:
        map0: B feature maps of view 0.
        map1: B feature maps of view 1.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        negatives: the result of `mine_negatives` for these maps and points, in at least one direction.
        margin: as in `triplet_loss`.

    Returns:
        A scalar: the mean over all triplets of the batch and of both directions.

    Raises:
        ValueError: shapes do not fit, nothing was mined, or the margin is not above 0.
    """
    pair = prepare_pair(map0, map1, points0, points1, is_valid)
    mined = gather_negatives(pair, *sample_pair(pair), negatives)
    if not mined:
        raise ValueError("negatives must hold cells of at least one direction, got None for both")
    columns = zip(*(each.as_triplets() for each in mined), strict=True)
    anchors, positives, others, is_negative = (torch.cat(column, dim=1) for column in columns)
    return triplet_loss(anchors, positives, others, is_negative, margin)
