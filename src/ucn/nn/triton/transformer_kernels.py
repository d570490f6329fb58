"""Triton kernels of the fused convolutional spatial transformer; `transformer.py` launches them.

Maps are (B, h, w, C), so that the channels of a sample are contiguous. Each program takes a block of
locations (cells of all images, flattened) and computes the samples of one tap and a block of channels at a
time, in registers. They go straight into a matrix product: the k² times larger map of samples is never
written.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Arguments that vary between calls; Triton would recompile for values of 1 and multiples of 16.
_SIZES = ["total", "steps", "h", "w"]


@triton.jit
def _load_theta(
    theta: tl.tensor, locations: tl.tensor, is_location: tl.tensor, h: tl.tensor, w: tl.tensor
) -> tl.tensor:
    """Column, row, index of the image's first location, and the matrix of each location."""
    size = h * w
    item = locations // size
    inside = locations % size
    start = theta + item.to(tl.int64) * 4 * size + inside
    t11 = tl.load(start, mask=is_location, other=0.0)
    t12 = tl.load(start + size, mask=is_location, other=0.0)
    t21 = tl.load(start + 2 * size, mask=is_location, other=0.0)
    t22 = tl.load(start + 3 * size, mask=is_location, other=0.0)
    return inside % w, inside // w, item * size, t11, t12, t21, t22


@triton.jit
def _clamp(offset: tl.tensor, REACH: tl.constexpr) -> tl.tensor:
    return tl.minimum(tl.maximum(offset, -REACH), REACH)


@triton.jit
def _find_corners(
    x: tl.tensor, y: tl.tensor, is_location: tl.tensor, h: tl.tensor, w: tl.tensor
) -> tl.tensor:
    """The top-left cell of each point, the offset from it, and which of the four corners are on the map."""
    left, upper = tl.floor(x), tl.floor(y)
    column, row = left.to(tl.int32), upper.to(tl.int32)
    is_left = (column >= 0) & (column < w) & is_location
    is_right = (column >= -1) & (column < w - 1) & is_location
    is_upper = (row >= 0) & (row < h)
    is_lower = (row >= -1) & (row < h - 1)
    corners = is_left & is_upper, is_right & is_upper, is_left & is_lower, is_right & is_lower
    return row * w + column, x - left, y - upper, corners[0], corners[1], corners[2], corners[3]


@triton.jit
def _read(
    maps: tl.tensor, cells: tl.tensor, channels: tl.tensor, is_on_map: tl.tensor, C: tl.tensor
) -> tl.tensor:
    starts = maps + cells.to(tl.int64) * C
    is_value = is_on_map[:, None] & (channels < C)[None, :]
    return tl.load(starts[:, None] + channels[None, :], mask=is_value, other=0.0).to(tl.float32)


@triton.jit
def _interpolate(
    maps: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    first: tl.tensor,
    channels: tl.tensor,
    is_location: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    C: tl.tensor,
) -> tl.tensor:
    """Bilinear samples (locations, channels) in float32; the map is zero outside."""
    cell, right, lower, is_00, is_01, is_10, is_11 = _find_corners(x, y, is_location, h, w)
    cell += first
    total = ((1 - right) * (1 - lower))[:, None] * _read(maps, cell, channels, is_00, C)
    total += (right * (1 - lower))[:, None] * _read(maps, cell + 1, channels, is_01, C)
    total += ((1 - right) * lower)[:, None] * _read(maps, cell + w, channels, is_10, C)
    total += (right * lower)[:, None] * _read(maps, cell + w + 1, channels, is_11, C)
    return total


