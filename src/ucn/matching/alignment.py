"""Matches moved to where the pixels round them agree: the last part of a pixel, which features do not see.

The patch round a point of image 0 is laid on image 1, turned and stretched as the matches round it say. Then
place and affine shape follow the gradient until both patches correlate best (Lucas and Kanade 1981, in the
inverse form of Baker and Matthews 2004). Patches are compared without their mean and contrast, so that light
may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ucn.geometry.neighbours import nearest_points
from ucn.geometry.sampling import sample_patches
from ucn.runtime.kernels import use_fused
from ucn.runtime.threads import share

_NEIGHBOURS = 12
_MIN_NEIGHBOURS = 4  # three determine an affine map; one more can contradict them
_FIT_STEPS = 4
_LEAST_SCALE = 0.5  # pixels by which neighbours may always be off
_RIDGE = 1.0  # square pixels; where neighbours lie on a line, the map across it is the identity
_RADIUS = 7
_SPREAD = _RADIUS / 1.5  # pixels, the standard deviation by which a patch's pixels count
_STEPS = 10
_FIRST_STEPS = 5  # of these, so many change the place only
_MAX_STEP = 1.0  # pixels of image 0, and the same share of the radius for the shape
_DAMPING = 1e-2
_MIN_CONTRAST = 1e-2  # standard deviation of a patch, in shares of white
_MIN_CORRELATION = 0.7
# Of a pair's matches. Birds of one kind (40 pairs of CUB's training images) stay below 0.33; of 36 synthetic
# pairs of photographs all but one, whose matches are mostly wrong, lie above 0.43.
_MIN_SHARE = 0.35
# Points at a time, each of which needs about 20 kB: a core's caches hold few, a GPU waits for launches.
_CHUNK = 512
_GPU_CHUNK = 8192
_MOST_THREADS = 8  # each of which holds a chunk

_Search = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""As `_search_plainly`."""


@dataclass(frozen=True)
class AlignedPoints:
    """Where points of image 0 lie in image 1, by their pixels.

    Attributes:
        points1: (N, 2) pixels of image 1; those that could not be aligned are where they were.
        is_aligned: (N,) bool.
        correlations: (N,) of the patches at `points1` in their final shape, in [-1, 1]; -1 where the patch in
            image 0 is blank or there is no point.
    """

    points1: Tensor
    is_aligned: Tensor
    correlations: Tensor


def align_matches(
    grey0: Tensor,
    grey1: Tensor,
    points0: Tensor,
    points1: Tensor,
    guides: tuple[Tensor, Tensor] | None = None,
    *,
    is_same_surface: bool | None = None,
    max_shift: float = 4.0,
) -> AlignedPoints:
    """Moves the matches of a pair by parts of a pixel, where its images show the same surfaces.

    Whether they do is seen from the guides: where the pixels round fewer than 35 in 100 of them agree, the
    images show two things of a kind, say, and all matches stay where they were. So they do without four
    guides.

    Args:
        grey0: (H0, W0) in [0, 1].
        grey1: (H1, W1) in [0, 1].
        points0: (N, 2) pixels of image 0, finite.
        points1: (N, 2) their matches, in pixels of image 1; NaN where there is none.
        guides: (M, 2) points of both images that match, well spread, which tell how image 1 is turned and
            stretched; None takes the matches themselves.
        is_same_surface: what `show_same_surface` says of the guides, where that is known already.
        max_shift: pixels of image 1 by which a match may move.
    """
    has_match = points1.isfinite().all(dim=1)
    guides0, guides1 = (points0[has_match], points1[has_match]) if guides is None else guides
    if guides is not None and is_same_surface is None:
        is_same_surface = show_same_surface(grey0, grey1, guides0, guides1, max_shift=max_shift)
    if is_same_surface is not False:
        linear = estimate_linear_parts(points0, guides0, guides1)
        found = align_points(grey0, grey1, points0, points1, linear, max_shift=max_shift)
        if is_same_surface or _agree(found.correlations[has_match]):
            return found
    return AlignedPoints(points1, torch.zeros_like(has_match), torch.full_like(points1[:, 0], -1.0))


