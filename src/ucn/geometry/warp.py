"""Truth by geometry: where points go through a homography."""

from __future__ import annotations

import torch
from torch import Tensor


def warp_points(points: Tensor, H: Tensor) -> Tensor:
    """Points (B, N, 2) through homographies (B, 3, 3); NaN where a point lies on or behind the horizon."""
    homogeneous = points @ H[:, :, :2].transpose(1, 2) + H[:, None, :, 2]
    depth = homogeneous[..., 2:]
    depth = torch.where(depth > 1e-8, depth, torch.full_like(depth, torch.nan))
    return homogeneous[..., :2] / depth


def homography_from_corners(corners0: Tensor, corners1: Tensor) -> Tensor:
    """The homographies (B, 3, 3) that take four points to four points.

    Args:
        corners0: (4, 2) or (B, 4, 2), no three on a line.
        corners1: (B, 4, 2).
    """
    batch = len(corners1)
    x, y = corners0.expand(batch, 4, 2).unbind(-1)
    u, v = corners1.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows_u = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=-1)
    rows_v = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=-1)
    system = torch.cat([rows_u, rows_v], dim=1).double()
    solved = torch.linalg.solve(system, torch.cat([u, v], dim=1).double())
    H = torch.cat([solved, solved.new_ones(batch, 1)], dim=1).view(batch, 3, 3)
    return H.to(corners1.dtype)
