"""InfoNCE by hand, against the full matrix, and by gradcheck."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.loss_cases import (
    Pair,
    assert_free,
    assert_same_gradients,
    make_map,
    make_pair,
    views_that_differ,
)
from ucn.geometry.sampling import sample_descriptors
from ucn.losses import infonce_loss
from ucn.types import Direction


def full_matrix_loss(pair: Pair, temperature: float, radius: float, direction: Direction) -> Tensor:
    """The definition, point by point, with all similarities at once."""
    sampled0 = sample_descriptors(pair.map0, pair.points0)
    sampled1 = sample_descriptors(pair.map1, pair.points1)
    ways = {
        "0to1": (sampled0, sampled1, pair.map1, pair.points1),
        "1to0": (sampled1, sampled0, pair.map0, pair.points0),
    }
    terms = []
    for name, (queries, truth, candidates, points) in ways.items():
        if direction not in (name, "both"):
            continue
        h, w = candidates.grid_hw
        for b, n in pair.is_valid.nonzero().tolist():
            px, py = points[b, n].tolist()
            logits = [(queries[b, n] * truth[b, n]).sum() / temperature]
            for y in range(h):
                for x in range(w):
                    if math.hypot(4 * x + 2 - px, 4 * y + 2 - py) > radius:
                        logits.append((queries[b, n] * candidates.features[b, :, y, x]).sum() / temperature)
            terms.append(-torch.stack(logits).log_softmax(dim=0)[0])
    return torch.stack(terms).mean()


def test_by_hand_where_the_views_differ() -> None:
    arguments = views_that_differ().arguments()
    # View 1 outside 5 px of (10, 2): north, similarity 0. View 0 outside 5 px of (2, 2): west -1 and east 1.
    forth, back = math.log(1 + math.exp(-1)), math.log(1 + math.exp(-2) + 1)
    for direction, expected in (("0to1", forth), ("1to0", back), ("both", (forth + back) / 2)):
        loss = infonce_loss(*arguments, temperature=1.0, radius=5.0, direction=direction)  # type: ignore[arg-type]
        assert loss.item() == pytest.approx(expected)
    # At 8 px the cell of view 1 is no longer outside, and view 0 keeps its last cell only.
    assert infonce_loss(*arguments, temperature=1.0, radius=8.0, direction="0to1").item() == 0
    tight = infonce_loss(*arguments, temperature=1.0, radius=8.0, direction="1to0")
    assert tight.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("direction", ["0to1", "1to0", "both"])
@pytest.mark.parametrize("memory_bytes", [1, 4000, 20_000, 2**28])
def test_equals_the_full_matrix_with_gradient(B: int, direction: Direction, memory_bytes: int) -> None:
    pair = make_pair(B=B, N=6)
    features = (pair.map0.features, pair.map1.features)
    expected = full_matrix_loss(pair, 0.2, 9.0, direction)
    loss = infonce_loss(
        *pair.arguments(), temperature=0.2, radius=9.0, direction=direction, memory_bytes=memory_bytes
    )
    assert_same_gradients(loss, expected, features)


def test_gradcheck() -> None:
    pair = make_pair(B=2, N=3, D=3, grid0_hw=(2, 3), grid1_hw=(3, 2))

    def loss(features0: Tensor, features1: Tensor) -> Tensor:
        maps = replace(pair.map0, features=features0), replace(pair.map1, features=features1)
        return infonce_loss(*maps, *pair.arguments()[2:], temperature=0.5, radius=5.0, memory_bytes=500)

    assert torch.autograd.gradcheck(loss, (pair.map0.features, pair.map1.features))


def test_channels_last_maps_give_the_same() -> None:
    pair = make_pair()
    loss = infonce_loss(*pair.arguments(), radius=6.0)
    last0, last1 = (
        make_map(m.features.contiguous(memory_format=torch.channels_last)) for m in (pair.map0, pair.map1)
    )
    other = infonce_loss(last0, last1, *pair.arguments()[2:], radius=6.0)
    assert_same_gradients(other, loss, (pair.map0.features, pair.map1.features))


def test_no_negatives_give_zero_and_a_zero_gradient() -> None:
    pair = make_pair()
    assert_free(infonce_loss(*pair.arguments(), radius=1000.0), pair.map0.features)


def test_a_point_without_negatives_beside_one_with_some() -> None:
    pair = make_pair(B=1, N=3, grid0_hw=(1, 1), grid1_hw=(1, 9))
    expected = full_matrix_loss(pair, 0.1, 10.0, "both")  # view 0 has one cell, near every point
    loss = infonce_loss(*pair.arguments(), temperature=0.1, radius=10.0)
    torch.testing.assert_close(loss, expected)
    torch.autograd.backward(loss)
    assert pair.map0.features.grad is not None and torch.isfinite(pair.map0.features.grad).all()


@pytest.mark.parametrize("N", [0, 3])
def test_no_points_give_zero_and_a_zero_gradient(N: int) -> None:
    pair = replace(make_pair(N=N), is_valid=torch.zeros(2, N, dtype=torch.bool))
    nowhere = torch.full_like(pair.points0, float("nan"))
    loss = infonce_loss(pair.map0, pair.map1, nowhere, nowhere, pair.is_valid)
    assert_free(loss, pair.map0.features, pair.map1.features)


def test_batch_weighs_each_point_the_same() -> None:
    pair = make_pair(N=5)
    is_valid = torch.tensor([[True] * 5, [True, True, False, False, False]])
    pair = replace(pair, is_valid=is_valid)
    parts = [infonce_loss(*pair.item(b).arguments(), radius=6.0).item() for b in range(2)]
    whole = infonce_loss(*pair.arguments(), radius=6.0)
    assert whole.item() == pytest.approx((5 * parts[0] + 2 * parts[1]) / 7)


def test_autocast_computes_in_float32() -> None:
    pair = make_pair(dtype=torch.float32)
    features = (pair.map0.features, pair.map1.features)
    loss = infonce_loss(*pair.arguments(), radius=6.0)
    gradients = torch.autograd.grad(loss, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = infonce_loss(*pair.arguments(), radius=6.0)
        cast_gradients = torch.autograd.grad(cast, features)
    assert cast.dtype == torch.float32
    assert cast.item() == loss.item()
    for found, wanted in zip(cast_gradients, gradients, strict=True):
        assert torch.equal(found, wanted)


def test_bfloat16_maps_get_bfloat16_gradients() -> None:
    pair = make_pair(dtype=torch.float32)
    halves = [m.features.detach().bfloat16().requires_grad_() for m in (pair.map0, pair.map1)]
    maps = make_map(halves[0]), make_map(halves[1])
    loss = infonce_loss(*maps, *pair.arguments()[2:], radius=6.0)
    assert loss.dtype == torch.float32
    torch.autograd.backward(loss)
    assert halves[0].grad is not None and halves[0].grad.dtype == torch.bfloat16
    assert halves[0].grad.abs().max() > 0


def test_errors() -> None:
    arguments = make_pair().arguments()
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        infonce_loss(*arguments, temperature=0.0)
    with pytest.raises(ValueError, match="radius must be at least 0, got -2"):
        infonce_loss(*arguments, radius=-2.0)
    with pytest.raises(ValueError, match="memory_bytes must be at least 1, got 0"):
        infonce_loss(*arguments, memory_bytes=0)
    with pytest.raises(ValueError, match="direction must be one of 0to1, 1to0, both, got 'back'"):
        infonce_loss(*arguments, direction="back")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"points0 must be float \(2, 9, 2\)"):
        infonce_loss(*arguments[:2], arguments[2][:, :4], *arguments[3:])
