"""Neighbourhood consensus against a slow loop, and on cases small enough to do by hand."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.matching import consensus as module
from ucn.matching.cells import match_forward, match_points
from ucn.matching.consensus import Consensus, choose_cells, measure_consensus, measure_support, pool_cells
from ucn.types import FeatureMap


def make_map(features: Tensor, stride: int = 4) -> FeatureMap:
    h, w = features.shape[-2:]
    return FeatureMap(F.normalize(features, dim=0)[None], stride, 2.0, (h * stride, w * stride))


def random_map(D: int, h: int, w: int, seed: int = 0) -> FeatureMap:
    return make_map(torch.randn(D, h, w, generator=torch.Generator().manual_seed(seed)))


def sum_slowly(similarity: Tensor) -> Tensor:
    """`_sum_around` pair by pair, in Python's floats."""
    best = torch.zeros_like(similarity)
    for linear in module.HYPOTHESES:
        for y0, x0, y1, x1 in itertools.product(*map(range, similarity.shape)):
            total = 0.0
            for j in module.SHIFTS:
                # First along y, and the place in between must lie on the grids, too.
                at = (y0 + j, x0, y1 + round(linear[1][1] * j), x1 + round(linear[0][1] * j))
                if not all(0 <= place < size for place, size in zip(at, similarity.shape, strict=True)):
                    continue
                for i in module.SHIFTS:
                    end = (at[0], at[1] + i, at[2] + round(linear[1][0] * i), at[3] + round(linear[0][0] * i))
                    if all(0 <= place < size for place, size in zip(end, similarity.shape, strict=True)):
                        weight = math.exp(-(i * i + j * j) / (2 * module.SPREAD**2))
                        total += weight * float(similarity[end])
            best[y0, x0, y1, x1] = max(float(best[y0, x0, y1, x1]), total)
    return best


@pytest.mark.parametrize("shape", [(3, 4, 2, 5), (1, 1, 1, 1), (8, 1, 1, 8)])
def test_sums_equal_a_slow_loop(shape: tuple[int, ...]) -> None:
    similarity = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(module._sum_around(similarity), sum_slowly(similarity))


def test_two_pairs_that_move_alike_support_each_other() -> None:
    similarity = torch.zeros(1, 3, 1, 3)
    similarity[0, 0, 0, 0] = similarity[0, 2, 0, 2] = 1.0
    found = module._sum_around(similarity)
    # Each counts itself, and the other at a shift of two cells by exp(-0.5 (2 / 4)²).
    assert found[0, 0, 0, 0] == pytest.approx(1 + math.exp(-0.125))
    # Where the second lands elsewhere, no hypothesis explains both.
    similarity = torch.zeros(1, 9, 1, 9)
    similarity[0, 0, 0, 0] = similarity[0, 2, 0, 8] = 1.0
    assert module._sum_around(similarity)[0, 0, 0, 0] == 1.0


def test_support_of_equal_images_is_one_on_the_diagonal() -> None:
    coarse = random_map(64, 6, 7).features[0]
    support = measure_support(coarse, coarse).view(42, 42)
    torch.testing.assert_close(support.diagonal(), torch.ones(42))
    assert support.amax() <= 1
    assert (support - torch.eye(42)).amax() < 0.9


def test_support_of_the_images_in_the_other_order_is_the_transpose() -> None:
    coarse0, coarse1 = (random_map(16, 4, 5, seed).features[0] for seed in (0, 1))
    there, back = measure_support(coarse0, coarse1), measure_support(coarse1, coarse0)
    # The hypotheses contain the inverse of each (rotations and scales), up to rounded steps.
    assert there.shape == (4, 5, 4, 5) and back.shape == (4, 5, 4, 5)
    swapped = Consensus(there, 1, 4, 2.0).swap()
    torch.testing.assert_close(swapped.support, there.permute(2, 3, 0, 1))


