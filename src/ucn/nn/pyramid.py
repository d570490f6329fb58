"""The same trunk on smaller copies of the image: what lies further away, seen with trained eyes.

A copy at half the size lets the trunk see twice as far for a quarter of the cost. What each copy shows is
projected on its own, grown back to the grid and added to the projection of the image itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.constants import make_constant

_TAPS = (1.0, 4.0, 6.0, 4.0, 1.0)
"""Burt and Adelson's kernel (The Laplacian pyramid as a compact image code, 1983), times 16."""


class CoarseLevel(nn.Module):
    """What the trunk found in a copy `factor` times smaller, brought to the grid; adds nothing at first.

    Attributes:
        factor: how many times smaller the copy is, a power of 2.
    """

    def __init__(
        self, channels: int, channels_out: int, factor: int, build_norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.factor = factor
        self.norm = build_norm(channels)
        self.projection = nn.Conv2d(channels, channels_out, 1)

    def start_at_zero(self) -> None:
        """Makes the level add nothing, so that a new network is what it would be without."""
        nn.init.zeros_(self.projection.weight)
        if self.projection.bias is not None:
            nn.init.zeros_(self.projection.bias)

    def scale_contribution(self, gain: float) -> None:
        """Makes the level add so many times what it adds."""
        with torch.no_grad():
            self.projection.weight.mul_(gain)
            if self.projection.bias is not None:
                self.projection.bias.mul_(gain)

    def forward(self, features: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """(B, C, h / factor, w / factor) to (B, channels_out, h, w)."""
        return self.grow(self.projection(self.norm(features)), grid_hw)

    def grow(self, coarse: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """Projected features (B, channels_out, h / factor, w / factor) to (B, channels_out, h, w)."""
        # Rounding can leave the coarse grid a cell short of the fine one; beyond its edge it stays as it is.
        # (Joined and not padded: torch's padding would lose the order of channels-last memory.)
        coarse = torch.cat([coarse, coarse[..., -1:]], dim=-1)
        coarse = torch.cat([coarse, coarse[..., -1:, :]], dim=-2)
        # Pixel i of the copy lies on pixel factor · i, so coarse cell k lies at cell factor · k +
        # (factor - 1) / 2, which is where interpolation without aligned corners takes it to be.
        grown = F.interpolate(coarse, scale_factor=self.factor, mode="bilinear", align_corners=False)
        return grown[..., : grid_hw[0], : grid_hw[1]]

    def find_reach(self, trunk_reach: int, stride: int) -> int:
        """Pixels from a cell's centre within which the image matters to this level."""
        blur = 2 * (self.factor - 1)  # two pixels a halving, each twice as large as those of the one before
        return self.factor * (trunk_reach + stride) + blur


def halve(images: Tensor) -> Tensor:
    """(B, C, H, W) to half the size, rounded up, smoothed first: pixel i lies on pixel 2i."""
    channels = int(images.shape[1])  # a plain number also where a graph is recorded
    taps = make_constant(_TAPS, images) / 16
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate")
    rows = F.conv2d(padded, taps.view(1, 1, 1, 5).expand(channels, 1, 1, 5), stride=(1, 2), groups=channels)
    return F.conv2d(rows, taps.view(1, 1, 5, 1).expand(channels, 1, 5, 1), stride=(2, 1), groups=channels)
