"""The context branch: a larger receptive field for descriptors, at low resolution.

The trunk's receptive field is 83 pixels at stride 4: enough for a leg, but not to tell left from right. The
branch pools the trunk's features, applies a few dilated convolutions and adds the result to the projection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

POOL = 4
"""Cells per pooled cell, along each axis."""
WIDTH = 128
"""Channels of the branch."""


class ContextBranch(nn.Module):
    """Average pooling, residual 3×3 convolutions and bilinear upsampling back to the grid.

    Attributes:
        reach_cells: radius of the receptive field in cells of the grid.
    """

    def __init__(
        self,
        channels: int,
        channels_out: int,
        layers: int,
        dilation: int,
        build_norm: Callable[[int], nn.Module],
    ) -> None:
        """Makes the branch.

        Args:
            channels: of the input.
            channels_out: of the output.
            layers: number of 3×3 convolutions.
            dilation: ratio of the dilations of consecutive convolutions.
            build_norm: makes the norm after a convolution, given its channels.
        """
        super().__init__()
        self.entry = nn.Conv2d(channels, WIDTH, 1)
        dilations = [dilation**layer for layer in range(layers)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=each, dilation=each) for each in dilations
        )
        self.norms = nn.ModuleList(build_norm(WIDTH) for _ in range(layers))
        self.exit = nn.Conv2d(WIDTH, channels_out, 1)
        # One pooled cell for the pooling window, one for the interpolation, the rest for the convolutions.
        self.reach_cells = POOL * (sum(dilations) + 2)

    def initialise_to_zero(self) -> None:
        """Makes the output zero, so that a new network equals one without the branch."""
        nn.init.zeros_(self.exit.weight)
        if self.exit.bias is not None:
            nn.init.zeros_(self.exit.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, h, w) to (B, channels_out, h, w)."""
        # Windows at the border average the cells inside the map, not zeros.
        pooled = F.avg_pool2d(F.relu(self.entry(features)), POOL, ceil_mode=True, count_include_pad=False)
        return self.run_pooled(pooled, (features.shape[-2], features.shape[-1]))

    def run_pooled(self, pooled: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """Everything after the pooling: (B, WIDTH, h / POOL, w / POOL) to (B, channels_out, h, w)."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            pooled = pooled + F.relu(norm(convolution(pooled)))
        # Pooled cell k lies at cell 4k + 1.5, the centre of its window, as `align_corners=False` assumes.
        fine = F.interpolate(self.exit(pooled), scale_factor=POOL, mode="bilinear", align_corners=False)
        return fine[..., : grid_hw[0], : grid_hw[1]]
