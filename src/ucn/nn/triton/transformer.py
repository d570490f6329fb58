"""The convolutional spatial transformer on a CUDA device, without the k² times larger map of its samples.

Registered as torch operators, so that autograd and torch.compile know them. The backward pass recomputes the
samples instead of storing them. Gradients of maps and weights are summed in no fixed order, as in torch's
`grid_sample` on a CUDA device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ucn.nn.triton.transformer_kernels import backward_maps, backward_weight, forward
from ucn.runtime.kernels import count_blocks, launch_on, round_to_power


@dataclass(frozen=True)
class BlockSizes:
    """Block sizes of a kernel launch.

    Attributes:
        locations: cells per Triton program, or per step of one.
        channels: input channels per step.
        outputs: output channels per program or step.
        warps: groups of 32 threads per program.
    """

    locations: int
    channels: int
    outputs: int
    warps: int


FORWARD = BlockSizes(64, 64, 128, 8)
BACKWARD_MAPS = BlockSizes(64, 32, 128, 4)
BACKWARD_WEIGHT = BlockSizes(64, 64, 128, 4)

# Triton programs of `backward_weight` per streaming multiprocessor.
_PROGRAMS_PER_SM = 4


def _fit_blocks(blocks: BlockSizes, total: int, C: int, C_out: int, x: Tensor) -> dict[str, int]:
    """Block sizes no larger than the problem; float32 takes twice the registers and shared memory."""
    wide = 2 if x.itemsize == 4 else 1
    return {
        "LOCATIONS": max(16, min(blocks.locations, round_to_power(total))),
        "CHANNELS": max(16, min(blocks.channels // wide, round_to_power(C))),
        "OUTPUTS": max(16, min(blocks.outputs, round_to_power(C_out))),
        "num_warps": blocks.warps,
        # Prefetching would bypass the L1 cache, where neighbouring windows share their samples.
        "num_stages": 1,
    }


def _settings(x: Tensor, allow_tf32: bool) -> dict[str, Any]:
    # The interpreter rounds bfloat16 products differently from a GPU.
    return {"PRECISION": "tf32" if allow_tf32 else "ieee", "UPCAST": x.device.type == "cpu"}


def _lay_out(x: Tensor) -> Tensor:
    """(B, C, h, w) as contiguous (B, h, w, C); no copy where it is channels-last."""
    return x.permute(0, 2, 3, 1).contiguous()


def _lay_out_weight(weight: Tensor) -> Tensor:
    """(C', C, k, k) as (k * k, C, C')."""
    return weight.permute(2, 3, 1, 0).flatten(0, 1).contiguous()


@torch.library.custom_op(
    "ucn::transform_and_convolve",
    mutates_args=(),
    schema="(Tensor x, Tensor theta, Tensor weight, Tensor? bias, int reach, bool allow_tf32) -> Tensor",
)
def transform_and_convolve_fused(
    x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor | None, reach: int, allow_tf32: bool
) -> Tensor:
    """Convolution over windows transformed by `theta`, as `transform_and_convolve`.

    Args:
        x: (B, C, h, w) float16, bfloat16 or float32.
        theta: (B, 4, h, w) float32.
        weight: (C', C, k, k), with the type of `x`.
        bias: (C',) or None.
        reach: largest offset of a sample from its window's centre, in cells.
        allow_tf32: whether float32 products may use TF32.

    Returns:
        (B, C', h, w) in channels-last memory.
    """
    return run_forward(x, theta, weight, bias, reach, allow_tf32, FORWARD)


def run_forward(
    x: Tensor,
    theta: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reach: int,
    allow_tf32: bool,
    blocks: BlockSizes,
) -> Tensor:
    """As `transform_and_convolve_fused`, without gradients, with the given block sizes."""
    (B, C, h, w), (C_out, _, kernel, _) = x.shape, weight.shape
    output = x.new_empty((B, h, w, C_out))
    total = B * h * w
    if total > 0:
        sizes = _fit_blocks(blocks, total, C, C_out, x)
        with launch_on(x):
            forward[(count_blocks(total, sizes["LOCATIONS"]), count_blocks(C_out, sizes["OUTPUTS"]))](
                _lay_out(x), theta.contiguous(), _lay_out_weight(weight), weight if bias is None else bias,
                output, total, h, w, C, C_out, KERNEL=kernel, REACH=reach, HAS_BIAS=bias is not None,
                **_settings(x, allow_tf32), **sizes,
            )  # fmt: skip
    return output.permute(0, 3, 1, 2)


@transform_and_convolve_fused.register_fake
def _(x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor | None, reach: int, allow_tf32: bool) -> Tensor:
    B, _, h, w = x.shape
    return x.new_empty((B, h, w, weight.shape[0])).permute(0, 3, 1, 2)


@torch.library.custom_op(
    "ucn::transform_and_convolve_backward",
    mutates_args=(),
    schema=(
        "(Tensor gradient, Tensor x, Tensor theta, Tensor weight, int reach, bool allow_tf32, "
        "bool needs_x, bool needs_theta, bool needs_weight) -> (Tensor, Tensor, Tensor)"
    ),
)
def transform_and_convolve_backward(
    gradient: Tensor,
    x: Tensor,
    theta: Tensor,
    weight: Tensor,
    reach: int,
    allow_tf32: bool,
    needs_x: bool,
    needs_theta: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (B, C, h, w), theta (B, 4, h, w) and weight; empty where not needed."""
    (B, C, h, w), (C_out, _, kernel, _) = x.shape, weight.shape
    gradient_rows, rows, theta = _lay_out(gradient.to(x.dtype)), _lay_out(x), theta.contiguous()
    sizes = (h, w, C, C_out)
    shared = {"KERNEL": kernel, "REACH": reach, **_settings(x, allow_tf32)}
    total = B * h * w
    x_rows = x.new_zeros((B, h, w, C) if needs_x else (0, 0, 0, 0), dtype=torch.float32)
    theta_gradient = theta.new_empty(theta.shape if needs_theta else (0,))
    weight_rows = weight.new_zeros((kernel**2, C, C_out) if needs_weight else (0, 0, 0), dtype=torch.float32)
    with launch_on(x):
        if total > 0 and (needs_x or needs_theta):
            block_sizes = _fit_blocks(BACKWARD_MAPS, total, C, C_out, x)
            backward_maps[(count_blocks(total, block_sizes["LOCATIONS"]),)](
                gradient_rows, rows, theta, _lay_out_weight(weight), x_rows, theta_gradient, total, *sizes,
                **shared, NEEDS_MAPS=needs_x, NEEDS_THETA=needs_theta, **block_sizes,
            )  # fmt: skip
        if total > 0 and needs_weight:
            _add_weight_gradient(gradient_rows, rows, theta, weight_rows, total, sizes, shared)
    weight_gradient = weight_rows
    if needs_weight:
        weight_gradient = weight_rows.view(kernel, kernel, C, C_out).permute(3, 2, 0, 1).contiguous()
    return x_rows.to(x.dtype).permute(0, 3, 1, 2), theta_gradient, weight_gradient.to(weight.dtype)


def _add_weight_gradient(
    gradient_rows: Tensor,
    rows: Tensor,
    theta: Tensor,
    weight_rows: Tensor,
    total: int,
    sizes: tuple[int, int, int, int],
    shared: dict[str, Any],
) -> None:
    C, C_out = sizes[2:]
    block_sizes = _fit_blocks(BACKWARD_WEIGHT, total, C, C_out, rows)
    locations = block_sizes["LOCATIONS"]
    blocks = count_blocks(C, block_sizes["CHANNELS"]) * count_blocks(C_out, block_sizes["OUTPUTS"])
    taps = shared["KERNEL"] ** 2
    multiprocessors = 1
    if rows.is_cuda:
        multiprocessors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    programs = max(
        1, min(count_blocks(total, locations), _PROGRAMS_PER_SM * multiprocessors // (taps * blocks))
    )
    steps = count_blocks(count_blocks(total, locations), programs)
    backward_weight[(count_blocks(total, locations * steps), taps, blocks)](
        gradient_rows, rows, theta, weight_rows, total, steps, *sizes, **shared, **block_sizes
    )


@transform_and_convolve_backward.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    theta: Tensor,
    weight: Tensor,
    reach: int,
    allow_tf32: bool,
    needs_x: bool,
    needs_theta: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    B, C, h, w = x.shape
    return (
        x.new_empty((B, h, w, C) if needs_x else (0, 0, 0, 0)).permute(0, 3, 1, 2),
        theta.new_empty(theta.shape if needs_theta else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0, 0, 0)),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, theta, weight, bias, reach, allow_tf32 = inputs
    ctx.save_for_backward(x, theta, weight)
    ctx.options = (reach, allow_tf32)
    ctx.bias_type = None if bias is None else bias.dtype


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, theta, weight = ctx.saved_tensors
    needs = ctx.needs_input_grad
    found = transform_and_convolve_backward(gradient, x, theta, weight, *ctx.options, *needs[:3])
    gradients = [each if is_needed else None for each, is_needed in zip(found, needs[:3], strict=True)]
    bias = gradient.sum(dim=(0, 2, 3), dtype=torch.float32).to(ctx.bias_type) if needs[3] else None
    return (*gradients, bias, None, None)


torch.library.register_autograd("ucn::transform_and_convolve", _differentiate, setup_context=_keep)
