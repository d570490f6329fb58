"""Pairs of feature maps whose two views differ in everything, for the tests of losses and mining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.types import FeatureMap


@dataclass(frozen=True)
class Pair:
    """The arguments that every mined loss begins with."""

    map0: FeatureMap
    map1: FeatureMap
    points0: Tensor
    points1: Tensor
    is_valid: Tensor

    def arguments(self) -> tuple[FeatureMap, FeatureMap, Tensor, Tensor, Tensor]:
        return self.map0, self.map1, self.points0, self.points1, self.is_valid

    def item(self, b: int) -> Pair:
        rows = slice(b, b + 1)
        return Pair(self.map0[b], self.map1[b], self.points0[rows], self.points1[rows], self.is_valid[rows])


def make_map(features: Tensor, stride: int = 4, offset: float = 2.0) -> FeatureMap:
    h, w = features.shape[-2:]
    return FeatureMap(features, stride, offset, (h * stride, w * stride))


def make_pair(
    B: int = 2,
    N: int = 9,
    D: int = 5,
    grid0_hw: tuple[int, int] = (5, 8),
    grid1_hw: tuple[int, int] = (7, 6),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Pair:
    """Random unit maps of different sizes, unrelated points, the last point of each image invalid."""
    generator = torch.Generator().manual_seed(seed)
    maps, points = [], []
    for h, w in (grid0_hw, grid1_hw):
        features = F.normalize(torch.randn(B, D, h, w, generator=generator, dtype=torch.float64), dim=1)
        maps.append(make_map(features.to(dtype).requires_grad_()))
        size = torch.tensor([4.0 * w, 4.0 * h], dtype=torch.float64)
        points.append((torch.rand(B, N, 2, generator=generator, dtype=torch.float64) * size - 0.5).to(dtype))
    is_valid = torch.ones(B, N, dtype=torch.bool)
    is_valid[:, -1:] = False
    return Pair(maps[0], maps[1], points[0], points[1], is_valid)


def views_that_differ() -> Pair:
    """One point: at cell 0 of a 1 x 4 map in view 0, at cell 2 of a 1 x 3 map in view 1."""
    east, north, west = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
    map0 = make_map(torch.tensor([east, north, west, east]).T[None, :, None])
    map1 = make_map(torch.tensor([north, west, east]).T[None, :, None])
    points0, points1 = torch.tensor([[[2.0, 2.0]]]), torch.tensor([[[10.0, 2.0]]])
    return Pair(map0, map1, points0, points1, torch.ones(1, 1, dtype=torch.bool))


def assert_free(loss: Tensor, *leaves: Tensor) -> None:
    """Checks that a loss is 0, and that its gradients are zeros."""
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, leaves):
        assert (gradient == 0).all()


def assert_same_gradients(loss: Tensor, expected: Tensor, leaves: Sequence[Tensor]) -> None:
    """Checks that two losses are equal, and so are their gradients."""
    torch.testing.assert_close(loss, expected)
    for found, wanted in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(found, wanted)
