"""The local affine maps of all regions as one Triton kernel, in place of hundreds of launches of torch.

One program instance fits one region, from the map of the whole image to its own. The reference is
`fit_local_affine` of `ucn.matching.local_affine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import launch_on, round_to_power

_MAX_ANCHORS = 2048  # as many as the registers of a thread block hold


def can_fit(points0: Tensor, points1: Tensor, confidences: Tensor) -> bool:
    """Whether `fit_regions_fused` takes these anchors."""
    is_float = points0.dtype == points1.dtype == confidences.dtype == torch.float32
    return is_float and 0 < len(points0) <= _MAX_ANCHORS


def fit_regions_fused(
    points0: Tensor,
    points1: Tensor,
    confidences: Tensor,
    centres: Tensor,
    *,
    steps: Sequence[tuple[float, float, float]],
    few_anchors: float,
    min_share: float,
    half_trust: float,
    min_spread: float,
    spread_gain: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Linear parts (R, 2, 2), places (R, 2), spread (R,) and trust (R,) of the maps of R regions.

    Args:
        points0: (A, 2) float32 anchors, as `can_fit` says.
        points1: (A, 2) float32, their matches, finite.
        confidences: (A,) float32, at least 0.
        centres: (R, 2) float32, of the regions.
        steps: of each iteration the radius of the anchors that count, the residual at which their weight has
            fallen to a quarter, and the ridge, in pixels and square pixels.
        few_anchors: as `FEW_ANCHORS`, like all others in small letters.
        min_share: likewise.
        half_trust: likewise.
        min_spread: in pixels.
        spread_gain: as `SPREAD_GAIN`.
    """
    count, device = len(centres), centres.device
    linear, places = torch.empty(count, 2, 2, device=device), torch.empty(count, 2, device=device)
    spread, trust = torch.empty(2, count, device=device).unbind()
    with launch_on(centres):
        _fit_region[(count,)](
            points0.contiguous(), points1.contiguous(), confidences.contiguous(), centres.contiguous(),
            centres.mean(dim=0), points1.mean(dim=0), _list_steps(tuple(steps), device), linear, places,
            spread, trust, len(points0), few_anchors, min_share, half_trust, min_spread, spread_gain,
            STEPS=len(steps), PADDED=max(16, round_to_power(len(points0))), num_warps=4,
        )  # fmt: skip
    return linear, places, spread, trust


@lru_cache(maxsize=32)
def _list_steps(steps: tuple[tuple[float, float, float], ...], device: torch.device) -> Tensor:
    """Of each iteration the factors (3,) of squared distances and of squared residuals, and the ridge."""
    factors = [(0.5 / radius**2, 1 / limit**2, ridge) for radius, limit, ridge in steps]
    return torch.tensor(factors, dtype=torch.float32, device=device)


