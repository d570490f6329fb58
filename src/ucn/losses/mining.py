"""Which candidates are negatives: features and truth in, cell indices and counts out.

Candidates are the cells of a feature map. In direction 0to1 the queries are the descriptors at `points0`, the
candidates are the cells of map 1, and how far a candidate lies from the truth is measured in view 1, from
`points1`. The code knows one direction only; the other one exchanges the views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ucn.geometry.coords import cell_centres
from ucn.geometry.sampling import sample_descriptors
from ucn.knn import ExclusionRadius, nearest
from ucn.knn.exclusion import squared_distances, squared_distances_bytes
from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.losses.correspondences import OneWay, check_direction, prepare_pair, read_cells
from ucn.losses.random_choice import draw_true, draw_uniform
from ucn.types import Direction, FeatureMap

MiningMethod = Literal["random", "nearest", "hardest"]


@dataclass(frozen=True)
class MinedNegatives:
    """Cells that do not correspond, for each point; None for a direction that was not mined.

    Attributes:
        cells_0to1: (B, N, K) int64 cells of map 1 that are negatives for `points0`; -1 where there is none.
        cells_1to0: (B, N, K) int64 cells of map 0 that are negatives for `points1`; -1 where there is none.
        counts_0to1: (B,) int64, how many negatives each pair of images has in that direction.
        counts_1to0: (B,) int64, likewise.
    """

    cells_0to1: Tensor | None
    cells_1to0: Tensor | None
    counts_0to1: Tensor | None
    counts_1to0: Tensor | None


@torch.no_grad()
def mine_negatives(
    map0: FeatureMap,
    map1: FeatureMap,
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    *,
    method: MiningMethod,
    radius: float,
    direction: Direction = "both",
    count: int = 1,
    generator: torch.Generator | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> MinedNegatives:
    """Finds negatives for true correspondences, without a gradient.

    Args:
        map0: B feature maps of view 0.
        map1: B feature maps of view 1; the number of cells may differ.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1; row i corresponds to row i of `points0`.
        is_valid: (B, N) bool; other points get no negatives.
        method: 'random' draws cells at least `radius` from the truth; 'nearest' (the paper) takes the nearest
            cells of all in feature space and keeps those more than `radius` from the truth; 'hardest' takes
            the nearest in feature space among those more than `radius` from the truth.
        radius: pixels of the view the candidates lie in, at least 0.
        direction: '0to1' looks for points of view 0 in view 1, '1to0' the reverse.
        count: K, how many negatives per point and direction.
        generator: source of the random draws, on any device; None means torch's global generator.
        memory_bytes: budget of the temporaries; the N x h*w distances are never all held.

    Raises:
        ValueError: shapes do not fit, an argument is out of range, or a feature is not finite.
    """
    check_direction(direction)
    if method not in get_args(MiningMethod):
        raise ValueError(f"method must be one of {', '.join(get_args(MiningMethod))}, got {method!r}")
    if not radius >= 0:
        raise ValueError(f"radius must be at least 0, got {radius}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if memory_bytes < 1:
        raise ValueError(f"memory_bytes must be at least 1, got {memory_bytes}")

    def mine(way: OneWay) -> Tensor:
        if method == "random":
            return draw_random_cells(
                way, min_distance=radius, count=count, generator=generator, memory_bytes=memory_bytes
            )
        find = find_nearest_cells if method == "nearest" else find_hardest_cells
        return find(way, radius=radius, count=count, memory_bytes=memory_bytes)

    forth = prepare_pair(map0, map1, points0, points1, is_valid)
    cells_0to1 = mine(forth) if direction != "1to0" else None
    cells_1to0 = mine(forth.exchange_views()) if direction != "0to1" else None
    return MinedNegatives(cells_0to1, cells_1to0, _count(cells_0to1), _count(cells_1to0))


@dataclass(frozen=True)
class NegativeDescriptors:
    """Descriptors of the mined cells of one direction, with a gradient.

    Attributes:
        anchors: (B, N, D) at the points the cells were mined for.
        positives: (B, N, D) at the true points of the other view.
        negatives: (B, N, K, D) of the mined cells.
        is_negative: (B, N, K) bool; elsewhere `negatives` holds nothing of meaning.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor
    is_negative: Tensor

    def as_triplets(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Anchors, positives and negatives, each (B, N * K, D), and which of them count, (B, N * K)."""
        K = self.is_negative.shape[2]
        return (
            self.anchors.repeat_interleave(K, dim=1),
            self.positives.repeat_interleave(K, dim=1),
            self.negatives.flatten(1, 2),
            self.is_negative.flatten(1),
        )


def read_negatives(
    forth: OneWay, sampled0: Tensor, sampled1: Tensor, mined: MinedNegatives
) -> list[NegativeDescriptors]:
    """The mined cells' descriptors, one entry per mined direction.

    Args:
        forth: the pair in direction 0to1.
        sampled0: (B, N, D) descriptors at the points of view 0.
        sampled1: (B, N, D) descriptors at the points of view 1.
        mined: what `mine_negatives` found.

    Raises:
        ValueError: the cells do not belong to this batch.
    """
    found = []
    for name, candidates, anchors, positives, cells in (
        ("cells_0to1", forth.map_to, sampled0, sampled1, mined.cells_0to1),
        ("cells_1to0", forth.map_from, sampled1, sampled0, mined.cells_1to0),
    ):
        if cells is None:
            continue
        if cells.ndim != 3 or cells.shape[:2] != forth.is_valid.shape:
            B, N = forth.is_valid.shape
            raise ValueError(f"{name} must be ({B}, {N}, K), got {tuple(cells.shape)}")
        is_negative = (cells >= 0) & forth.is_valid[..., None]
        found.append(NegativeDescriptors(anchors, positives, read_cells(candidates, cells), is_negative))
    return found


def _count(cells: Tensor | None) -> Tensor | None:
    return None if cells is None else (cells >= 0).sum(dim=(1, 2))


@torch.no_grad()
def draw_random_cells(
    way: OneWay,
    *,
    min_distance: float,
    count: int = 1,
    generator: torch.Generator | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """Cells (B, N, K) drawn uniformly, with replacement, among those `min_distance` or more off the truth."""
    B, N = way.is_valid.shape
    positions = cell_centres(way.map_to)
    uniform = draw_uniform((B, N, count), way.is_valid.device, generator)
    cells = torch.full((B, N, count), -1, dtype=torch.int64, device=uniform.device)
    row_bytes = len(positions) * (squared_distances_bytes(way.points_to, positions) + 8)
    row_step = max(1, min(N, memory_bytes // row_bytes))
    item_step = max(1, memory_bytes // (row_bytes * max(1, N)))
    for item in range(0, B, item_step):
        for row in range(0, N, row_step):
            part = slice(item, item + item_step), slice(row, row + row_step)
            is_far = squared_distances(way.points_to[part], positions) >= min_distance**2
            cells[part] = draw_true(is_far, uniform[part])
    return cells.masked_fill_(~way.is_valid[..., None], -1)


@torch.no_grad()
def find_nearest_cells(
    way: OneWay, *, radius: float, count: int = 1, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Tensor:
    """Cells (B, N, K) nearest in feature space; -1 where one lies within `radius` of the truth.

    This is the mining of the paper, section 3.2: a nearest neighbour that is right yields no negative.
    """
    found = nearest(*_descriptors(way), k=count, memory_bytes=memory_bytes).indices  # (B, N, K)
    found = drop_near_cells(found, cell_centres(way.map_to), way.points_to, radius)
    return found.masked_fill(~way.is_valid[..., None], -1)


def drop_near_cells(found: Tensor, positions: Tensor, centres: Tensor, radius: float) -> Tensor:
    """Cells (B, N, K), -1 for those whose `positions` (M, 2) lie within `radius` of `centres` (B, N, 2)."""
    offsets = positions[found.clamp(min=0)] - centres[:, :, None]
    is_far = offsets.square().sum(dim=-1) > radius**2
    return found.masked_fill(~is_far, -1)


@torch.no_grad()
def find_hardest_cells(
    way: OneWay, *, radius: float, count: int = 1, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Tensor:
    """Cells (B, N, K) nearest in feature space among those more than `radius` from the truth."""
    exclusion = ExclusionRadius(way.points_to, cell_centres(way.map_to), radius)
    found = nearest(*_descriptors(way), k=count, exclusion=exclusion, memory_bytes=memory_bytes).indices
    return found.masked_fill(~way.is_valid[..., None], -1)


def _descriptors(way: OneWay) -> tuple[Tensor, Tensor]:
    """Query descriptors (B, N, D) and candidate descriptors (B, h * w, D)."""
    queries = sample_descriptors(way.map_from, way.points_from)
    return queries, way.map_to.features.flatten(2).transpose(1, 2)
