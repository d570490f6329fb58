"""SIFT Flow (Liu, Yuen and Torralba 2011): a smooth displacement of every cell, coarse to fine.

The energy of a flow (u, v) over the cells p of image 0 with features s is (their equation 1)

    Σ min(‖s0(p) - s1(p + (u, v))‖₁, t) + η Σ (|u| + |v|) + Σ min(α |Δu|, d) + min(α |Δv|, d)

where the last sum is over neighbours. Belief propagation minimises it on the coarsest level of a pyramid over
the whole image, then on each finer level in a window around the solution of the level before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.features.pair_matcher import Alignment
from ucn.paper.belief_propagation import Smoothness, minimise_on_grid
from ucn.paper.cell_flow import CellFlow
from ucn.paper.distances import scale_to_sift, unrelated_distance, window_costs
from ucn.types import FeatureMap

TITLE = "SIFT Flow (Liu et al. 2011), coarse-to-fine belief propagation"


@dataclass(frozen=True)
class SiftFlow:
    """Coarse-to-fine belief propagation over the cells of any features.

    Weights are in units of L1 distances of SIFT; other features are scaled to those (`distances`). The data
    term is truncated at the mean distance of unrelated cells of a level.

    Attributes:
        smoothness: α, cost of a difference of one cell between neighbours.
        jump_cells: truncation of that difference, in cells (d / α).
        shortness: η, cost of a displacement of one cell.
        coarsest_cells: largest side of the coarsest level, in cells.
        radius_cells: of the window on intermediate levels.
        finest_radius_cells: of the window on the finest level.
        coarsest_iterations: the most iterations on the coarsest level.
        iterations: the most iterations on each other level.
    """

    smoothness: float = 0.7
    jump_cells: float = 20.0
    shortness: float = 0.005
    coarsest_cells: int = 40
    radius_cells: int = 5
    finest_radius_cells: int = 2
    coarsest_iterations: int = 30
    iterations: int = 10

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Finds the flow."""
        with _one_thread():
            return self._find_flow(map0, map1, is_allowed1)

    def _find_flow(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None) -> CellFlow:
        features0, features1 = map0.features[0].float(), map1.features[0].float()
        scale = scale_to_sift(features0, features1)
        pyramid0 = build_pyramid(features0 * scale, self.coarsest_cells, map1.grid_hw)
        pyramid1 = build_pyramid(features1 * scale, self.coarsest_cells, map0.grid_hw)
        masks1: list[Tensor | None] = [None] * len(pyramid1)
        if is_allowed1 is not None:
            mask1 = is_allowed1.view(1, *map1.grid_hw).float()
            shares1 = build_pyramid(mask1, self.coarsest_cells, map0.grid_hw)
            masks1 = [share.flatten() >= 0.5 for share in shares1]
        flow = features0.new_zeros(2, *pyramid0[-1].shape[-2:], dtype=torch.int64)
        for level in reversed(range(len(pyramid0))):
            if level + 1 < len(pyramid0):
                flow = upsample_flow(flow, pyramid0[level])
            is_coarsest = level + 1 == len(pyramid0)
            flow = self._improve(
                pyramid0[level], pyramid1[level], flow, masks1[level], is_coarsest, level == 0
            )
        return CellFlow(map0, map1, flow.permute(1, 2, 0), is_allowed1)

    def _improve(
        self,
        features0: Tensor,
        features1: Tensor,
        flow: Tensor,
        is_allowed1: Tensor | None,
        is_coarsest: bool,
        is_finest: bool,
    ) -> Tensor:
        """(2, h, w) the best flow of a level, in windows around `flow`."""
        radius = self.finest_radius_cells if is_finest else self.radius_cells
        if is_coarsest:
            radius = max(*features0.shape[-2:], *features1.shape[-2:]) // 2
        limit = unrelated_distance(features0, features1)
        costs = window_costs(features0, features1, flow, radius, limit, is_allowed1)
        states = torch.arange(-radius, radius + 1, device=flow.device)
        own_costs = self.shortness * (flow[..., None] + states).abs().to(costs.dtype)
        chosen = minimise_on_grid(
            costs,
            own_costs,
            flow,
            Smoothness(self.smoothness, self.smoothness * self.jump_cells),
            self.coarsest_iterations if is_coarsest else self.iterations,
        )
        return flow + chosen.permute(2, 0, 1) - radius


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits torch to one thread of the CPU.

    The operations are small and many; on a busy machine, threads that spin after each of them take several
    times as long as the work itself.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def build_pyramid(features: Tensor, coarsest_cells: int, other_hw: tuple[int, int]) -> list[Tensor]:
    """Maps (C, h, w), each the 2 × 2 average of the one before.

    Args:
        features: the finest level.
        coarsest_cells: largest side of the coarsest level, in cells.
        other_hw: (h, w) of the other image's map, which gets the same number of levels.
    """
    pyramid, longest = [features], max(*features.shape[-2:], *other_hw)
    while longest > coarsest_cells:
        h, w = pyramid[-1].shape[-2:]
        even = F.pad(pyramid[-1][None], (0, w % 2, 0, h % 2), mode="replicate")
        pyramid.append(F.avg_pool2d(even, 2)[0])
        longest = (longest + 1) // 2
    return pyramid


def upsample_flow(flow: Tensor, finer_map: Tensor) -> Tensor:
    """A flow (2, h, w) in cells of a level, for the next finer level (C, h', w')."""
    h, w = finer_map.shape[-2:]
    finer = flow.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    return 2 * finer[:, :h, :w]
