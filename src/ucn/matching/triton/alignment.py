"""Photometric refinement in two Triton kernels, in place of a few hundred kernel launches of torch.

One program instance handles one match. It fits in the registers of a warp, so nothing is written to memory
between iterations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import launch_on, round_to_power

# Parameters of position (2) and affine map (4), and their number padded to a power of two.
_PARAMETERS = tl.constexpr(6)
_PARAMETERS_PAD = tl.constexpr(8)
# Arguments that differ from call to call; Triton would recompile for values of 1 and multiples of 16.
_SIZES = ["H0", "W0", "H1", "W1"]
_MAX_PIXELS = 2**31 - 1


def can_align(grey0: Tensor, grey1: Tensor, points: Tensor) -> bool:
    """Whether `align_patches_fused` takes these inputs: float32, with pixel indices of 32 bits."""
    return points.dtype == torch.float32 and max(grey0.numel(), grey1.numel()) <= _MAX_PIXELS


def fit_local_affine_fused(
    known0: Tensor,
    known1: Tensor,
    rows: Tensor,
    *,
    steps: int,
    ridge: float,
    min_scale: float,
    min_neighbours: int,
) -> Tensor:
    """Fits local affine maps (N, 2, 2) to neighbouring matches; see `estimate_local_affine`.

    Args:
        known0: (M, 2) float32.
        known1: (M, 2) likewise.
        rows: (N, K) int64, the neighbours of each point; -1 after the last, where there are fewer.
        steps: iterations of reweighting.
        ridge: square pixels of regularisation towards the identity.
        min_scale: pixels; residuals below this are not outliers.
        min_neighbours: with fewer the map is the identity.
    """
    count, neighbours = rows.shape
    linear = torch.empty(count, 2, 2, dtype=torch.float32, device=rows.device)
    with launch_on(rows):
        _fit_affine[(count,)](
            known0.contiguous(), known1.contiguous(), rows.contiguous(), linear, neighbours,
            PADDED=max(16, round_to_power(neighbours)), STEPS=steps, RIDGE=ridge, MIN_SCALE=min_scale,
            LEAST=min_neighbours, num_warps=1,
        )  # fmt: skip
    return linear


def align_patches_fused(
    grey0: Tensor,
    grey1: Tensor,
    points0: Tensor,
    points1: Tensor,
    linear: Tensor,
    *,
    radius: int,
    spread: float,
    steps: int,
    translation_steps: int,
    max_step: float,
    damping: float,
    min_contrast: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Finds where the patches of matches correlate best; see `align_patches`.

    Args:
        grey0: (H0, W0) float32.
        grey1: (H1, W1) likewise.
        points0: (N, 2) likewise, finite, like all others.
        points1: (N, 2).
        linear: (N, 2, 2).
        radius: of a patch, in pixels.
        spread: standard deviation of the patch's Gaussian weights, in pixels.
        steps: iterations in all.
        translation_steps: the first of them change the position only.
        max_step: pixels of image 0; for the affine map, the same share of the radius.
        damping: of the normal equations, relative to their diagonal.
        min_contrast: lower bound of the contrast that gradients are divided by.

    Returns:
        Positions (N, 2), correlations (N,) at `points1` and at those positions, and patch contrasts (N,).
    """
    count = len(points0)
    positions = torch.empty_like(points1, memory_format=torch.contiguous_format)
    before, after, contrasts = torch.empty(3, count, dtype=torch.float32, device=points1.device).unbind()
    with launch_on(points1):
        _align_match[(count,)](
            grey0.contiguous(), grey1.contiguous(), points0.contiguous(), points1.contiguous(),
            linear.contiguous(), positions, before, after, contrasts, *grey0.shape, *grey1.shape,
            RADIUS=radius, PIXELS=round_to_power((2 * radius + 1) ** 2), STEPS=steps,
            TRANSLATION_STEPS=translation_steps, SPREAD=spread, MAX_STEP=max_step, DAMPING=damping,
            MIN_CONTRAST=min_contrast, num_warps=1,
        )  # fmt: skip
    return positions, before, after, contrasts


