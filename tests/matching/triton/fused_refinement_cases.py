"""Fused sub-cell refinement against the reference in float64; run by `test_triton_refinement`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.matching import sub_cell
from ucn.matching.cells import match_forward
from ucn.matching.local_affine import Prior
from ucn.matching.triton.refinement import can_refine, refine_sub_cell_fused
from ucn.runtime.kernels import without_fused
from ucn.types import FeatureMap

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRIDE, OFFSET = 4, 1.5


def draw_map(D: int, h: int, w: int) -> FeatureMap:
    """Unit descriptors that change smoothly from cell to cell."""
    generator = torch.Generator().manual_seed(D)
    coarse = torch.randn(1, D, h // 3 + 2, w // 3 + 2, generator=generator)
    features = F.interpolate(coarse, (h, w), mode="bilinear", align_corners=True)
    return FeatureMap(F.normalize(features, dim=1), STRIDE, OFFSET, (h * STRIDE, w * STRIDE))


def draw_queries(feature_map: FeatureMap, count: int) -> tuple[Tensor, Tensor]:
    """Descriptors like those between cells, and the cells they are like, some at the border."""
    h, w = feature_map.grid_hw
    generator = torch.Generator().manual_seed(count)
    index = torch.randint(h * w, (count,), generator=generator)
    index[: min(2, count)] = torch.tensor([0, h * w - 1])[: min(2, count)]
    cells = feature_map.features[0].flatten(1).t()
    noise = torch.randn(count, cells.shape[1], generator=generator)
    neighbours = cells[(index + 1).clamp_max(h * w - 1)]
    return F.normalize(cells[index] + 0.7 * neighbours + 0.1 * noise / noise.norm(dim=1, keepdim=True)), index


def refine(
    descriptors: Tensor,
    features: Tensor,
    index: Tensor,
    allowed: Tensor | None = None,
    prior: Prior | None = None,
) -> list[Tensor]:
    given = None if allowed is None else allowed.to(DEVICE)
    gaussian = None
    if prior is not None:
        gaussian = prior.places.to(DEVICE), prior.spread.to(DEVICE), prior.weights.to(DEVICE)
    found = refine_sub_cell_fused(
        descriptors.to(DEVICE),
        features.to(DEVICE),
        index.to(DEVICE),
        given,
        gaussian,
        stride=STRIDE,
        offset=OFFSET,
        fine_steps=sub_cell._FINE_STEPS,
    )
    return [each.cpu().double() for each in found]


def expect(
    descriptors: Tensor, feature_map: FeatureMap, index: Tensor, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    wide = FeatureMap(feature_map.features.double(), STRIDE, OFFSET, feature_map.image_hw)
    return sub_cell.refine_reference(descriptors.double(), wide, index, allowed)


def compare(
    descriptors: Tensor, feature_map: FeatureMap, index: Tensor, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What was found, after comparing it with what torch finds in float64."""
    points, similarities = refine(descriptors, feature_map.features[0], index, allowed)
    expected, expected_similarities = expect(descriptors, feature_map, index, allowed)
    torch.testing.assert_close(similarities, expected_similarities, rtol=0, atol=2e-6)
    torch.testing.assert_close(points, expected.double(), rtol=0, atol=0.02)
    return points, similarities


@pytest.mark.parametrize(
    ("D", "h", "w", "count"), [(5, 1, 7, 9), (16, 6, 1, 5), (33, 7, 9, 40), (130, 4, 5, 6), (64, 2, 2, 1)]
)
def test_positions_and_similarities(D: int, h: int, w: int, count: int) -> None:
    feature_map = draw_map(D, h, w)
    descriptors, index = draw_queries(feature_map, count)
    points, _ = compare(descriptors, feature_map, index)
    assert (points >= OFFSET - 1e-6).all()
    assert (points <= torch.tensor([w - 1, h - 1]) * STRIDE + OFFSET + 1e-6).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cells_that_are_not_the_nearest(sign: float) -> None:
    # The best place then often lies at the edge of what is tried, along one axis or both.
    feature_map = draw_map(24, 6, 7)
    generator = torch.Generator().manual_seed(5)
    descriptors = F.normalize(torch.randn(60, 24, generator=generator), dim=1)
    if sign < 0:  # all similarities below 0
        common = F.normalize(torch.ones(24), dim=0)
        features = F.normalize(feature_map.features + 2 * common[:, None, None], dim=1)
        feature_map = FeatureMap(features, STRIDE, OFFSET, feature_map.image_hw)
        descriptors = F.normalize(0.2 * descriptors - common, dim=1)
    index = torch.randint(42, (60,), generator=generator)
    _, similarities = compare(descriptors, feature_map, index)
    assert (similarities < 0).any()
    assert (similarities < 0).all() == (sign < 0)


