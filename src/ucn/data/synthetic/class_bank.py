"""Images sorted by class, without annotated points, held on one device.

A folder holds a folder of images per class. A mask of the object may lie beside an image: a PNG of the same name
and size that is not 0 on the object, for an image of another format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ucn.data.io import IMAGE_SUFFIXES, image_hw, read_image, read_mask
from ucn.data.sets.layout import check_folder
from ucn.data.synthetic.bank import ImageBank
from ucn.data.synthetic.part_pairs import PartAugmentation, render_views
from ucn.errors import DataError

_MASK_SUFFIX = ".png"


class ClassBank:
    """Images by class, and where they show the object.

    Attributes:
        images: the images, sorted by class.
        masks: (M, S, S) bool, the pixels of the object on the canvas of each image; the whole image where it
            has no mask.
        first: (M,) int64, index of the first image of each image's class.
        count: (M,) int64, number of images of that class.
    """

    def __init__(self, paths: Sequence[Path], side: int, device: torch.device | str) -> None:
        """Reads images and their masks.

        Args:
            paths: the images, those of one class in one folder.
            side: larger images are downscaled to this longer side.
            device: device of the images.

        Raises:
            DataError: there are none.
            ImageReadError: an image or a mask cannot be read.
        """
        paths = sorted(paths, key=lambda path: (path.parent.name, path.name))
        masks: list[Tensor] = []

        def read_images() -> Iterator[Tensor]:
            with ThreadPoolExecutor() as pool:
                for image, mask in pool.map(_read, paths):
                    masks.append(mask)
                    yield image

        self.images = ImageBank(paths, side, device, read_images())
        self.masks = torch.zeros(len(paths), side, side, dtype=torch.bool)
        for row, (width, height) in enumerate(self.images.sizes.int().tolist()):
            resized = F.interpolate(masks[row][None, None].float(), (height, width), mode="nearest-exact")
            self.masks[row, :height, :width] = resized[0, 0] > 0
        self.masks = self.masks.to(device)
        classes = [path.parent for path in paths]
        firsts = {name: classes.index(name) for name in dict.fromkeys(classes)}
        self.first = torch.tensor([firsts[name] for name in classes], device=device)
        self.count = torch.tensor([classes.count(name) for name in classes], device=device)

    def __len__(self) -> int:
        return len(self.images)

    def render(self, index: Tensor, is_mirrored: Tensor, side: int) -> Tensor:
        """Square views (B, 3, side, side) of images, scaled to fit and centred, without augmentation."""
        empty = self.images.sizes.new_zeros(len(index), 0, 2)
        generator = torch.Generator(index.device)  # nothing is random without augmentation
        views = render_views(
            self.images,
            index,
            empty,
            empty[..., 0].bool(),
            is_mirrored,
            (side, side),
            PartAugmentation(),
            generator,
        )
        return views.images

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

    Args:
        folder: holds a folder of images per class.
        exclude: names of classes to leave out.

    Raises:
        DataError: there is no class with two images, or a class to exclude does not exist.
    """
    check_folder(folder, "a folder of images per class")
    places = sorted(place for place in folder.iterdir() if place.is_dir())
    missing = set(exclude) - {place.name for place in places}
    if missing:
        raise DataError(f"no class '{min(missing)}' in {folder} to exclude; correct its name")
    found = {place.name: _list_images(place) for place in places if place.name not in exclude}
    found = {name: images for name, images in found.items() if len(images) > 1}
    if not found:
        raise DataError(f"no class in {folder}: expected folders with at least two images each")
    return found


def _list_images(folder: Path) -> list[Path]:
    images = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES]
    others = {path.stem for path in images if path.suffix.lower() != _MASK_SUFFIX}
    return [path for path in images if path.suffix.lower() != _MASK_SUFFIX or path.stem not in others]


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """An image (3, H, W), and the mask (H, W) of its object."""
    image, mask_path = read_image(path), path.with_suffix(_MASK_SUFFIX)
    if path.suffix.lower() == _MASK_SUFFIX or not mask_path.is_file():
        return image, torch.ones(image.shape[-2:], dtype=torch.bool)
    return image, read_mask(mask_path, image_hw(image))
