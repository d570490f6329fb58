"""The pixel descriptors of DeepMatching (Revaud et al. 2016, section 3.1): gradients in eight directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.features.extractor import read_pixels, resized_features, to_grey
from ucn.types import Features, ImageLike

_DIRECTIONS = 8
_BLUR = 1.0  # pixels, before the gradients, after them and after the squashing
_SQUASHING = 0.2  # slope of the sigmoid that keeps strong edges from drowning weak ones
_CONSTANT = 0.3  # a ninth number: where there is no gradient, descriptors are alike and not noise


@dataclass(frozen=True)
class DeepPixels:
    """Nine numbers a pixel, of unit length.

    Attributes:
        reduction: how many times smaller the image is made first; the paper's figures for large images are
            for 2.
    """

    reduction: int = 2

    def extract(self, image: ImageLike) -> Features:
        """Describes the grey image at every pixel of its reduced size."""
        pixels = read_pixels(image)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        grey = torch.from_numpy(to_grey(pixels)).float()[None]
        if self.reduction > 1:
            grey = F.avg_pool2d(grey[None], self.reduction, ceil_mode=True)[0]
        layers = _blur(_split_by_direction(_blur(grey)))
        squashed = _blur(2 * torch.sigmoid(_SQUASHING * layers) - 1)
        descriptors = torch.cat([squashed, torch.full_like(squashed[:1], _CONSTANT)])
        # Pixel c of the reduced image covers the pixels from reduction * c on.
        return resized_features(descriptors, image_hw, image_hw, self.reduction, (self.reduction - 1) / 2)


def _split_by_direction(grey: Tensor) -> Tensor:
    """(1, H, W) to how much each gradient points into each direction, (8, H, W), none of it negative."""
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
