"""Hard changes of light, image by image, and other colours for a photograph as a whole.

`photometric` makes the changes between two snapshots; `relight` those between day and night: other lamps of
other colours, some in the picture, shadows, haze, relief lit from another side, exposure, tone curves, bright
and dark turned about in places. `recolour` makes several photographs of one.
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
"""Of the images that each change is made to."""
_COLOUR_RANGES = {
    "order": (0.0, 1.0, 3),
    "mix": (-2.0, 2.0, 9),
    "mixed": (0.0, 0.6, 1),
    "gamma": (-0.5, 0.5, 1),
    "is_used": (0.0, 1.0, 2),
}
_NEGATIVE_SHARE = 0.15
"""Of the photographs with other colours that become negatives."""


def relight(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Lights each image anew, on its own.

    Args:
        images: (B, 3, H, W) in [0, 1], each side at least 4.
        strength: 0 leaves the images as they are; 1 goes from noon to dusk.
        generator: source of all draws, on the images' device.

    Returns:
        (B, 3, H, W) in [0, 1].
    """
    if strength == 0 or not len(images):
        return images
    drawn = _draw(len(images), strength, generator)
    relit = blur(images, drawn["blur"].clamp_min(0))
    relit = _reverse_tones(relit, drawn, generator)
    relit = relit * _draw_log_light(relit, drawn, generator).clamp(-4, 4).exp()
    relit = relit + drawn["glow"] * _glow(relit, drawn)
    thickness = (_draw_field(relit, 3, generator) / 2 + 0.5).clamp(0, 1) * drawn["haze"]
    relit = torch.lerp(relit, drawn["haze_level"].expand_as(relit), thickness)
    grain = torch.randn(relit.shape, generator=generator, device=relit.device)
    relit = (relit + grain * drawn["noise"]).clamp(0, 1)
    # Some cameras bring the brightness back, and the noise of a dark picture comes up with it.
    mean = relit.mean(dim=(1, 2, 3), keepdim=True).clamp_min(0.02)
    gain = (0.45 / mean).clamp(0.5, 4.0)
    relit = (relit * torch.lerp(torch.ones_like(gain), gain, drawn["restored"])).clamp(0, 1)
    # Rises everywhere while its factor is within (-1, 1): a curve that makes middle tones flatter or steeper.
    return relit + drawn["tone"] * torch.sin(2 * math.pi * relit) / (2 * math.pi)


def recolour(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Gives photographs other colours, the same ones in all views, so that one photograph serves as many.

    Channels change places and mix, the brightness curve bends, and some become negatives.

    Args:
        images: (V, B, 3, H, W) in [0, 1]: V views of each of B photographs.
        share: of the photographs to change, in [0, 1].
        generator: source of all draws, on the images' device.

    Returns:
        (V, B, 3, H, W) in [0, 1].
    """
    batch = images.shape[1]
    if share == 0 or not batch:
        return images
    drawn = uniform_columns((batch,), _COLOUR_RANGES, generator)
    order = F.one_hot(drawn["order"].argsort(dim=-1), 3).to(images.dtype)  # (B, 3, 3)
    mix = drawn["mix"].view(batch, 3, 3).softmax(dim=-1)
    # Rows that sum to 1 keep colours within [0, 1] and grey grey.
    matrix = torch.lerp(order, mix, drawn["mixed"][:, None, None])
    changed = torch.einsum("bij,vbjhw->vbihw", matrix, images).clamp(1e-4, 1)
    changed = changed ** drawn["gamma"].exp()[:, None, None, None]
    is_negative = (drawn["is_used"][:, 1] < _NEGATIVE_SHARE)[:, None, None, None]
    changed = torch.where(is_negative, 1 - changed, changed)
    return torch.where((drawn["is_used"][:, 0] < share)[:, None, None, None], changed, images)


def _draw(batch: int, strength: float, generator: torch.Generator) -> dict[str, Tensor]:
    """How much of each change each image gets, (B, C, 1, 1); 0 where it gets none."""
    drawn = uniform_columns((batch,), _RANGES, generator)
    is_used = drawn.pop("is_used")
    amounts = {name: value.view(batch, -1, 1, 1) for name, value in drawn.items()}
    for index, (name, share) in enumerate(_SHARES.items()):
        use = (is_used[:, index] < share).view(batch, 1, 1, 1)
        amounts[name] = amounts[name] * use * strength
    # A factor beyond 1 would make the curve fall.
    amounts["tone"] = amounts["tone"].clamp(-0.95, 0.95)
    amounts["noise"] = amounts["noise"] * strength
    amounts["haze"] = amounts["haze"].clamp_max(0.95)
    amounts["restored"] = (amounts["restored"] > 0.5) * amounts["restored"] * min(strength, 1.0)
    return amounts


def _draw_log_light(images: Tensor, drawn: dict[str, Tensor], generator: torch.Generator) -> Tensor:
    """Logarithms (B, 3, H, W) of what all lights together multiply images by: as logarithms they add up."""
    tints = _draw_field(images, 3, generator, channels=3) * drawn["tint"]
    lamps = _draw_field(images, 4, generator) * drawn["light"].clamp_min(0)
    hills = _draw_field(images, 6, generator) / 2 + 0.5
    shade = torch.sigmoid((hills - drawn["shadow_level"]) * drawn["shadow_edge"].exp())
    shadows = -1.4 * drawn["shadow"].abs() * shade
    relief = drawn["relief"] * _slope(images, drawn["relief_angle"])
    return tints + lamps + shadows + relief + drawn["exposure"]


def _reverse_tones(images: Tensor, drawn: dict[str, Tensor], generator: torch.Generator) -> Tensor:
    """Turns bright and dark about in places, as lit windows do at night, and wet streets."""
    mask = (_draw_field(images, 4, generator) / 2 + 0.5).clamp(0, 1)
    # The curve falls wherever the product of amount, mask and cosine is below -1.
    wave = torch.sin(2 * math.pi * images + drawn["reversal_phase"]) / (2 * math.pi)
    return (images + drawn["reversal"] * mask * wave).clamp(0, 1)


def _glow(images: Tensor, drawn: dict[str, Tensor]) -> Tensor:
    """The light of a lamp in the picture, (B, 1, H, W): 1 where it stands, less and less round it."""
    height, width = images.shape[-2:]
    y = (torch.arange(height, device=images.device).view(1, 1, -1, 1) + 0.5) / height
    x = (torch.arange(width, device=images.device).view(1, 1, 1, -1) + 0.5) / width
    place_x, place_y = drawn["glow_place"][:, :1], drawn["glow_place"][:, 1:]
    squared = (x - place_x).square() + (y - place_y).square()
    return torch.exp(-0.5 * squared / drawn["glow_size"].exp().square())


def _draw_field(images: Tensor, knots: int, generator: torch.Generator, channels: int = 1) -> Tensor:
    """A smooth field for each image, (B, C, H, W), through numbers of [-1, 1) at so many knots a side."""
    shape = (len(images), channels, knots, knots)
    grid = torch.rand(shape, generator=generator, device=generator.device) * 2 - 1
    return F.interpolate(grid, images.shape[-2:], mode="bicubic", align_corners=False)


def _slope(images: Tensor, angle: Tensor) -> Tensor:
    """How steeply brightness rises towards an angle (B, 1, 1, 1), as if bright were high: (B, 1, H, W)."""
    height = F.avg_pool2d(images.mean(dim=1, keepdim=True), 3, stride=1, padding=1, count_include_pad=False)
    along_y, along_x = torch.gradient(height, dim=(-2, -1))
    return along_x * angle.cos() + along_y * angle.sin()
