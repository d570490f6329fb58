"""DSP: its graph, messages and costs against slow ones, and shifts with a known answer."""

from itertools import product

import pytest
import torch
from torch import Tensor

from support.flow_cases import deform_texture, find_errors
from ucn.features.classical import DenseSift, PixelSift
from ucn.features.pair_matcher import NearestNeighbours
from ucn.paper.dsp import SpatialPyramid, leaf_costs, list_edges, minimise_on_graph, spread_l1
from ucn.types import FeatureMap


def test_spreading_against_loops() -> None:
    costs = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(0)) * 5
    found = spread_l1(costs, 0.7)
    for k, y, x in product(range(2), range(4), range(5)):
        wanted = min(
            float(costs[k, v, u]) + 0.7 * (abs(v - y) + abs(u - x)) for v, u in product(range(4), range(5))
        )
        assert float(found[k, y, x]) == pytest.approx(wanted, rel=1e-5)


def test_the_graph() -> None:
    edges = list_edges()
    assert len(edges) == len({frozenset(edge) for edge in edges}) == 4 + 24 + 4 + 16
    tied = {node: sum(node in edge for edge in edges) for node in range(21)}
    assert tied[0] == 4  # its quarters
    assert all(tied[node] == 2 + 1 + 4 for node in range(1, 5))  # neighbours, the image, its own quarters
    assert (tied[5], tied[6], tied[10]) == (2 + 1, 3 + 1, 4 + 1)  # corner, edge, middle
    assert {(4, 15), (4, 16), (4, 19), (4, 20)} <= set(edges)  # the last quarter's


def graph_energy(
    costs: Tensor, edges: list[tuple[int, int]], weight: float, limit: float, states: list[tuple[int, int]]
) -> float:
    """The energy of states (x, y), added up term by term."""
    total = sum(float(costs[node, y, x]) for node, (x, y) in enumerate(states))
    for a, b in edges:
        apart = abs(states[a][0] - states[b][0]) + abs(states[a][1] - states[b][1])
        total += min(weight * apart, limit)
    return total


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [0.8, 9.0])
def test_trees_are_solved_exactly(seed: int, limit: float) -> None:
    costs = torch.rand(4, 2, 3, generator=torch.Generator().manual_seed(seed)) * 2
    edges = [(0, 1), (1, 2), (1, 3)]
    found = [(x, y) for x, y in minimise_on_graph(costs, edges, 0.4, limit, 30).tolist()]
    places = list(product(range(3), range(2)))
    least = min(graph_energy(costs, edges, 0.4, limit, list(choice)) for choice in product(places, repeat=4))
    assert graph_energy(costs, edges, 0.4, limit, found) == pytest.approx(least, rel=1e-4)


def test_nodes_without_a_view_follow_the_others() -> None:
    costs = torch.ones(21, 5, 5)
    costs[5:13, 1, 4] = 0.0  # half of the smallest nodes
    found = minimise_on_graph(costs, list_edges(), 0.2, 5.0, 20)
    assert (found == torch.tensor([4, 1])).all()


