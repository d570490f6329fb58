"""Eq. 1 by hand, by loops, and on pairs whose two views differ."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.loss_cases import Pair, assert_free, assert_same_gradients, make_pair, views_that_differ
from ucn.geometry.sampling import sample_descriptors
from ucn.losses import (
    IGNORE,
    NEGATIVE,
    POSITIVE,
    MinedNegatives,
    correspondence_contrastive_loss,
    mine_negatives,
    mined_contrastive_loss,
    one_correspondence_contrastive_loss,
)

NOTHING = MinedNegatives(None, None)


def test_by_hand() -> None:
    descriptors0 = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [9.0, 9.0]])
    descriptors1 = torch.tensor([[3.0, 4.0], [0.6, 0.0], [0.0, 5.0], [1.0, 1.0]])
    labels = torch.tensor([POSITIVE, NEGATIVE, NEGATIVE, IGNORE])
    # (25 + (2 - 0.6)² + 0) / (2 · 3)
    loss = correspondence_contrastive_loss(descriptors0, descriptors1, labels, margin=2.0)
    assert loss.item() == pytest.approx((25 + 1.96) / 6)
    assert correspondence_contrastive_loss(descriptors0, descriptors1, labels).item() == pytest.approx(
        (25 + 0.16) / 6
    )


@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 3, 7)])
def test_equals_loops(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (0.3 * torch.randn(*shape, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    labels = torch.randint(-1, 2, shape, generator=generator)
    total, count = 0.0, 0
    rows = zip(first.reshape(-1, 4), second.reshape(-1, 4), labels.flatten().tolist(), strict=True)
    for f0, f1, label in rows:
        if label == IGNORE:
            continue
        distance = math.dist(f0.tolist(), f1.tolist())
        total += distance**2 if label == POSITIVE else max(0.0, 0.8 - distance) ** 2
        count += 1
    loss = correspondence_contrastive_loss(first, second, labels, margin=0.8)
    assert loss.item() == pytest.approx(total / (2 * count), rel=1e-12)


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (
        (0.3 * torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)).requires_grad_()
        for _ in range(2)
    )
    labels = torch.tensor([[1, 0, 0, -1, 1, 0]] * 2)
    assert torch.autograd.gradcheck(
        lambda a, b: correspondence_contrastive_loss(a, b, labels), (first, second)
    )


def test_gradient_at_distance_zero_is_finite() -> None:
    first = torch.ones(3, 4, requires_grad=True)
    second = torch.ones(3, 4, requires_grad=True)
    loss = correspondence_contrastive_loss(first, second, torch.tensor([POSITIVE, NEGATIVE, IGNORE]))
    assert loss.item() == pytest.approx(0.25)
    torch.autograd.backward(loss)
    assert first.grad is not None and first.grad.abs().max() == 0


def test_ignored_pairs_reach_neither_loss_nor_gradient() -> None:
    first = torch.tensor([[1.0, 0.0], [float("nan"), 0.0]], requires_grad=True)
    second = torch.tensor([[0.0, 1.0], [0.0, float("inf")]], requires_grad=True)
    loss = correspondence_contrastive_loss(first, second, torch.tensor([POSITIVE, IGNORE]))
    assert loss.item() == pytest.approx(1.0)
    torch.autograd.backward(loss)
    assert first.grad is not None and first.grad.tolist() == [[1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize("P", [0, 3])
def test_nothing_left_gives_zero_with_a_gradient(P: int) -> None:
    first = torch.ones(P, 2, requires_grad=True)
    loss = correspondence_contrastive_loss(first, torch.zeros(P, 2), torch.full((P,), IGNORE))
    assert_free(loss, first)


def test_batch_weighs_each_pair_of_points_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 5, 3, generator=generator), torch.randn(2, 5, 3, generator=generator)
    labels = torch.tensor([[1, 0, 1, 1, 0], [1, -1, -1, -1, 0]])
    parts = [correspondence_contrastive_loss(first[b], second[b], labels[b]).item() for b in range(2)]
    whole = correspondence_contrastive_loss(first, second, labels)
    assert whole.item() == pytest.approx((5 * parts[0] + 2 * parts[1]) / 7)


def test_half_precision_is_computed_in_float32() -> None:
    first, second = torch.full((4, 8), 0.1).bfloat16(), torch.full((4, 8), 0.2).bfloat16()
    labels = torch.ones(4, dtype=torch.int64)
    loss = correspondence_contrastive_loss(first, second, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == correspondence_contrastive_loss(first.float(), second.float(), labels).item()


def test_errors() -> None:
    some, labels = torch.zeros(3, 2), torch.ones(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"both be \(..., P, D\), got \(3, 2\) and \(2, 2\)"):
        correspondence_contrastive_loss(some, some[:2], labels)
    with pytest.raises(ValueError, match=r"labels must be integer \(3,\), got torch.int64 \(2,\)"):
        correspondence_contrastive_loss(some, some, labels[:2])
    with pytest.raises(ValueError, match=r"labels must be integer \(3,\), got torch.bool"):
        correspondence_contrastive_loss(some, some, labels.bool())
    with pytest.raises(ValueError, match="labels must be -1, 0 or 1, got 1 to 2"):
        correspondence_contrastive_loss(some, some, labels + torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match="margin must be above 0, got 0"):
        correspondence_contrastive_loss(some, some, labels, margin=0.0)


def mined_by_loop(pair: Pair, mined: MinedNegatives, margin: float) -> Tensor:
    sampled0 = sample_descriptors(pair.map0, pair.points0)
    sampled1 = sample_descriptors(pair.map1, pair.points1)
    terms = []
    for b, n in pair.is_valid.nonzero().tolist():
        terms.append((sampled0[b, n] - sampled1[b, n]).square().sum())
        for sampled, candidates, cells in (
            (sampled0, pair.map1, mined.cells_0to1),
            (sampled1, pair.map0, mined.cells_1to0),
        ):
            if cells is None:
                continue
            for cell in cells[b, n].tolist():
                if cell >= 0:
                    y, x = divmod(cell, candidates.grid_hw[1])
                    distance = (sampled[b, n] - candidates.features[b, :, y, x]).norm()
                    terms.append((margin - distance).clamp(min=0) ** 2)
    return torch.stack(terms).sum() / (2 * len(terms))


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_mined_equals_loops_with_gradient(B: int, count: int) -> None:
    pair = make_pair(B=B)
    mined = mine_negatives(*pair.arguments(), method="hardest", radius=9.0, count=count)
    features = (pair.map0.features, pair.map1.features)
    loss = mined_contrastive_loss(*pair.arguments(), mined, margin=1.2)
    expected = mined_by_loop(pair, mined, 1.2)
    assert_same_gradients(loss, expected, features)


def test_mined_by_hand_where_the_views_differ() -> None:
    pair = views_that_differ()
    mined = MinedNegatives(torch.tensor([[[0]]]), torch.tensor([[[3]]]))
    # Positive: both east, 0. View 1, cell 0: east against north, √2. View 0, cell 3: east twice, 0.
    loss = mined_contrastive_loss(*pair.arguments(), mined, margin=2.0)
    assert loss.item() == pytest.approx(((2 - 2**0.5) ** 2 + 4) / 6)


def test_mined_without_negatives_or_points() -> None:
    pair = make_pair(N=4)
    none = torch.full((2, 4, 1), -1)
    positives = correspondence_contrastive_loss(
        sample_descriptors(pair.map0, pair.points0)[:, :3],
        sample_descriptors(pair.map1, pair.points1)[:, :3],
        torch.ones(2, 3, dtype=torch.int64),
    )
    for mined in (NOTHING, MinedNegatives(none, none)):
        torch.testing.assert_close(mined_contrastive_loss(*pair.arguments(), mined), positives)
    for empty in (make_pair(N=0), replace(pair, is_valid=torch.zeros(2, 4, dtype=torch.bool))):
        mined = mine_negatives(*empty.arguments(), method="nearest", radius=4.0)
        loss = mined_contrastive_loss(*empty.arguments(), mined)
        assert_free(loss, empty.map0.features, empty.map1.features)


def test_padding_of_nan_points_reaches_no_gradient() -> None:
    pair = make_pair(N=4)
    padded = torch.where(pair.is_valid[..., None], pair.points0, torch.nan)
    mined = mine_negatives(pair.map0, pair.map1, padded, padded, pair.is_valid, method="hardest", radius=4.0)
    loss = mined_contrastive_loss(pair.map0, pair.map1, padded, padded, pair.is_valid, mined)
    torch.autograd.backward(loss)
    assert pair.map0.features.grad is not None and torch.isfinite(pair.map0.features.grad).all()


def test_cells_of_another_batch_are_refused() -> None:
    mined = MinedNegatives(torch.zeros(2, 3, 1, dtype=torch.int64), None)
    with pytest.raises(ValueError, match=r"cells_0to1 must be \(2, 9, K\), got \(2, 3, 1\)"):
        mined_contrastive_loss(*make_pair().arguments(), mined)
    with pytest.raises(ValueError, match="margin must be above 0, got -1"):
        mined_contrastive_loss(*make_pair().arguments(), NOTHING, margin=-1.0)


def test_one_correspondence_by_hand() -> None:
    pair = views_that_differ()
    # The positive costs 0. The only negative 8 px off is north in view 1: (2 - √2)² / 2.
    for share, expected in ((1.0, 0.0), (0.0, (2 - 2**0.5) ** 2 / 2)):
        loss = one_correspondence_contrastive_loss(
            *pair.arguments(), min_distance=8.0, margin=2.0, positive_share=share
        )
        assert loss.item() == pytest.approx(expected)
    nothing_far = one_correspondence_contrastive_loss(
        *pair.arguments(), min_distance=9.0, margin=2.0, positive_share=0.0
    )
    assert nothing_far.item() == 0


def test_one_correspondence_draws_every_valid_point() -> None:
    pair = make_pair(B=1, N=5)
    sampled0 = sample_descriptors(pair.map0, pair.points0)
    sampled1 = sample_descriptors(pair.map1, pair.points1)
    costs = ((sampled0 - sampled1).square().sum(-1) / 2)[0].tolist()
    generator = torch.Generator().manual_seed(0)
    seen = [0] * 5
    for _ in range(200):
        loss = one_correspondence_contrastive_loss(
            *pair.arguments(), positive_share=1.0, generator=generator
        ).item()
        seen[min(range(5), key=lambda i: abs(costs[i] - loss))] += 1
        assert min(abs(cost - loss) for cost in costs[:4]) < 1e-9
    assert seen[4] == 0  # invalid
    assert min(seen[:4]) > 25


def test_one_correspondence_repeats_and_mixes_labels() -> None:
    pair = make_pair(B=2, N=6)
    losses = [
        [
            one_correspondence_contrastive_loss(
                *pair.arguments(), min_distance=4.0, generator=torch.Generator().manual_seed(seed)
            ).item()
            for seed in range(20)
        ]
        for _ in range(2)
    ]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > 10


def test_one_correspondence_takes_a_transposed_mask() -> None:
    pair = make_pair(B=3, N=4)
    transposed = pair.is_valid.T.contiguous().T
    for is_valid in (pair.is_valid, transposed):
        loss = one_correspondence_contrastive_loss(
            *pair.arguments()[:4], is_valid, positive_share=1.0, generator=torch.Generator().manual_seed(0)
        )
        assert loss.item() > 0


def test_one_correspondence_without_points() -> None:
    for pair in (make_pair(N=0), replace(make_pair(N=3), is_valid=torch.zeros(2, 3, dtype=torch.bool))):
        loss = one_correspondence_contrastive_loss(*pair.arguments())
        assert_free(loss, pair.map0.features)
    with pytest.raises(ValueError, match=r"positive_share must be in \[0, 1\], got 2"):
        one_correspondence_contrastive_loss(*make_pair().arguments(), positive_share=2.0)
    with pytest.raises(ValueError, match="min_distance must be at least 0, got -1"):
        one_correspondence_contrastive_loss(*make_pair().arguments(), min_distance=-1.0)
