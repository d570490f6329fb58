"""Are arrays that callers give images? Errors say how to make them so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def check_pixels(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The array itself where it is uint8 (H, W, 3) or (H, W); raises `TypeError` or `ValueError`."""
    expected = "a numpy image must be uint8 (H, W, 3) RGB or (H, W) grey"
    if image.dtype != np.uint8:
        hint = (
            "give floats as a torch tensor (3, H, W) in [0, 1]"
            if np.issubdtype(image.dtype, np.floating)
            else "scale it to 0..255 first"
        )
        raise TypeError(f"{expected}, got {image.dtype}; {hint}")
    if image.ndim == 3 and image.shape[2] == 4:
        raise ValueError(f"{expected}, got {image.shape}; drop the fourth channel with image[..., :3]")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise ValueError(f"{expected}, got {image.shape}")
    if image.size == 0:
        raise ValueError(f"image must have pixels, got {image.shape}")
    return image


def check_image_tensor(image: Tensor) -> Tensor:
    """The tensor, detached, where it is float (3, H, W) in [0, 1]; raises `TypeError` or `ValueError`."""
    expected = "a torch image must be float (3, H, W) RGB in [0, 1]"
    if not image.is_floating_point():
        raise TypeError(f"{expected}, got {image.dtype}; use image.float() / 255")
    shape = tuple(image.shape)
    if image.ndim == 4 and shape[0] == 1:
        raise ValueError(f"{expected}, got {shape}; give image[0]")
    if image.ndim == 2 or (image.ndim == 3 and shape[0] == 1):
        raise ValueError(f"{expected}, got {shape}; repeat grey with image.expand(3, -1, -1)")
    if image.ndim == 3 and shape[0] != 3 and shape[2] == 3:
        raise ValueError(f"{expected}, got {shape}; use image.permute(2, 0, 1)")
    if image.ndim != 3 or shape[0] != 3:
        raise ValueError(f"{expected}, got {shape}")
    if image.numel() == 0:
        raise ValueError(f"image must have pixels, got {shape}")
    low, high = image.detach().aminmax()
    if not (low >= 0 and high <= 1):
        raise ValueError(f"{expected}, got values {low.item():g} to {high.item():g}; scale or clamp it")
    return image.detach()
