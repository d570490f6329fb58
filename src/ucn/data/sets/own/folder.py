"""Your own data: points per image (``keypoints.csv``, COCO, …), or per pair (``pairs.csv``, ``pairs.jsonl``).

`images` has the pairs of annotated images, this module those that a list names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import torch

from ucn.data.descriptions import OWN as INFO
from ucn.data.io import image_hw, read_header_hw, read_image
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.data.sets.layout import check_folder, find_root, resolve_inside
from ucn.data.sets.own.files import (
    LABEL_FILES,
    PairEntry,
    PairPoints,
    Parts,
    read_pair_csv,
    read_pair_points,
    read_parts,
)
from ucn.data.sets.own.finder import FileFinder
from ucn.data.sets.own.images import OwnImages
from ucn.data.sets.own.json_lines import read_pair_json
from ucn.data.sets.own.labels import has_label_files, read_labels
from ucn.errors import DataError
from ucn.types import PairSample

_PAIR_LISTS = ("pairs.csv", "pairs.jsonl")


def open_folder(
    folder: Path,
    split: str,
    *,
    file: str = "",
    image_folder: str = "",
    pairing: str = "class",
    crop: bool = False,
    length: str = "auto",
    mirror_names: bool = False,
    occluded: bool = True,
) -> OwnData | OwnImages:
    """Opens your own data: annotated images, any two of which are a pair, or listed pairs.

    Args:
        folder: holds the images and a list of points or pairs, whose paths are relative to it; or the file
            of the points itself.
        split: all, or train, val or test by the column `split` of the list.
        file: the file with the points of all images, relative to the folder, if it is not keypoints.csv or
            keypoints.json.
        image_folder: the folder of the images, relative to the folder; by default the folder itself, or its
            folder images.
        pairing: "class" pairs images of one class, "any" all images.
        crop: crop to the box of each object, or to its points with a margin; without it, images with several
            objects of one class are left out.
        length: PCK's length: "auto" is the column pck_length, else the longer side of the object's box if
            all objects have one, else of the image; "image" the longer side of the image; "points" that of
            the box of the points.
        mirror_names: parts whose names differ in left and right (or L and R) are mirror parts; parts.csv
            overrides it.
        occluded: use points that COCO marks as occluded (v = 1).
    """
    if folder.is_file() and not file and folder.suffix.lower() in (".csv", ".json"):
        folder, file = folder.parent, folder.name
    found = file or _find_list(folder)
    if found in _PAIR_LISTS:
        options = {"image_folder": image_folder, "crop": crop, "mirror_names": mirror_names}
        options |= {"pairing": pairing != "class", "length": length != "auto", "occluded": not occluded}
        _refuse_options(options, folder / found)
        return OwnData(folder, split)
    if not found and not has_label_files(folder):
        find_root(folder, INFO.markers, INFO.inside)  # raises, naming what is expected
    parts = read_parts(folder / "parts.csv") if (folder / "parts.csv").is_file() else None
    path = resolve_inside(folder, found) if found else None
    labels = read_labels(folder, path, image_folder, parts, occluded)
    return OwnImages(
        folder,
        labels,
        split,
        parts=parts,
        pairing=pairing,
        crop=crop,
        length=length,
        mirror_names=mirror_names,
    )


def _find_list(folder: Path) -> str:
    """The name of the list of points or pairs; empty where there is none."""
    check_folder(folder, "the folder of the data set")
    found = [name for name in (*_PAIR_LISTS, *LABEL_FILES) if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0]} and {found[1]}; keep one")
    return found[0] if found else ""


def _refuse_options(options: Mapping[str, object], path: Path) -> None:
    for name, value in options.items():
        if value:
            raise DataError(f"option {name} is for points per image, but {path} lists pairs; leave it out")


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
        finder = FileFinder(self.root)
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


def _points_name(entry: PairEntry) -> str:
    """The default path of the points of a pair."""
    stems = (PurePosixPath(name.replace("\\", "/")).stem for name in (entry.image0, entry.image1))
    return f"points/{'__'.join(stems)}.csv"
