"""Photometric refinement: matches moved by fractions of a pixel to where the pixels around them agree.

The patch around a point of image 0 is compared with image 1 under the local affine map that the matches
around it give. Position and affine map then follow the gradient until both patches correlate best (Lucas and
Kanade 1981, in the inverse compositional form of Baker and Matthews 2004). Patches are compared without mean
and contrast, so illumination may change.

`refine_photometric` refines the matches of a pair; `align_patches` is the Lucas-Kanade step, in plain torch
(`_search_reference`) or by its fused CUDA kernel (`ucn.matching.triton.alignment`).
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
_MIN_NEIGHBOURS = 4  # three determine an affine map; a fourth can contradict them
_FIT_STEPS = 4
_MIN_SCALE = 0.5  # pixels; residuals of neighbours below this are not outliers
_RIDGE = 1.0  # square pixels; where neighbours lie on a line, the map across it is the identity
_RADIUS = 7
_SPREAD = _RADIUS / 1.5  # pixels, the standard deviation of the patch's Gaussian weights
_STEPS = 10
_TRANSLATION_STEPS = 5  # the first of them change the position only, the others the affine map too
_MAX_STEP = 1.0  # pixels of image 0; for the affine map, the same share of the radius
_DAMPING = 1e-2
_MIN_CONTRAST = 1e-2  # standard deviation of a patch, as a share of white
_MIN_CORRELATION = 0.7
# The test for the same surface, with limits chosen on validation data (benchmarks/same_surface.py).
MAX_TESTED = 256  # the first matches, the best in `Matcher.match`, are aligned back from image 1 to image 0
_BACK_START = 1.0  # pixels between a point and where its backward alignment starts
_MAX_ROUND_TRIP = 0.5  # pixels from the point at which it must end
_MIN_SHARE = 0.1  # of the tested matches that must return,
_EXTRA_TESTED = 20  # after so many failures are added, since a share of few matches can be high by chance
_MIN_DETERMINANT = 1e-2  # of a local affine map that can be inverted
_GOLDEN_ANGLE = 2.4  # radians; multiples of it are evenly spread
# Points per chunk, each of which needs about 20 kB: few fit in a core's caches, and many keep a GPU busy.
_CHUNK = 512
_GPU_CHUNK = 8192
_MAX_THREADS = 8  # each holds a chunk

_Search = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""As `_search_reference`."""


@dataclass(frozen=True)
class AlignedPatches:
    """Positions in image 1 by patch alignment.

    Attributes:
        points1: (N, 2) pixels of image 1; unchanged where alignment failed.
        is_aligned: (N,) bool.
        correlations: (N,) of the patches at `points1` under the final affine map, in [-1, 1]; -1 where the
            patch in image 0 is blank or there is no match.
    """

    points1: Tensor
    is_aligned: Tensor
    correlations: Tensor


def refine_photometric(
    grey0: Tensor,
    grey1: Tensor,
    points0: Tensor,
    points1: Tensor,
    guides: tuple[Tensor, Tensor] | None = None,
    *,
    is_same_surface: bool | None = None,
    max_shift: float = 4.0,
) -> AlignedPatches:
    """Refines the matches of a pair to sub-pixel positions, where its images show the same surfaces.

    The guide matches decide that, see `passes_same_surface_test`. If the images show two instances of a
    category, say, all matches stay. They also stay with fewer than four guides.

    Args:
        grey0: (H0, W0) in [0, 1].
        grey1: (H1, W1) in [0, 1].
        points0: (N, 2) pixels of image 0, finite.
        points1: (N, 2) their matches, in pixels of image 1; NaN where there is none.
        guides: (M, 2) matching points of both images, well spread, from which local affine maps are
            estimated; None takes the matches themselves.
        is_same_surface: the result of `passes_same_surface_test` for the guides; computed when None.
        max_shift: pixels of image 1 by which a match may move.
    """
    has_match = points1.isfinite().all(dim=1)
    guides0, guides1 = (points0[has_match], points1[has_match]) if guides is None else guides
    if guides is not None and is_same_surface is None:
        is_same_surface = passes_same_surface_test(grey0, grey1, guides0, guides1, max_shift=max_shift)
    if is_same_surface is not False:
        linear = estimate_local_affine(points0, guides0, guides1)
        found = align_patches(grey0, grey1, points0, points1, linear, max_shift=max_shift)
        if is_same_surface or _do_enough_return(grey0, grey1, points0, linear, found, max_shift):
            return found
    return AlignedPatches(points1, torch.zeros_like(has_match), torch.full_like(points1[:, 0], -1.0))


