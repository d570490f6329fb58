"""Renders batches of synthetic pairs with exact ground truth.

View 0 is a crop of a source image, scaled and optionally mirrored, rotated and stretched. View 1 shows the
same plane through a random homography, an affine map, or a homography with a deformation; or both views show
a scene of several planes from two camera positions (`parallax`). Planes may blend two images or show a
`collage` of many, and pairs may get other colours. Then illumination, colour, sharpness and noise of each
view change independently. All randomness comes from one generator, so that a seed determines the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.illumination import change_colours, change_illumination
from ucn.data.augment.photometric import change_photometrically
from ucn.data.augment.random import sample_counts, uniform
from ucn.data.synthetic.bank import ImageBank
from ucn.data.synthetic.collage import sample_collages
from ucn.data.synthetic.deformation import Deformation, sample_deformation
from ucn.data.synthetic.parallax import Scenes, sample_scene_sources, sample_scenes
from ucn.data.synthetic.views import sample_crops, sample_homographies
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.geometry.warp import warp_points
from ucn.types import LazyNames, PairBatch


@dataclass(frozen=True)
class _Planes:
    """All planes of a batch: first pairs of one plane, the last of them deformed, then the planes of scenes.

    Attributes:
        sources: (E,) int64, the source image of each plane.
        blended: (E,) int64, a second image blended into it; `sources` itself where it shows one.
        view0_to_source: (E, 3, 3) homographies.
        view1_to_view0: (E, 3, 3) homographies, applied after the deformation.
        flat: the number of pairs of one plane.
        deformation: of the last of these.
        scenes: of the pairs after these; None where there are none.
    """

    sources: Tensor
    blended: Tensor
    view0_to_source: Tensor
    view1_to_view0: Tensor
    flat: int
    deformation: Deformation
    scenes: Scenes | None

    @property
    def pairs(self) -> Tensor:
        """(E,) int64, the pair of each plane."""
        row = torch.arange(len(self.sources), device=self.sources.device)
        if self.scenes is None:
            return row
        in_scene = (row - self.flat).clamp_min(0) // self.scenes.sources.shape[1]
        return torch.where(row < self.flat, row, self.flat + in_scene)


def make_pairs(
    bank: ImageBank,
    batch: int,
    config: SyntheticConfig,
    generator: torch.Generator,
    strength: float = 1.0,
) -> PairBatch:
    """Renders a batch of pairs.

    Args:
        bank: the source images. Each pair is rendered from one random image, a scene of several planes from
            several. Planes in front of the background, and blended images, are sampled uniformly, whatever
            the weights of a joined bank.
        batch: the number of pairs.
        config: the ranges of all random changes.
        generator: random generator, on the bank's device.
        strength: fraction, in [0, 1], of every difference between the views (rotation, scale, translation,
            perspective, stretch, deformation, parallax, illumination and photometric changes); at 0 the views
            are equal. What both views share (zoom, pose, blending, border, colours) does not depend on it.

    Returns:
        The pairs on the bank's device, with ``config.points`` rows of points each. Where fewer sampled points
        are visible in both views, the other rows are invalid and may hold NaN.

    Raises:
        ValueError: `strength` is out of range.
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}")
    names, origins = bank.names, None
    if config.collage_share:  # twice as many as pairs, so that scenes and blends have other images, too
        bank, origins = sample_collages(bank, 2 * batch, config.collage_share, config.collage_zoom, generator)
    planes = _sample_planes(bank, batch, config, strength, generator)
    images = _render(bank, planes, config.side, config.border)
    candidates0, candidates1, is_seen = _sample_candidates(bank, planes, batch, config, generator)
    shown = _list_sources(planes)
    if origins is not None:
        shown = torch.where(shown >= 0, origins[shown.clamp_min(0)], shown)
    if config.affine_share or config.spline_share or config.parallax_share:
        order = torch.randperm(batch, generator=generator, device=bank.canvases.device)
        images, shown, is_seen = images[:, order], shown[order], is_seen[order]
        candidates0, candidates1 = candidates0[order], candidates1[order]
    # A stable sort moves the visible points to the front and keeps their random order.
    first = is_seen.int().argsort(dim=1, descending=True, stable=True)[:, : config.points]
    take = first[..., None].expand(-1, -1, 2)
    images = change_colours(images, config.recolour, generator)
    images = change_illumination(images.flatten(0, 1), config.illumination * strength, generator).view_as(
        images
    )
    image0, image1 = change_photometrically(images, config.photometric * strength, generator)
    return PairBatch(
        image0=image0,
        image1=image1,
        points0=candidates0.gather(1, take),
        points1=candidates1.gather(1, take),
        is_valid=is_seen.gather(1, first),
        names=LazyNames(
            batch, lambda: (" + ".join(names[i] for i in row if i >= 0) for row in shown.tolist())
        ),
    )


