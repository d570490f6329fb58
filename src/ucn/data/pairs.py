"""The base class of all data sets of image pairs, whatever their layout on disk.

A reader in `ucn.data.sets` indexes a folder when it is opened and reads a pair when `read` is called. A
faulty entry does not stop indexing: it is recorded in `problems` and excluded. Only a folder that cannot be
that data set raises.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from ucn.data.io import read_image
from ucn.errors import DataError
from ucn.types import PairSample

MAX_PROBLEMS = 50
"""The most problems of one file that are listed."""


@dataclass(frozen=True)
class Problem:
    """An error in a file of a data set.

    Attributes:
        path: the file.
        message: what was expected, what was found, and what to do.
        line: the line in the file, counted from 1; None where the problem has none.
        is_excluded: the faulty entries are already excluded, so that other pairs may use this file.
    """

    path: Path
    message: str
    line: int | None = None
    is_excluded: bool = False

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line is not None else f"{self.path}"
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, with its check.

    Attributes:
        path: the file.
        kind: its content in one word: image, flow, depth, points, scan, ...
        check: reads the file and raises a `UcnError` where it is faulty.
    """

    path: Path
    kind: str
    check: Callable[[], object]

    @classmethod
    def image(cls, path: Path) -> DataFile:
        """An image file; its check decodes it."""
        return cls(path, "image", partial(read_image, path))


class PairData(ABC):
    """Image pairs with ground-truth correspondences, in a folder.

    A reader implements the abstract methods. `ucn.data.sets` has base classes that implement most of them for
    dense ground truth, posed sequences and keypoint annotations.

    Attributes:
        root: the folder.
        problems: errors that indexing found; the faulty entries are excluded.
        notes: what the reader excludes by its own rules; not problems.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def add_note(self, text: str) -> None:
        """Adds a note, once; an empty one is ignored."""
        if text and text not in self.notes:
            self.notes.append(text)

    def require_pairs(self, split: str, reason: str) -> Self:
        """Returns the set; raises `DataError` where the split has neither pairs nor problems."""
        if not len(self) and not self.problems:
            raise DataError(f"split '{split}' is empty: {reason}")
        return self

    def add_problem(self, path: Path, message: str, line: int | None = None) -> None:
        """Records that a faulty entry of a file is excluded."""
        self.problems.append(Problem(path, message, line, is_excluded=True))

    @abstractmethod
    def __len__(self) -> int:
        """The number of pairs."""

    @abstractmethod
    def pair_name(self, index: int) -> str:
        """The name of a pair: unique in the set, and tells where the pair is."""

    @abstractmethod
    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files of a pair; a video's frames have paths below the video's path."""

    @abstractmethod
    def read(self, index: int) -> PairSample:
        """Reads a pair with all its correspondences; dense ground truth gives one for each known pixel.

        Raises:
            IndexError: there is no such pair.
            UcnError: a file is faulty; the message names it.
        """

    @abstractmethod
    def files(self) -> Sequence[DataFile]:
        """Every file that the pairs use, once."""

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The files that a pair uses, its own ground truth last; by default the two images."""
        return self.image_paths(index)

    def without(self, files: Set[Path]) -> PairData:
        """The pairs that use none of these files."""
        return Selection(self, [i for i in range(len(self)) if files.isdisjoint(self.pair_files(i))])

    def without_pairs(self, indices: Set[int]) -> PairData:
        """All pairs except these."""
        return Selection(self, [i for i in range(len(self)) if i not in indices])

    def first_pairs(self, count: int) -> PairData:
        """The first pairs, at most `count`."""
        return Selection(self, range(min(count, len(self))))

    def pair_class(self, index: int) -> str:
        """The object class of a pair; empty where the set names none."""
        return ""

    def pair_split(self, index: int) -> str:
        """The split of a pair (train, val or test); empty where the set assigns none."""
        return ""

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The names of the object parts that points of a pair may mark; empty where the set names none."""
        return ()

    def split_off(self, share: float) -> tuple[PairData, PairData]:
        """Splits the set into training and validation pairs that share no image.

        Of each folder's images, sorted by name, the last `share` is held out. Pairs of two held-out images
        are for validation, pairs of two others for training; mixed pairs are excluded. Where one part would
        be empty, whole connected components of the graph of images and pairs are held out instead
        (`split_groups`). Where there is only one component, both parts are the whole set.

        Args:
            share: fraction of the images to hold out, in (0, 1).
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
    """Splits pairs by connected components: images that pairs connect stay together.

    Every n-th component, sorted by first image, is held out, with n about ``1 / share``. Components may be of
    any size: validation gets the smaller part unless `share` exceeds 0.5. With a single component, both parts
    have all pairs.

    Returns:
        Indices of the pairs for training, and for validation.
    """
    group_of: dict[Path, Path] = {}  # union-find: each image's parent; a root is its own

    def find(path: Path) -> Path:
        while (parent := group_of.setdefault(path, path)) != path:
            group_of[path] = group_of[parent]  # path halving
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


class ProblemList:
    """Collects problems and keeps the first `MAX_PROBLEMS`: a large file may be wrong in every entry."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._kept: list[Problem] = []
        self._more: dict[Path, int] = {}

    def add(self, path: Path, message: str, line: int | None) -> None:
        """Records that an entry of a file is faulty and excluded."""
        if len(self._kept) < MAX_PROBLEMS:
            self._kept.append(Problem(path, message, line, is_excluded=True))
        else:
            self._more[path] = self._more.get(path, 0) + 1

    def finish(self) -> list[Problem]:
        """The first problems, and how many more each file has."""
        rest = f"more problems; the first are listed above; {self._remedy}"
        return [
            *self._kept,
            *(Problem(path, f"{count:,} {rest}", is_excluded=True) for path, count in self._more.items()),
        ]