@triton.jit(do_not_specialize=_SIZES)
def forward(
    maps: tl.tensor,
    theta: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    output: tl.tensor,
    total: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    C: tl.tensor,
    C_OUT: tl.tensor,
    KERNEL: tl.constexpr,
    REACH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    LOCATIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> None:
    """Outputs (locations, C_OUT) for maps (locations, C) and weights (taps, C, C_OUT)."""
    locations = tl.program_id(0) * LOCATIONS + tl.arange(0, LOCATIONS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_location, is_output = locations < total, outputs < C_OUT
    column, row, first, t11, t12, t21, t22 = _load_theta(theta, locations, is_location, h, w)
    accumulator = tl.zeros([LOCATIONS, OUTPUTS], tl.float32)
    for tap in range(KERNEL * KERNEL):
        across, down = tap % KERNEL - KERNEL // 2, tap // KERNEL - KERNEL // 2
        x = column + _clamp(t11 * across + t12 * down, REACH)
        y = row + _clamp(t21 * across + t22 * down, REACH)
        for start in range(0, C, CHANNELS):
            channels = start + tl.arange(0, CHANNELS)
            samples = _interpolate(maps, x, y, first, channels, is_location, h, w, C)
            weights = tl.load(
                weight + (tap * C + channels)[:, None] * C_OUT + outputs[None, :],
                mask=(channels < C)[:, None] & is_output[None, :],
                other=0.0,
            )
            if UPCAST:
                weights = weights.to(tl.float32)
            accumulator = tl.dot(samples.to(weights.dtype), weights, accumulator, input_precision=PRECISION)
    if HAS_BIAS:
        accumulator += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    offsets = locations.to(tl.int64)[:, None] * C_OUT + outputs[None, :]
    tl.store(
        output + offsets,
        accumulator.to(output.dtype.element_ty),
        mask=is_location[:, None] & is_output[None, :],
    )


@triton.jit
def _differentiate_samples(
    gradient: tl.tensor,
    weight: tl.tensor,
    tap: tl.tensor,
    locations: tl.tensor,
    channels: tl.tensor,
    is_location: tl.tensor,
    C: tl.tensor,
    C_OUT: tl.tensor,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    LOCATIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """Gradient (locations, channels) of the samples of one tap."""
    result = tl.zeros([LOCATIONS, CHANNELS], tl.float32)
    for start in range(0, C_OUT, OUTPUTS):
        outputs = start + tl.arange(0, OUTPUTS)
        is_output = outputs < C_OUT
        upstream = tl.load(
            gradient + locations.to(tl.int64)[:, None] * C_OUT + outputs[None, :],
            mask=is_location[:, None] & is_output[None, :],
            other=0.0,
        )
        weights = tl.load(
            weight + (tap * C + channels)[None, :] * C_OUT + outputs[:, None],
            mask=(channels < C)[None, :] & is_output[:, None],
            other=0.0,
        )
        if UPCAST:
            upstream, weights = upstream.to(tl.float32), weights.to(tl.float32)
        result = tl.dot(upstream, weights, result, input_precision=PRECISION)
    return result


@triton.jit
def _scatter(
    target: tl.tensor,
    cells: tl.tensor,
    channels: tl.tensor,
    is_on_map: tl.tensor,
    share: tl.tensor,
    values: tl.tensor,
    C: tl.tensor,
) -> None:
    """Adds the weighted values of one corner to the map's gradient."""
    starts = target + cells.to(tl.int64) * C
    is_value = is_on_map[:, None] & (channels < C)[None, :]
    tl.atomic_add(starts[:, None] + channels[None, :], share[:, None] * values, mask=is_value, sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def backward_maps(
    gradient: tl.tensor,
    maps: tl.tensor,
    theta: tl.tensor,
    weight: tl.tensor,
    map_gradient: tl.tensor,
    theta_gradient: tl.tensor,
    total: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    C: tl.tensor,
    C_OUT: tl.tensor,
    KERNEL: tl.constexpr,
    REACH: tl.constexpr,
    NEEDS_MAPS: tl.constexpr,
    NEEDS_THETA: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    LOCATIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> None:
    """Gradients of the maps (float32, accumulated) and of theta."""
    locations = tl.program_id(0) * LOCATIONS + tl.arange(0, LOCATIONS)
    is_location = locations < total
    column, row, first, t11, t12, t21, t22 = _load_theta(theta, locations, is_location, h, w)
    g11 = tl.zeros([LOCATIONS], tl.float32)
    g12 = tl.zeros([LOCATIONS], tl.float32)
    g21 = tl.zeros([LOCATIONS], tl.float32)
    g22 = tl.zeros([LOCATIONS], tl.float32)
    for tap in range(KERNEL * KERNEL):
        across, down = tap % KERNEL - KERNEL // 2, tap // KERNEL - KERNEL // 2
        offset_x, offset_y = t11 * across + t12 * down, t21 * across + t22 * down
        x, y = column + _clamp(offset_x, REACH), row + _clamp(offset_y, REACH)
        cell, right, lower, is_00, is_01, is_10, is_11 = _find_corners(x, y, is_location, h, w)
        cell += first
        along_x = tl.zeros([LOCATIONS], tl.float32)
        along_y = tl.zeros([LOCATIONS], tl.float32)
        for start in range(0, C, CHANNELS):
            channels = start + tl.arange(0, CHANNELS)
            sample_gradient = _differentiate_samples(
                gradient, weight, tap, locations, channels, is_location, C, C_OUT,
                PRECISION, UPCAST, LOCATIONS, CHANNELS, OUTPUTS,
            )  # fmt: skip
            if NEEDS_MAPS:
                _scatter(map_gradient, cell, channels, is_00, (1 - right) * (1 - lower), sample_gradient, C)
                _scatter(map_gradient, cell + 1, channels, is_01, right * (1 - lower), sample_gradient, C)
                _scatter(map_gradient, cell + w, channels, is_10, (1 - right) * lower, sample_gradient, C)
                _scatter(map_gradient, cell + w + 1, channels, is_11, right * lower, sample_gradient, C)
            if NEEDS_THETA:
                v00, v01 = _read(maps, cell, channels, is_00, C), _read(maps, cell + 1, channels, is_01, C)
                v10 = _read(maps, cell + w, channels, is_10, C)
                v11 = _read(maps, cell + w + 1, channels, is_11, C)
                slope_x = (1 - lower)[:, None] * (v01 - v00) + lower[:, None] * (v11 - v10)
                slope_y = (1 - right)[:, None] * (v10 - v00) + right[:, None] * (v11 - v01)
                along_x += tl.sum(sample_gradient * slope_x, axis=1)
                along_y += tl.sum(sample_gradient * slope_y, axis=1)
        if NEEDS_THETA:
            along_x = tl.where(tl.abs(offset_x) <= REACH, along_x, 0.0)
            along_y = tl.where(tl.abs(offset_y) <= REACH, along_y, 0.0)
            g11 += along_x * across
            g12 += along_x * down
            g21 += along_y * across
            g22 += along_y * down
    if NEEDS_THETA:
        size = h * w
        theta_start = theta_gradient + (locations // size).to(tl.int64) * 4 * size + locations % size
        tl.store(theta_start, g11, mask=is_location)
        tl.store(theta_start + size, g12, mask=is_location)
        tl.store(theta_start + 2 * size, g21, mask=is_location)
        tl.store(theta_start + 3 * size, g22, mask=is_location)


@triton.jit(do_not_specialize=_SIZES)
def backward_weight(
    gradient: tl.tensor,
    maps: tl.tensor,
    theta: tl.tensor,
    weight_gradient: tl.tensor,
    total: tl.tensor,
    steps: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    C: tl.tensor,
    C_OUT: tl.tensor,
    KERNEL: tl.constexpr,
    REACH: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    LOCATIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
) -> None:
    """Accumulates the weights' gradient (taps, C, C_OUT) in float32 over `steps` * LOCATIONS locations."""
    tap = tl.program_id(1)
    output_blocks = tl.cdiv(C_OUT, OUTPUTS)
    channels = (tl.program_id(2) // output_blocks) * CHANNELS + tl.arange(0, CHANNELS)
    outputs = (tl.program_id(2) % output_blocks) * OUTPUTS + tl.arange(0, OUTPUTS)
    across, down = tap % KERNEL - KERNEL // 2, tap // KERNEL - KERNEL // 2
    accumulator = tl.zeros([CHANNELS, OUTPUTS], tl.float32)
    for step in range(steps):
        locations = (tl.program_id(0) * steps + step) * LOCATIONS + tl.arange(0, LOCATIONS)
        is_location = locations < total
        column, row, first, t11, t12, t21, t22 = _load_theta(theta, locations, is_location, h, w)
        x = column + _clamp(t11 * across + t12 * down, REACH)
        y = row + _clamp(t21 * across + t22 * down, REACH)
        samples = _interpolate(maps, x, y, first, channels, is_location, h, w, C)
        upstream = tl.load(
            gradient + locations.to(tl.int64)[:, None] * C_OUT + outputs[None, :],
            mask=is_location[:, None] & (outputs < C_OUT)[None, :],
            other=0.0,
        )
        if UPCAST:
            upstream = upstream.to(tl.float32)
        samples = tl.trans(samples.to(upstream.dtype))
        accumulator = tl.dot(samples, upstream, accumulator, input_precision=PRECISION)
    offsets = (tap * C + channels)[:, None] * C_OUT + outputs[None, :]
    is_weight = (channels < C)[:, None] & (outputs < C_OUT)[None, :]
    tl.atomic_add(weight_gradient + offsets, accumulator, mask=is_weight, sem="relaxed")
