"""The fused convolutional spatial transformer on a CUDA device: equal to the plain one first, then ratios.

python benchmarks/transformer_speed.py [--images 8] [--channels 128] [--sweep] [--no-checks]

The grid is that of 640×480 images, 120 × 160 cells. Outputs and gradients are compared with the plain
transformer in float64. `--sweep` times other ways to cut the forward pass. The last line is JSON.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_timing import (
    DEVICE,
    describe_machine,
    measure_memory,
    print_report,
    require_cuda,
    time_eager,
    time_graphs,
)
from torch import Tensor

from ucn.acceleration import without_fused
from ucn.nn.spatial_transformer import MAX_REACH_CELLS, transform_and_convolve

_GRID = (120, 160)
_TIMES = ("plain_ms", "compiled_ms", "fused_ms")
# Relative to the largest value; products round their factors to 11 bits (tf32, float16) or 8 (bfloat16).
_TOLERANCES = {"float32, ieee": 2e-6, "float32, tf32": 4e-3, "float16": 6e-3, "bfloat16": 3e-2}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument(
        "--sweep", action="store_true", help="time other ways to cut the work, and nothing else"
    )
    parser.add_argument(
        "--no-checks", action="store_true", help="measure without the cases compiled for checks"
    )
    arguments = parser.parse_args()
    require_cuda()
    if arguments.sweep:
        sweep(arguments.images, arguments.channels)
        return
    checks = [] if arguments.no_checks else run_checks()
    report: dict[str, Any] = {"machine": describe_machine(), "checks": checks}
    rows: list[tuple[str, ...]] = [
        ("type", "pass", "plain ms", "compiled ms", "fused ms", "ratio", "plain MB", "fused MB", "ratio")
    ]
    for dtype in (torch.bfloat16, torch.float32):
        found = measure(build(arguments.images, arguments.channels, *_GRID, 3, dtype))
        report[str(dtype)] = found
        for name, one in found.items():
            cells = [str(dtype).removeprefix("torch."), name]
            cells += [f"{one[key]:.3f}" if key in one else "" for key in _TIMES]
            cells.append(f"{one['plain_ms'] / one['fused_ms']:.2f}")
            cells += [f"{one[key]:.0f}" for key in ("plain_mb", "fused_mb")]
            cells.append(f"{one['plain_mb'] / one['fused_mb']:.2f}")
            rows.append(tuple(cells))
    wrong = [check for check in checks if not check["is_right"]]
    rows.append(("checks", str(len(checks)), "all equal" if not wrong else f"WRONG: {wrong}", *[""] * 6))
    print_report(f"transformer, {arguments.images} × {_GRID}, {arguments.channels} channels", rows, report)


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE)


def build(
    B: int, C: int, h: int, w: int, kernel: int, dtype: torch.dtype, C_out: int | None = None
) -> list[Tensor]:
    """Map (channels-last), matrices away from the identity, weights and bias."""
    theta = torch.eye(2, device=DEVICE).view(1, 4, 1, 1) + 0.2 * draw(B, 4, h, w, seed=1)
    x = draw(B, C, h, w, seed=0).to(dtype, memory_format=torch.channels_last)
    weight = draw(C_out or C, C, kernel, kernel, seed=2) / (C * kernel**2) ** 0.5
    tensors = [x, theta, weight.to(dtype), draw(C_out or C, seed=3).to(dtype)]
    return [tensor.requires_grad_() for tensor in tensors]


def plain(*inputs: Tensor) -> Tensor:
    with without_fused():
        return transform_and_convolve(*inputs)


def draw_gradient(inputs: list[Tensor]) -> Tensor:
    x, weight = inputs[0], inputs[2]
    shape = (x.shape[0], weight.shape[0], *x.shape[-2:])
    return draw(*shape, seed=9).to(x.dtype, memory_format=torch.channels_last)


def run_both(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Output and gradients."""
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient)]


def run_checks() -> list[dict[str, Any]]:
    """Outputs and gradients against float64, for odd sizes, types and one network-sized map."""
    found = []
    names = ("output", "map", "theta", "weight", "bias")
    # Each case is compiled for some seconds, so odd sizes are tried in one type.
    cases: list[tuple[tuple[int, ...], list[str]]] = [
        ((2, 37, 19, 13, 11, 3), ["float32, ieee"]),
        ((1, 16, 48, 30, 41, 5), ["bfloat16"]),
        ((2, 128, 128, 40, 53, 3), list(_TOLERANCES)),
    ]
    for (B, C, C_out, h, w, kernel), types in cases:
        for name in types:
            dtype = getattr(torch, name.split(",")[0])
            inputs = build(B, C, h, w, kernel, dtype, C_out)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32="ieee" not in name):
                ours = run_both(transform_and_convolve, inputs, draw_gradient(inputs))
            wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
            theirs = run_both(plain, wide, draw_gradient(inputs).double())
            errors = {
                part: measure_error(a.double(), b, 0.999 if part == "theta" else 1.0)
                for part, a, b in zip(names, ours, theirs, strict=True)
            }
            is_right = all(error <= _TOLERANCES[name] for error in errors.values())
            found.append({"sizes": [B, C, C_out, h, w, kernel], "type": name, "is_right": is_right, **errors})
    return found


