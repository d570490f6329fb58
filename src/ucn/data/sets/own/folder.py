"""Your own data: a folder with ``pairs.csv`` and one CSV of points per pair, or with ``pairs.jsonl``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import torch

from ucn.data.catalogue import DataInfo
from ucn.data.io import image_hw, read_header_hw, read_image
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.data.sets.layout import find_root, resolve_inside
from ucn.data.sets.own.files import (
    SPLITS,
    PairEntry,
    PairPoints,
    Parts,
    read_pair_csv,
    read_pair_points,
    read_parts,
)
from ucn.data.sets.own.json_lines import read_pair_json
from ucn.errors import DataError
from ucn.files import explain_failure, suggest
from ucn.types import PairSample

INFO = DataInfo(
    name="own",
    title="Your own pairs and points",
    task="any",
    ground_truth="your points",
    layout=(
        "pairs.csv: image0,image1 and, optionally, points, pck_length, class, split",
        "points/STEM0__STEM1.csv: x0,y0,x1,y1 and, optionally, part",
        "or pairs.jsonl instead of both: image0, image1, points0, points1, … in an object per line",
        "parts.csv (optional): name,mirror",
    ),
    splits=("all", *SPLITS),
    licence="yours",
    source="",
    markers=("pairs.csv", "pairs.jsonl"),
)


def open_folder(folder: Path, split: str) -> OwnData:
    """Opens your own data.

    Args:
        folder: holds ``pairs.csv`` or ``pairs.jsonl``; paths in these are relative to it.
        split: all, or train, val or test by the column `split` of the list.
    """
    return OwnData(find_root(folder, INFO.markers, INFO.inside), split)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A listed pair whose files exist."""

    entry: PairEntry
    image0: Path
    image1: Path
    points: Path  # the file of points; for JSON Lines the list and the line, "pairs.jsonl:7"


