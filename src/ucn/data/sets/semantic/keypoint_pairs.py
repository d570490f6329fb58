"""The base of the semantic data sets: any two images of a class are a pair.

The parts visible in both images are its correspondences. Sets have millions of such pairs; none is stored:
pair k is computed from k by counting. `parts` says what happens to points outside their image.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import read_image
from ucn.data.pairs import DataFile, Fault, PairData, check_choice, check_index, split_groups
from ucn.data.sets.layout import read_lines
from ucn.data.sets.semantic.pair_counting import GroupPairs, ListedPairs, PairIndex
from ucn.data.sets.semantic.parts import OUTSIDE_SHARE, Example, Keypoints, put_on_image
from ucn.errors import DataError, ImageReadError
from ucn.types import PairSample

PAIRINGS = ("class", "any")
"""Which images make a pair: two of one class, or any two."""

_MAX_FAULTS = 50  # of one file; a list that belongs to another set is wrong in each of its lines


def shorten(faults: Sequence[Fault]) -> list[Fault]:
    """The first faults of a file, and how many more there are."""
    if len(faults) <= _MAX_FAULTS:
        return list(faults)
    rest = f"{len(faults) - _MAX_FAULTS:,} more faults of this kind; the first are named above"
    return [*faults[:_MAX_FAULTS], replace(faults[0], message=rest, line=None)]


def first_share(count: int) -> int:
    """How many of `count` sorted entries are for training where a set has no split of its own: 80 %."""
    return count * 4 // 5


@dataclass(frozen=True)
class PartView:
    """An image and where its parts are.

    Attributes:
        image: (3, H, W) float RGB in [0, 1].
        keypoints: its parts, those outside the image not visible.
    """

    image: Tensor
    keypoints: Keypoints

    @property
    def size_hw(self) -> tuple[int, int]:
        """(H, W) of the image."""
        return self.image.shape[-2], self.image.shape[-1]


class KeypointData(PairData):
    """Pairs of images whose parts are known; a reader says where the parts of an image are."""

    outside_share: float = OUTSIDE_SHARE

    def __init__(
        self,
        root: Path,
        examples: Iterable[Example],
        pairing: str = "class",
        pairs: Sequence[tuple[int, int]] | None = None,
        lists: Sequence[Path] = (),
    ) -> None:
        """Takes what a reader has found.

        Args:
            root: the folder.
            examples: the images; their order is that of the pairs.
            pairing: one of `PAIRINGS`.
            pairs: rows of `examples` that are pairs, in place of all that `pairing` allows.
            lists: text files that all examples come from.
        """
        super().__init__(root)
        check_choice(pairing, PAIRINGS, "pairing")
        self._pairing = pairing
        self._lists = tuple(lists)
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._noted: set[str] = set()
        self._examples = list(examples)
        self._pairs: PairIndex
        if pairs is not None:
            self._use_pairs(self._examples, pairs)
        else:
            self._use_all_pairs(self._examples)

    def _use_pairs(self, examples: Sequence[Example], pairs: Sequence[tuple[int, int]]) -> None:
        """Takes listed pairs, and of the examples those that are in one."""
        used = sorted({row for pair in pairs for row in pair})
        position = {row: place for place, row in enumerate(used)}
        self._examples = [examples[row] for row in used]
        self._pairs = ListedPairs([(position[row0], position[row1]) for row0, row1 in pairs])

    def _use_all_pairs(self, examples: Sequence[Example]) -> None:
        if self._pairing == "any":
            self._examples = list(examples)
            self._pairs = GroupPairs([len(examples)])
            return
        groups: dict[str, list[Example]] = {}
        for example in examples:
            groups.setdefault(example.category, []).append(example)
        self._examples = [example for group in groups.values() for example in group]
        self._pairs = GroupPairs(len(group) for group in groups.values())

    @abstractmethod
    def keypoints(self, example: Example) -> Keypoints:
        """Where the parts of an image are, in this package's coordinates; raises `DataError`."""

    @abstractmethod
    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The length L of PCK, from image 1 of a pair: the one in which points are searched."""

    def mirror_table(self, category: str) -> NDArray[np.int64] | None:
        """(P,) what each part of a class is in a mirror; None where the set does not say."""
        return None

    def part_names_of(self, category: str) -> Sequence[str]:
        """The names of a class's parts, in their order; empty where the set does not say."""
        return ()

    def window(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> tuple[int, int, int, int] | None:
        """The part (x0, y0, x1, y1) of the image that is used, ends excluded; by default all of it."""
        return None

    def __len__(self) -> int:
        return len(self._pairs)

    def _pair(self, index: int) -> tuple[Example, Example]:
        check_index(index, len(self))
        row0, row1 = self._pairs[index]
        return self._examples[row0], self._examples[row1]

    def pair_name(self, index: int) -> str:
        """Both images' names."""
        return "--".join(example.name for example in self._pair(index))

    def pair_class(self, index: int) -> str:
        """The class of image 0, which is that of both unless any two images are pairs."""
        return self._pair(index)[0].category

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The names of the parts of that class."""
        return self.part_names_of(self.pair_class(index))

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The files of the two images of a pair."""
        example0, example1 = self._pair(index)
        return example0.image, example1.image

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """Images and their own annotations; a list of the whole set is no pair's file."""
        pair = self._pair(index)
        annotations = (example.annotation for example in pair if not example.is_shared)
        return *(example.image for example in pair), *annotations

    def read(self, index: int) -> PairSample:
        """Reads a pair; its correspondences are the parts visible in both images."""
        example0, example1 = self._pair(index)
        view0, view1 = self.read_view(example0), self.read_view(example1)
        rows = _common_parts(view0.keypoints, view1.keypoints)
        mirror = self.mirror_table(example0.category)
        is_named = mirror is not None and len(mirror) == len(view0.keypoints.points)
        return PairSample(
            image0=view0.image,
            image1=view1.image,
            points0=_to_points(view0.keypoints, rows),
            points1=_to_points(view1.keypoints, rows),
            name=self.pair_name(index),
            pck_length=float(self.pck_length(view1.keypoints, view1.size_hw)),
            parts=torch.from_numpy(rows) if is_named else None,
            mirror_parts=torch.from_numpy(mirror.copy()) if is_named and mirror is not None else None,
        )

    @property
    def examples(self) -> Sequence[Example]:
        """The images that the pairs are made of, those of a class together unless pairs are listed."""
        return self._examples

    def read_view(self, example: Example) -> PartView:
        """Reads one image with its parts; raises `UcnError` where a file is wrong."""
        image = read_image(example.image)
        size_hw = (image.shape[-2], image.shape[-1])
        keypoints = self._put_on_image(self.keypoints(example), size_hw)
        window = self.window(keypoints, size_hw)
        if window is None:
            return PartView(image, keypoints)
        x0, y0, x1, y1 = window
        moved = replace(keypoints, points=keypoints.points - (x0, y0), box=None)
        return PartView(image[:, y0:y1, x0:x1].contiguous(), moved)

    def _put_on_image(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> Keypoints:
        placed, note = put_on_image(keypoints, size_hw, self.outside_share)
        if note:
            self._note(note)
        return placed

    def _note(self, text: str) -> None:
        if text not in self._noted:  # an image is read many times
            self._noted.add(text)
            self.notes.append(text)

    def files(self) -> Sequence[DataFile]:
        """Lists, images and annotations; where the points lie is checked with the file they are told from."""
        images: dict[Path, list[Example]] = {}
        for example in self._examples:
            images.setdefault(example.image, []).append(example)
        found = [DataFile(path, "list", partial(_check_list, path)) for path in self._lists]
        found += [DataFile(path, "image", partial(self._check_image, path, images[path])) for path in images]
        for example in self._examples:
            if not example.is_shared:
                check = partial(self._check_annotation, example)
                found.append(DataFile(example.annotation, "points", check))
        return found

    def _check_image(self, path: Path, examples: Sequence[Example]) -> None:
        image = read_image(path)
        self._sizes[path] = (image.shape[-2], image.shape[-1])
        for example in examples:
            if example.is_shared:
                self._put_on_image(self.keypoints(example), self._sizes[path])

    def _check_annotation(self, example: Example) -> None:
        keypoints = self.keypoints(example)
        try:
            if example.image not in self._sizes:
                self._check_image(example.image, ())
        except ImageReadError:
            return  # that is the image's fault, not this file's
        self._put_on_image(keypoints, self._sizes[example.image])

    def without(self, files: Set[Path]) -> PairData:
        """The pairs that none of these files is part of, found without going through all of them."""
        own = ((e.image,) if e.is_shared else (e.image, e.annotation) for e in self._examples)
        return self._select([row for row, paths in enumerate(own) if files.isdisjoint(paths)])

    def without_pairs(self, indices: Set[int]) -> PairData:
        """Listed pairs but these; where all images of a class are pairs, these lose their second image."""
        if isinstance(self._pairs, ListedPairs):
            part = self._select([])
            kept = [self._pairs[index] for index in range(len(self)) if index not in indices]
            part._use_pairs(self._examples, kept)
            return part
        left_out = {self._pairs[index][1] for index in indices}
        return self._select([row for row in range(len(self._examples)) if row not in left_out])

    def split_off(self, share: float) -> tuple[PairData, PairData]:
        """Two parts without a common image: of each class's images, by name, the last `share` is held out.

        Where that gives no pair for validation, two of each class are held out, and where that does not
        either, whole classes, or groups of images that listed pairs connect. Where there is only one, both
        parts are the whole set.
        """
        for held_out in self._choose_held_out(share):
            training = self._select([row for row, e in enumerate(self._examples) if e.image not in held_out])
            validation = self._select([row for row, e in enumerate(self._examples) if e.image in held_out])
            if len(training) and len(validation):
                return training, validation
        return self, self

    def _choose_held_out(self, share: float) -> Iterator[set[Path]]:
        """Images that may be held out, the best choice first."""
        categories: dict[str, set[Path]] = {}
        for example in self._examples:
            categories.setdefault(example.category, set()).add(example.image)
        classes = [sorted(images) for images in categories.values()]
        yield set(chain(*(images[-max(1, math.ceil(share * len(images))) :] for images in classes)))
        yield set(chain(*(images[-2:] for images in classes if len(images) >= 4)))  # two are left to train on
        connections = self._connections()
        _, groups = split_groups(connections, share)
        yield set(chain(*(connections[row] for row in groups)))

    def _connections(self) -> list[tuple[Path, Path]]:
        """Pairs of images enough to say which of them any pairs connect."""
        if isinstance(self._pairs, ListedPairs):
            return [self.image_paths(index) for index in range(len(self))]
        return [
            (before.image, after.image)
            for before, after in pairwise(self._examples)
            if self._pairing == "any" or before.category == after.category
        ]

    def _select(self, rows: Sequence[int]) -> Self:
        """The set with these examples alone, and the pairs that both images of are among them."""
        part = copy.copy(self)
        part.faults, part.notes, part._noted = [], [], set()
        if isinstance(self._pairs, ListedPairs):
            pairs = (self._pairs[index] for index in range(len(self._pairs)))
            kept = set(rows)
            part._use_pairs(self._examples, [pair for pair in pairs if kept.issuperset(pair)])
        else:
            part._use_all_pairs([self._examples[row] for row in rows])
        return part

    def require_pairs(self, split: str, looked_for: str) -> Self:
        """The set itself; raises `DataError` where the split has neither pairs nor faults that explain it."""
        if not len(self) and not self.faults:
            raise DataError(f"split '{split}' of {self.root} has no pairs; looked for {looked_for}")
        return self


def _common_parts(keypoints0: Keypoints, keypoints1: Keypoints) -> NDArray[np.int64]:
    count0, count1 = len(keypoints0.points), len(keypoints1.points)
    if not count0 or not count1:
        return np.zeros(0, np.int64)
    if count0 != count1:
        raise DataError(
            f"{keypoints1.path}: expected {count0} parts as in {keypoints0.path}, got {count1}; "
            "images of one class must have the same parts; correct one of the two"
        )
    return np.flatnonzero(keypoints0.is_visible & keypoints1.is_visible)


def _to_points(keypoints: Keypoints, rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(keypoints.points[rows].astype(np.float32).reshape(-1, 2))


def _check_list(path: Path) -> None:
    for _ in read_lines(path, "list"):
        pass
