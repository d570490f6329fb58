"""Views: images encoded once more, reduced and rotated, so that both show things alike.

Descriptors bear a change of scale up to about 2 and of rotation up to about 45°. The consensus of a pair
(`ucn.matching.consensus`) tells more: `estimate_similarity` reads the relative scale and rotation that most
neighbouring matches agree on. `align_views` then encodes the more detailed image again, reduced by that
scale, and image 1 rotated back. Where a pair does not agree on anything, it searches: scales from 1/4 to 4,
each with four rotations. An ordinary pair costs no encoding.

`to_encoded` and `to_caller` convert points between the caller's image and any view of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.geometry.coords import (
    cell_centres,
    is_inside,
    pixel_grid,
    pixels_to_cells,
    resize_points,
    resize_scale,
)
from ucn.geometry.sampling import read_nearest, sample_image
from ucn.matching.consensus import Consensus
from ucn.nn import MIN_SIDE
from ucn.types import Features, ViewChange

MAX_SCALE = 1.4
"""Relative scale beyond which one image is encoded again."""
MAX_DEGREES = 30.0
"""Relative rotation beyond which image 1 is encoded again."""
# Chosen on validation data (docs/development/experiments.md, "Scale and rotation").
MIN_AGREEMENT = 0.15
"""Share of neighbouring cells that agree on one similarity, below which other views are searched."""
MIN_VIEW_AGREEMENT = 0.3
"""The least share for which a view replaces the images as given, if it also raises the share."""
MIN_KEPT = 0.8
"""The least share of the agreement that must remain in a view."""
SEARCH_SIDE = 640
"""Longest side in pixels of the images that are searched."""
_MIN_LONGEST = 256  # pixels; two smaller images have too few squares to tell a change from chance
_MAX_SIZE_RATIO = 2.5  # of the longest sides of both encoded images, beyond which views are searched
_NEIGHBOURS = ((2, 0), (0, 2), (2, 2), (2, -2))  # (x, y) cells
_OCTAVE_BINS, _MAX_OCTAVES = 9, 2.25  # of relative scale, half an octave each
_ANGLE_BINS = 12
_PRIOR_VOTES = 32  # that agree on nothing: a few cells agree by chance
_MARGIN = 0.15  # share of the detailed image's sides that is added around what it shows of the other
_MAX_ROUNDS = 3  # encodings of an estimate
_CLOSE_SCALE, _CLOSE_DEGREES = 1.15, 10.0  # what is left of a change when no further encoding is worth it


@dataclass(frozen=True)
class Similarity:
    """The similarity transform that most neighbouring matches of a pair agree on.

    Attributes:
        scale: pixels of image 1 per pixel of image 0.
        degrees: rotation from image 0 to image 1, from x towards y, in (-180, 180].
        agreement: share of neighbouring cells that agree, in [0, 1].
        shift: (x, y) of image 1, in pixels of the encoded image, where the origin of image 0 lies.
    """

    scale: float = 1.0
    degrees: float = 0.0
    agreement: float = 0.0
    shift: tuple[float, float] = (0.0, 0.0)

    @property
    def linear(self) -> Tensor:
        """(2, 2), a step in image 0 to one in image 1."""
        return self.scale * _make_rotation(math.radians(self.degrees))

    def is_within(self, scale: float, degrees: float) -> bool:
        """Whether the change is at most a factor of `scale` either way and a rotation of `degrees`."""
        return max(self.scale, 1 / self.scale) <= scale and abs(self.degrees) <= degrees


@dataclass(frozen=True)
class AlignedViews:
    """Two images as they are matched.

    Attributes:
        features0: of image 0, or of its view.
        features1: of image 1, or of its view.
        consensus: of these; None where it is not used.
        change: what was done; None where views are not used.
    """

    features0: Features
    features1: Features
    consensus: Consensus | None
    change: ViewChange | None


Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


class EncodeView(Protocol):
    """Encodes the image of features again."""

    def __call__(self, features: Features, scale: float, degrees: float, box: Box | None = None) -> Features:
        """Changes the view as `change_view` does, and encodes it."""


MeasureConsensus = Callable[[Features, Features], Consensus]
"""Measures the consensus of views of the two images, in either order."""


def estimate_similarity(consensus: Consensus) -> Similarity:
    """The relative scale and rotation that most neighbouring mutual matches of coarse cells agree on.

    Each two neighbouring cells of image 0 whose matches are mutual vote for the similarity that maps the one
    step to the other. Votes are counted in a histogram; those around its peak are averaged.
    """
    return read_similarity(consensus, count_votes(consensus).tolist())


def count_votes(consensus: Consensus) -> Tensor:
    """What `read_similarity` needs (5,), without waiting for a GPU.

    Those are the number of votes near the peak of the histogram, and of these the mean octave of scale, the
    mean angle, and the median shift (x, y) of coarse cells.
    """
    h0, w0, h1, w1 = consensus.support.shape
    device = consensus.support.device
    values, cells1 = consensus.support.reshape(h0 * w0, h1 * w1).max(dim=1)
    is_mutual = (values > 1 - 1e-5).view(h0, w0)  # both cells support each other most
    places = torch.complex((cells1 % w1).float(), (cells1 // w1).float()).view(h0, w0)
    grid = torch.complex(*(each.float() for each in _make_grid(h0, w0, device)))
    parts = []
    for x, y in _NEIGHBOURS:
        first, second = _shift_views(h0, w0, x, y)
        ratio = (places[second] - places[first]) / complex(x, y)
        is_vote = is_mutual[first] & is_mutual[second] & (ratio.abs() > 0.2) & (ratio.abs() < 5)
        parts.append([each.flatten() for each in (ratio, is_vote, grid[first], places[first])])
    ratios, is_vote, from0, to1 = (torch.cat(each) for each in zip(*parts, strict=True))
    if not len(ratios):
        return torch.zeros(5, device=device)
    ratios = ratios.where(is_vote, torch.ones_like(ratios))
    octaves, turns = ratios.abs().log2(), ratios.angle() / (2 * math.pi)  # turns in [-0.5, 0.5]
    row = ((octaves / _MAX_OCTAVES + 1) / 2 * _OCTAVE_BINS).long().clamp(0, _OCTAVE_BINS - 1)
    column = (turns * _ANGLE_BINS).round().long() % _ANGLE_BINS
    counts = torch.zeros(_OCTAVE_BINS * _ANGLE_BINS, device=device)
    counts = counts.scatter_add(0, row * _ANGLE_BINS + column, is_vote.float())
    histogram = F.pad(counts.view(1, _OCTAVE_BINS, _ANGLE_BINS), (1, 1), mode="circular")
    peak = F.avg_pool2d(F.pad(histogram, (0, 0, 1, 1))[None], 3, stride=1).flatten().argmax()
    peak_octave = ((peak // _ANGLE_BINS + 0.5) / _OCTAVE_BINS * 2 - 1) * _MAX_OCTAVES
    turn_error = (turns - peak % _ANGLE_BINS / _ANGLE_BINS + 0.5) % 1 - 0.5
    is_near = is_vote & ((octaves - peak_octave).abs() <= 0.75) & (turn_error.abs() <= 1.5 / _ANGLE_BINS)
    count = is_near.sum()
    octave = octaves.where(is_near, 0.0).sum() / count
    angle = (ratios / ratios.abs()).where(is_near, torch.zeros_like(ratios)).sum().angle()
    shifts = torch.view_as_real(to1 - torch.polar(octave.exp2(), angle) * from0)
    ranked = shifts.where(is_near[:, None], torch.inf).sort(dim=0).values
    median = ranked.index_select(0, ((count - 1) // 2).clamp_min(0)[None])[0]
    return torch.cat([torch.stack([count, octave, angle]), median])


def read_similarity(consensus: Consensus, votes: list[float]) -> Similarity:
    """The similarity by the result of `count_votes`."""
    count, octave, angle, *median = votes
    h0, w0, h1, w1 = consensus.support.shape
    possible = min(_count_neighbours(h0, w0), _count_neighbours(h1, w1))
    if not count or not possible:
        return Similarity()
    found = Similarity(2.0**octave, math.degrees(angle), count / (possible + _PRIOR_VOTES))
    pixels = consensus.cells * consensus.stride  # of a coarse cell; (0, 0) is the centre of cell 0
    first_centre = torch.full((2,), consensus.offset + (consensus.cells - 1) / 2 * consensus.stride)
    shift = torch.tensor(median) * pixels + first_centre - found.linear @ first_centre
    return replace(found, shift=(float(shift[0]), float(shift[1])))


def is_plain_pair(found: Similarity, features0: Features, features1: Features) -> bool:
    """Whether a pair of this similarity is matched as given, without a search and without other views."""
    sides = [max(features.map.image_hw) for features in (features0, features1)]
    if not can_change_views(features0, features1):
        return True
    is_uneven = max(sides) > _MAX_SIZE_RATIO * min(sides)
    is_searched = found.agreement < (MIN_VIEW_AGREEMENT if is_uneven else MIN_AGREEMENT)
    return not is_searched and found.is_within(MAX_SCALE, MAX_DEGREES)


def can_change_views(features0: Features, features1: Features) -> bool:
    """Whether there are images to encode again, of which at least one is large enough to tell a change."""
    longest = max(max(features.map.image_hw) for features in (features0, features1))
    return features0.image is not None and features1.image is not None and longest > _MIN_LONGEST


def _make_grid(h: int, w: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Columns and rows (h, w) of all cells."""
    rows, columns = torch.meshgrid(
        torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij"
    )
    return columns, rows