def show_same_surface(
    grey0: Tensor, grey1: Tensor, guides0: Tensor, guides1: Tensor, *, max_shift: float = 4.0
) -> bool:
    """Whether the pixels round enough matches of a pair agree; all are finite, and as in `align_matches`."""
    linear = estimate_linear_parts(guides0, guides0, guides1)
    return _agree(align_points(grey0, grey1, guides0, guides1, linear, max_shift=max_shift).correlations)


def _agree(correlations: Tensor) -> bool:
    """Whether guides (M,) are enough, and enough of them agree."""
    agrees = correlations >= _MIN_CORRELATION
    return len(agrees) >= _MIN_NEIGHBOURS and bool(agrees.float().mean() >= _MIN_SHARE)


@torch.no_grad()
def estimate_linear_parts(points0: Tensor, known0: Tensor, known1: Tensor) -> Tensor:
    """How image 1 is turned and stretched against image 0 at points, by the known matches nearest to them.

    Twelve neighbours of a point are fitted by an affine map, those that contradict the others counting less.
    What comes back carries no gradient.

    Args:
        points0: (N, 2) pixels of image 0.
        known0: (M, 2) matched points of image 0, finite.
        known1: (M, 2) their matches, finite.

    Returns:
        (N, 2, 2): takes a small step in image 0 to one in image 1; the identity where M is below 4.
    """
    identity = torch.eye(2, dtype=points0.dtype, device=points0.device)
    count = min(_NEIGHBOURS, len(known0))
    if count < _MIN_NEIGHBOURS or not len(points0):
        return identity.expand(len(points0), 2, 2).clone()
    _, rows = nearest_points(points0, known0, count)
    if use_fused(rows, known0, known1) and known0.dtype == known1.dtype == points0.dtype == torch.float32:
        from ucn.matching.triton.alignment import fit_linear_parts_fused  # only where Triton is there

        return fit_linear_parts_fused(
            known0, known1, rows, steps=_FIT_STEPS, ridge=_RIDGE, least_scale=_LEAST_SCALE
        )
    # In float64: sums of squares of far neighbours on a line would lose the ridge.
    near0, near1 = known0[rows].double(), known1[rows].double()  # (N, k, 2)
    ridge = _RIDGE * identity.double()
    weights = torch.ones_like(near0[..., :1])
    for _ in range(_FIT_STEPS):
        total = weights.sum(dim=1, keepdim=True)
        from0 = near0 - (weights * near0).sum(dim=1, keepdim=True) / total
        from1 = near1 - (weights * near1).sum(dim=1, keepdim=True) / total
        weighted = (weights * from0).mT
        linear: Tensor = torch.linalg.solve(weighted @ from0 + ridge, weighted @ from1 + ridge).mT
        residuals = (from1 - from0 @ linear.mT).norm(dim=-1, keepdim=True)
        scale = residuals.median(dim=1, keepdim=True).values.clamp_min(_LEAST_SCALE)
        weights = (1 + (residuals / scale).square()).pow(-2)
    return linear.to(points0.dtype)


