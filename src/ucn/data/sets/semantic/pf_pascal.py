"""PF-PASCAL, the larger data set of Proposal Flow (Ham et al. 2017): 20 classes of PASCAL VOC.

Points and boxes come from MATLAB and may count from 1; all publications use the numbers as they are, and so
does this reader. PCK's length is the longer side of image 1 (since SCNet, 2017) or of the object's box (Ham
et al.). The set does not name the points.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from ucn.data.descriptions import PF_PASCAL as INFO
from ucn.data.pairs import check_choice
from ucn.data.sets.layout import find_root
from ucn.data.sets.semantic.image_lists import find_examples, find_table, read_listed_pairs
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.matlab import REMEDY, read_mat
from ucn.data.sets.semantic.parts import Box, Example, Keypoints
from ucn.errors import DataError

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable"),
    *("dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The classes of PASCAL VOC; the tables of pairs count them from 1."""
LENGTHS = ("image", "box")
"""PCK's length: the longer side of the image, or of the object's box."""

_TABLES = {
    "train": ("trn_pairs.csv", "train_pairs.csv", "train_pairs_pf_pascal.csv"),
    "val": ("val_pairs.csv", "val_pairs_pf_pascal.csv"),
    "test": ("test_pairs.csv", "test_pairs_pf_pascal.csv"),
}


class PfPascalData(KeypointData):
    """Pairs of objects of one class.

    Attributes:
        length: one of `LENGTHS`.
    """

    length: str = "image"

    def keypoints(self, example: Example) -> Keypoints:
        """The points of an object, NaN where not visible, and its box."""
        found = read_mat(example.annotation, ["kps", "bbox"])
        points, box = found["kps"], found["bbox"].ravel()
        if points.ndim != 2 or points.shape[1] != 2 or np.isinf(points).any():
            raise DataError(
                f"{example.annotation}: expected kps of N × 2 numbers, got {points.shape}; {REMEDY}"
            )
        if len(box) != 4 or not np.isfinite(box).all() or not (box[2] > box[0] and box[3] > box[1]):
            raise DataError(
                f"{example.annotation}: expected bbox of left, top, right, bottom, got {box[:6]}; {REMEDY}"
            )
        corners: Box = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
        return Keypoints(points, np.isfinite(points[:, 0] + points[:, 1]), example.annotation, box=corners)

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The longer side of the image, or of the object's box."""
        if self.length == "image" or keypoints.box is None:
            return float(max(size_hw))
        left, top, right, bottom = keypoints.box
        return max(right - left, bottom - top)


def open_folder(folder: Path, split: str, *, length: str = "image") -> PfPascalData:
    """Opens the data set.

    Args:
        folder: PF-dataset-PASCAL, or the folder that holds it.
        split: train, val or test by the tables of pairs; or all pairs within each class.
        length: PCK's length: the longer side of image 1 ("image") or of the object's box in it ("box").
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    check_choice(length, LENGTHS, "length")
    examples, problems = find_examples(root, "Annotations/*/*.mat", "JPEGImages/{stem}")
    pairs, notes = None, list[str]()
    if split != "all":
        table = find_table(root, _TABLES[split], f"table of pairs for split '{split}'")
        rows = {example.name: row for row, example in enumerate(examples)}
        # Training pairs are listed twice, once to be mirrored: one is used.
        pairs, wrong, repeated = read_listed_pairs(table, partial(_find_pair, rows))
        problems += wrong
        if repeated:
            notes.append(f"{table}: {repeated:,} lines repeat a pair (to be mirrored); excluded")
    data = PfPascalData(root, examples, pairs=pairs, problems=problems, notes=notes)
    data.length = length
    return data.require_pairs(
        split, f"no two annotated images of a class in Annotations/ and JPEGImages/ of {root}"
    )


def _find_pair(rows: Mapping[str, int], cells: list[str]) -> tuple[int, int] | str:
    """Rows of a line's images, which the table names by path and class."""
    category = cells[2] if len(cells) > 2 else ""
    if category.isascii() and category.isdigit() and 1 <= int(category) <= len(CLASSES):
        category = CLASSES[int(category) - 1]
    if category not in CLASSES:
        return f"expected image 0, image 1 and a class, got {cells[:3]}; correct the line"
    stems = [PurePosixPath(cell.replace("\\", "/")).stem for cell in cells[:2]]
    found = [rows.get(f"{category}/{stem}", -1) for stem in stems]
    if min(found) < 0:
        missing = stems[found.index(-1)][:60]
        return f"the set has no annotated image {missing!r} of {category}; remove the line"
    return found[0], found[1]
