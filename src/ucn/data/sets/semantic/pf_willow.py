"""PF-WILLOW, the data set of Proposal Flow (Ham et al. 2016): 10 groups of 10 images, 10 points on each.

The points come from MATLAB and may count from 1; all publications use the numbers as they are, and so does
this reader. PCK's length is the longer side of the bounding box of the points of image 1. The set names
neither the points nor their mirror parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from ucn.data.descriptions import PF_WILLOW as INFO
from ucn.data.sets.layout import find_root
from ucn.data.sets.semantic.image_lists import find_examples, find_table, read_listed_pairs
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.matlab import REMEDY, read_mat
from ucn.data.sets.semantic.parts import Example, Keypoints
from ucn.errors import DataError

_TABLES = ("test_pairs_pf.csv", "test_pairs.csv")


class WillowData(KeypointData):
    """Pairs of objects in the same pose."""

    def keypoints(self, example: Example) -> Keypoints:
        """The ten points of an image."""
        points = read_mat(example.annotation, ["pts_coord"])["pts_coord"]
        if points.ndim != 2 or points.shape[0] != 2 or not np.isfinite(points).all():
            raise DataError(
                f"{example.annotation}: expected pts_coord of 2 × N numbers, got {points.shape}; {REMEDY}"
            )
        return Keypoints(points.T, np.ones(points.shape[1], np.bool_), example.annotation)

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The longer side of the bounding box of the points."""
        return points_side(keypoints)


def points_side(keypoints: Keypoints) -> float:
    """The longer side of the bounding box of the visible points; 0 where there are none."""
    visible = keypoints.points[keypoints.is_visible]
    return float(np.ptp(visible, axis=0).max()) if len(visible) else 0.0


def open_folder(folder: Path, split: str) -> WillowData:
    """Opens the data set.

    Args:
        folder: PF-dataset-WILLOW, or the folder that holds it.
        split: all pairs within each sub-class, or the pairs of the common test table.
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    examples, problems = find_examples(root, "*(*)/*.mat")
    pairs = None
    if split == "pairs":
        table = find_table(root, _TABLES, "table of pairs")
        pairs, wrong, _ = read_listed_pairs(table, partial(_find_pair, _index_by_name(examples)))
        problems += wrong
    data = WillowData(root, examples, pairs=pairs, problems=problems)
    return data.require_pairs(split, f"no two images with .mat files in a folder of {root} such as car(S)")


def _index_by_name(examples: Sequence[Example]) -> dict[str, int]:
    return {example.name: row for row, example in enumerate(examples)}


def _find_pair(rows: Mapping[str, int], cells: list[str]) -> tuple[int, int] | str:
    """Rows of a line's images, which the table names by paths; only folder and name count."""
    names = [PurePosixPath(cell.replace("\\", "/")) for cell in cells[:2]]
    found = [rows.get(f"{name.parent.name}/{name.stem}", -1) for name in names]
    if len(found) < 2:
        return "expected two images; correct the line"
    if min(found) < 0:
        return f"expected an image of the set, got {cells[found.index(-1)][:60]!r}; correct the line"
    return found[0], found[1]
