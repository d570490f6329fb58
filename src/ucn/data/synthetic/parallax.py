"""Scenes of textured planes at different depths, seen by a camera that moves: pairs with motion boundaries.

The planes lie in front of a background, each cut to a random outline and showing a photograph of its own.
Between two cameras every plane of a scene induces the homography of one of them plus the epipole times a row
vector, the plane's inverse depth over the image (Hartley and Zisserman, Multiple View Geometry, section
13.1). So the background's homography is drawn as for any pair, then an epipole, and an inverse depth for
each plane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.random import uniform_columns
from ucn.data.synthetic.outlines import Outlines, draw_outlines
from ucn.geometry.warp import warp_points

_MARGIN = 2.0
"""Points nearer than this to an outline, in pixels of the coarser view, show colours of both planes."""


@dataclass(frozen=True)
class Scenes:
    """P planes each, the background first and every other one nearer than those before it.

    Attributes:
        photographs: (B, P) int64, what each plane shows.
        view0_to_source: (B, P, 3, 3).
        view1_to_view0: (B, P, 3, 3), the homography of each plane.
        in_front: (B,) int64: how many planes before the background there are; the rest is empty.
        outlines: of all planes but the background, in view 0.
        scales1: (B, P - 1) pixels of view 0 per pixel of view 1 on each of these.
    """

    photographs: Tensor
    view0_to_source: Tensor
    view1_to_view0: Tensor
    in_front: Tensor
    outlines: Outlines
    scales1: Tensor

    @property
    def shown_photographs(self) -> Tensor:
        """(B, P) int64: the photographs, with -1 for planes that are empty."""
        rank = torch.arange(self.photographs.shape[1], device=self.photographs.device)
        return self.photographs.where(rank <= self.in_front[:, None], -1)

    def compose(self, colours: Tensor, grid: Tensor) -> Tensor:
        """Lays nearer planes over farther ones, in both views.

        Args:
            colours: (B * P, 3, 2, H, W): what each plane shows in view 0 and in view 1.
            grid: (H * W, 2), the views' pixels.

        Returns:
            (B, 3, 2, H, W).
        """
        batch, planes = self.photographs.shape
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
        """Where points of view 0 lie in view 1: where the plane takes them that view 0 shows there.

        Args:
            points0: (B, N, 2).
            on_each1: (B * P, N, 2): where each plane takes them.
            is_on_each: (B * P, N) bool: which of these may be seen.

        Returns:
            (B, N, 2) points of view 1, and bool (B, N): view 1 shows the same plane there, the point may be
            seen on it, and no outline is near.
        """
        batch, planes = self.photographs.shape
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
    """Which plane is in front, (B, N) int64, 0 the background, and whether no outline is within the margin.

    Args:
        depth_inside: (B, F, N) of the planes before the background, the nearest last.
        margin: (B, F, 1) pixels.
    """
    rank = torch.arange(1, depth_inside.shape[1] + 1, device=depth_inside.device)[:, None]
    front = ((depth_inside > 0) * rank).amax(1)
    is_mixed = (depth_inside.abs() <= margin) & (rank >= front[:, None])
    return front, ~is_mixed.any(1)


def draw_scene_photographs(
    first: Tensor, count: int, config: SyntheticConfig, generator: torch.Generator
) -> Tensor:
    """What planes show, (B, P), beginning with `first` (B,); different where there are P photographs."""
    planes, device = config.parallax_planes, generator.device
    largest = max(1, (count - 1) // (planes - 1))
    step = 1 + torch.randint(largest, (len(first), 1), generator=generator, device=device)
    return (first[:, None] + step * torch.arange(planes, device=device)) % count


def draw_scenes(
    photographs: Tensor,
    view0_to_source: Tensor,
    background: Tensor,
    config: SyntheticConfig,
    strength: float,
    generator: torch.Generator,
) -> Scenes:
    """Scenes with depth.

    Args:
        photographs: (B, P) int64, what their planes show.
        view0_to_source: (B, P, 3, 3).
        background: (B, 3, 3), the background's homographies from view 1 to view 0.
        config: how far planes move.
        strength: share of that, in [0, 1].
        generator: source of all draws.
    """
    batch, planes = photographs.shape
    in_front = torch.randint(1, planes, (batch,), generator=generator, device=generator.device)
    motions = _draw_plane_motions(background, in_front, config, strength, generator)
    outlines = draw_outlines(motions[:, 1:], in_front, config.side, generator)
    scales1 = scales_in_the_middle(motions[:, 1:], config.side)
    return Scenes(photographs, view0_to_source, motions, in_front, outlines, scales1)


def _draw_plane_motions(
    background: Tensor, in_front: Tensor, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> Tensor:
    """Homographies (B, P, 3, 3) from view 1 to view 0."""
    batch, planes, side = len(in_front), config.parallax_planes, float(config.side)
    centre, reach = (side - 1) / 2, config.parallax * strength
    # With depth 1 in the middle of view 1, an inverse depth of 1 moves that point by the epipole.
    middle = background[:, 2, :2].sum(-1) * centre + background[:, 2, 2]
    background = background / middle.clamp_min(0.1)[:, None, None]

    camera = uniform_columns(
        (batch,), {"direction": (0.0, 2 * math.pi, 1), "forward": (-0.5, 0.5, 1)}, generator
    )
    sideways = torch.stack([camera["direction"].cos(), camera["direction"].sin()], dim=-1) * side
    forward = camera["forward"][:, None]
    epipole = torch.cat([sideways + centre * forward, forward], dim=-1) * reach

    # Planes are at least 0.4 / in_front apart and tilt by at most half of that, so they never cross.
    ranges = {"lag": (0.0, 0.6, 1), "tilt": (-0.2, 0.2, 2)}
    drawn = uniform_columns((batch, planes), ranges, generator)
    rank = torch.arange(planes, device=in_front.device)
    nearness, tilt = rank - drawn["lag"], drawn["tilt"] / side
    inverse_depth = torch.cat([tilt, (nearness - tilt.sum(-1) * centre)[..., None]], dim=-1)
    inverse_depth = inverse_depth * (rank > 0)[:, None] / in_front[:, None, None]
    return background[:, None] + epipole[:, None, :, None] * inverse_depth[:, :, None]


def scales_in_the_middle(motions: Tensor, side: int) -> Tensor:
    """Square roots (...) of the areas that homographies (..., 3, 3) give a small unit area at the centre."""
    centre = (side - 1) / 2
    depth = (motions[..., 2, :2].sum(-1) * centre + motions[..., 2, 2]).abs().clamp_min(0.1)
    # The Jacobian of a homography has the determinant det(H) / depth³.
    areas: Tensor = torch.linalg.det(motions).abs() / depth**3
    return areas.sqrt()