def _sample_planes(
    bank: ImageBank, batch: int, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> _Planes:
    shares = (config.parallax_share, config.spline_share, config.affine_share)
    parallax, deformed, affine = sample_counts(batch, shares, generator)
    flat = batch - parallax
    sources = bank.sample_indices(batch, generator)
    if parallax:
        of_scenes = sample_scene_sources(sources[flat:], len(bank), config, generator)
        sources = torch.cat([sources[:flat], of_scenes.flatten()])
    view0_to_source = sample_crops(bank.sizes[sources], config, generator)
    affine_rows = slice(flat - deformed - affine, flat - deformed)
    view1_to_view0 = sample_homographies(batch, affine_rows, config, strength, generator)
    deformation = sample_deformation(deformed, config, strength, generator)
    scenes = None
    if parallax:
        crops = view0_to_source[flat:].view(parallax, -1, 3, 3)
        scenes = sample_scenes(of_scenes, crops, view1_to_view0[flat:], config, strength, generator)
        view1_to_view0 = torch.cat([view1_to_view0[:flat], scenes.view1_to_view0.flatten(0, 1)])
    blended = _sample_blended(sources, len(bank), config.blend_share, generator)
    return _Planes(sources, blended, view0_to_source, view1_to_view0, flat, deformation, scenes)


def _sample_blended(sources: Tensor, count: int, share: float, generator: torch.Generator) -> Tensor:
    """Second source images (E,) of planes; the plane's own where it shows one."""
    if not share:
        return sources
    others = torch.randint(count, sources.shape, generator=generator, device=sources.device)
    is_blended = uniform(tuple(sources.shape), 0, 1, generator) < share
    return torch.where(is_blended, others, sources)


def _render(bank: ImageBank, planes: _Planes, side: int, border: str) -> Tensor:
    """Both views (2, B, 3, H, W)."""
    count = len(planes.sources)
    grid = pixel_grid((side, side), bank.canvases.device).view(-1, 2)
    in_view0 = in_view1 = grid.expand(count, -1, -1)
    if len(planes.deformation):
        straight = planes.flat - len(planes.deformation)
        in_view1 = torch.cat([in_view1[:straight], planes.deformation.warp(grid), in_view1[planes.flat :]])
    view1_to_source = planes.view0_to_source @ planes.view1_to_view0
    in_source0 = warp_points(in_view0, planes.view0_to_source)
    in_source1 = warp_points(in_view1, view1_to_source)
    steps = torch.cat([_find_steps(planes.view0_to_source, side), _find_steps(view1_to_source, side)], dim=1)
    steps = steps.repeat_interleave(side, dim=1)
    # One view below the other, so that both are sampled in one call.
    in_source = torch.cat([in_source0, in_source1], dim=1).view(count, 2 * side, side, 2)
    colours = bank.sample(planes.sources, in_source, steps)
    if planes.blended is not planes.sources:
        colours = (colours + bank.sample(planes.blended, in_source, steps)) / 2
    colours = colours.view(count, 3, 2, side, side)
    if border == "other":
        is_on = bank.is_on(planes.sources, in_source.flatten(1, 2)).view(count, 1, 2, side, side)
        colours = _show_others_beyond(colours, is_on, planes)
    if planes.scenes is not None:
        composed = planes.scenes.compose(colours[planes.flat :], grid)
        colours = torch.cat([colours[: planes.flat], composed])
    return colours.permute(2, 0, 1, 3, 4).contiguous()


def _find_steps(view_to_source: Tensor, side: int) -> Tensor:
    """Pixels of the source image per pixel of a view, (E, 1), at the centre, without the deformation."""
    centre = (side - 1) / 2
    # The centre, and steps of one pixel to the right and down.
    corners = torch.eye(3, 2, device=view_to_source.device).roll(1, 0) + centre
    at, right, below = warp_points(corners.expand(len(view_to_source), -1, -1), view_to_source).unbind(1)
    across, along = right - at, below - at
    area = across[:, 0] * along[:, 1] - across[:, 1] * along[:, 0]
    return area.abs().sqrt()[:, None]


def _show_others_beyond(colours: Tensor, is_on: Tensor, planes: _Planes) -> Tensor:
    """Fills the area beyond the border of a plane's image with view 0 of the plane half a batch away.

    Where that plane is of the same pair or shows the same image, the mirrored border stays: otherwise a view
    would show, unmoved, what the other view shows elsewhere.

    Args:
        colours: (E, 3, 2, H, W), the colours of the planes in both views.
        is_on: (E, 1, 2, H, W) bool, where a plane shows its own image.
        planes: the planes.
    """
    shift = max(1, len(colours) // 2)
    pairs, sources = planes.pairs, planes.sources
    is_other = (pairs != pairs.roll(shift)) & (sources != sources.roll(shift))
    is_shown = is_on | ~is_other.view(-1, 1, 1, 1, 1)
    return torch.where(is_shown, colours, colours[:, :, :1].roll(shift, dims=0))


def _sample_candidates(
    bank: ImageBank, planes: _Planes, batch: int, config: SyntheticConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Random points (B, C, 2) of view 0 and view 1, and bool (B, C): visible in both views."""
    flat, straight, size_hw = planes.flat, planes.flat - len(planes.deformation), (config.side, config.side)
    sampled = uniform((batch, 4 * config.points, 2), -0.5, config.side - 0.5, generator)
    # A deformation has no closed-form inverse, but mapping view 1 to view 0 needs none: for deformed pairs,
    # points are sampled in view 1.
    points0, sampled1 = sampled, sampled[straight:flat]
    if len(planes.deformation):
        deformed0 = warp_points(planes.deformation.warp(sampled1), planes.view1_to_view0[straight:flat])
        points0 = torch.cat([sampled[:straight], deformed0, sampled[flat:]])
    on_each0 = points0
    if planes.scenes is not None:
        repeated = points0[flat:].repeat_interleave(config.parallax_planes, dim=0)
        on_each0 = torch.cat([points0[:flat], repeated])
    # `inv` would synchronise with the device to check for singular matrices.
    on_each1 = warp_points(on_each0, torch.linalg.inv_ex(planes.view1_to_view0)[0])
    on_each1[straight:flat] = sampled1
    is_on_source = bank.is_on(planes.sources, warp_points(on_each0, planes.view0_to_source))
    is_seen = is_inside(on_each0, size_hw) & is_inside(on_each1, size_hw) & is_on_source
    if planes.scenes is None:
        return points0, on_each1, is_seen
    points1, is_shown = planes.scenes.follow(points0[flat:], on_each1[flat:], is_seen[flat:])
    return points0, torch.cat([on_each1[:flat], points1]), torch.cat([is_seen[:flat], is_shown])


def _list_sources(planes: _Planes) -> Tensor:
    """(B, P) int64: the source images of each pair, padded with -1."""
    one = planes.sources[: planes.flat, None]
    if planes.scenes is None:
        return one
    several = planes.scenes.shown_sources
    return torch.cat([F.pad(one, (0, several.shape[1] - 1), value=-1), several])
