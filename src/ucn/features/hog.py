"""Histograms of oriented gradients (Dalal and Triggs 2005), dense: one block around every cell of a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.features.extractor import (
    OFFSET,
    STRIDE,
    count_cells,
    make_features,
    normalise_descriptors,
    read_pixels,
    to_grey,
)
from ucn.types import Features, ImageLike

_CLIP = 0.2  # of a unit descriptor, which is then normalised again (section 6.4 of the paper)


@dataclass(frozen=True)
class DenseHog:
    """A square block of histograms around each cell, with bilinear spatial interpolation.

    Attributes:
        histogram_pixels: distance of neighbouring histograms in pixels, even.
        histograms: number along each side of a block, even.
        directions: orientation bins over 360 degrees. Unsigned bins, the usual choice for pedestrians, find
            about half as many points.
    """

    stride: ClassVar[int] = STRIDE
    histogram_pixels: int = 8
    histograms: int = 4
    directions: int = 8

    @property
    def dim(self) -> int:
        """Dimensions of a descriptor."""
        return self.histograms**2 * self.directions

    @property
    def title(self) -> str:
        """Name and settings."""
        return (
            f"dense HOG, {self.histograms} × {self.histograms} histograms {self.histogram_pixels} px apart, "
            f"{self.directions} signed directions, {self.dim} dimensions, upright, one cell per {STRIDE} px"
        )

    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of the grey image at every cell."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        grey = torch.from_numpy(to_grey(pixels)).float().div(255)
        layers = _split_by_direction(grey, self.directions)
        blocks = normalise_descriptors(self._gather_blocks(layers, image_hw), 0)
        return make_features(blocks.clamp_max(_CLIP), image_hw)

    def _gather_blocks(self, layers: Tensor, image_hw: tuple[int, int]) -> Tensor:
        """(directions, H, W) to the histograms around each cell, (histograms² × directions, h, w)."""
        h, w = count_cells(image_hw)
        # Histograms centred outside the image still cover pixels inside it.
        reach = (self.histograms - 1) * self.histogram_pixels // 2
        framed = F.pad(layers, (reach, reach + STRIDE, reach, reach + STRIDE))
        pooled = _pool(framed, self.histogram_pixels)
        starts = [OFFSET + i * self.histogram_pixels for i in range(self.histograms)]
        rows = [pooled[:, start : start + STRIDE * h : STRIDE] for start in starts]
        return torch.cat([row[:, :, start : start + STRIDE * w : STRIDE] for row in rows for start in starts])


def _split_by_direction(grey: Tensor, directions: int) -> Tensor:
    """(H, W) to gradient magnitudes (directions, H, W), each split between the two nearest directions."""
    framed = F.pad(grey[None], (1, 1, 1, 1), mode="replicate")[0]
    along_x, along_y = framed[1:-1, 2:] - framed[1:-1, :-2], framed[2:, 1:-1] - framed[:-2, 1:-1]
    direction = torch.atan2(along_y, along_x).remainder(math.tau) * (directions / math.tau)
    lower = direction.floor()
    fraction = direction - lower
    magnitude = torch.hypot(along_x, along_y)
    layers = grey.new_zeros(directions, *grey.shape)
    first = lower.long() % directions
    layers.scatter_add_(0, first[None], (magnitude * (1 - fraction))[None])
    layers.scatter_add_(0, ((first + 1) % directions)[None], (magnitude * fraction)[None])
    return layers


def _pool(layers: Tensor, distance: int) -> Tensor:
    """Sums of layers (C, H, W) under a triangular window that ends `distance` pixels from its centre."""
    window = 1 - torch.arange(1 - distance, distance, dtype=layers.dtype).abs() / distance
    rows = F.conv2d(layers[:, None], window.view(1, 1, -1, 1), padding=(distance - 1, 0))
    return F.conv2d(rows, window.view(1, 1, 1, -1), padding=(0, distance - 1))[:, 0]
