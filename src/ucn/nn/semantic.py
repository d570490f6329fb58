"""The semantic level: what kind of part a point shows, for descriptors of classes that nobody labelled.

ImageNet's features at GoogLeNet's own strides, two blocks further than the trunk, tell parts of objects
apart without any training on them. They are coarse: one cell per 16 pixels. The level projects them to unit
vectors, weights each with a learned gain, and upsamples them to the grid of the fine descriptors. The network
appends them to these and normalises the whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.nn.googlenet import GoogLeNetTrunk
from ucn.nn.normalise import l2_normalise

FACTOR = 4
"""Fine cells per semantic cell, along each axis."""
_FIRST = 3
"""Fine cell at the centre of semantic cell 0: both grids have their own offset, 14 px and 2 px."""


class SemanticLevel(nn.Module):
    """Images to weighted unit vectors on the grid of the fine descriptors.

    Attributes:
        trunk: GoogLeNet to inception_4c at its own strides.
        projection: to the dimensions of the level.
        gain: logarithm of the weight of each semantic cell, beside a fine descriptor of length 1.
        reach: radius in pixels of the receptive field.
    """

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.trunk = GoogLeNetTrunk((2, 2, 2, 2), to_4c=True)
        self.projection = nn.Conv2d(self.trunk.channels_out, dimensions, 1)
        self.gain = nn.Conv2d(self.trunk.channels_out, 1, 1)
        self.reach = self.trunk.reach + self.trunk.stride  # upsampling interpolates between two cells

    def initialise_gain(self) -> None:
        """Makes every gain 1, so that a new network weights both levels equally."""
        nn.init.zeros_(self.gain.weight)
        if self.gain.bias is not None:
            nn.init.zeros_(self.gain.bias)

    def describe_cells(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to features of unit length (B, 512, h / 4, w / 4), before the projection."""
        return l2_normalise(self.trunk(images))

    def forward(self, images: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """(B, 3, H, W) to (B, dimensions, h, w)."""
        features = self.describe_cells(images)
        coarse = l2_normalise(self.projection(features)) * self.gain(features).exp()
        return self.upsample(coarse, grid_hw)

    def upsample(self, coarse: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """Semantic cells (B, C, h / 4, w / 4) to fine cells (B, C, h, w); the border is replicated."""
        # By concatenation: torch's padding would lose the channels-last layout.
        coarse = torch.cat([coarse[..., :1], coarse, coarse[..., -1:]], dim=-1)
        coarse = torch.cat([coarse[..., :1, :], coarse, coarse[..., -1:, :]], dim=-2)
        h, w = coarse.shape[-2:]
        size = ((h - 1) * FACTOR + 1, (w - 1) * FACTOR + 1)
        # Semantic cell k lies on fine cell 4k + 3, so the first and last samples lie on cells, too.
        fine = F.interpolate(coarse, size=size, mode="bilinear", align_corners=True)
        first = FACTOR - _FIRST
        return fine[..., first : first + grid_hw[0], first : first + grid_hw[1]]
