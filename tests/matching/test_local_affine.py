"""The local affine prior against a slow loop, on hand-made anchors, and in matching."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.sampling import sample_descriptors
from ucn.matching import local_affine as module
from ucn.matching.cells import (
    add_prior,
    match_forward,
    match_points,
    measure_guidance,
)
from ucn.matching.consensus import measure_consensus
from ucn.matching.local_affine import Lattice, LocalAffine, Prior, fit_local_affine, lay_lattice
from ucn.matching.sub_cell import refine, refine_reference
from ucn.types import FeatureMap

LATTICE = Lattice((20.0, 20.0), 40.0, (3, 4))


def make_map(features: Tensor, stride: int = 4) -> FeatureMap:
    h, w = features.shape[-2:]
    return FeatureMap(F.normalize(features, dim=0)[None], stride, 2.0, (h * stride, w * stride))


def make_smooth_map(seed: int, h: int = 24, w: int = 32) -> FeatureMap:
    """Descriptors that vary smoothly, as those of a network do."""
    noise = torch.randn(1, 32, h // 2, w // 2, generator=torch.Generator().manual_seed(seed))
    return make_map(F.interpolate(noise, (h, w), mode="bilinear", align_corners=False)[0])


def make_anchors(count: int = 80, seed: int = 0) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * torch.tensor([160.0, 120.0])


def fit_slowly(
    points0: Tensor, points1: Tensor, confidences: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor]:
    """The map of one region: normal equations about the region, anchor by anchor, in float64."""
    points0, points1, centre = points0.double(), points1.double(), centre.double()
    linear, place = torch.eye(2, dtype=torch.float64), centre.clone()
    # The first stage fits one map to the whole image; its position does not matter.
    for scale, limits in module.STAGES:
        size = 200.0 if scale == math.inf else scale * module.RADIUS
        for limit in limits:
            weights = []
            for point0, point1, confidence in zip(points0, points1, confidences, strict=True):
                residual = place + linear @ (point0 - centre) - point1
                near = (
                    1.0
                    if scale == math.inf
                    else math.exp(-float((point0 - centre).square().sum()) / (2 * size**2))
                )
                weights.append(
                    float(confidence) * near / (1 + float(residual.square().sum()) / limit**2) ** 2
                )
            total = sum(weights)
            mean0 = sum(w * p for w, p in zip(weights, points0, strict=True)) / total
            mean1 = sum(w * p for w, p in zip(weights, points1, strict=True)) / total
            strength = module.RIDGE * size**2 * (1 + module.FEW_ANCHORS / total)
            within, across = strength * torch.eye(2, dtype=torch.float64), strength * linear
            for w, p, q in zip(weights, points0, points1, strict=True):
                within = within + w / total * torch.outer(p - mean0, p - mean0)
                across = across + w / total * torch.outer(q - mean1, p - mean0)
            linear = across @ torch.linalg.inv(within)
            place = mean1 + linear @ (centre - mean0)
    return linear, place


def test_maps_equal_a_slow_loop() -> None:
    points0 = make_anchors(40)
    generator = torch.Generator().manual_seed(1)
    points1 = points0 @ torch.tensor([[1.1, 0.2], [-0.1, 0.9]]) + torch.tensor([30.0, -10.0])
    points1 = points1 + 3 * torch.randn(40, 2, generator=generator)
    points1[::5] += 60  # outliers
    confidences = torch.rand(40, generator=generator)
    found = fit_local_affine(points0, points1, confidences, LATTICE)
    for row, centre in enumerate(LATTICE.list_points(points0.device)):
        linear, place = fit_slowly(points0, points1, confidences, centre)
        torch.testing.assert_close(found.linear[row], linear.float(), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(found.places[row], place.float(), atol=0.05, rtol=1e-3)


def test_exact_translation_is_found_and_trusted() -> None:
    points0 = make_anchors()
    found = fit_local_affine(points0, points0 + torch.tensor([12.0, -7.0]), torch.ones(80), LATTICE)
    queries = torch.tensor([[33.0, 41.0], [150.0, 5.0]])
    places, spread, trust = found.predict(queries)
    torch.testing.assert_close(places, queries + torch.tensor([12.0, -7.0]), atol=1e-2, rtol=0.0)
    torch.testing.assert_close(spread, torch.full((2,), 5.0), atol=1e-3, rtol=0.0)
    # All anchors agree: the trust is 1 / (1 + HALF_TRUST²).
    torch.testing.assert_close(trust, torch.full((2,), 1 / 1.01), atol=1e-4, rtol=0.0)


def test_outliers_do_not_move_a_map() -> None:
    points0 = make_anchors()
    points1 = points0 @ torch.tensor([[0.9, 0.1], [-0.1, 0.9]]) + 20
    true = points1[1]
    points1[::3] = torch.rand(27, 2, generator=torch.Generator().manual_seed(3)) * 400 + 200
    places, _, trust = fit_local_affine(points0, points1, torch.ones(80), LATTICE).predict(points0[1:2])
    assert (places[0] - true).norm() < 1.0
    assert 0.3 < trust < 0.8  # a third disagrees


def test_trust_vanishes_where_anchors_do_not_agree_or_are_not_confident() -> None:
    points0 = make_anchors()
    anywhere = torch.rand(80, 2, generator=torch.Generator().manual_seed(3)) * 600
    assert fit_local_affine(points0, anywhere, torch.ones(80), LATTICE).trust.max() < 0.15
    assert fit_local_affine(points0, points0, torch.full((80,), 1e-3), LATTICE).trust.max() < 1e-3
    assert fit_local_affine(points0, points0, torch.zeros(80), LATTICE).trust.max() == 0


def test_maps_do_not_extrapolate() -> None:
    points0 = make_anchors() * torch.tensor([0.3, 1.0])  # up to x = 48
    trust = fit_local_affine(points0, points0 + 5, torch.ones(80), LATTICE).trust.view(3, 4)
    # Regions at x = 20, 60, 100 and 140: the third is 52 px, 1.3 radii, from the nearest anchor.
    assert trust[:, :2].min() > 0.9 and trust[:, 2:].max() == 0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_anchors_give_finite_maps(count: int) -> None:
    points0 = torch.tensor([[50.0, 50.0], [60.0, 50.0]])[:count]
    found = fit_local_affine(points0, points0 + 5, torch.ones(count), LATTICE)
    for values in (found.linear, found.places, found.spread, found.trust):
        assert values.isfinite().all()
    if count == 0:
        assert found.trust.max() == 0
    else:  # a translation
        torch.testing.assert_close(found.linear, torch.eye(2).expand(12, 2, 2), atol=0.02, rtol=0.0)
        assert found.predict(points0)[0] == pytest.approx(points0 + 5, abs=0.1)


def test_collinear_anchors_keep_the_linear_part_across_the_line() -> None:
    points0 = torch.stack([torch.arange(20) * 8.0, torch.full((20,), 60.0)], dim=1)
    points1 = points0 * torch.tensor([1.2, 1.0])
    found = fit_local_affine(points0, points1, torch.ones(20), LATTICE)
    assert found.linear[:, 0, 0] == pytest.approx(torch.full((12,), 1.2), abs=0.05)
    assert found.linear[:, 1, 1] == pytest.approx(torch.ones(12), abs=1e-3)


def test_lattice_covers_the_image_and_finds_its_nearest_point() -> None:
    lattice = lay_lattice(make_smooth_map(0), 60)
    points = lattice.list_points(torch.device("cpu"))
    # 24 × 32 cells of 4 px in steps of 4 cells: 6 × 8 points, centred.
    assert lattice == Lattice((8.0, 8.0), 16.0, (6, 8)) and len(points) == 48
    queries = make_anchors(50)
    expected = torch.cdist(queries, points).argmin(dim=1)
    torch.testing.assert_close(lattice.find_nearest(queries), expected)


def test_gaussian_is_added_at_all_cells() -> None:
    target = make_smooth_map(0, 4, 6)
    prior = Prior(torch.tensor([[6.0, 10.0], [2.0, 2.0]]), torch.tensor([4.0, 8.0]), torch.tensor([0.5, 1.0]))
    bonus = torch.ones(1, 24)
    prior.add(bonus, torch.tensor([0]), target)
    # Cell (row 2, column 1) is centred on the place; its right neighbour is 4 px = one deviation away.
    assert bonus.view(4, 6)[2, 1] == pytest.approx(1.5)
    assert bonus.view(4, 6)[2, 2] == pytest.approx(1 + 0.5 * math.exp(-0.5))
    assert prior.rate(torch.tensor([1]), torch.tensor([[10.0, 2.0]]))[0] == pytest.approx(math.exp(-0.5))


def test_prior_decides_between_equally_similar_cells() -> None:
    map0 = make_smooth_map(0)
    features = map0.features[0].clone()
    features[:, 12:16, 20:24] = features[:, 4:8, 4:8]  # a second copy of a part of the image
    map1 = make_map(features)
    points0 = torch.tensor([[24.0, 24.0]])
    consensus = measure_guidance(map0, map1)
    assert consensus.priors is not None
    found = match_points(map0, map1, points0, second_best_radius=16.0, consensus=consensus)
    assert (found.points1 - points0).norm() < 1
    assert found.round_trip_errors[0] < 4
    # A prior that says the copy wins against consensus, forward and backward.
    shifted = replace(consensus.priors[0], places=consensus.priors[0].places + torch.tensor([64.0, 32.0]))
    other = replace(consensus, priors=(shifted, consensus.priors[1]))
    moved = match_forward(map0, map1, points0, consensus=other)
    assert (moved.points - points0 - torch.tensor([64.0, 32.0])).norm() < 1


def test_clear_matches_are_left_alone() -> None:
    map0 = make_smooth_map(0)
    consensus = measure_guidance(map0, map0)
    assert consensus.priors is not None
    wrong = replace(consensus.priors[0], places=consensus.priors[0].places + 60)
    points0 = make_anchors(60) * torch.tensor([0.7, 0.7]) + 6
    found = match_forward(map0, map0, points0, consensus=replace(consensus, priors=(wrong, wrong)))
    assert ((found.points - points0).norm(dim=1) < 1).float().mean() > 0.95


def test_masks_exclude_anchors_and_matches() -> None:
    map0 = make_smooth_map(0)
    allowed = torch.zeros(24, 32, dtype=torch.bool)
    allowed[:, :16] = True
    found = measure_guidance(map0, map0, is_allowed0=allowed.flatten(), is_allowed1=allowed.flatten())
    assert found.priors is not None
    trust = found.priors[0].predict(torch.tensor([[20.0, 40.0]]))[2]
    assert trust > 0.5
    points = match_forward(
        map0, map0, make_anchors(30), consensus=found, is_allowed1=allowed.flatten()
    ).points
    assert points[:, 0].max() < 64
    nothing = torch.zeros(24 * 32, dtype=torch.bool)
    empty = measure_guidance(map0, map0, is_allowed0=nothing, is_allowed1=nothing)
    assert empty.priors is not None and empty.priors[0].trust.max() == 0
    assert empty.priors[1].places.isfinite().all()


def test_priors_swap_with_the_images_and_are_deterministic() -> None:
    map0, map1 = make_smooth_map(0), make_smooth_map(1, 20, 28)
    first, second = (add_prior(map0, map1, measure_consensus(map0, map1)) for _ in range(2))
    assert first.priors is not None and second.priors is not None
    there, back = first.priors
    assert there.lattice != back.lattice
    swapped = first.swap().priors
    assert swapped is not None and swapped[0] is back and swapped[1] is there
    for ours, theirs in zip(first.priors, second.priors, strict=True):
        assert isinstance(ours, LocalAffine)
        torch.testing.assert_close(ours.places, theirs.places, rtol=0.0, atol=0.0)
        assert ours.trust.isfinite().all() and ours.trust.max() < 0.3  # unrelated images


def test_matches_without_a_trusted_prior_are_those_of_consensus() -> None:
    map0, map1 = make_smooth_map(0), make_smooth_map(1)
    consensus = measure_guidance(map0, map1)
    assert consensus.priors is not None
    there, back = (replace(prior, trust=torch.zeros_like(prior.trust)) for prior in consensus.priors)
    points0 = make_anchors(40)
    plain = match_points(
        map0, map1, points0, second_best_radius=16.0, consensus=replace(consensus, priors=None)
    )
    untrusted = match_points(
        map0, map1, points0, second_best_radius=16.0, consensus=replace(consensus, priors=(there, back))
    )
    torch.testing.assert_close(plain.points1, untrusted.points1)
    torch.testing.assert_close(plain.round_trip_errors, untrusted.round_trip_errors)


def test_refinement_moves_to_the_prior_where_descriptors_do_not_decide() -> None:
    flat = make_map(torch.ones(8, 5, 6))
    queries, cell = flat.features[0, :, 0, 0][None].expand(2, -1), torch.tensor([2 * 6 + 3, 1 * 6 + 1])
    places = torch.tensor([[15.3, 8.9], [4.6, 6.2]])  # within a cell of (14, 10) and (6, 6)
    prior = Prior(places, torch.tensor([5.0, 5.0]), torch.tensor([0.5, 0.2]))
    points, similarities = refine_reference(queries, flat, cell, None, prior)
    assert torch.allclose(points, places, atol=0.05)
    assert torch.allclose(similarities, torch.ones(2), atol=1e-5)  # cosines, without the prior


def test_refinement_by_a_prior_is_the_peak_of_the_sum() -> None:
    other = make_smooth_map(3)
    queries = make_smooth_map(4).features[0, :, 5, 7:12].t().contiguous()
    cells = torch.tensor([200, 333, 411, 90, 555])
    generator = torch.Generator().manual_seed(0)
    centres = torch.stack([4 * (cells % 32) + 2.0, 4 * (cells // 32) + 2.0], dim=1)
    places = centres + 4 * torch.rand(5, 2, generator=generator) - 2
    prior = Prior(places, torch.full((5,), 3.0), torch.full((5,), 0.7))
    points, _ = refine_reference(queries, other, cells, None, prior)
    for row in range(5):
        best, found = -math.inf, centres[row]
        for step_y in range(-16, 17):
            for step_x in range(-16, 17):
                point = centres[row] + torch.tensor([step_x, step_y]) / 4
                descriptor = F.normalize(sample_descriptors(other, point[None, None])[0, 0], dim=0)
                value = float(queries[row] @ descriptor) + float(prior.rate(slice(row, row + 1), point[None]))
                if value > best:
                    best, found = value, point
        assert (points[row] - found).abs().max() <= 0.3


def test_weightless_prior_changes_no_refinement_and_chunks_agree() -> None:
    other, queries = make_smooth_map(5), make_smooth_map(6).features[0].flatten(1).t()[:40]
    cells = torch.arange(40) * 17
    prior = Prior(torch.full((40, 2), 9.0), torch.ones(40), torch.zeros(40))
    plain, guided = (refine(queries, other, cells, None, 2**28, which) for which in (None, prior))
    assert torch.equal(plain.points, guided.points)
    heavy = replace(prior, weights=torch.ones(40))
    whole, parts = (refine(queries, other, cells, None, size, heavy) for size in (2**28, 20_000))
    assert torch.allclose(whole.points, parts.points, atol=1e-5)
