"""Synthetic scenes of textured planes at several depths, with parallax, occlusion and motion boundaries.

The planes lie in front of a background; each has a random outline and shows its own source image. Between two
cameras, the homography of any plane is that of one plane plus the epipole times a row vector, the plane's
inverse depth over the image (Hartley and Zisserman, Multiple View Geometry, section 13.1). So the homography
of the background is sampled as for any pair, then an epipole, and an inverse depth for each plane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.random import uniform_columns
from ucn.data.synthetic.outlines import Outlines, sample_outlines
from ucn.geometry.warp import warp_points

_MARGIN = 2.0
"""Points closer than this to an outline, in pixels of the coarser view, mix the colours of two planes."""


@dataclass(frozen=True)
class Scenes:
    """B scenes of P planes, ordered from the background to the nearest plane.

    Attributes:
        sources: (B, P) int64, the source image of each plane.
        view0_to_source: (B, P, 3, 3) homographies.
        view1_to_view0: (B, P, 3, 3) homography of each plane.
        in_front: (B,) int64, the number of planes in front of the background; the others are empty.
        outlines: outlines in view 0 of all planes but the background.
        scales1: (B, P - 1) pixels of view 0 per pixel of view 1 on each of these.
    """

    sources: Tensor
    view0_to_source: Tensor
    view1_to_view0: Tensor
    in_front: Tensor
    outlines: Outlines
    scales1: Tensor

    @property
    def shown_sources(self) -> Tensor:
        """(B, P) int64: the source images, -1 for empty planes."""
        rank = torch.arange(self.sources.shape[1], device=self.sources.device)
        return self.sources.where(rank <= self.in_front[:, None], -1)

    def compose(self, colours: Tensor, grid: Tensor) -> Tensor:
        """Renders both views: nearer planes over farther ones.

        Args:
            colours: (B * P, 3, 2, H, W), the colours of each plane in view 0 and view 1.
            grid: (H * W, 2), the pixels of a view.

        Returns:
            (B, 3, 2, H, W).
        """
        batch, planes = self.sources.shape
        in_view0 = grid.expand(batch * (planes - 1), -1, -1)
        in_view0 = torch.cat(
            [in_view0, warp_points(in_view0, self.view1_to_view0[:, 1:].flatten(0, 1))], dim=1
        )
        depth_inside = self.outlines.depth_inside(in_view0.view(batch, planes - 1, -1, 2))
        depth_inside = depth_inside.view(batch, planes - 1, 1, *colours.shape[-3:])
        # Edges are one pixel of their view wide.
        widths = torch.stack([torch.ones_like(self.scales1), self.scales1], dim=-1)
        cover = (depth_inside / widths[:, :, None, :, None, None] + 0.5).clamp(0, 1)
        colours = colours.view(batch, planes, *colours.shape[1:])
        composed = colours[:, 0]
        for plane in range(1, planes):
            composed = torch.lerp(composed, colours[:, plane], cover[:, plane - 1])
        return composed

    def follow(self, points0: Tensor, on_each1: Tensor, is_on_each: Tensor) -> tuple[Tensor, Tensor]:
        """Maps points of view 0 to view 1 by the plane that is visible there.

        Args:
            points0: (B, N, 2) points of view 0.
            on_each1: (B * P, N, 2), the points mapped by the homography of each plane.
            is_on_each: (B * P, N) bool, which of these are on the plane's image and inside view 1.

        Returns:
            (B, N, 2) points of view 1, and bool (B, N): view 1 shows the same plane there, the point is on
            its image, and no outline is near.
        """
        batch, planes = self.sources.shape
        margin = _MARGIN * self.scales1.clamp_min(1)[..., None]
        in_front0 = points0[:, None].expand(-1, planes - 1, -1, -1)  # (B, F, N, 2)
        front0, is_clear0 = find_front(self.outlines.depth_inside(in_front0), margin)
        take = front0[:, None]
        points1 = on_each1.view(batch, planes, -1, 2).take_along_dim(take[..., None], dim=1).squeeze(1)
        is_on_it = is_on_each.view(batch, planes, -1).take_along_dim(take, dim=1).squeeze(1)

        repeated = points1[:, None].expand_as(in_front0).flatten(0, 1)
        back0 = warp_points(repeated, self.view1_to_view0[:, 1:].flatten(0, 1)).view_as(in_front0)
        front1, is_clear1 = find_front(self.outlines.depth_inside(back0), margin)
        return points1, (front0 == front1) & is_clear0 & is_clear1 & is_on_it


def find_front(depth_inside: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """The visible plane of each point, (B, N) int64, 0 for the background, and whether no outline is near.

    Args:
        depth_inside: (B, F, N) signed distance to the outlines of the planes in front, the nearest last.
        margin: (B, F, 1) pixels within which an outline is near.
    """
    rank = torch.arange(1, depth_inside.shape[1] + 1, device=depth_inside.device)[:, None]
    front = ((depth_inside > 0) * rank).amax(1)
    is_mixed = (depth_inside.abs() <= margin) & (rank >= front[:, None])
    return front, ~is_mixed.any(1)


def sample_scene_sources(
    first: Tensor, count: int, config: SyntheticConfig, generator: torch.Generator
) -> Tensor:
    """Source images (B, P) of the planes of scenes, beginning with `first` (B,); distinct where P exist."""
    planes, device = config.parallax_planes, generator.device
    largest = max(1, (count - 1) // (planes - 1))
    step = 1 + torch.randint(largest, (len(first), 1), generator=generator, device=device)
    return (first[:, None] + step * torch.arange(planes, device=device)) % count


def sample_scenes(
    sources: Tensor,
    view0_to_source: Tensor,
    background: Tensor,
    config: SyntheticConfig,
    strength: float,
    generator: torch.Generator,
) -> Scenes:
    """Samples scenes.

    Args:
        sources: (B, P) int64, the source images of their planes.
        view0_to_source: (B, P, 3, 3) homographies.
        background: (B, 3, 3), homography of the background from view 1 to view 0.
        config: the ranges.
        strength: fraction of the ranges, in [0, 1].
        generator: random generator.
    """
    batch, planes = sources.shape
    in_front = torch.randint(1, planes, (batch,), generator=generator, device=generator.device)
    homographies = _sample_plane_homographies(background, in_front, config, strength, generator)
    outlines = sample_outlines(homographies[:, 1:], in_front, config.side, generator)
    scales1 = scales_at_centre(homographies[:, 1:], config.side)
    return Scenes(sources, view0_to_source, homographies, in_front, outlines, scales1)


def _sample_plane_homographies(
    background: Tensor, in_front: Tensor, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> Tensor:
    """Homographies (B, P, 3, 3) of all planes from view 1 to view 0."""
    batch, planes, side = len(in_front), config.parallax_planes, float(config.side)
    centre, reach = (side - 1) / 2, config.parallax * strength
    # With depth 1 at the centre of view 1, an inverse depth of 1 moves that point by the epipole.
    middle = background[:, 2, :2].sum(-1) * centre + background[:, 2, 2]
    background = background / middle.clamp_min(0.1)[:, None, None]

    camera = uniform_columns(
        (batch,), {"direction": (0.0, 2 * math.pi, 1), "forward": (-0.5, 0.5, 1)}, generator
    )
    sideways = torch.stack([camera["direction"].cos(), camera["direction"].sin()], dim=-1) * side
    forward = camera["forward"][:, None]
    epipole = torch.cat([sideways + centre * forward, forward], dim=-1) * reach

    # Planes are at least 0.4 / in_front apart and tilt by at most half of that, so that they never cross.
    ranges = {"lag": (0.0, 0.6, 1), "tilt": (-0.2, 0.2, 2)}
    columns = uniform_columns((batch, planes), ranges, generator)
    rank = torch.arange(planes, device=in_front.device)
    nearness, tilt = rank - columns["lag"], columns["tilt"] / side
    inverse_depth = torch.cat([tilt, (nearness - tilt.sum(-1) * centre)[..., None]], dim=-1)
    inverse_depth = inverse_depth * (rank > 0)[:, None] / in_front[:, None, None]
    return background[:, None] + epipole[:, None, :, None] * inverse_depth[:, :, None]


def scales_at_centre(homographies: Tensor, side: int) -> Tensor:
    """Linear scale (...) of homographies (..., 3, 3) at the centre of a view: the root of the area ratio."""
    centre = (side - 1) / 2
    depth = (homographies[..., 2, :2].sum(-1) * centre + homographies[..., 2, 2]).abs().clamp_min(0.1)
    # The Jacobian of a homography has the determinant det(H) / depth³.
    areas: Tensor = torch.linalg.det(homographies).abs() / depth**3
    return areas.sqrt()
