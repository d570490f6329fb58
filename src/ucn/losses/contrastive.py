"""The correspondence contrastive loss, Eq. 1 of the paper.

`correspondence_contrastive_loss` is the formula, over labelled pairs of descriptors. `mined_contrastive_loss`
applies it to a batch and the negatives of mining.py; this is what a training step calls.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ucn.losses.correspondences import DirectedPair, gather_cells, prepare_pair, sample_pair
from ucn.losses.mining import (
    MinedNegatives,
    gather_negatives,
    sample_random_cells,
    sample_true_indices,
    sample_uniform,
)
from ucn.types import FeatureMap

POSITIVE = 1
NEGATIVE = 0
IGNORE = -1


def correspondence_contrastive_loss(
    descriptors0: Tensor, descriptors1: Tensor, labels: Tensor, margin: float = 1.0
) -> Tensor:
    """Eq. 1: 1/(2N) Σ [ s ‖f − f'‖² + (1 − s) max(0, m − ‖f − f'‖)² ].

    N counts all positive and negative pairs over all leading axes together, so the weight of an image pair is
    proportional to its number of point pairs. If all pairs are ignored, the loss is 0 with a zero gradient.
    At distance 0 the gradient of a negative pair is 0, since it has no direction.

    Args:
        descriptors0: (..., P, D).
        descriptors1: (..., P, D); row i is compared with row i of `descriptors0`.
        labels: (..., P) integers: POSITIVE (1), NEGATIVE (0) or IGNORE (-1).
        margin: m, above 0; a negative pair at this distance or further costs nothing.

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
    # Masked first, so that an ignored pair has no gradient even where it holds NaN.
    difference = torch.where(is_used[..., None], descriptors0.to(dtype) - descriptors1.to(dtype), 0.0)
    squared = difference.square().sum(dim=-1)
    is_apart = squared > 0  # the gradient of sqrt is infinite at 0
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

    Every valid correspondence is a positive pair. Every mined cell and the point it was mined for are a
    negative pair. N of Eq. 1 counts all of them, over the whole batch.

    Args:
        map0: B feature maps of view 0.
        map1: B feature maps of view 1.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        negatives: the result of `mine_negatives` for these maps and points.
        margin: m of Eq. 1.

    Returns:
        A scalar.

    Raises:
        ValueError: shapes do not fit, or the margin is not above 0.
    """
    _check_margin(margin)
    pair = prepare_pair(map0, map1, points0, points1, is_valid)
    sampled0, sampled1 = sample_pair(pair)
    firsts, seconds = [sampled0], [sampled1]
    labels = [torch.where(is_valid, POSITIVE, IGNORE)]
    for mined in gather_negatives(pair, sampled0, sampled1, negatives):
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
    """The classic contrastive loss with one example per image pair (Table 2 of the paper).

    One valid correspondence of each image pair is sampled. With probability `positive_share` it is a positive
    example. Otherwise its point of view 0 and a cell of view 1, sampled uniformly at least `min_distance`
    from the ground truth, are a negative example. An image pair without a valid point is ignored, and so is a
    negative without a cell that far away. The loss is Eq. 1 over these at most B examples.

    Args:
        map0: B feature maps of view 0.
        map1: B feature maps of view 1.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        min_distance: pixels of view 1 between the ground truth and a negative, at least 0.
        margin: m of Eq. 1.
        positive_share: probability of a positive example, in [0, 1].
        generator: on any device; None means torch's global generator.

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
    pair = _sample_one_correspondence(prepare_pair(map0, map1, points0, points1, is_valid), generator)
    B = len(is_valid)
    is_positive = sample_uniform((B, 1), is_valid.device, generator) < positive_share
    cells = sample_random_cells(pair, min_distance=min_distance, generator=generator)  # (B, 1, 1)
    sampled0, sampled1 = sample_pair(pair)
    other = torch.where(is_positive[..., None], sampled1, gather_cells(pair.candidate_map, cells)[:, :, 0])
    negative = torch.where(cells[..., 0] >= 0, NEGATIVE, IGNORE)
    labels = torch.where(is_positive, torch.where(pair.is_valid, POSITIVE, IGNORE), negative)
    return _contrast(sampled0, other, labels, margin)


def _sample_one_correspondence(pair: DirectedPair, generator: torch.Generator | None) -> DirectedPair:
    """The same image pairs with one valid correspondence each, so N = 1."""
    B, N = pair.is_valid.shape
    uniform = sample_uniform((B, 1), pair.is_valid.device, generator)
    chosen = sample_true_indices(pair.is_valid, uniform)  # (B, 1)
    query_points, true_points = pair.query_points, pair.true_points
    if N == 0:
        query_points, true_points = query_points.new_zeros(B, 1, 2), true_points.new_zeros(B, 1, 2)
    index = chosen.clamp(min=0)[..., None].expand(-1, -1, 2)
    return replace(
        pair,
        query_points=query_points.gather(1, index),
        true_points=true_points.gather(1, index),
        is_valid=chosen >= 0,
    )
