"""The convolutional spatial transformer: fused kernels and CPU bands against the torch reference."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table
from ucn.bench.samples import PAPER, load_network, sample_unit_vectors
from ucn.bench.settings import Settings
from ucn.bench.timing import Work, measure_memory, time_eager, time_graphs_in_turns, time_in_turns
from ucn.nn.cpu.transformer import BandedTransformer
from ucn.nn.transformer import ConvolutionalSpatialTransformer, transform_and_convolve
from ucn.runtime.kernels import without_fused

_KERNEL = 3
_NOTE = "Plain: grid_sample writes all k × k samples side by side, and a strided convolution combines them."
_ERROR_NOTE = (
    "Error: the largest difference of output and gradients from the reference in float64, relative to the "
    "largest value; for the gradient of the matrices, which is discontinuous at cell centres, over 99.9 % of "
    "its values."
)
_NAMES = ("output", "map", "theta", "weight", "bias")
_COLUMNS = (
    Column("type"),
    Column("pass"),
    Column("plain", "ms"),
    Column("plain, compiled", "ms"),
    Column("ucn", "ms"),
    Column("plain ÷ ucn", "ratio"),
    Column("plain", "MB"),
    Column("ucn", "MB"),
    Column("plain ÷ ucn, memory", "ratio"),
    Column("error", "error"),
    Column("error of plain", "error"),
)


def measure(settings: Settings) -> Part:
    """Both passes on a CUDA device, the forward pass on a CPU."""
    return _measure_cuda(settings) if settings.is_cuda else _measure_cpu(settings)


def build_inputs(
    batch: int, channels: int, h: int, w: int, dtype: torch.dtype, settings: Settings
) -> list[Tensor]:
    """A channels-last map, matrices around the identity, weight and bias."""

    def sample(*shape: int, seed: int) -> Tensor:
        generator = torch.Generator(device=settings.device).manual_seed(4 * settings.seed + seed)
        return torch.randn(shape, generator=generator, device=settings.device)

    identity = torch.eye(2, device=settings.device).view(1, 4, 1, 1)
    theta = identity + 0.2 * sample(batch, 4, h, w, seed=1)
    x = sample(batch, channels, h, w, seed=0).to(dtype, memory_format=torch.channels_last)
    weight = sample(channels, channels, _KERNEL, _KERNEL, seed=2) / (channels * _KERNEL**2) ** 0.5
    tensors = [x, theta, weight.to(dtype), sample(channels, seed=3).to(dtype)]
    return [tensor.requires_grad_() for tensor in tensors]


def sample_gradient(inputs: list[Tensor], settings: Settings) -> Tensor:
    """A random gradient of the output."""
    x, weight = inputs[0], inputs[2]
    generator = torch.Generator(device=x.device).manual_seed(settings.seed)
    shape = (x.shape[0], weight.shape[0], *x.shape[-2:])
    gradient = torch.randn(shape, generator=generator, device=x.device)
    return gradient.to(x.dtype, memory_format=torch.channels_last)


def transform_plain(*inputs: Tensor) -> Tensor:
    """The reference, without fused kernels."""
    with without_fused():
        return transform_and_convolve(*inputs)


def run_both(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Output and gradients."""
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient)]


