"""Normalisation of each location's vector on its own, so that a tile gives what the whole image gives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_MEAN, _SPREAD = 0.44, 0.24
"""Of the brightness of photographs, with pixels in [0, 1]."""
_LEAST_SPREAD = 0.02
"""Added to an image's own spread, so that the noise of an empty one is not taken for a picture."""


def l2_normalise(features: Tensor, dim: int = 1, epsilon: float = 1e-12) -> Tensor:
    """Scales vectors along `dim` to unit length; a zero vector stays zero, with a finite gradient.

    Computed in float32 at least, and returned so: squares of half types overflow and lose digits.
    """
    wide = features.float() if features.dtype.itemsize < 4 else features
    squared_length = wide.square().sum(dim=dim, keepdim=True)
    return wide * squared_length.clamp_min(epsilon).rsqrt()


class ChannelNorm(nn.Module):
    """Zero mean and unit variance over the channels of each location, then a learned scale and shift.

    Batch statistics would couple the images of a batch and the data sets of a mixture; group statistics over
    space would make a tile differ from the whole image.
    """

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to the same shape."""
        wide = x.float() if x.dtype.itemsize < 4 else x
        centred = wide - wide.mean(dim=1, keepdim=True)
        normalised = centred * (centred.square().mean(dim=1, keepdim=True) + self.epsilon).rsqrt()
        return (normalised * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(x.dtype)


def standardise_light(images: Tensor) -> Tensor:
    """Brings images to the mean and the spread that ImageNet's have, each by one gain and one shift.

    Colours keep their balance. An image of one colour becomes the mean grey.

    Args:
        images: (B, 3, H, W) in [0, 1].
    """
    wide = images.float() if images.dtype.itemsize < 4 else images
    mean = wide.mean(dim=(1, 2, 3), keepdim=True)
    spread = (wide - mean).square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    return ((wide - mean) * (_SPREAD / (spread + _LEAST_SPREAD)) + _MEAN).to(images.dtype)
