"""Coarse levels: the same trunk on an image pyramid, for a larger receptive field.

At half the size the trunk's receptive field covers twice as many pixels for a quarter of the cost. The
features of each level are projected, upsampled to the grid and added to the projection of the image itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.normalise import make_constant

_TAPS = (1.0, 4.0, 6.0, 4.0, 1.0)
"""Burt and Adelson's binomial kernel (The Laplacian pyramid as a compact image code, 1983), times 16."""


class CoarseLevel(nn.Module):
    """Projects the trunk's features of an image `factor` times smaller, and upsamples them to the grid.

    Attributes:
        factor: reduction of the image, a power of 2.
    """

    def __init__(
        self, channels: int, channels_out: int, factor: int, build_norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.factor = factor
        self.norm = build_norm(channels)
        self.projection = nn.Conv2d(channels, channels_out, 1)

    def initialise_to_zero(self) -> None:
        """Makes the output zero, so that a new network equals one without the level."""
        nn.init.zeros_(self.projection.weight)
        if self.projection.bias is not None:
            nn.init.zeros_(self.projection.bias)

    def scale_contribution(self, gain: float) -> None:
        """Multiplies the output by a gain."""
        with torch.no_grad():
            self.projection.weight.mul_(gain)
            if self.projection.bias is not None:
                self.projection.bias.mul_(gain)

    def forward(self, features: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """(B, C, h / factor, w / factor) to (B, channels_out, h, w)."""
        return self.upsample(self.projection(self.norm(features)), grid_hw)

    def upsample(self, coarse: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """Projected features (B, channels_out, h / factor, w / factor) to (B, channels_out, h, w)."""
        # Rounding can leave the coarse grid a cell short of the fine one, so its border is replicated.
        # (By concatenation: torch's padding would lose the channels-last layout.)
        coarse = torch.cat([coarse, coarse[..., -1:]], dim=-1)
        coarse = torch.cat([coarse, coarse[..., -1:, :]], dim=-2)
        # Pixel i of the reduced image lies on pixel factor · i, so coarse cell k lies at cell
        # factor · k + (factor - 1) / 2, as `align_corners=False` assumes.
        fine = F.interpolate(coarse, scale_factor=self.factor, mode="bilinear", align_corners=False)
        return fine[..., : grid_hw[0], : grid_hw[1]]

    def find_reach(self, trunk_reach: int, stride: int) -> int:
        """Radius in pixels of the receptive field of this level."""
        blur = 2 * (self.factor - 1)  # two pixels per downsampling, each twice as large as the ones before
        return self.factor * (trunk_reach + stride) + blur


def downsample(images: Tensor) -> Tensor:
    """Blurs and halves (B, C, H, W), sizes rounded up; pixel i of the result lies on pixel 2i."""
    channels = int(images.shape[1])  # an int also while a graph is traced
    taps = make_constant(_TAPS, images) / 16
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate")
    rows = F.conv2d(padded, taps.view(1, 1, 1, 5).expand(channels, 1, 1, 5), stride=(1, 2), groups=channels)
    return F.conv2d(rows, taps.view(1, 1, 5, 1).expand(channels, 1, 5, 1), stride=(2, 1), groups=channels)
