"""A batch of pairs with exact truth.

View 0 is a crop of a photograph, zoomed and on demand mirrored, turned and stretched; view 1 sees the same
plane through a random homography, an affine map or a bend (`bends`). Or both see a scene of several planes,
from different places (`parallax`). Planes may show two photographs at once or a `collage` of many, and pairs
may get other colours. Then both views change in light, colour, sharpness and noise, each on its own. All
draws come from one generator, so a seed fixes the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.config import SyntheticConfig
from ucn.data.augment.illumination import recolour, relight
from ucn.data.augment.photometric import change_photometrically
from ucn.data.augment.random import draw_counts, uniform
from ucn.data.synthetic.bank import ImageBank
from ucn.data.synthetic.collage import draw_collages
from ucn.data.synthetic.deformation import Bends, draw_bends
from ucn.data.synthetic.parallax import Scenes, draw_scene_photographs, draw_scenes
from ucn.data.synthetic.views import draw_crops, draw_motions
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.geometry.warp import warp_points
from ucn.types import LateNames, PairBatch


@dataclass(frozen=True)
class _Planes:
    """All planes of a batch: one for each of the first pairs, the last of them bent, then those of scenes.

    Attributes:
        photographs: (E,) int64, what each plane shows.
        blended: (E,) int64, what it shows besides; the same photograph where it shows one.
        view0_to_source: (E, 3, 3).
        view1_to_view0: (E, 3, 3), after the bend.
        flat: how many pairs show one plane.
        bends: of the last of these.
        scenes: of the pairs after these; None where there are none.
    """

    photographs: Tensor
    blended: Tensor
    view0_to_source: Tensor
    view1_to_view0: Tensor
    flat: int
    bends: Bends
    scenes: Scenes | None

    @property
    def pairs(self) -> Tensor:
        """(E,) int64: the pair of each plane."""
        row = torch.arange(len(self.photographs), device=self.photographs.device)
        if self.scenes is None:
            return row
        in_scene = (row - self.flat).clamp_min(0) // self.scenes.photographs.shape[1]
        return torch.where(row < self.flat, row, self.flat + in_scene)


def make_pairs(
    bank: ImageBank,
    batch: int,
    config: SyntheticConfig,
    generator: torch.Generator,
    strength: float = 1.0,
) -> PairBatch:
    """A batch of pairs.

    Args:
        bank: the photographs; each pair is made from one of them, drawn at random, and a scene of several
            planes from several. Planes before the background, and what is shown beside a photograph, are of
            all photographs alike, whatever the weights of a joined bank.
        batch: how many pairs.
        config: how the views differ.
        generator: source of all draws, on the bank's device.
        strength: share of every difference between the views (turn, scale, shift, perspective, stretch,
            bending, parallax, light and photometric change) that is used, in [0, 1]; at 0 the views are
            equal. What both views share (zoom, pose, blending, border, colours) does not depend on it.

    Returns:
        The pairs on the bank's device, with ``config.points`` rows of points each. Where fewer candidates are
        seen in both views and lie on the photograph, the rest of the rows is not valid and may hold NaN.

    Raises:
        ValueError: strength is out of range.
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}")
    names, origins = bank.names, None
    if config.collage_share:  # twice as many as pairs, so that scenes and double exposures have others, too
        bank, origins = draw_collages(bank, 2 * batch, config.collage_share, config.collage_zoom, generator)
    planes = _draw_planes(bank, batch, config, strength, generator)
    images = _render(bank, planes, config.side, config.border)
    candidates0, candidates1, is_seen = _draw_candidates(bank, planes, batch, config, generator)
    shown = _list_photographs(planes)
    if origins is not None:
        shown = torch.where(shown >= 0, origins[shown.clamp_min(0)], shown)
    if config.affine_share or config.spline_share or config.parallax_share:
        order = torch.randperm(batch, generator=generator, device=bank.canvases.device)
        images, shown, is_seen = images[:, order], shown[order], is_seen[order]
        candidates0, candidates1 = candidates0[order], candidates1[order]
    # A stable sort brings the visible ones to the front and keeps their random order.
    first = is_seen.int().argsort(dim=1, descending=True, stable=True)[:, : config.points]
    take = first[..., None].expand(-1, -1, 2)
    images = recolour(images, config.recolour, generator)
    images = relight(images.flatten(0, 1), config.relight * strength, generator).view_as(images)
    image0, image1 = change_photometrically(images, config.photometric * strength, generator)
    return PairBatch(
        image0=image0,
        image1=image1,
        points0=candidates0.gather(1, take),
        points1=candidates1.gather(1, take),
        is_valid=is_seen.gather(1, first),
        names=LateNames(
            batch, lambda: (" + ".join(names[i] for i in row if i >= 0) for row in shown.tolist())
        ),
    )


