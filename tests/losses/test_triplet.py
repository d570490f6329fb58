"""The triplet loss by hand and by loops."""

from __future__ import annotations

import pytest
import torch

from support.loss_cases import assert_free, assert_same_gradients, make_pair, views_that_differ
from ucn.geometry.sampling import sample_descriptors
from ucn.losses import MinedNegatives, mine_negatives, mined_triplet_loss, triplet_loss


def test_by_hand() -> None:
    anchors = torch.zeros(3, 2)
    positives = torch.tensor([[1.0, 0.0], [1.0, 0.0], [float("nan"), 0.0]])
    negatives = torch.tensor([[0.0, 1.2], [0.0, 3.0], [0.0, 0.0]])
    is_valid = torch.tensor([True, True, False])
    # (max(0, 1 - 1.44 + 0.5) + max(0, 1 - 9 + 0.5)) / 2
    loss = triplet_loss(anchors, positives, negatives, is_valid, margin=0.5)
    assert loss.item() == pytest.approx(0.03)


def test_gradcheck_and_nothing_valid() -> None:
    generator = torch.Generator().manual_seed(0)
    a, p, n = (
        torch.randn(2, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    is_valid = torch.tensor([[True, True, False, True]] * 2)
    assert torch.autograd.gradcheck(lambda x, y, z: triplet_loss(x, y, z, is_valid), (a, p, n))
    for rows in (slice(0), slice(4)):
        assert_free(triplet_loss(a[:, rows], p[:, rows], n[:, rows], torch.zeros_like(is_valid[:, rows])), a)


def test_mined_by_hand_where_the_views_differ() -> None:
    mined = MinedNegatives(torch.tensor([[[0, -1]]]), torch.tensor([[[3, 2]]]))
    # Squared distances: positive 0; north in view 1: 2; east and west in view 0: 0 and 4; margin 3.
    loss = mined_triplet_loss(*views_that_differ().arguments(), mined, margin=3.0)
    assert loss.item() == pytest.approx((1 + 3 + 0) / 3)


@pytest.mark.parametrize("B", [1, 2])
def test_mined_equals_loops(B: int) -> None:
    pair = make_pair(B=B)
    mined = mine_negatives(*pair.arguments(), method="nearest", radius=5.0, count=2)
    sampled0 = sample_descriptors(pair.map0, pair.points0)
    sampled1 = sample_descriptors(pair.map1, pair.points1)
    terms = []
    for a, p, feature_map, cells in (
        (sampled0, sampled1, pair.map1, mined.cells_0to1),
        (sampled1, sampled0, pair.map0, mined.cells_1to0),
    ):
        assert cells is not None
        for b, n, k in (cells >= 0).nonzero().tolist():
            other = feature_map.features.flatten(2)[b, :, cells[b, n, k]]
            positive, negative = (a[b, n] - p[b, n]).square().sum(), (a[b, n] - other).square().sum()
            terms.append((positive - negative + 0.7).clamp(min=0))
    expected = torch.stack(terms).mean()
    loss = mined_triplet_loss(*pair.arguments(), mined, margin=0.7)
    assert_same_gradients(loss, expected, (pair.map0.features, pair.map1.features))


def test_mined_without_points() -> None:
    pair = make_pair(N=0)
    loss = mined_triplet_loss(
        *pair.arguments(), mine_negatives(*pair.arguments(), method="hardest", radius=4.0)
    )
    assert_free(loss, pair.map1.features)


def test_errors() -> None:
    some, is_valid = torch.zeros(3, 2), torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"must all be \(..., P, D\), got \(3, 2\), \(3, 2\), \(2, 2\)"):
        triplet_loss(some, some, some[:2], is_valid)
    with pytest.raises(ValueError, match=r"is_valid must be bool \(3,\), got torch.bool \(2,\)"):
        triplet_loss(some, some, some, is_valid[:2])
    with pytest.raises(ValueError, match="margin must be above 0, got 0"):
        triplet_loss(some, some, some, is_valid, margin=0.0)
    with pytest.raises(ValueError, match="at least one direction"):
        mined_triplet_loss(*make_pair().arguments(), MinedNegatives(None, None))