@triton.jit(do_not_specialize=["count"])
def _fit_region(
    points0: tl.tensor,
    points1: tl.tensor,
    confidences: tl.tensor,
    centres: tl.tensor,
    middle0: tl.tensor,
    middle1: tl.tensor,
    table: tl.tensor,
    linear: tl.tensor,
    places: tl.tensor,
    spread: tl.tensor,
    trust: tl.tensor,
    count: tl.tensor,
    few_anchors: tl.tensor,
    min_share: tl.tensor,
    half_trust: tl.tensor,
    min_spread: tl.tensor,
    spread_gain: tl.tensor,
    STEPS: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """One region; a map is (x, y) -> (a x + b y + shift_x, c x + d y + shift_y), about both middles."""
    region = tl.program_id(0)
    anchor = tl.arange(0, PADDED)
    is_anchor = anchor < count
    middle_x0, middle_y0 = tl.load(middle0), tl.load(middle0 + 1)
    middle_x1, middle_y1 = tl.load(middle1), tl.load(middle1 + 1)
    x = tl.load(points0 + 2 * anchor, mask=is_anchor, other=0.0) - middle_x0
    y = tl.load(points0 + 2 * anchor + 1, mask=is_anchor, other=0.0) - middle_y0
    u = tl.load(points1 + 2 * anchor, mask=is_anchor, other=0.0) - middle_x1
    v = tl.load(points1 + 2 * anchor + 1, mask=is_anchor, other=0.0) - middle_y1
    confidence = tl.load(confidences + anchor, mask=is_anchor, other=0.0)
    own_x = tl.load(centres + 2 * region) - middle_x0
    own_y = tl.load(centres + 2 * region + 1) - middle_y0
    away_x, away_y = x - own_x, y - own_y
    distances = away_x * away_x + away_y * away_y
    a, b = tl.full((), 1.0, tl.float32), tl.full((), 0.0, tl.float32)
    c, d = b, a
    shift_x, shift_y = middle_x0 - middle_x1, middle_y0 - middle_y1
    for step in range(STEPS):
        near = tl.exp(-tl.load(table + 3 * step) * distances)
        error_x, error_y = a * x + b * y + shift_x - u, c * x + d * y + shift_y - v
        residual = 1.0 + (error_x * error_x + error_y * error_y) * tl.load(table + 3 * step + 1)
        weights = near * confidence / (residual * residual)
        total = tl.maximum(tl.sum(weights, axis=0), 1e-6)
        mean_x, mean_y = tl.sum(weights * x, axis=0) / total, tl.sum(weights * y, axis=0) / total
        mean_u, mean_v = tl.sum(weights * u, axis=0) / total, tl.sum(weights * v, axis=0) / total
        # Without any weight, as without any anchor near, the ridge alone decides.
        strength = tl.load(table + 3 * step + 2) * (1.0 + few_anchors / total)
        weights = weights / total
        from_x, from_y, from_u, from_v = x - mean_x, y - mean_y, u - mean_u, v - mean_v
        xx = tl.sum(weights * from_x * from_x, axis=0) + strength
        xy = tl.sum(weights * from_x * from_y, axis=0)
        yy = tl.sum(weights * from_y * from_y, axis=0) + strength
        ux = tl.sum(weights * from_u * from_x, axis=0) + strength * a
        uy = tl.sum(weights * from_u * from_y, axis=0) + strength * b
        vx = tl.sum(weights * from_v * from_x, axis=0) + strength * c
        vy = tl.sum(weights * from_v * from_y, axis=0) + strength * d
        determinant = xx * yy - xy * xy
        a, b = (ux * yy - uy * xy) / determinant, (uy * xx - ux * xy) / determinant
        c, d = (vx * yy - vy * xy) / determinant, (vy * xx - vx * xy) / determinant
        shift_x, shift_y = mean_u - a * mean_x - b * mean_y, mean_v - c * mean_x - d * mean_y
    near = tl.where(is_anchor, tl.exp(-tl.load(table + 3 * STEPS - 3) * distances), 0.0)
    error_x, error_y = a * x + b * y + shift_x - u, c * x + d * y + shift_y - v
    errors = error_x * error_x + error_y * error_y
    residual = 1.0 + errors * tl.load(table + 3 * STEPS - 2)
    weights = near * confidence
    agreeing = weights / (residual * residual)
    total = tl.sum(agreeing, axis=0)
    variance = tl.sum(agreeing * errors, axis=0) / tl.maximum(total, 1e-6)
    share = total / tl.maximum(tl.sum(weights, axis=0), 1e-6)
    share_of_all = total / tl.maximum(tl.sum(near, axis=0), 1e-6)
    trusted = tl.minimum(tl.maximum((share - min_share) / (1 - min_share), 0.0), 1.0)
    squared = share_of_all * share_of_all
    trusted = trusted * squared / (squared + half_trust * half_trust)
    # No extrapolation; see the reference.
    trusted = trusted * tl.minimum(tl.maximum((tl.max(near, axis=0) - 0.5) / 0.4, 0.0), 1.0)
    tl.store(linear + 4 * region, a)
    tl.store(linear + 4 * region + 1, b)
    tl.store(linear + 4 * region + 2, c)
    tl.store(linear + 4 * region + 3, d)
    tl.store(places + 2 * region, a * own_x + b * own_y + shift_x + middle_x1)
    tl.store(places + 2 * region + 1, c * own_x + d * own_y + shift_y + middle_y1)
    tl.store(spread + region, tl.sqrt(min_spread * min_spread + spread_gain * variance / 2))
    tl.store(trust + region, trusted)
