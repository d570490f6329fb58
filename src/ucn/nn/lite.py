"""The lite trunk: plain 3×3 convolutions at four resolutions, for CPUs.

A CPU multiplies fastest where channels are many and multiples of 16, and where there are only convolutions:
so there are no parallel branches and no pools. Residual sums are folded into the kernels (RepVGG, Ding et al.
2021), and ReLUs work in place, since allocating a map costs more than the ReLU. Coarser levels extend the
receptive field; their features are upsampled and added to the finer ones (feature pyramids, Lin et al. 2017).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.normalise import INTENSITY_DEVIATION, MEAN_INTENSITY

_STEM_WIDTH = 32
_WIDTHS = (64, 96, 160, 192)
"""Channels at strides 4, 8, 16 and 32."""
_UNITS_DOWN = (1, 2, 5, 8)
"""Residual units per level, from fine to coarse."""
_UNITS_UP = (1, 1, 3, 0)
"""Residual units per level, on the path back to the finest."""


class NormedConvolution(nn.Module):
    """A convolution followed by a batch norm."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, C', h', w')."""
        return self.norm(self.convolution(x))  # type: ignore[no-any-return]


class ResidualUnit(nn.Module):
    """A 3×3 convolution and a norm, added to their input, then a ReLU.

    Attributes:
        has_sum: whether the input is added here; a folded unit has the sum in its kernel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = NormedConvolution(channels, channels, 3, padding=1)
        self.has_sum = True

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to the same shape."""
        residual = self.body(x)
        return F.relu(x + residual if self.has_sum else residual, inplace=True)


class Downsampling(nn.Module):
    """A 2×2 convolution of stride 2; an odd last row or column is paired with zeros.

    A coarse cell is centred on its 2×2 cells, as bilinear upsampling with `align_corners=False` assumes.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.body = NormedConvolution(channels_in, channels_out, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, C', h / 2, w / 2), rounded up."""
        return F.relu(self.body(F.pad(x, (0, 1, 0, 1))), inplace=True)


class LiteTrunk(nn.Module):
    """Images to 64 channels, on the cells of the GoogLeNet trunk at the paper's strides.

    Attributes:
        stride: pixels between neighbouring cells.
        offset: pixel coordinate of cell 0.
        reach: radius in pixels of a cell's receptive field.
    """

    channels_out = _WIDTHS[0]
    stride = 4
    offset = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.stem1 = NormedConvolution(3, _STEM_WIDTH, 3, stride=2, padding=1)
        self.stem2 = NormedConvolution(_STEM_WIDTH, _WIDTHS[0], 3, stride=2)
        coarse = range(1, len(_WIDTHS))
        self.halvings = nn.ModuleList(Downsampling(_WIDTHS[level - 1], _WIDTHS[level]) for level in coarse)
        self.down = nn.ModuleList(map(_stack_units, _WIDTHS, _UNITS_DOWN))
        self.laterals = nn.ModuleList(
            NormedConvolution(_WIDTHS[level], _WIDTHS[level - 1], 1) for level in coarse
        )
        self.up = nn.ModuleList(map(_stack_units, _WIDTHS[:-1], _UNITS_UP))
        self.reach = _find_reach()

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to (B, 64, h, w)."""
        x = F.relu(self.stem1(_normalise_pixels(images)), inplace=True)
        # Padded by one row and column, for as many cells as the GoogLeNet trunk's rounded-up pools give.
        fine = self.down[0](F.relu(self.stem2(F.pad(x, (0, 1, 0, 1))), inplace=True))
        coarse = self.laterals[0](self.run_coarse_levels(self.halvings[0](fine)))
        return self.up[0](upsample_and_add(fine, coarse))  # type: ignore[no-any-return]

    def run_coarse_levels(self, x: Tensor) -> Tensor:
        """All levels from stride 8 on: downsampled features (B, C, h, w) to the same shape."""
        levels = [self.down[1](x)]
        for downsample, units in zip(self.halvings[1:], self.down[2:], strict=True):
            levels.append(units(downsample(levels[-1])))
        x = levels.pop()
        for lateral, units in zip(reversed(self.laterals[1:]), reversed(self.up[1:]), strict=True):
            x = units(upsample_and_add(levels.pop(), lateral(x)))
        return x

    def scale_coarse(self, gain: float) -> None:
        """Multiplies the contribution of all coarser levels to the finest one."""
        norm = self.laterals[0].norm
        assert isinstance(norm, nn.BatchNorm2d)
        with torch.no_grad():
            norm.weight.mul_(gain)
            norm.bias.mul_(gain)


def _normalise_pixels(images: Tensor) -> Tensor:
    """Pixels in [0, 1] to about zero mean and unit variance, channels-last."""
    # In this layout a CPU needs a sixth less time; all layers keep the layout of their input.
    normalised = (images - MEAN_INTENSITY) * (1 / INTENSITY_DEVIATION)
    return normalised.contiguous(memory_format=torch.channels_last)


def write_normalised(images: Tensor, target: Tensor) -> None:
    """Normalises pixels (B, 3, H, W) as the trunk does, into a view of that shape; without gradients."""
    torch.sub(images, MEAN_INTENSITY, out=target).mul_(1 / INTENSITY_DEVIATION)


def upsample_and_add(fine: Tensor, coarse: Tensor) -> Tensor:
    """ReLU of (B, C, h, w) plus coarse features (B, C, h / 2, w / 2) upsampled to its size."""
    upsampled = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
    return F.relu(fine + upsampled[..., : fine.shape[-2], : fine.shape[-1]], inplace=True)


def _stack_units(channels: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(ResidualUnit(channels) for _ in range(count)))


def _find_reach() -> int:
    """Radius in pixels of the receptive field, along the path through the coarsest level."""
    reach = 1 + 2  # the stem's two convolutions, at strides 1 and 2
    stride = LiteTrunk.stride
    for level, units in enumerate(_UNITS_DOWN):
        if level:
            reach += stride // 2  # from the centre of a coarse cell to those of its 2×2 cells
            stride *= 2
        reach += units * stride
    for units in reversed(_UNITS_UP[:-1]):
        reach += stride  # upsampling interpolates between two coarse cells
        stride //= 2
        reach += units * stride
    return reach
