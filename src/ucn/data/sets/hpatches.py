"""HPatches image sequences: planar scenes under viewpoint changes and under illumination changes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ucn.data.descriptions import HPATCHES as INFO
from ucn.data.sets.flow.dense_pairs import DenseData, DensePair, GroundTruthFile, SizeHW
from ucn.data.sets.layout import find_image, find_root
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines
from ucn.geometry.coords import pixel_grid
from ucn.geometry.warp import warp_points

_PREFIXES = {"all": ("i_", "v_"), "viewpoint": ("v_",), "illumination": ("i_",)}
_OTHERS = range(2, 7)
_REMEDY = "unpack the sequence again"


def open_folder(folder: Path, split: str) -> HPatches:
    """Opens HPatches.

    Args:
        folder: holds the sequences.
        split: all, viewpoint (``v_``) or illumination (``i_``).
    """
    return HPatches(find_root(folder, INFO.markers, INFO.inside), split)


class HPatches(DenseData):
    """Image 1 of each sequence with each other image of it.

    Every pixel of image 1 that the homography maps into the other image is a correspondence: hundreds of
    thousands per pair.
    """

    def __init__(self, root: Path, split: str) -> None:
        super().__init__(root)
        for sequence in sorted(path for path in root.iterdir() if path.name.startswith(_PREFIXES[split])):
            if sequence.is_dir():
                self._add_sequence(sequence)
        expected = " or ".join(f"{prefix}NAME/1.ppm" for prefix in _PREFIXES[split])
        self.require_pairs(split, f"no {expected} in {root}")

    def _add_sequence(self, sequence: Path) -> None:
        if find_image(sequence / "1") is None:
            self.add_problem(sequence / "1.ppm", f"no such file, so the sequence has no pairs; {_REMEDY}")
            return
        for other in _OTHERS:
            homography = (GroundTruthFile(sequence / f"H_1_{other}", "homography"),)
            name, stem1 = f"{sequence.name}/1-{other}", sequence / str(other)
            self.add_pair(name, sequence / "1", stem1, homography, f"sequence {sequence.name}", ".ppm")

    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """Every pixel of image 0 mapped by the homography; HPatches has pixel centres at integers, too."""
        points = pixel_grid(image0_hw).double().view(1, -1, 2)
        return warp_points(points, read_homography(pair.ground_truth[-1].path)[None]).view(*image0_hw, 2)

    def check_ground_truth(self, pair: DensePair, file: GroundTruthFile) -> object:
        """Reads the homography."""
        return read_homography(file.path)


def read_homography(path: Path) -> Tensor:
    """Reads a homography: nine numbers in row-major order, usually on three lines.

    Returns:
        (3, 3) float64, with a sign that puts the plane in front of both cameras.

    Raises:
        DataError: the file is missing, does not hold nine finite numbers, or the matrix is singular.
    """
    numbers: list[float] = []
    for line, text in read_lines(path, "homography"):
        numbers += parse_numbers(text, None, f"{path}:{line}")
        if len(numbers) > 9:
            raise DataError(
                f"{path}:{line}: expected nine numbers in all, got at least {len(numbers)}; {_REMEDY}"
            )
    if len(numbers) != 9:
        raise DataError(f"{path}: expected nine numbers in all, got {len(numbers)}; {_REMEDY}")
    H = torch.tensor(numbers, dtype=torch.float64).view(3, 3)
    # Singular values of a homography in pixels span about 1e6, those of a singular matrix 1e16.
    values = torch.linalg.svdvals(H)
    if not values[2] > 1e-12 * values[0]:
        raise DataError(
            f"{path}: expected a homography that can be inverted, got a singular matrix; {_REMEDY}"
        )
    # A homography is defined up to scale, sign included. Two views of one plane never mirror it, so that
    # det H / depth³, the sign of its Jacobian, is positive: with det H > 0, points in front have depth > 0.
    sign: Tensor = torch.linalg.det(H).sign()
    return H * sign
