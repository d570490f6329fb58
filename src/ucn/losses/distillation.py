"""What a small network learns of a larger one: how similar cells are to a point, and their descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ucn.knn.search import DEFAULT_MEMORY_BYTES
from ucn.losses.correspondences import OneWay, can_fuse, check_direction, prepare_pair, sample_pair
from ucn.types import Direction, FeatureMap

_TEMPORARIES = 5  # matrices of similarities, or of what is made of them, that a chunk holds at once


def distillation_loss(
    maps: tuple[FeatureMap, FeatureMap],
    teacher_maps: tuple[FeatureMap, FeatureMap],
    points0: Tensor,
    points1: Tensor,
    is_valid: Tensor,
    *,
    temperature: float = 0.05,
    direction: Direction = "both",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Tensor:
    """How far the student's view of where a point lies is from the teacher's (Hinton et al. 2015).

    Both read their descriptors at a point and compare them with those of all cells of the other view; a
    softmax at the temperature makes probabilities p (teacher) and q (student) of these inner products, and
    the point costs Σ p log(p / q) ≥ 0. Lengths of descriptors may differ, since only similarities are
    compared. The mean is over all valid points of the batch and all directions asked for; an empty batch
    costs 0, with a zero gradient. The truth of the points does not matter, only where they lie.

    Similarities are computed in float32 at least, under autocast too, in chunks within the budget. On a CUDA
    device where torch may multiply in TF32, they stay in registers, where there is room for both networks'
    descriptors beside them.

    Args:
        maps: of B images of view 0 and of view 1, from the student.
        teacher_maps: the same from the teacher, with cells at the same places; gets no gradient.
        points0: (B, N, 2) pixels of view 0.
        points1: (B, N, 2) pixels of view 1.
        is_valid: (B, N) bool.
        temperature: above 0; the lower it is, the more only the best cells count.
        direction: '0to1' compares points of view 0 with the cells of view 1, '1to0' the reverse.
        memory_bytes: budget of the temporaries.

    Returns:
        A scalar.

    Raises:
        ValueError: shapes do not fit, cells lie elsewhere, or an argument is out of range.
    """
    check_direction(direction)
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if memory_bytes < 1:
        raise ValueError(f"memory_bytes must be at least 1, got {memory_bytes}")
    for view, (own, teacher) in enumerate(zip(maps, teacher_maps, strict=True)):
        _check_same_cells(own, teacher, view)
    student = prepare_pair(*maps, points0, points1, is_valid)
    with torch.autocast(points0.device.type, enabled=False):
        with torch.no_grad():
            teacher_way = prepare_pair(*teacher_maps, points0, points1, is_valid)
            taught = sample_pair(teacher_way)
        sampled = sample_pair(student)
        losses = []
        if direction != "1to0":
            losses.append(_compare(student, sampled[0], teacher_way, taught[0], temperature, memory_bytes))
        if direction != "0to1":
            ways = student.exchange_views(), teacher_way.exchange_views()
            losses.append(_compare(ways[0], sampled[1], ways[1], taught[1], temperature, memory_bytes))
        total = torch.stack(losses).sum()
    return total / (len(losses) * is_valid.sum().clamp(min=1))


def descriptor_loss(
    maps: tuple[FeatureMap, FeatureMap], teacher_maps: tuple[FeatureMap, FeatureMap]
) -> Tensor:
    """How far the student's descriptors of all cells are from the teacher's, after the best turn of these.

    Matching uses inner products alone, so that descriptors which one rotation takes to another's are as good.
    The teacher's are turned to where they come nearest to the student's over the whole batch, by a matrix
    with orthonormal rows or columns (orthogonal Procrustes, Schönemann 1966), so lengths may differ. A cell
    costs 1 - cos of the angle that is left; the mean is over all cells of both views. The turn is found anew
    each time and gets no gradient, and neither does the teacher.

    Args:
        maps: of B images of view 0 and of view 1, from the student.
        teacher_maps: the same from the teacher, with cells at the same places.

    Returns:
        A scalar; 0 without images, with a zero gradient.

    Raises:
        ValueError: cells lie elsewhere.
    """
    for view, (own, teacher) in enumerate(zip(maps, teacher_maps, strict=True)):
        _check_same_cells(own, teacher, view)
    with torch.autocast(maps[0].features.device.type, enabled=False):
        student = torch.cat([_list_cells(own) for own in maps])
        if not len(student):
            return student.sum()
        with torch.no_grad():
            taught = torch.cat([_list_cells(teacher) for teacher in teacher_maps])
            left, _, right = torch.linalg.svd(taught.mT @ student, full_matrices=False)
            aims = F.normalize(taught @ (left @ right), dim=1)
        return (1 - (F.normalize(student, dim=1) * aims).sum(dim=1)).mean()


def _list_cells(feature_map: FeatureMap) -> Tensor:
    """Descriptors (cells, D) of all images, in float32 at least."""
    features = feature_map.features
    features = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
    return features.permute(0, 2, 3, 1).flatten(0, 2)


def _check_same_cells(own: FeatureMap, teacher: FeatureMap, view: int) -> None:
    for name, ours, theirs in (
        ("stride", own.stride, teacher.stride),
        ("offset", own.offset, teacher.offset),
        ("grid", own.grid_hw, teacher.grid_hw),
    ):
        if ours != theirs:
            raise ValueError(f"the teacher's map of view {view} must have the {name} {ours}, got {theirs}")


def _compare(
    way: OneWay,
    queries: Tensor,
    teacher_way: OneWay,
    teacher_queries: Tensor,
    temperature: float,
    memory_bytes: int,
) -> Tensor:
    """The sum of one direction's divergences over the valid points."""
    rows = (queries / temperature, way.map_to.features.flatten(2))
    taught = (teacher_queries / temperature, teacher_way.map_to.features.detach().flatten(2))
    if can_fuse(*rows, *taught):
        divergences: Tensor = _FusedDivergences.apply(*rows, *taught)  # type: ignore[no-untyped-call]
        return torch.where(way.is_valid, divergences, 0.0).sum()
    summed: Tensor = _DivergenceSum.apply(  # type: ignore[no-untyped-call]
        *rows, *taught, way.is_valid, memory_bytes
    )
    return summed