def test_costs_of_leaves_against_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    features0 = torch.rand(3, 8, 9, generator=generator)
    features1 = torch.rand(3, 6, 10, generator=generator)
    is_allowed1 = torch.rand(60, generator=generator) > 0.2
    limit, reach = 1.2, (3, 4)
    found = leaf_costs(features0, features1, reach, 32, limit, is_allowed1)
    assert found.shape == (4, 4, 7, 9)
    for i, j, down, right in product(range(4), range(4), (0, 2, 3, 6), (0, 4, 5, 8)):
        cells = [(y, x) for y in range(8) for x in range(9) if (4 * y // 8, 4 * x // 9) == (i, j)]
        costs = []
        for y, x in cells:
            y1, x1 = y + down - 3, x + right - 4
            if 0 <= y1 < 6 and 0 <= x1 < 10 and is_allowed1[10 * y1 + x1]:
                costs.append(min(limit, float((features0[:, y, x] - features1[:, y1, x1]).abs().sum())))
            else:
                costs.append(limit)
        assert float(found[i, j, down, right]) == pytest.approx(sum(costs) / len(costs), rel=1e-5)


def test_few_samples_still_speak_for_each_leaf() -> None:
    features = torch.rand(3, 64, 80, generator=torch.Generator().manual_seed(1))
    found = leaf_costs(features, features, (8, 8), 8, 9.0, None)
    assert (found[:, :, 8, 8] == 0).all()
    assert (found.flatten(2).argmin(dim=-1) == 8 * 17 + 8).all()


def test_a_shift_and_waves() -> None:
    views = deform_texture((112, 128), (24.0, -11.0), waves=3.0)
    errors = find_errors(PixelSift(stride=4, bin_pixels=4.5), SpatialPyramid(), views)
    assert errors.quantile(0.9) < 2
    alone = find_errors(PixelSift(stride=4, bin_pixels=4.5), NearestNeighbours(), views)
    assert (errors > 10).sum() < 0.2 * (alone > 10).sum()


def test_repetition_is_resolved_by_the_nodes() -> None:
    # Two copies of a texture side by side: only their surroundings differ.
    views = deform_texture((64, 128), (8.0, 0.0))
    twice = [image.clone() for image in (views.image0, views.image1)]
    twice[0][:, 20:44, 84:108] = twice[0][:, 20:44, 20:44]
    twice[1][:, 20:44, 92:116] = twice[1][:, 20:44, 28:52]
    map0, map1 = (DenseSift(bin_pixels=3.0).extract(image).map for image in twice)
    points = torch.tensor([[30.0, 30.0], [34.0, 34.0], [94.0, 30.0], [98.0, 34.0]])
    found = SpatialPyramid().align(map0, map1).find(points, use_refinement=True)
    assert (found - points - torch.tensor([8.0, 0.0])).abs().max() < 2


def test_masks() -> None:
    views = deform_texture((64, 80), (6.0, 0.0))
    map0, map1 = (DenseSift().extract(image).map for image in (views.image0, views.image1))
    is_allowed = torch.zeros(map1.grid_hw, dtype=torch.bool)
    is_allowed[:, 10:] = True
    found = SpatialPyramid().align(map0, map1, is_allowed.flatten()).find(views.points0, use_refinement=False)
    assert (found[:, 0] >= 42).all()
    nothing = SpatialPyramid().align(map0, map1, torch.zeros_like(is_allowed).flatten())
    assert torch.isnan(nothing.find(views.points0[:3], use_refinement=True)).all()
    assert nothing.find(views.points0[:0], use_refinement=False).shape == (0, 2)


def test_maps_of_fewer_cells_than_nodes() -> None:
    features = torch.eye(6).view(1, 6, 2, 3)
    cells = FeatureMap(features, 4, 2, (8, 12))
    points = torch.tensor([[2.0, 2.0], [10.0, 6.0]])
    found = SpatialPyramid().align(cells, cells).find(points, use_refinement=False)
    assert torch.equal(found, points)


def test_a_point_may_leave_its_node_at_a_limited_cost() -> None:
    # One cell of a texture lies in the far corner of image 1, several times as far as the truncation γ.
    generator = torch.Generator().manual_seed(0)
    features0 = torch.nn.functional.normalize(torch.rand(1, 24, 16, 16, generator=generator) ** 4, dim=1)
    features1 = features0.clone()
    features1[..., 0, 0], features1[..., 15, 15] = features0[..., 15, 15], features0[..., 0, 0]
    map0, map1 = (FeatureMap(features, 4, 2, (64, 64)) for features in (features0, features1))
    point = torch.tensor([[2.0, 2.0]])
    found = SpatialPyramid().align(map0, map1).find(point, use_refinement=False)
    assert torch.equal(found, torch.tensor([[62.0, 62.0]]))
