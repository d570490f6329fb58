"""The network, from images to descriptors: start reading here.

    images (B, 3, H, W) ── prepare ── trunk ── head norm ── 1×1 projection ─┬─ transformer ── L2 norm
                              │                    └─────── context branch ─┤                    │
                              ├─ at 1/2, 1/4, … of the size ── trunk ── coarse levels      (B, D, h, w)
                              └─ semantic level, appended to the descriptors ─────────────────── L2 norm

The context branch, the coarse levels, the spatial transformer and the semantic level are optional
(`ModelConfig`). This is the reference, in plain torch; `encoder.py` chooses what runs in its place where that
is faster.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from ucn.config import MIN_SIDE, ModelConfig
from ucn.nn.context import ContextBranch
from ucn.nn.googlenet import GoogLeNetTrunk, plain_convolution
from ucn.nn.lite import LiteTrunk
from ucn.nn.normalise import ChannelNorm, l2_normalise, normalise_illumination
from ucn.nn.pyramid import CoarseLevel, downsample
from ucn.nn.semantic import SemanticLevel
from ucn.nn.transformer import MAX_REACH_CELLS, ConvolutionalSpatialTransformer
from ucn.types import FeatureMap


class Encoder(Protocol):
    """Maps images to descriptors: a `CorrespondenceNetwork`, or a fast engine in its place."""

    stride: int
    offset: float
    reach: int
    semantic_dim: int

    def encode(self, images: Tensor) -> FeatureMap:
        """Images (B, 3, H, W) to descriptors and the positions of their cells."""

    def prepare(self, images: Tensor) -> Tensor:
        """Steps that need the whole image; the result may be cut into tiles."""

    def describe(self, images: Tensor) -> Tensor:
        """Prepared images, or tiles of them, to descriptors (B, D, h, w)."""


class CorrespondenceNetwork(nn.Module):
    """Maps an image to unit descriptors on a regular grid of cells.

    Cell c is centred at pixel stride * c + offset, along both axes.

    Attributes:
        config: the configuration it was built from.
        stride: pixels between neighbouring cells.
        offset: pixel coordinate of cell 0.
        reach: radius in pixels of a cell's receptive field.
        semantic_dim: how many dimensions of a descriptor, the last ones, are of the semantic level.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = _build_trunk(config)
        channels = self.trunk.channels_out
        dimensions = config.dim or channels
        build_norm = partial(_build_norm, config.head_norm)
        self.head_norm = build_norm(channels)
        self.projection = nn.Identity() if config.dim is None else nn.Conv2d(channels, config.dim, 1)
        self.context = (
            ContextBranch(channels, dimensions, config.context_layers, config.context_dilation, build_norm)
            if config.context_layers
            else None
        )
        self.coarse_levels = nn.ModuleList(
            CoarseLevel(channels, dimensions, 2**level, build_norm) for level in range(1, config.levels)
        )
        self.transformer = (
            ConvolutionalSpatialTransformer(dimensions, dimensions, config.transformer_kernel)
            if config.transformer == "after_trunk"
            else nn.Identity()
        )
        self.semantic = SemanticLevel(config.semantic_dim) if config.semantic_dim else None
        self.stride, self.offset = self.trunk.stride, self.trunk.offset
        self.semantic_dim = config.semantic_dim
        self.reach = self._find_reach()

    def encode(self, images: Tensor) -> FeatureMap:
        """Descriptors together with the positions of their cells.

        Args:
            images: (B, 3, H, W) RGB in [0, 1], at least 32 px a side.

        Raises:
            ValueError: the shape is wrong or a side is too short.
        """
        check_images(images)
        height, width = images.shape[-2:]
        return FeatureMap(self(images), self.stride, self.offset, (height, width), self.semantic_dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to unit descriptors (B, D, h, w)."""
        return self.describe(self.prepare(images))

    def prepare(self, images: Tensor) -> Tensor:
        """Steps that need the whole image, (B, 3, H, W) to the same shape; a tile could not do them alone."""
        return normalise_illumination(images) if self.config.use_standard_light else images

    def describe(self, images: Tensor) -> Tensor:
        """Prepared images (B, 3, H, W) to unit descriptors (B, D, h, w)."""
        features = self.head_norm(self.trunk(images))  # (B, C, h, w)
        projected = self.projection(features)  # (B, D, h, w)
        if self.context is not None:
            projected = projected + self.context(features)
        reduced = images
        for level in self.coarse_levels:
            reduced = downsample(reduced)
            projected = projected + level(self.trunk(reduced), projected.shape[-2:])
        fine = l2_normalise(self.transformer(projected))
        if self.semantic is None:
            return fine
        return l2_normalise(torch.cat([fine, self.semantic(images, fine.shape[-2:])], dim=1))

    def scale_coarse_levels(self, gain: float) -> None:
        """Multiplies the contribution of the coarse levels, or of the lite trunk's coarse cells."""
        if isinstance(self.trunk, LiteTrunk):
            self.trunk.scale_coarse(gain)
        for level in self.coarse_levels:
            assert isinstance(level, CoarseLevel)
            level.scale_contribution(gain)

    def _find_reach(self) -> int:
        reaches = [self.trunk.reach]
        if self.context is not None:
            reaches.append(self.trunk.reach + self.context.reach_cells * self.stride)
        for level in self.coarse_levels:
            assert isinstance(level, CoarseLevel)
            reaches.append(level.find_reach(self.trunk.reach, self.stride))
        transformer_cells = 0 if self.config.transformer == "none" else MAX_REACH_CELLS
        reach = max(reaches) + transformer_cells * self.stride
        return reach if self.semantic is None else max(reach, self.semantic.reach)


def drop_semantic(model: CorrespondenceNetwork) -> CorrespondenceNetwork:
    """A network with the fine descriptors of another one alone, sharing its weights.

    The fine level is complete without the semantic one, which only pairs of parts need.
    """
    if model.semantic is None:
        return model
    fine = copy.copy(model)  # of the same class, with the same methods and hooks
    fine._modules = {**model._modules, "semantic": None}
    fine.config, fine.semantic_dim = replace(model.config, semantic_dim=0), 0
    fine.reach = fine._find_reach()
    return fine


def check_images(images: Tensor) -> None:
    """Raises ValueError unless images are (B, 3, H, W) of at least 32 px a side."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be (B, 3, H, W), got {tuple(images.shape)}")
    height, width = images.shape[-2:]
    if min(height, width) < MIN_SIDE:
        raise ValueError(f"images must be at least {MIN_SIDE} px a side, got {width}×{height} (w×h)")


def build_model(config: ModelConfig, generator: torch.Generator | None = None) -> CorrespondenceNetwork:
    """A network with random weights on the CPU, sampled with `generator` (seed 0 when None)."""
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    # On the meta device layers do not sample from torch's global generator when they are made.
    with torch.device("meta"):
        model = CorrespondenceNetwork(config)
    model.to_empty(device="cpu")
    for module in model.modules():
        _initialise(module, generator)
    for module in model.modules():
        if isinstance(module, ConvolutionalSpatialTransformer):
            module.initialise_as_convolution()
        if isinstance(module, (ContextBranch, CoarseLevel)):
            module.initialise_to_zero()
        if isinstance(module, SemanticLevel):
            module.initialise_gain()
    return model


def _build_trunk(config: ModelConfig) -> GoogLeNetTrunk | LiteTrunk:
    if config.trunk == "lite":
        return LiteTrunk()
    is_in_branch = config.transformer == "in_branch"
    return GoogLeNetTrunk(
        config.strides, ConvolutionalSpatialTransformer if is_in_branch else plain_convolution
    )


def _build_norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return ChannelNorm(channels) if kind == "channel" else nn.Identity()


def _initialise(module: nn.Module, generator: torch.Generator) -> None:
    if isinstance(module, (nn.Conv2d, ConvolutionalSpatialTransformer)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.BatchNorm2d, ChannelNorm)):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
