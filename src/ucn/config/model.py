"""Settings of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ucn.config.base import Config, require, require_within

TRUNK_CHANNELS = {"googlenet": 512, "lite": 64}
"""Channels of each trunk's last map."""
MIN_SIDE = 32
"""Shortest side of an image, in pixels, that a network encodes."""

_RANGES: dict[str, tuple[float, float]] = {
    "context_layers": (0, 8),
    "context_dilation": (1, 4),
    "levels": (1, 4),
    "semantic_dim": (0, 512),
}


@dataclass(frozen=True)
class ModelConfig(Config):
    """The network: a trunk, an optional projection, an optional convolutional spatial transformer."""

    strides: tuple[int, int, int, int] = (2, 2, 1, 1)
    """Strides of conv1, pool1, pool2, pool3, each 1 or 2; the paper's (2, 2, 1, 1) give one cell per 4 px."""
    dim: int | None = 128
    """Dimension of a descriptor; None: the trunk's channels (512, or 64) without a projection."""
    head_norm: Literal["none", "batch", "channel"] = "channel"
    """Normalisation before the head: none, batch statistics, or over the channels of each location."""
    transformer: Literal["none", "after_trunk", "in_branch"] = "after_trunk"
    """Position of the convolutional spatial transformer; after the trunk in the paper's text."""
    transformer_kernel: int = 3
    """Side k of the transformer's kernel, odd; unused with in_branch, whose branches have kernels 3 and 5."""
    context_layers: int = 0
    """Convolutions of the context branch, with a larger receptive field than the trunk, 0..8; 0: none."""
    context_dilation: int = 1
    """Factor between the dilations of successive convolutions of that branch, 1..4; the last dilation is at
    most 16 times the first."""
    use_standard_light: bool = False
    """Normalise every image to the same mean brightness and contrast before the trunk."""
    levels: int = 1
    """Levels of the image pyramid that the trunk encodes, each half the size of the last, 1..4; 1: the image
    alone."""
    trunk: Literal["googlenet", "lite"] = "googlenet"
    """The paper's GoogLeNet, or a small trunk with the same grid of cells, for CPUs; lite needs `strides`
    (2, 2, 1, 1), `levels` 1, `semantic_dim` 0 and a transformer other than `in_branch`."""
    semantic_dim: int = 0
    """Dimensions of the semantic level (GoogLeNet to inception_4c at its own strides), appended to those of
    `dim`, 0..512; 0: none. It needs `strides` (2, 2, 1, 1) and the trunk googlenet."""

    @property
    def dimensions(self) -> int:
        """Dimensions of a descriptor, of all levels together."""
        return (self.dim or TRUNK_CHANNELS[self.trunk]) + self.semantic_dim

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(all(s in (1, 2) for s in self.strides), "strides must each be 1 or 2", self.strides)
        require(self.dim is None or 1 <= self.dim <= 4096, "dim must be 1..4096 or null", self.dim)
        k = self.transformer_kernel
        require(k % 2 == 1 and 1 <= k <= 15, "transformer_kernel must be odd and 1..15", k)
        require_within(self, _RANGES)
        dilation = self.context_dilation
        # Eight layers with dilations up to 4⁷ would reach 87,000 cells, and tiles need borders as wide.
        rule = "context_dilation must give at most 16 when raised to the power context_layers - 1"
        require(dilation ** max(0, self.context_layers - 1) <= 16, rule, dilation)
        # Tiles start at multiples of 32 pixels, on which the cells of every level must fall.
        rule = "levels must be such that 2 to the power levels - 1 times all strides is at most 32"
        require(2 ** (self.levels - 1) * math.prod(self.strides) <= 32, rule, self.levels)
        require(
            self.context_layers == 0 or math.prod(self.strides) <= 8,
            "context_layers must be 0 where the strides multiply to more than 8",
            self.context_layers,
        )
        is_on_grid = self.semantic_dim == 0 or self.strides == (2, 2, 1, 1)
        require(is_on_grid, "semantic_dim must be 0 unless strides are 2, 2, 1, 1", self.semantic_dim)
        if self.trunk == "lite":
            rule = "must be {} where trunk is lite"
            require(self.strides == (2, 2, 1, 1), f"strides {rule.format('2, 2, 1, 1')}", self.strides)
            # Its coarsest cells already span 32 pixels.
            require(self.levels == 1, f"levels {rule.format('1')}", self.levels)
            require(self.semantic_dim == 0, f"semantic_dim {rule.format('0')}", self.semantic_dim)
            has_branch = self.transformer == "in_branch"
            require(not has_branch, f"transformer {rule.format('none or after_trunk')}", self.transformer)
