"""The small trunk: plain 3×3 convolutions at four sizes, for processors without an accelerator.

A processor multiplies fastest where channels are many and multiples of 16, and where nothing but convolutions
has to be done: so there are no branches and no pools. Sums with the input go into the kernels when a network
is folded (RepVGG, Ding et al. 2021), and a ReLU works in place, since a new map costs more than it. Coarser
cells look further, and what they found is grown and added to the finer ones (feature pyramids, Lin et al.
2017).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STEM_WIDTH = 32
_WIDTHS = (64, 96, 160, 192)
"""Channels of the cells of 4, 8, 16 and 32 pixels."""
_UNITS_DOWN = (1, 2, 5, 8)
"""Convolutions at each size on the way to the coarsest."""
_UNITS_UP = (1, 1, 3, 0)
"""Convolutions at each size on the way back."""
_MEAN, _SPREAD = 0.44, 0.24
"""Of the brightness of photographs, with pixels in [0, 1]."""


class NormedConvolution(nn.Module):
    """A convolution without padding or one that keeps the size, and a batch norm."""

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
        has_sum: whether the input is still added here; a folded unit has it in its kernel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = NormedConvolution(channels, channels, 3, padding=1)
        self.has_sum = True

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to the same shape."""
        found = self.body(x)
        return F.relu(x + found if self.has_sum else found, inplace=True)


class Halving(nn.Module):
    """Squares of 2×2 cells become one; a last odd row or column has zeros for its partner.

    The centre of a coarse cell is that of its square, where interpolation without aligned corners takes it to
    be.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.body = NormedConvolution(channels_in, channels_out, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, C', h / 2, w / 2), rounded up."""
        return F.relu(self.body(F.pad(x, (0, 1, 0, 1))), inplace=True)


class LiteTrunk(nn.Module):
    """Images to 64 channels on the grid of the GoogLeNet trunk at the paper's strides, cell by cell.

    Attributes:
        stride: pixels between neighbouring cells.
        offset: pixel at which cell 0 is centred.
        reach: pixels from a cell's centre to the edge of what it sees.
    """

    channels_out = _WIDTHS[0]
    stride = 4
    offset = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.stem1 = NormedConvolution(3, _STEM_WIDTH, 3, stride=2, padding=1)
        self.stem2 = NormedConvolution(_STEM_WIDTH, _WIDTHS[0], 3, stride=2)
        coarser = range(1, len(_WIDTHS))
        self.halvings = nn.ModuleList(Halving(_WIDTHS[size - 1], _WIDTHS[size]) for size in coarser)
        self.down = nn.ModuleList(map(_stack, _WIDTHS, _UNITS_DOWN))
        self.laterals = nn.ModuleList(
            NormedConvolution(_WIDTHS[size], _WIDTHS[size - 1], 1) for size in coarser
        )
        self.up = nn.ModuleList(map(_stack, _WIDTHS[:-1], _UNITS_UP))
        self.reach = _find_reach()

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to (B, 64, h, w)."""
        x = F.relu(self.stem1(_normalise_colours(images)), inplace=True)
        # One row more behind the last: as many cells as a pool that rounds up has.
        fine = self.down[0](F.relu(self.stem2(F.pad(x, (0, 1, 0, 1))), inplace=True))
        coarse = self.laterals[0](self.look_round(self.halvings[0](fine)))
        return self.up[0](add_grown(fine, coarse))  # type: ignore[no-any-return]

    def scale_coarse(self, gain: float) -> None:
        """Makes what all coarser cells found count so many times as much in the finest ones."""
        norm = self.laterals[0].norm
        assert isinstance(norm, nn.BatchNorm2d)
        with torch.no_grad():
            norm.weight.mul_(gain)
            norm.bias.mul_(gain)

    def look_round(self, x: Tensor) -> Tensor:
        """Cells of 8 pixels (B, C, h, w) as halved, with what they and all coarser ones find."""
        sizes = [self.down[1](x)]
        for halve, units in zip(self.halvings[1:], self.down[2:], strict=True):
            sizes.append(units(halve(sizes[-1])))
        x = sizes.pop()
        for lateral, units in zip(reversed(self.laterals[1:]), reversed(self.up[1:]), strict=True):
            x = units(add_grown(sizes.pop(), lateral(x)))
        return x


def _normalise_colours(images: Tensor) -> Tensor:
    """Pixels in [0, 1] to about zero mean and unit spread, channels last."""
    # In this order of memory a processor needs a sixth less time; all layers keep to what they are given.
    return ((images - _MEAN) * (1 / _SPREAD)).contiguous(memory_format=torch.channels_last)


def write_normalised(images: Tensor, target: Tensor) -> None:
    """Pixels (B, 3, H, W) in [0, 1], normalised, into a view of that shape; without gradients."""
    torch.sub(images, _MEAN, out=target).mul_(1 / _SPREAD)


def add_grown(fine: Tensor, coarse: Tensor) -> Tensor:
    """Cells with what those of twice their size found, made as many as they are."""
    grown = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
    return F.relu(fine + grown[..., : fine.shape[-2], : fine.shape[-1]], inplace=True)


def _stack(channels: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(ResidualUnit(channels) for _ in range(count)))


def _find_reach() -> int:
    """Pixels from a cell's centre to the edge of what it sees, along the longest way: over the coarsest."""
    reach = 1 + 2  # the stem's two convolutions, of pixels and of cells of 2
    cell = LiteTrunk.stride
    for size, units in enumerate(_UNITS_DOWN):
        if size:
            reach += cell // 2  # from the middle of a square to its cells
            cell *= 2
        reach += units * cell
    for units in reversed(_UNITS_UP[:-1]):
        reach += cell  # growing back, a cell lies between two coarse ones
        cell //= 2
        reach += units * cell
    return reach
