"""A camera that drives along a wall of noise: every point moves left by the same number of pixels a frame."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import torch

from ucn.data.io import read_image
from ucn.data.pairs import DataFile
from ucn.data.sets.posed.posed_pairs import Array, PosedData
from ucn.evaluate.core.benchmark_pairs import ALL, BenchmarkPair, group_pairs
from ucn.evaluate.driving.benchmarks import DRIVING_BENCHMARKS
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.types import PairSample

STEP = 8
"""Pixels to the left a frame."""
HW = (80, 160)
DRIVE = "drive"


class Wall(PosedData):
    """Frames 0, 1 and 3, the camera 1 m farther a frame number; every fourth pixel has a correspondence."""

    FRAMES = (0, 1, 3)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 256, (HW[0] // 4, 80), dtype=np.uint8)
        wall = np.asarray(PIL.Image.fromarray(noise).resize((320, HW[0]), PIL.Image.Resampling.BICUBIC))
        root.mkdir(parents=True, exist_ok=True)
        for frame in self.FRAMES:
            pixels = np.ascontiguousarray(wall[:, STEP * frame : STEP * frame + HW[1]])
            PIL.Image.fromarray(pixels).save(root / f"{frame:010d}.png")
        self._pairs = [(0, 1), (0, 3), (1, 3)]

    def __len__(self) -> int:
        return len(self._pairs)

    def pair_name(self, index: int) -> str:
        """Drive and frames."""
        first, second = self._pairs[index]
        return f"{DRIVE}/{first:010d}-{second:010d}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two frames."""
        first, second = (self.root / f"{frame:010d}.png" for frame in self._pairs[index])
        return first, second

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The two frames."""
        return self.image_paths(index)

    def files(self) -> Sequence[DataFile]:
        """None that need a check."""
        return []

    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """So many metres to the right."""
        first, second = self._pairs[index]
        return np.eye(3), np.array([first - second, 0.0, 0.0])

    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """Two equal cameras."""
        return np.eye(3), np.eye(3)

    def read(self, index: int) -> PairSample:
        """A grid of points, those that stay on the image."""
        first, second = self._pairs[index]
        image0, image1 = (read_image(path) for path in self.image_paths(index))
        y, x = np.mgrid[10 : HW[0] - 10 : 2, 10 : HW[1] - 10 : 2]
        points0 = torch.from_numpy(np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.float32))
        points1 = points0 - torch.tensor([STEP * (second - first), 0.0])
        rows = points1[:, 0] >= 0
        return PairSample(image0, image1, points0[rows], points1[rows], self.pair_name(index))


def make_benchmark(root: Path) -> Benchmark:
    """The benchmark of KITTI raw over the wall, with few points."""
    return replace(DRIVING_BENCHMARKS["kitti-raw-points"], points=60, open=partial(_open, root))


def _open(root: Path, _: Path) -> list[BenchmarkPair]:
    return group_pairs(Wall(root), lambda _: ALL, lambda _: DRIVE)