def passes_same_surface_test(
    grey0: Tensor, grey1: Tensor, guides0: Tensor, guides1: Tensor, *, max_shift: float = 4.0
) -> bool:
    """Whether two images show the same surfaces, not only alike ones such as two faces.

    Patches of alike surfaces can be aligned too, but by chance: aligned back from image 1, they seldom end at
    the point that they came from. The test is passed if enough of the first 256 matches do.

    Args:
        grey0: as in `refine_photometric`.
        grey1: as in `refine_photometric`.
        guides0: (M, 2) pixels of image 0, finite.
        guides1: (M, 2) their matches, finite.
        max_shift: as in `refine_photometric`.
    """
    linear = estimate_local_affine(guides0, guides0, guides1)
    found = align_patches(grey0, grey1, guides0, guides1, linear, max_shift=max_shift)
    return _do_enough_return(grey0, grey1, guides0, linear, found, max_shift)


def _do_enough_return(
    grey0: Tensor, grey1: Tensor, points0: Tensor, linear: Tensor, found: AlignedPatches, max_shift: float
) -> bool:
    """Whether enough of at least four aligned matches return to their points when aligned back."""
    rows = found.points1.isfinite().all(dim=1).nonzero()[:, 0]
    if len(rows) < _MIN_NEIGHBOURS:
        return False
    rows = rows[:MAX_TESTED]
    part = AlignedPatches(found.points1[rows], found.is_aligned[rows], found.correlations[rows])
    return bool(check_return(grey0, grey1, points0[rows], linear[rows], part, max_shift))


def check_return(
    grey0: Tensor, grey1: Tensor, points0: Tensor, linear: Tensor, found: AlignedPatches, max_shift: float
) -> Tensor:
    """Whether enough aligned matches return to their points when aligned back: bool, without waiting for it.

    Args:
        grey0: as in `refine_photometric`.
        grey1: as in `refine_photometric`.
        points0: (N, 2) of the matches that are tested, at most `MAX_TESTED`.
        linear: (N, 2, 2) their local affine maps.
        found: what `align_patches` found for them; NaN where there is no match.
        max_shift: as in `refine_photometric`.
    """
    has_match = found.points1.isfinite().all(dim=1)
    needed = _MIN_SHARE * (has_match.sum() + _EXTRA_TESTED)
    determinants = linear[:, 0, 0] * linear[:, 1, 1] - linear[:, 0, 1] * linear[:, 1, 0]
    is_tested = has_match & (found.correlations >= _MIN_CORRELATION)
    is_tested &= determinants.abs() >= _MIN_DETERMINANT
    if not is_tested.is_cuda and is_tested.sum() < needed:
        return torch.zeros((), dtype=torch.bool)
    angles = _GOLDEN_ANGLE * (is_tested.to(points0.dtype).cumsum(dim=0) - 1)
    start = points0 + _BACK_START * torch.stack([angles.cos(), angles.sin()], dim=1)
    start = start.where(is_tested[:, None], torch.nan)
    identity = torch.eye(2, dtype=linear.dtype, device=linear.device)
    back = _invert_2x2(linear.where(is_tested[:, None, None], identity))
    ends = found.points1.nan_to_num(0.0)
    returned = align_patches(grey1, grey0, ends, start, back, max_shift=max_shift)
    errors = (returned.points1 - points0).norm(dim=1)  # where alignment failed, that of the start
    enough: Tensor = ((errors <= _MAX_ROUND_TRIP).sum() >= needed) & (has_match.sum() >= _MIN_NEIGHBOURS)
    return enough


