"""Descriptors of two views at their true correspondences, as every mined loss needs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from ucn.geometry.sampling import sample_descriptors
from ucn.runtime.kernels import use_fused
from ucn.types import Direction, FeatureMap

_MAX_FUSED_DIM = 256
"""Longest descriptors whose sums fit a GPU's registers."""


@dataclass(frozen=True)
class OneWay:
    """One direction of a pair: queries in a view, candidates in the other.

    Attributes:
        map_from: the view the queries lie in.
        map_to: the view the candidates lie in.
        points_from: (B, N, 2) pixels of `map_from`'s images.
        points_to: (B, N, 2) pixels of `map_to`'s images: the truth that distances are measured from.
        is_valid: (B, N) bool.
    """

    map_from: FeatureMap
    map_to: FeatureMap
    points_from: Tensor
    points_to: Tensor
    is_valid: Tensor

    def exchange_views(self) -> OneWay:
        """The way back."""
        return OneWay(self.map_to, self.map_from, self.points_to, self.points_from, self.is_valid)


def prepare_pair(
    map0: FeatureMap, map1: FeatureMap, points0: Tensor, points1: Tensor, is_valid: Tensor
) -> OneWay:
    """Checks a pair and makes it safe to compute with; the result is direction 0to1.

    Half-precision features become float32, whose digits losses and mining need, and points that are not
    valid move to (0, 0), so that padding of any value, NaN too, cannot reach a gradient.

    Raises:
        ValueError: the shapes, devices or types do not fit.
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
    return OneWay(
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
    """Raises ValueError for anything but the three directions."""
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")


def sample_pair(way: OneWay) -> tuple[Tensor, Tensor]:
    """Descriptors (B, N, D) at the points of both views."""
    return sample_descriptors(way.map_from, way.points_from), sample_descriptors(way.map_to, way.points_to)


def read_cells(feature_map: FeatureMap, cells: Tensor) -> Tensor:
    """Descriptors (B, N, K, D) of cells (B, N, K); where the cell is -1, those of cell 0."""
    flat = feature_map.features.flatten(2)  # (B, D, h * w)
    B, D, _ = flat.shape
    index = cells.clamp(min=0).reshape(B, 1, -1).expand(B, D, -1)
    return flat.gather(2, index).transpose(1, 2).reshape(*cells.shape, D)


def can_fuse(*queries_and_cells: Tensor) -> bool:
    """Whether GPU programs may compare queries (B, N, D) and cells (B, D, M), given in turn, in TF32.

    Those that get gradients come first.
    """
    lengths = [queries.shape[2] for queries in queries_and_cells[::2]]
    is_allowed = torch.get_float32_matmul_precision() != "highest" and max(lengths) <= _MAX_FUSED_DIM
    has_type = all(tensor.dtype == torch.float32 for tensor in queries_and_cells)
    if not (is_allowed and has_type and use_fused(*queries_and_cells)):
        return False
    from ucn.losses.triton.tiles import choose_stages

    return choose_stages(queries_and_cells[0].device, *lengths) > 0
