"""Alignment by pixels in two GPU programs, in Triton, instead of a few hundred launches of torch.

A program is one match. It fits in the registers of a warp, so that nothing is written between steps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ucn.runtime.kernels import launch_on, round_to_power

# Numbers of place and shape, and as many as a power of two.
_USED = tl.constexpr(6)
_CHANGES = tl.constexpr(8)
# Arguments that differ from call to call; Triton would compile anew for those that are 1 or multiples of 16.
_SIZES = ["H0", "W0", "H1", "W1"]
_MOST_PIXELS = 2**31 - 1


def can_align(grey0: Tensor, grey1: Tensor, points: Tensor) -> bool:
    """Whether `align_fused` takes such inputs: it reckons in float32, and counts pixels in 32 bits."""
    return points.dtype == torch.float32 and max(grey0.numel(), grey1.numel()) <= _MOST_PIXELS


def fit_linear_parts_fused(
    known0: Tensor, known1: Tensor, rows: Tensor, *, steps: int, ridge: float, least_scale: float
) -> Tensor:
    """Affine maps (N, 2, 2) of neighbours; see `estimate_linear_parts`.

    Args:
        known0: (M, 2) float32.
        known1: (M, 2) likewise.
        rows: (N, K) int64, the neighbours of each point.
        steps: how often weights are found anew.
        ridge: square pixels that draw the map to the identity.
        least_scale: pixels by which neighbours may always be off.
    """
    count, neighbours = rows.shape
    linear = torch.empty(count, 2, 2, dtype=torch.float32, device=rows.device)
    with launch_on(rows):
        _fit_linear_part[(count,)](
            known0.contiguous(), known1.contiguous(), rows.contiguous(), linear, neighbours,
            PADDED=max(16, round_to_power(neighbours)), STEPS=steps, RIDGE=ridge, LEAST_SCALE=least_scale,
            num_warps=1,
        )  # fmt: skip
    return linear


def align_fused(
    grey0: Tensor,
    grey1: Tensor,
    points0: Tensor,
    points1: Tensor,
    linear: Tensor,
    *,
    radius: int,
    spread: float,
    steps: int,
    first_steps: int,
    max_step: float,
    damping: float,
    min_contrast: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where matches correlate best; see `align_points`.

    Args:
        grey0: (H0, W0) float32.
        grey1: (H1, W1) likewise.
        points0: (N, 2) likewise, finite, like all others.
        points1: (N, 2).
        linear: (N, 2, 2).
        radius: of a patch, in pixels.
        spread: of the weights of its pixels, likewise.
        steps: in all.
        first_steps: of these, so many change the place only.
        max_step: pixels of image 0, and the same share of the radius for the shape.
        damping: so that what is hardly seen changes little.
        min_contrast: below which slopes are not divided by the contrast.

    Returns:
        Places (N, 2), correlations (N,) at `points1` and at those places, and the contrast (N,) of patches.
    """
    count = len(points0)
    places = torch.empty_like(points1, memory_format=torch.contiguous_format)
    first, last, contrasts = torch.empty(3, count, dtype=torch.float32, device=points1.device).unbind()
    with launch_on(points1):
        _align_match[(count,)](
            grey0.contiguous(), grey1.contiguous(), points0.contiguous(), points1.contiguous(),
            linear.contiguous(), places, first, last, contrasts, *grey0.shape, *grey1.shape, RADIUS=radius,
            PIXELS=round_to_power((2 * radius + 1) ** 2), STEPS=steps, FIRST_STEPS=first_steps,
            SPREAD=spread, MAX_STEP=max_step, DAMPING=damping, MIN_CONTRAST=min_contrast, num_warps=1,
        )  # fmt: skip
    return places, first, last, contrasts