def limit_problems(problems: Sequence[Problem]) -> list[Problem]:
    """The first `MAX_PROBLEMS` problems of a file, and how many more there are."""
    if len(problems) <= MAX_PROBLEMS:
        return list(problems)
    rest = f"{len(problems) - MAX_PROBLEMS:,} more problems of this kind; the first are listed above"
    return [*problems[:MAX_PROBLEMS], replace(problems[0], message=rest, line=None)]


class Selection(PairData):
    """A subset of a data set, in a given order."""

    def __init__(self, data: PairData, indices: Iterable[int]) -> None:
        super().__init__(data.root)
        self._data = data
        self._indices = list(indices)

    def __len__(self) -> int:
        return len(self._indices)

    def pair_name(self, index: int) -> str:
        """The name of the pair in the whole set."""
        return self._data.pair_name(self._indices[index])

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files of a pair."""
        return self._data.image_paths(self._indices[index])

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The files that a pair uses."""
        return self._data.pair_files(self._indices[index])

    def pair_class(self, index: int) -> str:
        """The object class of a pair."""
        return self._data.pair_class(self._indices[index])

    def pair_split(self, index: int) -> str:
        """The split of a pair in the whole set."""
        return self._data.pair_split(self._indices[index])

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The names of the object parts of a pair."""
        return self._data.pair_part_names(self._indices[index])

    def read(self, index: int) -> PairSample:
        """Reads a pair."""
        return self._data.read(self._indices[index])

    def files(self) -> Sequence[DataFile]:
        """The files that the chosen pairs use, once each."""
        used = {path for index in range(len(self)) for path in self.pair_files(index)}
        return [file for file in self._data.files() if file.path in used]


def check_index(index: int, count: int) -> None:
    """Raises `IndexError` where there is no such pair; negative indices are not allowed."""
    if not 0 <= index < count:
        raise IndexError(f"there is no pair {index}: the set has {count}, counted from 0")


def check_choice(value: str, legal: Iterable[str], what: str) -> None:
    """Raises `DataError` where an option of a reader is not one of its legal values."""
    legal = tuple(legal)
    if value not in legal:
        raise DataError(f"{what} must be one of {', '.join(legal)}, got '{value}'")
