"""Photometric augmentation: random changes of brightness, colour, sharpness and noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.augment.random import scale_to_ranges

_RANGES = {
    "blur": (-1.0, 1.2),
    "gamma": (-0.45, 0.45),
    "contrast": (-0.5, 0.35),
    "brightness": (-0.15, 0.15),
    "red": (-0.15, 0.15),
    "green": (-0.15, 0.15),
    "blue": (-0.15, 0.15),
    "fading": (-0.5, 0.5),
    "greyness": (0.0, 1.0),
    "light": (-1.0, 1.0),
    "noise": (-0.02, 0.04),
}


def change_photometrically(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Changes brightness, colour, sharpness and noise of each image independently.

    Args:
        images: (V, B, 3, H, W) in [0, 1], each side at least 4; the random values of one set of B images are
            sampled before those of the next.
        strength: 0 leaves the images unchanged; 1 is a strong change.
        generator: random generator, on the images' device.

    Returns:
        (V, B, 3, H, W) in [0, 1].
    """
    if strength == 0:
        return images
    sets = len(images)
    uniforms, light, noise = _sample_changes(images, generator)
    amounts = scale_to_ranges(uniforms, tuple(_RANGES.values())) * strength  # (V * B, 11)
    amount = dict(zip(_RANGES, amounts.view(-1, len(_RANGES), 1, 1, 1).unbind(1), strict=True))

    changed = blur(images.flatten(0, 1), amount["blur"].clamp_min(0))
    changed = changed.clamp(1e-4, 1) ** amount["gamma"].exp()
    # Set by set: the order of summation on a device depends on the batch.
    mean = torch.cat([part.mean(dim=(1, 2, 3), keepdim=True) for part in changed.chunk(sets)])
    changed = (changed - mean) * amount["contrast"].exp() + mean + amount["brightness"]
    changed = changed * amounts[:, 4:7, None, None].exp()  # red, green and blue
    grey = changed.mean(dim=1, keepdim=True)
    fading = amount["fading"].clamp(0, 1) + (amount["greyness"] > 0.9).float() * 0.5
    changed = torch.lerp(changed, grey, fading)
    light = light * amount["light"].clamp_min(0)
    changed = changed * F.interpolate(light, changed.shape[-2:], mode="bicubic", align_corners=False).exp()
    changed = changed + noise * amount["noise"].clamp_min(0)
    return changed.clamp(0, 1).view_as(images)


def _sample_changes(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Uniform values (V * B, 11), light fields (V * B, 1, 4, 4) and normal noise (V * B, 3, H, W)."""
    sets, batch = images.shape[:2]
    uniforms = images.new_empty(sets, len(_RANGES), batch)
    light, noise = images.new_empty(sets, batch, 1, 4, 4), images.new_empty(images.shape)
    for index in range(sets):
        column = uniforms[index]
        for part in (*column[:4], column[4:7], *column[7:9], light[index], column[9]):
            part.uniform_(generator=generator)
        noise[index].normal_(generator=generator)
        column[10].uniform_(generator=generator)
    # The three colour casts were sampled image by image.
    casts = uniforms[:, 4:7].reshape(sets, batch, 3)
    rows = torch.cat([uniforms[:, :4].mT, casts, uniforms[:, 7:].mT], dim=-1)
    return rows.flatten(0, 1), light.flatten(0, 1) * 0.6 - 0.3, noise.flatten(0, 1)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with a standard deviation (B, 1, 1, 1) in pixels for each image; 0 changes nothing."""
    batch, channels, height, width = images.shape
    steps = torch.arange(-3, 4, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-0.5 * (steps / sigma.view(-1, 1).clamp_min(1e-3)) ** 2)
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(channels, dim=0)  # (B * C, 7)
    flat = F.pad(images.reshape(1, batch * channels, height, width), (3, 3, 3, 3), mode="reflect")
    flat = F.conv2d(flat, kernel.view(-1, 1, 1, 7), groups=batch * channels)
    flat = F.conv2d(flat, kernel.view(-1, 1, 7, 1), groups=batch * channels)
    return flat.view(batch, channels, height, width)
