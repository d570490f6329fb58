"""What the losses share: checked pairs with their ground truth, their descriptors, and bounded chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from ucn.geometry.sampling import sample_descriptors
from ucn.runtime.kernels import use_fused
from ucn.types import Direction, FeatureMap

# The longest descriptors whose tiles fit a GPU's registers.
_MAX_FUSED_DIM = 256


@dataclass(frozen=True)
class DirectedPair:
    """A batch of image pairs in one direction: query points in one view, candidate cells in the other.

    Attributes:
        query_map: B feature maps of the view the queries lie in.
        candidate_map: B feature maps of the view the candidates lie in.
        query_points: (B, N, 2) pixels of the query view.
        true_points: (B, N, 2) pixels of the candidate view; row i corresponds to row i of `query_points`.
        is_valid: (B, N) bool.
    """

    query_map: FeatureMap
    candidate_map: FeatureMap
    query_points: Tensor
    true_points: Tensor
    is_valid: Tensor

    def reverse(self) -> DirectedPair:
        """The opposite direction."""
        return DirectedPair(
            self.candidate_map, self.query_map, self.true_points, self.query_points, self.is_valid
        )


def prepare_pair(
    map0: FeatureMap, map1: FeatureMap, points0: Tensor, points1: Tensor, is_valid: Tensor
) -> DirectedPair:
    """Checks the inputs of a loss, and returns them in direction 0to1.

    Half-precision features become float32. Points that are not valid move to (0, 0), so that padding of any
    value, NaN included, cannot reach a gradient.

    Raises:
        ValueError: shapes or types do not fit.
    """
    if map0.features.ndim != 4:
        raise ValueError(f"map0.features must be (B, D, h, w), got {tuple(map0.features.shape)}")
    B, D = map0.features.shape[:2]
    for name, feature_map in (("map0", map0), ("map1", map1)):
        shape = tuple(feature_map.features.shape)
        if len(shape) != 4 or shape[:2] != (B, D):
            raise ValueError(f"{name}.features must be ({B}, {D}, h, w), got {shape}")
        if 0 in shape[1:]:
            raise ValueError(f"{name}.features must have at least one cell and channel, got {shape}")
    if is_valid.ndim != 2 or is_valid.shape[0] != B or is_valid.dtype != torch.bool:
        raise ValueError(f"is_valid must be bool ({B}, N), got {is_valid.dtype} {tuple(is_valid.shape)}")
    N = is_valid.shape[1]
    for name, points in (("points0", points0), ("points1", points1)):
        if tuple(points.shape) != (B, N, 2) or not points.is_floating_point():
            raise ValueError(f"{name} must be float ({B}, {N}, 2), got {points.dtype} {tuple(points.shape)}")
    keep = is_valid[..., None]
    return DirectedPair(
        _widen(map0),
        _widen(map1),
        torch.where(keep, points0, torch.zeros_like(points0)),
        torch.where(keep, points1, torch.zeros_like(points1)),
        is_valid,
    )


def _widen(feature_map: FeatureMap) -> FeatureMap:
    dtype = torch.promote_types(feature_map.features.dtype, torch.float32)
    return replace(feature_map, features=feature_map.features.to(dtype))


def check_direction(direction: Direction) -> None:
    """Raises a ValueError unless `direction` is '0to1', '1to0' or 'both'."""
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")


def sample_pair(pair: DirectedPair) -> tuple[Tensor, Tensor]:
    """Descriptors (B, N, D) at the query points and at the true points."""
    return (
        sample_descriptors(pair.query_map, pair.query_points),
        sample_descriptors(pair.candidate_map, pair.true_points),
    )


def gather_cells(feature_map: FeatureMap, cells: Tensor) -> Tensor:
    """Descriptors (B, N, K, D) of cells (B, N, K); where a cell is -1, those of cell 0."""
    flat = feature_map.features.flatten(2)  # (B, D, h * w)
    B, D, _ = flat.shape
    index = cells.clamp(min=0).reshape(B, 1, -1).expand(B, D, -1)
    return flat.gather(2, index).transpose(1, 2).reshape(*cells.shape, D)


def split_into_chunks(
    size: Sequence[int], row_bytes: int, memory_bytes: int
) -> Iterator[tuple[slice, slice]]:
    """Slices of batch items and of queries whose temporaries fit the budget.

    Args:
        size: (B, N), the number of batch items and of queries per item.
        row_bytes: of the temporaries of one query.
        memory_bytes: budget; one query at a time is taken even where it does not fit.
    """
    B, N = size
    row_step = max(1, min(N, memory_bytes // row_bytes))
    item_step = max(1, min(B, memory_bytes // (row_bytes * max(1, N))))
    for item in range(0, B, item_step):
        for row in range(0, N, row_step):
            yield slice(item, item + item_step), slice(row, row + row_step)


def can_fuse(*queries_and_cells: Tensor) -> bool:
    """Whether fused kernels may compare queries (B, N, D) with cells (B, D, M) in TF32.

    Args:
        queries_and_cells: queries and cells in turn, those that get gradients first.
    """
    lengths = [queries.shape[2] for queries in queries_and_cells[::2]]
    is_allowed = torch.get_float32_matmul_precision() != "highest" and max(lengths) <= _MAX_FUSED_DIM
    has_type = all(tensor.dtype == torch.float32 for tensor in queries_and_cells)
    if not (is_allowed and has_type and use_fused(*queries_and_cells)):
        return False
    from ucn.losses.triton.tiles import choose_stages

    return choose_stages(queries_and_cells[0].device, *lengths) > 0