@torch.no_grad()
def estimate_local_affine(
    points0: Tensor, known0: Tensor, known1: Tensor, is_known: Tensor | None = None
) -> Tensor:
    """Estimates the local affine map between both images at points, from the known matches nearest to them.

    The map fits the twelve nearest matches by iteratively reweighted least squares. It carries no gradient.

    Args:
        points0: (N, 2) pixels of image 0.
        known0: (M, 2) matched points of image 0, finite.
        known1: (M, 2) their matches, finite.
        is_known: (M,) bool, which of them count; None counts all.

    Returns:
        (N, 2, 2) linear parts: a small step in image 0 to one in image 1; the identity where M is below 4.
    """
    if is_known is not None and not use_fused(known0):
        known0, known1, is_known = known0[is_known], known1[is_known], None
    identity = torch.eye(2, dtype=points0.dtype, device=points0.device)
    count = min(_NEIGHBOURS, len(known0))
    if count < _MIN_NEIGHBOURS or not len(points0):
        return identity.expand(len(points0), 2, 2).clone()
    _, rows = nearest_points(points0, known0, count, is_known)
    if use_fused(rows, known0, known1) and known0.dtype == known1.dtype == points0.dtype == torch.float32:
        from ucn.matching.triton.alignment import fit_local_affine_fused  # needs Triton

        return fit_local_affine_fused(
            known0,
            known1,
            rows,
            steps=_FIT_STEPS,
            ridge=_RIDGE,
            min_scale=_MIN_SCALE,
            min_neighbours=_MIN_NEIGHBOURS,
        )
    # In float64: beside sums of squares of far neighbours on a line, float32 would lose the ridge.
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
        scale = residuals.median(dim=1, keepdim=True).values.clamp_min(_MIN_SCALE)
        weights = (1 + (residuals / scale).square()).pow(-2)
    return linear.to(points0.dtype)


def align_patches(
    grey0: Tensor,
    grey1: Tensor,
    points0: Tensor,
    points1: Tensor,
    linear_0to1: Tensor | None = None,
    *,
    max_shift: float = 4.0,
) -> AlignedPatches:
    """Moves matches in image 1 to where the 15 × 15 pixel patches around them correlate best.

    A match stays if its patch in image 0 is blank, or if alignment would move it by more than `max_shift`,
    does not raise the correlation, or leaves it below 0.7. The result carries no gradient.

    Args:
        grey0: (H0, W0) in [0, 1].
        grey1: (H1, W1) in [0, 1].
        points0: (N, 2) pixels of image 0, finite.
        points1: (N, 2) their matches, in pixels of image 1; NaN where there is none.
        linear_0to1: (N, 2, 2), as of `estimate_local_affine`; None for the identity.
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
    found = AlignedPatches(
        torch.empty(count, 2, dtype=dtype, device=device),
        torch.empty(count, dtype=torch.bool, device=device),
        torch.empty(count, dtype=dtype, device=device),
    )

    def align(rows: slice) -> None:
        part = _align_chunk(grey0, grey1, points0[rows], points1[rows], linear_0to1[rows], max_shift)
        found.points1[rows] = part.points1
        found.is_aligned[rows] = part.is_aligned
        found.correlations[rows] = part.correlations

    is_cpu = device.type == "cpu"
    threads, limit = (min(torch.get_num_threads(), _MAX_THREADS), _CHUNK) if is_cpu else (1, _GPU_CHUNK)
    rounds = max(1, -(-count // (limit * threads)))
    step = max(1, -(-count // (rounds * threads)))  # equal shares for all threads
    with torch.no_grad():
        chunks = [slice(start, start + step) for start in range(0, count, step)]
        if is_cpu:
            share(align, chunks, threads)
        else:
            for rows in chunks:
                align(rows)
    return found


def _align_chunk(
    grey0: Tensor, grey1: Tensor, points0: Tensor, points1: Tensor, linear: Tensor, max_shift: float
) -> AlignedPatches:
    """`align_patches` of one chunk."""
    has_match = points1.isfinite().all(dim=1)
    start = points1.nan_to_num(0.0)
    search = _choose_search(grey0, grey1, start)
    moved, before, after, contrasts = search(grey0, grey1, points0, start, linear)
    is_blank = contrasts < _MIN_CONTRAST
    is_aligned = has_match & ~is_blank & (after > before) & (after >= _MIN_CORRELATION)
    is_aligned &= (moved - start).norm(dim=1) <= max_shift  # False for NaN
    correlations = torch.where(is_aligned, after, before).masked_fill(~has_match | is_blank, -1.0)
    return AlignedPatches(torch.where(is_aligned[:, None], moved, points1), is_aligned, correlations)


def _choose_search(grey0: Tensor, grey1: Tensor, points: Tensor) -> _Search:
    """The fused CUDA kernel where it takes these inputs, which must not be empty, else the reference."""
    if use_fused(grey0, grey1, points) and len(points):
        from ucn.matching.triton import alignment as triton_alignment

        if triton_alignment.can_align(grey0, grey1, points):
            return partial(
                triton_alignment.align_patches_fused,
                radius=_RADIUS,
                spread=_SPREAD,
                steps=_STEPS,
                translation_steps=_TRANSLATION_STEPS,
                max_step=_MAX_STEP,
                damping=_DAMPING,
                min_contrast=_MIN_CONTRAST,
            )
    return _search_reference


def _search_reference(
    grey0: Tensor, grey1: Tensor, points0: Tensor, start: Tensor, linear: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inverse compositional Lucas-Kanade in plain torch.

    Returns:
        Positions (N, 2) in image 1, correlations (N,) at `start` and at those positions, and contrasts (N,)
        of the patches of image 0.
    """
    offsets, weights = _window(points0)
    template = _Template.cut(grey0, points0, offsets, weights)
    points1, affine = start, linear
    patches = _normalise(sample_patches(grey1, points1, affine, offsets), weights)[0]
    before = template.correlate(patches)
    for step in range(_STEPS):
        shift, warp = template.solve(patches, use_affine=step >= _TRANSLATION_STEPS)
        affine = affine @ _invert_2x2(warp)
        points1 = points1 - (affine @ shift[..., None])[..., 0]
        patches = _normalise(sample_patches(grey1, points1, affine, offsets), weights)[0]
    return points1, before, template.correlate(patches), template.contrasts


