"""A synthetic data set that spawned processes can import; images hold the number of their pair."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ucn.data.loading import make_generator
from ucn.data.pairs import DataFile, PairData, check_index
from ucn.types import PairSample


class NumberedData(PairData):
    """Pairs whose images hold their number; pair i has `points[i % len(points)]` correspondences."""

    def __init__(
        self,
        pairs: int,
        points: Sequence[int] = (30,),
        parts: bool = False,
        size_hw: tuple[int, int] = (40, 60),
    ) -> None:
        super().__init__(Path("numbered"))
        self.pairs, self.point_counts, self.parts = pairs, tuple(points), parts
        self.size_hw = size_hw

    def __len__(self) -> int:
        return self.pairs

    def pair_name(self, index: int) -> str:
        return f"pair-{index}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        return self.root / f"{index}.png", self.root / f"{index}.png"

    def files(self) -> Sequence[DataFile]:
        return []

    def read(self, index: int) -> PairSample:
        check_index(index, self.pairs)
        rows = self.point_counts[index % len(self.point_counts)]
        image = torch.full((3, *self.size_hw), index / 256)
        points = torch.rand(rows, 2, generator=make_generator(index)) * (self.size_hw[0] - 1)
        sample = PairSample(image, image, points, points, self.pair_name(index), pck_length=10.0 + index)
        if not self.parts:
            return sample
        return replace(sample, parts=torch.arange(rows), mirror_parts=torch.arange(rows))
