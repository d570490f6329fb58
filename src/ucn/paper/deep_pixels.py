"""The pixel descriptors of DeepMatching (Revaud et al. 2016, section 3.1): gradients in eight directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.features.extractor import make_features, read_pixels, to_grey
from ucn.types import Features, ImageLike

_DIRECTIONS = 8
_BLUR = 1.0  # pixels, before the gradients, after them and after the sigmoid
_SLOPE = 0.2  # of the sigmoid that compresses strong gradients
_CONSTANT = 0.3  # ninth dimension, which makes textureless pixels alike in place of noise


@dataclass(frozen=True)
class DeepPixels:
    """Nine dimensions a pixel, normalised.

    Attributes:
        reduction: factor by which the image is reduced first; the paper uses 2 for large images.
    """

    dim: ClassVar[int] = _DIRECTIONS + 1

    reduction: int = 2

    @property
    def stride(self) -> int:
        """Pixels between cells."""
        return self.reduction

    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of the grey image at every pixel of its reduced size."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        grey = torch.from_numpy(to_grey(pixels)).float()[None]
        if self.reduction > 1:
            grey = F.avg_pool2d(grey[None], self.reduction, ceil_mode=True)[0]
        layers = _blur(_split_by_direction(_blur(grey)))
        compressed = _blur(2 * torch.sigmoid(_SLOPE * layers) - 1)
        descriptors = torch.cat([compressed, torch.full_like(compressed[:1], _CONSTANT)])
        # Pixel c of the reduced image covers the pixels from reduction * c on.
        return make_features(descriptors, image_hw, self.reduction, (self.reduction - 1) / 2)


def _split_by_direction(grey: Tensor) -> Tensor:
    """(1, H, W) to the positive components of gradients along 8 directions, (8, H, W)."""
    framed = F.pad(grey[None], (1, 1, 1, 1), mode="replicate")[0, 0]
    along_x = (framed[1:-1, 2:] - framed[1:-1, :-2]) / 2
    along_y = (framed[2:, 1:-1] - framed[:-2, 1:-1]) / 2
    angles = torch.arange(_DIRECTIONS).view(-1, 1, 1) * (math.tau / _DIRECTIONS)
    return (along_x * angles.cos() + along_y * angles.sin()).clamp_min_(0)


def _blur(layers: Tensor) -> Tensor:
    """Layers (C, H, W) smoothed by a Gaussian."""
    reach = math.ceil(3 * _BLUR)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / _BLUR).square())
    kernel /= kernel.sum()
    framed = F.pad(layers[None], (reach, reach, reach, reach), mode="replicate")[0]
    rows = F.conv2d(framed[:, None], kernel.view(1, 1, -1, 1))
    return F.conv2d(rows, kernel.view(1, 1, 1, -1))[:, 0]
