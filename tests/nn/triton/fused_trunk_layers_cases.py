"""The trunk's fused pools and response norm against torch's; run by `test_trunk_layers`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.nn.triton.trunk_layers import fused_max_pool, fused_response_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(2, 5, 7, 9), (1, 64, 3, 3), (1, 70, 8, 6), (1, 1, 1, 1)]
if DEVICE == "cuda":  # more blocks than the interpreter does in a second
    SHAPES += [(3, 70, 8, 6), (2, 192, 5, 4), (1, 3, 4, 33)]


def sample(shape: tuple[int, ...], seed: int = 0, spread: float = 1.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread
    return values.to(DEVICE).contiguous(memory_format=torch.channels_last)


def plain_pool(x: Tensor, stride: int) -> Tensor:
    if stride == 1:
        return F.max_pool2d(x, 3, stride=1, padding=1)
    return F.max_pool2d(x, 3, stride=stride, ceil_mode=True)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_pool_equals_torch(shape: tuple[int, int, int, int], stride: int) -> None:
    if stride == 2 and min(shape[2:]) < 3:
        pytest.skip("a window without padding needs 3 cells")
    ours, theirs = sample(shape).requires_grad_(), sample(shape).requires_grad_()
    found, expected = fused_max_pool(ours, stride), plain_pool(theirs, stride)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    gradient = sample(tuple(expected.shape), seed=1)
    found.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_first_of_equals_gets_the_gradient(stride: int) -> None:
    # Behind a ReLU many cells are zero; torch gives the gradient to the first of a window.
    values = sample((2, 6, 9, 8)).clamp_min(0).round()
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    gradient = sample(tuple(plain_pool(values, stride).shape), seed=2)
    fused_max_pool(ours, stride).backward(gradient)
    plain_pool(theirs, stride).backward(gradient)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)


def test_pool_lets_through_what_is_not_a_number() -> None:
    x = sample((1, 2, 5, 5))
    x[0, 1, 2, 2] = float("nan")
    x[0, 0] = float("-inf")
    torch.testing.assert_close(fused_max_pool(x, 1), plain_pool(x, 1), rtol=0, atol=0, equal_nan=True)


def test_a_window_of_nothing_but_minus_infinity_has_a_gradient() -> None:
    values = torch.full((1, 1, 4, 4), float("-inf"), device=DEVICE).contiguous(
        memory_format=torch.channels_last
    )
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    fused_max_pool(ours, 1).backward(torch.ones(1, 1, 4, 4, device=DEVICE))
    plain_pool(theirs, 1).backward(torch.ones(1, 1, 4, 4, device=DEVICE))
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_norm_equals_torch_in_float64(shape: tuple[int, int, int, int]) -> None:
    ours = sample(shape, spread=200.0).requires_grad_()
    theirs = ours.detach().double().requires_grad_()
    found = fused_response_norm(ours)
    expected = F.local_response_norm(theirs, 5, alpha=1e-4, beta=0.75, k=1.0)
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-5)
    gradient = sample(shape, seed=1)
    found.backward(gradient)
    expected.backward(gradient.double())
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_round_once(dtype: torch.dtype) -> None:
    x = sample((2, 20, 6, 7), spread=50.0).to(dtype)
    expected = F.local_response_norm(x.double(), 5, alpha=1e-4, beta=0.75, k=1.0)
    torch.testing.assert_close(
        fused_response_norm(x).double(), expected, rtol=float(torch.finfo(dtype).eps), atol=1e-3
    )
    torch.testing.assert_close(fused_max_pool(x, 1), plain_pool(x.float(), 1).to(dtype), rtol=0, atol=0)


def test_gradients_in_another_order_of_memory() -> None:
    ours, theirs = sample((2, 6, 8, 9)).requires_grad_(), sample((2, 6, 8, 9)).requires_grad_()
    gradient = torch.randn(2, 6, 8, 9, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    fused_response_norm(fused_max_pool(ours, 1)).backward(gradient)
    F.local_response_norm(plain_pool(theirs, 1), 5, alpha=1e-4, beta=0.75, k=1.0).backward(gradient)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
