"""Normalisation of descriptors, of features per cell, and of the illumination of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MEAN_INTENSITY, INTENSITY_DEVIATION = 0.44, 0.24
"""Mean and standard deviation of ImageNet's pixels in [0, 1], over all colours."""
_DEVIATION_FLOOR = 0.02
"""Added to an image's own deviation, so that the noise of a blank image is not amplified."""


def l2_normalise(features: Tensor, dim: int = 1) -> Tensor:
    """Scales vectors along `dim` to unit length; a zero vector stays zero, with a finite gradient.

    Half types are converted to float32: their squares overflow and lose precision.
    """
    wide = features.float() if features.dtype.itemsize < 4 else features
    squared_length = wide.square().sum(dim=dim, keepdim=True)
    return wide * squared_length.clamp_min(1e-12).rsqrt()


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each cell: zero mean, unit variance, learned scale and shift.

    Batch statistics would couple the images of a batch and the data sets of a mixture; statistics over space
    would make a tile differ from the whole image.
    """

    epsilon = 1e-5
    """Added to the variance."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to the same shape."""
        wide = x.float() if x.dtype.itemsize < 4 else x
        centred = wide - wide.mean(dim=1, keepdim=True)
        normalised = centred * (centred.square().mean(dim=1, keepdim=True) + self.epsilon).rsqrt()
        return (normalised * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(x.dtype)


def normalise_illumination(images: Tensor) -> Tensor:
    """Brings each image to ImageNet's mean and standard deviation by one gain and one offset.

    Colour balance is kept. A uniform image becomes mean grey.

    Args:
        images: (B, 3, H, W) in [0, 1].
    """
    wide = images.float() if images.dtype.itemsize < 4 else images
    mean = wide.mean(dim=(1, 2, 3), keepdim=True)
    deviation = (wide - mean).square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    gain = INTENSITY_DEVIATION / (deviation + _DEVIATION_FLOOR)
    return ((wide - mean) * gain + MEAN_INTENSITY).to(images.dtype)


def make_constant(values: Sequence[float], like: Tensor) -> Tensor:
    """Values (N,) with the type and on the device of a tensor.

    They are filled in on the device: a copy from the host synchronises, and a CUDA graph cannot capture it.
    """
    return torch.stack([like.new_full((), value) for value in values])
