"""Strong illumination changes of single images, and global colour changes of pairs.

`photometric` makes the changes between two snapshots; `change_illumination` those between day and night:
other lamps of other colours, some in the image, shadows, haze, relief lit from another side, exposure, tone
curves, and local contrast reversal. `change_colours` gives an image another palette, so that it serves as
several.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.augment.photometric import blur
from ucn.data.augment.random import uniform_columns

_RANGES = {
    "light": (-0.4, 1.2, 1),
    "shadow": (-1.0, 1.0, 1),
    "shadow_level": (0.35, 0.65, 1),
    "shadow_edge": (math.log(6.0), math.log(80.0), 1),
    "relief": (-5.0, 5.0, 1),
    "relief_angle": (0.0, 2 * math.pi, 1),
    "exposure": (-1.1, 0.9, 1),
    "restored": (0.0, 1.0, 1),
    "noise": (0.0, 0.05, 1),
    "tone": (-0.85, 0.85, 3),
    "blur": (-3.0, 1.8, 1),
    "tint": (0.1, 0.4, 1),
    "haze": (0.2, 0.8, 1),
    "haze_level": (0.4, 1.0, 1),
    "glow": (0.3, 1.0, 1),
    "glow_place": (0.0, 1.0, 2),
    "glow_size": (math.log(0.03), math.log(0.12), 1),
    "reversal": (-2.5, 2.5, 1),
    "reversal_phase": (0.0, 2 * math.pi, 1),
    "is_used": (0.0, 1.0, 10),
}
_SHARES = {"light": 0.6, "shadow": 0.35, "relief": 0.4, "exposure": 0.5, "tone": 0.4, "blur": 1.0}
_SHARES |= {"tint": 0.3, "haze": 0.2, "glow": 0.2, "reversal": 0.3}
"""Fraction of the images that get each change."""
_COLOUR_RANGES = {
    "order": (0.0, 1.0, 3),
    "mix": (-2.0, 2.0, 9),
    "mixed": (0.0, 0.6, 1),
    "gamma": (-0.5, 0.5, 1),
    "is_used": (0.0, 1.0, 2),
}
_NEGATIVE_SHARE = 0.15
"""Fraction of the recoloured images that become negatives."""


def change_illumination(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Changes the illumination of each image independently.

    Args:
        images: (B, 3, H, W) in [0, 1], each side at least 4.
        strength: 0 leaves the images unchanged; 1 is about the change from noon to dusk.
        generator: random generator, on the images' device.

    Returns:
        (B, 3, H, W) in [0, 1].
    """
    if strength == 0 or not len(images):
        return images
    amounts = _sample_amounts(len(images), strength, generator)
    lit = blur(images, amounts["blur"].clamp_min(0))
    lit = _reverse_tones(lit, amounts, generator)
    lit = lit * _sample_log_light(lit, amounts, generator).clamp(-4, 4).exp()
    lit = lit + amounts["glow"] * _glow(lit, amounts)
    thickness = (_sample_field(lit, 3, generator) / 2 + 0.5).clamp(0, 1) * amounts["haze"]
    lit = torch.lerp(lit, amounts["haze_level"].expand_as(lit), thickness)
    grain = torch.randn(lit.shape, generator=generator, device=lit.device)
    lit = (lit + grain * amounts["noise"]).clamp(0, 1)
    # Some cameras restore the brightness, which amplifies the noise of a dark image.
    mean = lit.mean(dim=(1, 2, 3), keepdim=True).clamp_min(0.02)
    gain = (0.45 / mean).clamp(0.5, 4.0)
    lit = (lit * torch.lerp(torch.ones_like(gain), gain, amounts["restored"])).clamp(0, 1)
    # Monotonic while the factor is within (-1, 1): a curve that flattens or steepens the middle tones.
    return lit + amounts["tone"] * torch.sin(2 * math.pi * lit) / (2 * math.pi)


