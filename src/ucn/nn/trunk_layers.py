"""Layers of the GoogLeNet trunk that are slow in plain torch: 3×3 max pools and Caffe's response norm.

On a CUDA device, fused kernels (`triton/trunk_layers.py`) process channels-last maps: torch's own pools and a
norm of several operations take much of the time of a training step. Plain torch does the same everywhere
else, and under torch.compile.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.runtime.kernels import use_fused

_FUSED_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_VALUES = 2**31 - 1  # the kernels index with 32 bits


def max_pool(x: Tensor, stride: int) -> Tensor:
    """Max pooling of (B, C, h, w) over 3×3 cells.

    Stride 1 pads so that the size is kept. Larger strides are BVLC's: no padding, and sizes rounded up.
    """
    if stride <= 2 and _can_fuse(x):
        from ucn.nn.triton.trunk_layers import fused_max_pool  # Triton is optional

        return fused_max_pool(x, stride)
    if stride == 1:
        return F.max_pool2d(x, 3, stride=1, padding=1)
    return F.max_pool2d(x, 3, stride=stride, ceil_mode=True)


def local_response_norm(x: Tensor) -> Tensor:
    """Caffe's LRN across channels with n = 5, α = 1e-4, β = 0.75, k = 1, which BVLC's weights need.

    Written out because `F.local_response_norm` uses a 3-D pooling and a general power, which are slow:
    s ** -0.75 is rsqrt(s * sqrt(s)).
    """
    if _can_fuse(x):
        from ucn.nn.triton.trunk_layers import fused_response_norm  # Triton is optional

        return fused_response_norm(x)
    wide = x.float() if x.dtype.itemsize < 4 else x
    squares = F.pad(wide.square(), (0, 0, 0, 0, 2, 2))
    count = x.shape[1]
    total = squares[:, 0:count]
    for shift in range(1, 5):
        total = total + squares[:, shift : shift + count]
    scale = 1.0 + (1e-4 / 5) * total
    return (wide * torch.rsqrt(scale * scale.sqrt())).to(x.dtype)


def _can_fuse(x: Tensor) -> bool:
    """Whether the fused kernels take this map."""
    # torch.compile fuses plain layers with their neighbours, which is better still.
    if torch.compiler.is_compiling() or not use_fused(x):
        return False
    is_fit = x.dtype in _FUSED_TYPES and 0 < x.numel() <= _MAX_VALUES
    return is_fit and x.is_contiguous(memory_format=torch.channels_last)
