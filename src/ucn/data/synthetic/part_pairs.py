"""Renders batches of semantic pairs: two instances of a class, on the device that holds their images.

Each view shows an image rotated, scaled, shifted and perhaps mirrored; a mirrored left eye is a right eye.
All randomness comes from one generator, so that a seed determines the pairs. `generator` does this for
geometric pairs.
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
from ucn.types import LazyNames, PairBatch


class PartBank:
    """Images with annotated parts, held on one device and sorted by class.

    Attributes:
        images: the images.
        parts: (M, P, 2) float, pixels of the images as held; P is that of the class with most parts.
        is_visible: (M, P) bool.
        mirror_parts: (M, P) int64, the part that each part becomes in a mirrored image.
        has_mirror: whether the set defines `mirror_parts` for every image.
        first: (M,) int64, index of the first image of each image's class.
        count: (M,) int64, number of images of that class.
    """

    def __init__(self, data: KeypointData, side: int, device: torch.device | str) -> None:
        """Reads all images of a data set.

        Args:
            data: images with parts.
            side: larger images are downscaled to this longer side.
            device: device of the images.

        Raises:
            DataError: there are none.
            UcnError: a file is faulty.
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
        sizes = Counter(example.category for example in examples)  # in the order of the images
        counts = torch.tensor(list(sizes.values()))
        firsts = torch.tensor([0, *accumulate(sizes.values())][:-1])
        self.parts, self.is_visible = parts.to(device), is_visible.to(device)
        self.mirror_parts = mirror_parts.to(device)
        self.first = firsts.repeat_interleave(counts).to(device)
        self.count = counts.repeat_interleave(counts).to(device)

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class PartAugmentation:
    """Random augmentation of the views of semantic pairs.

    Attributes:
        rotation: largest rotation of each view, in degrees.
        scale: largest factor by which each view is enlarged or reduced.
        shift: largest translation of the image, as a fraction of the view's sides.
        mirror: probability of mirroring both views.
        mirror_view: probability of mirroring one view only.
        across: fraction of pairs of any two images; the others are of one class.
        photometric: strength of photometric changes.
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
    augmentation: PartAugmentation,
    generator: torch.Generator,
) -> PairBatch:
    """Renders a batch of pairs.

    Args:
        bank: the images. A pair is two images of one class; a class with one image gives it twice.
        batch: the number of pairs.
        size_hw: (H, W) of the views; images are scaled to fit, and mirrored beyond their borders.
        augmentation: random augmentation of the views.
        generator: random generator, on the bank's device.

    Returns:
        The pairs on the bank's device, with a row for each part; valid are parts visible in both views.

    Raises:
        DataError: one view is to be mirrored, but the set does not define mirror parts.
    """
    if augmentation.mirror_view and not bank.has_mirror:
        raise DataError("the parts of this data set have no mirror parts: set mirror_view to 0 for it")
    unit = dict.fromkeys(("image", "partner", "across", "anyone", "mirror", "mirror_view"), (0.0, 1.0, 1))
    columns = uniform_columns((batch,), unit, generator)
    index0 = (columns["image"] * len(bank)).long().clamp_max(len(bank) - 1)
    count, first = bank.count[index0], bank.first[index0]
    steps = 1 + (columns["partner"] * (count - 1)).long()
    of_class = first + (index0 - first + steps) % count
    of_any = (columns["anyone"] * len(bank)).long().clamp_max(len(bank) - 1)
    index1 = torch.where(columns["across"] < augmentation.across, of_any, of_class)
    is_mirrored0 = columns["mirror"] < augmentation.mirror
    is_mirrored1 = is_mirrored0 ^ (columns["mirror_view"] < augmentation.mirror_view)
    views = [
        ViewPlan(index, *_name_parts(bank, index, is_mirrored), is_mirrored)
        for index, is_mirrored in ((index0, is_mirrored0), (index1, is_mirrored1))
    ]
    return render_pairs(bank.images, views[0], views[1], size_hw, augmentation, generator)


def _name_parts(bank: PartBank, index: Tensor, is_mirrored: Tensor) -> tuple[Tensor, Tensor]:
    """Parts (B, P, 2) and their visibility (B, P), under the names that they have in the view."""
    own = torch.arange(bank.parts.shape[1], device=index.device)
    names = torch.where(is_mirrored[:, None], bank.mirror_parts[index], own)
    points = bank.parts[index].gather(1, names[..., None].expand(-1, -1, 2))
    return points, bank.is_visible[index].gather(1, names)


@dataclass(frozen=True)
class ViewPlan:
    """One view of all pairs, to be rendered.

    Attributes:
        index: (B,) int64, the image of each pair.
        points: (B, P, 2) pixels of these images.
        is_visible: (B, P) bool.
        is_mirrored: (B,) bool.
    """

    index: Tensor
    points: Tensor
    is_visible: Tensor
    is_mirrored: Tensor


def render_pairs(
    images: ImageBank,
    view0: ViewPlan,
    view1: ViewPlan,
    size_hw: tuple[int, int],
    augmentation: PartAugmentation,
    generator: torch.Generator,
) -> PairBatch:
    """Renders pairs, scaled to fit, with random augmentation of each view.

    Args:
        images: the images.
        view0: what view 0 shows.
        view1: what view 1 shows, in the same rows.
        size_hw: (H, W) of the views.
        augmentation: of the views; the shares of mirrored ones are not used.
        generator: random generator, on the device of the images.
    """
    rendered0, points0, is_visible0 = render_view(images, view0, size_hw, augmentation, generator)
    rendered1, points1, is_visible1 = render_view(images, view1, size_hw, augmentation, generator)
    rendered = torch.stack([rendered0, rendered1])
    image0, image1 = change_photometrically(rendered, augmentation.photometric, generator)

    def name_pairs() -> Iterator[str]:
        rows = zip(view0.index.tolist(), view1.index.tolist(), strict=True)
        return (f"{images.names[i]}--{images.names[j]}" for i, j in rows)

    names = LazyNames(len(view0.index), name_pairs)
    return PairBatch(image0, image1, points0, points1, is_visible0 & is_visible1, names)


def render_view(
    images: ImageBank,
    view: ViewPlan,
    size_hw: tuple[int, int],
    augmentation: PartAugmentation,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Images (B, 3, H, W), points (B, P, 2) and their visibility (B, P) of one view."""
    to_view, image_centre, view_centre = _sample_maps(
        images.sizes[view.index], view.is_mirrored, size_hw, augmentation, generator
    )
    grid = pixel_grid(size_hw, view.index.device).reshape(1, -1, 2)
    in_image = (grid - view_centre) @ torch.linalg.inv_ex(to_view)[0].transpose(1, 2) + image_centre
    rendered = images.sample(view.index, in_image.view(len(view.index), *size_hw, 2))
    points = (view.points - image_centre) @ to_view.transpose(1, 2) + view_centre
    return rendered, points, view.is_visible & is_inside(points, size_hw)


