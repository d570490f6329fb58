"""The trunk: ImageNet GoogLeNet (BVLC) from conv1 to inception_4a or 4c, fully convolutional."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.normalise import make_constant
from ucn.runtime.kernels import use_fused

MEAN_BGR = (104.0, 117.0, 123.0)
"""Mean of ImageNet's pixels; BVLC's weights expect BGR in 0..255 minus this."""

SpatialConvolution = Callable[[int, int, int], nn.Module]
"""Makes a convolution from input channels, output channels and kernel size."""

_FUSED_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_VALUES = 2**31 - 1  # the kernels index with 32 bits


def plain_convolution(channels_in: int, channels_out: int, kernel: int) -> nn.Module:
    """A k×k convolution with padding that keeps the size."""
    return nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2)


class Inception(nn.Module):
    """Four parallel branches, concatenated: 1×1, 3×3, 5×5 and max pooling."""

    def __init__(
        self,
        channels_in: int,
        channels: tuple[int, int, int, int, int, int],
        spatial_convolution: SpatialConvolution = plain_convolution,
    ) -> None:
        """Makes the block.

        Args:
            channels_in: of the input.
            channels: of the 1×1, the 3×3 reduction, the 3×3, the 5×5 reduction, the 5×5 and the projection.
            spatial_convolution: makes the 3×3 and the 5×5.
        """
        super().__init__()
        c1, r3, c3, r5, c5, cp = channels
        self.conv_1x1 = nn.Conv2d(channels_in, c1, 1)
        self.reduce_3x3 = nn.Conv2d(channels_in, r3, 1)
        self.conv_3x3 = spatial_convolution(r3, c3, 3)
        self.reduce_5x5 = nn.Conv2d(channels_in, r5, 1)
        self.conv_5x5 = spatial_convolution(r5, c5, 5)
        self.pool_projection = nn.Conv2d(channels_in, cp, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, sum of branch channels, h, w)."""
        branches = [
            self.conv_1x1(x),
            self.conv_3x3(F.relu(self.reduce_3x3(x))),
            self.conv_5x5(F.relu(self.reduce_5x5(x))),
            self.pool_projection(max_pool(x, 1)),
        ]
        return F.relu(torch.cat(branches, dim=1))


class GoogLeNetTrunk(nn.Module):
    """Images to the 512 channels of inception_4a, or of inception_4c.

    Attributes:
        strides: of conv1, pool1, pool2 and pool3.
        stride: pixels between neighbouring cells; 4 at the paper's strides (2, 2, 1, 1).
        offset: pixel coordinate of cell 0; 2 at the paper's strides.
        reach: radius in pixels of a cell's receptive field.
        blocks: names of the inception blocks, in their order.
    """

    channels_out = 512

    def __init__(
        self,
        strides: tuple[int, int, int, int] = (2, 2, 1, 1),
        inception_4a_convolution: SpatialConvolution = plain_convolution,
        *,
        to_4c: bool = False,
    ) -> None:
        """Makes the trunk.

        Args:
            strides: of conv1, pool1, pool2 and pool3, each 1 or 2.
            inception_4a_convolution: makes the 3×3 and the 5×5 of inception_4a.
            to_4c: whether inception_4b and 4c follow.
        """
        super().__init__()
        self.strides = strides
        self.conv1 = nn.Conv2d(3, 64, 7, stride=strides[0], padding=3)
        self.conv2_reduce = nn.Conv2d(64, 64, 1)
        self.conv2 = nn.Conv2d(64, 192, 3, padding=1)
        self.inception_3a = Inception(192, (64, 96, 128, 16, 32, 32))
        self.inception_3b = Inception(256, (128, 128, 192, 32, 96, 64))
        self.inception_4a = Inception(480, (192, 96, 208, 16, 48, 64), inception_4a_convolution)
        blocks = ["inception_3a", "inception_3b", "inception_4a"]
        if to_4c:
            self.inception_4b = Inception(512, (160, 112, 224, 24, 64, 64))
            self.inception_4c = Inception(512, (128, 128, 256, 24, 64, 64))
            blocks += ["inception_4b", "inception_4c"]
        self.blocks = tuple(blocks)
        self.stride, self.offset, self.reach = _locate_cells(strides, len(blocks) - 2)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to (B, 512, h, w)."""
        return self.stages(preprocess(images))[self.blocks[-1]]

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """Named activations for preprocessed input (B, 3, H, W)."""
        x = F.relu(self.conv1(x))
        x = local_response_norm(max_pool(x, self.strides[1]))
        x = F.relu(self.conv2_reduce(x))
        x = local_response_norm(F.relu(self.conv2(x)))
        found = {"inception_3a": self.inception_3a(max_pool(x, self.strides[2]))}
        found["inception_3b"] = self.inception_3b(found["inception_3a"])
        x = found["inception_4a"] = self.inception_4a(max_pool(found["inception_3b"], self.strides[3]))
        for block in self.blocks[3:]:
            x = found[block] = getattr(self, block)(x)
        return found


def preprocess(images: Tensor) -> Tensor:
    """RGB in [0, 1] to the input of BVLC's weights: BGR in 0..255, mean subtracted."""
    mean = make_constant(MEAN_BGR, images).view(1, 3, 1, 1)
    return images.flip(1) * 255.0 - mean


def _locate_cells(strides: tuple[int, int, int, int], last_blocks: int) -> tuple[int, float, int]:
    """Stride, offset and reach of the output cells in pixels, from the layers' kernels and paddings.

    Args:
        strides: of conv1 and the three pools.
        last_blocks: number of inception blocks after pool3.
    """
    stride, offset, reach = 1, 0.0, 0
    pools = [(3, s, 1 if s == 1 else 0) for s in strides[1:]]
    inception = (5, 1, 2)
    stem = [(7, strides[0], 3), pools[0], (3, 1, 1), pools[1]]
    layers = [*stem, inception, inception, pools[2], *[inception] * last_blocks]
    for kernel, layer_stride, padding in layers:
        offset += ((kernel - 1) / 2 - padding) * stride
        reach += (kernel - 1) // 2 * stride
        stride *= layer_stride
    return stride, offset, reach


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