def test_opposite_neighbours() -> None:
    # Halfway between them a descriptor has no length.
    features = torch.zeros(1, 3, 3, 3)
    features[:, 0] = torch.tensor([[1.0, -1, 1], [-1, 1, -1], [1, -1, 1]])
    features[:, 1] = 0.05
    feature_map = FeatureMap(F.normalize(features, dim=1), STRIDE, OFFSET, (12, 12))
    descriptors = F.normalize(torch.tensor([[0.1, 1.0, 0.0], [1.0, 0.1, 0.0]]), dim=1)
    index = torch.tensor([4, 4])
    similarities = refine(descriptors, feature_map.features[0], index)[1]
    expected = expect(descriptors, feature_map, index)[1]
    torch.testing.assert_close(similarities, expected, rtol=0, atol=1e-4)


def test_one_cell() -> None:
    feature_map = FeatureMap(torch.ones(1, 1, 1, 1), STRIDE, OFFSET, (4, 4))
    points, similarities = compare(torch.tensor([[1.0], [-1.0]]), feature_map, torch.tensor([0, 0]))
    assert points.tolist() == [[OFFSET, OFFSET]] * 2
    assert similarities.tolist() == [1, -1]


def test_cells_that_are_not_allowed() -> None:
    feature_map = draw_map(20, 6, 8)
    allowed = torch.rand(48, generator=torch.Generator().manual_seed(0)) < 0.6
    descriptors, index = draw_queries(feature_map, 30)
    is_own = allowed[index]
    descriptors, index = descriptors[is_own], index[is_own]
    assert len(index) > 5
    similarities = compare(descriptors, feature_map, index, allowed)[1]
    everywhere = expect(descriptors, feature_map, index)[1]
    assert (everywhere > similarities + 1e-3).any()
    # Where none is, the first place that is tried stands for all, as little alike as can be.
    similarities = compare(descriptors, feature_map, index, torch.zeros(48, dtype=torch.bool))[1]
    assert (similarities == -1).all()


def test_a_prior_draws_matches() -> None:
    feature_map = draw_map(20, 6, 8)
    descriptors, index = draw_queries(feature_map, 30)
    generator = torch.Generator().manual_seed(2)
    centres = torch.stack([index % 8, index // 8], dim=1) * STRIDE + OFFSET
    weights = torch.rand(30, generator=generator)
    weights[:3] = 0
    prior = Prior(centres + 3 * torch.randn(30, 2, generator=generator), torch.full((30,), 5.0), weights)
    points, similarities = refine(descriptors, feature_map.features[0], index, None, prior)
    wide = FeatureMap(feature_map.features.double(), STRIDE, OFFSET, feature_map.image_hw)
    expected = sub_cell.refine_reference(descriptors.double(), wide, index, None, prior)
    torch.testing.assert_close(points, expected[0].double(), rtol=0, atol=0.02)
    torch.testing.assert_close(similarities, expected[1], rtol=0, atol=2e-6)
    alone = refine(descriptors, feature_map.features[0], index)[0]
    assert torch.equal(points[:3], alone[:3]) and (points - alone).norm(dim=1).max() > 0.5


def test_either_layout() -> None:
    feature_map = draw_map(24, 5, 6)
    descriptors, index = draw_queries(feature_map, 12)
    points, similarities = compare(descriptors, feature_map, index)
    features = feature_map.features.contiguous(memory_format=torch.channels_last)
    rows = descriptors.t().contiguous().t()  # values apart
    for found in (refine(descriptors, features[0], index), refine(rows, feature_map.features[0], index)):
        torch.testing.assert_close(found[0], points, rtol=0, atol=1e-3)
        torch.testing.assert_close(found[1], similarities, rtol=0, atol=1e-6)


def test_what_it_takes() -> None:
    rows, features = torch.zeros(2, 3), torch.zeros(3, 4, 5)
    assert can_refine(rows, features)
    assert not can_refine(rows.double(), features)
    assert not can_refine(rows, features.bfloat16())
    assert not can_refine(torch.zeros(2, 513), torch.zeros(513, 4, 5))
    rows.requires_grad_()
    assert not can_refine(rows, features)
    with torch.no_grad():
        assert can_refine(rows, features)


@pytest.mark.skipif(DEVICE == "cpu", reason="it chooses the program for CUDA devices alone")
@pytest.mark.parametrize("count", [0, 1, 200])
def test_matches_on_a_gpu_as_without_fused_kernels(count: int) -> None:
    map0, map1 = (draw_map(32, 30, 40) for _ in range(2))
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([159.0, 119.0])
    there0, there1 = (FeatureMap(m.features.to(DEVICE), STRIDE, OFFSET, m.image_hw) for m in (map0, map1))
    found = match_forward(there0, there1, points.to(DEVICE))
    with without_fused():
        expected = match_forward(there0, there1, points.to(DEVICE))
    torch.testing.assert_close(found.similarities, expected.similarities, rtol=0, atol=1e-5)
    assert ((found.points - expected.points).norm(dim=1) < 0.05).float().mean() >= 0.98 or not count