def measure_error(found: Tensor, expected: Tensor, share: float) -> float:
    """The largest error among a share of the values, relative to the largest value.

    The gradient of the matrices jumps where a reading crosses a cell's centre, which rounding can make it do.
    """
    errors = (found - expected).abs().flatten()
    return float(errors.kthvalue(math.ceil(share * len(errors))).values / expected.abs().max())


def measure(inputs: list[Tensor]) -> dict[str, dict[str, float]]:
    """Times and memory of both passes; only the forward one is also compiled, for some seconds."""
    detached, gradient = [tensor.detach() for tensor in inputs], draw_gradient(inputs)
    inner = torch.compile(transform_and_convolve, dynamic=False)

    def compiled(*tensors: Tensor) -> Tensor:
        with without_fused():
            return inner(*tensors)

    forward = {
        "plain_ms": time_graphs([partial(plain, *detached)], passes=3),
        "compiled_ms": time_eager(partial(compiled, *detached)),
        "fused_ms": time_graphs([partial(transform_and_convolve, *detached)], passes=3),
        "plain_mb": measure_memory(partial(plain, *detached)),
        "fused_mb": measure_memory(partial(transform_and_convolve, *detached)),
    }
    training = {
        "plain_ms": time_eager(partial(run_both, plain, inputs, gradient)),
        "fused_ms": time_eager(partial(run_both, transform_and_convolve, inputs, gradient)),
        "plain_mb": measure_memory(partial(run_both, plain, inputs, gradient)),
        "fused_mb": measure_memory(partial(run_both, transform_and_convolve, inputs, gradient)),
    }
    return {"forward": forward, "forward and backward": training}


def sweep(B: int, C: int) -> None:
    """Times of other cuts of the forward and the backward pass."""
    from ucn.nn import triton_transformer
    from ucn.nn.triton_transformer import Cut, run_forward

    inputs = build(B, C, *_GRID, 3, torch.bfloat16)
    x, theta, weight, bias = (tensor.detach() for tensor in inputs)
    gradient = draw_gradient(inputs)
    rows, report = [("pass", "cut", "ms")], []

    def note(name: str, cut: Cut, work: Callable[[], Any]) -> None:
        try:
            ms = time_eager(work)
        except Exception as error:  # Triton raises its own kinds where registers or memory do not suffice
            rows.append((name, str(cut), f"{type(error).__name__}: {str(error)[:60]}"))
            return
        rows.append((name, str(cut), f"{ms:.4f}"))
        report.append({"pass": name, "cut": str(cut), "milliseconds": ms})

    for cut in (
        Cut(64, 64, 128, 8),
        Cut(64, 64, 128, 4),
        Cut(64, 32, 128, 4),
        Cut(128, 32, 128, 8),
        Cut(128, 64, 128, 8),
        Cut(32, 64, 128, 4),
        Cut(64, 128, 128, 8),
    ):
        note("forward", cut, partial(run_forward, x, theta, weight, bias, MAX_REACH_CELLS, True, cut))
    rest = {
        "BACKWARD_MAPS": triton_transformer.BACKWARD_MAPS,
        "BACKWARD_WEIGHT": triton_transformer.BACKWARD_WEIGHT,
    }
    for name, cuts in {
        "BACKWARD_MAPS": (Cut(64, 32, 128, 4), Cut(64, 64, 128, 8), Cut(32, 32, 128, 4), Cut(32, 64, 128, 4)),
        "BACKWARD_WEIGHT": (
            Cut(64, 64, 128, 4),
            Cut(64, 128, 128, 8),
            Cut(32, 64, 128, 4),
            Cut(128, 64, 128, 8),
        ),
    }.items():
        for cut in cuts:
            setattr(triton_transformer, name, cut)
            note(f"both passes, {name}", cut, partial(run_both, transform_and_convolve, inputs, gradient))
        setattr(triton_transformer, name, rest[name])
    print_report("ways to cut the transformer", rows, {"machine": describe_machine(), "sweep": report})


if __name__ == "__main__":
    main()
