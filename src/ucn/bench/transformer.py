"""The convolutional spatial transformer: what this device takes for it against sampling and convolving."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.bench.report import Cell, Column, Part, Table, Target
from ucn.bench.samples import PAPER, draw_unit, load_network
from ucn.bench.settings import Settings
from ucn.bench.timing import Work, measure_memory, time_eager, time_graphs, time_in_turns
from ucn.geometry.sampling import sample_image
from ucn.nn.cpu.transformer import BandedTransformer
from ucn.nn.transformer import (
    MAX_REACH_CELLS,
    ConvolutionalSpatialTransformer,
    transform_and_convolve,
)
from ucn.runtime.kernels import without_fused

_KERNEL = 3
_PLAIN = "Plain: grid_sample writes all k × k readings side by side, a strided convolution combines them."
_OFF = (
    "Off float64: the largest difference of output and gradients from the plain way in float64, relative "
    "to the largest value; of the matrices' gradient, which jumps at cell centres, among 99.9 % of them."
)
_NAMES = ("output", "map", "theta", "weight", "bias")
_COLUMNS = (
    Column("type"),
    Column("pass"),
    Column("plain", "ms"),
    Column("compiled plain", "ms"),
    Column("ucn", "ms"),
    Column("plain ÷ ucn", "ratio"),
    Column("plain", "MB"),
    Column("ucn", "MB"),
    Column("plain ÷ ucn, memory", "ratio"),
    Column("off float64", "error"),
    Column("plain off float64", "error"),
)


def measure(settings: Settings) -> Part:
    """Both passes on a CUDA device, the forward pass on a CPU."""
    return _measure_cuda(settings) if settings.is_cuda else _measure_cpu(settings)


def build_inputs(
    batch: int, channels: int, h: int, w: int, dtype: torch.dtype, settings: Settings
) -> list[Tensor]:
    """Map (channels-last), matrices away from the identity, weights and bias."""

    def draw(*shape: int, seed: int) -> Tensor:
        generator = torch.Generator(device=settings.device).manual_seed(4 * settings.seed + seed)
        return torch.randn(shape, generator=generator, device=settings.device)

    identity = torch.eye(2, device=settings.device).view(1, 4, 1, 1)
    theta = identity + 0.2 * draw(batch, 4, h, w, seed=1)
    x = draw(batch, channels, h, w, seed=0).to(dtype, memory_format=torch.channels_last)
    weight = draw(channels, channels, _KERNEL, _KERNEL, seed=2) / (channels * _KERNEL**2) ** 0.5
    tensors = [x, theta, weight.to(dtype), draw(channels, seed=3).to(dtype)]
    return [tensor.requires_grad_() for tensor in tensors]


def transform_plainly(x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The definition: k × k readings laid side by side, then a convolution of stride k."""
    (batch, _, h, w), kernel = x.shape, weight.shape[-1]
    wide = theta.float() if theta.dtype.itemsize < 4 else theta
    steps = torch.arange(kernel, device=x.device, dtype=wide.dtype) - kernel // 2
    dy, dx = steps.view(1, 1, kernel, 1, 1), steps.view(1, 1, 1, 1, kernel)
    t11, t12, t21, t22 = (t[:, :, None, :, None] for t in wide.unbind(1))
    columns = torch.arange(w, device=x.device, dtype=wide.dtype).view(1, 1, 1, w, 1)
    rows = torch.arange(h, device=x.device, dtype=wide.dtype).view(1, h, 1, 1, 1)
    place_x = columns + (t11 * dx + t12 * dy).clamp(-MAX_REACH_CELLS, MAX_REACH_CELLS)
    place_y = rows + (t21 * dx + t22 * dy).clamp(-MAX_REACH_CELLS, MAX_REACH_CELLS)
    places = torch.stack([place_x, place_y], dim=-1).reshape(batch, h * kernel, w * kernel, 2)
    return F.conv2d(sample_image(x, places, "zeros"), weight, bias, stride=kernel)


def draw_gradient(inputs: list[Tensor], settings: Settings) -> Tensor:
    """A gradient of the output."""
    x, weight = inputs[0], inputs[2]
    generator = torch.Generator(device=x.device).manual_seed(settings.seed)
    shape = (x.shape[0], weight.shape[0], *x.shape[-2:])
    drawn = torch.randn(shape, generator=generator, device=x.device)
    return drawn.to(x.dtype, memory_format=torch.channels_last)


