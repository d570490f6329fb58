"""Settings of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ucn.config.base import Config, require


@dataclass(frozen=True)
class ModelConfig(Config):
    """The network: a trunk, optional projection, optional convolutional spatial transformer."""

    strides: tuple[int, int, int, int] = (2, 2, 1, 1)
    """Strides of conv1, pool1, pool2, pool3, each 1 or 2; (2, 2, 1, 1) is the paper's, one cell per 4 px."""
    dim: int | None = 128
    """Length of a descriptor; None means the trunk's channels (512, or 64) without a projection."""
    head_norm: Literal["none", "batch", "channel"] = "channel"
    """Normalisation before the head: none, batch statistics, or over the channels of each location."""
    transformer: Literal["none", "after_trunk", "in_branch"] = "after_trunk"
    """Where the convolutional spatial transformer stands; the paper's text puts it after the trunk."""
    transformer_kernel: int = 3
    """Side k of the transformer's kernel, odd. Unused in_branch, where the branches' own 3 and 5 hold."""
    context_layers: int = 0
    """Convolutions of the coarse branch that looks further than the trunk, 0..8; 0 leaves it out."""
    context_dilation: int = 1
    """How many times further each convolution of that branch reaches than the one before, 1..4; the last
    one reaches at most 16 times as far as the first."""

    use_standard_light: bool = False
    """Bring every image to the same mean brightness and contrast before the trunk."""
    levels: int = 1
    """Sizes at which the trunk sees the image, each half the one before, 1..4; 1 is the image alone."""
    trunk: Literal["googlenet", "lite"] = "googlenet"
    """The paper's GoogLeNet, or a small one on the same grid, for processors; `strides` are (2, 2, 1, 1),
    `levels` 1 and the transformer not `in_branch` with that."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(all(s in (1, 2) for s in self.strides), "strides must each be 1 or 2", self.strides)
        require(self.dim is None or 1 <= self.dim <= 4096, "dim must be 1..4096 or null", self.dim)
        k = self.transformer_kernel
        require(k % 2 == 1 and 1 <= k <= 15, "transformer_kernel must be odd and 1..15", k)
        require(0 <= self.context_layers <= 8, "context_layers must be 0..8", self.context_layers)
        dilation = self.context_dilation
        require(1 <= dilation <= 4, "context_dilation must be 1..4", dilation)
        # Eight layers dilated by 4 would reach 87,000 cells, with borders as wide round every tile.
        rule = "context_dilation must give at most 16 when raised to the power context_layers - 1"
        require(dilation ** max(0, self.context_layers - 1) <= 16, rule, dilation)
        require(1 <= self.levels <= 4, "levels must be 1..4", self.levels)
        # Tiles start at multiples of 32 pixels, on which the cells of every level must fall.
        rule = "levels must be such that 2 to the power levels - 1 times all strides is at most 32"
        require(2 ** (self.levels - 1) * math.prod(self.strides) <= 32, rule, self.levels)
        require(
            self.context_layers == 0 or math.prod(self.strides) <= 8,
            "context_layers must be 0 where the strides multiply to more than 8",
            self.context_layers,
        )
        if self.trunk == "lite":
            rule = "must be {} where trunk is lite"
            require(self.strides == (2, 2, 1, 1), f"strides {rule.format('2, 2, 1, 1')}", self.strides)
            # Its own coarsest cells have 32 pixels already.
            require(self.levels == 1, f"levels {rule.format('1')}", self.levels)
            is_beside = self.transformer != "in_branch"
            require(is_beside, f"transformer {rule.format('none or after_trunk')}", self.transformer)
