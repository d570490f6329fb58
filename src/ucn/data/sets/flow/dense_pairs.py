"""Base classes of data sets with ground truth per pixel of image 0: flow, disparity, homography.

A reader names the files of each pair and reads where the pixels of image 0 lie in image 1; `FilePairs` and
`DenseData` do the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.io import image_hw, read_image
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.data.points import read_flo
from ucn.data.sets.layout import find_image
from ucn.errors import DataError
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.types import PairSample

SizeHW = tuple[int, int]
"""(H, W)."""


@dataclass(frozen=True)
class GroundTruthFile:
    """A file with ground truth.

    Attributes:
        path: the file.
        kind: its content: flow, disparity, mask or homography.
    """

    path: Path
    kind: str


@dataclass(frozen=True)
class DensePair:
    """The files of a pair.

    Attributes:
        name: unique in the set.
        image0: file of image 0.
        image1: file of image 1.
        ground_truth: its other files; the one that holds the correspondences is last.
    """

    name: str
    image0: Path
    image1: Path
    ground_truth: tuple[GroundTruthFile, ...]


class FilePairs(PairData):
    """Pairs with ground truth for some or all pixels of image 0.

    A derived class calls `add_pair` for each pair when it is constructed.

    Attributes:
        pairs: the pairs, in order.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pairs: list[DensePair] = []

    @abstractmethod
    def read_correspondences(
        self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """Reads (N, 2) float32 pixel centres of image 0 and the corresponding points of image 1.

        Points that are NaN or outside image 1 are dropped afterwards.

        Raises:
            UcnError: a file of ground truth is faulty, or its size is not that of the images.
        """

    @abstractmethod
    def check_ground_truth(self, pair: DensePair, file: GroundTruthFile) -> object:
        """Reads one file of ground truth and compares its size with the images; raises `UcnError`."""

    def __len__(self) -> int:
        return len(self.pairs)

    def pair_name(self, index: int) -> str:
        """The name of a pair."""
        return self._pair(index).name

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files."""
        pair = self._pair(index)
        return pair.image0, pair.image1

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images and the ground truth of a pair."""
        pair = self._pair(index)
        return pair.image0, pair.image1, *(file.path for file in pair.ground_truth)

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each known pixel of image 0 that is visible in image 1."""
        pair = self._pair(index)
        image0, image1 = read_image(pair.image0), read_image(pair.image1)
        points0, points1 = self.read_correspondences(pair, image_hw(image0), image_hw(image1))
        is_visible = is_inside(points1, image_hw(image1))
        return PairSample(image0, image1, points0[is_visible], points1[is_visible], pair.name)

    def files(self) -> Sequence[DataFile]:
        """Every image and file of ground truth, once."""
        found: dict[Path, DataFile] = {}
        for pair in self.pairs:
            for image in (pair.image0, pair.image1):
                found.setdefault(image, DataFile.image(image))
            for file in pair.ground_truth:
                check = partial(self.check_ground_truth, pair, file)
                found.setdefault(file.path, DataFile(file.path, file.kind, check))
        return list(found.values())

    def add_pair(
        self,
        name: str,
        stem0: Path,
        stem1: Path,
        ground_truth: tuple[GroundTruthFile, ...],
        owner: str,
        suffix: str = ".png",
    ) -> None:
        """Adds a pair; where one of its files is missing, adds a problem instead.

        Args:
            name: unique in the set.
            stem0: path of image 0 without suffix.
            stem1: path of image 1 without suffix.
            ground_truth: as in `DensePair`.
            owner: the scene that the files belong to, for errors.
            suffix: the official suffix of images, for errors.
        """
        image0, image1 = find_image(stem0), find_image(stem1)
        missing = [file.path for file in ground_truth if not file.path.is_file()]
        if image0 is None or image1 is None:
            stem = stem0 if image0 is None else stem1
            missing.insert(0, stem.with_name(f"{stem.name}{suffix}"))
        if missing:
            self.add_problem(missing[0], f"no such file, though {owner} has others; unpack it again")
        elif image0 is not None and image1 is not None:
            self.pairs.append(DensePair(name, image0, image1, ground_truth))

    def _pair(self, index: int) -> DensePair:
        check_index(index, len(self.pairs))
        return self.pairs[index]


class DenseData(FilePairs):
    """Pairs with a dense map: a point in image 1 for each pixel of image 0."""

    @abstractmethod
    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """Reads the map.

        Returns:
            (H0, W0, 2): the point of image 1 that corresponds to each pixel centre of image 0; NaN where it
            is unknown or occluded. Points outside image 1 are dropped afterwards.

        Raises:
            UcnError: a file of ground truth is faulty, or its size is not that of the images.
        """

    def read_correspondences(
        self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """All pixels of image 0, and the points of the map."""
        targets = self.read_targets(pair, image0_hw, image1_hw).to(torch.float32)
        return pixel_grid(image0_hw).reshape(-1, 2), targets.reshape(-1, 2)


def check_size(path: Path, got_hw: Sequence[int], image: Path, image_hw: SizeHW | None) -> None:
    """Raises `DataError` where ground truth does not have the size of its image; None skips the check."""
    if image_hw is not None and tuple(got_hw) != image_hw:
        raise DataError(
            f"{path}: expected {image_hw[1]} × {image_hw[0]} (width × height) as image {image}, "
            f"got {got_hw[1]} × {got_hw[0]}; one of the two was resized or belongs to another "
            "pair: unpack both again"
        )


def read_flow_for(path: Path, image: Path, image_hw: SizeHW | None) -> Tensor:
    """Reads the .flo file of an image.

    Args:
        path: the .flo file.
        image: the image, for errors.
        image_hw: its size; None skips the check.

    Returns:
        (H, W, 2) float32; NaN where unknown.

    Raises:
        DataError: the file is missing, damaged or too large, or its size is not the image's.
    """
    flow = torch.from_numpy(read_flo(path))
    check_size(path, flow.shape[:2], image, image_hw)
    return flow