def _draw_planes(
    bank: ImageBank, batch: int, config: SyntheticConfig, strength: float, generator: torch.Generator
) -> _Planes:
    shares = (config.parallax_share, config.spline_share, config.affine_share)
    parallax, bent, affine = draw_counts(batch, shares, generator)
    flat = batch - parallax
    photographs = bank.draw(batch, generator)
    if parallax:
        of_scenes = draw_scene_photographs(photographs[flat:], len(bank), config, generator)
        photographs = torch.cat([photographs[:flat], of_scenes.flatten()])
    view0_to_source = draw_crops(bank.sizes[photographs], config, generator)
    affine_rows = slice(flat - bent - affine, flat - bent)
    view1_to_view0 = draw_motions(batch, affine_rows, config, strength, generator)
    bends = draw_bends(bent, config, strength, generator)
    scenes = None
    if parallax:
        crops = view0_to_source[flat:].view(parallax, -1, 3, 3)
        scenes = draw_scenes(of_scenes, crops, view1_to_view0[flat:], config, strength, generator)
        view1_to_view0 = torch.cat([view1_to_view0[:flat], scenes.view1_to_view0.flatten(0, 1)])
    blended = _draw_blended(photographs, len(bank), config.blend_share, generator)
    return _Planes(photographs, blended, view0_to_source, view1_to_view0, flat, bends, scenes)


def _draw_blended(photographs: Tensor, count: int, share: float, generator: torch.Generator) -> Tensor:
    """Second photographs (E,) of planes; the plane's own where it shows one."""
    if not share:
        return photographs
    others = torch.randint(count, photographs.shape, generator=generator, device=photographs.device)
    is_blended = uniform(tuple(photographs.shape), 0, 1, generator) < share
    return torch.where(is_blended, others, photographs)


def _render(bank: ImageBank, planes: _Planes, side: int, border: str) -> Tensor:
    """Both views (2, B, 3, H, W)."""
    count = len(planes.photographs)
    grid = pixel_grid((side, side), bank.canvases.device).view(-1, 2)
    in_view0 = in_view1 = grid.expand(count, -1, -1)
    if len(planes.bends):
        straight = planes.flat - len(planes.bends)
        in_view1 = torch.cat([in_view1[:straight], planes.bends.bend(grid), in_view1[planes.flat :]])
    view1_to_source = planes.view0_to_source @ planes.view1_to_view0
    in_source0 = warp_points(in_view0, planes.view0_to_source)
    in_source1 = warp_points(in_view1, view1_to_source)
    steps = torch.cat([_find_steps(planes.view0_to_source, side), _find_steps(view1_to_source, side)], dim=1)
    steps = steps.repeat_interleave(side, dim=1)
    # One view below the other, so that both are read in one pass over the photographs.
    in_source = torch.cat([in_source0, in_source1], dim=1).view(count, 2 * side, side, 2)
    colours = bank.sample(planes.photographs, in_source, steps)
    if planes.blended is not planes.photographs:
        colours = (colours + bank.sample(planes.blended, in_source, steps)) / 2
    colours = colours.view(count, 3, 2, side, side)
    if border == "other":
        is_on = bank.is_on(planes.photographs, in_source.flatten(1, 2)).view(count, 1, 2, side, side)
        colours = _show_others_beyond(colours, is_on, planes)
    if planes.scenes is not None:
        composed = planes.scenes.compose(colours[planes.flat :], grid)
        colours = torch.cat([colours[: planes.flat], composed])
    return colours.permute(2, 0, 1, 3, 4).contiguous()


