"""Points warped by homographies, and homographies from exact correspondences."""

from __future__ import annotations

import torch
from torch import Tensor


def warp_points(points: Tensor, H: Tensor) -> Tensor:
    """Warps points by homographies.

    Args:
        points: (B, N, 2) pixels.
        H: (B, 3, 3).

    Returns:
        (B, N, 2); NaN where a point lies on or behind the horizon, that is, where its depth is not above 0.

    Raises:
        ValueError: the shapes do not fit.
    """
    if points.ndim != 3 or points.shape[-1] != 2:
        raise ValueError(f"points must be (B, N, 2), got {tuple(points.shape)}")
    if H.shape != (len(points), 3, 3):
        raise ValueError(f"H must be ({len(points)}, 3, 3), got {tuple(H.shape)}")
    homogeneous = points @ H[:, :, :2].transpose(1, 2) + H[:, None, :, 2]
    depth = homogeneous[..., 2:]
    smallest = 1e-8 * H[:, 2:].abs().amax(dim=-1, keepdim=True)  # a homography has no scale
    depth = torch.where(depth > smallest, depth, torch.full_like(depth, torch.nan))
    return homogeneous[..., :2] / depth


def homography_from_corners(corners0: Tensor, corners1: Tensor) -> Tensor:
    """The homographies that map four points to four points.

    Args:
        corners0: (4, 2) or (B, 4, 2), no three on a line.
        corners1: (B, 4, 2), no three on a line.

    Returns:
        (B, 3, 3), whose last entry is 1, so that (0, 0) has a depth above 0; it must not lie on the horizon.

    Raises:
        ValueError: the shapes do not fit.
    """
    if corners1.shape[1:] != (4, 2) or corners0.shape not in {(4, 2), tuple(corners1.shape)}:
        got = f"{tuple(corners0.shape)} and {tuple(corners1.shape)}"
        raise ValueError(f"corners0 must be (4, 2) or (B, 4, 2) and corners1 (B, 4, 2), got {got}")
    batch = len(corners1)
    x, y = corners0.expand(batch, 4, 2).unbind(-1)
    u, v = corners1.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows_u = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=-1)
    rows_v = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=-1)
    system = torch.cat([rows_u, rows_v], dim=1).double()
    # `solve` would synchronise with the device, to check for singular systems.
    solved = torch.linalg.solve_ex(system, torch.cat([u, v], dim=1).double())[0]
    H = torch.cat([solved, solved.new_ones(batch, 1)], dim=1).view(batch, 3, 3)
    return H.to(corners1.dtype)


def homography_from_points(points0: Tensor, points1: Tensor) -> Tensor:
    """The homography (3, 3) between points (N, 2), N at least 4, by the direct linear transform.

    For points that are related by a homography up to rounding; it is not robust to outliers.

    Raises:
        ValueError: the shapes do not fit, or there are fewer than four points.
    """
    if points0.shape != points1.shape or points0.ndim != 2 or points0.shape[-1] != 2 or len(points0) < 4:
        got = f"{tuple(points0.shape)} and {tuple(points1.shape)}"
        raise ValueError(f"points0 and points1 must both be (N, 2) with N at least 4, got {got}")
    normalise0, normalise1 = _centre_and_scale(points0), _centre_and_scale(points1)
    x, y = warp_points(points0[None].double(), normalise0[None])[0].unbind(-1)
    u, v = warp_points(points1[None].double(), normalise1[None])[0].unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows_u = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y, -u], dim=-1)
    rows_v = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y, -v], dim=-1)
    solution = torch.linalg.svd(torch.cat([rows_u, rows_v]))[2][-1].view(3, 3)
    H: Tensor = torch.linalg.inv(normalise1) @ solution @ normalise0
    # A homography has no sign and no scale; this sign gives the points positive depths.
    depths = points0.double() @ H[2, :2] + H[2, 2]
    H = H * depths.sum().sign() / H[2, 2].abs().clamp_min(1e-9 * H.norm())
    return H.to(points1.dtype)


def _centre_and_scale(points: Tensor) -> Tensor:
    """The similarity (3, 3) that normalises points to mean 0 and mean distance √2 (Hartley 1997)."""
    wide = points.double()
    mean = wide.mean(dim=0)
    scale = 2**0.5 / (wide - mean).norm(dim=-1).mean().clamp_min(1e-9)
    matrix = torch.zeros(3, 3, dtype=torch.float64, device=points.device)
    matrix[0, 0] = matrix[1, 1] = scale
    matrix[:2, 2] = -scale * mean
    matrix[2, 2] = 1
    return matrix
