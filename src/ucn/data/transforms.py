"""Geometric transforms of a pair: images and points are transformed together.

All coordinate formulas are those of `geometry.coords`. Points that leave their image are dropped with their
partners, `parts` keep their rows, and `pck_length`, a length in image 1, is scaled with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from operator import itemgetter
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import image_hw
from ucn.geometry.coords import flip_points, is_inside, pixel_grid, resize_points, resize_scale
from ucn.geometry.sampling import sample_image
from ucn.types import PairSample

View = Literal[0, 1]

PADDING_RGB = (123 / 255, 117 / 255, 104 / 255)
"""Colour of padding: ImageNet's mean, which the network subtracts, so that padding looks to it like the zero
padding of its convolutions."""
_WINDOW_TRIES = 8


def resize(sample: PairSample, size0_hw: tuple[int, int], size1_hw: tuple[int, int]) -> PairSample:
    """Resizes both images to exact sizes, with antialiasing where they shrink."""
    image0, points0 = _resize_view(sample.image0, sample.points0, size0_hw)
    image1, points1 = _resize_view(sample.image1, sample.points1, size1_hw)
    scale_x, scale_y = resize_scale(image_hw(sample.image1), size1_hw)
    changed = replace(sample, image0=image0, image1=image1, points0=points0, points1=points1)
    return _scale_length(changed, math.sqrt(scale_x * scale_y))


def resize_by(sample: PairSample, scale0: float, scale1: float) -> PairSample:
    """Resizes each image by its own factor, to the nearest whole size of at least one pixel."""
    size0_hw = _scaled_hw(image_hw(sample.image0), scale0)
    return resize(sample, size0_hw, _scaled_hw(image_hw(sample.image1), scale1))


def resize_to_fit(sample: PairSample, size_hw: tuple[int, int]) -> PairSample:
    """Resizes each image to the largest size within `size_hw` of the same aspect ratio.

    Smaller images are enlarged. With a square size, the longer side becomes that of the square.
    """
    scales = [
        min(size_hw[0] / image.shape[-2], size_hw[1] / image.shape[-1])
        for image in (sample.image0, sample.image1)
    ]
    return resize_by(sample, scales[0], scales[1])


def crop(
    sample: PairSample,
    corner0_xy: tuple[int, int],
    corner1_xy: tuple[int, int],
    size0_hw: tuple[int, int],
    size1_hw: tuple[int, int],
) -> PairSample:
    """Crops a window of each image; correspondences outside either window are dropped.

    Args:
        sample: the pair.
        corner0_xy: (x, y) of the window's top-left pixel in image 0; the window may extend beyond the image,
            and is padded with `PADDING_RGB` there.
        corner1_xy: the same in image 1.
        size0_hw: (H, W) of the window of image 0.
        size1_hw: (H, W) of the window of image 1.
    """
    changed = replace(
        sample,
        image0=_crop_image(sample.image0, corner0_xy, size0_hw),
        image1=_crop_image(sample.image1, corner1_xy, size1_hw),
        points0=sample.points0 - sample.points0.new_tensor(corner0_xy),
        points1=sample.points1 - sample.points1.new_tensor(corner1_xy),
    )
    return _drop_outside(changed)


def pad(sample: PairSample, size_hw: tuple[int, int]) -> PairSample:
    """Centres both images on a canvas of a size; larger images lose their margins."""
    corners = [
        ((image.shape[-1] - size_hw[1]) // 2, (image.shape[-2] - size_hw[0]) // 2)
        for image in (sample.image0, sample.image1)
    ]
    return crop(sample, corners[0], corners[1], size_hw, size_hw)


def crop_pair(
    sample: PairSample,
    size0_hw: tuple[int, int],
    size1_hw: tuple[int, int],
    min_points: int,
    generator: torch.Generator,
) -> PairSample:
    """Crops a random window of image 0, and the window of image 1 that shows the same content.

    Window 0 contains a randomly chosen correspondence at a random position. Window 1 is centred on the median
    of the partners of the points in window 0, within image 1. Where both windows share fewer than
    `min_points` correspondences, other windows are tried, and the fullest is used. An image smaller than its
    window is padded at a random position.
    """
    enough = min(min_points, len(sample))
    fullest = _sample_windows(sample, size0_hw, size1_hw, generator)
    for _ in range(_WINDOW_TRIES - 1):
        if fullest[0] >= enough:
            break
        fullest = max(fullest, _sample_windows(sample, size0_hw, size1_hw, generator), key=itemgetter(0))
    _, corner0, corner1 = fullest
    return crop(sample, corner0, corner1, size0_hw, size1_hw)


def mirror(sample: PairSample) -> PairSample:
    """Mirrors both views left to right; each part becomes its mirror part."""
    parts = sample.parts
    if parts is not None and sample.mirror_parts is not None:
        parts = sample.mirror_parts[parts]
    return replace(
        sample,
        image0=sample.image0.flip(-1),
        image1=sample.image1.flip(-1),
        points0=flip_points(sample.points0, sample.image0.shape[-1]),
        points1=flip_points(sample.points1, sample.image1.shape[-1]),
        parts=parts,
    )


def mirror_view(sample: PairSample, view: View) -> PairSample:
    """Mirrors one view left to right, and pairs its points anew with those of the other view.

    A mirrored left eye is a right eye: part p of the mirrored view becomes part ``mirror_parts[p]``, and its
    partner is that part in the other view. Rows without a partner are dropped; the others keep the order of
    the other view.

    Raises:
        ValueError: the sample has no parts. A mirrored scene has no correspondences.
    """
    if sample.parts is None or sample.mirror_parts is None:
        raise ValueError(
            f"one view of {sample.name} cannot be mirrored alone: its points mark no parts with mirror parts"
        )
    is_same_part = sample.parts[:, None] == sample.mirror_parts[sample.parts][None, :]
    has_partner = is_same_part.any(dim=1)
    partner = is_same_part.int().argmax(dim=1)[has_partner] if len(sample) else sample.parts[:0]
    paired = replace(sample, parts=sample.parts[has_partner])
    if view == 0:
        flipped = flip_points(sample.points0[partner], sample.image0.shape[-1])
        return replace(
            paired, image0=sample.image0.flip(-1), points0=flipped, points1=sample.points1[has_partner]
        )
    flipped = flip_points(sample.points1[partner], sample.image1.shape[-1])
    return replace(
        paired, image1=sample.image1.flip(-1), points0=sample.points0[has_partner], points1=flipped
    )


def rotate_view(sample: PairSample, view: View, degrees: float, scale: float = 1.0) -> PairSample:
    """Rotates one view about its centre and scales it, on a canvas of the same size.

    Args:
        sample: the pair.
        view: the image to rotate.
        degrees: positive rotates clockwise.
        scale: above 1 enlarges.
    """
    image = sample.image0 if view == 0 else sample.image1
    angle = math.radians(degrees)
    cosine, sine = math.cos(angle), math.sin(angle)
    # y points down, so that the usual matrix rotates clockwise.
    rotation = image.new_tensor([[cosine, -sine], [sine, cosine]]) * scale
    size_hw = image_hw(image)
    centre = image.new_tensor([(size_hw[1] - 1) / 2, (size_hw[0] - 1) / 2])
    source = (pixel_grid(size_hw, image.device) - centre) @ torch.linalg.inv(rotation).t() + centre
    padding = _padding(image)
    rotated = sample_image((image - padding)[None], source[None], "zeros")[0] + padding
    rotated = rotated.clamp(0, 1)
    if view == 0:
        points = (sample.points0 - centre) @ rotation.t() + centre
        return _drop_outside(replace(sample, image0=rotated, points0=points))
    points = (sample.points1 - centre) @ rotation.t() + centre
    return _scale_length(_drop_outside(replace(sample, image1=rotated, points1=points)), scale)


def _scaled_hw(size_hw: tuple[int, int], scale: float) -> tuple[int, int]:
    return max(1, round(size_hw[0] * scale)), max(1, round(size_hw[1] * scale))


def _resize_view(image: Tensor, points: Tensor, size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    from_hw = image_hw(image)
    if from_hw == size_hw:
        return image, points
    resized = F.interpolate(image[None], size_hw, mode="bilinear", antialias=True, align_corners=False)[0]
    moved = resize_points(points, resize_scale(from_hw, size_hw))
    # Rounding must not push a point on the border outside.
    edge = points.new_tensor([size_hw[1], size_hw[0]]) - 0.5
    return resized.clamp(0, 1), torch.minimum(moved, edge)


def _scale_length(sample: PairSample, scale: float) -> PairSample:
    if sample.pck_length is None:
        return sample
    return replace(sample, pck_length=sample.pck_length * scale)


def _drop_outside(sample: PairSample) -> PairSample:
    is_kept = is_inside(sample.points0, image_hw(sample.image0))
    return sample.select(is_kept & is_inside(sample.points1, image_hw(sample.image1)))


def _padding(image: Tensor) -> Tensor:
    return image.new_tensor(PADDING_RGB)[:, None, None]


def _crop_image(image: Tensor, corner_xy: tuple[int, int], size_hw: tuple[int, int]) -> Tensor:
    (left, top), (height, width) = corner_xy, size_hw
    right, bottom = min(left + width, image.shape[-1]), min(top + height, image.shape[-2])
    part = image[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if image_hw(part) == size_hw:
        return part
    canvas = _padding(image).repeat(1, height, width)
    y, x = max(-top, 0), max(-left, 0)
    canvas[:, y : y + part.shape[-2], x : x + part.shape[-1]] = part
    return canvas


def _sample_windows(
    sample: PairSample, size0_hw: tuple[int, int], size1_hw: tuple[int, int], generator: torch.Generator
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """The number of correspondences that two random windows share, and their corners."""
    anchor = _sample_row(sample.points0, generator)
    corner0 = _sample_corner(image_hw(sample.image0), size0_hw, anchor, generator)
    partners = sample.points1[is_inside(sample.points0 - sample.points0.new_tensor(corner0), size0_hw)]
    corner1 = _centred_corner(image_hw(sample.image1), size1_hw, partners)
    count = int(is_inside(partners - partners.new_tensor(corner1), size1_hw).sum())
    return count, corner0, corner1


def _sample_row(points: Tensor, generator: torch.Generator) -> Tensor | None:
    if len(points) == 0:
        return None
    return points[int(torch.randint(len(points), (1,), generator=generator))]


def _sample_corner(
    image_hw: tuple[int, int], size_hw: tuple[int, int], anchor: Tensor | None, generator: torch.Generator
) -> tuple[int, int]:
    """A random corner of a window that contains the anchor, with as little padding as possible."""
    corner = []
    for axis, (length, window) in enumerate(zip(image_hw[::-1], size_hw[::-1], strict=True)):
        low, high = sorted((0, length - window))
        if anchor is not None:
            pixel = min(max(round(float(anchor[axis])), 0), length - 1)
            low, high = max(low, pixel - window + 1), min(high, pixel)
        corner.append(int(torch.randint(low, high + 1, (1,), generator=generator)))
    return corner[0], corner[1]


def _centred_corner(image_hw: tuple[int, int], size_hw: tuple[int, int], points: Tensor) -> tuple[int, int]:
    """The corner of the window centred on the median of points, or on the image, kept within the image."""
    corner = []
    for axis, (length, window) in enumerate(zip(image_hw[::-1], size_hw[::-1], strict=True)):
        low, high = sorted((0, length - window))
        middle = float(points[:, axis].median()) if len(points) else (length - 1) / 2
        corner.append(min(max(round(middle - (window - 1) / 2), low), high))
    return corner[0], corner[1]
