"""Base class of semantic data sets: any two images of a class are a pair.

The parts visible in both images are its correspondences. Sets have millions of such pairs, so that none is
stored: pair k is computed from k. `parts` defines how points outside their image are treated.
"""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.io import image_hw, read_header_hw, read_image
from ucn.data.pairs import (
    DataFile,
    PairData,
    Problem,
    check_choice,
    check_index,
    split_groups,
)
from ucn.data.sets.semantic.parts import OUTSIDE_SHARE, Example, Keypoints, clamp_to_image
from ucn.errors import DataError
from ucn.files.reading import read_lines
from ucn.types import PairSample

PAIRINGS = ("class", "any")
"""Which images form a pair: two of one class, or any two."""


def training_count(count: int) -> int:
    """The number of sorted entries for training where a set has no official split: the first 80 %."""
    return count * 4 // 5


class PairIndex(Protocol):
    """The two examples of pair k."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[int, int]: ...


class GroupPairs:
    """All pairs within groups of consecutive examples, in the order of `itertools.combinations`."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self._sizes = list(sizes)
        self._first_example = [0, *itertools.accumulate(self._sizes)]
        self._first_pair = [0, *itertools.accumulate(math.comb(size, 2) for size in self._sizes)]

    def __len__(self) -> int:
        return self._first_pair[-1]

    def __getitem__(self, index: int) -> tuple[int, int]:
        group = bisect_right(self._first_pair, index) - 1
        i, j = unrank_pair(index - self._first_pair[group], self._sizes[group])
        return self._first_example[group] + i, self._first_example[group] + j


