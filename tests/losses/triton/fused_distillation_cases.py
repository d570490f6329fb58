"""The Triton kernels of distillation against plain torch; run by test_triton_distillation."""

import pytest
import torch
from torch import Tensor

from ucn.losses.triton.distillation import compute_divergences, divergences_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies in float32, a GPU in TF32.
TOLERANCE = 2e-2 if DEVICE == "cuda" else 1e-4

Case = tuple[Tensor, Tensor, Tensor, Tensor]


def make_case(items: int, queries: int, cells: int, dim: int, teacher_dim: int, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for size in (dim, teacher_dim):
        q = torch.randn(items, queries, size, generator=generator)
        c = torch.randn(items, size, cells, generator=generator)
        drawn += [torch.nn.functional.normalize(q, dim=-1) / 0.05, torch.nn.functional.normalize(c, dim=1)]
    return drawn[0].to(DEVICE), drawn[1].to(DEVICE), drawn[2].to(DEVICE), drawn[3].to(DEVICE)


def diverge_slowly(q: Tensor, c: Tensor, teacher_q: Tensor, teacher_c: Tensor) -> Tensor:
    student = (q.double() @ c.double()).log_softmax(dim=-1)
    teacher = (teacher_q.double() @ teacher_c.double()).log_softmax(dim=-1)
    return (teacher.exp() * (teacher - student)).sum(dim=-1)


SHAPES = [
    (1, 1, 1, 3, 5),
    (2, 70, 131, 16, 40),
    (1, 64, 64, 32, 32),
    (3, 5, 200, 40, 16),
    (1, 130, 3, 64, 128),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_divergences_and_gradients(shape: tuple[int, int, int, int, int]) -> None:
    q, c, *teacher = case = make_case(*shape)
    wanted_q, wanted_c = q.double().requires_grad_(), c.double().requires_grad_()
    wanted = diverge_slowly(wanted_q, wanted_c, *teacher)
    found = compute_divergences(q, c, *teacher)
    torch.testing.assert_close(found.values, wanted.float().detach(), atol=TOLERANCE, rtol=TOLERANCE)
    for sums, logits in ((found.student_log_sums, q @ c), (found.teacher_log_sums, teacher[0] @ teacher[1])):
        torch.testing.assert_close(sums, logits.logsumexp(dim=-1), atol=TOLERANCE, rtol=TOLERANCE)
    weights = torch.rand(shape[:2], generator=torch.Generator().manual_seed(5)).to(DEVICE)
    weights[0, 0] = 0  # not valid
    (wanted * weights.double()).sum().backward()
    sent_q, sent_c = divergences_backward(*case, found.student_log_sums, found.teacher_log_sums, weights)
    assert wanted_q.grad is not None and wanted_c.grad is not None
    torch.testing.assert_close(sent_q, wanted_q.grad.float(), atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(sent_c, wanted_c.grad.float(), atol=10 * TOLERANCE, rtol=TOLERANCE)


def test_a_network_that_is_its_own_teacher_costs_nothing() -> None:
    q, c, *_ = make_case(2, 20, 90, 16, 16)
    found = compute_divergences(q, c, q, c)
    torch.testing.assert_close(found.values, torch.zeros_like(found.values), atol=1e-5, rtol=0)
    sent_q, sent_c = divergences_backward(
        q, c, q, c, found.student_log_sums, found.teacher_log_sums, torch.ones_like(found.values)
    )
    assert sent_q.abs().max() < 1e-6 and sent_c.abs().max() < 1e-5


def test_cells_of_channels_last_maps() -> None:
    q, c, teacher_q, teacher_c = make_case(2, 9, 30, 16, 24)
    other, teacher_other = c.mT.contiguous().mT, teacher_c.mT.contiguous().mT
    assert other.stride() != c.stride()
    found, again = (
        compute_divergences(q, other, teacher_q, teacher_other),
        compute_divergences(q, c, teacher_q, teacher_c),
    )
    torch.testing.assert_close(found.values, again.values)
    ones = torch.ones_like(found.values)
    sums = found.student_log_sums, found.teacher_log_sums
    for one, two in zip(
        divergences_backward(q, other, teacher_q, teacher_other, *sums, ones),
        divergences_backward(q, c, teacher_q, teacher_c, *sums, ones),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


def test_cells_with_gaps_and_cells_that_share_memory() -> None:
    """Some channels of a map, and one map for several items: their gradients have another layout."""
    q, c, teacher_q, teacher_c = make_case(2, 9, 30, 16, 24)
    gaps = torch.cat([c, torch.full_like(c, 7.0)], dim=1)[:, :16]
    for cells in (gaps, c[:1].expand(2, -1, -1)):
        found = compute_divergences(q, cells, teacher_q, teacher_c)
        plain = cells.clone(memory_format=torch.contiguous_format)
        torch.testing.assert_close(found.values, compute_divergences(q, plain, teacher_q, teacher_c).values)
        log_sums = found.student_log_sums, found.teacher_log_sums
        rest = teacher_q, teacher_c, *log_sums, torch.ones_like(found.values)
        expected = divergences_backward(q, plain, *rest)
        for one, two in zip(divergences_backward(q, cells, *rest), expected, strict=True):
            torch.testing.assert_close(one, two)


def test_no_queries() -> None:
    q, *_ = case = make_case(2, 0, 7, 8, 9)
    found = compute_divergences(*case)
    assert found.values.shape == (2, 0)
    sent_q, sent_c = divergences_backward(*case, found.student_log_sums, found.teacher_log_sums, found.values)
    assert sent_q.shape == q.shape and (sent_c == 0).all()


def test_large_similarities_do_not_overflow() -> None:
    q, c, teacher_q, teacher_c = make_case(1, 4, 50, 8, 8)
    found = compute_divergences(q * 100, c, teacher_q * 100, teacher_c)
    wanted = diverge_slowly(q * 100, c, teacher_q * 100, teacher_c)
    torch.testing.assert_close(found.values, wanted.float(), rtol=max(TOLERANCE, 1e-4), atol=0.1)
