"""Settings of synthetic pairs, which are made from photographs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ucn.config.base import Config, require, require_at_least, require_at_most, require_within

_RANGES: dict[str, tuple[float, float]] = {
    "upright_share": (0, 1),
    "upright_degrees": (0, 180),
    "perspective": (0, 0.4),
    "illumination": (0, 2),
    "recolour": (0, 1),
    "mirror": (0, 1),
    "blend_share": (0, 1),
    "collage_share": (0, 1),
    "crop_degrees": (0, 180),
    "crop_stretch": (1, 2),
    "affine_share": (0, 1),
    "spline_share": (0, 1),
    "parallax_share": (0, 1),
    "stretch": (1, 4),
    "spline": (0, 0.19),
    "spline_grid": (3, 8),
    "parallax": (0, 0.5),
    "parallax_planes": (2, 5),
}


@dataclass(frozen=True)
class SyntheticConfig(Config):
    """Synthetic pairs: two views of a photograph under random warps and photometric changes.

    The views are related by a homography, except for the shares of affine maps, splines and parallax.
    """

    side: int = 256
    """Side of both square views, pixels, a multiple of 32."""
    points: int = 1000
    """Correspondences per pair."""
    upright_share: float = 0.5
    """Share of pairs rotated by at most `upright_degrees`, in [0, 1]; the rest by up to 180 degrees."""
    upright_degrees: float = 30.0
    """Largest rotation of the upright pairs in degrees, in [0, 180]."""
    max_scale: float = 2.0
    """Largest ratio of the scales of the two views, at least 1; sampled log-uniformly, in either
    direction."""
    perspective: float = 0.2
    """Largest displacement of corners by perspective, as a share of the side, in [0, 0.4]."""
    zoom: tuple[float, float] = (0.6, 1.25)
    """Source pixels per pixel of view 0, smallest and largest."""
    photometric: float = 1.0
    """Strength of photometric augmentation (colour, exposure, blur, noise); 0 switches it off."""
    illumination: float = 0.0
    """Strength of illumination changes (lamps, shadows, relief, exposure, tones), in [0, 2]; 0: none."""
    recolour: float = 0.0
    """Share of pairs, in [0, 1], whose colours are changed, in both views alike."""
    mirror: float = 0.0
    """Share of photographs, in [0, 1], that are mirrored before both views are made from them."""
    blend_share: float = 0.0
    """Share of photographs, in [0, 1], that are blended with a second one, as in a double exposure."""
    collage_share: float = 0.0
    """Share of photographs, in [0, 1], that are replaced by a collage of many."""
    collage_zoom: tuple[float, float] = (0.5, 1.2)
    """Pixels of a photograph per pixel of its piece of a collage, smallest and largest."""
    crop_degrees: float = 0.0
    """Largest rotation of photographs in degrees, in [0, 180], before both views are made from them."""
    crop_stretch: float = 1.0
    """Largest change of the aspect ratio of photographs, in [1, 2], before both views are made from them."""
    border: Literal["mirror", "other"] = "mirror"
    """What views show outside a photograph: its mirror image, or another photograph."""
    affine_share: float = 0.0
    """Share of pairs, in [0, 1], whose views are related by an affine map."""
    spline_share: float = 0.0
    """Share of pairs, in [0, 1], whose views are related by a homography and a thin-plate spline."""
    parallax_share: float = 0.0
    """Share of pairs, in [0, 1], with parallax between several planes; the three shares sum to at most 1."""
    stretch: float = 2.0
    """Largest ratio of the scales along and across a random axis of affine pairs, in [1, 4]."""
    spline: float = 0.15
    """Largest displacement of a spline's control points, as a share of their spacing, in [0, 0.19], where it
    cannot fold."""
    spline_grid: int = 4
    """Control points of a spline along each side, 3..8."""
    parallax: float = 0.2
    """Largest displacement of the nearest plane against the background, as a share of the side, in
    [0, 0.5]."""
    parallax_planes: int = 3
    """Largest number of planes of a scene with its background, 2..5; the smallest is 2."""

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        super().__post_init__()
        require(self.side >= 64 and self.side % 32 == 0, "side must be a multiple of 32 from 64", self.side)
        for name in ("zoom", "collage_zoom"):
            low, high = getattr(self, name)
            require(0 < low <= high, f"{name} must be two increasing positive numbers", (low, high))
        require_at_least(self, points=1, max_scale=1, photometric=0)
        require_at_most(self, side=8192, points=1_000_000)
        require_within(self, _RANGES)
        shares = self.affine_share + self.spline_share + self.parallax_share
        rule = "parallax_share must leave the sum with affine_share and spline_share at most 1"
        require(shares <= 1 + 1e-9, rule, shares)