@triton.jit  # type: ignore[untyped-decorator]
def _invert_small(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    """The inverse of a matrix of two rows, a and b in the first."""
    determinant = a * d - b * c
    return d / determinant, -b / determinant, -c / determinant, a / determinant


@triton.jit  # type: ignore[untyped-decorator]
def _multiply_small(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    d: tl.tensor,
    e: tl.tensor,
    f: tl.tensor,
    g: tl.tensor,
    h: tl.tensor,
) -> tl.tensor:
    """The product of two matrices of two rows."""
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


@triton.jit  # type: ignore[untyped-decorator]
def _find_median(values: tl.tensor, places: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The median of the first ones, the lower of two; those after must be the largest."""
    is_tie = (values[None, :] == values[:, None]) & (places[None, :] < places[:, None])
    before = tl.sum(((values[None, :] < values[:, None]) | is_tie).to(tl.int32), axis=1)
    return tl.sum(tl.where(before == (count - 1) // 2, values, 0.0), axis=0)


@triton.jit(do_not_specialize=["neighbours"])  # type: ignore[untyped-decorator]
def _fit_linear_part(
    known0: tl.tensor,
    known1: tl.tensor,
    rows: tl.tensor,
    linear: tl.tensor,
    neighbours: tl.tensor,
    PADDED: tl.constexpr,
    STEPS: tl.constexpr,
    RIDGE: tl.constexpr,
    LEAST_SCALE: tl.constexpr,
) -> None:
    """The affine map of one point's neighbours, at least 4, in float64, as the plain one."""
    point = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PADDED)
    is_row = places < neighbours
    row = tl.load(rows + point * neighbours + places, mask=is_row, other=0)
    x0 = tl.load(known0 + row * 2, mask=is_row, other=0.0).to(tl.float64)
    y0 = tl.load(known0 + row * 2 + 1, mask=is_row, other=0.0).to(tl.float64)
    x1 = tl.load(known1 + row * 2, mask=is_row, other=0.0).to(tl.float64)
    y1 = tl.load(known1 + row * 2 + 1, mask=is_row, other=0.0).to(tl.float64)
    weights = is_row.to(tl.float64)
    a, b = tl.full((), 1.0, tl.float64), tl.full((), 0.0, tl.float64)
    c, d = b, a
    for _ in range(STEPS):
        total = tl.sum(weights, axis=0)
        from_x0 = x0 - tl.sum(weights * x0, axis=0) / total
        from_y0 = y0 - tl.sum(weights * y0, axis=0) / total
        from_x1 = x1 - tl.sum(weights * x1, axis=0) / total
        from_y1 = y1 - tl.sum(weights * y1, axis=0) / total
        across = tl.sum(weights * from_x0 * from_y0, axis=0)
        inverse = _invert_small(
            tl.sum(weights * from_x0 * from_x0, axis=0) + RIDGE, across,
            across, tl.sum(weights * from_y0 * from_y0, axis=0) + RIDGE,
        )  # fmt: skip
        # Of steps in image 0, in rows, to those in image 1.
        a, c, b, d = _multiply_small(
            inverse[0], inverse[1], inverse[2], inverse[3],
            tl.sum(weights * from_x0 * from_x1, axis=0) + RIDGE, tl.sum(weights * from_x0 * from_y1, axis=0),
            tl.sum(weights * from_y0 * from_x1, axis=0), tl.sum(weights * from_y0 * from_y1, axis=0) + RIDGE,
        )  # fmt: skip
        miss_x = from_x1 - (a * from_x0 + b * from_y0)
        miss_y = from_y1 - (c * from_x0 + d * from_y0)
        residuals = tl.where(is_row, tl.sqrt(miss_x * miss_x + miss_y * miss_y), float("inf"))
        scale = tl.maximum(_find_median(residuals, places, neighbours), LEAST_SCALE)
        shares = tl.where(is_row, residuals / scale, 0.0)
        certainty = 1.0 / (1.0 + shares * shares)
        weights = tl.where(is_row, certainty * certainty, 0.0)
    tl.store(linear + point * 4, a)
    tl.store(linear + point * 4 + 1, b)
    tl.store(linear + point * 4 + 2, c)
    tl.store(linear + point * 4 + 3, d)


@triton.jit  # type: ignore[untyped-decorator]
def _sample(image: tl.tensor, H: tl.tensor, W: tl.tensor, x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Values of an image at places, by bilinear interpolation; beyond its border, those of the border."""
    # What is no number lies at the border, too, so that nothing beyond the image is read.
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


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(patch: tl.tensor, weights: tl.tensor) -> tl.tensor:
    """A patch of mean 0 and length 1 under the weights, and its length before."""
    centred = patch - tl.sum(patch * weights, axis=0)
    length = tl.sqrt(tl.sum(weights * centred * centred, axis=0))
    return centred / tl.maximum(length, 1e-6), length


@triton.jit  # type: ignore[untyped-decorator]
def _invert(normal: tl.tensor, DAMPING: tl.constexpr, COUNT: tl.constexpr) -> tl.tensor:
    """The damped inverse of the first `COUNT` rows and columns; zero elsewhere.

    By exchanging rows and columns in turn (Gauss and Jordan). What is inverted has no eigenvalue below the
    damping, so that no pivot is looked for.
    """
    row, column = tl.arange(0, _CHANGES)[:, None], tl.arange(0, _CHANGES)[None, :]
    diagonal = tl.sum(tl.sum(tl.where((row == column) & (row < COUNT), normal, 0.0), axis=1), axis=0) / COUNT
    matrix = tl.where((row < COUNT) & (column < COUNT), normal, 0.0)
    matrix += tl.where((row == column) & (row < COUNT), DAMPING * diagonal + 1e-9, 0.0)
    for place in range(COUNT):  # not unrolled: that would take longer to compile than it saves
        own_row = tl.sum(tl.where(row == place, matrix, 0.0), axis=0)[None, :]
        own_column = tl.sum(tl.where(column == place, matrix, 0.0), axis=1)[:, None]
        pivot = tl.sum(tl.sum(tl.where((row == place) & (column == place), matrix, 0.0), axis=1), axis=0)
        matrix -= own_column * (own_row / pivot)
        matrix = tl.where(row == place, own_row / pivot, matrix)
        matrix = tl.where(column == place, -own_column / pivot, matrix)
        matrix = tl.where((row == place) & (column == place), 1.0 / pivot, matrix)
    return matrix


@triton.jit  # type: ignore[untyped-decorator]
def _pick(values: tl.tensor, place: tl.constexpr) -> tl.tensor:
    """One of a few values."""
    return tl.sum(tl.where(tl.arange(0, _CHANGES) == place, values, 0.0), axis=0)


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _align_match(
    grey0: tl.tensor,
    grey1: tl.tensor,
    points0: tl.tensor,
    points1: tl.tensor,
    linear: tl.tensor,
    places: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    contrasts: tl.tensor,
    H0: tl.tensor,
    W0: tl.tensor,
    H1: tl.tensor,
    W1: tl.tensor,
    RADIUS: tl.constexpr,
    PIXELS: tl.constexpr,
    STEPS: tl.constexpr,
    FIRST_STEPS: tl.constexpr,
    SPREAD: tl.constexpr,
    MAX_STEP: tl.constexpr,
    DAMPING: tl.constexpr,
    MIN_CONTRAST: tl.constexpr,
) -> None:
    """One match, whose patch of image 0 is laid on image 1 until both correlate best."""
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
    least = tl.maximum(contrast, MIN_CONTRAST)
    slope_x = _sample(grey0, H0, W0, x0 + 0.5 + across, y0 + down)
    slope_x = (slope_x - _sample(grey0, H0, W0, x0 - 0.5 + across, y0 + down)) / least
    slope_y = _sample(grey0, H0, W0, x0 + across, y0 + 0.5 + down)
    slope_y = (slope_y - _sample(grey0, H0, W0, x0 + across, y0 - 0.5 + down)) / least
    # Of place by x and y, then of shape by its four numbers, each a slope times how far a pixel lies out.
    change = tl.arange(0, _CHANGES)[:, None]
    is_x = (change == 0) | (change == 2) | (change == 3)
    out = tl.where((change == 2) | (change == 4), across[None, :], down[None, :]) * (1.0 / RADIUS)
    out = tl.where(change < 2, 1.0, tl.where(change < _USED, out, 0.0))
    changes = tl.where(is_x, slope_x[None, :], slope_y[None, :]) * out
    # What only changes mean or contrast is not seen after normalisation.
    changes -= tl.sum(changes * weights[None, :], axis=1)[:, None]
    changes -= tl.sum(changes * (weights * template)[None, :], axis=1)[:, None] * template[None, :]
    weighted = changes * weights[None, :]
    normal = tl.zeros([_CHANGES, _CHANGES], tl.float32)
    for place in range(_USED):
        own = tl.sum(tl.where(change == place, changes, 0.0), axis=0)
        products = tl.sum(weighted * own[None, :], axis=1)[:, None]
        normal = tl.where(tl.arange(0, _CHANGES)[None, :] == place, products, normal)
    place_solver = _invert(normal, DAMPING, 2)
    shape_solver = _invert(normal, DAMPING, _USED)

    x, y = tl.load(points1 + match * 2), tl.load(points1 + match * 2 + 1)
    a, b = tl.load(linear + match * 4), tl.load(linear + match * 4 + 1)
    c, d = tl.load(linear + match * 4 + 2), tl.load(linear + match * 4 + 3)
    patch, _ = _normalise(
        _sample(grey1, H1, W1, x + a * across + b * down, y + c * across + d * down), weights
    )
    tl.store(first + match, tl.sum(weights * template * patch, axis=0))
    for step in range(STEPS):
        use_shape = step >= FIRST_STEPS
        along = tl.sum(weighted * (patch - template)[None, :], axis=1)
        solver = tl.where(use_shape, shape_solver, place_solver)
        moves = tl.sum(solver * along[None, :], axis=1)
        moves = tl.minimum(tl.maximum(moves, -MAX_STEP), MAX_STEP)
        bend = tl.where(use_shape, moves / RADIUS, 0.0)
        inverse = _invert_small(1.0 + _pick(bend, 2), _pick(bend, 3), _pick(bend, 4), 1.0 + _pick(bend, 5))
        a, b, c, d = _multiply_small(a, b, c, d, inverse[0], inverse[1], inverse[2], inverse[3])
        move_x, move_y = _pick(moves, 0), _pick(moves, 1)
        x, y = x - (a * move_x + b * move_y), y - (c * move_x + d * move_y)
        patch, _ = _normalise(
            _sample(grey1, H1, W1, x + a * across + b * down, y + c * across + d * down), weights
        )
    tl.store(last + match, tl.sum(weights * template * patch, axis=0))
    tl.store(contrasts + match, contrast)
    tl.store(places + match * 2, x)
    tl.store(places + match * 2 + 1, y)