def test_coarse_cells_are_normalised_means_of_the_allowed_cells() -> None:
    features = torch.zeros(2, 3, 3)
    features[0], features[1, :, 2] = 1.0, 1.0
    feature_map = make_map(features)
    diagonal = 1 / math.sqrt(2)
    pooled = pool_cells(feature_map, 2)
    assert pooled.shape == (2, 2, 2)
    torch.testing.assert_close(pooled[:, 0, 0], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(pooled[:, 0, 1], torch.tensor([diagonal, diagonal]))
    is_allowed = torch.ones(9, dtype=torch.bool)
    is_allowed[2::3] = False  # the last column
    pooled = pool_cells(feature_map, 2, is_allowed)
    assert pooled[:, :, 1].abs().max() == 0
    torch.testing.assert_close(pooled[:, 1, 0], torch.tensor([1.0, 0.0]))


def test_reading_interpolates_between_coarse_cells() -> None:
    support = torch.zeros(1, 2, 1, 2)
    support[0, 0, 0, 0], support[0, 1, 0, 1] = 1.0, 0.5
    found = Consensus(support, cells=2, stride=4, offset=2.0)
    # Coarse cell 0 covers feature cells 0 and 1 at pixels 2 and 6, so its centre is pixel 4; cell 1's is 12.
    points = torch.tensor([[4.0, 4.0], [8.0, 4.0], [12.0, 4.0], [-50.0, 90.0]])
    rows = found.read_rows(points)
    torch.testing.assert_close(rows[:, 0], torch.tensor([[1.0, 0.0], [0.5, 0.25], [0.0, 0.5], [1.0, 0.0]]))
    pairs = found.read_pairs(points[:2], torch.tensor([[4.0, 4.0], [8.0, 4.0]]))
    torch.testing.assert_close(pairs, torch.tensor([1.0, 0.375]))
    best = found.read_best(points[:2], torch.tensor([[4.0, 4.0], [8.0, 4.0]]))
    torch.testing.assert_close(best, torch.tensor([1.0, 1.0]))
    assert found.read_pairs(points[:1], torch.full((1, 2), torch.nan)).tolist() == [0.0]
    expanded = found.expand_rows(rows[:1], (2, 4))  # feature cells at pixels 2, 6, 10 and 14
    torch.testing.assert_close(expanded, torch.tensor([[1.0, 0.75, 0.25, 0.0] * 2]))
    assert found.read_rows(torch.zeros(0, 2)).shape == (0, 1, 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_expanded_rows_equal_single_reads(seed: int) -> None:
    map0, map1 = random_map(8, 9, 7, seed), random_map(8, 6, 11, seed + 2)
    found = measure_consensus(map0, map1)
    points0 = torch.rand(5, 2, generator=torch.Generator().manual_seed(seed)) * 30
    expanded = found.expand_rows(found.read_rows(points0), map1.grid_hw)
    for cell in (0, 17, 65):
        centre = torch.tensor([[4.0 * (cell % 11) + 2, 4.0 * (cell // 11) + 2]]).expand(5, 2)
        torch.testing.assert_close(expanded[:, cell], found.read_pairs(points0, centre))


def test_the_volume_keeps_to_its_budget() -> None:
    feature_map = random_map(4, 120, 160)
    assert choose_cells(feature_map, feature_map) == 4
    for memory in (2**20, 2**22, 2**26):
        cells = choose_cells(feature_map, feature_map, memory)
        entries = (-(-120 // cells) * -(-160 // cells)) ** 2
        assert 4 * entries * module._COPIES <= memory
    assert choose_cells(feature_map, feature_map, 1) == 160  # one coarse cell at least
    large = random_map(2, 400, 600)
    assert (-(-400 // choose_cells(large, large)) * -(-600 // choose_cells(large, large))) ** 2 <= 2**22


def ambiguous_pair() -> tuple[FeatureMap, FeatureMap, Tensor]:
    """Image 1 is image 0, but one cell is noisy, and a far one looks exactly as it should."""
    generator = torch.Generator().manual_seed(5)
    image0 = torch.randn(16, 24, 48, generator=generator)
    image1 = image0.clone()
    image1[:, 8, 6] += 0.4 * torch.randn(16, generator=generator)
    image1[:, 8, 30] = image0[:, 8, 6]
    return make_map(image0), make_map(image1), torch.tensor([[4.0 * 6 + 2, 4.0 * 8 + 2]])


def test_consensus_decides_between_equal_candidates() -> None:
    map0, map1, point = ambiguous_pair()
    alone = match_forward(map0, map1, point, use_refinement=False)
    assert alone.points.tolist() == [[4.0 * 30 + 2, 34.0]]
    found = measure_consensus(map0, map1)
    guided = match_forward(map0, map1, point, consensus=found, use_refinement=False)
    assert guided.points.tolist() == point.tolist()
    both = match_points(map0, map1, point, second_best_radius=16, consensus=found, use_refinement=False)
    assert both.points1.tolist() == point.tolist()
    assert both.support is not None and both.support.item() > 0.9
    # The overruled candidate is the second best, and more similar than the match.
    assert both.second_best.item() > both.similarities.item()
    assert both.second_best.item() == pytest.approx(alone.similarities.item(), abs=1e-5)


def guide_slowly(map0: FeatureMap, map1: FeatureMap, points: Tensor, found: Consensus) -> Tensor:
    """Rows of the cells that the guided search should find, from full matrices in float64."""
    from ucn.geometry.coords import cell_centres
    from ucn.geometry.sampling import sample_descriptors
    from ucn.matching import cells

    queries = sample_descriptors(map0, points[None])[0].double()
    cosine = queries @ map1.features[0].flatten(1).double()
    centres = cell_centres(map1)
    best = cosine.argmax(dim=1)
    is_far = torch.cdist(centres[best], centres) > cells.CONSENSUS_RADIUS
    lead = cosine.amax(dim=1) - cosine.masked_fill(~is_far, -1).amax(dim=1)
    weight = cells.CONSENSUS_WEIGHT * torch.exp(-lead / cells.CONSENSUS_GAP)
    support = torch.stack([found.read_pairs(points, c.expand(len(points), 2)) for c in centres], dim=1)
    guided = (cosine + weight[:, None] * support.double()).argmax(dim=1)
    at_best = support.gather(1, best[:, None])[:, 0].double()
    moves = (centres[guided] - centres[best]).norm(dim=1)
    return torch.where((lead < weight * (1 - at_best)) & (moves > cells.CONSENSUS_RADIUS), guided, best)


def test_guided_search_equals_full_matrices() -> None:
    generator = torch.Generator().manual_seed(3)
    map0 = make_map(torch.randn(6, 12, 14, generator=generator))
    mixed = map0.features[0].roll(1, dims=2) + 0.3 * torch.randn(6, 12, 14, generator=generator)
    map1 = make_map(mixed)
    points = torch.rand(40, 2, generator=generator) * torch.tensor([56.0, 48.0])
    found = measure_consensus(map0, map1)
    guided = match_forward(map0, map1, points, consensus=found, use_refinement=False)
    rows = guide_slowly(map0, map1, points, found)
    expected = torch.stack([rows % 14, rows // 14], dim=1) * 4.0 + 2
    torch.testing.assert_close(guided.points, expected)
    alone = match_forward(map0, map1, points, use_refinement=False)
    assert (alone.points != guided.points).any()  # the case is not trivial


@pytest.mark.parametrize("count", [0, 1])
def test_masks_and_few_points(count: int) -> None:
    map0, map1 = random_map(8, 8, 8), random_map(8, 8, 8, 1)
    is_allowed = torch.zeros(64, dtype=torch.bool)
    is_allowed[9:20] = True
    found = measure_consensus(map0, map1, is_allowed1=is_allowed)
    points = torch.full((count, 2), 5.0)
    matches = match_points(map0, map1, points, second_best_radius=4, consensus=found, is_allowed1=is_allowed)
    assert matches.points1.shape == (count, 2) and matches.points1.isfinite().all()
    nothing = torch.zeros(64, dtype=torch.bool)
    found = measure_consensus(map0, map1, is_allowed1=nothing)
    matches = match_points(map0, map1, points, second_best_radius=4, consensus=found, is_allowed1=nothing)
    assert matches.points1.isnan().all() and (matches.round_trip_errors == torch.inf).all()
    assert matches.support is not None and (matches.support == 0).all()
