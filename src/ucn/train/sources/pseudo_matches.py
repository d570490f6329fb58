"""Matches of two images of one class that nobody annotated, by a trained network and its consensus.

All cells of two views are matched by similarity and neighbourhood consensus. Matches that pass the
forward-backward check are smoothed by local affine maps, fitted robustly to the matches around each; those
that disagree with their neighbours are dropped. What is left is more regular than the network's own matches,
so that a network can learn from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import pixel_grid
from ucn.matching.consensus import measure_support

CELLS = 4
"""Feature cells along each axis of a coarse cell of the consensus."""
WEIGHT = 0.5
"""Cosine similarity that full support adds."""
_ROUND_TRIP_CELLS = 2.0  # largest round-trip error
_SPREAD_CELLS = 5.0  # standard deviation of the weights of neighbours
_RESIDUAL_CELLS = 2.0  # scale of the robust fit
_MAX_RESIDUAL_CELLS = 3.0  # of a match that is kept
_RIDGE_CELLS = 2.0  # pulls the local map towards the identity where neighbours are few or on a line
_FITS = 3


@dataclass(frozen=True)
class PseudoMatches:
    """Matches of the cells of view 0, of B pairs.

    Attributes:
        targets: (B, N, 2) cells of view 1, (x, y), fractional.
        is_kept: (B, N) bool, whether a cell has a trustworthy match.
        agreement: (B,) share of the usable cells of view 0 that have one.
    """

    targets: Tensor
    is_kept: Tensor
    agreement: Tensor


def match_cells(
    features0: Tensor, features1: Tensor, is_usable0: Tensor, is_usable1: Tensor
) -> PseudoMatches:
    """Matches all cells of B pairs.

    Args:
        features0: (B, D, h, w) unit descriptors of views 0.
        features1: (B, D, h, w) of views 1.
        is_usable0: (B, h * w) bool, the cells of views 0 to match.
        is_usable1: (B, h * w) bool, the cells of views 1 that may be matched.
    """
    grid_hw = (features0.shape[-2], features0.shape[-1])
    similarity = features0.flatten(2).transpose(1, 2).float() @ features1.flatten(2).float()  # (B, N, N)
    guided = similarity.add_(_expand_support(features0, features1), alpha=WEIGHT)
    guided.masked_fill_(~is_usable0[:, :, None], -torch.inf)
    guided.masked_fill_(~is_usable1[:, None], -torch.inf)
    forward, backward = guided.argmax(dim=2), guided.argmax(dim=1)  # (B, N)
    cells = pixel_grid(grid_hw, features0.device).reshape(-1, 2).float()  # (N, 2)
    errors = (cells[backward.gather(1, forward)] - cells).norm(dim=-1)
    has_target = is_usable1.any(dim=1, keepdim=True)
    is_consistent = is_usable0 & has_target & (errors <= _ROUND_TRIP_CELLS)
    targets, residuals = _smooth(cells, cells[forward], is_consistent)
    is_kept = is_consistent & (residuals <= _MAX_RESIDUAL_CELLS)
    agreement = is_kept.sum(dim=1) / is_usable0.sum(dim=1).clamp_min(1)
    return PseudoMatches(targets, is_kept, agreement)


def _expand_support(features0: Tensor, features1: Tensor) -> Tensor:
    """Support (B, N, N) of all pairs of cells, interpolated from that of the coarse cells."""
    h, w = features0.shape[-2:]
    coarse = [
        F.normalize(F.avg_pool2d(f.float(), CELLS, ceil_mode=True), dim=1) for f in (features0, features1)
    ]
    support = torch.stack([measure_support(*pair) for pair in zip(*coarse, strict=True)])
    rows, columns = support.shape[1:3]

    def expand(coarse: Tensor) -> Tensor:
        """(B, C, rows, columns) to (B, C, N); coarse cells at the end may be cut off."""
        size = (rows * CELLS, columns * CELLS)
        return F.interpolate(coarse, size, mode="bilinear", align_corners=False)[..., :h, :w].flatten(2)

    in_view1 = expand(support.flatten(1, 2))  # (B, rows * columns, N)
    return expand(in_view1.transpose(1, 2).unflatten(2, (rows, columns))).transpose(1, 2)


def _smooth(cells: Tensor, targets: Tensor, is_consistent: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions (B, N, 2) of local affine maps through the matches around each cell, and residuals (B, N).

    The maps are fitted by iteratively reweighted least squares with Gaussian weights.
    """
    near = torch.exp(-torch.cdist(cells, cells).square() / (2 * _SPREAD_CELLS**2))  # (N, N)
    weights = is_consistent.float()
    ridge = _RIDGE_CELLS**2 * torch.eye(2, device=cells.device)
    predicted, residuals = targets, torch.zeros_like(weights)
    for _ in range(_FITS):
        both = torch.cat([cells.expand_as(targets), targets], dim=-1)  # (B, N, 4)
        products = (cells[None, :, :, None] * both[:, :, None]).flatten(2)  # (B, N, 8)
        moments = torch.cat([torch.ones_like(both[..., :1]), both, products], dim=-1) * weights[..., None]
        sums = near @ moments  # (B, N, 13)
        means = sums[..., 1:] / sums[..., :1].clamp_min(1e-6)
        mean0, mean1 = means[..., :2], means[..., 2:4]
        centred = means[..., 4:].unflatten(-1, (2, 4)) - mean0[..., :, None] * means[..., None, :4]
        spread, cross = centred[..., :2] + ridge, centred[..., 2:] + ridge  # E[x xᵀ], E[x yᵀ]
        local = torch.linalg.solve(spread, cross)  # (B, N, 2, 2): y = x @ local
        predicted = mean1 + ((cells - mean0)[..., None, :] @ local)[..., 0, :]
        residuals = (predicted - targets).norm(dim=-1)
        weights = is_consistent / (1 + (residuals / _RESIDUAL_CELLS).square()).square()
    return predicted, residuals
