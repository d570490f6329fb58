"""The Triton kernels of InfoNCE against plain sums and their gradient; run by test_triton_infonce."""

import math

import pytest
import torch
from torch import Tensor

from ucn.losses.triton.infonce import log_sum_exp, log_sum_exp_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies in float32, a GPU in TF32.
TOLERANCE = 5e-3 if DEVICE == "cuda" else 1e-4


def make_case(
    items: int, queries: int, cells: int, dim: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.nn.functional.normalize(torch.randn(items, queries, dim, generator=generator), dim=-1) / 0.07
    c = torch.nn.functional.normalize(torch.randn(items, dim, cells, generator=generator), dim=1)
    centres = torch.rand(items, queries, 2, generator=generator) * 40
    positions = torch.rand(cells, 2, generator=generator) * 40
    return q.to(DEVICE), c.to(DEVICE), centres.to(DEVICE), positions.to(DEVICE)


def sum_slowly(q: Tensor, c: Tensor, centres: Tensor, positions: Tensor, radius: float) -> Tensor:
    logits = q.double() @ c.double()
    is_near = (centres[:, :, None].double() - positions.double()).square().sum(dim=-1) <= radius**2
    return logits.masked_fill(is_near, -torch.inf).logsumexp(dim=-1)


SHAPES = [(1, 1, 1, 3), (2, 70, 131, 16), (1, 64, 64, 32), (3, 5, 200, 40), (1, 130, 3, 128)]


@pytest.mark.parametrize(
    ("shape", "radius"), [(SHAPES[0], 0.0), (SHAPES[1], 0.0), *((shape, 6.0) for shape in SHAPES)]
)
def test_sums_and_gradients(shape: tuple[int, int, int, int], radius: float) -> None:
    q, c, centres, positions = make_case(*shape)
    wanted_q, wanted_c = q.double().requires_grad_(), c.double().requires_grad_()
    wanted = sum_slowly(wanted_q, wanted_c, centres, positions, radius)
    found = log_sum_exp(q, c, centres, positions, radius)
    torch.testing.assert_close(found, wanted.float().detach(), atol=TOLERANCE, rtol=TOLERANCE)
    weights = torch.rand(shape[:2], generator=torch.Generator().manual_seed(5)).to(DEVICE)
    torch.where(wanted > -math.inf, wanted * weights.double(), 0).sum().backward()
    sent_q, sent_c = log_sum_exp_backward(q, c, centres, positions, radius, found, weights)
    assert wanted_q.grad is not None and wanted_c.grad is not None
    torch.testing.assert_close(sent_q, wanted_q.grad.float().nan_to_num(), atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(
        sent_c, wanted_c.grad.float().nan_to_num(), atol=10 * TOLERANCE, rtol=TOLERANCE
    )


def test_queries_without_negatives() -> None:
    q, c, centres, positions = make_case(1, 3, 20, 8)
    centres[0, 1] = 1000.0  # all cells are far from this one, and near the others
    found = log_sum_exp(q, c, centres, positions, 100.0)
    assert found[0, [0, 2]].tolist() == [-math.inf, -math.inf] and found[0, 1].isfinite()
    sent_q, sent_c = log_sum_exp_backward(q, c, centres, positions, 100.0, found, torch.ones_like(found))
    assert (sent_q[0, [0, 2]] == 0).all() and sent_q[0, 1].abs().max() > 0
    assert sent_c.isfinite().all()


def test_cells_of_channels_last_maps() -> None:
    q, c, centres, positions = make_case(2, 9, 30, 16)
    other = c.mT.contiguous().mT
    assert other.stride() != c.stride()
    found = log_sum_exp(q, other, centres, positions, 3.0)
    torch.testing.assert_close(found, log_sum_exp(q, c, centres, positions, 3.0))
    ones = torch.ones_like(found)
    for one, two in zip(
        log_sum_exp_backward(q, other, centres, positions, 3.0, found, ones),
        log_sum_exp_backward(q, c, centres, positions, 3.0, found, ones),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


def test_cells_with_gaps_and_cells_that_share_memory() -> None:
    """Some channels of a map, and one map for several items: their gradients have another layout."""
    q, c, centres, positions = make_case(2, 9, 30, 16)
    gaps = torch.cat([c, torch.full_like(c, 7.0)], dim=1)[:, :16]
    for cells in (gaps, c[:1].expand(2, -1, -1)):
        result = log_sum_exp(q, cells, centres, positions, 1.0)
        plain = cells.clone(memory_format=torch.contiguous_format)
        torch.testing.assert_close(result, log_sum_exp(q, plain, centres, positions, 1.0))
        ones = torch.ones_like(result)
        found = log_sum_exp_backward(q, cells, centres, positions, 1.0, result, ones)
        expected = log_sum_exp_backward(q, plain, centres, positions, 1.0, result, ones)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two)


def test_no_queries() -> None:
    q, c, centres, positions = make_case(2, 0, 7, 8)
    found = log_sum_exp(q, c, centres, positions, 3.0)
    assert found.shape == (2, 0)
    sent_q, sent_c = log_sum_exp_backward(q, c, centres, positions, 3.0, found, found)
    assert sent_q.shape == q.shape and (sent_c == 0).all()


def test_large_similarities_do_not_overflow() -> None:
    q, c, centres, positions = make_case(1, 4, 50, 8)
    found = log_sum_exp(q * 1000, c, centres, positions, 3.0)
    wanted = sum_slowly(q * 1000, c, centres, positions, 3.0)
    torch.testing.assert_close(found, wanted.float(), rtol=max(TOLERANCE, 1e-5), atol=0.1)