class ListedPairs:
    """Listed pairs."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._rows = np.asarray(pairs, np.int32).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return int(self._rows[index, 0]), int(self._rows[index, 1])


def unrank_pair(rank: int, count: int) -> tuple[int, int]:
    """Pair number `rank` of ``itertools.combinations(range(count), 2)``, in integer arithmetic."""
    # Counted from the last pair, row i = count - 2 - k has the k + 1 ranks from k (k + 1) / 2 on.
    reverse = math.comb(count, 2) - 1 - rank
    k = (math.isqrt(8 * reverse + 1) - 1) // 2
    return count - 2 - k, count - 1 - (reverse - k * (k + 1) // 2)


@dataclass(frozen=True)
class PartView:
    """An image and its parts.

    Attributes:
        image: (3, H, W) float RGB in [0, 1].
        keypoints: its parts; those outside the image are not visible.
    """

    image: Tensor
    keypoints: Keypoints

    @property
    def size_hw(self) -> tuple[int, int]:
        """(H, W) of the image."""
        return image_hw(self.image)


class KeypointData(PairData):
    """Pairs of images with annotated parts.

    A reader implements `keypoints` and `pck_length`, and where the set defines them `mirror_table` and
    `part_names_of`.
    """

    outside_share: float = OUTSIDE_SHARE

    def __init__(
        self,
        root: Path,
        examples: Iterable[Example],
        pairing: str = "class",
        pairs: Sequence[tuple[int, int]] | None = None,
        lists: Sequence[Path] = (),
        problems: Sequence[Problem] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """Forms the pairs.

        Args:
            root: the folder.
            examples: the images, in the order of the pairs.
            pairing: one of `PAIRINGS`.
            pairs: rows of `examples` that form pairs, in place of all that `pairing` allows.
            lists: text files that list all examples.
            problems: problems that the reader found.
            notes: notes of the reader.
        """
        super().__init__(root)
        self.problems += problems
        self.notes += notes
        check_choice(pairing, PAIRINGS, "pairing")
        self._pairing = pairing
        self._lists = tuple(lists)
        self._examples = list(examples)
        self._pairs: PairIndex
        if pairs is not None:
            self._use_pairs(self._examples, pairs)
        else:
            self._use_all_pairs(self._examples)

    def _use_pairs(self, examples: Sequence[Example], pairs: Sequence[tuple[int, int]]) -> None:
        """Uses listed pairs, and the examples that they contain."""
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
        """The parts of an image, in this package's coordinates; raises `DataError`."""

    @abstractmethod
    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The length L of PCK in pixels, of image 1 of a pair."""

    def mirror_table(self, category: str) -> NDArray[np.int64] | None:
        """(P,) the part that each part of a class becomes in a mirrored image; None where undefined."""
        return None

    def example_split(self, example: Example) -> str:
        """The split of an image (train, val or test); empty where the set assigns none."""
        return ""

    @property
    def has_listed_pairs(self) -> bool:
        """Whether a list says which images are pairs, rather than their classes."""
        return isinstance(self._pairs, ListedPairs)

    def part_names_of(self, category: str) -> Sequence[str]:
        """The names of the parts of a class, in order; empty where the set has none."""
        return ()

    def window(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> tuple[int, int, int, int] | None:
        """The crop (x0, y0, x1, y1) of the image, ends excluded; None uses the whole image."""
        return None

    def __len__(self) -> int:
        return len(self._pairs)

    def _pair(self, index: int) -> tuple[Example, Example]:
        check_index(index, len(self))
        row0, row1 = self._pairs[index]
        return self._examples[row0], self._examples[row1]

    def pair_name(self, index: int) -> str:
        """The names of both images."""
        return "--".join(example.name for example in self._pair(index))

    def pair_class(self, index: int) -> str:
        """The class of image 0, which is that of both unless `pairing` is any."""
        return self._pair(index)[0].category

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The names of the parts of the pair's class."""
        return self.part_names_of(self.pair_class(index))

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files of a pair."""
        example0, example1 = self._pair(index)
        return example0.image, example1.image

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images and their own annotation files; lists of the whole set do not belong to a pair."""
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
        """The images of all pairs, grouped by class unless pairs are listed."""
        return self._examples

    def read_view(self, example: Example) -> PartView:
        """Reads one image with its parts; raises `UcnError` where a file is faulty."""
        image = read_image(example.image)
        keypoints = self._place(self.keypoints(example), image_hw(image))
        window = self.window(keypoints, image_hw(image))
        if window is None:
            return PartView(image, keypoints)
        x0, y0, x1, y1 = window
        moved = replace(keypoints, points=keypoints.points - (x0, y0), box=None)
        return PartView(image[:, y0:y1, x0:x1].contiguous(), moved)

    def _place(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> Keypoints:
        placed, note = clamp_to_image(keypoints, size_hw, self.outside_share)
        self.add_note(note)
        return placed

    def files(self) -> Sequence[DataFile]:
        """Lists, images and annotations; the check of an annotation includes the positions of its points."""
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
        for example in examples:
            if example.is_shared:
                self._place(self.keypoints(example), image_hw(image))

    def _check_annotation(self, example: Example) -> None:
        keypoints, size_hw = self.keypoints(example), read_header_hw(example.image)
        if size_hw is not None:  # otherwise the check of the image reports it
            self._place(keypoints, size_hw)

    def first_pairs(self, count: int) -> PairData:
        """The pairs of the images of the first `count` pairs."""
        used = {row for index in range(min(count, len(self))) for row in self._pairs[index]}
        return self._select(sorted(used))

    def without(self, files: Set[Path]) -> PairData:
        """The pairs that use none of these files, found without visiting all pairs."""
        own = ((e.image,) if e.is_shared else (e.image, e.annotation) for e in self._examples)
        return self._select([row for row, paths in enumerate(own) if files.isdisjoint(paths)])

    def without_pairs(self, indices: Set[int]) -> PairData:
        """All listed pairs except these; of pairs that are not listed, the second image is removed."""
        if isinstance(self._pairs, ListedPairs):
            part = self._select([])
            kept = [self._pairs[index] for index in range(len(self)) if index not in indices]
            part._use_pairs(self._examples, kept)
            return part
        left_out = {self._pairs[index][1] for index in indices}
        return self._select([row for row in range(len(self._examples)) if row not in left_out])

    def split_off(self, share: float) -> tuple[PairData, PairData]:
        """Splits the set into training and validation pairs that share no image.

        Of the images of each class, sorted by name, the last `share` is held out. Where that gives no
        validation pair, two images of each class are held out; where that does not either, whole classes, or
        connected components of listed pairs. Where there is only one, both parts are the whole set.
        """
        for held_out in self._choose_held_out(share):
            training = self._select([row for row, e in enumerate(self._examples) if e.image not in held_out])
            validation = self._select([row for row, e in enumerate(self._examples) if e.image in held_out])
            if len(training) and len(validation):
                return training, validation
        return self, self

    def _choose_held_out(self, share: float) -> Iterator[set[Path]]:
        """Yields sets of images to hold out, in order of preference."""
        categories: dict[str, set[Path]] = {}
        for example in self._examples:
            categories.setdefault(example.category, set()).add(example.image)
        classes = [sorted(images) for images in categories.values()]
        yield set(itertools.chain(*(images[-max(1, math.ceil(share * len(images))) :] for images in classes)))
        yield set(
            itertools.chain(*(images[-2:] for images in classes if len(images) >= 4))
        )  # two remain for training
        connections = self._connections()
        _, groups = split_groups(connections, share)
        yield set(itertools.chain(*(connections[row] for row in groups)))

    def _connections(self) -> list[tuple[Path, Path]]:
        """Edges that connect the same images as all pairs together do."""
        if isinstance(self._pairs, ListedPairs):
            return [self.image_paths(index) for index in range(len(self))]
        return [
            (before.image, after.image)
            for before, after in itertools.pairwise(self._examples)
            if self._pairing == "any" or before.category == after.category
        ]

    def _select(self, rows: Sequence[int]) -> Self:
        """The subset with these examples only, and the pairs of two of them."""
        part = copy.copy(self)
        part.problems, part.notes = [], []
        if isinstance(self._pairs, ListedPairs):
            pairs = (self._pairs[index] for index in range(len(self._pairs)))
            kept = set(rows)
            part._use_pairs(self._examples, [pair for pair in pairs if kept.issuperset(pair)])
        else:
            part._use_all_pairs([self._examples[row] for row in rows])
        return part


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
