"""Triton kernels of the trunk's max pools and response norm, forward and backward; see `nn/googlenet.py`.

Maps are channels-last: contiguous (B, h, w, C). A program instance takes a block of cells times channels. In
the backward pass every cell gathers its gradient, so that sums have a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ucn.runtime.kernels import count_blocks, launch_on

_CELLS, _CHANNELS, _WARPS = 32, 64, 4
"""Block sizes, and the groups of 32 threads per block."""


@triton.jit
def pool_forward(
    maps: tl.tensor,
    largest: tl.tensor,
    taps: tl.tensor,
    total: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    h_out: tl.tensor,
    w_out: tl.tensor,
    C: tl.tensor,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    NEEDS_TAPS: tl.constexpr,
    CELLS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """Maximum over 3×3 cells and, for the backward pass, its index of nine: the first one, as in torch."""
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = cell // (h_out * w_out)
    top = cell // w_out % h_out * STRIDE - PADDING
    left = cell % w_out * STRIDE - PADDING
    is_inside = (cell < total)[:, None] & (channel < C)[None, :]
    best = tl.full([CELLS, CHANNELS], float("-inf"), tl.float32)
    # Where all are -inf, the first one on the map.
    first = tl.maximum(-top, 0) * 3 + tl.maximum(-left, 0)
    tap = first[:, None] + tl.zeros([CELLS, CHANNELS], tl.int32)
    for down in tl.static_range(3):
        for across in tl.static_range(3):
            y, x = top + down, left + across
            is_on = (y >= 0) & (y < h) & (x >= 0) & (x < w)
            row = ((image * h + y) * w + x) * C
            value = tl.load(
                maps + row[:, None] + channel[None, :], mask=is_inside & is_on[:, None], other=float("-inf")
            ).to(tl.float32)
            is_larger = (value > best) | (value != value)  # NaN propagates
            best = tl.where(is_larger, value, best)
            tap = tl.where(is_larger, down * 3 + across, tap)
    target = cell[:, None] * C + channel[None, :]
    tl.store(largest + target, best.to(largest.dtype.element_ty), mask=is_inside)
    if NEEDS_TAPS:
        tl.store(taps + target, tap.to(tl.uint8), mask=is_inside)


@triton.jit
def pool_backward(
    gradient: tl.tensor,
    taps: tl.tensor,
    map_gradient: tl.tensor,
    total: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    h_out: tl.tensor,
    w_out: tl.tensor,
    C: tl.tensor,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    CELLS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """Each cell gathers the gradients of the windows of which it was the maximum."""
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = cell // (h * w)
    y = cell // w % h + PADDING
    x = cell % w + PADDING
    is_inside = (cell < total)[:, None] & (channel < C)[None, :]
    summed = tl.zeros([CELLS, CHANNELS], tl.float32)
    for down in tl.static_range(3):
        for across in tl.static_range(3):
            top, left = y - down, x - across
            row, column = top // STRIDE, left // STRIDE
            is_on = (top >= 0) & (left >= 0) & (row < h_out) & (column < w_out)
            is_on = is_on & (row * STRIDE == top) & (column * STRIDE == left)
            source = ((image * h_out + row) * w_out + column)[:, None] * C + channel[None, :]
            mask = is_inside & is_on[:, None]
            tap = tl.load(taps + source, mask=mask, other=255)
            part = tl.load(gradient + source, mask=mask, other=0.0).to(tl.float32)
            summed += tl.where(tap == down * 3 + across, part, 0.0)
    target = cell[:, None] * C + channel[None, :]
    tl.store(map_gradient + target, summed.to(map_gradient.dtype.element_ty), mask=is_inside)


@triton.jit
def _load_channels(
    maps: tl.tensor, cell: tl.tensor, channel: tl.tensor, total: tl.tensor, C: tl.tensor
) -> tl.tensor:
    """Values of channels, zero outside the first and the last."""
    mask = (cell < total)[:, None] & ((channel >= 0) & (channel < C))[None, :]
    return tl.load(maps + cell[:, None] * C + channel[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _find_scale(
    maps: tl.tensor, cell: tl.tensor, channel: tl.tensor, total: tl.tensor, C: tl.tensor
) -> tl.tensor:
    """1 + α / n times the sum of squares of five channels."""
    value = _load_channels(maps, cell, channel - 2, total, C)
    summed = value * value
    for shift in tl.static_range(-1, 3):
        value = _load_channels(maps, cell, channel + shift, total, C)
        summed += value * value
    return 1.0 + (1e-4 / 5) * summed


@triton.jit
def norm_forward(
    maps: tl.tensor,
    normed: tl.tensor,
    total: tl.tensor,
    C: tl.tensor,
    CELLS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """Values times their scale to the power of -0.75."""
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    scale = _find_scale(maps, cell, channel, total, C)
    found = _load_channels(maps, cell, channel, total, C) * tl.rsqrt(scale * tl.sqrt(scale))
    mask = (cell < total)[:, None] & (channel < C)[None, :]
    target = normed + cell[:, None] * C + channel[None, :]
    tl.store(target, found.to(normed.dtype.element_ty), mask=mask)


@triton.jit
def norm_backward(
    gradient: tl.tensor,
    maps: tl.tensor,
    map_gradient: tl.tensor,
    total: tl.tensor,
    C: tl.tensor,
    CELLS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """The gradient of y_j = x_j s_j ** -0.75, with recomputed scales.

    By x_i it is g_i s_i ** -0.75 less, for each of the five channels j whose scale holds x_i,
    2 β α / n x_i g_j x_j s_j ** -1.75.
    """
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    shared = tl.zeros([CELLS, CHANNELS], tl.float32)
    own = tl.zeros([CELLS, CHANNELS], tl.float32)
    for shift in tl.static_range(-2, 3):
        scale = _find_scale(maps, cell, channel + shift, total, C)
        power = tl.rsqrt(scale * tl.sqrt(scale))
        part = _load_channels(gradient, cell, channel + shift, total, C) * power
        if shift == 0:
            own = part
        shared += part * _load_channels(maps, cell, channel + shift, total, C) / scale
    value = _load_channels(maps, cell, channel, total, C)
    found = own - (2 * 0.75 * 1e-4 / 5) * value * shared
    mask = (cell < total)[:, None] & (channel < C)[None, :]
    target = map_gradient + cell[:, None] * C + channel[None, :]
    tl.store(target, found.to(map_gradient.dtype.element_ty), mask=mask)


class _MaxPool(torch.autograd.Function):
    """Stores for each output the index of its maximum, in one byte."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        """(B, C, h, w) to (B, C, h', w'), channels-last."""
        B, C, h, w = x.shape
        padding = 1 if stride == 1 else 0
        h_out, w_out = (_count_outputs(size, stride) for size in (h, w))
        largest = _new_map(x, (B, C, h_out, w_out), x.dtype)
        # Autograd calls this with gradients off; only needs_input_grad tells whether one is required.
        needs_taps = ctx.needs_input_grad[0]
        taps = _new_map(x, (B, C, h_out, w_out), torch.uint8) if needs_taps else largest
        ctx.sizes, ctx.stride, ctx.padding = (h, w, h_out, w_out, C), stride, padding
        total = B * h_out * w_out
        with launch_on(x):
            pool_forward[_cut(total, C)](
                x, largest, taps, total, *ctx.sizes, STRIDE=stride, PADDING=padding, NEEDS_TAPS=needs_taps,
                CELLS=_CELLS, CHANNELS=_CHANNELS, num_warps=_WARPS,
            )  # fmt: skip
        ctx.save_for_backward(taps)
        return largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of the input."""
        (taps,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        h, w, _, _, C = ctx.sizes
        B = len(gradient)
        found = _new_map(gradient, (B, C, h, w), gradient.dtype)
        with launch_on(gradient):
            pool_backward[_cut(B * h * w, C)](
                gradient, taps, found, B * h * w, *ctx.sizes, STRIDE=ctx.stride, PADDING=ctx.padding,
                CELLS=_CELLS, CHANNELS=_CHANNELS, num_warps=_WARPS,
            )  # fmt: skip
        return found, None


class _ResponseNorm(torch.autograd.Function):
    """Stores only its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """(B, C, h, w) to the same, channels-last."""
        (B, C, h, w), total = x.shape, x.numel() // x.shape[1]
        normed = _new_map(x, (B, C, h, w), x.dtype)
        with launch_on(x):
            norm_forward[_cut(total, C)](
                x, normed, total, C, CELLS=_CELLS, CHANNELS=_CHANNELS, num_warps=_WARPS
            )
        ctx.save_for_backward(x)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of the input."""
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        C, total = x.shape[1], x.numel() // x.shape[1]
        found = torch.empty_like(gradient)
        with launch_on(x):
            norm_backward[_cut(total, C)](
                gradient, x, found, total, C, CELLS=_CELLS, CHANNELS=_CHANNELS, num_warps=_WARPS
            )
        return found


def fused_max_pool(x: Tensor, stride: int) -> Tensor:
    """As `trunk_layers.max_pool` of stride 1 or 2, for a channels-last map (B, C, h, w)."""
    found: Tensor = _MaxPool.apply(x, stride)
    return found


def fused_response_norm(x: Tensor) -> Tensor:
    """As `trunk_layers.local_response_norm`, for a channels-last map (B, C, h, w)."""
    found: Tensor = _ResponseNorm.apply(x)
    return found


def _count_outputs(size: int, stride: int) -> int:
    if stride == 1:
        return size
    # Rounded up, but no window starts beyond the last cell.
    outputs = -(-(size - 3) // stride) + 1
    return outputs - 1 if (outputs - 1) * stride >= size else outputs


def _new_map(like: Tensor, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _cut(total: int, C: int) -> tuple[int, int]:
    return count_blocks(total, _CELLS), count_blocks(C, _CHANNELS)