def align_points(
    grey0: Tensor,
    grey1: Tensor,
    points0: Tensor,
    points1: Tensor,
    linear_0to1: Tensor | None = None,
    *,
    max_shift: float = 4.0,
) -> AlignedPoints:
    """Moves matches in image 1 to where the patches of 15 × 15 pixels round them correlate best.

    What comes back carries no gradient.

    A match stays where it was if its patch in image 0 is blank, if alignment would move it by more than
    `max_shift`, does not raise the correlation, or leaves it below 0.7.

    Args:
        grey0: (H0, W0) in [0, 1].
        grey1: (H1, W1) in [0, 1].
        points0: (N, 2) pixels of image 0, finite.
        points1: (N, 2) their matches, in pixels of image 1; NaN where there is none.
        linear_0to1: (N, 2, 2) of `estimate_linear_parts`; None for the identity.
        max_shift: pixels of image 1.

    Raises:
        ValueError: the shapes do not fit.
    """
    count = len(points0)
    if linear_0to1 is None:
        linear_0to1 = torch.eye(2, dtype=points0.dtype, device=points0.device).expand(count, 2, 2)
    for name, tensor, shape in (
        ("points0", points0, (count, 2)),
        ("points1", points1, (count, 2)),
        ("linear_0to1", linear_0to1, (count, 2, 2)),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
    dtype, device = torch.promote_types(points0.dtype, points1.dtype), points1.device
    grey0, grey1, linear_0to1 = grey0.to(dtype), grey1.to(dtype), linear_0to1.to(dtype)
    points0, points1 = points0.to(dtype), points1.to(dtype)
    found = AlignedPoints(
        torch.empty(count, 2, dtype=dtype, device=device),
        torch.empty(count, dtype=torch.bool, device=device),
        torch.empty(count, dtype=dtype, device=device),
    )

    def align(rows: slice) -> None:
        part = _align(grey0, grey1, points0[rows], points1[rows], linear_0to1[rows], max_shift)
        found.points1[rows] = part.points1
        found.is_aligned[rows] = part.is_aligned
        found.correlations[rows] = part.correlations

    is_cpu = device.type == "cpu"
    threads, most = (min(torch.get_num_threads(), _MOST_THREADS), _CHUNK) if is_cpu else (1, _GPU_CHUNK)
    rounds = max(1, -(-count // (most * threads)))
    step = max(1, -(-count // (rounds * threads)))  # as many for each thread
    with torch.no_grad():
        chunks = [slice(start, start + step) for start in range(0, count, step)]
        if is_cpu:
            share(align, chunks, threads)
        else:
            for rows in chunks:
                align(rows)
    return found


def _align(
    grey0: Tensor, grey1: Tensor, points0: Tensor, points1: Tensor, linear: Tensor, max_shift: float
) -> AlignedPoints:
    """As `align_points`, for a chunk."""
    has_match = points1.isfinite().all(dim=1)
    start = points1.nan_to_num(0.0)
    search = _choose_search(grey0, grey1, start)
    place, first, last, contrasts = search(grey0, grey1, points0, start, linear)
    is_blank = contrasts < _MIN_CONTRAST
    is_aligned = has_match & ~is_blank & (last > first) & (last >= _MIN_CORRELATION)
    is_aligned &= (place - start).norm(dim=1) <= max_shift  # False for NaN
    correlations = torch.where(is_aligned, last, first).masked_fill(~has_match | is_blank, -1.0)
    return AlignedPoints(torch.where(is_aligned[:, None], place, points1), is_aligned, correlations)


def _choose_search(grey0: Tensor, grey1: Tensor, points: Tensor) -> _Search:
    """The GPU program where it takes such inputs, which must not be empty, else plain torch."""
    if use_fused(grey0, grey1, points) and len(points):
        from ucn.matching.triton import alignment as triton_alignment

        if triton_alignment.can_align(grey0, grey1, points):
            return partial(
                triton_alignment.align_fused,
                radius=_RADIUS,
                spread=_SPREAD,
                steps=_STEPS,
                first_steps=_FIRST_STEPS,
                max_step=_MAX_STEP,
                damping=_DAMPING,
                min_contrast=_MIN_CONTRAST,
            )
    return _search_plainly


def _search_plainly(
    grey0: Tensor, grey1: Tensor, points0: Tensor, start: Tensor, linear: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where matches correlate best: places, correlations before and there, and the contrast of patches."""
    offsets, weights = _window(points0)
    template = _Template.cut(grey0, points0, offsets, weights)
    place, shape = start, linear
    patches = _normalise(sample_patches(grey1, place, shape, offsets), weights)[0]
    first = template.correlate(patches)
    for step in range(_STEPS):
        move, bend = template.solve(patches, use_shape=step >= _FIRST_STEPS)
        shape = shape @ _invert_small(bend)
        place = place - (shape @ move[..., None])[..., 0]
        patches = _normalise(sample_patches(grey1, place, shape, offsets), weights)[0]
    return place, first, template.correlate(patches), template.contrasts


@dataclass(frozen=True)
class _Template:
    """Patches of image 0 and how they change with place and shape.

    Attributes:
        patches: (N, Q) of mean 0 and length 1 under the weights.
        weights: (Q,).
        slopes: (N, 6, Q) how patches change with place, then with shape, under the weights.
        place_solver: (N, 2, 2) takes how a difference of patches lies along the first two to a move.
        shape_solver: (N, 6, 6) takes how it lies along all of them to a move and a change of shape.
        contrasts: (N,) standard deviations, in shares of white.
    """

    patches: Tensor
    weights: Tensor
    slopes: Tensor
    place_solver: Tensor
    shape_solver: Tensor
    contrasts: Tensor

    @classmethod
    def cut(cls, grey0: Tensor, points0: Tensor, offsets: Tensor, weights: Tensor) -> _Template:
        """Cuts the patches round points and differentiates them."""
        upright = torch.eye(2, dtype=points0.dtype, device=points0.device).expand(len(points0), 2, 2)
        patches, lengths = _normalise(sample_patches(grey0, points0, upright, offsets), weights)
        slopes = []
        for step in points0.new_tensor([[0.5, 0.0], [0.0, 0.5]]):
            ahead, behind = (
                sample_patches(grey0, place, upright, offsets) for place in (points0 + step, points0 - step)
            )
            slopes.append((ahead - behind) / lengths.clamp_min(_MIN_CONTRAST))
        shares = offsets / _RADIUS
        columns = [*slopes, *(slope * share for slope in slopes for share in shares.unbind(dim=1))]
        changes = torch.stack(columns, dim=1)  # (N, 6, Q)
        # What only changes mean or contrast is not seen after normalisation.
        changes = changes - (changes * weights).sum(dim=2, keepdim=True)
        along = (changes * weights * patches[:, None]).sum(dim=2, keepdim=True)
        changes = changes - along * patches[:, None]
        weighted = changes * weights
        normal = weighted @ changes.mT
        return cls(patches, weights, weighted, _invert(normal[:, :2, :2]), _invert(normal), lengths[:, 0])

    def correlate(self, patches: Tensor) -> Tensor:
        """Correlation (N,) with other normalised patches."""
        return (self.weights * self.patches * patches).sum(dim=1)

    def solve(self, patches: Tensor, use_shape: bool) -> tuple[Tensor, Tensor]:
        """What, done to these patches of image 0, would make them more like others: move, change of shape."""
        solver = self.shape_solver if use_shape else self.place_solver
        # Rows times matrices: eight times as fast on a processor as matrices times columns.
        along = (patches - self.patches)[:, None] @ self.slopes[:, : solver.shape[-1]].mT
        step = (along @ solver.mT)[:, 0].clamp(-_MAX_STEP, _MAX_STEP)
        bend = torch.eye(2, dtype=step.dtype, device=step.device).expand(len(step), 2, 2)
        if use_shape:
            bend = bend + step[:, 2:].view(-1, 2, 2) / _RADIUS
        return step[:, :2], bend


def _invert(normal: Tensor) -> Tensor:
    """Damped inverses of (N, K, K), so that what is hardly seen changes little."""
    diagonal = normal.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    identity = torch.eye(normal.shape[-1], dtype=normal.dtype, device=normal.device)
    inverse: Tensor = torch.linalg.inv(normal + (_DAMPING * diagonal + 1e-9) * identity)
    return inverse


def _invert_small(matrices: Tensor) -> Tensor:
    """Inverses of (N, 2, 2), many times faster than by a general solver."""
    (a, b), (c, d) = (row.unbind(dim=-1) for row in matrices.unbind(dim=-2))
    adjugate = torch.stack([torch.stack([d, -b], dim=-1), torch.stack([-c, a], dim=-1)], dim=-2)
    return adjugate / (a * d - b * c)[:, None, None]


def _window(like: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (Q, 2) of a patch's pixels from its centre, row by row, and weights (Q,) that sum to 1."""
    steps = torch.arange(-_RADIUS, _RADIUS + 1, dtype=like.dtype, device=like.device)
    offsets = torch.cartesian_prod(steps, steps).flip(-1)
    weights = torch.exp(-offsets.square().sum(dim=1) / (2 * _SPREAD**2))
    return offsets, weights / weights.sum()


def _normalise(patches: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Patches (N, Q) of mean 0 and length 1 under the weights, and their lengths (N, 1) before."""
    centred = patches - (patches * weights).sum(dim=1, keepdim=True)
    lengths = (weights * centred.square()).sum(dim=1, keepdim=True).sqrt()
    return centred / lengths.clamp_min(1e-6), lengths
