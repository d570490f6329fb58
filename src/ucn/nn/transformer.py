"""The convolutional spatial transformer: a convolution with an affine transformation of each window.

At every cell a 2×2 matrix θ, itself predicted by convolution, transforms the k×k sampling grid around that
cell. The map is sampled there bilinearly, the k×k samples are laid out side by side without overlap, and a
k×k convolution of stride k combines them (paper, section 3 and appendix A.2). There is no translation, the
origin is the centre of each kernel, and the map is zero outside. With θ = I this is an ordinary convolution
with padding k // 2.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ucn.geometry.sampling import sample_image
from ucn.nn.normalise import l2_normalise, make_constant
from ucn.runtime.kernels import use_fused

_LOCALISER_CHANNELS = 32

MAX_REACH_CELLS = 12
"""Largest offset of a sample from its window's centre; bounded so that tiles equal the whole image."""


class ConvolutionalSpatialTransformer(nn.Module):
    """A k×k convolution after an affine patch normalisation that is predicted at each cell."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel must be odd and positive, got {kernel}")
        self.weight = nn.Parameter(torch.empty(channels_out, channels_in, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(channels_out))
        self.localiser = nn.Sequential(
            nn.Conv2d(channels_in, _LOCALISER_CHANNELS, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(_LOCALISER_CHANNELS, 4, 1),
        )

    def initialise_as_convolution(self) -> None:
        """Sets θ = I everywhere: the layer then equals ``conv2d(x, weight, bias, padding=k // 2)``."""
        nn.init.zeros_(self.localiser[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.localiser[2].bias)  # type: ignore[arg-type]

    def predict_theta(self, x: Tensor) -> Tensor:
        """Matrices (B, 4, h, w) = (θ11, θ12, θ21, θ22) for a map (B, C, h, w)."""
        identity = make_constant((1.0, 0.0, 0.0, 1.0), x).view(1, 4, 1, 1)
        # The localiser gets unit variance: trunk activations reach hundreds, and one optimiser step on such
        # inputs would move the windows off the map, where there is no gradient to bring them back.
        localised = self.localiser(l2_normalise(x) * math.sqrt(x.shape[1]))
        return localised + identity  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to (B, channels_out, h, w)."""
        return transform_and_convolve(x, self.predict_theta(x), self.weight, self.bias)


def transform_and_convolve(x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolution over windows transformed by `theta`.

    Args:
        x: (B, C, h, w).
        theta: (B, 4, h, w), rows of the 2×2 matrix that acts on (x, y) offsets in cells.
        weight: (C', C, k, k).
        bias: (C',) or None.

    Returns:
        (B, C', h, w).
    """
    if _can_fuse(x, theta, weight):
        return _fuse(x, theta, weight, bias)
    kernel = weight.shape[-1]
    batch, _, h, w = theta.shape
    positions = _window_positions(theta, kernel)  # (B, h, k, w, k, 2)
    positions = positions.reshape(batch, h * kernel, w * kernel, 2)
    windows = sample_image(x, positions, "zeros")  # (B, C, h * k, w * k)
    return F.conv2d(windows, weight, bias, stride=kernel)


def _can_fuse(x: Tensor, theta: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernels take these inputs; they sum gradients in no fixed order."""
    if not use_fused(x, theta, weight) or torch.are_deterministic_algorithms_enabled():
        return False
    types = (torch.float16, torch.bfloat16, torch.float32)
    is_one_type = x.dtype == weight.dtype or torch.is_autocast_enabled("cuda")
    return is_one_type and all(tensor.dtype in types for tensor in (x, theta, weight))


def _fuse(x: Tensor, theta: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from ucn.nn.triton.transformer import transform_and_convolve_fused  # Triton is optional

    # Autocast does not know the operator; it would have cast a convolution to its type.
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    bias = None if bias is None else bias.to(dtype)
    allow_tf32 = torch.backends.cudnn.allow_tf32
    fused: Tensor = transform_and_convolve_fused(
        x.to(dtype), theta.float(), weight.to(dtype), bias, MAX_REACH_CELLS, allow_tf32
    )
    return fused


def _window_positions(theta: Tensor, kernel: int) -> Tensor:
    """Sampling position (x, y) of each tap of each window, in cells: (B, h, k, w, k, 2)."""
    # Positions need float32: bfloat16 has 8 bits, too few for the columns of a map.
    theta = theta.float() if theta.dtype.itemsize < 4 else theta
    _, _, h, w = theta.shape
    steps = torch.arange(kernel, device=theta.device, dtype=theta.dtype) - kernel // 2
    dy, dx = steps.view(1, 1, kernel, 1, 1), steps.view(1, 1, 1, 1, kernel)
    t11, t12, t21, t22 = (t[:, :, None, :, None] for t in theta.unbind(1))  # (B, h, 1, w, 1)
    columns = torch.arange(w, device=theta.device, dtype=theta.dtype).view(1, 1, 1, w, 1)
    rows = torch.arange(h, device=theta.device, dtype=theta.dtype).view(1, h, 1, 1, 1)
    x = columns + (t11 * dx + t12 * dy).clamp(-MAX_REACH_CELLS, MAX_REACH_CELLS)
    y = rows + (t21 * dx + t22 * dy).clamp(-MAX_REACH_CELLS, MAX_REACH_CELLS)
    return torch.stack([x, y], dim=-1)
