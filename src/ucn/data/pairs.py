"""What a data set of image pairs is, whatever its layout on disk.

A reader in `ucn.data.sets` indexes a folder when it is made and reads a pair when asked. Indexing does not
stop at what is wrong with one entry: it is noted in `faults`, and the entry left out. Only a folder that
cannot be that data set at all raises.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from ucn.errors import DataError
from ucn.types import PairSample


@dataclass(frozen=True)
class Fault:
    """Something wrong with a file.

    Attributes:
        path: the file.
        message: what was expected, what came, and what to do.
        line: where in the file, counted from 1; None where that means nothing.
        is_left_out: what is wrong concerns entries that are left out already, so that the other pairs with
            this file are good.
    """

    path: Path
    message: str
    line: int | None = None
    is_left_out: bool = False

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line is not None else f"{self.path}"
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class DataFile:
    """A file that pairs are made of.

    Attributes:
        path: the file.
        kind: what it holds, in a word: image, flow, depth, points, scan, ...
        check: reads the file and raises a `UcnError` where it is wrong.
    """

    path: Path
    kind: str
    check: Callable[[], object]


class PairData(ABC):
    """Pairs of images with true correspondences, in a folder.

    Attributes:
        root: the folder.
        faults: what indexing found wrong; such entries are left out.
        notes: what the reader leaves out by its own rules and says so; not faults.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    @abstractmethod
    def __len__(self) -> int:
        """How many pairs there are."""

    @abstractmethod
    def pair_name(self, index: int) -> str:
        """A name of a pair that is unique in the set and says where it comes from."""

    @abstractmethod
    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The files of the two images of a pair; frames of a clip have paths beneath the clip's own."""

    @abstractmethod
    def read(self, index: int) -> PairSample:
        """Reads a pair with all its correspondences; dense truth gives one for each pixel that has it.

        Raises:
            IndexError: there is no such pair.
            UcnError: a file is wrong; the message names it.
        """

    @abstractmethod
    def files(self) -> Sequence[DataFile]:
        """Every file that the pairs are made of, once."""

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The files that a pair is made of; a pair with a bad one is bad. By default the images."""
        return self.image_paths(index)

    def without(self, files: Set[Path]) -> PairData:
        """The pairs that none of these files is part of."""
        return Selection(self, [i for i in range(len(self)) if files.isdisjoint(self.pair_files(i))])

    def without_pairs(self, indices: Set[int]) -> PairData:
        """All pairs but these."""
        return Selection(self, [i for i in range(len(self)) if i not in indices])

    def pair_class(self, index: int) -> str:
        """The class that both images of a pair show; empty where the set does not say."""
        return ""

    def pair_split(self, index: int) -> str:
        """The split that the set puts a pair in, in words of one's own data; empty where it does not say."""
        return ""

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The names of the parts that the points of a pair may be; empty where the set does not say."""
        return ()

    def split_off(self, share: float) -> tuple[PairData, PairData]:
        """Two parts without a common image: for training and for validation.

        Of each folder's images, in sorted order, the last `share` is held out. A pair of two held-out images
        is for validation, a pair of two others for training, and a mixed one is left out. Where that leaves
        one part empty, images that pairs connect stay together, and every n-th such group is held out. Where
        all images are connected, both parts are the whole set.

        Args:
            share: of the images to hold out, in (0, 1).
        """
        paths = [self.image_paths(index) for index in range(len(self))]
        folders: dict[Path, set[Path]] = {}
        for path in (path for pair in paths for path in pair):
            folders.setdefault(path.parent, set()).add(path)
        held_out: set[Path] = set()
        for images in folders.values():
            held_out.update(sorted(images)[-max(1, math.ceil(share * len(images))) :])
        training = [i for i, pair in enumerate(paths) if held_out.isdisjoint(pair)]
        validation = [i for i, pair in enumerate(paths) if held_out.issuperset(pair)]
        if not training or not validation:
            training, validation = split_groups(paths, share)
        return Selection(self, training), Selection(self, validation)


def split_groups(pairs: Sequence[tuple[Path, Path]], share: float) -> tuple[list[int], list[int]]:
    """Rows of pairs for training and for validation, such that images connected by pairs stay together.

    Every n-th group, by the names of their first images, is held out, n so that it is about `share` of them.
    Groups may be of any size: validation gets the smaller part unless more than half is asked for. All rows
    serve both where there is one group only.
    """
    group_of: dict[Path, Path] = {}  # each image to another of its group, the first of all to itself

    def find(path: Path) -> Path:
        while (parent := group_of.setdefault(path, path)) != path:
            group_of[path] = group_of[parent]  # halves the way for the next search
            path = parent
        return path

    for image0, image1 in pairs:
        first, second = sorted((find(image0), find(image1)))
        group_of[second] = first
    groups = sorted({find(image0) for image0, _ in pairs})
    if len(groups) < 2:
        return list(range(len(pairs))), list(range(len(pairs)))
    held_out = set(groups[:: max(2, round(1 / share))])
    validation = [row for row, (image0, _) in enumerate(pairs) if find(image0) in held_out]
    training = [row for row, (image0, _) in enumerate(pairs) if find(image0) not in held_out]
    is_swapped = share <= 0.5 and len(validation) > len(training)
    return (validation, training) if is_swapped else (training, validation)


class Selection(PairData):
    """Some pairs of a data set, in a given order."""

    def __init__(self, data: PairData, indices: Iterable[int]) -> None:
        super().__init__(data.root)
        self._data = data
        self._indices = list(indices)

    def __len__(self) -> int:
        return len(self._indices)

    def pair_name(self, index: int) -> str:
        """The name that the pair has in the whole set."""
        return self._data.pair_name(self._indices[index])

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The files of the two images of a pair."""
        return self._data.image_paths(self._indices[index])

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The files that a pair is made of."""
        return self._data.pair_files(self._indices[index])

    def pair_class(self, index: int) -> str:
        """The class that the whole set gives a pair."""
        return self._data.pair_class(self._indices[index])

    def pair_split(self, index: int) -> str:
        """The split that the whole set puts a pair in."""
        return self._data.pair_split(self._indices[index])

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The names that the whole set gives parts."""
        return self._data.pair_part_names(self._indices[index])

    def read(self, index: int) -> PairSample:
        """Reads a pair."""
        return self._data.read(self._indices[index])

    def files(self) -> Sequence[DataFile]:
        """The files of the chosen pairs, once each."""
        used = {path for index in range(len(self)) for path in self.pair_files(index)}
        return [file for file in self._data.files() if file.path in used]


def check_index(index: int, count: int) -> None:
    """Raises `IndexError` where there is no such pair; negative indices are not taken."""
    if not 0 <= index < count:
        raise IndexError(f"there is no pair {index}: the set has {count}, counted from 0")


def check_choice(value: str, legal: Iterable[str], what: str) -> None:
    """Raises `DataError`, naming what is legal, where an option of a reader has none of its values."""
    legal = tuple(legal)
    if value not in legal:
        raise DataError(f"{what} must be one of {', '.join(legal)}, got '{value}'")