@triton.jit
def _invert_2x2(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    """The inverse of the 2 × 2 matrix (a b; c d)."""
    determinant = a * d - b * c
    return d / determinant, -b / determinant, -c / determinant, a / determinant


@triton.jit
def _multiply_2x2(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    d: tl.tensor,
    e: tl.tensor,
    f: tl.tensor,
    g: tl.tensor,
    h: tl.tensor,
) -> tl.tensor:
    """The product of the 2 × 2 matrices (a b; c d) and (e f; g h)."""
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


@triton.jit
def _find_median(values: tl.tensor, positions: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The (lower) median of the first `count` values; padding after them must be larger."""
    is_tie = (values[None, :] == values[:, None]) & (positions[None, :] < positions[:, None])
    before = tl.sum(((values[None, :] < values[:, None]) | is_tie).to(tl.int32), axis=1)
    return tl.sum(tl.where(before == (count - 1) // 2, values, 0.0), axis=0)


@triton.jit(do_not_specialize=["neighbours"])
def _fit_affine(
    known0: tl.tensor,
    known1: tl.tensor,
    rows: tl.tensor,
    linear: tl.tensor,
    neighbours: tl.tensor,
    PADDED: tl.constexpr,
    STEPS: tl.constexpr,
    RIDGE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """The local affine map of one point from its neighbours, in float64 like the reference."""
    point = tl.program_id(0).to(tl.int64)
    positions = tl.arange(0, PADDED)
    is_row = positions < neighbours
    row = tl.load(rows + point * neighbours + positions, mask=is_row, other=-1)
    is_row = row >= 0
    found = tl.sum(is_row.to(tl.int32), axis=0)
    x0 = tl.load(known0 + row * 2, mask=is_row, other=0.0).to(tl.float64)
    y0 = tl.load(known0 + row * 2 + 1, mask=is_row, other=0.0).to(tl.float64)
    x1 = tl.load(known1 + row * 2, mask=is_row, other=0.0).to(tl.float64)
    y1 = tl.load(known1 + row * 2 + 1, mask=is_row, other=0.0).to(tl.float64)
    weights = is_row.to(tl.float64)
    a, b = tl.full((), 1.0, tl.float64), tl.full((), 0.0, tl.float64)
    c, d = b, a
    for _ in range(STEPS):
        total = tl.maximum(tl.sum(weights, axis=0), 1e-30)
        from_x0 = x0 - tl.sum(weights * x0, axis=0) / total
        from_y0 = y0 - tl.sum(weights * y0, axis=0) / total
        from_x1 = x1 - tl.sum(weights * x1, axis=0) / total
        from_y1 = y1 - tl.sum(weights * y1, axis=0) / total
        across = tl.sum(weights * from_x0 * from_y0, axis=0)
        inverse = _invert_2x2(
            tl.sum(weights * from_x0 * from_x0, axis=0) + RIDGE, across,
            across, tl.sum(weights * from_y0 * from_y0, axis=0) + RIDGE,
        )  # fmt: skip
        # Solved for row vectors, hence the transposed order.
        a, c, b, d = _multiply_2x2(
            inverse[0], inverse[1], inverse[2], inverse[3],
            tl.sum(weights * from_x0 * from_x1, axis=0) + RIDGE, tl.sum(weights * from_x0 * from_y1, axis=0),
            tl.sum(weights * from_y0 * from_x1, axis=0), tl.sum(weights * from_y0 * from_y1, axis=0) + RIDGE,
        )  # fmt: skip
        residual_x = from_x1 - (a * from_x0 + b * from_y0)
        residual_y = from_y1 - (c * from_x0 + d * from_y0)
        residuals = tl.where(is_row, tl.sqrt(residual_x * residual_x + residual_y * residual_y), float("inf"))
        scale = tl.maximum(_find_median(residuals, positions, found), MIN_SCALE)
        shares = tl.where(is_row, residuals / scale, 0.0)
        certainty = 1.0 / (1.0 + shares * shares)
        weights = tl.where(is_row, certainty * certainty, 0.0)
    is_enough = found >= LEAST
    tl.store(linear + point * 4, tl.where(is_enough, a, 1.0))
    tl.store(linear + point * 4 + 1, tl.where(is_enough, b, 0.0))
    tl.store(linear + point * 4 + 2, tl.where(is_enough, c, 0.0))
    tl.store(linear + point * 4 + 3, tl.where(is_enough, d, 1.0))


@triton.jit
def _sample(image: tl.tensor, H: tl.tensor, W: tl.tensor, x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Bilinear interpolation of an image at positions, with border padding."""
    # NaN is clamped to the border too, so that no address beyond the image is read.
    x = tl.minimum(tl.where(x >= 0, x, 0.0), (W - 1).to(tl.float32))
    y = tl.minimum(tl.where(y >= 0, y, 0.0), (H - 1).to(tl.float32))
    left, top = tl.floor(x), tl.floor(y)
    column, row = left.to(tl.int32), top.to(tl.int32)
    next_column, next_row = tl.minimum(column + 1, W - 1), tl.minimum(row + 1, H - 1)
    across, down = x - left, y - top
    above = tl.load(image + row * W + column) * (1 - across) + tl.load(image + row * W + next_column) * across
    below = tl.load(image + next_row * W + column) * (1 - across)
    below += tl.load(image + next_row * W + next_column) * across
    return above * (1 - down) + below * down


@triton.jit
def _normalise(patch: tl.tensor, weights: tl.tensor) -> tl.tensor:
    """A patch with mean 0 and length 1 under the weights, and its original length."""
    centred = patch - tl.sum(patch * weights, axis=0)
    length = tl.sqrt(tl.sum(weights * centred * centred, axis=0))
    return centred / tl.maximum(length, 1e-6), length


@triton.jit
def _invert(normal: tl.tensor, DAMPING: tl.constexpr, COUNT: tl.constexpr) -> tl.tensor:
    """The damped inverse of the first `COUNT` rows and columns; zero elsewhere.

    By Gauss-Jordan elimination. No eigenvalue is below the damping, so it needs no pivoting.
    """
    row, column = tl.arange(0, _PARAMETERS_PAD)[:, None], tl.arange(0, _PARAMETERS_PAD)[None, :]
    diagonal = tl.sum(tl.sum(tl.where((row == column) & (row < COUNT), normal, 0.0), axis=1), axis=0) / COUNT
    matrix = tl.where((row < COUNT) & (column < COUNT), normal, 0.0)
    matrix += tl.where((row == column) & (row < COUNT), DAMPING * diagonal + 1e-9, 0.0)
    for index in range(COUNT):  # not unrolled: compiling would take longer than it saves
        own_row = tl.sum(tl.where(row == index, matrix, 0.0), axis=0)[None, :]
        own_column = tl.sum(tl.where(column == index, matrix, 0.0), axis=1)[:, None]
        pivot = tl.sum(tl.sum(tl.where((row == index) & (column == index), matrix, 0.0), axis=1), axis=0)
        matrix -= own_column * (own_row / pivot)
        matrix = tl.where(row == index, own_row / pivot, matrix)
        matrix = tl.where(column == index, -own_column / pivot, matrix)
        matrix = tl.where((row == index) & (column == index), 1.0 / pivot, matrix)
    return matrix


@triton.jit
def _pick(values: tl.tensor, index: tl.constexpr) -> tl.tensor:
    """The element at an index of a small vector."""
    return tl.sum(tl.where(tl.arange(0, _PARAMETERS_PAD) == index, values, 0.0), axis=0)


@triton.jit(do_not_specialize=_SIZES)
def _align_match(
    grey0: tl.tensor,
    grey1: tl.tensor,
    points0: tl.tensor,
    points1: tl.tensor,
    linear: tl.tensor,
    positions: tl.tensor,
    before: tl.tensor,
    after: tl.tensor,
    contrasts: tl.tensor,
    H0: tl.tensor,
    W0: tl.tensor,
    H1: tl.tensor,
    W1: tl.tensor,
    RADIUS: tl.constexpr,
    PIXELS: tl.constexpr,
    STEPS: tl.constexpr,
    TRANSLATION_STEPS: tl.constexpr,
    SPREAD: tl.constexpr,
    MAX_STEP: tl.constexpr,
    DAMPING: tl.constexpr,
    MIN_CONTRAST: tl.constexpr,
) -> None:
    """Inverse compositional Lucas-Kanade of one match."""
    SIDE: tl.constexpr = 2 * RADIUS + 1
    match = tl.program_id(0).to(tl.int64)
    pixel = tl.arange(0, PIXELS)
    across = (pixel % SIDE - RADIUS).to(tl.float32)
    down = (pixel // SIDE - RADIUS).to(tl.float32)
    weights = tl.exp(-(across * across + down * down) / (2 * SPREAD * SPREAD))
    weights = tl.where(pixel < SIDE * SIDE, weights, 0.0)
    weights = weights / tl.sum(weights, axis=0)

    x0, y0 = tl.load(points0 + match * 2), tl.load(points0 + match * 2 + 1)
    template, contrast = _normalise(_sample(grey0, H0, W0, x0 + across, y0 + down), weights)
    divisor = tl.maximum(contrast, MIN_CONTRAST)
    gradient_x = _sample(grey0, H0, W0, x0 + 0.5 + across, y0 + down)
    gradient_x = (gradient_x - _sample(grey0, H0, W0, x0 - 0.5 + across, y0 + down)) / divisor
    gradient_y = _sample(grey0, H0, W0, x0 + across, y0 + 0.5 + down)
    gradient_y = (gradient_y - _sample(grey0, H0, W0, x0 + across, y0 - 0.5 + down)) / divisor
    # Jacobian of position (x, y), then of the affine map: gradients times the offset from the centre.
    parameter = tl.arange(0, _PARAMETERS_PAD)[:, None]
    is_x = (parameter == 0) | (parameter == 2) | (parameter == 3)
    out = tl.where((parameter == 2) | (parameter == 4), across[None, :], down[None, :]) * (1.0 / RADIUS)
    out = tl.where(parameter < 2, 1.0, tl.where(parameter < _PARAMETERS, out, 0.0))
    jacobian = tl.where(is_x, gradient_x[None, :], gradient_y[None, :]) * out
    # Normalisation removes mean and contrast, so their derivatives are projected out.
    jacobian -= tl.sum(jacobian * weights[None, :], axis=1)[:, None]
    jacobian -= tl.sum(jacobian * (weights * template)[None, :], axis=1)[:, None] * template[None, :]
    weighted = jacobian * weights[None, :]
    normal = tl.zeros([_PARAMETERS_PAD, _PARAMETERS_PAD], tl.float32)
    for index in range(_PARAMETERS):
        own = tl.sum(tl.where(parameter == index, jacobian, 0.0), axis=0)
        products = tl.sum(weighted * own[None, :], axis=1)[:, None]
        normal = tl.where(tl.arange(0, _PARAMETERS_PAD)[None, :] == index, products, normal)
    translation_solver = _invert(normal, DAMPING, 2)
    affine_solver = _invert(normal, DAMPING, _PARAMETERS)

    x, y = tl.load(points1 + match * 2), tl.load(points1 + match * 2 + 1)
    a, b = tl.load(linear + match * 4), tl.load(linear + match * 4 + 1)
    c, d = tl.load(linear + match * 4 + 2), tl.load(linear + match * 4 + 3)
    patch, _ = _normalise(
        _sample(grey1, H1, W1, x + a * across + b * down, y + c * across + d * down), weights
    )
    tl.store(before + match, tl.sum(weights * template * patch, axis=0))
    for step in range(STEPS):
        use_affine = step >= TRANSLATION_STEPS
        along = tl.sum(weighted * (patch - template)[None, :], axis=1)
        solver = tl.where(use_affine, affine_solver, translation_solver)
        step_values = tl.sum(solver * along[None, :], axis=1)
        step_values = tl.minimum(tl.maximum(step_values, -MAX_STEP), MAX_STEP)
        warp = tl.where(use_affine, step_values / RADIUS, 0.0)
        inverse = _invert_2x2(1.0 + _pick(warp, 2), _pick(warp, 3), _pick(warp, 4), 1.0 + _pick(warp, 5))
        a, b, c, d = _multiply_2x2(a, b, c, d, inverse[0], inverse[1], inverse[2], inverse[3])
        move_x, move_y = _pick(step_values, 0), _pick(step_values, 1)
        x, y = x - (a * move_x + b * move_y), y - (c * move_x + d * move_y)
        patch, _ = _normalise(
            _sample(grey1, H1, W1, x + a * across + b * down, y + c * across + d * down), weights
        )
    tl.store(after + match, tl.sum(weights * template * patch, axis=0))
    tl.store(contrasts + match, contrast)
    tl.store(positions + match * 2, x)
    tl.store(positions + match * 2 + 1, y)
