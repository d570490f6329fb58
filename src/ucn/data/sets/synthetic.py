"""Synthetic pairs from any folder of images: each image gives one pair with exact ground truth.

Training renders such pairs on the GPU without this reader (`ucn.data.synthetic`). The reader serves to
inspect them, to check a folder, and to write some to disk.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

import torch

from ucn.config import SyntheticConfig
from ucn.data.descriptions import SYNTHETIC as INFO
from ucn.data.pairs import DataFile, PairData, check_choice, check_index
from ucn.data.sets.layout import find_root
from ucn.data.synthetic import ImageBank, list_images, make_pairs
from ucn.errors import DataError
from ucn.types import PairSample

KINDS = ("homography", "affine", "spline", "parallax")
"""How the views of a pair can differ."""
_SCENE_IMAGES = 3
_CANVAS_SIDE = 1024


def open_folder(
    folder: Path, split: str, *, kind: str = "mixed", side: int = 320, points: int = 1000, seed: int = 0
) -> Synthetic:
    """Opens a folder of images.

    Args:
        folder: holds the images, also in sub-folders.
        split: all.
        kind: homography, affine, spline (deformed), parallax (planes in depth), or mixed: all in turn.
        side: height and width of the square views in pixels, a multiple of 32.
        points: the most correspondences of a pair.
        seed: random seed; another one gives other pairs.
    """
    check_choice(kind, ("mixed", *KINDS), "option kind of synthetic")
    if seed < 0:
        raise DataError(f"option seed of synthetic must be at least 0, got {seed}")
    root = find_root(folder, INFO.markers)
    return Synthetic(root, kind, SyntheticConfig(side=side, points=points), seed)


class Synthetic(PairData):
    """One pair for each image."""

    def __init__(self, root: Path, kind: str, config: SyntheticConfig, seed: int) -> None:
        super().__init__(root)
        self._paths = list_images(root)
        self._kind, self._config, self._seed = kind, config, seed

    def __len__(self) -> int:
        return len(self._paths)

    def pair_name(self, index: int) -> str:
        """The image and the kind of change."""
        check_index(index, len(self))
        return f"{self._paths[index].relative_to(self.root).as_posix()} ({self._kind_of(index)})"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The source image twice: both views are rendered from it."""
        check_index(index, len(self))
        return self._paths[index], self._paths[index]

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The source image, or those of a scene."""
        check_index(index, len(self))
        count = _SCENE_IMAGES if self._kind_of(index) == "parallax" else 1
        return tuple(self._paths[(index + offset) % len(self)] for offset in range(count))

    def read(self, index: int) -> PairSample:
        """Renders a pair, the same each time."""
        kind = self._kind_of(index)
        shares = {f"{name}_share": float(name == kind) for name in KINDS[1:]}
        config = SyntheticConfig.from_dict(self._config.to_dict() | shares)
        bank = ImageBank(self.pair_files(index), _CANVAS_SIDE, "cpu")
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + index) % 2**63)
        batch = make_pairs(bank, 1, config, generator)
        is_valid = batch.is_valid[0]
        return PairSample(
            image0=batch.image0[0],
            image1=batch.image1[0],
            points0=batch.points0[0][is_valid],
            points1=batch.points1[0][is_valid],
            name=self.pair_name(index),
        )

    def files(self) -> Sequence[DataFile]:
        """The images."""
        return [DataFile.image(path) for path in self._paths]

    def _kind_of(self, index: int) -> str:
        """Kinds alternate; each quarter of the set begins with another: evenly spaced pairs have all."""
        if self._kind != "mixed":
            return self._kind
        if len(self) < len(KINDS):
            return KINDS[index]
        starts = [quarter * len(self) // len(KINDS) for quarter in range(len(KINDS))]
        quarter = bisect.bisect(starts, index) - 1
        return KINDS[(quarter + index - starts[quarter]) % len(KINDS)]