def change_colours(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Changes the colours of images, equally in all views of one, so that one image serves as many.

    Channels are permuted and mixed, gamma changes, and some images become negatives.

    Args:
        images: (V, B, 3, H, W) in [0, 1]: V views of each of B images.
        share: fraction of the B images to change, in [0, 1].
        generator: random generator, on the images' device.

    Returns:
        (V, B, 3, H, W) in [0, 1].
    """
    batch = images.shape[1]
    if share == 0 or not batch:
        return images
    amounts = uniform_columns((batch,), _COLOUR_RANGES, generator)
    order = F.one_hot(amounts["order"].argsort(dim=-1), 3).to(images.dtype)  # (B, 3, 3)
    mix = amounts["mix"].view(batch, 3, 3).softmax(dim=-1)
    # Rows that sum to 1 keep colours within [0, 1], and grey stays grey.
    matrix = torch.lerp(order, mix, amounts["mixed"][:, None, None])
    changed = torch.einsum("bij,vbjhw->vbihw", matrix, images).clamp(1e-4, 1)
    changed = changed ** amounts["gamma"].exp()[:, None, None, None]
    is_negative = (amounts["is_used"][:, 1] < _NEGATIVE_SHARE)[:, None, None, None]
    changed = torch.where(is_negative, 1 - changed, changed)
    return torch.where((amounts["is_used"][:, 0] < share)[:, None, None, None], changed, images)


def _sample_amounts(batch: int, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    """The amount of each change for each image, (B, C, 1, 1); 0 where it gets none."""
    columns = uniform_columns((batch,), _RANGES, generator)
    is_used = columns.pop("is_used")
    amounts = {name: value.view(batch, -1, 1, 1) for name, value in columns.items()}
    for index, (name, share) in enumerate(_SHARES.items()):
        use = (is_used[:, index] < share).view(batch, 1, 1, 1)
        amounts[name] = amounts[name] * use * strength
    # Beyond 1 the curve would not be monotonic.
    amounts["tone"] = amounts["tone"].clamp(-0.95, 0.95)
    amounts["noise"] = amounts["noise"] * strength
    amounts["haze"] = amounts["haze"].clamp_max(0.95)
    amounts["restored"] = (amounts["restored"] > 0.5) * amounts["restored"] * min(strength, 1.0)
    return amounts


def _sample_log_light(images: Tensor, amounts: dict[str, Tensor], generator: torch.Generator) -> Tensor:
    """Logarithm (B, 3, H, W) of the factor by which all lights together multiply the images."""
    tints = _sample_field(images, 3, generator, channels=3) * amounts["tint"]
    lamps = _sample_field(images, 4, generator) * amounts["light"].clamp_min(0)
    hills = _sample_field(images, 6, generator) / 2 + 0.5
    shade = torch.sigmoid((hills - amounts["shadow_level"]) * amounts["shadow_edge"].exp())
    shadows = -1.4 * amounts["shadow"].abs() * shade
    relief = amounts["relief"] * _slope(images, amounts["relief_angle"])
    return tints + lamps + shadows + relief + amounts["exposure"]


def _reverse_tones(images: Tensor, amounts: dict[str, Tensor], generator: torch.Generator) -> Tensor:
    """Reverses bright and dark locally, as lit windows and wet streets do at night."""
    mask = (_sample_field(images, 4, generator) / 2 + 0.5).clamp(0, 1)
    # The curve falls where the product of amount, mask and cosine is below -1.
    wave = torch.sin(2 * math.pi * images + amounts["reversal_phase"]) / (2 * math.pi)
    return (images + amounts["reversal"] * mask * wave).clamp(0, 1)


def _glow(images: Tensor, amounts: dict[str, Tensor]) -> Tensor:
    """The glow of a lamp in the image, (B, 1, H, W): 1 at its centre, decreasing around it."""
    height, width = images.shape[-2:]
    y = (torch.arange(height, device=images.device).view(1, 1, -1, 1) + 0.5) / height
    x = (torch.arange(width, device=images.device).view(1, 1, 1, -1) + 0.5) / width
    place_x, place_y = amounts["glow_place"][:, :1], amounts["glow_place"][:, 1:]
    squared = (x - place_x).square() + (y - place_y).square()
    return torch.exp(-0.5 * squared / amounts["glow_size"].exp().square())


def _sample_field(images: Tensor, knots: int, generator: torch.Generator, channels: int = 1) -> Tensor:
    """A smooth random field for each image, (B, C, H, W), through values in [-1, 1) at `knots` per side."""
    shape = (len(images), channels, knots, knots)
    grid = torch.rand(shape, generator=generator, device=generator.device) * 2 - 1
    return F.interpolate(grid, images.shape[-2:], mode="bicubic", align_corners=False)


def _slope(images: Tensor, angle: Tensor) -> Tensor:
    """The slope (B, 1, H, W) of brightness in the direction of an angle (B, 1, 1, 1), radians."""
    height = F.avg_pool2d(images.mean(dim=1, keepdim=True), 3, stride=1, padding=1, count_include_pad=False)
    along_y, along_x = torch.gradient(height, dim=(-2, -1))
    return along_x * angle.cos() + along_y * angle.sin()
