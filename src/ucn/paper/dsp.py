"""Deformable spatial pyramid matching, DSP (Kim, Liu, Sha and Grauman 2013).

The image, its quarters and their quarters are nodes of a graph. Each has a displacement t, whose data cost is
the mean matching cost of the node's pixels. Neighbouring nodes, and a node and its parent, are connected by a
smoothness cost (their equation 1):

    Σ D(t) + α Σ min(‖t - t'‖₁, γ),  D(t) = mean over points q of min(‖s0(q) - s1(q + t)‖₁, λ)

Belief propagation finds the displacements of the nodes. The layer of pixels below has no smoothness of its
own: each point is connected to its smallest node only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.features.pair_matcher import Alignment
from ucn.geometry.coords import pixels_to_cells
from ucn.geometry.sampling import sample_descriptors
from ucn.paper.belief_propagation import spread_along
from ucn.paper.cell_flow import pool_map, pool_mask, refine_points
from ucn.paper.distances import scale_to_sift, unrelated_distance
from ucn.types import FeatureMap

TITLE = "DSP (Kim et al. 2013), belief propagation on a pyramid of 21 nodes, then each point alone"

_LEAVES = 4  # nodes along a side of the third level
_DAMPING = 0.5  # weight of the old message; without it, parallel updates oscillate in a graph with loops
_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class SpatialPyramid:
    """A pyramid of 1 + 4 + 16 nodes over the cells of any features, and a layer of points below it.

    Distances are in units of SIFT's (`distances`), truncated at that of unrelated cells; displacements are in
    units of the longest side of the images.

    Attributes:
        stiffness: α, cost of a difference of one side of the image.
        reach: γ, truncation of differences, as a fraction of that side.
        samples: cells along each side of the image from which the costs of nodes are computed.
        iterations: of belief propagation.
        finest_pixels: smallest stride; finer cells are averaged first.
    """

    stiffness: float = 8.0
    reach: float = 0.25
    samples: int = 32
    iterations: int = 20
    finest_pixels: int = 4

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Finds the displacements of the nodes."""
        is_allowed1 = pool_mask(is_allowed1, map1, self.finest_pixels)
        map0, map1 = pool_map(map0, self.finest_pixels), pool_map(map1, self.finest_pixels)
        features0, features1 = map0.features[0].float(), map1.features[0].float()
        scale = scale_to_sift(features0, features1)
        features0, features1 = features0 * scale, features1 * scale
        side = max(*map0.grid_hw, *map1.grid_hw)
        limit = unrelated_distance(features0, features1)
        reach_hw = (max(map0.grid_hw[0], map1.grid_hw[0]) // 2, max(map0.grid_hw[1], map1.grid_hw[1]) // 2)
        leaves = leaf_costs(features0, features1, reach_hw, self.samples, limit, is_allowed1)
        # Quarters have equal areas, so a node's cost is their mean.
        middle = leaves.view(2, 2, 2, 2, *leaves.shape[2:]).mean(dim=(1, 3))
        costs = torch.cat([middle.mean(dim=(0, 1))[None], middle.flatten(0, 1), leaves.flatten(0, 1)])
        edges = list_edges()
        found = minimise_on_graph(
            costs, edges, self.stiffness / side, self.stiffness * self.reach, self.iterations
        )
        displacements = found[-(_LEAVES**2) :] - found.new_tensor([reach_hw[1], reach_hw[0]])
        return _Nodes(self, map0, map1, is_allowed1, displacements, features1, scale, limit)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The displacements of the smallest nodes, from which `find` computes those of points.

    Attributes:
        settings: weights of the energy.
        map0: features of image 0.
        map1: features of image 1.
        is_allowed1: (h1 * w1,) bool, the cells of image 1 that may match.
        displacements: (16, 2) of the smallest nodes (x, y), in cells.
        features1: (D, h1, w1) of image 1, scaled.
        scale: that factor.
        limit: truncation of distances.
    """

    settings: SpatialPyramid
    map0: FeatureMap
    map1: FeatureMap
    is_allowed1: Tensor | None
    displacements: Tensor
    features1: Tensor
    scale: float
    limit: float

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """Minimises, for each point alone, its matching cost plus its difference from its node."""
        h, w = self.map0.grid_hw
        h1, w1 = self.map1.grid_hw
        cells0 = pixels_to_cells(points0, self.map0.stride, self.map0.offset)
        column, row = ((cells0 + 0.5) * _LEAVES / cells0.new_tensor([w, h])).floor().clamp(0, _LEAVES - 1).t()
        moved = cells0 + self.displacements[(row * _LEAVES + column).long()]
        descriptors0 = sample_descriptors(self.map0, points0[None])[0].float() * self.scale
        rows1 = self.features1.flatten(1).t().contiguous()
        indices1 = torch.arange(h1 * w1, device=points0.device)
        cells1 = torch.stack([indices1 % w1, indices1 // w1], dim=-1).to(cells0.dtype)
        stiffness = self.settings.stiffness / max(h, w, h1, w1)
        chunk = max(1, _CHUNK_BYTES // (8 * len(indices1)))
        best = []
        for first in range(0, len(points0), chunk):
            part = slice(first, first + chunk)
            costs = torch.cdist(descriptors0[part], rows1, p=1).clamp_max_(self.limit)
            apart = torch.cdist(moved[part], cells1, p=1)
            costs += (stiffness * apart).clamp_max_(self.settings.stiffness * self.settings.reach)
            if self.is_allowed1 is not None:
                costs.masked_fill_(~self.is_allowed1, torch.inf)
            best.append(costs.argmin(dim=1))
        best1 = torch.cat(best) if best else indices1[:0]
        points1 = cells1[best1] * self.map1.stride + self.map1.offset
        return refine_points(self.map0, self.map1, points0, points1, self.is_allowed1, use_refinement)


def leaf_costs(
    features0: Tensor,
    features1: Tensor,
    reach_hw: tuple[int, int],
    samples: int,
    limit: float,
    is_allowed1: Tensor | None,
) -> Tensor:
    """Costs of the smallest nodes at each displacement: means over sampled cells within them.

    Args:
        features0: (D, h, w) of image 0.
        features1: (D, h1, w1) of image 1.
        reach_hw: largest displacement (vertical, horizontal) in cells.
        samples: cells along each side.
        limit: truncation of distances, and the cost of cells outside image 1.
        is_allowed1: (h1 * w1,) bool; other cells count as outside.

    Returns:
        (4, 4, S, T) with S and T one more than twice the reach.
    """
    h, w = features0.shape[-2:]
    h1, w1 = features1.shape[-2:]
    reach_y, reach_x = reach_hw
    rows1 = features1.flatten(1).t().contiguous()
    sums = features0.new_zeros(_LEAVES, _LEAVES, 2 * reach_y + 1, 2 * reach_x + 1)
    counts = features0.new_zeros(_LEAVES, _LEAVES, 1, 1)
    # Displacement 0 of cell (x, y) lies at (x, y) of image 1, so windows begin at (x, y) of a wide frame.
    frame = features0.new_full((max(h, h1) + 2 * reach_y, max(w, w1) + 2 * reach_x), limit)
    columns = _sample(w, samples)
    for y in _sample(h, samples):
        distances = torch.cdist(features0[:, y, columns].t(), rows1, p=1).clamp_max_(limit)
        if is_allowed1 is not None:
            distances.masked_fill_(~is_allowed1, limit)
        for x, plane in zip(columns, distances.view(-1, h1, w1), strict=True):
            frame[reach_y : reach_y + h1, reach_x : reach_x + w1] = plane
            node = (_LEAVES * y // h, _LEAVES * x // w)
            sums[node] += frame[y : y + 2 * reach_y + 1, x : x + 2 * reach_x + 1]
            counts[node] += 1
    return sums / counts.clamp_min(1)  # a map of fewer cells than nodes leaves some without samples


def _sample(count: int, samples: int) -> list[int]:
    """At most `samples` evenly spaced integers below `count`."""
    return sorted({int((k + 0.5) * count / samples) for k in range(samples)})


def list_edges() -> list[tuple[int, int]]:
    """Edges of the graph: node 0 is the image, 1 to 4 its quarters, 5 to 20 theirs, row by row."""
    return [*_connect_neighbours(1, 2), *_connect_neighbours(5, 4), *_connect_parents()]


def _connect_neighbours(first: int, side: int) -> Iterator[tuple[int, int]]:
    for node in range(side * side):
        if node % side + 1 < side:
            yield first + node, first + node + 1
        if node // side + 1 < side:
            yield first + node, first + node + side


def _connect_parents() -> Iterator[tuple[int, int]]:
    for node in range(4):
        yield 0, 1 + node
    for node in range(16):
        row, column = node // 4, node % 4
        yield 1 + 2 * (row // 2) + column // 2, 5 + node


def minimise_on_graph(
    costs: Tensor, edges: list[tuple[int, int]], weight: float, limit: float, iterations: int
) -> Tensor:
    """Displacements of nodes that approximately minimise costs plus ``min(weight * ‖t - t'‖₁, limit)``.

    Args:
        costs: (K, S, T) of each node at each displacement, y first.
        edges: pairs of nodes.
        weight: of a difference of one step.
        limit: largest cost of an edge.
        iterations: of belief propagation.

    Returns:
        (K, 2) int64 states (x, y).
    """
    both = torch.tensor([*edges, *((b, a) for a, b in edges)], device=costs.device).reshape(-1, 2)
    sources, targets = both[:, 0], both[:, 1]
    opposite = torch.arange(len(both), device=costs.device).roll(len(edges))
    messages = costs.new_zeros(len(both), *costs.shape[1:])
    for iteration in range(iterations):
        beliefs = costs.index_add(0, targets, messages)
        outgoing = beliefs[sources] - messages[opposite]
        least = outgoing.amin(dim=(-2, -1), keepdim=True)
        updated = torch.minimum(spread_l1(outgoing, weight), least + limit).sub_(least)
        messages = updated if iteration == 0 else _DAMPING * messages + (1 - _DAMPING) * updated
    best = costs.index_add(0, targets, messages).flatten(1).argmin(dim=1)
    columns = costs.shape[-1]
    return torch.stack([best % columns, best // columns], dim=-1)


def spread_l1(costs: Tensor, weight: float) -> Tensor:
    """Distance transform of (..., S, T): the lowest cost plus ``weight`` times the L1 distance to it."""
    return spread_along(spread_along(costs, weight, -2), weight, -1)
