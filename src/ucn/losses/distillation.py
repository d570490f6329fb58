"""Knowledge distillation: a student network imitates a teacher's similarities and descriptors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.losses.correspondences import (
    DirectedPair,
    can_fuse,
    prepare_pair,
    sample_pair,
    split_into_chunks,
)
from ucn.types import FeatureMap

_TEMPORARIES = 5  # matrices of the size of the similarities that a chunk holds at once


def distillation_loss(
    maps: tuple[FeatureMap, FeatureMap],
    teacher_maps: tuple[FeatureMap, FeatureMap],
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    *,
    temperature: float = 0.05,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """KL divergence of the student's match probabilities from the teacher's (Hinton et al. 2015).

    Both networks compare their descriptor at a point with those of all cells of the other view. A softmax of
    these inner products at the temperature gives probabilities p (teacher) and q (student), and the point
    costs Σ p log(p / q) ≥ 0. Descriptor dimensions may differ, since only similarities are compared. The mean
    is over all valid points of the batch and all requested directions; an empty batch costs 0, with a zero
    gradient. Only the positions of the points matter, not whether they correspond.

    Similarities are computed in float32 at least, under autocast too, in chunks within the budget. Where TF32
    is allowed on a CUDA device, fused kernels keep them in registers, if both networks' descriptors fit.

    Args:
        maps: of B images of view 0 and of view 1, from the student.
        teacher_maps: the same from the teacher, on the same grid of cells; they get no gradient.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        temperature: above 0; a lower one gives the best cells more weight.
        memory_bytes: budget of the temporaries.

    Returns:
        A scalar.

    Raises:
        ValueError: shapes or grids do not fit, or an argument is out of range.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if memory_bytes < 1:
        raise ValueError(f"memory_bytes must be at least 1, got {memory_bytes}")
    for view, grids in enumerate(zip(maps, teacher_maps, strict=True)):
        _check_same_grid(*grids, view)
    student = prepare_pair(*maps, points0, points1, is_valid)
    with torch.autocast(points0.device.type, enabled=False):
        with torch.no_grad():
            teacher = prepare_pair(*teacher_maps, points0, points1, is_valid)
            targets = sample_pair(teacher)
        sampled = sample_pair(student)
        loss_0to1 = _compare(student, sampled[0], teacher, targets[0], temperature, memory_bytes)
        student, teacher = student.reverse(), teacher.reverse()
        loss_1to0 = _compare(student, sampled[1], teacher, targets[1], temperature, memory_bytes)
    return (loss_0to1 + loss_1to0) / (2 * is_valid.sum().clamp(min=1))


def descriptor_loss(
    maps: tuple[FeatureMap, FeatureMap], teacher_maps: tuple[FeatureMap, FeatureMap]
) -> Tensor:
    """Mean cosine distance of the student's descriptors from the teacher's, after aligning the latter.

    Matching uses inner products alone, so a common rotation of all descriptors changes nothing. The teacher's
    are therefore rotated to the student's over the whole batch first, by a matrix with orthonormal rows or
    columns (orthogonal Procrustes, Schönemann 1966); dimensions may differ. A cell costs 1 - cos of the
    remaining angle, and the mean is over all cells of both views. The rotation is computed for each batch and
    gets no gradient, and neither does the teacher.

    Args:
        maps: of B images of view 0 and of view 1, from the student.
        teacher_maps: the same from the teacher, on the same grid of cells.

    Returns:
        A scalar; 0 without images, with a zero gradient.

    Raises:
        ValueError: the grids do not fit.
    """
    for view, grids in enumerate(zip(maps, teacher_maps, strict=True)):
        _check_same_grid(*grids, view)
    with torch.autocast(maps[0].features.device.type, enabled=False):
        student = torch.cat([_list_cells(own) for own in maps])
        if not len(student):
            return student.sum()
        with torch.no_grad():
            teacher = torch.cat([_list_cells(own) for own in teacher_maps])
            left, _, right = torch.linalg.svd(teacher.mT @ student, full_matrices=False)
            targets = F.normalize(teacher @ (left @ right), dim=1)
        return (1 - (F.normalize(student, dim=1) * targets).sum(dim=1)).mean()