class OwnData(PairData):
    """Listed pairs with their points.

    Attributes:
        part_names: names of the parts in ``parts.csv``; None without one.
    """

    def __init__(self, root: Path, split: str) -> None:
        super().__init__(root)
        self._list = root / "pairs.csv"
        has_json = (root / "pairs.jsonl").is_file()
        if has_json and self._list.is_file():
            raise DataError(f"{root} has both pairs.csv and pairs.jsonl; keep one")
        self._parts: Parts | None = None
        if (root / "parts.csv").is_file():
            self._parts = read_parts(root / "parts.csv")
        self.part_names = None if self._parts is None else self._parts.names
        if has_json:
            self._list = root / "pairs.jsonl"
            found = read_pair_json(self._list, self._parts)
        else:
            found = read_pair_csv(self._list)
        if split != "all" and not found.has_splits:
            raise DataError(
                f"{self._list} does not assign pairs to split '{split}'; add a column split or use split all"
            )
        self.problems += found.problems
        self.notes += found.notes
        chosen = [entry for entry in found.entries if split in ("all", entry.split)]
        self._pairs = self._find_files(chosen)
        if not self._pairs and not self.problems:
            counts = Counter(entry.split or "none" for entry in found.entries)
            have = ", ".join(f"{count} of split {name}" for name, count in counts.items()) or "no pairs"
            raise DataError(f"split '{split}' is empty: {self._list} has {have}; choose another split")
        names = Counter((pair.entry.image0, pair.entry.image1) for pair in self._pairs)
        self._repeated = {images for images, count in names.items() if count > 1}

    def __len__(self) -> int:
        return len(self._pairs)

    def pair_name(self, index: int) -> str:
        """The two images as listed; with the line where the list repeats them."""
        entry = self._pair(index).entry
        name = f"{entry.image0}--{entry.image1}"
        return f"{name}#{entry.line}" if (entry.image0, entry.image1) in self._repeated else name

    def pair_class(self, index: int) -> str:
        """The cell of the column `class`; may be empty."""
        return self._pair(index).entry.class_name

    def pair_split(self, index: int) -> str:
        """The cell of the column `split`; may be empty."""
        return self._pair(index).entry.split

    def pair_part_names(self, index: int) -> Sequence[str]:
        """The parts in ``parts.csv``."""
        return self.part_names or ()

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files."""
        pair = self._pair(index)
        return pair.image0, pair.image1

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images and the file of points; for JSON Lines, the list with the pair's line."""
        pair = self._pair(index)
        return pair.image0, pair.image1, pair.points

    def read(self, index: int) -> PairSample:
        """Reads a pair with its points."""
        pair = self._pair(index)
        image0, image1 = read_image(pair.image0), read_image(pair.image1)
        points = self._read_points(pair)
        points0 = points.check_inside(0, image_hw(image0), pair.entry.image0)
        points1 = points.check_inside(1, image_hw(image1), pair.entry.image1)
        has_parts = points.parts is not None and self._parts is not None
        return PairSample(
            image0,
            image1,
            torch.from_numpy(points0),
            torch.from_numpy(points1),
            self.pair_name(index),
            pair.entry.pck_length,
            torch.from_numpy(points.parts) if has_parts else None,
            torch.from_numpy(self._parts.mirror) if has_parts and self._parts is not None else None,
        )

    def files(self) -> Sequence[DataFile]:
        """Every image and file of points, once; for JSON Lines, every line."""
        images: dict[Path, DataFile] = {}
        users: dict[Path, list[_Pair]] = {}
        for pair in self._pairs:
            for path in (pair.image0, pair.image1):
                images.setdefault(path, DataFile.image(path))
            users.setdefault(pair.points, []).append(pair)
        points = [
            DataFile(path, "points", partial(self._check_points, pairs)) for path, pairs in users.items()
        ]
        return [*images.values(), *points]

    def _pair(self, index: int) -> _Pair:
        check_index(index, len(self._pairs))
        return self._pairs[index]

    def _read_points(self, pair: _Pair) -> PairPoints:
        return pair.entry.inline_points or read_pair_points(pair.points, self._parts)

    def _check_points(self, pairs: Sequence[_Pair]) -> None:
        """Reads the points that some pairs share, and checks them against the images of each."""
        points = self._read_points(pairs[0])
        for pair in pairs:
            for view, path in enumerate((pair.image0, pair.image1)):
                size_hw = read_header_hw(path)
                if size_hw is not None:  # otherwise the check of the image reports it
                    points.check_inside(view, size_hw, (pair.entry.image0, pair.entry.image1)[view])

    def _find_files(self, entries: Sequence[PairEntry]) -> list[_Pair]:
        """The pairs whose files exist; others become problems."""
        finder = _Finder(self.root)
        stems = Counter(_points_name(entry) for entry in entries if not entry.points)
        pairs = []
        for entry in entries:
            try:
                image0 = finder.find(entry.image0, "image0")
                image1 = finder.find(entry.image1, "image1")
                if entry.inline_points is not None:
                    points = self._list.with_name(f"{self._list.name}:{entry.line}")
                elif not entry.points and stems[_points_name(entry)] > 1:
                    raise DataError(
                        f"{_points_name(entry)} would hold the points of {stems[_points_name(entry)]} "
                        "pairs; add a column points that names a file for each"
                    )
                else:
                    points = finder.find(entry.points or _points_name(entry), "points")
            except DataError as error:
                self.add_problem(self._list, str(error), entry.line)
            else:
                pairs.append(_Pair(entry, image0, image1, points))
        return pairs


class _Finder:
    """Finds the files of a list, and suggests names for those that are missing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listings: dict[Path, set[str]] = {}
        self._hints_left = 20  # the search for a similar name is slow in a large folder

    def find(self, name: str, what: str) -> Path:
        """The path of a file; raises `DataError` where it is missing."""
        path = resolve_inside(self._root, name)
        try:
            names = self._list(path.parent)
            if path.name in names and path.is_file():
                return path
            if path.is_symlink() and not path.exists():
                reason = "is a link to a missing file; copy it, or correct the link"
                raise DataError(f"{what}: {name[:200]!r} {reason}")
        except OSError as error:
            reason = f"{explain_failure(error)}; check the name"
            raise DataError(f"{what}: cannot read {name[:200]!r}: {reason}") from error
        hint = suggest(path.name, names) if self._hints_left > 0 else ""
        self._hints_left -= 1
        hint = hint or "; check name and folder"
        raise DataError(f"{what}: no file {name[:200]!r} in {self._root}{hint}")

    def _list(self, folder: Path) -> set[str]:
        if folder not in self._listings:
            self._listings[folder] = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return self._listings[folder]


def _points_name(entry: PairEntry) -> str:
    """The default path of the points of a pair."""
    stems = (PurePosixPath(name.replace("\\", "/")).stem for name in (entry.image0, entry.image1))
    return f"points/{'__'.join(stems)}.csv"
