"""The fused guided search and the fused local affine maps; run by `test_triton_guidance`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.matching import cells, local_affine
from ucn.matching.consensus import measure_consensus
from ucn.matching.triton.guided import can_guide, guide_fused
from ucn.matching.triton.local_affine import fit_regions_fused
from ucn.runtime.kernels import without_fused
from ucn.types import FeatureMap

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw_map(seed: int, D: int, h: int, w: int) -> FeatureMap:
    """Unit descriptors that change smoothly from cell to cell."""
    coarse = torch.randn(1, D, h // 2 + 1, w // 2 + 1, generator=torch.Generator().manual_seed(seed))
    features = F.interpolate(coarse, (h, w), mode="bilinear", align_corners=True)
    return FeatureMap(F.normalize(features, dim=1), 4, 1.5, (h * 4, w * 4))


@pytest.mark.parametrize(
    ("D", "size0", "size1", "count"), [(24, (14, 17), (11, 19), 70), (70, (8, 9), (9, 3), 3)]
)
def test_guided_search(D: int, size0: tuple[int, int], size1: tuple[int, int], count: int) -> None:
    map0, map1 = draw_map(1, D, *size0), draw_map(2, D, *size1)
    generator = torch.Generator().manual_seed(count)
    points = torch.rand(count, 2, generator=generator) * torch.tensor([size0[1], size0[0]]) * 4
    queries = cells._Queries.read(map0, points, measure_consensus(map0, map1))
    target = cells._select_cells(map1, None)
    best = cells._find_cells(replace(queries, consensus=None), target, 2**28)
    is_open = torch.rand(count, generator=generator) < 0.7
    weights = 0.5 * torch.rand(count, generator=generator)
    prior = local_affine.Prior(
        torch.rand(count, 2, generator=generator) * 40,
        5 + 5 * torch.rand(count, generator=generator),
        torch.rand(count, generator=generator),
    )
    expected = cells._compare_all(queries, target, best, is_open, weights, prior, 2**28)
    assert queries.consensus is not None and can_guide(queries.descriptors, map1.features)
    rows, shares = queries.consensus.find_rows(points)
    given = [
        queries.descriptors, map1.features[0], is_open, queries.consensus.support.flatten(0, 1), rows,
        weights[:, None] * shares, prior.places, prior.spread, prior.weights,
    ]  # fmt: skip
    found = guide_fused(
        *(each.to(DEVICE) for each in given),
        cells_per_coarse=queries.consensus.cells,
        stride=map1.stride,
        offset=map1.offset,
    )
    assert is_open.any()
    assert torch.equal(found[0].cpu()[is_open], expected[0][is_open])
    torch.testing.assert_close(found[1].cpu()[is_open], expected[1][is_open], rtol=0, atol=1e-5)


@pytest.mark.parametrize("has_prior", [True, False])
@pytest.mark.parametrize("is_part", [True, False])
def test_decisions(has_prior: bool, is_part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    map0, map1 = draw_map(1, 24, 14, 17), draw_map(2, 24, 14, 17)
    map1 = replace(map1, features=F.normalize(map0.features.roll(2, dims=3) + 1.7 * map1.features, dim=1))
    with without_fused():
        consensus = cells.measure_guidance(map0, map1)
        consensus = consensus if has_prior else replace(consensus, priors=None)
    generator = torch.Generator().manual_seed(1)
    points = (torch.rand(70, 2, generator=generator) * torch.tensor([68.0, 56.0])).round()
    is_wanted = torch.rand(70, generator=generator) < 0.8 if is_part else None
    queries, target = cells._Queries.read(map0, points, consensus), cells._select_cells(map1, None)
    best = cells._find_cells(replace(queries, consensus=None), target, 2**28)
    with without_fused():
        expected = cells._find_guided(queries, target, best, 2**28, is_wanted)
    monkeypatch.setattr(cells, "_can_guide", lambda *_: True)
    found = cells._find_guided(queries, target, best, 2**28, is_wanted)
    assert torch.equal(found.index, expected.index) and (found.index != best.index).any()
    torch.testing.assert_close(found.similarities, expected.similarities)
    assert found.prior is not None and expected.prior is not None
    torch.testing.assert_close(found.prior.places, expected.prior.places, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.prior.weights, expected.prior.weights)
    torch.testing.assert_close(found.prior.spread, expected.prior.spread)


def test_nothing_is_open() -> None:
    rows, zeros = torch.zeros(5, 4, dtype=torch.int64, device=DEVICE), torch.zeros(5, device=DEVICE)
    index, similarities = guide_fused(
        torch.zeros(5, 3, device=DEVICE), torch.zeros(3, 4, 4, device=DEVICE), zeros.bool(),
        torch.zeros(1, 1, 1, device=DEVICE), rows, zeros[:, None].expand(5, 4), zeros[:, None].expand(5, 2),
        zeros + 1, zeros, cells_per_coarse=4, stride=4.0, offset=1.5,
    )  # fmt: skip
    assert index.shape == similarities.shape == (5,)


def fit(points0: Tensor, points1: Tensor, confidences: Tensor, lattice: local_affine.Lattice) -> list[Tensor]:
    found = fit_regions_fused(
        points0.to(DEVICE),
        points1.to(DEVICE),
        confidences.to(DEVICE),
        lattice.list_points(torch.device(DEVICE)),
        steps=local_affine.list_steps(local_affine.RADIUS),
        few_anchors=local_affine.FEW_ANCHORS,
        min_share=local_affine.MIN_SHARE,
        half_trust=local_affine.HALF_TRUST,
        min_spread=5.0,
        spread_gain=local_affine.SPREAD_GAIN,
    )
    return [each.cpu() for each in found]


@pytest.mark.parametrize(("count", "is_trusted"), [(70, True), (1, True), (20, False)])
def test_local_affine_maps(count: int, is_trusted: bool) -> None:
    generator = torch.Generator().manual_seed(count)
    lattice = local_affine.Lattice((20.0, 20.0), 40.0, (3, 4))
    points0 = torch.rand(count, 2, generator=generator) * torch.tensor([160.0, 120.0])
    points1 = points0 @ torch.tensor([[1.1, 0.2], [-0.1, 0.9]]) + torch.tensor([30.0, -10.0])
    points1 += 2 * torch.randn(count, 2, generator=generator)
    points1[1::4] = 150 * torch.rand(len(points1[1::4]), 2, generator=generator)
    confidences = torch.rand(count, generator=generator) * is_trusted
    expected = local_affine.fit_local_affine(points0, points1, confidences, lattice)
    linear, places, spread, trust = fit(points0, points1, confidences, lattice)
    torch.testing.assert_close(linear, expected.linear, rtol=0, atol=1e-4)
    torch.testing.assert_close(places, expected.places, rtol=0, atol=2e-3)
    torch.testing.assert_close(spread, expected.spread, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(trust, expected.trust, rtol=0, atol=1e-5)
    assert bool(trust.max() > 0.3) == is_trusted
