"""SPair-71k (Min et al. 2019): 70,958 pairs of 1,800 images of 18 classes.

Points and boxes are whole pixels; all publications use the numbers as they are, and so does this reader.
PCK's length is the longer side of the object's box in image 1, or of the image.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ucn.data.descriptions import SPAIR as INFO
from ucn.data.io import image_hw, read_header_hw, read_image
from ucn.data.pairs import DataFile, PairData, Problem, check_choice, check_index, limit_problems
from ucn.data.sets.layout import find_root
from ucn.data.sets.semantic.parts import Keypoints, clamp_to_image
from ucn.errors import DataError
from ucn.files.reading import read_binary, read_lines
from ucn.types import PairSample

LENGTHS = ("box", "image")
"""PCK's length: the longer side of the object's box, or of the image."""
LAYOUTS = ("large", "small")
"""The two sets of lists that come with the data."""

_FOLDERS = {"train": "trn", "val": "val", "test": "test"}
_PAIR_NAME = re.compile(r"[0-9]+-([^-:/\\]+)-([^-:/\\]+):([a-z]+)")
_MAX_JSON_BYTES = 2**20
_REMEDY = "unpack the data set again"
_PART_COUNT = 30  # of the class with most parts

# Pairs of left and right parts, which the set does not document, from Zhang et al., "Telling Left from Right"
# (CVPR 2024). An entry is the first of two neighbouring ids, or both ids.
_ANIMAL: tuple[int, ...] = (0, 2, 4, 6, 9, 11)
_VEHICLE: tuple[int | tuple[int, int], ...] = (
    0,
    2,
    16,
    18,
    26,
    28,
    *((part, part + 10) for part in range(10, 16)),
)
_SWAPS: dict[str, Sequence[int | tuple[int, int]]] = {
    "aeroplane": range(4, 22, 2),
    "bicycle": (2, 6, 9),
    "bird": (1, 4, 7, 10, 12, 14),
    "boat": range(1, 13, 2),
    "bottle": range(0, 10, 2),
    "bus": (5, *_VEHICLE),
    "car": (6, *_VEHICLE),
    "cat": _ANIMAL,
    "chair": range(0, 14, 2),
    "cow": (*_ANIMAL, 15, 17, 19),
    "dog": (0, 2, 4, 9, 11),
    "horse": (0, 2, 4, 6, 10, 12, 16, 18),
    "motorbike": (0, 2),
    "person": (0, 2, *range(8, 20, 2)),
    "pottedplant": (4, (0, 2), (6, 8)),
    "sheep": (*_ANIMAL, 15, 17, 19),
    "train": range(0, 18, 2),
    "tvmonitor": ((0, 2), (4, 6), (3, 7), (8, 10), (12, 14), (11, 15)),
}


def mirror_table(category: str) -> NDArray[np.int64] | None:
    """(30,) the mirror part of each part of a class; None for an unknown class."""
    if category not in _SWAPS:
        return None
    table = np.arange(_PART_COUNT)
    for swap in _SWAPS[category]:
        part0, part1 = (swap, swap + 1) if isinstance(swap, int) else swap
        table[part0], table[part1] = part1, part0
    return table


class SpairData(PairData):
    """The listed pairs of a split."""

    def __init__(self, root: Path, split: str, layout: str, length: str) -> None:
        super().__init__(root)
        self._length = length
        self._folder = root / "PairAnnotation" / _FOLDERS[split]
        present = {file.name for file in self._folder.iterdir()} if self._folder.is_dir() else set()
        # Windows does not allow a colon in file names; unpackers write an underscore.
        self._separator = ":" if any(":" in name for name in present) else "_"
        self._names = self._read_names(root / "Layout" / layout / f"{_FOLDERS[split]}.txt", present)

    def _read_names(self, path: Path, present: set[str]) -> list[str]:
        """The listed pairs whose files exist."""
        images = {file.relative_to(self.root).as_posix() for file in self.root.glob("JPEGImages/*/*.jpg")}
        names: dict[str, int] = {}
        problems: list[Problem] = []
        for line, text in read_lines(path, "list of pairs"):
            found = _PAIR_NAME.fullmatch(text)
            if found is None:
                problems.append(
                    Problem(path, f"expected NUMBER-NAME0-NAME1:CLASS, got {text[:60]!r}; {_REMEDY}", line)
                )
                continue
            needed = [f"JPEGImages/{found[3]}/{found[view]}.jpg" for view in (1, 2)]
            missing = [name for name in needed if name not in images]
            if self._json_path(text).name not in present:
                missing.append(f"PairAnnotation/{self._folder.name}/{text}.json")
            if missing:
                problems.append(Problem(path, f"there is no {missing[0][:80]}; {_REMEDY}", line))
            elif text in names:
                problems.append(
                    Problem(path, f"repeats the pair of line {names[text]}; remove one of the two", line)
                )
            else:
                names[text] = line
        self.problems += limit_problems(problems)
        return list(names)

    def _json_path(self, name: str) -> Path:
        return self._folder / f"{name.replace(':', self._separator)}.json"

    def __len__(self) -> int:
        return len(self._names)

    def pair_name(self, index: int) -> str:
        """The official name of the pair."""
        check_index(index, len(self))
        return self._names[index]

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files of a pair."""
        name0, name1, category = _split_name(self.pair_name(index))
        folder = self.root / "JPEGImages" / category
        return folder / f"{name0}.jpg", folder / f"{name1}.jpg"

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """Images and annotation."""
        return *self.image_paths(index), self._json_path(self.pair_name(index))

    def read(self, index: int) -> PairSample:
        """Reads a pair with the points of its annotation."""
        name, paths = self.pair_name(index), self.image_paths(index)
        values = _read_json(self._json_path(name), name)
        images = [read_image(path) for path in paths]
        views = [
            self._place(points, image_hw(image))
            for points, image in zip(_keypoints(values, self._json_path(name)), images, strict=True)
        ]
        rows = np.flatnonzero(views[0].is_visible & views[1].is_visible)
        points0, points1 = (
            torch.from_numpy(view.points[rows].astype(np.float32).reshape(-1, 2)) for view in views
        )
        mirror = mirror_table(_split_name(name)[2])
        parts = None if mirror is None else torch.tensor(values["kps_ids"], dtype=torch.int64)[rows]
        return PairSample(
            images[0],
            images[1],
            points0,
            points1,
            name,
            pck_length=self._pck_length(values["trg_bndbox"], images[1].shape[-2:]),
            parts=parts,
            mirror_parts=None if mirror is None else torch.from_numpy(mirror),
        )

    def _pck_length(self, box: Sequence[float], size_hw: Sequence[int]) -> float:
        return float(max(size_hw) if self._length == "image" else max(box[2] - box[0], box[3] - box[1]))

    def _place(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> Keypoints:
        placed, note = clamp_to_image(keypoints, size_hw)
        self.add_note(note)
        return placed

    def files(self) -> Sequence[DataFile]:
        """Images and annotations; the check of an annotation includes the positions of its points."""
        paths = {path: None for index in range(len(self)) for path in self.image_paths(index)}
        found = [DataFile.image(path) for path in paths]
        for index, name in enumerate(self._names):
            found.append(DataFile(self._json_path(name), "points", partial(self._check_json, index)))
        return found

    def _check_json(self, index: int) -> None:
        path = self._json_path(self._names[index])
        views = _keypoints(_read_json(path, self._names[index]), path)
        for image, points in zip(self.image_paths(index), views, strict=True):
            size_hw = read_header_hw(image)
            if size_hw is not None:  # otherwise the check of the image reports it
                self._place(points, size_hw)


def open_folder(folder: Path, split: str, *, layout: str = "large", length: str = "box") -> SpairData:
    """Opens the data set.

    Args:
        folder: SPair-71k, or the folder that holds it.
        split: train, val or test.
        layout: the lists to use: "large" or "small".
        length: PCK's length: the longer side of the object's box in image 1 ("box") or of image 1 ("image").
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    check_choice(layout, LAYOUTS, "layout")
    check_choice(length, LENGTHS, "length")
    data = SpairData(root, split, layout, length)
    return data.require_pairs(split, f"so is its list in Layout/{layout} of {root}; unpack it again")


def _split_name(name: str) -> tuple[str, str, str]:
    """Image 0, image 1 and class from the name of a pair."""
    found = _PAIR_NAME.fullmatch(name)
    if found is None:
        raise DataError(f"expected the name of a pair, got {name[:60]!r}; {_REMEDY}")
    return found[1], found[2], found[3]


def _read_json(path: Path, name: str) -> dict[str, Any]:
    """Reads the annotation of a pair and checks the values that are used; raises `DataError`."""
    try:
        values = json.loads(read_binary(path, "annotation", _MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON ({str(error)[:80]}); {_REMEDY}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(values).__name__}; {_REMEDY}")
    image0, image1, category = _split_name(name)
    for key, expected in (
        ("src_imname", f"{image0}.jpg"),
        ("trg_imname", f"{image1}.jpg"),
        ("category", category),
    ):
        if values.get(key) != expected:
            raise DataError(
                f"{path}: expected {key} {expected!r}, got {str(values.get(key))[:60]!r}; {_REMEDY}"
            )
    if values.get("mirror", 0) not in (0, False):
        raise DataError(f"{path}: expected an unmirrored pair, got a mirrored one; {_REMEDY}")
    values["kps_ids"] = _part_ids(values.get("kps_ids"), path)
    count = len(values["kps_ids"])
    values["src_kps"] = _numbers(values.get("src_kps"), (count, 2), f"{path}: src_kps")
    values["trg_kps"] = _numbers(values.get("trg_kps"), (count, 2), f"{path}: trg_kps")
    values["trg_bndbox"] = _numbers(values.get("trg_bndbox"), (4,), f"{path}: trg_bndbox").tolist()
    return values


def _part_ids(ids: object, path: Path) -> list[int]:
    """Part ids, which the annotations hold as text."""
    if isinstance(ids, list) and all(re.fullmatch("[0-9]{1,2}", str(part)) for part in ids):
        numbers = [int(part) for part in ids]
        if len(set(numbers)) == len(numbers) and max(numbers, default=0) < _PART_COUNT:
            return numbers
    raise DataError(
        f"{path}: expected kps_ids, different ids below {_PART_COUNT}, got {str(ids)[:60]}; {_REMEDY}"
    )


def _numbers(value: object, shape: tuple[int, ...], where: str) -> NDArray[np.float64]:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.full((), math.nan)
    if array.size == 0 and 0 in shape:
        return np.zeros(shape)
    if array.shape != shape or not np.isfinite(array).all():
        size = " × ".join(str(side) for side in shape)
        raise DataError(f"{where}: expected {size} finite numbers, got {str(value)[:60]}; {_REMEDY}")
    return array


def _keypoints(values: dict[str, Any], path: Path) -> tuple[Keypoints, Keypoints]:
    is_visible = np.ones(len(values["kps_ids"]), np.bool_)
    return Keypoints(values["src_kps"], is_visible, path), Keypoints(values["trg_kps"], is_visible, path)
