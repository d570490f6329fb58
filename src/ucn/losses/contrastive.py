"""The correspondence contrastive loss (the paper's Eq. 1), mined, labelled or of one example per pair."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ucn.losses.correspondences import OneWay, prepare_pair, read_cells, sample_pair
from ucn.losses.mining import MinedNegatives, draw_random_cells, read_negatives
from ucn.losses.random_choice import draw_true, draw_uniform
from ucn.types import FeatureMap

POSITIVE = 1
NEGATIVE = 0
IGNORE = -1


def correspondence_contrastive_loss(
    descriptors0: Tensor, descriptors1: Tensor, labels: Tensor, margin: float = 1.0
) -> Tensor:
    """Eq. 1: 1/(2N) Σ [ s ‖f − f'‖² + (1 − s) max(0, m − ‖f − f'‖)² ].

    N counts all pairs that are not ignored, positive and negative, over all leading axes together, so a pair
    of images weighs as much as it has pairs of points. Where nothing is left the loss is 0 with a zero
    gradient. At distance 0 a negative pair has no direction to be pushed in, and its gradient is 0.

    Args:
        descriptors0: (..., P, D).
        descriptors1: (..., P, D); row i is compared with row i of `descriptors0`.
        labels: (..., P) integers: POSITIVE (1), NEGATIVE (0) or IGNORE (-1).
        margin: m, the distance from which a negative pair costs nothing, above 0.

    Returns:
        A scalar, at least float32.

    Raises:
        ValueError: shapes do not fit, a label is unknown, or the margin is not above 0.
    """
    if descriptors0.ndim < 2 or descriptors0.shape != descriptors1.shape:
        raise ValueError(
            "descriptors0 and descriptors1 must both be (..., P, D), "
            f"got {tuple(descriptors0.shape)} and {tuple(descriptors1.shape)}"
        )
    if labels.shape != descriptors0.shape[:-1] or labels.is_floating_point() or labels.dtype == torch.bool:
        wanted = tuple(descriptors0.shape[:-1])
        raise ValueError(f"labels must be integer {wanted}, got {labels.dtype} {tuple(labels.shape)}")
    if labels.numel() and not bool(((labels >= IGNORE) & (labels <= POSITIVE)).all()):
        raise ValueError(f"labels must be -1, 0 or 1, got {int(labels.min())} to {int(labels.max())}")
    _check_margin(margin)
    return _contrast(descriptors0, descriptors1, labels, margin)


def _check_margin(margin: float) -> None:
    if not margin > 0:
        raise ValueError(f"margin must be above 0, got {margin}")


def _contrast(descriptors0: Tensor, descriptors1: Tensor, labels: Tensor, margin: float) -> Tensor:
    dtype = torch.promote_types(descriptors0.dtype, torch.float32)
    is_used = labels != IGNORE
    # Masked before anything is computed, so that an ignored pair, whatever it holds, has no gradient.
    difference = torch.where(is_used[..., None], descriptors0.to(dtype) - descriptors1.to(dtype), 0.0)
    squared = difference.square().sum(dim=-1)
    is_apart = squared > 0
    distance = torch.where(is_apart, torch.where(is_apart, squared, 1.0).sqrt(), 0.0)
    hinge = (margin - distance).clamp(min=0)
    cost = torch.where(labels == POSITIVE, squared, torch.where(is_used, hinge.square(), 0.0))
    return cost.sum() / (2 * is_used.sum().clamp(min=1))


def mined_contrastive_loss(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    negatives: MinedNegatives,
    margin: float = 1.0,
) -> Tensor:
    """Eq. 1 over the true correspondences and the mined negatives of each direction.

    Every valid point is one positive pair; every mined cell is one negative pair with the point it was mined
    for. All of them, over the whole batch, are the N of Eq. 1.

    Args:
        map0: B feature maps of view 0.
        map1: B feature maps of view 1.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        negatives: what `mine_negatives` found for these maps and points.
        margin: m of Eq. 1.

    Returns:
        A scalar.

    Raises:
        ValueError: shapes do not fit, or the margin is not above 0.
    """
    _check_margin(margin)
    way = prepare_pair(map0, map1, points0, points1, is_valid)
    sampled0, sampled1 = sample_pair(way)
    firsts, seconds = [sampled0], [sampled1]
    labels = [torch.where(is_valid, POSITIVE, IGNORE)]
    for mined in read_negatives(way, sampled0, sampled1, negatives):
        anchors, _, others, is_negative = mined.as_triplets()
        firsts.append(anchors)
        seconds.append(others)
        labels.append(torch.where(is_negative, NEGATIVE, IGNORE))
    return _contrast(torch.cat(firsts, dim=1), torch.cat(seconds, dim=1), torch.cat(labels, dim=1), margin)


def one_correspondence_contrastive_loss(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    *,
    min_distance: float = 16.0,
    margin: float = 1.0,
    positive_share: float = 0.5,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The classic contrastive loss, which learns from one example per pair of images (the paper's Table 2).

    Of each pair of images one valid correspondence is drawn. With probability `positive_share` it is a
    positive example; else its point of view 0 and a cell of view 1 drawn uniformly, at least `min_distance`
    from the truth, are a negative one. A pair of images without a valid point, or a negative without a cell
    that far, is ignored. The loss is Eq. 1 over these at most B examples.

    Args:
        map0: B feature maps of view 0.
        map1: B feature maps of view 1.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        min_distance: pixels of view 1 between the truth and a negative, at least 0.
        margin: m of Eq. 1.
        positive_share: in [0, 1].
        generator: source of the draws, on any device; None means torch's global generator.

    Returns:
        A scalar.

    Raises:
        ValueError: shapes do not fit, or an argument is out of range.
    """
    _check_margin(margin)
    if not 0 <= positive_share <= 1:
        raise ValueError(f"positive_share must be in [0, 1], got {positive_share}")
    if not min_distance >= 0:
        raise ValueError(f"min_distance must be at least 0, got {min_distance}")
    way = prepare_pair(map0, map1, points0, points1, is_valid)
    way = _draw_one(way, generator)
    B = len(is_valid)
    is_positive = draw_uniform((B, 1), is_valid.device, generator) < positive_share
    cells = draw_random_cells(way, min_distance=min_distance, generator=generator)  # (B, 1, 1)
    sampled0, sampled1 = sample_pair(way)
    other = torch.where(is_positive[..., None], sampled1, read_cells(way.map_to, cells)[:, :, 0])
    negative = torch.where(cells[..., 0] >= 0, NEGATIVE, IGNORE)
    labels = torch.where(is_positive, torch.where(way.is_valid, POSITIVE, IGNORE), negative)
    return _contrast(sampled0, other, labels, margin)


def _draw_one(way: OneWay, generator: torch.Generator | None) -> OneWay:
    """The same pairs of images with one valid correspondence each, so N = 1."""
    B, N = way.is_valid.shape
    drawn = draw_true(way.is_valid, draw_uniform((B, 1), way.is_valid.device, generator))  # (B, 1)
    points_from, points_to = way.points_from, way.points_to
    if N == 0:
        points_from, points_to = points_from.new_zeros(B, 1, 2), points_to.new_zeros(B, 1, 2)
    index = drawn.clamp(min=0)[..., None].expand(-1, -1, 2)
    return replace(
        way,
        points_from=points_from.gather(1, index),
        points_to=points_to.gather(1, index),
        is_valid=drawn >= 0,
    )