def _sample_maps(
    sizes: Tensor,
    is_mirrored: Tensor,
    size_hw: tuple[int, int],
    augmentation: PartAugmentation,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """A (B, 2, 2), c (B, 1, 2) and v (B, 1, 2): a point p of an image lies at A (p - c) + v of its view."""
    height, width = size_hw
    turn, log_scale = math.radians(augmentation.rotation), math.log(augmentation.scale)
    ranges = {"angle": (-turn, turn, 1), "log_scale": (-log_scale, log_scale, 1), "shift": (-1.0, 1.0, 2)}
    columns = uniform_columns((len(sizes),), ranges, generator)
    fitting = torch.minimum(width / sizes[:, 0], height / sizes[:, 1])
    scale = fitting * columns["log_scale"].exp()
    cosine, sine = scale * columns["angle"].cos(), scale * columns["angle"].sin()
    sign = 1 - 2 * is_mirrored.to(cosine.dtype)
    to_view = torch.stack([cosine * sign, -sine, sine * sign, cosine], dim=-1).view(-1, 2, 2)
    shift_x, shift_y = (columns["shift"] * augmentation.shift).unbind(-1)
    view_centre = torch.stack([(width - 1) / 2 + shift_x * width, (height - 1) / 2 + shift_y * height], -1)
    return to_view, (sizes[:, None] - 1) / 2, view_centre[:, None]