def _find_steps(view_to_source: Tensor, side: int) -> Tensor:
    """Pixels of a photograph per pixel of a view, (E, 1), amid the view, where a bend changes it little."""
    centre = (side - 1) / 2
    corners = (
        torch.eye(3, 2, device=view_to_source.device).roll(1, 0) + centre
    )  # the centre, and steps of one pixel
    at, right, below = warp_points(corners.expand(len(view_to_source), -1, -1), view_to_source).unbind(1)
    across, along = right - at, below - at
    area = across[:, 0] * along[:, 1] - across[:, 1] * along[:, 0]
    return area.abs().sqrt()[:, None]


def _show_others_beyond(colours: Tensor, is_on: Tensor, planes: _Planes) -> Tensor:
    """Puts another photograph where planes end: view 0 of the plane half a batch away, which is at hand.

    Where that one is of the same pair, or shows the same photograph, a plane stays as it is: else a view
    would show once more, and unmoved, what its partner shows elsewhere.

    Args:
        colours: (E, 3, 2, H, W), what planes show in both views.
        is_on: (E, 1, 2, H, W) bool: where that is their own photograph.
        planes: the planes.
    """
    shift = max(1, len(colours) // 2)
    pairs, photographs = planes.pairs, planes.photographs
    is_other = (pairs != pairs.roll(shift)) & (photographs != photographs.roll(shift))
    is_shown = is_on | ~is_other.view(-1, 1, 1, 1, 1)
    return torch.where(is_shown, colours, colours[:, :, :1].roll(shift, dims=0))


def _draw_candidates(
    bank: ImageBank, planes: _Planes, batch: int, config: SyntheticConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Points (B, C, 2) of view 0 and view 1, and bool (B, C): both views show them."""
    flat, straight, size_hw = planes.flat, planes.flat - len(planes.bends), (config.side, config.side)
    drawn = uniform((batch, 4 * config.points, 2), -0.5, config.side - 0.5, generator)
    # A bend has no closed inverse, but the way from view 1 to view 0 needs none: there, draws are of view 1.
    points0, drawn1 = drawn, drawn[straight:flat]
    if len(planes.bends):
        bent0 = warp_points(planes.bends.bend(drawn1), planes.view1_to_view0[straight:flat])
        points0 = torch.cat([drawn[:straight], bent0, drawn[flat:]])
    on_each0 = points0
    if planes.scenes is not None:
        repeated = points0[flat:].repeat_interleave(config.parallax_planes, dim=0)
        on_each0 = torch.cat([points0[:flat], repeated])
    # `inv` itself would wait for the device, to check.
    on_each1 = warp_points(on_each0, torch.linalg.inv_ex(planes.view1_to_view0)[0])
    on_each1[straight:flat] = drawn1
    is_on_photograph = bank.is_on(planes.photographs, warp_points(on_each0, planes.view0_to_source))
    is_seen = is_inside(on_each0, size_hw) & is_inside(on_each1, size_hw) & is_on_photograph
    if planes.scenes is None:
        return points0, on_each1, is_seen
    points1, is_shown = planes.scenes.follow(points0[flat:], on_each1[flat:], is_seen[flat:])
    return points0, torch.cat([on_each1[:flat], points1]), torch.cat([is_seen[:flat], is_shown])


def _list_photographs(planes: _Planes) -> Tensor:
    """(B, P) int64: the photographs of each pair, -1 as padding."""
    one = planes.photographs[: planes.flat, None]
    if planes.scenes is None:
        return one
    several = planes.scenes.shown_photographs
    return torch.cat([F.pad(one, (0, several.shape[1] - 1), value=-1), several])
