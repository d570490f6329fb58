"""Mining: which cells of the other view are the negatives of a point.

Candidates are the cells of a feature map. In direction 0to1 the queries are the descriptors at `points0`, the
candidates are the cells of map 1, and a candidate's distance from the ground truth is measured in view 1,
from `points1`. Every function below handles one direction; the other one swaps the views. What the negatives
cost is in contrastive.py and triplet.py.
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
from ucn.losses.correspondences import (
    DirectedPair,
    check_direction,
    gather_cells,
    prepare_pair,
    split_into_chunks,
)
from ucn.types import Direction, FeatureMap

MiningMethod = Literal["random", "nearest", "hardest"]


@dataclass(frozen=True)
class MinedNegatives:
    """Cells that do not correspond to a point; None for a direction that was not mined.

    Attributes:
        cells_0to1: (B, N, K) int64 cells of map 1 that are negatives of `points0`; -1 where there is none.
        cells_1to0: (B, N, K) int64 cells of map 0 that are negatives of `points1`; -1 where there is none.
    """

    cells_0to1: Tensor | None
    cells_1to0: Tensor | None

    def join(self, other: MinedNegatives) -> MinedNegatives:
        """The negatives of both, mined for the same points in the same directions."""
        return MinedNegatives(
            _concatenate(self.cells_0to1, other.cells_0to1), _concatenate(self.cells_1to0, other.cells_1to0)
        )


def _concatenate(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat([first, second], dim=2)


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
        method: 'random' samples cells at least `radius` from the ground truth; 'nearest' (the paper) takes
            the nearest cells in feature space and keeps those more than `radius` from the ground truth;
            'hardest' takes the nearest in feature space among the cells more than `radius` from the ground
            truth.
        radius: pixels of the view the candidates lie in, at least 0.
        direction: '0to1' searches view 1 for points of view 0, '1to0' the reverse.
        count: K, the number of negatives per point and direction.
        generator: of the random method, on any device; None means torch's global generator.
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

    def mine(pair: DirectedPair) -> Tensor:
        if method == "random":
            return sample_random_cells(
                pair, min_distance=radius, count=count, generator=generator, memory_bytes=memory_bytes
            )
        find = find_nearest_cells if method == "nearest" else find_hardest_cells
        return find(pair, radius=radius, count=count, memory_bytes=memory_bytes)

    pair = prepare_pair(map0, map1, points0, points1, is_valid)
    cells_0to1 = mine(pair) if direction != "1to0" else None
    cells_1to0 = mine(pair.reverse()) if direction != "0to1" else None
    return MinedNegatives(cells_0to1, cells_1to0)


@torch.no_grad()
def sample_random_cells(
    pair: DirectedPair,
    *,
    min_distance: float,
    count: int = 1,
    generator: torch.Generator | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """Cells (B, N, K) sampled uniformly, with replacement, `min_distance` or more from the ground truth."""
    B, N = pair.is_valid.shape
    positions = cell_centres(pair.candidate_map)
    uniform = sample_uniform((B, N, count), pair.is_valid.device, generator)
    cells = torch.full((B, N, count), -1, dtype=torch.int64, device=uniform.device)
    row_bytes = len(positions) * (squared_distances_bytes(pair.true_points, positions) + 8)
    for chunk in split_into_chunks((B, N), row_bytes, memory_bytes):
        is_far = squared_distances(pair.true_points[chunk], positions) >= min_distance**2
        cells[chunk] = sample_true_indices(is_far, uniform[chunk])
    return cells.masked_fill_(~pair.is_valid[..., None], -1)


@torch.no_grad()
def find_nearest_cells(
    pair: DirectedPair, *, radius: float, count: int = 1, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Tensor:
    """Cells (B, N, K) nearest in feature space; -1 where a cell lies within `radius` of the ground truth.

    This is the mining of the paper, section 3.2: a nearest neighbour that is correct yields no negative.
    """
    found = nearest(*_descriptors(pair), k=count, memory_bytes=memory_bytes).indices  # (B, N, K)
    found = mask_within_radius(found, cell_centres(pair.candidate_map), pair.true_points, radius)
    return found.masked_fill(~pair.is_valid[..., None], -1)


def mask_within_radius(cells: Tensor, positions: Tensor, centres: Tensor, radius: float) -> Tensor:
    """Sets cells to -1 that lie within a radius of a point.

    Args:
        cells: (B, N, K) int64 rows of `positions`, or -1.
        positions: (M, 2) of all cells.
        centres: (B, N, 2).
        radius: in the unit of both.
    """
    offsets = positions[cells.clamp(min=0)] - centres[:, :, None]
    is_far = offsets.square().sum(dim=-1) > radius**2
    return cells.masked_fill(~is_far, -1)


@torch.no_grad()
def find_hardest_cells(
    pair: DirectedPair, *, radius: float, count: int = 1, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Tensor:
    """Cells (B, N, K) nearest in feature space among those more than `radius` from the ground truth."""
    exclusion = ExclusionRadius(pair.true_points, cell_centres(pair.candidate_map), radius)
    found = nearest(*_descriptors(pair), k=count, exclusion=exclusion, memory_bytes=memory_bytes).indices
    return found.masked_fill(~pair.is_valid[..., None], -1)


def _descriptors(pair: DirectedPair) -> tuple[Tensor, Tensor]:
    """Query descriptors (B, N, D) and candidate descriptors (B, h * w, D)."""
    queries = sample_descriptors(pair.query_map, pair.query_points)
    return queries, pair.candidate_map.features.flatten(2).transpose(1, 2)


@dataclass(frozen=True)
class NegativeDescriptors:
    """Descriptors of the mined cells of one direction, with a gradient.

    Attributes:
        anchors: (B, N, D) at the points the cells were mined for.
        positives: (B, N, D) at the true points of the other view.
        negatives: (B, N, K, D) of the mined cells.
        is_negative: (B, N, K) bool; elsewhere `negatives` is undefined.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor
    is_negative: Tensor

    def as_triplets(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Anchors, positives and negatives, each (B, N * K, D), and which of them are valid, (B, N * K)."""
        K = self.is_negative.shape[2]
        return (
            self.anchors.repeat_interleave(K, dim=1),
            self.positives.repeat_interleave(K, dim=1),
            self.negatives.flatten(1, 2),
            self.is_negative.flatten(1),
        )


def gather_negatives(
    pair: DirectedPair, sampled0: Tensor, sampled1: Tensor, mined: MinedNegatives
) -> list[NegativeDescriptors]:
    """Gathers the descriptors of the mined cells, one entry per mined direction.

    Args:
        pair: in direction 0to1.
        sampled0: (B, N, D) descriptors at the points of view 0.
        sampled1: (B, N, D) descriptors at the points of view 1.
        mined: the result of `mine_negatives`.

    Raises:
        ValueError: the cells do not belong to this batch.
    """
    found = []
    for name, candidates, anchors, positives, cells in (
        ("cells_0to1", pair.candidate_map, sampled0, sampled1, mined.cells_0to1),
        ("cells_1to0", pair.query_map, sampled1, sampled0, mined.cells_1to0),
    ):
        if cells is None:
            continue
        if cells.ndim != 3 or cells.shape[:2] != pair.is_valid.shape:
            B, N = pair.is_valid.shape
            raise ValueError(f"{name} must be ({B}, {N}, K), got {tuple(cells.shape)}")
        is_negative = (cells >= 0) & pair.is_valid[..., None]
        found.append(NegativeDescriptors(anchors, positives, gather_cells(candidates, cells), is_negative))
    return found


def sample_uniform(shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Float64 samples of [0, 1) on `device`.

    Args:
        shape: of the result.
        device: of the result.
        generator: on any device; None means torch's global generator.
    """
    source = device if generator is None else generator.device
    return torch.rand(shape, dtype=torch.float64, device=source, generator=generator).to(device)


def sample_true_indices(mask: Tensor, uniform: Tensor) -> Tensor:
    """Samples uniformly among the True values of each row, with replacement.

    Args:
        mask: (..., M) bool.
        uniform: (..., K) float64 samples of [0, 1), one for each index.

    Returns:
        (..., K) int64 indices into the row; -1 where a row has no True value.
    """
    if mask.shape[-1] == 0:
        return torch.full(uniform.shape, -1, dtype=torch.int64, device=uniform.device)
    # The n-th True value is the first index whose running count is n.
    counts = mask.contiguous().cumsum(dim=-1, dtype=torch.int32)
    total = counts[..., -1:]
    ranks = (uniform * total).to(torch.int32).clamp(max=total - 1) + 1
    return torch.where(total > 0, torch.searchsorted(counts, ranks), -1)