class _FusedDivergences(torch.autograd.Function):
    """The divergence (B, N) of each query, by GPU programs that compute similarities again backwards."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, cells: Tensor, teacher_queries: Tensor, teacher_cells: Tensor
    ) -> Tensor:
        """Maps queries (B, N, D), cells (B, D, M) and the teacher's to (B, N)."""
        from ucn.losses.triton.distillation import sum_divergences

        found = sum_divergences(queries, cells, teacher_queries, teacher_cells)
        sums = found.student_sums, found.teacher_sums
        ctx.save_for_backward(queries, cells, teacher_queries, teacher_cells, *sums)
        return found.values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Sends the difference of the shares back to queries and cells."""
        from ucn.losses.triton.distillation import send_back

        queries, cells, teacher_queries, teacher_cells, *sums = ctx.saved_tensors
        inputs = (queries, cells, teacher_queries, teacher_cells)
        return *send_back(*inputs, sums[0], sums[1], gradient), None, None


class _DivergenceSum(torch.autograd.Function):
    """The sum over valid queries of the divergence of the student's softmax from the teacher's.

    The gradient of a divergence by the student's logits is q - p, which the forward pass has at hand. So it
    makes the gradients of queries and cells at once, and keeps them instead of any similarities.
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
            for items, rows in _chunks(queries, cells, memory_bytes):
                keep = is_valid[items, rows, None]
                student = torch.bmm(queries[items, rows], cells[items]).log_softmax(dim=-1)
                teacher = torch.bmm(teacher_queries[items, rows], teacher_cells[items]).log_softmax(dim=-1)
                share = teacher.exp()
                total += torch.where(keep, share * teacher.sub_(student), 0).sum()
                weights = student.exp_().sub_(share).mul_(keep)
                query_gradient[items, rows] = weights @ cells[items].mT
                cell_gradient[items].baddbmm_(queries[items, rows].mT, weights)
                del student, teacher, share, weights  # before the next chunk is made
        ctx.save_for_backward(query_gradient, cell_gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Scales the gradients that the forward pass made."""
        query_gradient, cell_gradient = ctx.saved_tensors
        return gradient * query_gradient, gradient * cell_gradient, None, None, None, None


def _chunks(queries: Tensor, cells: Tensor, memory_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Slices of batch items and of queries whose temporaries fit the budget."""
    (B, N, _), M = queries.shape, cells.shape[2]
    pairs = memory_bytes // (_TEMPORARIES * queries.dtype.itemsize)
    row_step = max(1, min(N, pairs // M))
    item_step = max(1, min(B, pairs // (max(N, 1) * M)))
    for item in range(0, B, item_step):
        for row in range(0, N, row_step):
            yield slice(item, item + item_step), slice(row, row + row_step)
