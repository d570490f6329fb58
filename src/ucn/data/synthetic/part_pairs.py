"""Pairs of two instances of a kind, made on the device that holds their images.

Each view shows an image turned, scaled, shifted and perhaps mirrored; a mirrored left eye is a right eye. All
draws come from one generator, so a seed fixes the pairs. `synthetic` does the like for photographs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ucn.data.augment.photometric import change_photometrically
from ucn.data.augment.random import uniform_columns
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.parts import Keypoints
from ucn.data.synthetic.bank import ImageBank
from ucn.errors import DataError
from ucn.geometry.coords import is_inside, pixel_grid, resize_points, resize_scale
from ucn.types import LateNames, PairBatch


class PartBank:
    """Images with parts, held on one device, those of a class side by side.

    Attributes:
        images: the images.
        parts: (M, P, 2) float, pixels of the images as held; P is that of the class with most parts.
        is_visible: (M, P) bool.
        mirror_parts: (M, P) int64, what each part is in a mirror.
        has_mirror: whether the set says so for every image.
        first: (M,) int64, the first image of each image's class.
        count: (M,) int64, how many images that class has.
    """

    def __init__(self, data: KeypointData, side: int, device: torch.device | str) -> None:
        """Reads all images of a data set.

        Args:
            data: images with parts.
            side: larger images are reduced to this longest side.
            device: where to hold them.

        Raises:
            DataError: there are none.
            UcnError: a file is wrong.
        """
        examples = sorted(data.examples, key=lambda example: example.category)
        found: list[tuple[Keypoints, tuple[int, int]]] = []

        def read_images() -> Iterator[Tensor]:
            for example in examples:
                view = data.read_view(example)
                found.append((view.keypoints, view.size_hw))
                yield view.image

        self.images = ImageBank([example.image for example in examples], side, device, read_images())
        shape = (len(found), max(len(keypoints.points) for keypoints, _ in found))
        parts, is_visible = torch.zeros(*shape, 2), torch.zeros(shape, dtype=torch.bool)
        mirror_parts, self.has_mirror = torch.arange(shape[1]).repeat(shape[0], 1), True
        held_sizes = self.images.sizes.int().tolist()
        for row, (keypoints, image_hw) in enumerate(found):
            count = len(keypoints.points)
            scale_xy = resize_scale(image_hw, (held_sizes[row][1], held_sizes[row][0]))
            points = torch.from_numpy(keypoints.points.astype(np.float32))
            parts[row, :count] = resize_points(points, scale_xy)
            is_visible[row, :count] = torch.from_numpy(keypoints.is_visible)
            mirror = data.mirror_table(examples[row].category)
            if mirror is None or len(mirror) != count:
                self.has_mirror = False
            else:
                mirror_parts[row, :count] = torch.from_numpy(mirror)
        sizes = Counter(example.category for example in examples)  # in the order of the classes
        counts = torch.tensor(list(sizes.values()))
        firsts = torch.tensor([0, *accumulate(sizes.values())][:-1])
        self.parts, self.is_visible = parts.to(device), is_visible.to(device)
        self.mirror_parts = mirror_parts.to(device)
        self.first = firsts.repeat_interleave(counts).to(device)
        self.count = counts.repeat_interleave(counts).to(device)

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Variation:
    """How views of images with parts vary.

    Attributes:
        rotation: largest turn of each view, in degrees.
        scale: largest factor by which each view is enlarged or reduced.
        shift: largest way, as a share of the view's sides, that the image is moved.
        mirror: share of pairs whose views are mirrored, both alike.
        mirror_view: share of pairs of which one view is mirrored and the other is not.
        across: share of pairs of two images of any classes; the others are of one class.
        photometric: strength of changes of light and colour.
    """

    rotation: float = 0.0
    scale: float = 1.0
    shift: float = 0.0
    mirror: float = 0.0
    mirror_view: float = 0.0
    across: float = 0.0
    photometric: float = 0.0


def make_part_pairs(
    bank: PartBank,
    batch: int,
    size_hw: tuple[int, int],
    variation: Variation,
    generator: torch.Generator,
) -> PairBatch:
    """A batch of pairs.

    Args:
        bank: the images. A pair is two of them, of one class; where a class has one image, that one twice.
        batch: how many pairs.
        size_hw: (H, W) of the views; images are scaled to fit, and go on beyond their borders as in a mirror.
        variation: how the views vary.
        generator: source of all draws, on the bank's device.

    Returns:
        The pairs on the bank's device, with a row for each part; valid are those seen in both views.

    Raises:
        DataError: one view is to be mirrored, but the set does not say what parts are in a mirror.
    """
    if variation.mirror_view and not bank.has_mirror:
        raise DataError("the parts of this data set have no left and right: set mirror_view to 0 for it")
    unit = dict.fromkeys(("image", "partner", "across", "anyone", "mirror", "mirror_view"), (0.0, 1.0, 1))
    drawn = uniform_columns((batch,), unit, generator)
    index0 = (drawn["image"] * len(bank)).long().clamp_max(len(bank) - 1)
    count, first = bank.count[index0], bank.first[index0]
    steps = 1 + (drawn["partner"] * (count - 1)).long()
    of_class = first + (index0 - first + steps) % count
    of_any = (drawn["anyone"] * len(bank)).long().clamp_max(len(bank) - 1)
    index1 = torch.where(drawn["across"] < variation.across, of_any, of_class)
    is_mirrored0 = drawn["mirror"] < variation.mirror
    is_mirrored1 = is_mirrored0 ^ (drawn["mirror_view"] < variation.mirror_view)
    view0 = _show(bank, index0, is_mirrored0, size_hw, variation, generator)
    view1 = _show(bank, index1, is_mirrored1, size_hw, variation, generator)
    images = torch.stack([view0.images, view1.images])
    image0, image1 = change_photometrically(images, variation.photometric, generator)

    def name_pairs() -> Iterator[str]:
        rows = zip(index0.tolist(), index1.tolist(), strict=True)
        return (f"{bank.images.names[i]}--{bank.images.names[j]}" for i, j in rows)

    return PairBatch(
        image0=image0,
        image1=image1,
        points0=view0.points,
        points1=view1.points,
        is_valid=view0.is_seen & view1.is_seen,
        names=LateNames(batch, name_pairs),
    )


@dataclass(frozen=True)
class _Views:
    """What one side of the pairs shows: (B, 3, H, W), (B, P, 2), (B, P)."""

    images: Tensor
    points: Tensor
    is_seen: Tensor


def _show(
    bank: PartBank,
    index: Tensor,
    is_mirrored: Tensor,
    size_hw: tuple[int, int],
    variation: Variation,
    generator: torch.Generator,
) -> _Views:
    to_view, image_centre, view_centre = _draw_maps(bank, index, is_mirrored, size_hw, variation, generator)
    grid = pixel_grid(size_hw, index.device).reshape(1, -1, 2)
    in_image = (grid - view_centre) @ torch.linalg.inv_ex(to_view)[0].transpose(1, 2) + image_centre
    images = bank.images.sample(index, in_image.view(len(index), *size_hw, 2))
    points = (bank.parts[index] - image_centre) @ to_view.transpose(1, 2) + view_centre
    names = torch.where(
        is_mirrored[:, None], bank.mirror_parts[index], torch.arange(points.shape[1], device=index.device)
    )
    points = points.gather(1, names[..., None].expand(-1, -1, 2))
    is_seen = bank.is_visible[index].gather(1, names) & is_inside(points, size_hw)
    return _Views(images, points, is_seen)


def _draw_maps(
    bank: PartBank,
    index: Tensor,
    is_mirrored: Tensor,
    size_hw: tuple[int, int],
    variation: Variation,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 2, 2), (B, 1, 2) and (B, 1, 2): a point p of an image lies at A (p - c) + v of its view."""
    height, width = size_hw
    turn, log_scale = math.radians(variation.rotation), math.log(variation.scale)
    ranges = {"angle": (-turn, turn, 1), "log_scale": (-log_scale, log_scale, 1), "shift": (-1.0, 1.0, 2)}
    drawn = uniform_columns((len(index),), ranges, generator)
    sizes = bank.images.sizes[index]
    fitting = torch.minimum(width / sizes[:, 0], height / sizes[:, 1])
    scale = fitting * drawn["log_scale"].exp()
    cosine, sine = scale * drawn["angle"].cos(), scale * drawn["angle"].sin()
    sign = 1 - 2 * is_mirrored.to(cosine.dtype)
    to_view = torch.stack([cosine * sign, -sine, sine * sign, cosine], dim=-1).view(-1, 2, 2)
    shift_x, shift_y = (drawn["shift"] * variation.shift).unbind(-1)
    view_centre = torch.stack([(width - 1) / 2 + shift_x * width, (height - 1) / 2 + shift_y * height], -1)
    return to_view, (sizes[:, None] - 1) / 2, view_centre[:, None]
