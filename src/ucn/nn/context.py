"""What lies round a location: a coarse branch that lets descriptors know more of the object than a patch.

At one cell per 4 pixels the trunk sees 83 pixels; a leg alone does not tell left from right. The branch pools
cells, looks further with a few small convolutions, and adds what it found to the projection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

POOL = 4
"""Cells per pooled cell and axis."""
WIDTH = 128
"""Channels of the branch."""


class ContextBranch(nn.Module):
    """Pooling, residual 3×3 convolutions, and bilinear growth back to the grid; adds nothing at first.

    Attributes:
        reach_cells: how far, in cells of the grid, it looks.
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
            channels: of the features it reads.
            channels_out: of what it adds.
            layers: 3×3 convolutions.
            dilation: how many times further each of them reaches than the one before.
            build_norm: makes the norm after a convolution, for so many channels.
        """
        super().__init__()
        self.entry = nn.Conv2d(channels, WIDTH, 1)
        spacings = [dilation**layer for layer in range(layers)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=spacing, dilation=spacing) for spacing in spacings
        )
        self.norms = nn.ModuleList(build_norm(WIDTH) for _ in range(layers))
        self.exit = nn.Conv2d(WIDTH, channels_out, 1)
        # A pooled cell for the pooling's window, one for the interpolation, the rest for the convolutions.
        self.reach_cells = POOL * (sum(spacings) + 2)

    def start_at_zero(self) -> None:
        """Makes the branch add nothing, so that a new network is what it would be without."""
        nn.init.zeros_(self.exit.weight)
        if self.exit.bias is not None:
            nn.init.zeros_(self.exit.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, h, w) to (B, channels_out, h, w)."""
        # Windows that hang over the edge average the cells they have, so the edge is no colder than the rest.
        pooled = F.avg_pool2d(F.relu(self.entry(features)), POOL, ceil_mode=True, count_include_pad=False)
        return self.look_round(pooled, (features.shape[-2], features.shape[-1]))

    def look_round(self, pooled: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """What entered, pooled (B, WIDTH, h / POOL, w / POOL), to (B, channels_out, h, w)."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            pooled = pooled + F.relu(norm(convolution(pooled)))
        # Without aligned corners pooled cell k lies at cell 4k + 1.5, the middle of what it pooled.
        grown = F.interpolate(self.exit(pooled), scale_factor=POOL, mode="bilinear", align_corners=False)
        return grown[..., : grid_hw[0], : grid_hw[1]]
