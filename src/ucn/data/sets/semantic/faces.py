"""Faces with 68 landmarks in the scheme of ibug's 300-W: Helen, LFPW, AFW, 300-W and others.

`ucn.data.point_files.pts` explains the coordinates of .pts files.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.descriptions import FACES as INFO
from ucn.data.io import IMAGE_SUFFIXES
from ucn.data.pairs import Problem, check_choice, limit_problems
from ucn.data.point_files.pts import read_landmarks
from ucn.data.sets.layout import find_root
from ucn.data.sets.semantic.keypoint_pairs import KeypointData, training_count
from ucn.data.sets.semantic.parts import Example, Keypoints

LENGTHS = ("eyes", "image")
"""PCK's length: the distance of the outer eye corners, or the longer side of the image."""

_POINT_COUNT = 68
_DEPTH = 2  # of sub-folders, as in the markers
_OUTER_EYE_CORNERS = (36, 45)
# In each run of points from first to last, the mirror part of p is `total - p`; others are their own.
_MIRRORED_RUNS = (
    (0, 16, 16),  # jaw
    (17, 26, 43),  # eyebrows
    (31, 35, 66),  # nostrils
    (36, 39, 81),  # upper lids, right eye to left
    (42, 45, 81),
    (40, 41, 87),  # lower lids
    (46, 47, 87),
    (48, 54, 102),  # mouth: outer upper and lower lip, inner upper and lower lip
    (55, 59, 114),
    (60, 64, 124),
    (65, 67, 132),
)


def mirror_points() -> NDArray[np.int64]:
    """(68,) the mirror part of each landmark."""
    table = np.arange(_POINT_COUNT)
    for first, last, total in _MIRRORED_RUNS:
        run = np.arange(first, last + 1)
        table[run] = total - run
    return table


class FaceData(KeypointData):
    """Pairs of faces."""

    def __init__(self, root: Path, split: str, length: str) -> None:
        examples, problems, notes = _find_faces(root)
        count = training_count(len(examples))
        parts = {"all": examples, "train": examples[:count], "test": examples[count:]}
        super().__init__(root, parts[split], problems=problems, notes=notes)
        self._length = length
        self._mirror = mirror_points()

    def keypoints(self, example: Example) -> Keypoints:
        """The 68 landmarks of a face; all count as visible."""
        return read_pts(example.annotation)

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The distance of the outer eye corners, by which 300-W normalises errors, or the longer side."""
        if self._length == "image":
            return float(max(size_hw))
        corner0, corner1 = keypoints.points[list(_OUTER_EYE_CORNERS)]
        return math.dist(corner0, corner1)

    def mirror_table(self, category: str) -> NDArray[np.int64]:
        """Left and right are exchanged."""
        return self._mirror


def open_folder(folder: Path, split: str, *, length: str = "eyes") -> FaceData:
    """Opens the data set.

    Args:
        folder: holds images and their .pts files.
        split: all; train, the first 80 % by name; or test, the rest.
        length: PCK's length: "eyes" the distance of the outer eye corners, "image" the longer side.
    """
    root = find_root(folder, INFO.markers)
    check_choice(length, LENGTHS, "length")
    return FaceData(root, split, length).require_pairs(split, f"no two images with .pts files in {root}")


def read_pts(path: Path) -> Keypoints:
    """Reads 68 landmarks from a .pts file in ibug's format or of bare lines; raises `DataError`."""
    points, lines = read_landmarks(path, _POINT_COUNT)
    return Keypoints(points, np.ones(_POINT_COUNT, np.bool_), path, lines)


def _find_faces(root: Path) -> tuple[list[Example], list[Problem], list[str]]:
    """Images with a .pts file of the same name, sorted; .pts files without an image are problems."""
    examples, problems, bare = [], list[Problem](), 0
    for folder, folders, files in os.walk(root):
        place = Path(folder)
        if len(place.relative_to(root).parts) >= _DEPTH:
            folders.clear()
        names = set(files)
        stems = {Path(name).stem for name in names if name.endswith(".pts")}
        images = {name for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES}
        bare += sum(Path(name).stem not in stems for name in images)
        for stem in stems:
            found = next((stem + suffix for suffix in IMAGE_SUFFIXES if stem + suffix in images), None)
            annotation = place / f"{stem}.pts"
            if found is None:
                names_tried = " or ".join(f"{stem}{suffix}" for suffix in (".jpg", ".png"))
                message = f"no image {names_tried} beside it; copy it there, or remove this file"
                problems.append(Problem(annotation, message))
                continue
            name = (place / stem).relative_to(root).as_posix()
            examples.append(Example(name, "face", place / found, annotation))
    notes = [f"{bare:,} images have no .pts file; excluded"] if bare else []
    examples.sort(key=lambda example: example.name)
    return examples, limit_problems(sorted(problems, key=lambda problem: problem.path)), notes
