"""PF-WILLOW, the data set of Proposal Flow (Ham et al. 2016): 10 groups of 10 images, 10 points on each.

The points are MATLAB's and may count from 1; everyone who publishes on the set takes the numbers as they are,
and so does this reader. PCK's length is the longer side of the box round the points of image 1. What the ten
points are called, and which of them are left or right, the set does not say.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from ucn.data.catalogue import DataInfo
from ucn.data.pairs import Fault, check_choice
from ucn.data.sets.layout import find_image, find_root
from ucn.data.sets.semantic.image_lists import find_table, read_table
from ucn.data.sets.semantic.keypoint_pairs import KeypointData, shorten
from ucn.data.sets.semantic.matlab import REMEDY, read_mat
from ucn.data.sets.semantic.parts import Example, Keypoints
from ucn.errors import DataError

INFO = DataInfo(
    name="pf-willow",
    title="PF-WILLOW (Proposal Flow, 2016)",
    task="semantic",
    truth="10 points an image, marked by people; any two images of a sub-class are a pair",
    layout=(
        "PF-dataset-WILLOW/CLASS(X)/NAME.png",
        "PF-dataset-WILLOW/CLASS(X)/NAME.mat: pts_coord, 2 × 10",
        "test_pairs_pf.csv or test_pairs.csv, for split pairs: image 0, image 1 and their points",
    ),
    splits=("all", "pairs"),
    licence="none stated; made for research, from WILLOW-ObjectClass; the photographs are their owners'",
    source="https://www.di.ens.fr/willow/research/proposalflow/",
    markers=("*(*)/*.mat",),
    inside=("PF-dataset-WILLOW", "PF-dataset"),
)

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
        """The longer side of the box round the points."""
        return points_side(keypoints)


def points_side(keypoints: Keypoints) -> float:
    """The longer side of the box round the visible points; 0 where there are none."""
    visible = keypoints.points[keypoints.is_visible]
    return float(np.ptp(visible, axis=0).max()) if len(visible) else 0.0


def open_folder(folder: Path, split: str) -> WillowData:
    """Opens the data set.

    Args:
        folder: PF-dataset-WILLOW, or the folder that holds it.
        split: all pairs within each sub-class, or the pairs that are commonly tested on, from a table.
    """
    root = find_root(folder, INFO.markers, INFO.inside)
    check_choice(split, INFO.splits, "split")
    examples, faults = _find_images(root)
    pairs = None
    if split == "pairs":
        pairs, wrong = _read_pairs(find_table(root, _TABLES, "table of pairs"), examples)
        faults += wrong
    data = WillowData(root, examples, pairs=pairs)
    data.faults += faults
    return data.require_pairs(split, "two images with .mat files in a folder such as car(S)")


def _find_images(root: Path) -> tuple[list[Example], list[Fault]]:
    examples, faults = [], []
    for path in sorted(root.glob("*(*)/*.mat")):
        image = find_image(path.with_suffix(""))
        if image is None:
            faults.append(
                Fault(path, f"no image {path.stem}.png beside it; copy it there, or remove this file")
            )
        else:
            category = path.parent.name
            examples.append(Example(f"{category}/{path.stem}", category, image, path))
    return examples, shorten(faults)


def _read_pairs(path: Path, examples: list[Example]) -> tuple[list[tuple[int, int]], list[Fault]]:
    """Rows of the table's pairs; its images are known by last folder and name, wherever they once lay."""
    rows = {example.name: row for row, example in enumerate(examples)}
    pairs, faults = [], []
    for line, cells in read_table(path):
        names = [PurePosixPath(cell.replace("\\", "/")) for cell in cells[:2]]
        found = [rows.get(f"{name.parent.name}/{name.stem}", -1) for name in names]
        if len(found) < 2 or min(found) < 0:
            what = (
                "two images"
                if len(found) < 2
                else f"an image of the set, got {cells[found.index(-1)][:60]!r}"
            )
            faults.append(Fault(path, f"expected {what}; correct the line", line))
        else:
            pairs.append((found[0], found[1]))
    return list(dict.fromkeys(pairs)), shorten(faults)