def _make_rotation(angle: float) -> Tensor:
    cosine, sine = (round(value, 12) for value in (math.cos(angle), math.sin(angle)))
    return torch.tensor([[cosine, -sine], [sine, cosine]])


def _shift_views(h: int, w: int, x: int, y: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Slices of all cells whose neighbour at (x, y) cells lies on the grid, and of these neighbours."""
    rows = slice(max(0, -y), max(0, min(h, h - y))), slice(max(0, y), max(0, min(h, h + y)))
    columns = slice(0, max(0, w - x)), slice(x, max(x, w))
    return (rows[0], columns[0]), (rows[1], columns[1])


def _count_neighbours(h: int, w: int) -> int:
    return sum(max(0, h - abs(y)) * max(0, w - abs(x)) for x, y in _NEIGHBOURS)


def align_views(
    features0: Features, features1: Features, encode_view: EncodeView, measure: MeasureConsensus
) -> AlignedViews:
    """Encodes a view of one or both images again where their scales or rotations differ too much.

    Args:
        features0: of image 0.
        features1: of image 1.
        encode_view: encodes an image again.
        measure: measures the consensus of two images.
    """
    consensus = measure(features0, features1)
    found = estimate_similarity(consensus)
    best = AlignedViews(features0, features1, consensus, ViewChange(found.scale, found.degrees))
    sides = [max(features.map.image_hw) for features in (features0, features1)]
    if not can_change_views(features0, features1):
        return best
    is_uneven = max(sides) > _MAX_SIZE_RATIO * min(sides)
    start, encodings = found, 0
    is_searched = found.agreement < (MIN_VIEW_AGREEMENT if is_uneven else MIN_AGREEMENT)
    if is_searched:
        searched, encodings = _search(features0, features1, encode_view, measure)
        start = max(found, searched, key=lambda similarity: similarity.agreement)
    if found.agreement < MIN_AGREEMENT:  # chance
        best = replace(best, change=ViewChange())
    total, least = start, found.agreement
    chosen: tuple[Similarity, Similarity] | None = None  # the similarity of the best views, and what is left
    for _ in range(_MAX_ROUNDS):
        if total.is_within(MAX_SCALE, MAX_DEGREES):
            break
        total = _snap(total)
        view0 = features0 if total.scale >= 1 else encode_view(features0, total.scale, 0.0)
        view1 = encode_view(features1, min(1.0, 1 / total.scale), total.degrees)
        encodings += 1 + (total.scale < 1)
        consensus = measure(view0, view1)
        rest = estimate_similarity(consensus)
        whole = _compose(total, rest)
        if rest.agreement >= MIN_KEPT * least and rest.agreement >= MIN_VIEW_AGREEMENT:
            least, chosen = rest.agreement, (total, rest)
            best = AlignedViews(view0, view1, consensus, ViewChange(whole.scale, whole.degrees))
        elif chosen is not None:
            break
        if rest.is_within(_CLOSE_SCALE, _CLOSE_DEGREES):
            break
        total = whole
    if chosen is not None and not chosen[0].is_within(MAX_SCALE, 180.0):
        detailed = _enlarge(best, *chosen, features0, features1, encode_view)
        encodings += 1 + (chosen[0].scale > 1 and chosen[0].degrees != 0)
        consensus = measure(*detailed)
        if estimate_similarity(consensus).agreement >= MIN_KEPT * least:
            best = AlignedViews(*detailed, consensus, best.change)
    assert best.change is not None
    return replace(best, change=replace(best.change, encodings=encodings, is_searched=is_searched))


def _enlarge(
    best: AlignedViews,
    total: Similarity,
    rest: Similarity,
    features0: Features,
    features1: Features,
    encode_view: EncodeView,
) -> tuple[Features, Features]:
    """Views at the scale of the more detailed image: the part of the other that it shows is enlarged.

    Matches are then as accurate as the detailed image allows; a reduced image would give up its detail.

    Args:
        best: the reduced views.
        total: the similarity that they undo.
        rest: the one that is left between them.
        features0: of image 0.
        features1: of image 1.
        encode_view: encodes an image again.
    """
    is_first = total.scale > 1  # image 0 shows less detail
    coarse, fine = (best.features0, best.features1) if is_first else (best.features1, best.features0)
    height, width = fine.map.image_hw
    corners = torch.tensor([[0.0, 0.0], [width, 0], [0, height], [width, height]]) - 0.5
    margin = _MARGIN * torch.tensor([[-1.0, -1], [1, -1], [-1, 1], [1, 1]]) * torch.tensor([width, height])
    linear, shift = rest.linear, torch.tensor(rest.shift)
    if is_first:
        placed = (corners + margin - shift) @ torch.linalg.inv(linear).mT
    else:
        placed = (corners + margin) @ linear.mT + shift
    resized = _undo_view(placed, coarse)
    limit = torch.tensor([coarse.resized_hw[1], coarse.resized_hw[0]]) - 1.0
    low, high = resized.amin(dim=0).clamp_min(0), torch.minimum(resized.amax(dim=0), limit)
    box = (float(low[0]), float(low[1]), float(high[0]), float(high[1]))
    longest = max((features1 if is_first else features0).resized_hw)
    largest = (1 + 2 * _MARGIN) * longest / max(MIN_SIDE, float((high - low).max()))
    factor = min(max(total.scale, 1 / total.scale), max(1.0, largest))
    if is_first:
        view0 = encode_view(features0, factor, 0.0, box)
        return view0, encode_view(features1, 1.0, total.degrees) if total.degrees else features1
    return features0, encode_view(features1, factor, total.degrees, box)


def _snap(similarity: Similarity) -> Similarity:
    """Takes a scale near 1 and a rotation near a multiple of 90° as such, which need no interpolation."""
    quarter = 90.0 * round(similarity.degrees / 90)
    is_near = abs(similarity.degrees - quarter) <= _CLOSE_DEGREES
    is_equal = similarity.is_within(_CLOSE_SCALE, 180.0)
    return replace(
        similarity,
        degrees=quarter if is_near else similarity.degrees,
        scale=1.0 if is_equal else similarity.scale,
    )


def _compose(first: Similarity, rest: Similarity) -> Similarity:
    degrees = (first.degrees + rest.degrees + 180) % 360 - 180
    scale = min(8.0, max(1 / 8, first.scale * rest.scale))
    return Similarity(scale, degrees, rest.agreement)


def _search(
    features0: Features, features1: Features, encode_view: EncodeView, measure: MeasureConsensus
) -> tuple[Similarity, int]:
    """The best similarity among scales 1/4 to 4 and four rotations, and the number of encodings.

    A relative scale above 1 reduces image 1, one below 1 image 0; at 1, both are halved. The image that is
    reduced is rotated, too: it is the cheaper one.
    """
    encodings = 0

    def encode(features: Features, scale: float, degrees: float) -> Features:
        nonlocal encodings
        base = min(1.0, SEARCH_SIDE / max(features.map.image_hw))
        if scale * base == 1.0 and degrees == 0:
            return features
        encodings += 1
        return encode_view(features, scale * base, degrees)

    best = Similarity()
    for is_swapped in (False, True):
        whole, other = (features1, features0) if is_swapped else (features0, features1)
        base = [min(1.0, SEARCH_SIDE / max(features.map.image_hw)) for features in (whole, other)]
        still = {1.0: encode(whole, 1.0, 0.0)}
        if not is_swapped:
            still[0.5] = encode(whole, 0.5, 0.0)
        for scale in (0.5, 0.25):
            for degrees in (0.0, 90.0, 180.0, -90.0):
                view = encode(other, scale, degrees)
                for fixed_scale, fixed in still.items():
                    if fixed_scale < scale:
                        continue  # covered by the other order
                    rest = estimate_similarity(measure(fixed, view))
                    if rest.agreement <= best.agreement:
                        continue
                    # From the encoded image `whole` to `other`: rest, after undoing both changes of scale.
                    relative = rest.scale * fixed_scale * base[0] / (scale * base[1])
                    turned = degrees + rest.degrees
                    if is_swapped:
                        relative, turned = 1 / relative, -turned
                    best = _compose(Similarity(relative, turned), Similarity(agreement=rest.agreement))
    return best, encodings


def change_view(
    pixels: Tensor, scale: float, degrees: float, box: Box | None = None
) -> tuple[Tensor, Tensor]:
    """Crops an image (3, H, W), resizes it and rotates it back.

    Args:
        pixels: in [0, 1].
        scale: of the crop; no side gets below 32 px.
        degrees: the rotation that is undone, from x towards y; multiples of 90° are exact.
        box: the part of the image to keep; None keeps all.

    Returns:
        The view (3, H', W'), and on the CPU the matrix (2, 3) from pixels of the image to those of the view.
    """
    pixels, left, top = _crop(pixels, box)
    height, width = pixels.shape[-2:]
    scale = max(scale, MIN_SIDE / min(height, width))
    h, w = max(MIN_SIDE, round(height * scale)), max(MIN_SIDE, round(width * scale))
    if (h, w) != (height, width):
        mode = "bilinear" if scale < 1 else "bicubic"
        pixels = F.interpolate(pixels[None], (h, w), mode=mode, antialias=scale < 1, align_corners=False)
        pixels = pixels[0].clamp(0, 1)
    scale_xy = torch.tensor(resize_scale((height, width), (h, w)))
    # From pixels of the image to those of the resized crop; see `resize_points`.
    start = (0.5 - torch.tensor([left, top])) * scale_xy - 0.5
    quarter = round(degrees / 90)
    is_quarter = abs(degrees - 90 * quarter) < 1e-6
    turn = _make_rotation(-math.radians(degrees))
    new_w, new_h = (round(float(side)) for side in turn.abs() @ torch.tensor([float(w), float(h)]))
    centre = torch.tensor([(w - 1) / 2, (h - 1) / 2])
    new_centre = torch.tensor([(new_w - 1) / 2, (new_h - 1) / 2])
    if is_quarter:
        view = torch.rot90(pixels, quarter % 4, dims=(1, 2)).contiguous()
    else:
        grid = pixel_grid((new_h, new_w), pixels.device)
        places = (grid - new_centre.to(grid)) @ turn.to(grid) + centre.to(grid)  # the inverse of `turn`
        view = sample_image(pixels[None], places[None], "border")[0]
    shift = turn @ (start - centre) + new_centre
    return view, torch.cat([turn * scale_xy, shift[:, None]], dim=1)


def _crop(pixels: Tensor, box: Box | None) -> tuple[Tensor, int, int]:
    """The part of an image in a box, at least 32 px a side, and its first column and row."""
    if box is None:
        return pixels, 0, 0
    spans = []
    for low, high, size in zip(box[:2], box[2:], (pixels.shape[-1], pixels.shape[-2]), strict=True):
        first, last = max(0, math.floor(low)), min(size, math.ceil(high) + 1)
        least = min(MIN_SIDE, size)
        first = max(0, min(first, size - least))
        spans.append((first, max(last, first + least)))
    (left, right), (top, bottom) = spans
    return pixels[:, top:bottom, left:right], left, top


def _undo_view(points: Tensor, features: Features) -> Tensor:
    """From pixels of the encoded view to those of the resized image."""
    if features.view is None:
        return points
    inverse = torch.linalg.inv(features.view[:, :2]).to(points)  # on the CPU: not all devices can
    moved: Tensor = (points - features.view[:, 2].to(points)) @ inverse.mT
    return moved


def to_encoded(points: Tensor, features: Features) -> Tensor:
    """From pixels of the caller's image to those of the image as encoded."""
    resized = resize_points(points, resize_scale(features.image_hw, features.resized_hw))
    if features.view is None:
        return resized
    view = features.view.to(points)
    return resized @ view[:, :2].mT + view[:, 2]


def to_caller(points: Tensor, features: Features) -> Tensor:
    """From pixels of the encoded image to those of the caller's image, clipped to it; NaN stays."""
    moved = resize_points(_undo_view(points, features), resize_scale(features.resized_hw, features.image_hw))
    height, width = features.image_hw
    return torch.stack([moved[:, 0].clamp(-0.5, width - 0.5), moved[:, 1].clamp(-0.5, height - 0.5)], dim=1)


def cells_in_mask(features: Features, use: Tensor | None) -> Tensor | None:
    """Bool (h * w,): the cells whose centres lie on the image, and on a mask (H, W) of the caller's image.

    None where all cells do.
    """
    is_on_image = None
    if features.view is not None:
        is_on_image = is_inside(_undo_view(cell_centres(features.map), features), features.resized_hw)
    if use is None:
        return is_on_image
    is_used = read_nearest(use, to_caller(cell_centres(features.map), features))
    if is_on_image is not None:
        is_used &= is_on_image
    if is_used.any() or not use.any():
        return is_used
    # The mask is so small that it contains no cell centre: use the cells that its pixels lie in.
    encoded = to_encoded(use.nonzero().flip(-1).float(), features)
    encoded = encoded[is_inside(encoded, features.map.image_hw)]  # a view may not show them
    cells = pixels_to_cells(encoded, features.map.stride, features.map.offset).round().long()
    h, w = features.map.grid_hw
    is_used[cells[:, 1].clamp(0, h - 1) * w + cells[:, 0].clamp(0, w - 1)] = True
    return is_used
