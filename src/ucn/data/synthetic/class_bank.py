"""Images sorted by class, without annotated points, held on one device.

A folder holds a folder of images per class. A mask of the object may lie beside an image: a PNG of the same
name and size that is not 0 on the object, for an image of another format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.checking import to_problem
from ucn.data.io import IMAGE_SUFFIXES, image_hw, read_image, read_mask
from ucn.data.pairs import Problem
from ucn.data.sets.layout import check_folder
from ucn.data.synthetic.bank import ImageBank, find_held_hw
from ucn.data.synthetic.part_pairs import PartAugmentation, ViewPlan, render_view
from ucn.errors import DataError, ImageReadError

_MASK_SUFFIXES = (".png", ".PNG")
_READ_AHEAD = 64  # images that are decoded at once


class ClassBank:
    """Images by class, and where they show the object.

    Attributes:
        images: the images, sorted by class.
        masks: (M, S, S) bool, the pixels of the object on the canvas of each image; the whole image where it
            has no mask.
        first: (M,) int64, index of the first image of each image's class.
        count: (M,) int64, number of images of that class.
        problems: images that cannot be read, or whose masks cannot; they are left out.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        side: int,
        device: torch.device | str,
        watch: Callable[[int, int], None] | None = None,
    ) -> None:
        """Reads images and their masks.

        Args:
            paths: the images, those of one class in one folder.
            side: larger images are downscaled to this longer side.
            device: device of the images.
            watch: called with (read, all) after each image.

        Raises:
            DataError: there are none, or none can be read.
        """
        paths = sorted(paths, key=lambda path: (path.parent, path.name))
        classes: list[Path] = []  # of the images that can be read
        problems: list[Problem] = []
        masks = torch.zeros(len(paths), side, side, dtype=torch.bool)

        def read_images() -> Iterator[Tensor | None]:
            for done, (path, found) in enumerate(zip(paths, _read_ahead(paths), strict=True), start=1):
                if watch is not None:
                    watch(done, len(paths))
                if isinstance(found, ImageReadError):
                    problems.append(to_problem(found, path))
                    yield None
                    continue
                image, mask = found
                height, width = find_held_hw(image_hw(image), side)
                held = F.interpolate(mask[None, None].float(), (height, width), mode="nearest-exact")
                masks[len(classes), :height, :width] = held[0, 0] > 0
                classes.append(path.parent)
                yield image

        self.images = ImageBank(paths, side, device, read_images())
        self.problems = tuple(problems)
        self.masks = masks[: len(classes)].to(device)
        sizes = Counter(classes)  # in the order of the images
        counts = torch.tensor(list(sizes.values()))
        firsts = torch.tensor([0, *accumulate(sizes.values())][:-1])
        self.first = firsts.repeat_interleave(counts).to(device)
        self.count = counts.repeat_interleave(counts).to(device)

    def __len__(self) -> int:
        return len(self.images)

    def render(self, index: Tensor, is_mirrored: Tensor, side: int) -> Tensor:
        """Square views (B, 3, side, side) of images, scaled to fit and centred, without augmentation."""
        no_points = self.images.sizes.new_zeros(len(index), 0, 2)
        plan = ViewPlan(index, no_points, no_points[..., 0].bool(), is_mirrored)
        generator = torch.Generator(index.device)  # nothing is random without augmentation
        return render_view(self.images, plan, (side, side), PartAugmentation(), generator)[0]

    def to_image(self, points: Tensor, index: Tensor, is_mirrored: Tensor, side: int) -> Tensor:
        """Pixels (B, P, 2) of the images at pixels of their views of `render`."""
        sizes = self.images.sizes[index][:, None]  # (B, 1, 2), width and height
        scale = side / sizes.amax(dim=-1, keepdim=True)
        sign = torch.ones_like(sizes)
        sign[..., 0] = 1 - 2 * is_mirrored[:, None].to(sizes.dtype)
        return (points - (side - 1) / 2) / scale * sign + (sizes - 1) / 2

    def is_object(self, points: Tensor, index: Tensor) -> Tensor:
        """Whether pixels (B, P, 2) of the images show the object, (B, P)."""
        columns, rows = points.round().long().unbind(-1)
        limit = self.masks.shape[-1] - 1
        is_inside = (columns >= 0) & (rows >= 0) & (columns <= limit) & (rows <= limit)
        return is_inside & self.masks[index[:, None], rows.clamp(0, limit), columns.clamp(0, limit)]


def list_classes(folder: Path, exclude: Sequence[str] = ()) -> dict[str, list[Path]]:
    """The images of each class of a folder, sorted; masks are not among them.

    A class with a single image is left out.

    Args:
        folder: holds a folder of images per class.
        exclude: names of classes to leave out.

    Raises:
        DataError: there is no class with two images, or a class to exclude does not exist.
    """
    check_folder(folder, "a folder of images per class")
    places = sorted(place for place in folder.iterdir() if place.is_dir())
    missing = sorted(set(exclude) - {place.name for place in places})
    if missing:
        known = ", ".join(place.name for place in places[:20]) or "none"
        raise DataError(f"no class '{missing[0][:80]}' in {folder} to exclude (there are {known})")
    found = {place.name: _list_images(place) for place in places if place.name not in exclude}
    found = {name: images for name, images in found.items() if len(images) > 1}
    if not found:
        raise DataError(
            f"no class in {folder}: expected a folder per class with at least two images each, got "
            f"{len(places)} folders; give the folder that holds them"
        )
    return found


def find_mask(image: Path) -> Path | None:
    """The mask beside an image; None where there is none."""
    masks = () if image.suffix in _MASK_SUFFIXES else map(image.with_suffix, _MASK_SUFFIXES)
    return next((mask for mask in masks if mask.is_file()), None)


def _list_images(folder: Path) -> list[Path]:
    images = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES]
    others = {path.stem for path in images if path.suffix not in _MASK_SUFFIXES}
    return [path for path in images if path.suffix not in _MASK_SUFFIXES or path.stem not in others]


def _read_ahead(paths: Sequence[Path]) -> Iterator[tuple[Tensor, Tensor] | ImageReadError]:
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), _READ_AHEAD):  # decoded images are large
            yield from pool.map(_read, paths[start : start + _READ_AHEAD])


def _read(path: Path) -> tuple[Tensor, Tensor] | ImageReadError:
    """An image (3, H, W), and the mask (H, W) of its object; or why they cannot be read."""
    try:
        image = read_image(path)
        found = find_mask(path)
        whole = torch.ones(image_hw(image), dtype=torch.bool)
        return image, whole if found is None else read_mask(found, image_hw(image))
    except ImageReadError as error:
        return error