def measure_errors(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> float:
    """The largest error of output and gradients against the reference in float64, on the first image."""
    few = [inputs[0][:1], inputs[1][:1], *inputs[2:]]
    few = [tensor.detach().requires_grad_() for tensor in few]
    found = run_both(function, few, gradient[:1])
    wide = [tensor.detach().double().requires_grad_() for tensor in few]
    expected = run_both(transform_plain, wide, gradient[:1].double())
    return max(
        find_error(ours.double(), theirs, 0.999 if name == "theta" else 1.0)
        for name, ours, theirs in zip(_NAMES, found, expected, strict=True)
    )


def find_error(found: Tensor, expected: Tensor, share: float) -> float:
    """The `share` quantile of the errors, relative to the largest value."""
    errors = (found - expected).abs().flatten()
    largest = errors.max() if share == 1 else errors.kthvalue(math.ceil(share * len(errors))).values
    return float(largest / expected.abs().max())


def _measure_cuda(settings: Settings) -> Part:
    batch, channels, h, w = (2, 32, 24, 32) if settings.is_quick else (8, 128, 120, 160)
    rows: list[tuple[Cell, ...]] = []
    for dtype in (torch.bfloat16, torch.float32):
        settings.report(f"transformer: {dtype}".replace("torch.", ""))
        rows += _measure_type(build_inputs(batch, channels, h, w, dtype, settings), settings)
    notes = [_NOTE, _ERROR_NOTE]
    if not settings.is_thorough:
        notes.append("The compiled reference is measured with --thorough.")
    title = (
        f"Convolutional spatial transformer, {batch} × {h} × {w} cells, {channels} channels, k = {_KERNEL}"
    )
    return Part((Table(title, _COLUMNS, tuple(rows), tuple(notes)),))


def _measure_type(inputs: list[Tensor], settings: Settings) -> list[tuple[Cell, ...]]:
    detached, device = [tensor.detach() for tensor in inputs], settings.device
    gradient = sample_gradient(detached, settings)
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    functions = (transform_plain, transform_and_convolve)
    compiled = _time_compiled(detached) if settings.is_thorough else None
    forward = [partial(function, *detached) for function in functions]
    captured = {str(number): [work] for number, work in enumerate(forward)}
    times = list(time_graphs_in_turns(captured, passes=3).values())
    memory = [measure_memory(work, device) for work in forward]
    rows = [_make_row(dtype, "forward", times, memory, [None, None], compiled)]
    both = [partial(run_both, function, inputs, gradient) for function in functions]
    times = [time_eager(work) for work in both]
    memory = [measure_memory(work, device) for work in both]
    errors = [measure_errors(function, inputs, gradient) for function in functions]
    return [*rows, _make_row(dtype, "forward and backward", times, memory, errors)]


def _time_compiled(inputs: list[Tensor]) -> float:
    inner = torch.compile(transform_and_convolve, dynamic=False)

    def run() -> Any:
        with without_fused():
            return inner(*inputs)

    return time_eager(run)


@torch.inference_mode()
def _measure_cpu(settings: Settings) -> Part:
    """The whole layer, with the convolutions that predict the matrices."""
    h, w = (24, 32) if settings.is_quick else (120, 160)
    settings.report("transformer: float32")
    layer = load_network(PAPER, settings.device).transformer
    assert isinstance(layer, ConvolutionalSpatialTransformer)
    channels = layer.weight.shape[1]
    x = sample_unit_vectors(1, h, w, channels, seed=settings.seed, device=settings.device)
    wide = x.permute(0, 3, 1, 2)
    works: dict[str, Work] = {
        "plain": partial(layer, wide.contiguous()),
        "ucn": partial(BandedTransformer(layer), x[0]),
    }
    times = time_in_turns(works, settings.effort)
    memory = [measure_memory(work, settings.device) for work in works.values()]
    expected = copy.deepcopy(layer).double()(wide.double())[0]
    outputs = (works["plain"]()[0], works["ucn"]().permute(2, 0, 1))
    errors = [find_error(output.double(), expected, 1.0) for output in outputs]
    row = _make_row("float32", "forward", list(times.values()), memory, errors)
    title = f"Convolutional spatial transformer, {h} × {w} cells, {channels} channels, k = {_KERNEL}"
    notes = (_NOTE, "The whole layer in float32, as both paths of encoding run it.")
    return Part((Table(title, _COLUMNS, (row,), notes),))


def _make_row(
    dtype: str,
    name: str,
    times: list[float],
    memory: list[float | None],
    errors: list[float] | list[None],
    compiled_ms: float | None = None,
) -> tuple[Cell, ...]:
    """A row from pairs of values: of the reference, and of ucn."""
    (plain_ms, our_ms), (plain_mb, our_mb) = times, memory
    ratio = plain_mb / our_mb if plain_mb and our_mb else None
    return (
        *(dtype, name, plain_ms, compiled_ms, our_ms, plain_ms / our_ms),
        *(plain_mb, our_mb, ratio, errors[1], errors[0]),
    )
