"""What data sets with truth for every pixel of image 0 share: flow, disparity, homography.

A reader says which files a pair is made of and where each pixel of image 0 lies in image 1; this base does
the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.headers import read_header_hw as read_header_hw
from ucn.data.io import read_image
from ucn.data.pairs import DataFile, Fault, PairData, check_index
from ucn.data.points import read_flo
from ucn.data.sets.layout import MAX_BINARY_BYTES
from ucn.errors import DataError
from ucn.geometry.coords import is_inside, pixel_grid
from ucn.types import PairSample

SizeHW = tuple[int, int]
"""(H, W)."""


@dataclass(frozen=True)
class TruthFile:
    """A file that says where pixels go.

    Attributes:
        path: the file.
        kind: what it holds: flow, disparity, mask, homography.
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
        truth: what else it is made of, the file that holds the correspondences last.
    """

    name: str
    image0: Path
    image1: Path
    truth: tuple[TruthFile, ...]


class FilePairs(PairData):
    """Pairs whose truth says for pixels of image 0 where they lie in image 1.

    A derived class fills `pairs` and `faults` when it is made.

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
        """Reads (N, 2) float32 pixel centres of image 0 and their places in image 1.

        Places that are NaN or outside image 1 are dropped afterwards.

        Raises:
            UcnError: a truth file is wrong, or does not fit the images.
        """

    @abstractmethod
    def check_truth(self, pair: DensePair, file: TruthFile) -> object:
        """Reads one truth file and compares it with the images it belongs to; raises `UcnError`."""

    def __len__(self) -> int:
        return len(self.pairs)

    def pair_name(self, index: int) -> str:
        """The name of a pair."""
        return self._pair(index).name

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The files of the two images."""
        pair = self._pair(index)
        return pair.image0, pair.image1

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images and the truth files of a pair."""
        pair = self._pair(index)
        return pair.image0, pair.image1, *(file.path for file in pair.truth)

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each pixel of image 0 that is seen in image 1."""
        pair = self._pair(index)
        image0, image1 = read_image(pair.image0), read_image(pair.image1)
        image0_hw, image1_hw = (image0.shape[1], image0.shape[2]), (image1.shape[1], image1.shape[2])
        points0, points1 = self.read_correspondences(pair, image0_hw, image1_hw)
        is_seen = is_inside(points1, image1_hw)
        return PairSample(image0, image1, points0[is_seen], points1[is_seen], pair.name)

    def files(self) -> Sequence[DataFile]:
        """Every image and truth file, once."""
        found: dict[Path, DataFile] = {}
        for pair in self.pairs:
            for image in (pair.image0, pair.image1):
                found.setdefault(image, DataFile(image, "image", partial(read_image, image)))
            for file in pair.truth:
                check = partial(self.check_truth, pair, file)
                found.setdefault(file.path, DataFile(file.path, file.kind, check))
        return list(found.values())

    def add_fault(self, path: Path, message: str) -> None:
        """Notes that an entry was left out."""
        self.faults.append(Fault(path, message, is_left_out=True))

    def require_pairs(self, split: str, expected: str) -> None:
        """Raises `DataError` where the split has neither pairs nor faults that say why."""
        if not self.pairs and not self.faults:
            raise DataError(f"split '{split}' is empty: no {expected} in {self.root}")

    def _pair(self, index: int) -> DensePair:
        check_index(index, len(self.pairs))
        return self.pairs[index]


class DenseData(FilePairs):
    """Pairs whose truth is a map: a place in image 1 for each pixel of image 0."""

    @abstractmethod
    def read_targets(self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW) -> Tensor:
        """Reads where pixels go.

        Returns:
            (H0, W0, 2): for each pixel centre of image 0 its place in image 1; NaN where that is unknown or
            hidden. Places outside image 1 are dropped afterwards.

        Raises:
            UcnError: a truth file is wrong, or does not fit the images.
        """

    def read_correspondences(
        self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """All pixels of image 0 and where the map says they are."""
        targets = self.read_targets(pair, image0_hw, image1_hw).to(torch.float32)
        return pixel_grid(image0_hw).reshape(-1, 2), targets.reshape(-1, 2)


def check_size(path: Path, got_hw: Sequence[int], image: Path, image_hw: SizeHW | None) -> None:
    """Raises `DataError` where a truth file is not as large as its image; None leaves it unchecked."""
    if image_hw is not None and tuple(got_hw) != image_hw:
        raise DataError(
            f"{path}: expected {image_hw[1]} × {image_hw[0]} (width × height) as image {image}, "
            f"got {got_hw[1]} × {got_hw[0]}; one of the two was resized or belongs to another "
            "pair: unpack both again"
        )


def read_flow_of(path: Path, image: Path, image_hw: SizeHW | None) -> Tensor:
    """Reads a .flo file that belongs to an image.

    Args:
        path: the .flo file, at most `MAX_BINARY_BYTES`.
        image: the image whose pixels it moves, for errors.
        image_hw: its size; None leaves that unchecked.

    Returns:
        (H, W, 2) float32; NaN where the file says unknown.

    Raises:
        DataError: the file is missing, damaged or too large, or its size is not the image's.
    """
    if path.is_file() and path.stat().st_size > MAX_BINARY_BYTES:
        raise DataError(f"{path} has more than {MAX_BINARY_BYTES:,} bytes, the limit for flow")
    flow = torch.from_numpy(read_flo(path))
    check_size(path, flow.shape[:2], image, image_hw)
    return flow
