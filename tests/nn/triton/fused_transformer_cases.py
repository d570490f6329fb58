"""The fused transformer against the plain one in float64; run by `test_triton_transformer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.nn.transformer import (
    MAX_REACH_CELLS,
    ConvolutionalSpatialTransformer,
    transform_and_convolve,
)
from ucn.nn.triton.transformer import transform_and_convolve_backward, transform_and_convolve_fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """No TF32, in which each path rounds differently."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    yield
    cudnn.allow_tf32, matmul.allow_tf32 = before


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def sample_theta(batch: int, h: int, w: int, spread: float) -> Tensor:
    identity = torch.tensor([1.0, 0, 0, 1], device=DEVICE).view(1, 4, 1, 1)
    return identity + spread * sample(batch, 4, h, w, seed=1)


def fuse(x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = transform_and_convolve_fused(x, theta, weight, bias, MAX_REACH_CELLS, False)
    return found


def compare(inputs: list[Tensor | None], tolerance: float = 2e-6) -> None:
    """Outputs and all gradients of the fused and of the plain transformer, for a random gradient."""
    results = []
    for function, dtype in ((fuse, None), (transform_and_convolve, torch.float64)):
        leaves = [
            None if x is None else x.detach().to(dtype or x.dtype).requires_grad_(x.requires_grad)
            for x in inputs
        ]
        assert leaves[0] is not None and leaves[1] is not None and leaves[2] is not None
        out = function(leaves[0], leaves[1], leaves[2], leaves[3])
        gradient = sample(*out.shape, seed=9).to(out.dtype)
        leaves_with_gradient = [x for x in leaves if x is not None and x.requires_grad]
        results.append([out.detach(), *torch.autograd.grad(out, leaves_with_gradient, gradient)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        scale = float(theirs.abs().max().clamp_min(1e-9))
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance * scale)


def build(
    B: int, C: int, C_out: int, h: int, w: int, kernel: int, spread: float, dtype: torch.dtype = torch.float32
) -> list[Tensor | None]:
    tensors = [
        sample(B, C, h, w).to(dtype),
        sample_theta(B, h, w, spread),
        sample(C_out, C, kernel, kernel, seed=2).to(dtype),
        sample(C_out, seed=3).to(dtype),
    ]
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize(
    ("B", "C", "C_out", "h", "w", "kernel", "spread"),
    [
        (2, 3, 4, 5, 7, 3, 0.2),
        (1, 20, 33, 3, 4, 5, 0.3),
        (1, 2, 3, 1, 1, 1, 0.2),
        (1, 40, 2, 1, 9, 3, 0.2),
        (1, 3, 2, 6, 5, 3, 9.0),  # windows leave the map, and some reach as far as they may
    ],
)
def test_output_and_gradients(B: int, C: int, C_out: int, h: int, w: int, kernel: int, spread: float) -> None:
    compare(build(B, C, C_out, h, w, kernel, spread))


def test_without_bias_and_with_some_gradients_only() -> None:
    x, theta, weight, _ = build(1, 3, 2, 4, 3, 3, 0.2)
    compare([x, theta, weight, None])
    assert x is not None and weight is not None
    compare([x.detach(), theta, weight.detach(), None])
    assert theta is not None
    compare([x, theta.detach(), weight.detach(), None])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_round_but_no_more(dtype: torch.dtype) -> None:
    compare(build(1, 5, 4, 4, 5, 3, 0.2, dtype), tolerance=2e-2)


def test_equals_a_convolution_where_theta_is_the_identity() -> None:
    x, weight, bias = sample(1, 4, 5, 6), sample(3, 4, 3, 3, seed=2), sample(3, seed=3)
    theta = sample_theta(1, 5, 6, 0.0)
    expected = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    torch.testing.assert_close(fuse(x, theta, weight, bias).double(), expected, rtol=0, atol=1e-5)


def test_maps_in_any_memory_order_and_channels_last_output() -> None:
    x, theta, weight = sample(2, 4, 3, 5), sample_theta(2, 3, 5, 0.2), sample(3, 4, 3, 3, seed=2)
    found = fuse(x, theta, weight, None)
    assert found.is_contiguous(memory_format=torch.channels_last)
    other = fuse(x.to(memory_format=torch.channels_last), theta, weight, None)
    assert torch.equal(found, other)


def test_no_images() -> None:
    x, theta, weight = (
        sample(0, 4, 3, 5).requires_grad_(),
        sample(0, 4, 3, 5),
        sample(3, 4, 3, 3).requires_grad_(),
    )
    found = fuse(x, theta, weight, None)
    assert found.shape == (0, 3, 3, 5)
    gradients = torch.autograd.grad(found.sum(), (x, weight))
    assert gradients[0].shape == x.shape
    assert gradients[1].abs().max() == 0


def test_operators_are_what_torch_expects() -> None:
    leaves = build(1, 3, 2, 3, 4, 3, 0.2)
    torch.library.opcheck(
        transform_and_convolve_fused,
        (*leaves, MAX_REACH_CELLS, False),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    x, theta, weight = (x.detach() for x in leaves[:3] if x is not None)
    arguments = (sample(1, 2, 3, 4, seed=5), x, theta, weight, MAX_REACH_CELLS, False)
    for needs in ((True, True, True), (False, True, False), (True, False, True)):
        torch.library.opcheck(
            transform_and_convolve_backward,
            (*arguments, *needs),
            test_utils=("test_schema", "test_faketensor"),
        )


@pytest.fixture
def always_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucn.nn.transformer.use_fused", lambda *tensors: True)


def _count_calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    from ucn.nn.triton import transformer as triton_transformer

    calls: list[Tensor] = []
    exact: Callable[..., Tensor] = triton_transformer.transform_and_convolve_fused

    def count(x: Tensor, *rest: object) -> Tensor:
        calls.append(x)
        return exact(x, *rest)

    monkeypatch.setattr(triton_transformer, "transform_and_convolve_fused", count)
    return calls


@pytest.mark.usefixtures("always_fused")
def test_the_layer_takes_the_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ConvolutionalSpatialTransformer(4, 3, 3).to(DEVICE)
    for index, parameter in enumerate(layer.parameters()):
        torch.nn.init.normal_(parameter, std=0.2, generator=None if DEVICE == "cuda" else _generator(index))
    x = sample(1, 4, 4, 5)
    calls = _count_calls(monkeypatch)
    found = layer(x)
    assert len(calls) == 1
    monkeypatch.setattr("ucn.nn.transformer.use_fused", lambda *tensors: False)
    expected = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.usefixtures("always_fused")
def test_wide_types_and_deterministic_runs_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _count_calls(monkeypatch)
    x, theta, weight = sample(1, 2, 3, 3), sample_theta(1, 3, 3, 0.2), sample(2, 2, 3, 3)
    transform_and_convolve(x.double(), theta.double(), weight.double(), None)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    transform_and_convolve(x, theta, weight, None)
    assert not calls


@pytest.mark.usefixtures("always_fused")
def test_compiled_in_one_graph_with_gradients() -> None:
    x, theta, weight, bias = (tensor for tensor in build(1, 3, 2, 3, 4, 3, 0.2) if tensor is not None)
    compiled = torch.compile(transform_and_convolve, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x, theta, weight, bias).square().sum(), (x, theta, weight, bias))
    expected = torch.autograd.grad(fuse(x, theta, weight, bias).square().sum(), (x, theta, weight, bias))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