@dataclass(frozen=True)
class _Template:
    """Patches of image 0 and their derivatives.

    Attributes:
        patches: (N, Q) of mean 0 and length 1 under the weights.
        weights: (Q,).
        jacobians: (N, 6, Q) weighted derivatives of patches by position (x, y), then by affine map (4).
        translation_solver: (N, 2, 2) damped inverse normal matrix of the position.
        affine_solver: (N, 6, 6) damped inverse normal matrix of position and affine map.
        contrasts: (N,) standard deviations, as shares of white.
    """

    patches: Tensor
    weights: Tensor
    jacobians: Tensor
    translation_solver: Tensor
    affine_solver: Tensor
    contrasts: Tensor

    @classmethod
    def cut(cls, grey0: Tensor, points0: Tensor, offsets: Tensor, weights: Tensor) -> _Template:
        """Reads the patches around points and differentiates them."""
        identity = torch.eye(2, dtype=points0.dtype, device=points0.device).expand(len(points0), 2, 2)
        patches, lengths = _normalise(sample_patches(grey0, points0, identity, offsets), weights)
        gradients = []
        for step in points0.new_tensor([[0.5, 0.0], [0.0, 0.5]]):
            ahead, behind = (
                sample_patches(grey0, points, identity, offsets)
                for points in (points0 + step, points0 - step)
            )
            gradients.append((ahead - behind) / lengths.clamp_min(_MIN_CONTRAST))
        shares = offsets / _RADIUS
        columns = [
            *gradients,
            *(gradient * share for gradient in gradients for share in shares.unbind(dim=1)),
        ]
        jacobians = torch.stack(columns, dim=1)  # (N, 6, Q)
        # Normalisation removes mean and contrast, so their derivatives are projected out.
        jacobians = jacobians - (jacobians * weights).sum(dim=2, keepdim=True)
        along = (jacobians * weights * patches[:, None]).sum(dim=2, keepdim=True)
        jacobians = jacobians - along * patches[:, None]
        weighted = jacobians * weights
        normal = weighted @ jacobians.mT
        return cls(patches, weights, weighted, _invert(normal[:, :2, :2]), _invert(normal), lengths[:, 0])

    def correlate(self, patches: Tensor) -> Tensor:
        """Correlation (N,) with other normalised patches."""
        return (self.weights * self.patches * patches).sum(dim=1)

    def solve(self, patches: Tensor, use_affine: bool) -> tuple[Tensor, Tensor]:
        """One Gauss-Newton step: shift (N, 2) and warp (N, 2, 2) of the template towards other patches."""
        solver = self.affine_solver if use_affine else self.translation_solver
        # Rows times matrices: eight times as fast on a CPU as matrices times columns.
        along = (patches - self.patches)[:, None] @ self.jacobians[:, : solver.shape[-1]].mT
        step = (along @ solver.mT)[:, 0].clamp(-_MAX_STEP, _MAX_STEP)
        warp = torch.eye(2, dtype=step.dtype, device=step.device).expand(len(step), 2, 2)
        if use_affine:
            warp = warp + step[:, 2:].view(-1, 2, 2) / _RADIUS
        return step[:, :2], warp


def _invert(normal: Tensor) -> Tensor:
    """Damped inverses of (N, K, K), so that directions with little texture change little."""
    diagonal = normal.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    identity = torch.eye(normal.shape[-1], dtype=normal.dtype, device=normal.device)
    inverse: Tensor = torch.linalg.inv(normal + (_DAMPING * diagonal + 1e-9) * identity)
    return inverse


def _invert_2x2(matrices: Tensor) -> Tensor:
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
