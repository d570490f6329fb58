"""The Siamese network as a method: descriptors of patches on a grid, and decisions on pairs of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.features.extractor import make_features, read_pixels
from ucn.features.pair_matcher import Alignment
from ucn.geometry.coords import cell_centres
from ucn.geometry.sampling import sample_descriptors
from ucn.paper.siamese.network import DecisionNetwork, SiameseConfig, SiameseNetwork, cut_patches
from ucn.types import FeatureMap, Features, ImageLike

STRIDE, OFFSET = 8, 4
"""Pixels between patches, and of the first: coarser than other methods, since every patch costs a forward
pass of the branch and every pair of patches one of the decision layers."""
FINE_STEPS = 5
"""Positions along each side of the best cell, from edge to edge, that refinement compares."""
_PATCHES_AT_ONCE = 128
_PAIRS_AT_ONCE = 2**13


def format_title(config: SiameseConfig) -> str:
    """What the method is, for reports."""
    return (
        f"Siamese patch-similarity network (Zagoruyko and Komodakis 2015): patches of {config.patch} px, "
        f"{STRIDE} px apart, through GoogLeNet's conv1 to inception_4a to {config.dim} dimensions each; of "
        "all patches of image 1 the one that decision layers find most similar"
    )


class PatchExtractor:
    """Descriptors of patches: the extractor of the method.

    Attributes:
        model: the network.
        device: where it runs.
    """

    def __init__(self, model: SiameseNetwork, device: torch.device | str = "cpu") -> None:
        """Moves a network to a device.

        Args:
            model: the network; it is moved in place.
            device: where it runs.
        """
        self.model = model.to(device).eval()
        self.device = torch.device(device)

    def extract(self, image: ImageLike) -> Features:
        """Computes a descriptor of the patch around each cell; patches may extend beyond the border."""
        pixels = read_pixels(image).to(self.device)
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        h, w = ((side - OFFSET + STRIDE - 1) // STRIDE for side in image_hw)
        grid = FeatureMap(pixels.new_zeros(1, 1, h, w), STRIDE, OFFSET, image_hw)
        found = self.compute_at(pixels, cell_centres(grid))
        return make_features(found.T.reshape(-1, h, w), image_hw, STRIDE, OFFSET)

    @torch.no_grad()
    def compute_at(self, pixels: Tensor, points: Tensor) -> Tensor:
        """Descriptors (N, D) of the patches around points (N, 2) of an image (3, H, W) on the device."""
        found = [pixels.new_zeros(0, self.model.config.dim)]
        for some in torch.split(points, _PATCHES_AT_ONCE):
            patches = cut_patches(pixels[None], some[None], self.model.config.patch)[0]
            found.append(self.model.branch(patches))
        return torch.cat(found)


@dataclass(frozen=True, eq=False)
class SiameseMatcher:
    """Matches each point to the cell of image 1 whose patch the decision layers find most similar.

    Attributes:
        decision: on the device of the maps.
    """

    decision: DecisionNetwork

    def align(self, map0: FeatureMap, map1: FeatureMap, is_allowed1: Tensor | None = None) -> Alignment:
        """Does no work before a point is queried."""
        return _Decided(self.decision, map0, map1, is_allowed1)


@dataclass(frozen=True, eq=False)
class _Decided:
    decision: DecisionNetwork
    map0: FeatureMap
    map1: FeatureMap
    is_allowed1: Tensor | None

    def find(self, points0: Tensor, use_refinement: bool) -> Tensor:
        """The centre of the most similar cell; refined, the most similar of `FINE_STEPS`² positions in it."""
        descriptors0 = sample_descriptors(self.map0, points0[None])[0]  # (N, D)
        descriptors1, centres1 = self.map1.features[0].flatten(1).T, cell_centres(self.map1)
        if self.is_allowed1 is not None:
            descriptors1, centres1 = descriptors1[self.is_allowed1], centres1[self.is_allowed1]
        if not len(centres1):
            return torch.full_like(points0, torch.nan)
        points1 = centres1[find_best(self.decision, descriptors0, descriptors1)].to(points0.dtype)
        return self._refine(descriptors0, points1) if use_refinement else points1

    @torch.no_grad()
    def _refine(self, descriptors0: Tensor, points1: Tensor) -> Tensor:
        """The most similar position (N, 2) in each cell, by interpolated descriptors."""
        steps = torch.linspace(-0.5, 0.5, FINE_STEPS, device=points1.device) * self.map1.stride
        around = torch.cartesian_prod(steps, steps)  # (F, 2)
        moved = [points1[:0]]
        for own, centres in zip(torch.split(descriptors0, 512), torch.split(points1, 512), strict=True):
            candidates = centres[:, None] + around  # (n, F, 2)
            theirs = sample_descriptors(self.map1, candidates.flatten(0, 1)[None])[0]
            similarities = self.decision(own[:, None], theirs.view(len(own), len(around), own.shape[1]))
            best = similarities.argmax(dim=1)[:, None, None].expand(-1, 1, 2)
            moved.append(candidates.gather(1, best)[:, 0])
        return torch.cat(moved)


@torch.no_grad()
def find_best(decision: DecisionNetwork, descriptors0: Tensor, descriptors1: Tensor) -> Tensor:
    """The most similar of M descriptors to each of N: N × M decisions, in bounded memory.

    Args:
        decision: the layers.
        descriptors0: (N, D).
        descriptors1: (M, D), M at least 1.

    Returns:
        (N,) int64 indices; of equal similarities, the first.
    """
    rows = max(1, _PAIRS_AT_ONCE // len(descriptors1))
    best = torch.empty(len(descriptors0), dtype=torch.int64, device=descriptors0.device)
    for row in range(0, len(best), rows):
        some = descriptors0[row : row + rows, None]
        best[row : row + rows] = decision(some, descriptors1[None]).argmax(dim=1)
    return best