def run_both(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Output and gradients."""
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient)]


def measure_errors(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> float:
    """The largest error of output and gradients against the plain way in float64, on the first image."""
    few = [inputs[0][:1], inputs[1][:1], *inputs[2:]]
    few = [tensor.detach().requires_grad_() for tensor in few]
    found = run_both(function, few, gradient[:1])
    wide = [tensor.detach().double().requires_grad_() for tensor in few]
    expected = run_both(transform_plainly, wide, gradient[:1].double())
    return max(
        find_error(ours.double(), theirs, 0.999 if name == "theta" else 1.0)
        for name, ours, theirs in zip(_NAMES, found, expected, strict=True)
    )


def find_error(found: Tensor, expected: Tensor, share: float) -> float:
    """The largest error among a share of the values, relative to the largest value."""
    errors = (found - expected).abs().flatten()
    largest = errors.max() if share == 1 else errors.kthvalue(math.ceil(share * len(errors))).values
    return float(largest / expected.abs().max())


def _run_plain(*inputs: Tensor) -> Tensor:
    with without_fused():
        return transform_and_convolve(*inputs)


def _measure_cuda(settings: Settings) -> Part:
    batch, channels, h, w = (2, 32, 24, 32) if settings.is_quick else (8, 128, 120, 160)
    rows, targets = [], []
    for dtype in (torch.bfloat16, torch.float32):
        settings.report(f"transformer: {_say(dtype)}")
        measured = _measure_type(build_inputs(batch, channels, h, w, dtype, settings), settings)
        rows += measured
        targets += _judge(measured)
    notes = [_PLAIN, _OFF]
    if not settings.is_thorough:
        notes.append("The plain way compiled is measured with --thorough.")
    title = (
        f"Convolutional spatial transformer, {batch} × {h} × {w} cells, {channels} channels, k = {_KERNEL}"
    )
    return Part((Table(title, _COLUMNS, tuple(rows), tuple(notes)),), tuple(targets))


def _measure_type(inputs: list[Tensor], settings: Settings) -> list[tuple[Cell, ...]]:
    detached, device = [tensor.detach() for tensor in inputs], settings.device
    gradient = draw_gradient(detached, settings)
    plain, ours = partial(_run_plain, *detached), partial(transform_and_convolve, *detached)
    compiled = _time_compiled(detached) if settings.is_thorough else None
    plain_ms, our_ms = (time_graphs([work], passes=3) for work in (plain, ours))
    plain_mb, our_mb = (measure_memory(work, device) for work in (plain, ours))
    dtype = _say(inputs[0].dtype)
    rows = [_make_row(dtype, "forward", plain_ms, compiled, our_ms, plain_mb, our_mb, None, None)]
    works = [partial(run_both, way, inputs, gradient) for way in (_run_plain, transform_and_convolve)]
    plain_ms, our_ms = map(time_eager, works)
    plain_mb, our_mb = (measure_memory(work, device) for work in works)
    errors = [measure_errors(way, inputs, gradient) for way in (transform_and_convolve, _run_plain)]
    both = "forward and backward"
    return [*rows, _make_row(dtype, both, plain_ms, None, our_ms, plain_mb, our_mb, *errors)]


def _time_compiled(inputs: list[Tensor]) -> float:
    inner = torch.compile(transform_and_convolve, dynamic=False)

    def run() -> Any:
        with without_fused():
            return inner(*inputs)

    return time_eager(run)


@torch.inference_mode()
def _measure_cpu(settings: Settings) -> Part:
    """The whole layer, with the convolutions that say how windows move."""
    h, w = (24, 32) if settings.is_quick else (120, 160)
    settings.report("transformer: float32")
    layer = load_network(PAPER, settings.device).transformer
    assert isinstance(layer, ConvolutionalSpatialTransformer)
    channels = layer.weight.shape[1]
    x = draw_unit(1, h, w, channels, seed=settings.seed, device=settings.device)
    banded = BandedTransformer(layer)
    works: dict[str, Work] = {
        "plain": partial(_run_layer, layer, x.permute(0, 3, 1, 2).contiguous()),
        "ucn": partial(banded, x[0]),
    }
    times = time_in_turns(works, settings.effort)
    plain_mb, our_mb = (measure_memory(work, settings.device) for work in works.values())
    expected = _run_layer(copy.deepcopy(layer).double(), x.permute(0, 3, 1, 2).double())[0]
    off = find_error(works["ucn"]().permute(2, 0, 1).double(), expected, 1.0)
    plain_off = find_error(works["plain"]()[0].double(), expected, 1.0)
    row = _make_row(
        "float32", "forward", times["plain"], None, times["ucn"], plain_mb, our_mb, off, plain_off
    )
    title = f"Convolutional spatial transformer, {h} × {w} cells, {channels} channels, k = {_KERNEL}"
    notes = (_PLAIN, "The whole layer, in float32, as both paths of encoding run it.")
    return Part((Table(title, _COLUMNS, (row,), notes),))


def _run_layer(layer: ConvolutionalSpatialTransformer, x: Tensor) -> Tensor:
    return transform_plainly(x, layer.predict_theta(x), layer.weight, layer.bias)


def _make_row(
    dtype: str,
    name: str,
    plain_ms: float,
    compiled_ms: float | None,
    our_ms: float,
    plain_mb: float | None,
    our_mb: float | None,
    error: float | None,
    plain_error: float | None,
) -> tuple[Cell, ...]:
    ratio = plain_mb / our_mb if plain_mb and our_mb else None
    times = (plain_ms, compiled_ms, our_ms, plain_ms / our_ms)
    return (dtype, name, *times, plain_mb, our_mb, ratio, error, plain_error)


def _judge(rows: list[tuple[Cell, ...]]) -> list[Target]:
    targets = []
    for dtype, name, *_, ratio, _, _, memory, _, _ in rows:
        if dtype != "bfloat16":
            continue
        targets.append(Target(f"plain ÷ ucn, {name}", "an H200", float(ratio or 0), 3.0))
        targets.append(Target(f"plain ÷ ucn, memory, {name}", "an H200", float(memory or 0), 5.0))
    return targets


def _say(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
