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
    """

    path: Path
    message: str
    line: int | None = None

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
        return Selection(self, (i for i in range(len(self)) if files.isdisjoint(self.pair_files(i))))

    def split_off(self, share: float) -> tuple[PairData, PairData]:
        """Two parts without a common image: for training and for validation.

        Of each folder's images, in sorted order, the last `share` is held out. A pair of two held-out images
        is for validation, a pair of two others for training, and a mixed one is left out. Where that leaves
        one part empty, both are the whole set.

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
            training = validation = list(range(len(self)))
        return Selection(self, training), Selection(self, validation)


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
