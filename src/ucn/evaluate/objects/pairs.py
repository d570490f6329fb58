"""Pairs of images of one class, with masks of the object, and with head boxes where a table has them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import image_hw, read_image, read_image_hw, read_mask
from ucn.data.sets.layout import check_folder
from ucn.data.synthetic.class_bank import find_mask, list_classes
from ucn.errors import DataError
from ucn.evaluate.core.cache import digest_data
from ucn.evaluate.points.predictions import sample_points
from ucn.files.reading import is_number, read_text
from ucn.files.suggestions import suggest
from ucn.geometry.coords import resize_points, resize_scale
from ucn.nn import MIN_SIDE
from ucn.nn.tiling import reduce_image

MAX_SIDE = 256
"""Larger images are reduced to this longest side, in pixels."""

_FILE, _BOX = "file", ("head_x0", "head_y0", "head_x1", "head_y1")  # columns of a table of head boxes


@dataclass(frozen=True)
class ObjectImage:
    """An image of one object.

    Attributes:
        path: the image.
        mask: a PNG of its size that is not 0 on the object.
        head: (x0, y0, x1, y1) pixels of the head; None where no table has it.
        table: the file with the head box; None where there is none.
    """

    path: Path
    mask: Path
    head: tuple[float, float, float, float] | None = None
    table: Path | None = None


@dataclass(frozen=True)
class ObjectPair:
    """Two images of one class.

    Attributes:
        group: name of the folder of classes.
        category: the class.
        image0: points and mask are carried from it.
        image1: to this one.
    """

    group: str
    category: str
    image0: ObjectImage
    image1: ObjectImage

    @property
    def name(self) -> str:
        """Unique in the evaluation."""
        return f"{self.group}/{self.category}/{self.image0.path.stem}--{self.image1.path.stem}"


@dataclass(frozen=True, eq=False)
class ObjectView:
    """An image as all methods get it.

    Attributes:
        image: (3, H, W) in [0, 1].
        mask: (H, W) bool, the pixels of the object.
        head: (4,) x0, y0, x1, y1; NaN where it is not known.
    """

    image: Tensor
    mask: NDArray[np.bool_]
    head: NDArray[np.float64]


def list_pairs(folder: Path, classes: Sequence[str], count: int, seed: int) -> list[ObjectPair]:
    """Pairs of every class of a folder, or of every folder of classes in it, sampled by the seed.

    Each class is sampled by a seed of its own, so that the other classes do not change its pairs. Images
    without a mask, or too small to be matched, are left out.

    Args:
        folder: has a folder of images per class, or such folders.
        classes: names of those to use; all that have two images with masks where empty.
        count: pairs of a class, or all where it has fewer.
        seed: of the sampling.

    Raises:
        DataError: there are no masks, a named class does not exist or has less than two masks, a mask is
            empty, or a table of head boxes is wrong.
        ImageReadError: an image or a mask cannot be read, or they differ in size.
    """
    sets = _find_sets(folder)
    known = list(dict.fromkeys(name for own in sets.values() for name in own))
    for name in classes:
        if name not in known:
            legal = ", ".join(known)
            raise DataError(f"no class '{name[:80]}' in {folder}{suggest(name, known)} (there are {legal})")
    pairs = []
    for root, found in sets.items():
        heads = _read_heads(root)
        for category, images in found.items():
            if classes and category not in classes:
                continue
            own = [_describe(path, root, heads) for path in images if min(read_image_hw(path)) >= MIN_SIDE]
            if len(own) < 2:
                if not classes:
                    continue
                raise DataError(
                    f"class '{category}' of {root} has {len(own)} images with masks, of at least {MIN_SIDE} "
                    "px a side; a pair needs two"
                )
            group = root.resolve().name
            for row in sample_points(len(own) * (len(own) - 1), count, seed, category).tolist():
                first, second = divmod(row, len(own) - 1)
                pairs.append(ObjectPair(group, category, own[first], own[second + (second >= first)]))
    if not pairs:
        raise DataError(f"no class in {folder} has two images with masks; a mask is a PNG beside its image")
    for image in dict.fromkeys(each for pair in pairs for each in (pair.image0, pair.image1)):
        if not read_mask(image.mask, read_image_hw(image.path)).any():
            raise DataError(f"mask {image.mask} is 0 everywhere; it must not be 0 on the object")
    return pairs


def choose_rows(pairs: Sequence[ObjectPair], count: int) -> list[int]:
    """Rows of the first `count` pairs of each class, or all where it has fewer; classes take turns."""
    ranks: dict[tuple[str, str], int] = {}
    chosen = []
    for row, pair in enumerate(pairs):
        rank = ranks[pair.group, pair.category] = ranks.get((pair.group, pair.category), -1) + 1
        chosen.append((rank, row))
    return [row for rank, row in sorted(chosen) if rank < count]


def _find_sets(folder: Path) -> dict[Path, dict[str, list[Path]]]:
    """The images with masks of each class, by folder of classes: those in the folder, else it itself."""
    check_folder(folder, "a folder of images per class")
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    sets = {path: own for path in inside if (own := _list_masked(path))}
    if not sets:
        list_classes(folder)  # says what is missing where there is no class at all
        sets = {folder: own} if (own := _list_masked(folder)) else {}
    if not sets:
        raise DataError(
            f"no masks in {folder}: expected a folder of images per class, and beside an image a PNG of its "
            "name and size that is not 0 on the object, such as cat/1.jpg and cat/1.png"
        )
    return sets


def _list_masked(folder: Path) -> dict[str, list[Path]]:
    """The images with masks of each class; empty where the folder has no classes, or no masks."""
    try:
        found = list_classes(folder)
    except DataError:
        return {}
    masked = {name: [path for path in images if find_mask(path)] for name, images in found.items()}
    return masked if any(masked.values()) else {}


_Heads = Mapping[str, tuple[Path, tuple[float, float, float, float]]]


def _describe(path: Path, root: Path, heads: _Heads) -> ObjectImage:
    mask = find_mask(path)
    assert mask is not None
    table, head = heads.get(path.relative_to(root).as_posix(), (None, None))
    return ObjectImage(path, mask, head, table)


def _read_heads(folder: Path) -> _Heads:
    """Table and head box by image, from every CSV of a folder that has columns of head boxes."""
    heads: dict[str, tuple[Path, tuple[float, float, float, float]]] = {}
    for path in sorted(folder.glob("*.csv")):
        rows = csv.DictReader(io.StringIO(read_text(path, "table of head boxes")))
        names = rows.fieldnames or ()
        if not set(_BOX) & set(names):
            continue
        missing = [name for name in (_FILE, *_BOX) if name not in names]
        if missing:
            expected = ", ".join((_FILE, *_BOX))
            raise DataError(f"{path} has no column '{missing[0]}'; a table of head boxes needs {expected}")
        for row in rows:
            cells = [(row[name] or "").strip() for name in _BOX]
            if not any(cells):
                continue
            x0, y0, x1, y1 = (float(cell) if is_number(cell) else math.nan for cell in cells)
            if not (x0 < x1 < math.inf and y0 < y1 < math.inf and min(x0, y0) > -math.inf):
                raise DataError(
                    f"{path}, line {rows.line_num}: expected a head box x0 < x1, y0 < y1 in pixels, got "
                    f"{', '.join(cells)[:80]}; leave it empty where it is not known"
                )
            heads[row[_FILE]] = path, (x0, y0, x1, y1)
    return heads


def digest_objects(pairs: Sequence[ObjectPair]) -> str:
    """A hash of the names and files of all pairs, in order."""
    return digest_data(
        (
            pair.name,
            [
                path
                for each in (pair.image0, pair.image1)
                for path in (each.path, each.mask, each.table)
                if path
            ],
        )
        for pair in pairs
    )


def read_view(image: ObjectImage, max_side: int) -> ObjectView:
    """Reads an image with its mask and head box, reduced to a longest side.

    Raises:
        ImageReadError: a file cannot be read, or the mask has another size.
    """
    pixels = read_image(image.path)
    mask = read_mask(image.mask, image_hw(pixels))
    given_hw, pixels = image_hw(pixels), reduce_image(pixels, max_side)
    head = torch.full((4,), math.nan, dtype=torch.float64)
    if image.head is not None:
        corners = torch.tensor(image.head, dtype=torch.float64).view(2, 2)
        head = resize_points(corners, resize_scale(given_hw, image_hw(pixels))).flatten()
    held = F.interpolate(mask[None, None].float(), image_hw(pixels), mode="nearest-exact")[0, 0] > 0
    return ObjectView(pixels, held.numpy(), head.numpy())
