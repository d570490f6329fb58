"""The convolutional spatial transformer on a CUDA device without the k² times larger map of its readings.

Registered as operators of torch, so that autograd and torch.compile know them. The backward pass makes the
readings once more instead of keeping them. Gradients of maps and weights are added up in no fixed order, as
those of `grid_sample` on a CUDA device are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ucn.nn.triton.transformer_kernels import backward_maps, backward_weight, forward
from ucn.runtime.kernels import count_blocks, launch_on, round_to_power


@dataclass(frozen=True)
class Cut:
    """How a launch is cut into programs.

    Attributes:
        places: locations per program, or per step of one.
        channels: of the map, per step.
        outputs: channels of the output, per program or step.
        warps: of 32 threads each.
    """

    places: int
    channels: int
    outputs: int
    warps: int


FORWARD = Cut(64, 64, 128, 8)
BACKWARD_MAPS = Cut(64, 32, 128, 4)
BACKWARD_WEIGHT = Cut(64, 64, 128, 4)

# Programs of `backward_weight` per multiprocessor, over all stretches of locations.
_PROGRAMS = 4


def _shrink(cut: Cut, total: int, C: int, C_out: int, x: Tensor) -> dict[str, int]:
    """Sizes no larger than the work; float32 takes twice the registers and shared memory."""
    wide = 2 if x.itemsize == 4 else 1
    return {
        "PLACES": max(16, min(cut.places, round_to_power(total))),
        "CHANNELS": max(16, min(cut.channels // wide, round_to_power(C))),
        "OUTPUTS": max(16, min(cut.outputs, round_to_power(C_out))),
        "num_warps": cut.warps,
        # Loads ahead of time would go round the L1 cache, where neighbouring windows share their readings.
        "num_stages": 1,
    }


def _settings(x: Tensor, allow_tf32: bool) -> dict[str, Any]:
    # In the interpreter a product in bfloat16 is not what it is on a device.
    return {"PRECISION": "tf32" if allow_tf32 else "ieee", "UPCAST": x.device.type == "cpu"}


def _lay_out(x: Tensor) -> Tensor:
    """(B, C, h, w) as (B, h, w, C) in one piece; no copy where it is channels-last."""
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
    """Convolution over windows moved by `theta`, as `transform_and_convolve`.

    Args:
        x: (B, C, h, w) float16, bfloat16 or float32.
        theta: (B, 4, h, w) float32.
        weight: (C', C, k, k), of the type of `x`.
        bias: (C',) or None.
        reach: most cells from its centre that a window reads.
        allow_tf32: whether float32 products may round their factors.

    Returns:
        (B, C', h, w) in channels-last memory.
    """
    return run_forward(x, theta, weight, bias, reach, allow_tf32, FORWARD)


def run_forward(
    x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor | None, reach: int, allow_tf32: bool, cut: Cut
) -> Tensor:
    """As `transform_and_convolve_fused`, without gradients, cut into programs as given."""
    (B, C, h, w), (C_out, _, kernel, _) = x.shape, weight.shape
    output = x.new_empty((B, h, w, C_out))
    total = B * h * w
    if total > 0:
        sizes = _shrink(cut, total, C, C_out, x)
        with launch_on(x):
            forward[(count_blocks(total, sizes["PLACES"]), count_blocks(C_out, sizes["OUTPUTS"]))](
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
    """Gradients of maps (B, C, h, w), matrices (B, 4, h, w) and weights; empty those that are not needed."""
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
            cut = _shrink(BACKWARD_MAPS, total, C, C_out, x)
            backward_maps[(count_blocks(total, cut["PLACES"]),)](
                gradient_rows, rows, theta, _lay_out_weight(weight), x_rows, theta_gradient, total, *sizes,
                **shared, NEEDS_MAPS=needs_x, NEEDS_THETA=needs_theta, **cut,
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
    cut = _shrink(BACKWARD_WEIGHT, total, C, C_out, rows)
    places = cut["PLACES"]
    blocks = count_blocks(C, cut["CHANNELS"]) * count_blocks(C_out, cut["OUTPUTS"])
    taps = shared["KERNEL"] ** 2
    processors = 1
    if rows.is_cuda:
        processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    stretches = max(1, min(count_blocks(total, places), _PROGRAMS * processors // (taps * blocks)))
    steps = count_blocks(count_blocks(total, places), stretches)
    backward_weight[(count_blocks(total, places * steps), taps, blocks)](
        gradient_rows, rows, theta, weight_rows, total, steps, *sizes, **shared, **cut
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
