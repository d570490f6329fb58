"""Pairs of views of a texture with known dense displacement."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from support.photo_cases import make_photo
from ucn.features.extractor import Extractor
from ucn.features.pair_matcher import PairMatcher
from ucn.geometry.coords import pixel_grid
from ucn.geometry.sampling import sample_image


@dataclass(frozen=True)
class DeformedViews:
    """Two views of a texture.

    Attributes:
        image0: (3, H, W).
        image1: (3, H, W).
        points0: (N, 2) points of image 0 that are visible in image 1.
        points1: (N, 2) the corresponding points of image 1.
    """

    image0: Tensor
    image1: Tensor
    points0: Tensor
    points1: Tensor


def deform_texture(
    size_hw: tuple[int, int], shift_xy: tuple[float, float], waves: float = 0.0, seed: int = 0
) -> DeformedViews:
    """A texture, and the same moved by a shift plus sine waves of amplitude `waves`, 60 pixels long."""
    height, width = size_hw
    image1 = make_photo(height, width, seed=seed, grain=8)
    places = pixel_grid(size_hw)
    turns = places * (math.tau / 60)
    moved = (
        places + torch.tensor(shift_xy) + waves * torch.stack([turns[..., 1].sin(), turns[..., 0].sin()], -1)
    )
    image0 = sample_image(image1[None], moved[None], "border")[0]
    margin, inner = 12, torch.tensor([width, height]) - 13
    is_seen = ((moved >= margin) & (moved <= inner) & (places >= margin) & (places <= inner)).all(dim=-1)
    return DeformedViews(image0, image1, places[is_seen][::37], moved[is_seen][::37])


def find_errors(
    extractor: Extractor, matcher: PairMatcher, views: DeformedViews, use_refinement: bool = True
) -> Tensor:
    """End-point errors (N,) in pixels."""
    map0, map1 = extractor.extract(views.image0).map, extractor.extract(views.image1).map
    found = matcher.align(map0, map1).find(views.points0, use_refinement)
    errors: Tensor = (found - views.points1).norm(dim=-1)
    return errors