def _list_cells(feature_map: FeatureMap) -> Tensor:
    """Descriptors (cells, D) of all images, in float32 at least."""
    features = feature_map.features
    features = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
    return features.permute(0, 2, 3, 1).flatten(0, 2)


def _check_same_grid(own: FeatureMap, teacher: FeatureMap, view: int) -> None:
    for name, ours, theirs in (
        ("stride", own.stride, teacher.stride),
        ("offset", own.offset, teacher.offset),
        ("grid", own.grid_hw, teacher.grid_hw),
    ):
        if ours != theirs:
            raise ValueError(f"the teacher's map of view {view} must have the {name} {ours}, got {theirs}")


def _compare(
    pair: DirectedPair,
    queries: Tensor,
    teacher_pair: DirectedPair,
    teacher_queries: Tensor,
    temperature: float,
    memory_bytes: int,
) -> Tensor:
    """The sum of one direction's divergences over the valid points."""
    student = (queries / temperature, pair.candidate_map.features.flatten(2))
    teacher = (teacher_queries / temperature, teacher_pair.candidate_map.features.detach().flatten(2))
    if can_fuse(*student, *teacher):
        divergences: Tensor = _FusedDivergences.apply(*student, *teacher)  # type: ignore[no-untyped-call]
        return torch.where(pair.is_valid, divergences, 0.0).sum()
    summed: Tensor = _DivergenceSum.apply(  # type: ignore[no-untyped-call]
        *student, *teacher, pair.is_valid, memory_bytes
    )
    return summed


class _FusedDivergences(torch.autograd.Function):
    """The divergence (B, N) of each query, by kernels that recompute similarities in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, cells: Tensor, teacher_queries: Tensor, teacher_cells: Tensor
    ) -> Tensor:
        """Maps queries (B, N, D), cells (B, D, M) and the teacher's to (B, N)."""
        from ucn.losses.triton.distillation import compute_divergences

        found = compute_divergences(queries, cells, teacher_queries, teacher_cells)
        log_sums = found.student_log_sums, found.teacher_log_sums
        ctx.save_for_backward(queries, cells, teacher_queries, teacher_cells, *log_sums)
        return found.values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries and cells; the teacher gets none."""
        from ucn.losses.triton.distillation import divergences_backward

        saved: tuple[Tensor, ...] = (*ctx.saved_tensors, gradient)
        return *divergences_backward(*saved), None, None


class _DivergenceSum(torch.autograd.Function):
    """The sum over valid queries of the divergence of the student's softmax from the teacher's.

    The gradient of a divergence by the student's logits is q - p, which the forward pass computes anyway. So
    it also computes the gradients of queries and cells, and saves these instead of any similarities.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        cells: Tensor,
        teacher_queries: Tensor,
        teacher_cells: Tensor,
        is_valid: Tensor,
        memory_bytes: int,
    ) -> Tensor:
        """Maps queries (B, N, D), cells (B, D, M) and the teacher's to a scalar."""
        query_gradient = torch.zeros_like(queries)
        cell_gradient = torch.zeros_like(cells, memory_format=torch.contiguous_format)
        total = queries.new_zeros(())
        with torch.autocast(queries.device.type, enabled=False):
            row_bytes = _TEMPORARIES * queries.dtype.itemsize * cells.shape[2]
            for items, rows in split_into_chunks(is_valid.shape, row_bytes, memory_bytes):
                keep = is_valid[items, rows, None]
                student = torch.bmm(queries[items, rows], cells[items]).log_softmax(dim=-1)
                teacher = torch.bmm(teacher_queries[items, rows], teacher_cells[items]).log_softmax(dim=-1)
                probability = teacher.exp()
                total += torch.where(keep, probability * teacher.sub_(student), 0).sum()
                weights = student.exp_().sub_(probability).mul_(keep)
                query_gradient[items, rows] = weights @ cells[items].mT
                cell_gradient[items].baddbmm_(queries[items, rows].mT, weights)
                del student, teacher, probability, weights  # frees them before the next chunk
        ctx.save_for_backward(query_gradient, cell_gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Scales the gradients that the forward pass saved."""
        query_gradient, cell_gradient = ctx.saved_tensors
        return gradient * query_gradient, gradient * cell_gradient, None, None, None, None
